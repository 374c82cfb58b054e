"""EFA counters from a sysfs tree: the names that rules and dashboards use, over HTTP, and nothing invented."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import urllib3

from k8s import metrics
from moerl_runtime import serve
from moerl_runtime.cli import main
from moerl_runtime.efa_exporter import COUNTERS, PREFIX, exposition, handler
from moerl_runtime.stop import SIGNALS


def device(sysfs: Path, name: str, counters: dict[str, str]) -> Path:
    folder = sysfs / "class/infiniband" / name / "ports/1/hw_counters"
    folder.mkdir(parents=True)
    for counter, value in counters.items():
        (folder / counter).write_text(value, encoding="ascii")
    return folder


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    device(
        tmp_path, "rdmap83s0", {**dict.fromkeys(COUNTERS, "5\n"), "tx_bytes": "123456789012345\n", "lifespan": "12\n"}
    )
    device(tmp_path, "rdmap94s0", dict.fromkeys(COUNTERS, "7\n"))
    return tmp_path


def test_names_kinds_and_labels_are_those_that_rules_may_name(sysfs: Path) -> None:
    ours = {name: metric for name, metric in metrics.METRICS.items() if metric.exporter is metrics.EFA}
    assert {PREFIX + name for name in COUNTERS} == set(ours)
    text = exposition(sysfs)
    for name, metric in ours.items():
        assert f"# TYPE {name} {metric.kind}\n" in text
        assert f"# HELP {name} {metric.help}\n" in text
        assert metric.labels == ("device", "port")


def test_values_are_those_of_each_device_in_full(sysfs: Path) -> None:
    lines = exposition(sysfs).splitlines()
    (line,) = [line for line in lines if line.startswith(f'{PREFIX}tx_bytes{{device="rdmap83s0",port="1"}} ')]
    assert float(line.split()[-1]) == 123456789012345
    assert sum(line.startswith(PREFIX) for line in lines) == 2 * len(COUNTERS)
    assert "lifespan" not in "\n".join(lines)


def test_a_counter_that_the_driver_lacks_is_left_out_and_never_zero(sysfs: Path) -> None:
    for folder in sysfs.glob("class/infiniband/*/ports/1/hw_counters"):
        (folder / "rdma_write_wr_err").unlink()
    (sysfs / "class/infiniband/rdmap83s0/ports/1/hw_counters/rx_drops").write_text("N/A (no permission)\n")
    text = exposition(sysfs)
    assert "rdma_write_wr_err" not in text
    assert 'rx_drops{device="rdmap94s0"' in text
    assert 'rx_drops{device="rdmap83s0"' not in text


def test_a_node_without_devices_is_not_healthy_and_has_no_metrics(tmp_path: Path) -> None:
    assert exposition(tmp_path).strip() == ""
    assert handler(tmp_path)(serve.Request(method="GET", path="/health")).status == 503


def test_it_answers_over_http_on_the_address_given(sysfs: Path) -> None:
    with serve.serving("127.0.0.1:0", handler(sysfs)) as url:
        answer = urllib3.request("GET", f"{url}/metrics", timeout=10)
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert f"{PREFIX}rx_bytes" in answer.data.decode()
        assert urllib3.request("GET", f"{url}/health", timeout=10).status == 200
        assert urllib3.request("GET", f"{url}/elsewhere", timeout=10).status == 404


def test_values_are_read_at_every_scrape(sysfs: Path) -> None:
    counter = sysfs / "class/infiniband/rdmap94s0/ports/1/hw_counters/rx_drops"
    counter.write_text("8\n", encoding="ascii")
    assert f'{PREFIX}rx_drops{{device="rdmap94s0",port="1"}} 8.0' in exposition(sysfs)


@pytest.mark.parametrize("listen", ["0.0.0.0:9090", ":9090", "nowhere"])
def test_an_address_for_every_interface_is_refused(listen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["efa-exporter", "--listen", listen, "--sysfs", "/sys"], variables={}) == 2
    assert "--listen" in capsys.readouterr().err


def test_it_hears_a_signal_from_the_moment_that_it_listens(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    former = {number: signal.getsignal(number) for number in SIGNALS}
    serving = serve.serving

    @contextmanager
    def told_at_once(listen: str, answer: serve.Handler) -> Iterator[str]:
        assert all(signal.getsignal(number) is not former[number] for number in SIGNALS), "it would just be killed"
        with serving(listen, answer) as url:
            os.kill(os.getpid(), signal.SIGTERM)
            yield url

    monkeypatch.setattr(serve, "serving", told_at_once)
    try:
        assert main(["efa-exporter", "--listen", "127.0.0.1:0", "--sysfs", str(sysfs)], variables={}) == 0
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)
