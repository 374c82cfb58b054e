"""What a docstring says of a key that is absent is what the plan then does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from infra.config.environment import Bootstrap, Checkpoints, Environment, Network, Pool
from infra.config.forms import WORDS
from infra.config.pins import Pins

S = "starter-p5en"


def described(part: type, field: str, words: str) -> None:
    text = part.model_fields[field].description
    assert words in " ".join(text.split()), text


def test_root_volume_is_300_gib_on_gpu_pools_and_100_otherwise(planned) -> None:
    described(Pool, "root_volume_gib", "300 GiB for GPU pools, 100 GiB otherwise when absent.")
    plan = planned(S)
    assert {pool.name: pool.root_volume_gib for pool in plan.pools} == {
        "system": 100,
        "trainer": 300,
        "rollout": 300,
        "environments": 100,
    }
    assert planned(S, {"pools.trainer.root_volume_gib": 200}).pool("trainer").root_volume_gib == 200


def test_zone_is_the_accelerator_zone_and_the_system_pool_spans_all(planned) -> None:
    described(Pool, "zone", "`network.accelerator_zone` when absent. The system pool alone spans every zone.")
    plan = planned(S, {"pools.rollout.zone": "us-west-2c"})
    assert plan.pool("trainer").zones == ("us-west-2b",)
    assert plan.pool("rollout").zones == ("us-west-2c",)
    assert plan.pool("system").zones == ("us-west-2a", "us-west-2b", "us-west-2c")


def test_a_pool_has_no_placement_group_unless_it_asks(planned) -> None:
    described(Pool, "placement_group", "none when absent")
    assert planned(S).pool("trainer").placement is None


def test_a_number_of_nodes_is_fixed_and_a_range_has_no_desired_size(planned) -> None:
    described(Pool, "nodes", "A number is a fixed pool (min = desired = max)")
    plan = planned(S, {"pools.rollout.nodes": {"max": 4}})
    fixed, scaled = plan.pool("trainer").size, plan.pool("rollout").size
    assert (fixed.min, fixed.desired, fixed.max) == (2, 2, 2)
    assert (scaled.min, scaled.desired, scaled.max) == (0, None, 4)


def test_file_system_sizes_that_the_docstring_offers_are_the_ones_accepted(edited) -> None:
    described(Checkpoints, "scratch_gib", "1200, 2400 or a multiple of 2400")
    accepted = [
        size
        for size in (1200, 2400, 3600, 4800, 19_200)
        if not any(
            item.rule == "storage.scratch-size"
            for item in edited(S, {"checkpoints.scratch": "fsx", "checkpoints.scratch_gib": size})
        )
    ]
    assert accepted == [1200, 2400, 4800, 19_200]
    assert Checkpoints().scratch_gib in accepted


def test_bucket_is_created_and_retained_when_absent(planned) -> None:
    described(Checkpoints, "bucket", "Adopts an existing bucket; one is created and retained when absent.")
    own, adopted = planned(S).storage, planned(S, {"checkpoints.bucket": "theirs"}).storage
    assert (own.adopt_checkpoint_bucket, own.destroy_checkpoints) == (False, False)
    assert adopted.adopt_checkpoint_bucket


def test_egress_none_has_no_public_subnet(planned) -> None:
    described(Network, "egress", "`nat`: one NAT gateway per zone in use. `none`: no way out")
    assert Network.model_fields["egress"].default == "nat"
    kinds = {subnet.kind for subnet in planned(S, {"network.egress": "none"}).network.subnets}
    assert kinds == {"private", "accelerator"}


@pytest.mark.parametrize(
    ("key", "words", "found"),
    [
        ("qualifier", "`moerl`", lambda plan: plan.qualifier == "moerl"),
        ("permissions_boundary", "none when absent", lambda plan: plan.permissions_boundary is None),
    ],
)
def test_bootstrap_defaults_are_the_described_ones(key, words, found, planned) -> None:
    described(Bootstrap, key, words)
    assert found(planned(S))


def schemas(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from schemas(item)


@pytest.mark.parametrize("model", [Environment, Pins])
def test_every_pattern_has_words_for_the_person_whose_text_does_not_fit(model: type[Environment]) -> None:
    patterns = {found["pattern"] for found in schemas(model.model_json_schema()) if "pattern" in found}
    keys = {key for found in schemas(model.model_json_schema()) for key in found.get("patternProperties", ())}
    assert len(patterns) > 2
    assert patterns | keys <= set(WORDS)


def test_every_number_has_a_largest_value_but_a_flag_of_the_framework() -> None:
    numbers = [
        found for found in schemas(Environment.model_json_schema()) if found.get("type") in ("integer", "number")
    ]
    assert len(numbers) > 15
    assert [found for found in numbers if "maximum" not in found] == [{"type": "integer"}, {"type": "number"}]
