"""`checkpoint` on the command line: what it refuses, and what it prints for people and pipelines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime import lease, store
from moerl_runtime.checkpoint import layout
from moerl_runtime.checkpoint.layout import Complete
from moerl_runtime.cli import main
from moerl_runtime.protocol import Attempt, encode

BUCKET, PREFIX, RUN = "checkpoint-cli", "checkpoints/", "trainer-1"
PLAN = {
    "region": "us-west-2",
    "names": {"checkpoint_bucket": BUCKET},
    "storage": {"checkpoint_prefix": PREFIX, "retain_last": 2, "scratch": "fsx"},
    "workload": {"trainer": {"workers": 2, "save_seconds_max": 600}},
}


@pytest.fixture
def s3(at_local_aws: str) -> Iterator[store.S3Client]:
    """Attempt 1 is over and has committed 10, 20 and 30; 40 is not complete."""
    client = store.client("us-west-2", at_local_aws)
    client.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    attempt = lease.acquire(client, bucket=BUCKET, prefix=PREFIX, run=RUN, holder="a").attempt
    for step in (10, 20, 30, 40):
        below = layout.step_prefix(PREFIX, attempt, step)
        store.put(client, BUCKET, layout.file_key(below, "x"), b"12345")
        if step < 40:
            complete = Complete(
                run=RUN, attempt=1, step=step, nodes=("n",), files=({"name": "x", "size": 5, "crc64nvme": "-"},)
            )
            store.put(client, BUCKET, layout.complete_key(below), encode(complete))
    yield client
    for key in list(store.keys(client, BUCKET, "")):
        store.delete(client, BUCKET, key)
    client.delete_bucket(Bucket=BUCKET)


@pytest.fixture
def run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    plan = tmp_path / "plan.json"
    plan.write_text(json.dumps(PLAN))

    def call(*arguments: str, **variables: str) -> tuple[int, str, str]:
        environment = {"MOERL_RUN": RUN} | variables
        code = main(["checkpoint", *arguments, "--plan", str(plan)], variables=environment)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return call


@pytest.mark.usefixtures("s3")
def test_the_list_tells_complete_pinned_and_unfinished_ones_apart(run: Any) -> None:
    assert run("pin", "000001-00000010")[0] == 0
    code, text, _ = run("list")
    assert code == 0
    assert [line.split()[:3] for line in text.splitlines()[1:]] == [
        ["000001-00000010", "complete", "yes"],
        ["000001-00000020", "complete", "1"],
        ["000001-00000030", "complete", "1"],
        ["000001-00000040", "incomplete", "-"],
    ]
    rows = json.loads(run("list", "--json")[1])["checkpoints"]
    assert rows[0] == {
        "checkpoint": "000001-00000010",
        "attempt": 1,
        "step": 10,
        "state": "complete",
        "pinned": True,
        "files": 1,
        "size_bytes": 5,
    }


def test_what_the_lineage_left_behind_is_listed_as_abandoned(run: Any, s3: store.S3Client) -> None:
    position = layout.Position(attempt=1, step=20)
    lease.acquire(s3, bucket=BUCKET, prefix=PREFIX, run=RUN, holder="a", resumed_from=position)
    rows = json.loads(run("list", "--json")[1])["checkpoints"]
    assert [(row["step"], row["state"]) for row in rows] == [
        (10, "complete"),
        (20, "complete"),
        (30, "abandoned"),
        (40, "incomplete"),
    ]


def test_pruning_keeps_what_the_environment_says(run: Any, s3: store.S3Client) -> None:
    assert json.loads(run("prune", "--dry-run", "--json")[1])["removed"] == ["000001-00000010"]
    assert store.get(s3, BUCKET, layout.complete_key(layout.step_prefix(PREFIX, Attempt(run=RUN, number=1), 10)))
    code, text, _ = run("prune")
    assert (code, text.splitlines()) == (
        0,
        ["000001-00000010 removed", "1 checkpoints, 1 objects, 0 broken-off uploads removed"],
    )


def test_a_restore_on_shared_scratch_removes_what_ended_attempts_left(
    run: Any, s3: store.S3Client, tmp_path: Path
) -> None:
    lease.acquire(s3, bucket=BUCKET, prefix=PREFIX, run="ended", holder="b").release()
    for name in (f"{RUN}/a", "ended/b"):
        (tmp_path / name / "checkpoints").mkdir(parents=True)
    directory = tmp_path / "another/c/checkpoints"
    code, _, error = run(
        *("restore", "--run", "another", "--to", str(directory), "--attempts", str(tmp_path)), MOERL_RUN="x"
    )
    assert (code, "removed what ended/b left" in error) == (0, True)
    assert {path.name for path in tmp_path.iterdir() if path.is_dir()} == {RUN, "another"}
    assert (directory / "handover/restored.json").exists()


@pytest.mark.usefixtures("s3")
def test_a_run_that_is_not_there_has_nothing(run: Any) -> None:
    code, text, _ = run("list", "--run", "another")
    assert (code, "another has stored none" in text) == (0, True)


@pytest.mark.parametrize(
    ("arguments", "variables", "told"),
    [
        (("list",), {"MOERL_RUN": ""}, "--run = '': names no run"),
        (("list", "--run", "a/b"), {}, "names no run"),
        (("pin", "7"), {}, "is not ATTEMPT-STEP"),
        (("pin", "000009-00000009"), {}, "is no complete checkpoint"),
        (("restore", "--to", "x", "--checkpoint", "000001-00000040"), {}, "is no complete checkpoint"),
        (("prune", "--keep", "0"), {}, "would remove the only checkpoint"),
        (("upload", "--from", "x"), {"HOSTNAME": "../other"}, "is no host name"),
        (("restore", "--to", "/a/trainer-2/b/x", "--attempts", "/a"), {}, "--attempts"),
        (("upload", "--from", "/a/trainer-2/b/x", "--attempts", "/a"), {"HOSTNAME": "node"}, "--attempts"),
    ],
)
@pytest.mark.usefixtures("s3")
def test_wrong_input_is_code_2_with_what_to_do(
    run: Any, arguments: tuple[str, ...], variables: dict[str, str], told: str
) -> None:
    code, _, error = run(*arguments, **variables)
    assert code == 2
    assert told in error
