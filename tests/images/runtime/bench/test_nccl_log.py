"""What a log proves: which network ran, and whether device-side networking was GPU-direct."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moerl_runtime.bench import nccl_log
from moerl_runtime.bench.nccl_log import Evidence
from moerl_runtime.preflight.check import Check, causes

LOGS = Path(__file__).parent / "logs"


def evidence(name: str) -> Evidence:
    return nccl_log.parse((LOGS / f"{name}.log").read_text(encoding="utf-8"))


def judged(*names: str, transport: str = "gda", device_side: bool = True) -> tuple[Check, ...]:
    return nccl_log.judge(
        [evidence(name) for name in names], nodes=2, transport=transport, device_side=device_side, efa_devices=16
    )


def wrong(checks: tuple[Check, ...]) -> list[str]:
    return [check.name for check in checks if check.status == "failed"]


def test_a_gpu_direct_run_is_proven_by_its_contexts() -> None:
    found = evidence("gda")
    assert found.gin == "gda"
    assert (found.gda_contexts, found.gin_skipped, found.gin_requested) == (11, (2,), 5)
    assert (found.version, found.networks, found.provider, found.fabric, found.devices) == (
        "2.31.2",
        ("Libfabric",),
        "efa",
        "efa-direct",
        16,
    )
    assert found.channels == found.channels_direct == 4
    assert wrong(judged("gda", "gda")) == []


@pytest.mark.parametrize("name", ["proxy", "proxy-asked"])
def test_a_loaded_gpu_direct_plugin_is_no_proof_of_its_use(name: str) -> None:
    assert "Libfabric_GDAKI (v14)" in (LOGS / f"{name}.log").read_text(encoding="utf-8")
    assert evidence(name).gin == "proxy"
    assert wrong(judged("gda", name)) == ["device-side networking"]
    assert causes(judged("gda", name)) == ["proxy-instead-of-gda"]
    assert wrong(judged(name, name, transport="proxy")) == []


def test_a_proxy_that_was_asked_for_and_never_came_is_no_proxy() -> None:
    lines = (LOGS / "proxy-asked.log").read_text(encoding="utf-8").splitlines()
    found = nccl_log.parse("\n".join(line for line in lines if "GIN/Plugin" not in line))
    assert (found.gin_requested, found.gin) == (2, "none")
    checks = nccl_log.judge([found], nodes=2, transport="proxy", device_side=True, efa_devices=16)
    assert causes(checks) == ["no-device-side-networking"]


def test_contexts_without_the_proxy_being_passed_over_are_not_enough() -> None:
    text = (LOGS / "gda.log").read_text(encoding="utf-8").replace("Skipping plugin", "Looking at plugin")
    assert nccl_log.parse(text).gin != "gda"


def test_one_rank_on_sockets_fails_the_run_loudly() -> None:
    checks = judged("gda", "socket", device_side=False)
    assert wrong(checks) == ["network", "provider", "devices", "GPU-direct RDMA"]
    assert "socket fallback on ranks 1" in checks[0].found
    assert causes(checks)[0] == "sockets-fallback"


@pytest.mark.parametrize(
    ("name", "check"), [("staged", "GPU-direct RDMA"), ("partial", "devices"), ("broken", "device-side networking")]
)
def test_host_staging_a_missing_device_and_a_failed_setup_are_told_apart(name: str, check: str) -> None:
    assert wrong(judged("gda", name, device_side=name == "broken")) == [check]


def test_plain_nccl_does_not_ask_for_device_side_networking() -> None:
    assert wrong(judged("proxy", "proxy", device_side=False)) == []


def test_warnings_of_nccl_are_kept() -> None:
    assert "strong signals" in evidence("broken").warnings[0]


def test_on_one_node_sockets_are_nobodys_fault() -> None:
    checks = nccl_log.judge([evidence("one-node")], nodes=1, transport="gda", device_side=True, efa_devices=16)
    assert [check.status for check in checks] == ["skipped"]
    assert evidence("one-node").channels == 0


def test_a_recorded_log_is_understood() -> None:
    found = evidence("recorded-one-node")
    assert (found.version, found.networks, found.channels, found.gin) == ("2.31.2", ("Socket",), 0, "none")
    assert found.warnings == ()


def test_a_recorded_fallback_to_sockets_is_told_as_that() -> None:
    found = evidence("recorded-sockets")
    assert (found.networks, found.channels, found.socket_channels, found.channels_direct) == (("Socket",), 6, 6, 0)
    checks = nccl_log.judge([found], nodes=2, transport="gda", device_side=False, efa_devices=16)
    assert causes(checks) == ["sockets-fallback", "no-efa-provider", "efa-partial", "host-staged"]


def test_a_run_without_any_log_proves_nothing() -> None:
    empty = nccl_log.parse("")
    assert empty == Evidence()
    assert wrong(nccl_log.judge([empty], nodes=2, transport="gda", device_side=True, efa_devices=16))


@given(st.text(max_size=300))
def test_no_text_makes_the_parser_raise(text: str) -> None:
    nccl_log.parse(text)
