"""The entrypoint as the RayJob calls it, with a train.py where the image's variable says."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.local.processes import free_port
from k8s.charts.trainer import ENTRYPOINT
from moerl_runtime import store
from moerl_runtime.checkpoint import handover
from moerl_runtime.cli import main
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.lease import LeaseHeld, LeaseLost
from moerl_runtime.trainer.gates import BadBatches
from moerl_runtime.trainer.run import Disagreement, NothingToDo
from tests.images.runtime.trainer.fakes import REGION, Bed, history, plan_document

STEPS = 3
TRAIN = """
import json, pathlib, signal, sys, urllib.request

from moerl_runtime import protocol, store
from moerl_runtime.checkpoint import layout
from moerl_runtime.protocol import Attempt

here = pathlib.Path(__file__).parent
order = json.loads((here / "order.json").read_text())
known = json.loads(pathlib.Path(sys.argv[sys.argv.index("--custom-config-path") + 1]).read_text())["moerl"]
body = json.dumps({"phase": "train", "step": order["step"]}).encode()
urllib.request.urlopen(urllib.request.Request(known["control"] + "/v1/phase", body)).read()
(here / "metrics.txt").write_bytes(urllib.request.urlopen(known["control"] + "/metrics").read())
(here / "settings.json").write_text(json.dumps(known))
if order["hang"]:
    signal.pause()
prefix = layout.step_prefix("checkpoints/", Attempt(run=known["run"], number=known["attempt"]), order["step"])
done = layout.Complete(run=known["run"], attempt=known["attempt"], step=order["step"], nodes=("a",), files=(),
    metadata={"history": order["history"]})
s3 = store.client(order["region"])
store.put(s3, order["bucket"], layout.complete_key(prefix), protocol.encode(done))
sys.exit(order["code"])
"""


class Pod:
    """The head's files and environment."""

    def __init__(self, aws: Bed, tmp_path: Path) -> None:
        self.aws, self.root = aws, tmp_path
        script = tmp_path / "train.py"
        script.write_text(TRAIN)
        self.plan = tmp_path / "plan.json"
        self.plan.write_text(json.dumps(plan_document(aws)))
        self.config = tmp_path / "config"
        self.config.mkdir()
        saves = str(tmp_path / "scratch" / "checkpoints")
        flags = ["--actor-num-nodes", "1", "--num-rollout", str(STEPS), "--hf-checkpoint", "/models/base"]
        flags += ["--rollout-function-path", "moerl_runtime.trainer.rollout.Rollout", "--save", saves]
        flags += ["--save-hf", f"{tmp_path}/scratch/hf/{{rollout_id}}"]
        (self.config / "flags.json").write_text(json.dumps(flags))
        handover.mark_restored(Path(saves), None)
        self.variables = {
            "MOERL_RUN": "trainer-0123abcd",
            "MOERL_ATTEMPT": "trainer-0123abcd-x7k2p",
            "POD_IP": "127.0.0.1",
            "MOERL_TRAIN_SCRIPT": str(script),
        }

    def order(self, *, step: int = STEPS - 1, code: int = 0, hang: bool = False, **batch: float) -> None:
        order = {"step": step, "code": code, "hang": hang, "region": REGION, "bucket": self.aws.bucket}
        order["history"] = history(STEPS, **batch).document()
        (self.root / "order.json").write_text(json.dumps(order))

    def run(self, **variables: str) -> int:
        words = ["trainer", "--config", str(self.config), "--plan", str(self.plan)]
        words += ["--metrics-port", str(free_port()), "--framework-metrics-port", str(free_port())]
        return main(words, variables=self.variables | variables)


@pytest.fixture
def pod(aws: Bed, tmp_path: Path) -> Iterator[Pod]:
    former = signal.getsignal(signal.SIGTERM)
    yield Pod(aws, tmp_path)
    signal.signal(signal.SIGTERM, former)


def test_a_run_ends_with_0_when_its_last_step_is_committed(pod: Pod) -> None:
    pod.order()
    assert pod.run() == 0
    known: dict[str, Any] = json.loads((pod.root / "settings.json").read_text())
    assert (known["run"], known["attempt"], known["framework"]) == ("trainer-0123abcd", 1, "miles")
    assert 'moerl_trainer_phase{phase="train"} 1.0' in (pod.root / "metrics.txt").read_text()


def test_a_run_that_is_committed_and_learned_from_garbage_does_not_end_with_0(
    pod: Pod, capsys: pytest.CaptureFixture[str]
) -> None:
    pod.order(reward_min=0.0, reward_max=0.0)
    assert pod.run() == 8
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith(
        "reward = 0.0: is the lowest of the run, and no sample had more in each of the last 3 batches"
    )


def test_an_error_of_train_py_is_an_error_of_the_run(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    pod.order(code=9)
    assert pod.run() == 1
    assert "train.py = 9" in capsys.readouterr().err


def test_sigterm_ends_train_py_and_the_run(pod: Pod) -> None:
    pod.order(hang=True)

    def stop() -> None:
        while not (pod.root / "settings.json").is_file():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop, daemon=True).start()
    assert pod.run() == 1


@pytest.mark.parametrize("name", ["MOERL_RUN", "MOERL_ATTEMPT", "POD_IP"])
def test_what_only_the_pod_knows_has_to_be_there(pod: Pod, name: str) -> None:
    assert pod.run(**{name: ""}) == 2


def test_without_a_train_py_no_lease_is_taken(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    assert pod.run(MOERL_TRAIN_SCRIPT="") == 2
    assert "MOERL_TRAIN_SCRIPT" in capsys.readouterr().err
    (pod.root / "train.py").unlink()
    assert pod.run() == 2
    assert str(pod.root / "train.py") in capsys.readouterr().err
    assert list(store.keys(pod.aws.s3, pod.aws.bucket, "")) == []


def test_the_chart_calls_it_by_options_that_it_has(pod: Pod, capsys: pytest.CaptureFixture[str]) -> None:
    program, dash, module, *words = ENTRYPOINT.split()
    assert (program, dash, module) == ("python", "-m", "moerl_runtime")
    assert main(words, variables=pod.variables | {"POD_IP": ""}) == 2
    assert "plan.json" not in capsys.readouterr().err, "the options were taken, and the pod's address is missing"


def test_every_end_has_an_exit_code_of_its_own() -> None:
    ends: tuple[type[RuntimeFault], ...] = (RuntimeFault, InputFault, LeaseHeld, LeaseLost, handover.NotCommitted)
    ends += (NothingToDo, Disagreement, BadBatches)
    assert [end.exit_code for end in ends] == list(range(1, 9))


def test_the_help_names_every_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["trainer", "--help"], variables={})
    text = capsys.readouterr().out
    assert all(f"{code} " in text for code in range(9))
