"""EKS clusters."""

from __future__ import annotations

import base64
import re
from typing import Any

from .. import registry, shapes, state
from ..ec2.network import SUBNET_MISSING, SUBNETS
from ..ec2.security_groups import GROUP_MISSING, GROUPS
from ..errors import ServiceError
from ..registry import Created, Params, call, operation, resource
from . import common
from .common import CLUSTERS, invalid

_LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")


@operation("eks", "CreateCluster")
def create_cluster(params: Params) -> Params:
    name = params["name"]
    if name in CLUSTERS:
        raise common.in_use(f"Cluster already exists with name: {name}")
    version = params.get("version", "1.35")
    if not re.fullmatch(r"1\.\d\d", version):
        raise invalid(f"unsupported Kubernetes version {version}")
    network = params["resourcesVpcConfig"]
    vpc_id = _check_network(network)
    cluster = {
        "name": name,
        "arn": state.arn("eks", f"cluster/{name}"),
        "createdAt": state.now(),
        "version": version,
        "platformVersion": "eks.1",
        # No API server answers here: .invalid is reserved for names that never resolve (RFC 2606).
        "endpoint": f"https://{name}.eks.emulator.invalid",
        "roleArn": params["roleArn"],
        "resourcesVpcConfig": {
            "securityGroupIds": [],
            "endpointPublicAccess": True,
            "endpointPrivateAccess": False,
            "publicAccessCidrs": ["0.0.0.0/0"] if network.get("endpointPublicAccess", True) else [],
            **network,
            "vpcId": vpc_id,
            "clusterSecurityGroupId": _cluster_security_group(name, vpc_id),
        },
        "kubernetesNetworkConfig": {
            "serviceIpv4Cidr": "10.100.0.0/16",
            "ipFamily": "ipv4",
            **params.get("kubernetesNetworkConfig", {}),
        },
        "logging": {"clusterLogging": _all_log_types(params.get("logging", {}).get("clusterLogging", []))},
        "identity": {"oidc": {"issuer": f"https://oidc.eks.{state.region()}.amazonaws.com/id/{name}-emulator"}},
        "certificateAuthority": {"data": base64.b64encode(b"no API server behind this cluster").decode()},
        "status": "ACTIVE",
        "health": {"issues": []},
        "accessConfig": {"authenticationMode": "CONFIG_MAP", **params.get("accessConfig", {})},
        "encryptionConfig": params.get("encryptionConfig", []),
        "upgradePolicy": params.get("upgradePolicy", {"supportType": "EXTENDED"}),
        "deletionProtection": params.get("deletionProtection", False),
        "tags": dict(params.get("tags", {})),
    }
    CLUSTERS[name] = cluster
    return {"cluster": cluster}


def _check_network(network: dict[str, Any]) -> str:
    """The VPC of the cluster's subnets. Raises what EKS replies for subnets or groups it cannot use."""
    subnets = []
    for subnet_id in network.get("subnetIds", []):
        if subnet_id not in SUBNETS:
            raise invalid(f"The subnet ID '{subnet_id}' does not exist ({SUBNET_MISSING})")
        subnets.append(SUBNETS[subnet_id])
    for group_id in network.get("securityGroupIds", []):
        if group_id not in GROUPS:
            raise invalid(f"The security group '{group_id}' does not exist ({GROUP_MISSING})")
    if len({subnet["AvailabilityZone"] for subnet in subnets}) < 2:
        raise invalid("Subnets specified must be in at least two different AZs")
    vpcs = {subnet["VpcId"] for subnet in subnets}
    if len(vpcs) != 1:
        raise invalid("Subnets specified must be in the same VPC")
    return str(vpcs.pop())


def _cluster_security_group(name: str, vpc_id: str) -> str:
    tags = [{"Key": "aws:eks:cluster-name", "Value": name}, {"Key": f"kubernetes.io/cluster/{name}", "Value": "owned"}]
    group_name = f"eks-cluster-sg-{name}-emulator"
    with registry.by_service("eks.amazonaws.com"):
        sent = {
            "GroupName": group_name,
            "Description": "EKS created security group applied to ENI that is attached to EKS Control Plane master nodes",
            "VpcId": vpc_id,
            "TagSpecifications": [{"ResourceType": "security-group", "Tags": tags}],
        }
        group_id: str = call("ec2", "CreateSecurityGroup", sent)["GroupId"]
        itself = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group_id}]}
        call("ec2", "AuthorizeSecurityGroupIngress", {"GroupId": group_id, "IpPermissions": [itself]})
    return group_id


def _all_log_types(setups: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Log setups as DescribeCluster groups them: the enabled types, then the rest."""
    enabled = [one for setup in setups if setup.get("enabled") for one in setup.get("types", [])]
    rest = [one for one in _LOG_TYPES if one not in enabled]
    groups = ((enabled, True), (rest, False))
    return [{"types": types, "enabled": on} for types, on in groups if types]


@operation("eks", "DescribeCluster")
def describe_cluster(params: Params) -> Params:
    return {"cluster": common.cluster(params["name"])}


@operation("eks", "ListClusters")
def list_clusters(_params: Params) -> Params:
    return {"clusters": list(CLUSTERS)}


_CONFIG_KINDS = {
    "logging": ("LoggingUpdate", "ClusterLogging"),
    "accessConfig": ("AccessConfigUpdate", "AuthenticationMode"),
    "upgradePolicy": ("UpgradePolicyUpdate", "UpgradePolicy"),
    "deletionProtection": ("DeletionProtectionUpdate", "DeletionProtection"),
}
_ENDPOINT_KEYS = ("endpointPublicAccess", "endpointPrivateAccess", "publicAccessCidrs")
_VPC_KEYS = ("subnetIds", "securityGroupIds")


@operation("eks", "UpdateClusterConfig")
def update_cluster_config(params: Params) -> Params:
    cluster = common.cluster(params["name"])
    changes = {key: value for key, value in params.items() if key not in ("name", "clientRequestToken")}
    network = changes.get("resourcesVpcConfig", {})
    if len(changes) != 1 or (set(network) & set(_ENDPOINT_KEYS) and set(network) & set(_VPC_KEYS)):
        raise invalid(f"Only one type of update can be allowed, given: {', '.join(sorted(changes)) or 'none'}")
    (key, value), *_ = changes.items()
    if key == "resourcesVpcConfig":
        merged = {**cluster["resourcesVpcConfig"], **value}
        if set(value) & set(_VPC_KEYS):
            _check_network(merged)
        if all(cluster["resourcesVpcConfig"].get(name) == setting for name, setting in value.items()):
            raise invalid("Cluster is already at the desired configuration")
        cluster["resourcesVpcConfig"] = merged
        kind = "VpcConfigUpdate" if set(value) & set(_VPC_KEYS) else "EndpointAccessUpdate"
        names = {"subnetIds": "Subnets", "securityGroupIds": "SecurityGroups"}
        logged = {names.get(name, name[0].upper() + name[1:]): setting for name, setting in value.items()}
        return common.finished_update(cluster["name"], kind, logged)
    if key not in _CONFIG_KINDS:
        raise invalid(f"the emulator does not implement an update of {key}")
    if key == "logging":
        value = {"clusterLogging": _all_log_types(value.get("clusterLogging", []))}
    cluster[key] = {**cluster[key], **value} if isinstance(cluster.get(key), dict) else value
    kind, param = _CONFIG_KINDS[key]
    return common.finished_update(cluster["name"], kind, {param: value})


@operation("eks", "UpdateClusterVersion")
def update_cluster_version(params: Params) -> Params:
    cluster = common.cluster(params["name"])
    before, after = (int(one.partition(".")[2]) for one in (cluster["version"], params["version"]))
    if after != before + 1:
        raise invalid(f"Unsupported Kubernetes minor version update from {cluster['version']} to {params['version']}")
    cluster["version"] = params["version"]
    update = {"Version": params["version"], "PlatformVersion": cluster["platformVersion"]}
    return common.finished_update(cluster["name"], "VersionUpdate", update)


@operation("eks", "DeleteCluster")
def delete_cluster(params: Params) -> Params:
    cluster = common.cluster(params["name"])
    if cluster["deletionProtection"]:
        raise ServiceError(
            "InvalidRequestException",
            f"Cluster {cluster['name']} cannot be deleted because deletion protection is enabled. "
            "Disable deletion protection with UpdateClusterConfig first.",
        )
    if common.of_cluster(common.NODEGROUPS, cluster["name"]):
        raise common.in_use("Cluster has nodegroups attached")
    for kept in (common.ADDONS, common.ACCESS_ENTRIES, common.ASSOCIATIONS):
        for key in [key for key in kept if key[0] == cluster["name"]]:
            kept.pop(key)
    CLUSTERS.pop(cluster["name"])
    with registry.by_service("eks.amazonaws.com"):
        call("ec2", "DeleteSecurityGroup", {"GroupId": cluster["resourcesVpcConfig"]["clusterSecurityGroupId"]})
    return {"cluster": {**cluster, "status": "DELETING"}}


# ---- CloudFormation ---------------------------------------------------------------------------------------------


def _logging(value: Params | None) -> dict[str, Any]:
    """CloudFormation's EnabledTypes as the API's log setups, every type stated."""
    enabled = [one["Type"] for one in ((value or {}).get("ClusterLogging") or {}).get("EnabledTypes") or []]
    return {"clusterLogging": _all_log_types([{"types": enabled, "enabled": True}])}


def _cluster_create(name: str, props: Params) -> Created:
    own = {key: value for key, value in props.items() if key not in ("Logging", "Tags")}
    sent = shapes.to_api("eks", "CreateClusterRequest", {"Name": name, **own})
    if "Logging" in props:
        sent["logging"] = _logging(props["Logging"])
    call("eks", "CreateCluster", {**sent, "tags": shapes.tag_map(props.get("Tags"))})
    return sent["name"], _cluster_attributes(sent["name"])


def _cluster_attributes(name: str) -> dict[str, Any]:
    cluster = common.cluster(name)
    keys = [one["provider"]["keyArn"] for one in cluster["encryptionConfig"]]
    return {
        "Arn": cluster["arn"],
        "Id": name,
        "Endpoint": cluster["endpoint"],
        "CertificateAuthorityData": cluster["certificateAuthority"]["data"],
        "ClusterSecurityGroupId": cluster["resourcesVpcConfig"]["clusterSecurityGroupId"],
        "EncryptionConfigKeyArn": keys[0] if keys else "",
        "OpenIdConnectIssuerUrl": cluster["identity"]["oidc"]["issuer"],
        "KubernetesNetworkConfig.ServiceIpv4Cidr": cluster["kubernetesNetworkConfig"]["serviceIpv4Cidr"],
    }


def _cluster_update(name: str, old: Params, new: Params) -> dict[str, Any]:
    differs = shapes.changed(old, new)
    if "Version" in differs:
        call("eks", "UpdateClusterVersion", {"name": name, "version": new["Version"]})
    for change in _config_changes(differs, old, new):
        call("eks", "UpdateClusterConfig", {"name": name, **change})
    if "Tags" in differs:
        common.retag(common.cluster(name)["arn"], old, new)
    return _cluster_attributes(name)


def _config_changes(differs: set[str], old: Params, new: Params) -> list[dict[str, Any]]:
    """The UpdateClusterConfig calls that a property change needs, one kind of change in each."""
    changes: list[dict[str, Any]] = []
    for name in ("AccessConfig", "UpgradePolicy"):
        if name in differs:
            own = shapes.to_api("eks", "UpdateClusterConfigRequest", {name: _updatable(name, new.get(name))})
            changes.append(own)
    if "DeletionProtection" in differs:
        changes.append({"deletionProtection": shapes.is_true(new.get("DeletionProtection", False))})
    if "Logging" in differs:
        changes.append({"logging": _logging(new.get("Logging"))})
    if "ResourcesVpcConfig" in differs:
        before, after = (
            shapes.to_api("eks", "VpcConfigRequest", one.get("ResourcesVpcConfig") or {}) for one in (old, new)
        )
        for keys in (_VPC_KEYS, _ENDPOINT_KEYS):
            part = {key: after[key] for key in keys if key in after and after[key] != before.get(key)}
            if part:
                changes.append({"resourcesVpcConfig": part})
    return changes


def _updatable(name: str, value: Params | None) -> Params:
    if name == "AccessConfig":  # the bootstrap flag is read at creation only
        return {key: item for key, item in (value or {}).items() if key == "AuthenticationMode"}
    return value or {"SupportType": "EXTENDED"}


resource(
    "AWS::EKS::Cluster",
    create=_cluster_create,
    update=_cluster_update,
    delete=lambda name, _props: call("eks", "DeleteCluster", {"name": name}),
    properties="Name Version RoleArn ResourcesVpcConfig AccessConfig EncryptionConfig Logging UpgradePolicy"
    " DeletionProtection BootstrapSelfManagedAddons KubernetesNetworkConfig Tags",
    replaces="Name RoleArn EncryptionConfig KubernetesNetworkConfig/IpFamily KubernetesNetworkConfig/ServiceIpv4Cidr"
    " AccessConfig/BootstrapClusterCreatorAdminPermissions BootstrapSelfManagedAddons",
    name_length=100,
)
