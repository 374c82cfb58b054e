"""Regions of AWS that have EKS. A region that opened later is added here, after a look at its prices and registries."""

from infra.catalog.facts import AS_OF, Source

SOURCE = Source(
    title="botocore 1.44.8, endpoints of EKS in the partitions aws, aws-cn and aws-us-gov",
    url="https://github.com/boto/botocore/blob/1.44.8/botocore/data/endpoints.json",
    as_of=AS_OF,
)
REGIONS = frozenset(
    [
        "af-south-1",
        "ap-east-1",
        "ap-east-2",
        "ap-northeast-1",
        "ap-northeast-2",
        "ap-northeast-3",
        "ap-south-1",
        "ap-south-2",
        "ap-southeast-1",
        "ap-southeast-2",
        "ap-southeast-3",
        "ap-southeast-4",
        "ap-southeast-5",
        "ap-southeast-6",
        "ap-southeast-7",
        "ca-central-1",
        "ca-west-1",
        "cn-north-1",
        "cn-northwest-1",
        "eu-central-1",
        "eu-central-2",
        "eu-north-1",
        "eu-south-1",
        "eu-south-2",
        "eu-west-1",
        "eu-west-2",
        "eu-west-3",
        "il-central-1",
        "me-central-1",
        "me-south-1",
        "mx-central-1",
        "sa-east-1",
        "us-east-1",
        "us-east-2",
        "us-gov-east-1",
        "us-gov-west-1",
        "us-west-1",
        "us-west-2",
    ]
)
