"""Weights through the embedded S3, with boto3's own transfers: several parts a file, the pointer, retention, fencing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime import store
from moerl_runtime.weights import cache, retain
from moerl_runtime.weights.pointer import Fenced
from tests.images.runtime.checkpoint.fake_s3 import BUCKET
from tests.images.runtime.weights.bed import BASE, PREFIX, Node, Trainer, changed, current, state_of

from .bed import Bed

pytestmark = pytest.mark.emulator

LARGE = BASE | {"embed": bytes(range(256)) * (40 * 2**20 // 256)}


@pytest.fixture(scope="module")
def s3(beds: Callable[[str], Bed]) -> Any:
    made = beds("us-west-2").client("s3")
    made.create_bucket(Bucket=BUCKET, CreateBucketConfiguration={"LocationConstraint": "us-west-2"})
    return made


def test_versions_are_followed_pruned_and_fenced(s3: Any, tmp_path: Path) -> None:
    node = Node(tmp_path, LARGE)
    first = Trainer(s3, tmp_path, base=LARGE, keep_versions=1, workers=2)
    first.begin()
    assert node.bring(s3, current(s3)) == node.base
    for _ in range(2):
        first.step(kind="full")
    loaded = current(s3)
    with cache.holding(node.bring(s3, loaded, workers=2)) as directory:
        assert state_of(directory) == first.states[2]
        retain.report_loaded(s3, BUCKET, loaded, "10-0-0-1")
        first.step(kind="full")
        kept = {key.split("/")[3] for key in store.keys(s3, BUCKET, f"{PREFIX}{first.attempt.run}/")}
        assert kept == {"00000002", "00000003"}
    resumed = Trainer(s3, tmp_path, attempt=2, base=changed(LARGE, 9), workers=2)
    resumed.begin(resumed=True)
    with pytest.raises(Fenced):
        first.step(kind="full")
    assert state_of(node.bring(s3, current(s3), workers=2)) == resumed.states[0]
    for trainer in (first, resumed):
        trainer.publisher.close()
