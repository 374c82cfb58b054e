"""Accepts one policy finding, with its reason, on the construct that it concerns.

The acknowledgement hangs on the construct and not on a path, so it exists exactly when the construct does. It is
construct metadata: templates do not change.
"""

from __future__ import annotations

import aws_cdk as cdk
from constructs import IConstruct


def acknowledge(construct: IConstruct, finding: str, reason: str) -> None:
    """Accepts `finding` on `construct` and everything below it.

    `finding` is the complete id, for example `AwsSolutions-IAM5[Resource::*]`; the bare `AwsSolutions-IAM5`
    acknowledges nothing (cdk-nag 3.0.2).
    """
    cdk.Validations.of(construct).acknowledge(cdk.Acknowledgment(id=finding, reason=reason))
