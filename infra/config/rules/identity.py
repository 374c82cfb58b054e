"""People, alerts, names that AWS and Kubernetes share."""

from __future__ import annotations

import re
from collections.abc import Iterator
from unicodedata import category

from infra.config.faults import Finding, cut
from infra.config.rules.registry import Context, fault, rule, warning

LABEL_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
LABEL_PREFIX = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
TAGS_MAX, TAGS_OWN = 50, 10
"""Of a resource; Name, moerl:environment, moerl:pool, two of EKS, three of the autoscaler's discovery, and two to spare."""
TAG_PREFIXES_OWNED = ("aws:", "eks:", "moerl:")
TAG_SIGNS = "_.:/=+-@"
OWNED_PREFIXES = ("kubernetes.io", "k8s.io", "eks.amazonaws.com", "moerl.io", "nvidia.com", "vpc.amazonaws.com")


@rule("identity.name")
def environment_name(context: Context) -> Iterator[Finding]:
    written = context.environment.name
    other, meets, _ = f"{written}-".partition("-pool-")
    if meets:
        yield fault(
            "name",
            written,
            f"an environment {other} names the stacks of its pools {other}-pool-..., and one of the two could take a stack"
            " of the other for its own",
            "Write a name without the word pool behind a dash.",
        )


@rule("identity.admins")
def admins(context: Context) -> Iterator[Finding]:
    written = context.environment.kubernetes.admins
    if not written:
        yield fault(
            "kubernetes.admins",
            "an empty list",
            "CloudFormation's role would be the only one that can list anything in the cluster",
            f"List an IAM role, for example arn:aws:iam::{context.environment.account}:role/platform-admin.",
        )
    for index, arn in enumerate(written):
        if arn in written[:index]:
            yield fault(
                f"kubernetes.admins.{index}",
                arn,
                "is listed before, and EKS takes one access entry for each principal",
                "Remove it.",
            )
        if arn.split(":")[4] != context.environment.account:
            yield warning(
                f"kubernetes.admins.{index}",
                arn,
                f"is a principal of another account than {context.environment.account}",
                "EKS accepts it; make sure that account is meant.",
            )


@rule("identity.alerts")
def alerts(context: Context) -> Iterator[Finding]:
    if not context.environment.alerts.emails:
        yield warning(
            "alerts.emails",
            "an empty list",
            "alarms would fire and nobody would be told",
            "List an address, for example a team's.",
        )


@rule("identity.budget")
def budget(context: Context) -> Iterator[Finding]:
    if context.environment.budget is None:
        yield warning(
            "budget", None, "nothing says when spending passes what was planned", "Write `budget: {monthly_usd: …}`."
        )


@rule("identity.tags")
def tags(context: Context) -> Iterator[Finding]:
    """AWS's limits (Tagging user guide, "Tag naming limits and requirements"): one bad tag fails the first stack."""
    written = context.environment.tags
    if len(written) > TAGS_MAX - TAGS_OWN:
        yield fault(
            "tags",
            f"{len(written)} tags",
            f"a resource has at most {TAGS_MAX}, of which this package and EKS need {TAGS_OWN}",
            f"Write {TAGS_MAX - TAGS_OWN} or fewer.",
        )
    for key, value in written.items():
        where = f"tags.{key}"
        if not 1 <= len(key) <= 128 or len(value) > 256:
            yield fault(
                where, value, "AWS allows 128 characters of key, 256 of value", "Write another key or a shorter value."
            )
        if key.lower().startswith(TAG_PREFIXES_OWNED):
            yield fault(
                where,
                value,
                f"AWS keeps the aws: prefix for itself, EKS eks: and this package moerl: ({cut(key)})",
                "Write another key.",
            )
        for what, text in (("key", key), ("value", value)):
            odd = sorted({letter for letter in text if not _fits_tag(letter)})
            if odd:
                yield fault(
                    where,
                    text,
                    f"{odd[0]!r} does not belong in a tag's {what}",
                    "Write letters, digits, spaces and _ . : / = + - @.",
                )


def _fits_tag(letter: str) -> bool:
    return letter in TAG_SIGNS or category(letter)[0] in "LNZ"


@rule("identity.labels")
def labels(context: Context) -> Iterator[Finding]:
    for name, pool in context.pools():
        for key, value in pool.labels.items():
            yield from _label(f"pools.{name}.labels.{key}", key, value)
        for index, taint in enumerate(pool.taints):
            yield from _label(f"pools.{name}.taints.{index}", taint.key, taint.value)


def _label(where: str, key: str, value: str) -> Iterator[Finding]:
    prefix, slash, name = key.rpartition("/")
    if not LABEL_NAME.fullmatch(name) or (slash and not LABEL_PREFIX.fullmatch(prefix)):
        yield fault(
            where, key, "is not a Kubernetes label key", "Write up to 63 of a-z, 0-9, - _ . after an optional prefix/."
        )
    elif any(prefix == owned or prefix.endswith("." + owned) for owned in OWNED_PREFIXES):
        yield fault(where, key, "has a prefix that EKS or this package sets itself", "Write a prefix of your own.")
    if value and not LABEL_NAME.fullmatch(value):
        yield fault(where, value, "is not a Kubernetes label value", "Write up to 63 of a-z, 0-9, - _ . or nothing.")
