"""What the smoke job believes of the weights that engines loaded is what `weights.fetch` says and leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra.local import smoke_weights
from infra.local.smoke_weights import Brought
from moerl_runtime.checkpoint import layout
from moerl_runtime.checkpoint.layout import Complete
from moerl_runtime.checkpoint.resolve import Checkpoint
from moerl_runtime.smoke import job
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, FakeS3
from tests.images.runtime.weights.bed import PREFIX, S3, Trainer, current, state_of, write_whole

NODE = "a node at the end"


@pytest.fixture
def service() -> FakeS3:
    return FakeS3()


@pytest.fixture
def trainer(service: FakeS3, tmp_path: Path) -> Trainer:
    """Of a run whose third version has an anchor, one of five."""
    made = Trainer(S3(service), tmp_path, anchor_every=3, keep_versions=100)
    made.begin()
    for version in range(1, 6):
        made.step(anchor=version == 3)
    return made


def join(service: FakeS3, trainer: Trainer, version: int, models: Path) -> tuple[Path, Brought]:
    base = models / job.SERVING
    if not base.is_dir():
        write_whole(base, trainer.states[0])
    return smoke_weights.join(S3(service), BUCKET, PREFIX, trainer.attempt, version, base=base, models=models)


def test_a_node_that_joins_says_what_it_began_with(service: FakeS3, trainer: Trainer, tmp_path: Path) -> None:
    for version, whole, whole_version, deltas in ((2, "base", 0, 2), (5, "anchor", 3, 2)):
        directory, how = join(service, trainer, version, tmp_path / str(version))
        assert state_of(directory) == trainer.states[version]
        assert how == Brought(
            node=NODE, attempt=1, version=version, deltas=deltas, whole=whole, whole_version=whole_version
        )
    _, again = join(service, trainer, 3, tmp_path / "2")
    assert (again.whole, again.whole_version, again.deltas) == ("node", 2, 1)
    assert str(again) == "a node at the end version 3 from node 2 and 1 deltas"


def test_an_agents_log_is_read_in_its_order(service: FakeS3, trainer: Trainer, tmp_path: Path) -> None:
    """As the agent writes it, between lines of other things."""
    from moerl_runtime.agent.bring import Bringer

    base = write_whole(tmp_path / "models" / job.SERVING, trainer.states[0])
    said = ["agent: engine is up"]
    bring = Bringer(
        S3(service),
        BUCKET,
        weights_prefix=PREFIX,
        models=tmp_path / "models",
        base=base,
        worker="worker-3",
        log=lambda line: said.append(f"agent: {line}"),
    )
    bring(current(S3(service)))
    trainer.step()
    bring(current(S3(service)))
    found = smoke_weights.brought("worker-3", "\n".join([*said, "agent: serves version 6 of attempt 1"]))
    assert [(one.version, one.whole, one.whole_version, one.deltas) for one in found] == [
        (5, "anchor", 3, 2),
        (6, "node", 5, 1),
    ]
    assert smoke_weights.brought("worker-4", "agent: engine is up") == []


def checkpoint(service: FakeS3, exported: Path) -> Checkpoint:
    """With that export and a rank's own file."""
    names = [path.name for path in sorted(exported.iterdir())]
    for name in names:
        key = layout.file_key("run/1/", f"hf/5/{name}")
        S3(service).put_object(Bucket=BUCKET, Key=key, Body=(exported / name).read_bytes())
    files = tuple(
        {"name": name, "size": 1, "crc64nvme": ""}
        for name in (*(f"hf/5/{name}" for name in names), "checkpoints/iter_0000005/rank-0.pt")
    )
    complete = Complete(run="smoke-demo", attempt=1, step=5, nodes=("a",), files=files)
    return Checkpoint(run="smoke-demo", attempt=1, step=5, prefix="run/1/", complete=complete)


def test_the_last_version_is_compared_with_the_checkpoints_export(
    service: FakeS3, trainer: Trainer, tmp_path: Path
) -> None:
    directory, _ = join(service, trainer, 5, tmp_path / "node")
    same = checkpoint(service, write_whole(tmp_path / "same", trainer.states[5]))
    assert smoke_weights.is_export(S3(service), BUCKET, same, directory)
    other = checkpoint(service, write_whole(tmp_path / "other", trainer.states[4]))
    assert not smoke_weights.is_export(S3(service), BUCKET, other, directory)
    none = Complete(run="smoke-demo", attempt=1, step=5, nodes=("a",), files=same.complete.files[-1:])
    without = Checkpoint(run="smoke-demo", attempt=1, step=5, prefix="run/1/", complete=none)
    assert not smoke_weights.is_export(S3(service), BUCKET, without, directory), "nothing was compared"
