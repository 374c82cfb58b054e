import re
from typing import get_args

import pytest

from infra.catalog.facts import Unresolved
from infra.catalog.instances import INSTANCES
from infra.catalog.software import DEFAULT_SOFTWARE, SOFTWARE, Software, SoftwareStack

STACKS = pytest.mark.parametrize("stack", SOFTWARE.values(), ids=SOFTWARE)


def dotted(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def test_three_stacks_and_their_best_transports() -> None:
    assert set(SOFTWARE) == set(get_args(Software))
    assert SOFTWARE["efa-gda"].transports == ("gda", "proxy")
    assert SOFTWARE["aws-reference"].transports == ("proxy",)
    assert SOFTWARE["baseline"].transports == ("none",)
    assert SOFTWARE[DEFAULT_SOFTWARE].transports[0] == "gda"


@STACKS
def test_gpu_direct_needs_its_whole_chain_of_floors(stack: SoftwareStack) -> None:
    meets_floors = (
        stack.deepep is not None
        and dotted(stack.efa_installer or "0") >= (1, 50, 0)
        and dotted(stack.aws_ofi_nccl or "0") >= (1, 21, 0)
        and dotted((stack.libfabric or "0").split("amzn")[0]) >= (2, 6, 0)
        and dotted(stack.gdrcopy or "0") >= (2, 5)
        and dotted(stack.nccl) >= (2, 31, 2)
    )
    assert ("gda" in stack.transports) == meets_floors


@STACKS
def test_any_device_side_transport_needs_deepep_gdrcopy_and_nccl_2_31(stack: SoftwareStack) -> None:
    if set(stack.transports) != {"none"}:
        assert stack.deepep is not None
        assert dotted(stack.gdrcopy or "0") >= (2, 5)
        assert dotted(stack.nccl) >= (2, 31, 2)


@STACKS
def test_what_a_stack_lacks_is_explained(stack: SoftwareStack) -> None:
    lacking = {transport for transport in ("gda", "proxy") if transport not in stack.transports}
    if stack.rollout_a2a != "deepep_v2":
        lacking.add("rollout-deepep-v2")
    if stack.trainer_dispatcher != "deepep_v2":
        lacking.add("trainer-deepep-v2")
    if stack.deepep and set(stack.deepep.archs_fixed) < set(stack.cuda_archs):
        lacking.add("blackwell")
    explained = [limit.capability for limit in stack.limits]
    assert len(set(explained)) == len(explained)
    assert lacking <= set(explained)
    assert not {"gda", "proxy"} & set(explained) & set(stack.transports)
    assert all(len(limit.reason) > 40 for limit in stack.limits)


def test_reference_stack_lacks_gpu_direct_because_of_its_installer() -> None:
    reason = next(limit.reason for limit in SOFTWARE["aws-reference"].limits if limit.capability == "gda")
    assert "1.49.0" in reason
    assert "1.50.0" in reason


@STACKS
def test_rollout_over_deepep_v2_needs_an_sglang_that_has_it(stack: SoftwareStack) -> None:
    # 0.5.19 is the first wheel with token_dispatcher/deepep_v2.py; 0.5.17 has none.
    assert (stack.rollout_a2a == "deepep_v2") == (dotted(stack.sglang) >= (0, 5, 19))


@STACKS
def test_deepep_is_pinned_by_commit_and_compiles_for_a_part_of_the_image_archs(stack: SoftwareStack) -> None:
    if stack.deepep is None:
        assert stack.max_expert_parallel is None
        return
    assert re.fullmatch(r"[0-9a-f]{40}", str(stack.deepep.ref))
    assert set(stack.deepep.archs_fixed) <= set(stack.cuda_archs)


def test_published_pin_is_not_known_to_run_on_blackwell_and_the_fork_is() -> None:
    blackwell = {INSTANCES["p6-b200.48xlarge"].cuda_arch, INSTANCES["p6-b300.48xlarge"].cuda_arch}
    reference, gda = SOFTWARE["aws-reference"].deepep, SOFTWARE["efa-gda"].deepep
    assert reference is not None
    assert gda is not None
    assert not blackwell & set(reference.archs_fixed)
    assert blackwell <= set(gda.archs_fixed)


def test_default_stack_covers_every_type_that_can_do_expert_parallelism_over_efa() -> None:
    archs = {instance.cuda_arch for instance in INSTANCES.values() if instance.efa_transports}
    assert archs <= set(SOFTWARE[DEFAULT_SOFTWARE].cuda_archs)


@STACKS
def test_references_are_commits_or_say_how_to_find_one(stack: SoftwareStack) -> None:
    for pin in (stack.framework_ref, stack.sglang_ref):
        assert isinstance(pin, Unresolved) or re.fullmatch(r"[0-9a-f]{40}", pin)
