import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.catalog.allocatable import (
    EFA_HUGE_PAGES_MIB,
    Allocatable,
    allocatable,
    kube_reserved_cpu_millis,
    kube_reserved_memory_mib,
)
from infra.catalog.instances import INSTANCES, InstanceType

# MiB that a node was seen to have less than nominal (Karpenter's generated memory overhead table, 2023-09-03).
MISSING_MEMORY_MIB = {
    "p5.48xlarge": 49192,
    "m7i.xlarge": 688,
    "m7i.2xlarge": 1221,
    "m7i.4xlarge": 2286,
    "m7i.8xlarge": 4322,
    "m7i.16xlarge": 8490,
    "m7i.24xlarge": 12561,
    "m7i.48xlarge": 24616,
}
TYPES = st.sampled_from(sorted(INSTANCES.values(), key=lambda instance: instance.name))


def of(instance: InstanceType, *, huge_pages_mib: int = 0) -> Allocatable:
    return allocatable(instance, max_pods=instance.max_pods, root_volume_gib=200, huge_pages_mib=huge_pages_mib)


@pytest.mark.parametrize(("name", "missing_mib"), MISSING_MEMORY_MIB.items())
def test_memory_is_at_or_below_what_real_nodes_had(name: str, missing_mib: int) -> None:
    instance = INSTANCES[name]
    seen_mib = instance.memory_gib * 1024 - missing_mib - kube_reserved_memory_mib(instance.max_pods) - 100
    assert 0.93 * seen_mib < of(instance).memory_mib <= seen_mib


def test_p5_memory_is_below_the_1950_gib_seen_on_eks() -> None:
    assert 1900 < of(INSTANCES["p5.48xlarge"]).memory_mib / 1024 < 1950


@pytest.mark.parametrize(
    ("name", "cpu_millis"),
    [
        ("p5.48xlarge", 191450),
        ("p4d.24xlarge", 95690),
        ("m7i.xlarge", 3920),
        ("m7i.2xlarge", 7910),
        ("m7i.4xlarge", 15890),
        ("m7i.8xlarge", 31850),
        ("m7i.16xlarge", 63770),
    ],
)
def test_cpu_is_what_karpenter_lists_for_the_type(name: str, cpu_millis: int) -> None:
    assert of(INSTANCES[name]).cpu_millis == cpu_millis


@pytest.mark.parametrize(("vcpus", "reserved"), [(1, 60), (2, 70), (3, 75), (4, 80), (8, 90), (192, 550)])
def test_cpu_reservation_falls_over_the_tiers(vcpus: int, reserved: int) -> None:
    assert kube_reserved_cpu_millis(vcpus) == reserved


def test_local_disks_are_the_ephemeral_storage_where_there_are_any() -> None:
    p5 = INSTANCES["p5.48xlarge"]
    small, large = (allocatable(p5, max_pods=51, root_volume_gib=gib).ephemeral_gib for gib in (100, 500))
    assert small == large
    assert 25_000 < small < 0.9 * p5.nvme_gib


def test_root_volume_is_the_ephemeral_storage_otherwise() -> None:
    m7i = INSTANCES["m7i.xlarge"]
    # 20 GiB as nodes had it: 10 % eviction headroom and 1 GiB reserved.
    assert allocatable(m7i, max_pods=58, root_volume_gib=20).ephemeral_gib == 16
    assert allocatable(m7i, max_pods=58, root_volume_gib=200).ephemeral_gib == 177


def test_huge_pages_leave_ordinary_memory_one_for_one() -> None:
    p5en = INSTANCES["p5en.48xlarge"]
    assert EFA_HUGE_PAGES_MIB == 10256
    assert of(p5en).memory_mib - of(p5en, huge_pages_mib=EFA_HUGE_PAGES_MIB).memory_mib == EFA_HUGE_PAGES_MIB


@given(instance=TYPES, pods=st.integers(1, 250), disk=st.integers(20, 16_000), huge=st.integers(0, 8_000))
def test_allocatable_is_positive_and_below_nominal(instance: InstanceType, pods: int, disk: int, huge: int) -> None:
    node = allocatable(instance, max_pods=pods, root_volume_gib=disk, huge_pages_mib=huge)
    assert 0 < node.cpu_millis < instance.vcpus * 1000
    assert 0 < node.memory_mib < instance.memory_gib * 1024 - huge
    assert 0 < node.ephemeral_gib < (instance.nvme_gib or disk)
    assert node.source.computed


@given(instance=TYPES, pods=st.integers(1, 249), disk=st.integers(20, 15_000))
def test_more_pods_cost_memory_and_a_larger_disk_never_gives_less(instance: InstanceType, pods: int, disk: int) -> None:
    node = allocatable(instance, max_pods=pods, root_volume_gib=disk)
    assert allocatable(instance, max_pods=pods + 1, root_volume_gib=disk).memory_mib == node.memory_mib - 11
    assert allocatable(instance, max_pods=pods, root_volume_gib=disk + 1).ephemeral_gib >= node.ephemeral_gib


@given(vcpus=st.integers(1, 448))
def test_a_further_core_always_gives_more_cpu(vcpus: int) -> None:
    smaller, larger = (count * 1000 - kube_reserved_cpu_millis(count) for count in (vcpus, vcpus + 1))
    assert smaller < larger


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_pods": 0, "root_volume_gib": 100},
        {"max_pods": 58, "root_volume_gib": 0},
        {"max_pods": 58, "root_volume_gib": 100, "huge_pages_mib": -1},
        {"max_pods": 58, "root_volume_gib": 100, "huge_pages_mib": 16 * 1024},
    ],
)
def test_sizes_that_leave_nothing_are_refused_by_type(arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"m7i\.xlarge"):
        allocatable(INSTANCES["m7i.xlarge"], **arguments)
