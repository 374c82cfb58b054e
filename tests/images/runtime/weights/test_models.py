"""Base models: whole in the bucket or not there, whole on the node or not there."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from infra.config import model_plan
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.plan import Node as Plan
from moerl_runtime.weights import cache, manifest, models, transfer
from moerl_runtime.weights.manifest import Model, list_files
from moerl_runtime.weights.publish import transferred_names
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, Crash, FakeS3
from tests.shipped import SHIPPED, plan_of

from .bed import BASE, S3, Dies, State, changed, state_of, write_whole

NAME = "tiny-fp8"


def stored(service: FakeS3, folder: Path, state: State = BASE, name: str = NAME) -> Model:
    directory = write_whole(folder, state)
    model = Model(name=name, origin="hub/tiny@1", files=list_files(directory, transferred_names(directory)))
    transfer.upload(S3(service), BUCKET, models.prefix_of(name), directory, model.files, workers=1)
    models.complete(S3(service), BUCKET, model)
    return model


def fetch(s3: S3, below: Path, free_bytes: int = 2**40) -> Path:
    return models.fetch(
        s3, BUCKET, NAME, below=below, workers=1, free_bytes=lambda _: free_bytes, report=lambda _: None
    )


def test_the_prefix_is_the_one_that_the_plan_lets_pods_read() -> None:
    assert models.MODELS_PREFIX == model_plan.MODELS_PREFIX


def test_a_model_comes_to_the_node_once(tmp_path: Path) -> None:
    service, below = FakeS3(), tmp_path / "models"
    stored(service, tmp_path / "made")
    assert state_of(fetch(S3(service), below)) == BASE
    again = S3(service)
    assert fetch(again, below) == below / NAME
    assert again.made == ["get_object"]


def test_a_long_transfer_says_how_far_it_is(tmp_path: Path) -> None:
    service, lines = FakeS3(), list[str]()
    stored(service, tmp_path / "made", BASE | {"embed": bytes(4000)})
    models.fetch(S3(service), BUCKET, NAME, below=tmp_path / "models", workers=1, report=lines.append)
    shares = [int(line.split(": ")[1].split(" %")[0]) for line in lines if " %" in line]
    assert shares == sorted(set(shares))
    assert shares[-1] == 100
    assert lines[-1].startswith(f"weights: {NAME}")


def test_without_its_listing_a_model_is_not_there(tmp_path: Path) -> None:
    service = FakeS3()
    stored(service, tmp_path / "made")
    del service.objects[models.prefix_of(NAME) + manifest.MODEL_MARKER]
    with pytest.raises(RuntimeFault, match="Run the prepare job"):
        fetch(S3(service), tmp_path / "models")


def test_killed_at_any_moment_the_next_pod_repairs(tmp_path: Path) -> None:
    service, moment = FakeS3(), 0
    stored(service, tmp_path / "made")
    while True:
        below = tmp_path / str(moment)
        try:
            fetch(S3(service, Dies(moment)), below)
        except Crash:
            assert not (below / NAME).exists()
        else:
            break
        assert state_of(fetch(S3(service), below)) == BASE
        moment += 1
    assert moment > 8


def test_a_model_that_was_prepared_anew_takes_the_place_of_the_old_one(tmp_path: Path) -> None:
    """Also where the old one came half way: its files have the names and sizes of the new ones."""
    service, below = FakeS3(), tmp_path / "models"
    stored(service, tmp_path / "first")
    with pytest.raises(Crash):
        fetch(S3(service, Dies(6)), below)
    assert list(cache.hidden(below / NAME, "partial").glob("*.safetensors"))
    stored(service, tmp_path / "second", changed(BASE, 4))
    assert state_of(fetch(S3(service), below)) == changed(BASE, 4)
    stored(service, tmp_path / "third", changed(BASE, 5))
    assert state_of(fetch(S3(service), below)) == changed(BASE, 5)
    assert [path.name for path in below.iterdir() if path.name != cache.LOCK_NAME] == [NAME]


def test_a_byte_that_differs_is_found(tmp_path: Path) -> None:
    service = FakeS3()
    stored(service, tmp_path / "made")
    key = models.prefix_of(NAME) + "model-00001-of-00002.safetensors"
    body = service.objects[key].body
    service.objects[key].body = body[:-1] + bytes([body[-1] ^ 1])
    with pytest.raises(RuntimeFault, match="differs in chunk"):
        fetch(S3(service), tmp_path / "models")


def test_a_disk_that_is_too_small_is_named_before_the_download(tmp_path: Path) -> None:
    service = FakeS3()
    stored(service, tmp_path / "made")
    s3 = S3(service)
    with pytest.raises(RuntimeFault, match="GiB free"):
        fetch(s3, tmp_path / "models", free_bytes=2**30)
    assert "download_file" not in s3.made


def test_listings_of_several_nodes_become_one(tmp_path: Path) -> None:
    one, two = write_whole(tmp_path / "one", BASE), write_whole(tmp_path / "two", changed(BASE, 1))
    parts = [
        Model(name=NAME, origin="x", files=list_files(one, ["config.json", "model-00001-of-00002.safetensors"])),
        Model(name=NAME, origin="x", files=list_files(two, ["config.json", "model-00002-of-00002.safetensors"])),
    ]
    whole = models.merged(NAME, "x", parts)
    assert [file.name for file in whole.files] == transferred_names(one)
    differing = Model(name=NAME, origin="x", files=list_files(two, ["model-00001-of-00002.safetensors"]))
    with pytest.raises(RuntimeFault, match="differs between two nodes"):
        models.merged(NAME, "x", [*parts, differing])


@pytest.mark.parametrize("name", SHIPPED)
def test_each_pool_gets_the_models_that_its_flags_name(name: str) -> None:
    plan = plan_of(name)
    document, files = Plan(plan.document(), ""), plan.workload.files
    assert models.needed(document, plan.workload.trainer.pool) == (files.serving, files.reference)
    for rollout in plan.workload.rollouts:
        assert models.needed(document, rollout.pool) == (files.serving,)
    with pytest.raises(InputFault, match="is not in plan"):
        models.needed(document, "system")


def test_agents_of_another_user_may_keep_versions_there(tmp_path: Path) -> None:
    cache.open_to_agents(tmp_path)
    assert stat.S_IMODE((tmp_path / cache.POLICY).stat().st_mode) == 0o1777
