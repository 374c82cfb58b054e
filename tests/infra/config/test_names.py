"""Names follow from the file alone and fit what AWS accepts."""

from __future__ import annotations

import re
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog import CATALOG
from infra.config.environment import Environment
from infra.config.loader import load_text
from infra.config.names import (
    NAMESPACE,
    bucket_names,
    checkpoint_path,
    image_parameter,
    names,
    partition,
    queue_url,
    repository_uri,
    schedule_group,
    stack_name,
    url_suffix,
)
from infra.config.pins import UNRESOLVED
from infra.config.rules import RULES
from infra.config.rules.registry import Context

BUCKET = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
QUEUE = re.compile(r"[A-Za-z0-9_-]{1,80}")


@pytest.fixture(scope="module")
def starter(text) -> Environment:
    return load_text(text("starter-p5en", {}), "environment.yaml").environment


def test_names_of_a_shipped_environment(starter) -> None:
    known = names(starter)
    assert known.cluster == "starter-p5en"
    assert known.checkpoint_bucket == "starter-p5en-checkpoints-123456789012-us-west-2"
    assert known.weights_bucket == "starter-p5en-weights-123456789012-us-west-2"
    assert known.repository == "starter-p5en/moerl"
    assert (known.task_queue, known.dead_letter_queue) == ("starter-p5en-tasks", "starter-p5en-dead-letter")
    assert (known.image_project, known.image_parameters) == ("starter-p5en-image", "/moerl/starter-p5en/image")
    assert image_parameter(known, "baseline") == "/moerl/starter-p5en/image/baseline"
    assert known.namespace == NAMESPACE == "rl"
    assert checkpoint_path(starter) == "/scratch/starter-p5en/checkpoints"


def test_an_adopted_bucket_takes_the_place_of_the_checkpoint_bucket_alone(starter) -> None:
    adopted = starter.model_copy(update={"checkpoints": starter.checkpoints.model_copy(update={"bucket": "theirs"})})
    assert asdict(names(adopted)) == asdict(replace(names(starter), checkpoint_bucket="theirs"))


@given(
    name=st.from_regex(r"\A[a-z][a-z0-9]*(-[a-z0-9]+)*\Z").filter(lambda name: len(name) <= 24),
    account=st.from_regex(r"\A[0-9]{12}\Z"),
    region=st.sampled_from(["us-west-2", "us-east-1", "eu-north-1"]),
)
def test_every_name_is_valid_and_used_once(starter, name, account, region) -> None:
    environment = starter.model_copy(update={"name": name, "account": account, "region": region})
    known = asdict(names(environment))
    buckets = bucket_names(environment)
    assert all(BUCKET.fullmatch(bucket) for bucket in buckets)
    assert all(account in bucket and region in bucket for bucket in buckets)
    assert all(QUEUE.fullmatch(known[key]) for key in ("task_queue", "result_queue", "dead_letter_queue"))
    assert all(name in value for key, value in known.items() if key != "namespace")
    assert len(set(known.values())) == len(known)


def test_stack_name_is_the_environment_and_the_part() -> None:
    assert stack_name("reference-p5en", "pool-trainer") == "reference-p5en-pool-trainer"


KINDS = ("network", "storage", "queue", "cluster", "access", "images", "ami", "observability", "budget")
CLOSE = st.lists(st.sampled_from(["x", "pool", "pools", "network", "ami"]), min_size=1, max_size=4).map("-".join)
"""Names of environments and pools that come as close to each other as names can."""


@given(environment=CLOSE, pool=CLOSE, kind=st.sampled_from((None, *KINDS)))
def test_a_stack_name_says_which_environment_and_part_it_is(starter, environment, pool, kind) -> None:
    context = Context(starter.model_copy(update={"name": environment}), CATALOG, UNRESOLVED)
    part = kind or f"pool-{pool}"
    before, pools, rest = stack_name(environment, part).partition("-pool-")
    read = (before, f"pool-{rest}") if pools else tuple(before.rsplit("-", 1))
    # Refused names are exactly those at which this reading goes wrong.
    assert (read == (environment, part)) is not bool(list(RULES["identity.name"](context)))


@given(environment=CLOSE, pool=CLOSE)
def test_a_schedule_group_says_which_environment_and_pool_it_is(environment, pool) -> None:
    before, after = schedule_group(environment, pool).rsplit("-", 1)
    assert (before, after.replace(".", "-")) == (environment, pool)
    assert re.fullmatch(r"[0-9A-Za-z._-]{1,64}", schedule_group(environment, pool))


@pytest.mark.parametrize(
    ("region", "found", "suffix"),
    [
        ("us-west-2", "aws", "amazonaws.com"),
        ("us-gov-west-1", "aws-us-gov", "amazonaws.com"),
        ("cn-north-1", "aws-cn", "amazonaws.com.cn"),
    ],
)
def test_partition_and_domain_of_a_region(region, found, suffix) -> None:
    assert partition(region) == found
    assert url_suffix(region) == suffix
    assert repository_uri(region, "123456789012", "x/moerl") == f"123456789012.dkr.ecr.{region}.{suffix}/x/moerl"
    assert queue_url(region, "123456789012", "x-tasks") == f"https://sqs.{region}.{suffix}/123456789012/x-tasks"
