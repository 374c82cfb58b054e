"""Floors of nodes and images: by transport, and the same in every rendering."""

from __future__ import annotations

import json

import pytest

from infra.catalog import CATALOG
from infra.config.needs_plan import dispatch_needs, node_needs

P5EN, P5 = CATALOG.instances["p5en.48xlarge"], CATALOG.instances["p5.48xlarge"]
STACK = CATALOG.software["efa-gda"]


def test_each_transport_asks_for_what_it_goes_through_and_no_more() -> None:
    direct, proxy, none = (node_needs(P5EN, STACK, transport) for transport in ("gda", "proxy", "none"))
    assert (direct.efa_driver, direct.gdrdrv, direct.gin_export) == ("3.3.0", "2.5", "ncclGinPlugin_v14")
    assert (proxy.efa_driver, proxy.gdrdrv, proxy.gin_export) == (None, "2.5", "ncclGinPlugin_v13")
    assert (none.efa_driver, none.gdrdrv, none.gin_export) == (None, None, None)


@pytest.mark.parametrize(("software", "driver"), [("baseline", "525.60.13"), ("efa-gda", "580")])
def test_the_driver_floor_follows_the_cuda_of_the_stack(software, driver) -> None:
    assert node_needs(P5EN, CATALOG.software[software], "none").nvidia_driver == driver


def test_every_gpu_type_has_a_link_rate_and_a_cpu_type_asks_for_nothing() -> None:
    for instance in CATALOG.instances.values():
        needs = node_needs(instance, STACK, "none")
        assert (needs.nvlink_gb_per_second > 0) == (instance.gpus > 0)
        assert (needs.nvidia_driver is None) == (instance.gpus == 0)
        assert needs.efa_gbps == instance.efa_gbps


def test_the_proxy_is_expected_to_be_slower_and_an_unpublished_size_has_no_floor() -> None:
    direct, proxy = dispatch_needs("gda", 2), dispatch_needs("proxy", 2)
    assert direct.latency_us < proxy.latency_us
    assert direct.logical_gb_per_second > proxy.logical_gb_per_second
    assert dispatch_needs("gda", 3) is None
    assert dispatch_needs("none", 2) is None


def test_the_document_carries_needs_of_pools_image_and_experts(planned) -> None:
    document = json.loads(json.dumps(planned("reference-p5en").document()))
    trainer = next(pool for pool in document["pools"] if pool["name"] == "trainer")
    assert trainer["needs"]["efa_gbps"] == P5EN.efa_gbps
    assert document["image"]["nccl"] == STACK.nccl
    model = CATALOG.models[document["workload"]["model"]]
    assert document["workload"]["shape"] == {"hidden": model.hidden, "experts": model.experts, "top_k": model.top_k}
    for rollout in document["workload"]["rollouts"]:
        crosses = rollout["backend"] == "deepep_v2" and rollout["geometry"]["expert_group_nodes"] in (2, 4)
        assert (rollout["dispatch"] is not None) == crosses
