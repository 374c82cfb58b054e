"""Every check against the reference render with one thing broken: it notices, and no other check does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from k8s.checks.check import CHECKS, check
from k8s.render import manifests
from tests.k8s.broken import BROKEN
from tests.k8s.drafts import Break, draft, files, one, trainer
from tests.k8s.renders import rendered
from tests.shipped import IMAGE, plan_of

REFERENCE = "reference-p5en"


@pytest.mark.parametrize(
    ("expected", "how"), [pytest.param(name, how, id=f"{name}: {what}") for name, what, how in BROKEN]
)
def test_a_broken_manifest_is_caught_by_exactly_its_check(expected: str, how: Break) -> None:
    good = rendered(REFERENCE)
    changed = draft(good.files)
    how(changed)
    broken = replace(good, files=files(changed))
    assert broken.files != good.files
    found = check(broken, plan_of(REFERENCE))
    assert {finding.rule for finding in found} == {expected}, [finding.text("") for finding in found]
    assert all(finding.key and finding.why and finding.fix for finding in found)


def test_every_check_has_a_broken_manifest_that_it_catches() -> None:
    assert {name for name, _, _ in BROKEN} == set(CHECKS)
    assert len({what for _, what, _ in BROKEN}) == len(BROKEN) >= 25


def test_trainer_ranks_that_go_by_gpu_and_not_by_pool_are_noticed() -> None:
    good = rendered(REFERENCE)
    changed = draft(good.files)
    spec = trainer(changed)
    del spec["nodeSelector"]
    spec["tolerations"] = [{"operator": "Exists"}]
    found = check(replace(good, files=files(changed)), plan_of(REFERENCE))
    assert {"placement.run", "disruption.spot"} <= {finding.rule for finding in found}


def test_an_engine_more_than_the_pool_has_nodes_is_noticed() -> None:
    good = rendered(REFERENCE)
    changed = draft(good.files)
    one(changed, "ScaledObject")["spec"]["maxReplicaCount"] += 1
    found = check(replace(good, files=files(changed)), plan_of(REFERENCE))
    assert {finding.rule for finding in found} == {"nodes.room"}


@pytest.mark.parametrize("image", [None, IMAGE])
def test_a_render_that_leaves_things_out_is_judged_by_what_is_there(image: str | None) -> None:
    plan = plan_of(REFERENCE)
    part = manifests(plan, image=image)
    assert part.left_out
    assert check(part, plan) == ()
    changed = draft(part.files)
    changed["0110-priorities.yaml"].append(changed["0110-priorities.yaml"][0])
    assert {finding.rule for finding in check(replace(part, files=files(changed)), plan)} == {"name.unique"}
