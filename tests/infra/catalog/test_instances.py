import gzip
import json
import re
from importlib.resources import files
from typing import Any

import pytest

from infra.catalog.instances import INSTANCES, InstanceType, safe_max_pods

MOTO: dict[str, Any] = json.loads(
    gzip.decompress(files("moto").joinpath("ec2/resources/instance_types.json.gz").read_bytes())
)

# Where the catalog departs from EC2's own data as moto ships it, and why.
DEPARTURES = {
    ("m7i.48xlarge", "efa_devices"): "could carry one EFA device; no CPU pool here talks over EFA, so none is given",
}


def ec2_facts(name: str) -> dict[str, object]:
    """DescribeInstanceTypes as moto ships it, under the catalog's field names."""
    entry = MOTO[name]
    network, gpu, storage = entry["NetworkInfo"], entry.get("GpuInfo"), entry.get("InstanceStorageInfo") or {}
    facts: dict[str, object] = {
        "vcpus": entry["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": entry["MemoryInfo"]["SizeInMiB"] / 1024,
        "gpus": gpu["Gpus"][0]["Count"] if gpu else 0,
        "gpu_model": gpu["Gpus"][0]["Name"] if gpu else None,
        "gpu_memory_gib": gpu["Gpus"][0]["MemoryInfo"]["SizeInMiB"] // 1024 if gpu else 0,
        "network_cards": network["MaximumNetworkCards"],
        "interfaces_per_card": network["NetworkCards"][0]["MaximumNetworkInterfaces"],
        "ipv4_per_interface": network["Ipv4AddressesPerInterface"],
        "efa_devices": (network.get("EfaInfo") or {}).get("MaximumEfaInterfaces", 0),
        "nvme_gib": storage.get("TotalSizeInGB", 0) * 10**9 // 2**30,
        "nvme_disks": sum(disk["Count"] for disk in storage.get("Disks", ())),
    }
    performance = network["NetworkPerformance"]
    if not performance.startswith("Up to"):
        cards, gbps = re.fullmatch(r"(?:(\d+)x )?([\d.]+) Gigabit", performance).groups(default="1")  # type: ignore[union-attr]
        facts["network_gbps"] = int(int(cards) * float(gbps))
    return facts


@pytest.mark.parametrize("instance", INSTANCES.values(), ids=INSTANCES)
def test_facts_agree_with_ec2_data_apart_from_named_departures(instance: InstanceType) -> None:
    departures = {
        key: (getattr(instance, key), value)
        for key, value in ec2_facts(instance.name).items()
        if getattr(instance, key) != value and (instance.name, key) not in DEPARTURES
    }
    assert departures == {}


@pytest.mark.parametrize(("name", "key"), DEPARTURES)
def test_a_named_departure_is_dropped_once_the_data_agree(name: str, key: str) -> None:
    assert getattr(INSTANCES[name], key) != ec2_facts(name)[key]


def test_catalog_offers_the_types_that_pools_may_use() -> None:
    gpu = {"p4d.24xlarge", "p4de.24xlarge", "p5.48xlarge", "p5e.48xlarge", "p5en.48xlarge"}
    gpu |= {"p6-b200.48xlarge", "p6-b300.48xlarge"}
    assert {name for name, instance in INSTANCES.items() if instance.gpus} == gpu
    assert {instance.family for instance in INSTANCES.values()} == {"gpu", "general", "memory", "compute"}


@pytest.mark.parametrize(
    ("name", "max_pods"),
    [
        ("p4d.24xlarge", 250),
        ("p5.48xlarge", 51),
        ("p5en.48xlarge", 149),
        ("p6-b200.48xlarge", 149),
        ("p6-b300.48xlarge", 198),
        ("m7i.xlarge", 58),
        ("m7i.4xlarge", 110),
        ("m7i.8xlarge", 234),
        ("m7i.48xlarge", 250),
    ],
)
def test_max_pods_is_what_card_0_can_address_within_the_managed_cap(name: str, max_pods: int) -> None:
    assert INSTANCES[name].max_pods == max_pods


def test_an_efa_only_interface_on_card_0_costs_one_interface_of_addresses() -> None:
    with_it = safe_max_pods(vcpus=192, card0_interfaces=2, ipv4_per_interface=50, efa_only_on_card0=True)
    without = safe_max_pods(vcpus=192, card0_interfaces=2, ipv4_per_interface=50, efa_only_on_card0=False)
    assert (with_it, without) == (51, 100)


def test_gpu_direct_is_offered_exactly_where_the_plugin_knows_completion_counters() -> None:
    gda = {name for name, instance in INSTANCES.items() if "gda" in instance.efa_transports}
    assert gda == {"p5en.48xlarge", "p6-b200.48xlarge", "p6-b300.48xlarge"}
    assert INSTANCES["p5.48xlarge"].efa_transports == INSTANCES["p5e.48xlarge"].efa_transports == ("proxy",)


def test_transports_are_best_first_and_only_on_types_with_efa_and_hopper_or_later() -> None:
    for instance in INSTANCES.values():
        assert instance.efa_transports in ((), ("proxy",), ("gda", "proxy")), instance.name
        if instance.efa_transports:
            assert instance.efa_devices > 0
            assert float(instance.cuda_arch or 0) >= 9.0


def test_efa_bandwidth_adds_up_to_the_network_bandwidth() -> None:
    for instance in INSTANCES.values():
        if instance.efa_devices:
            assert instance.efa_devices * instance.efa_gbps == instance.network_gbps, instance.name


def test_quota_codes_follow_the_family_and_the_market() -> None:
    for instance in INSTANCES.values():
        assert instance.quota_on_demand == ("L-417A185B" if instance.gpus else "L-1216C47A")
        assert re.fullmatch(r"L-[0-9A-F]{8}", instance.quota_spot)
        assert instance.quota_spot != instance.quota_on_demand
