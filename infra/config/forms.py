"""What texts of a file look like: a pattern, and the same in words for the person whose text does not fit it."""

from __future__ import annotations

from typing import NamedTuple


class Form(NamedTuple):
    pattern: str
    words: str
    """Completes "is not"."""


NAME = Form(
    r"^[a-z][a-z0-9]*(-[a-z0-9]+)*$", "a name of a-z, 0-9 and single dashes inside it that begins with a letter"
)
ACCOUNT = Form(r"^[0-9]{12}$", "an AWS account id of 12 digits")
REGION = Form(r"^[a-z]{2}(-[a-z]+)+-[0-9]$", "an AWS region such as us-west-2")
ZONE = Form(r"^[a-z]{2}(-[a-z]+)+-[0-9][a-z]$", "an Availability Zone such as us-west-2b")
CIDR = Form(r"^[0-9]{1,3}(\.[0-9]{1,3}){3}/[0-9]{1,2}$", "an IPv4 network such as 10.0.0.0/16")
PRINCIPAL_ARN = Form(
    r"^arn:aws[a-z-]*:iam::[0-9]{12}:(role|user)/.+$",
    "the ARN of an IAM role or user, such as arn:aws:iam::123456789012:role/platform-admin",
)
SECRET_ARN = Form(
    r"^arn:aws[a-z-]*:secretsmanager:[a-z0-9-]+:[0-9]{12}:secret:[A-Za-z0-9/_+=.@-]+$",
    "the ARN of a Secrets Manager secret",
)
RESERVATION = Form(r"^cr-[0-9a-f]{17}$", "a capacity reservation's id, cr- and 17 of 0-9 and a-f")
IMAGE_ID = Form(r"^ami-([0-9a-f]{8}|[0-9a-f]{17})$", "an AMI's id, ami- and 17 (in old ones 8) of 0-9 and a-f")
RELEASE = Form(
    r"^1\.[0-9]{2}\.[0-9]{1,2}-20[0-9]{2}(0[1-9]|1[0-2])(0[1-9]|[12][0-9]|3[01])$",
    "an AMI release such as 1.35.2-20260917",
)
VERSION = Form(r"^[0-9]+(\.[0-9]+){1,3}$", "a version such as 3.3.0")
KUBERNETES_VERSION = Form(r"^[0-9]\.[0-9]{2}$", "a Kubernetes minor version in quotes, such as '1.35'")
EMAIL = Form(r"^[^@\s]+@[^@\s]+\.[^@\s]+$", "an e-mail address")
VULNERABILITY = Form(r"^(CVE-[0-9]{4}-[0-9]{4,}|GHSA(-[0-9a-z]{4}){3})$", "an id such as CVE-2026-12345")
ONE_LINE = Form(r"^[^\n]+$", "one line of text")
CUDA_ARCH = Form(r"^[0-9]{1,2}\.[0-9]$", "a CUDA architecture in quotes, such as '9.0'")
FLAG = Form(
    r"^[a-z][A-Za-z0-9]*(-[A-Za-z0-9]+)*$", "a flag's name without its first dashes, such as rollout-batch-size"
)
VARIABLE = Form(
    r"^[A-Za-z_][A-Za-z0-9_]*$",
    "an environment variable's name of letters, digits and _ that does not begin with a digit",
)
QUALIFIER = Form(r"^[a-z0-9]{1,10}$", "a qualifier of 1 to 10 of a-z and 0-9")
POLICY_NAME = Form(r"^[A-Za-z0-9_+=,.@-]{1,128}$", "an IAM policy's name (not its ARN)")
ADDON_VERSION = Form(r"^v[0-9]+\.[0-9]+\.[0-9]+.*-eksbuild\.[0-9]+$", "an add-on build such as v1.21.0-eksbuild.4")
REVISION = Form(r"^(sha256:[0-9a-f]{64}|[0-9a-f]{40})$", "a commit of 40 hex digits, or sha256: and 64 of them")
SHA256 = Form(r"^[0-9a-f]{64}$", "a SHA-256 of 64 hex digits")
IMAGE_DIGEST = Form(r"^sha256:[0-9a-f]{64}$", "an image digest, sha256: and 64 hex digits")
KUBECTL_KEY = Form(
    r"^[0-9]+\.[0-9]+\.[0-9]+/[0-9]{4}-[0-9]{2}-[0-9]{2}/bin/linux/amd64/kubectl$",
    "a key such as 1.35.2/2026-10-12/bin/linux/amd64/kubectl",
)

WORDS = {form.pattern: form.words for form in tuple(globals().values()) if isinstance(form, Form)}
