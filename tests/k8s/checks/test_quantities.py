"""Quantities as Kubernetes reads them, and what the scheduler takes a pod for."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.config.pod_plan import PodResources
from k8s.checks.quantities import pod_requests, quantity
from k8s.pods import quantity as written


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        (1, 1),
        ("500m", Fraction(1, 2)),
        ("1.5", Fraction(3, 2)),
        (".5", Fraction(1, 2)),
        ("5.", 5),
        ("2Ki", 2048),
        ("1Gi", 1 << 30),
        ("1G", 10**9),
        ("100n", Fraction(1, 10**7)),
        ("1e3", 1000),
        ("1E-2", Fraction(1, 100)),
        ("2E", 2 * 10**18),
        ("-1", -1),
    ],
)
def test_quantities_are_read_as_kubernetes_reads_them(text: object, value: Fraction) -> None:
    assert quantity(text) == value


@pytest.mark.parametrize("text", ["8 gpus", "", "1GiB", "Gi", "1gi", "0x10", "1 Gi", None, True, 1.5, "1.2.3", "1e"])
def test_what_is_no_quantity_is_none(text: object) -> None:
    assert quantity(text) is None


@given(st.integers(0, 10**6), st.integers(0, 10**7), st.integers(0, 8), st.integers(0, 10**5))
def test_what_the_charts_write_is_what_the_plan_says(cpu: int, memory: int, gpus: int, disk: int) -> None:
    resources = PodResources(cpu_millis=cpu, memory_mib=memory, gpus=gpus, ephemeral_gib=disk)
    spec = {"containers": [{"name": "c", "resources": {"requests": written(resources)}}]}
    read = pod_requests(spec)
    assert read["cpu"] * 1000 == cpu
    assert read["memory"] == memory << 20
    assert read.get("nvidia.com/gpu", 0) == gpus
    assert read.get("ephemeral-storage", 0) == disk << 30


def container(cpu: str, **fields: object) -> dict[str, object]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu}}, **fields}


def test_sidecars_count_beside_main_containers() -> None:
    spec = {"containers": [container("1")], "initContainers": [container("2", restartPolicy="Always")]}
    assert pod_requests(spec) == {"cpu": 3}


def test_an_init_container_counts_where_it_is_more_with_the_sidecars_before_it() -> None:
    before = [container("2", restartPolicy="Always"), container("5")]
    assert pod_requests({"containers": [container("1")], "initContainers": before}) == {"cpu": 7}
    assert pod_requests({"containers": [container("9")], "initContainers": before}) == {"cpu": 11}
    after = [container("5"), container("2", restartPolicy="Always")]
    assert pod_requests({"containers": [container("1")], "initContainers": after}) == {"cpu": 5}
