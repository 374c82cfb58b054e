"""Formats of other programs: the values in them, and no exception for anything else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.preflight import parse

FIXTURES = Path(__file__).parent / "fixtures"
PARSERS: tuple[Callable[[str], object], ...] = (
    parse.gpus,
    parse.fabric_states,
    parse.fabrics,
    parse.libfabric_version,
    parse.registry_dwords,
    parse.maps_persistently,
    parse.locked_memory_bytes,
    parse.has_ipc_lock,
    parse.huge_pages_mib,
    parse.image_archs,
    parse.version_key,
)


@pytest.mark.parametrize(("type_name", "devices"), [("p5", 32), ("p5en", 16), ("p6-b200", 8)])
def test_fi_info_counts_devices_not_entries(type_name: str, devices: int) -> None:
    text = (FIXTURES / type_name / "fi_info.txt").read_text(encoding="utf-8")
    assert parse.fabrics(text) == parse.Fabrics(efa=devices, efa_direct=devices)


def test_an_answer_without_data_is_no_device() -> None:
    assert parse.fabrics("fi_getinfo: -61 (No data available)\n") == parse.Fabrics(efa=0, efa_direct=0)


def test_gpus_of_the_query_and_their_fabric() -> None:
    folder = FIXTURES / "p5en"
    (first, *rest) = parse.gpus((folder / "nvidia-smi-query.csv").read_text(encoding="utf-8"))
    assert len(rest) == 7
    assert first == parse.Gpu(name="NVIDIA H200", memory_mib=143771, driver="580.159.03", ecc="Enabled", uncorrected=0)
    assert parse.gpus("NVIDIA H200, 143771, 580.1, [N/A], [N/A]\n")[0].uncorrected == 0
    states = parse.fabric_states((folder / "nvidia-smi-q.txt").read_text(encoding="utf-8"))
    assert states == ("Completed/Success",) * 8
    alone = "    Fabric\n        State                    : N/A\n        Status                   : N/A\n"
    assert parse.fabric_states(alone) == ()
    assert parse.fabric_states(alone.replace("State                    : N/A", "State : In Progress")) == (
        "In Progress",
    )


def test_registry_dwords_are_found_among_others_and_in_either_form() -> None:
    merged = 'EnableMSI: 1\nRegistryDwords: "RMNvLinkDisable=0;PeerMappingOverride=1"\nRegistryDwordsPerDevice: ""\n'
    assert parse.registry_dwords(merged) == {"RMNvLinkDisable": "0", "PeerMappingOverride": "1"}
    assert parse.registry_dwords('RegistryDwords: ""\n') == {}
    assert parse.registry_dwords("") == {}


def test_the_module_says_whether_it_maps_persistently_or_nothing() -> None:
    text = (FIXTURES / "p5en/gdrdrv-params.txt").read_text(encoding="utf-8")
    assert parse.maps_persistently(text) is True
    assert parse.maps_persistently(text.replace("mapping: yes", "mapping: no")) is False
    assert parse.maps_persistently("Version: 2.5\n") is None


def test_the_capability_is_a_bit_and_not_a_number() -> None:
    assert parse.has_ipc_lock("CapEff:\t0000000000004000\n") is True
    assert parse.has_ipc_lock("CapEff:\t00000000a80425fb\n") is False
    assert parse.has_ipc_lock("CapEff:\t000001ffffffffff\n") is True
    assert parse.has_ipc_lock("") is None


def test_an_image_says_what_it_was_built_for_or_nothing() -> None:
    assert parse.image_archs('{"cuda_archs": ["9.0", "10.0"], "stack": "efa-gda"}') == ("9.0", "10.0")
    for text in ("", "[]", "{}", '{"cuda_archs": "9.0"}'):
        assert parse.image_archs(text) is None


@pytest.mark.parametrize(
    ("version", "floor", "reached"),
    [
        ("3.3.0", "3.3.0", True),
        ("3.1.0g", "3.3.0", False),
        ("3.10.0", "3.3.0", True),
        ("2.5", "2.5", True),
        ("2.5.1", "2.5", True),
        ("2.4", "2.5", False),
        ("2.6.0amzn1.0", "2.6.0amzn1.0", True),
        ("2.6.0amzn2.0", "2.6.0amzn1.0", True),
        ("2.4.0amzn5.0", "2.6.0amzn1.0", False),
        ("580.159.03", "580", True),
        ("575.57.08", "580", False),
        ("", "1", False),
        (None, "1", False),
    ],
)
def test_versions_are_compared_by_number(version: str | None, floor: str, reached: bool) -> None:
    assert parse.at_least(version, floor) is reached


@given(st.lists(st.integers(0, 999), min_size=1, max_size=4), st.lists(st.integers(0, 999), min_size=1, max_size=4))
def test_a_version_reaches_exactly_those_floors_that_are_not_above_it(one: list[int], other: list[int]) -> None:
    text, floor = (".".join(map(str, parts)) for parts in (one, other))
    assert parse.at_least(text, floor) == (one >= other)


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=200))
def test_no_text_makes_a_parser_raise(text: str) -> None:
    for parser in PARSERS:
        parser(text)
    parse.exported(text, "nccl")
