"""The derived transport is the weakest of hardware, software and AMI, and says which."""

from __future__ import annotations

import itertools

import pytest

from infra.catalog import CATALOG
from infra.catalog.instances import INSTANCES
from infra.config.environment import Kubernetes, Pool
from infra.config.pins import Pins
from infra.config.transport import (
    ami_driver,
    derive_transport,
    gpu_direct_possible,
    node_release,
    stack_limit,
    version_key,
)

ORDER = ("none", "proxy", "gda")
HARDWARE = {
    "p4d.24xlarge": "none",
    "p4de.24xlarge": "none",
    "p5.48xlarge": "proxy",
    "p5e.48xlarge": "proxy",
    "p5en.48xlarge": "gda",
    "p6-b200.48xlarge": "gda",
    "p6-b300.48xlarge": "gda",
}
STACKS = {"baseline": "none", "aws-reference": "proxy", "efa-gda": "gda"}
DRIVERS = {None: "gda", "2.17.3": "proxy", "3.1.0": "proxy", "3.2.9": "proxy", "3.3.0": "gda", "3.10.0": "gda"}
GDRDRVS = {None: "gda", "2.4.4": "none", "2.5": "gda", "2.10": "gda"}
CUSTOM = "ami-0123456789abcdef0"


def pool(*types: str, ami: dict[str, str] | None = None, efa: bool = True) -> Pool:
    return Pool.model_validate(
        {
            "role": "rollout",
            "instance_types": types,
            "nodes": {"max": 2},
            "capacity": {"type": "spot"},
            "ami": ami or {},
            "efa": efa,
        }
    )


def derived(written: Pool, stack: str = "efa-gda", release: str | None = None):
    types = [CATALOG.instances[name] for name in written.instance_types]
    return derive_transport(written, types, CATALOG.software[stack], release, CATALOG)


def test_the_table_has_every_gpu_type_and_every_stack() -> None:
    assert set(HARDWARE) == {name for name, instance in INSTANCES.items() if instance.gpus}
    assert set(STACKS) == set(CATALOG.software)


@pytest.mark.parametrize(
    ("name", "stack", "driver", "gdrdrv"), list(itertools.product(HARDWARE, STACKS, DRIVERS, GDRDRVS))
)
def test_transport_is_the_weakest_of_hardware_software_and_ami(name, stack, driver, gdrdrv) -> None:
    ami = {"id": CUSTOM} | ({"efa_driver": driver} if driver else {}) | ({"gdrdrv": gdrdrv} if gdrdrv else {})
    found = derived(pool(name, ami=ami), stack)
    limits = (HARDWARE[name], STACKS[stack], DRIVERS[driver], GDRDRVS[gdrdrv])
    assert found.transport == min(limits, key=ORDER.index)
    assert (found.limited_by is None) == (found.transport == "gda")
    unknown = [what for what, known in (("EFA driver >= 3.3.0", driver), ("gdrdrv >= 2.5", gdrdrv)) if known is None]
    if found.transport == "gda":
        assert found.to_prove == (" and ".join(f"{what} loaded" for what in unknown) or None)
    else:
        assert found.to_prove is None


@pytest.mark.parametrize(
    ("name", "stack", "ami", "reason"),
    [
        ("p5en.48xlarge", "baseline", {}, "software baseline: baseline has no DeepEP over EFA"),
        ("p5en.48xlarge", "aws-reference", {}, "software aws-reference: EFA installer 1.49.0"),
        ("p5.48xlarge", "efa-gda", {}, "p5.48xlarge has no GPU-direct EFA, in hardware"),
        ("p4d.24xlarge", "aws-reference", {}, "p4d.24xlarge has no GPU-direct EFA, in hardware"),
        ("p6-b200.48xlarge", "efa-gda", {"efa_driver": "3.1.0"}, "the AMI's EFA driver is 3.1.0"),
        ("p5.48xlarge", "efa-gda", {"gdrdrv": "2.4"}, "the AMI's gdrdrv is 2.4"),
    ],
)
def test_the_reason_names_what_limits(name, stack, ami, reason) -> None:
    assert derived(pool(name, ami=ami), stack).limited_by.startswith(reason)


@pytest.mark.parametrize("types", [("p5en.48xlarge", "p5.48xlarge"), ("p5.48xlarge", "p5en.48xlarge")])
def test_a_mixed_pool_has_the_transport_of_its_weakest_type(types) -> None:
    found = derived(pool(*types))
    assert found.transport == "proxy"
    assert "p5.48xlarge" in found.limited_by


@pytest.mark.parametrize("written", [pool("p5en.48xlarge", efa=False), pool("m7i.8xlarge")])
def test_a_pool_without_efa_interfaces_has_none(written) -> None:
    found = derived(written)
    assert (found.transport, found.limited_by) == ("none", "the pool has no EFA interfaces")


def test_the_catalogs_record_of_a_release_counts_and_a_declared_driver_overrides_it() -> None:
    assert derived(pool("p5en.48xlarge"), release="1.35.2-20260728").transport == "proxy"
    declared = pool("p5en.48xlarge", ami={"efa_driver": "3.3.0", "gdrdrv": "2.5"})
    assert derived(declared, release="1.35.2-20260728").transport == "gda"
    assert ami_driver(pool("p5en.48xlarge"), "1.35.2-20260728", CATALOG) == "3.1.0"
    assert ami_driver(pool("p5en.48xlarge"), "1.35.2-20261012", CATALOG) is None
    assert ami_driver(pool("p5en.48xlarge"), "1.35.2-20261101", CATALOG) is None


def test_release_comes_from_pool_then_cluster_then_lock_and_a_custom_ami_has_none() -> None:
    cluster = Kubernetes(version="1.35", node_release="1.35.2-20261012")
    lock = Pins(node_release="1.35.2-20261101")
    own = pool("p5en.48xlarge", ami={"release": "1.35.2-20260818"})
    assert node_release(own, cluster, lock) == "1.35.2-20260818"
    assert node_release(pool("p5en.48xlarge"), cluster, lock) == "1.35.2-20261012"
    assert node_release(pool("p5en.48xlarge"), Kubernetes(version="1.35"), lock) == "1.35.2-20261101"
    assert node_release(pool("p5en.48xlarge"), Kubernetes(version="1.35"), Pins()) is None
    assert node_release(pool("p5en.48xlarge", ami={"id": CUSTOM}), cluster, lock) is None


def test_versions_are_ordered_by_number_and_a_trailing_letter_is_ignored() -> None:
    assert version_key("3.10.0") > version_key("3.9.9") > version_key("3.3.0")
    assert version_key("3.1.0g") == version_key("3.1.0")
    assert version_key("2.5") < version_key("2.5.1")


def test_a_stack_limit_is_the_catalogs_reason_or_says_that_it_has_none() -> None:
    assert "aws-ofi-nccl 1.20.0" in stack_limit(CATALOG.software["aws-reference"], "gda")
    assert stack_limit(CATALOG.software["efa-gda"], "gda") == "it has no gda"


@pytest.mark.parametrize(("name", "stack"), list(itertools.product(HARDWARE, STACKS)))
def test_gpu_direct_is_possible_where_hardware_and_software_can_whatever_the_ami(name, stack) -> None:
    types = [CATALOG.instances[name]]
    possible = HARDWARE[name] == "gda" and STACKS[stack] == "gda"
    assert gpu_direct_possible(types, CATALOG.software[stack]) == possible
    assert not gpu_direct_possible([*types, CATALOG.instances["p5.48xlarge"]], CATALOG.software[stack])
