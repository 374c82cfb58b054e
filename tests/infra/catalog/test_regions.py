"""The list of regions is the pinned SDK's own."""

from __future__ import annotations

import boto3

from infra.catalog.regions import REGIONS


def test_regions_are_those_in_which_the_sdk_knows_eks() -> None:
    session = boto3.Session()
    known = {
        region
        for partition in ("aws", "aws-cn", "aws-us-gov")
        for region in session.get_available_regions("eks", partition_name=partition)
    }
    assert known == set(REGIONS)
