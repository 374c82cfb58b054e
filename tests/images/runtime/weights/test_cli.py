"""The command lines that charts and people write, over a local S3."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime import store
from moerl_runtime.cli import main
from moerl_runtime.faults import RuntimeFault
from moerl_runtime.weights import cache, cli, models, transfer
from moerl_runtime.weights.manifest import Model, list_files
from moerl_runtime.weights.publish import transferred_names
from tests.shipped import plan_of

from .bed import BASE, Trainer, state_of, write_whole

PLAN = plan_of("reference-p5en")
FILES = PLAN.workload.files


class Place:
    """A bucket by the plan's name, and plan.json."""

    def __init__(self, endpoint_url: str, folder: Path) -> None:
        self.bucket, self.folder = PLAN.names.weights_bucket, folder
        self.s3 = store.client(PLAN.region, endpoint_url)
        self.s3.create_bucket(Bucket=self.bucket, CreateBucketConfiguration={"LocationConstraint": PLAN.region})
        self.plan = folder / "plan.json"
        self.plan.write_text(json.dumps(PLAN.document()), encoding="utf-8")
        (folder / "sources").mkdir()
        (folder / "sources" / "train.py").touch()
        self.variables = {
            "JOB_COMPLETION_INDEX": "0",
            "MOERL_TRAIN_SCRIPT": str(folder / "sources" / "train.py"),
        }

    def run(self, *words: str, **variables: str) -> int:
        return main(["weights", *words[:1], "--plan", str(self.plan), *words[1:]], variables=self.variables | variables)

    def store_model(self, name: str) -> None:
        directory = write_whole(self.folder / "made" / name, BASE)
        model = Model(name=name, origin="x", files=list_files(directory, transferred_names(directory)))
        transfer.upload(self.s3, self.bucket, models.prefix_of(name), directory, model.files, workers=1)
        models.complete(self.s3, self.bucket, model)


@pytest.fixture
def place(at_local_aws: str, tmp_path: Path) -> Iterator[Place]:
    found = Place(at_local_aws, tmp_path)
    yield found
    for key in store.keys(found.s3, found.bucket, ""):
        store.delete(found.s3, found.bucket, key)
    found.s3.delete_bucket(Bucket=found.bucket)


def test_fetch_brings_what_the_pool_needs_and_lets_agents_in(place: Place) -> None:
    place.store_model(FILES.serving)
    below = place.folder / "models"
    assert place.run("fetch", "--pool", "rollout", "--below", str(below)) == 0
    assert state_of(below / FILES.serving) == BASE
    assert (below / cache.POLICY).is_dir()
    assert place.run("fetch", "--pool", "trainer", "--below", str(below)) == 1
    place.store_model(FILES.reference)
    assert place.run("fetch", "--pool", "trainer", "--below", str(below)) == 0
    assert place.run("fetch", "--pool", "nowhere", "--below", str(below)) == 2


def test_list_and_prune_speak_of_the_run_that_engines_follow(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    assert place.run("list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"run": None, "versions": []}
    trainer = Trainer(place.s3, place.folder, bucket=place.bucket)
    trainer.begin()
    for _ in range(3):
        trainer.step()
    trainer.publisher.close()
    assert place.run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:4] for line in lines[1:]] == [
        ["1", str(version), "delta", str(version - 1)] for version in (1, 2, 3)
    ]
    assert lines[3].endswith("current")
    assert place.run("prune", "--keep", "1", "--json") == 0
    # The chain from the base model: nothing of it may go.
    assert json.loads(capsys.readouterr().out)["removed"] == []
    assert place.run("prune", "--keep", "0") == 2


def test_prepare_says_what_is_wrong_with_its_pod(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("prepare", "--below", str(place.folder), "--rendezvous", "a:1", "--nodes", "1")
    assert place.run(*words, JOB_COMPLETION_INDEX="3") == 2
    assert "JOB_COMPLETION_INDEX" in capsys.readouterr().err
    assert place.run(*words, MOERL_TRAIN_SCRIPT="") == 2
    assert "MOERL_TRAIN_SCRIPT" in capsys.readouterr().err


def test_prepare_hands_on_what_the_plan_and_the_job_say(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(cli.prepare, "prepare", lambda _s3, job, **_: asked.append(job))
    shape = ("--num-layers", "48", "--swiglu")
    below = str(place.folder / "models")
    words = ("prepare", "--below", below, "--rendezvous", "prepare-0:29500", "--nodes", "2", "--", *shape)
    assert place.run(*words, JOB_COMPLETION_INDEX="1") == 0
    (job,) = asked
    assert (job.index, job.nodes, job.gpus, job.shape) == (1, 2, 8, shape)
    assert (job.model, job.source, job.reference) == (PLAN.workload.model, FILES.source, FILES.reference)
    assert job.tools == place.folder / "sources" / "tools"
    assert job.bucket == place.bucket


def test_a_tool_that_fails_ends_the_job() -> None:
    cli.run_tool([sys.executable, "-c", ""])
    with pytest.raises(RuntimeFault, match="ended with 3"):
        cli.run_tool([sys.executable, "-c", "raise SystemExit(3)"])
