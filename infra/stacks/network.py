"""VPC, subnets, the way out, endpoints, and the security group that EFA needs.

Zones and addresses are the Plan's: nothing here asks an account which zones it has. The VPC's default security group
stays as EC2 makes it and is attached to nothing; closing it would take a custom resource with a Lambda function.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_ec2 as ec2
from constructs import Construct

from infra.config.plan import Plan
from infra.config.subnets import Subnet
from infra.constructs.acknowledge import acknowledge
from infra.constructs.endpoints import interface_endpoints, interface_services, s3_endpoint
from infra.constructs.flow_log import flow_log
from infra.constructs.security_group import ANYWHERE, efa_security_group, endpoint_security_group
from infra.constructs.stack import PlanStack

INTERNAL_BALANCER_TAG = "kubernetes.io/role/internal-elb"


class NetworkStack(PlanStack):
    """One VPC with the Plan's subnets. Each zone has one private route table, shared by its accelerator subnet."""

    def __init__(self, scope: Construct, plan: Plan) -> None:
        super().__init__(
            scope, "network", plan, description="VPC, subnets, endpoints and EFA security group", protected=True
        )
        self.vpc = ec2.CfnVPC(
            self,
            "Vpc",
            cidr_block=plan.network.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=[cdk.CfnTag(key="Name", value=plan.name)],
        )
        self.private_subnets = self._subnets("private")
        self.accelerator_subnets = self._subnets("accelerator")
        routes = self._private_routes()
        self.nat_gateways = self._way_out(self._subnets("public"), routes) if plan.network.egress == "nat" else {}
        s3_endpoint(self, plan, vpc_id=self.vpc.ref, route_table_ids=[table.ref for table in routes.values()])

        self.efa_security_group = efa_security_group(
            self,
            "EfaSecurityGroup",
            vpc_id=self.vpc.ref,
            name=f"{plan.name}-efa",
            vpc_cidr=plan.network.cidr,
            internet=plan.network.egress == "nat",
        )
        self.endpoint_security_group = self._endpoints()
        flow_log(self, plan, vpc_id=self.vpc.ref)
        acknowledge(
            self,
            "CloudFormation-Validate::W3010",
            "the zones are the environment file's: a reservation lives in one, and an account lookup may miss it",
        )
        cdk.CfnOutput(self, "VpcId", value=self.vpc.ref)
        cdk.CfnOutput(self, "EfaSecurityGroupId", value=self.efa_security_group.attr_group_id)

    def _subnets(self, kind: str) -> dict[str, ec2.CfnSubnet]:
        """Subnets of one kind by zone."""
        return {subnet.zone: self._subnet(subnet) for subnet in self.plan.network.subnets if subnet.kind == kind}

    def _subnet(self, subnet: Subnet) -> ec2.CfnSubnet:
        tags = [cdk.CfnTag(key="Name", value=f"{self.plan.name}-{subnet.kind}-{subnet.zone}")]
        if subnet.kind == "private":
            tags.append(cdk.CfnTag(key=INTERNAL_BALANCER_TAG, value="1"))
        return ec2.CfnSubnet(
            self,
            f"{subnet.kind.capitalize()}Subnet{_letter(subnet.zone)}",
            vpc_id=self.vpc.ref,
            availability_zone=subnet.zone,
            cidr_block=subnet.cidr,
            map_public_ip_on_launch=False,
            tags=tags,
        )

    def _private_routes(self) -> dict[str, ec2.CfnRouteTable]:
        """One route table per zone, on its private and its accelerator subnet."""
        tables: dict[str, ec2.CfnRouteTable] = {}
        for zone in self.plan.network.zones:
            table = self._route_table(f"PrivateRoutes{_letter(zone)}", f"private-{zone}")
            for kind, subnets in (("Private", self.private_subnets), ("Accelerator", self.accelerator_subnets)):
                if zone in subnets:
                    self._associate(f"{kind}Routes{_letter(zone)}Association", table, subnets[zone])
            tables[zone] = table
        return tables

    def _way_out(
        self, public: dict[str, ec2.CfnSubnet], private_routes: dict[str, ec2.CfnRouteTable]
    ) -> dict[str, ec2.CfnNatGateway]:
        """Internet gateway, and in each zone a NAT gateway of its own: no zone's loss cuts another one off. The latter by
        zone."""
        gateway = ec2.CfnInternetGateway(self, "InternetGateway", tags=[cdk.CfnTag(key="Name", value=self.plan.name)])
        attachment = ec2.CfnVPCGatewayAttachment(
            self, "InternetGatewayAttachment", vpc_id=self.vpc.ref, internet_gateway_id=gateway.ref
        )
        table = self._route_table("PublicRoutes", "public")
        default = ec2.CfnRoute(
            self,
            "PublicDefaultRoute",
            route_table_id=table.ref,
            destination_cidr_block=ANYWHERE,
            gateway_id=gateway.ref,
        )
        default.add_resource_dependency(attachment)
        gateways: dict[str, ec2.CfnNatGateway] = {}
        for zone, private in private_routes.items():
            letter = _letter(zone)
            associated = self._associate(f"PublicRoutes{letter}Association", table, public[zone])
            address = ec2.CfnEIP(
                self,
                f"NatAddress{letter}",
                domain="vpc",
                tags=[cdk.CfnTag(key="Name", value=f"{self.plan.name}-nat-{zone}")],
            )
            nat = ec2.CfnNatGateway(
                self,
                f"NatGateway{letter}",
                subnet_id=public[zone].ref,
                allocation_id=address.attr_allocation_id,
                tags=[cdk.CfnTag(key="Name", value=f"{self.plan.name}-{zone}")],
            )
            # Deleted in the reverse order: addresses must be free before the internet gateway can be detached.
            address.add_resource_dependency(attachment)
            nat.add_resource_dependency(default)
            nat.add_resource_dependency(associated)
            ec2.CfnRoute(
                self,
                f"PrivateDefaultRoute{letter}",
                route_table_id=private.ref,
                destination_cidr_block=ANYWHERE,
                nat_gateway_id=nat.ref,
            )
            gateways[zone] = nat
        return gateways

    def _route_table(self, identifier: str, name: str) -> ec2.CfnRouteTable:
        tag = cdk.CfnTag(key="Name", value=f"{self.plan.name}-{name}")
        return ec2.CfnRouteTable(self, identifier, vpc_id=self.vpc.ref, tags=[tag])

    def _associate(
        self, identifier: str, table: ec2.CfnRouteTable, subnet: ec2.CfnSubnet
    ) -> ec2.CfnSubnetRouteTableAssociation:
        return ec2.CfnSubnetRouteTableAssociation(self, identifier, route_table_id=table.ref, subnet_id=subnet.ref)

    def _endpoints(self) -> ec2.CfnSecurityGroup | None:
        """Interface endpoints in the private subnets and their group; None where the environment needs none."""
        plan = self.plan
        if not interface_services(plan):
            return None
        group = endpoint_security_group(
            self,
            "EndpointSecurityGroup",
            vpc_id=self.vpc.ref,
            name=f"{plan.name}-endpoints",
            vpc_cidr=plan.network.cidr,
        )
        interface_endpoints(
            self,
            plan,
            vpc_id=self.vpc.ref,
            subnet_ids=[subnet.ref for subnet in self.private_subnets.values()],
            security_group_id=group.attr_group_id,
        )
        return group


def _letter(zone: str) -> str:
    """The part of a zone's name that is unique within its region: `A` of us-west-2a."""
    return zone[-1].upper()
