"""app.py as the CDK CLI starts it: a process with its context in a variable, that writes an assembly or says why not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra.config.loader import load
from infra.config.pins import load_pins
from infra.config.plan import build_plan
from infra.local.pins import fixture_pins
from infra.operations.lock import lock_text
from infra.stacks.names import stack_names
from tests.shipped import text_of

ROOT = Path(__file__).resolve().parents[1]
EMBEDDED = "http://127.0.0.1:1"


def start(out: Path, context: dict[str, Any] | None, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment = {**kept, "CDK_OUTDIR": str(out), **variables}
    if context is not None:
        environment["CDK_CONTEXT_JSON"] = json.dumps(context)
    command = [sys.executable, str(ROOT / "app.py")]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


@pytest.fixture(scope="module")
def lock(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("lock") / "fixture.lock.yaml"
    path.write_text(lock_text("x", fixture_pins("1.35")), encoding="utf-8")
    return str(path)


def test_an_environment_becomes_an_assembly_of_all_its_stacks(lock: str, tmp_path: Path) -> None:
    out = tmp_path / "cdk.out"
    done = start(out, {"environment": "starter-p5en", "pins": lock}, AWS_ENDPOINT_URL=EMBEDDED)
    assert done.returncode == 0, done.stderr
    loaded = load(ROOT / "environments/starter-p5en.yaml", pins=load_pins(Path(lock)))
    manifest = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["artifacts"].values()
    names = [one["properties"]["stackName"] for one in manifest if one["type"] == "aws:cloudformation:stack"]
    assert sorted(names) == sorted(stack_names(build_plan(loaded.environment, loaded.pins)))


@pytest.mark.parametrize("endpoint", ["https://127.0.0.1.example.com", "https://example.com/?127.0.0.1", ""])
def test_made_up_pins_stop_it_where_the_endpoint_is_not_the_embedded_one(
    endpoint: str, lock: str, tmp_path: Path
) -> None:
    done = start(tmp_path / "out", {"environment": "starter-p5en", "pins": lock}, AWS_ENDPOINT_URL=endpoint)
    assert done.returncode != 0
    assert "made up for tests" in done.stderr
    assert "moerl lock starter-p5en" in done.stderr


def test_missing_pins_stop_it_even_on_the_embedded_aws(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes((ROOT / "environments/starter-p5en.yaml").read_bytes())
    done = start(tmp_path / "out", {"environment": str(path)}, AWS_ENDPOINT_URL=EMBEDDED)
    assert done.returncode != 0
    assert "pins are unresolved" in done.stderr
    assert f"moerl lock {path}`" in done.stderr


WRONG = {
    "no context": (None, "-c environment=NAME"),
    "no environment": ({"validate": "true"}, "-c environment=NAME"),
    "unknown environment": ({"environment": "nope"}, "reference-p5en, starter-p5en"),
    "wrong file": ({"environment": "{folder}/wrong.yaml"}, "wrong.yaml:1: account: nothing, is required"),
    "flags that only a render judged": ({"environment": "{folder}/flags.yaml"}, "workload.trainer.flags.nosuchflag: 3"),
    "no such lock": ({"environment": "starter-p5en", "pins": "{folder}/none.yaml"}, "there is no such file"),
    "wrong lock": ({"environment": "starter-p5en", "pins": "{folder}/wrong.yaml"}, "does not fit a lock file"),
}


@pytest.mark.parametrize(("context", "said"), WRONG.values(), ids=WRONG)
def test_wrong_input_ends_with_2_a_reason_and_no_assembly(
    context: dict[str, str] | None, said: str, tmp_path: Path
) -> None:
    (tmp_path / "wrong.yaml").write_text("name: x\n", encoding="utf-8")
    flags = text_of("starter-p5en", {"workload.trainer.flags": {"nosuchflag": 3}})
    (tmp_path / "flags.yaml").write_text(flags, encoding="utf-8")
    filled = context and {key: value.format(folder=tmp_path) for key, value in context.items()}
    done = start(tmp_path / "out", filled)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
