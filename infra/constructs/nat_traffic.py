"""What goes through a NAT gateway, which bills every GB of it.

Namespace `AWS/NATGateway`, dimension `NatGatewayId` (VPC user guide, NAT gateway CloudWatch metrics). Two of its four byte
counters face the internet, one for each direction; the other two count the same bytes on the side of the VPC.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch

NAMESPACE = "AWS/NATGateway"
SENT, RECEIVED = "BytesOutToDestination", "BytesInFromDestination"


def nat_gib(zone: str, gateway: str) -> cloudwatch.MathExpression:
    """GiB an hour, both ways, through the gateway of that id in `zone`."""
    hour = cdk.Duration.hours(1)
    sent, received = (
        cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name=name,
            dimensions_map={"NatGatewayId": gateway},
            statistic="Sum",
            period=hour,
        )
        for name in (SENT, RECEIVED)
    )
    identifier = zone.replace("-", "_")
    return cloudwatch.MathExpression(
        expression=f"(sent_{identifier} + received_{identifier}) / {2**30}",
        using_metrics={f"sent_{identifier}": sent, f"received_{identifier}": received},
        label=zone,
        period=hour,
    )
