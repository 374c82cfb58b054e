"""The prepare job, with a hub and tools that leave what the real ones leave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.weights import models, prepare
from moerl_runtime.weights.prepare import Job
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, Crash, FakeS3

from .bed import BASE, S3, Dies, write_whole

SHAPE = ("--num-layers", "12", "--hidden-size", "64", "--swiglu")
TOOLS = Path("/opt/framework/tools")


class Hub:
    """One model, at a commit."""

    def __init__(self, config: dict[str, object] | None = None) -> None:
        self.config, self.downloads = config or {"model_type": "tiny"}, 0

    def revision(self, name: str) -> str:
        assert name == "org/Tiny"
        return "c0ffee"

    def download(self, name: str, revision: str, directory: Path) -> None:
        assert (name, revision) == ("org/Tiny", "c0ffee")
        self.downloads += 1
        for path in write_whole(directory / "made", BASE).iterdir():
            path.replace(directory / path.name)
        (directory / "made").rmdir()
        (directory / "config.json").write_text(json.dumps(self.config), encoding="utf-8")
        (directory / "vocab.txt").write_text("a b", encoding="utf-8")
        (directory / ".cache").mkdir(exist_ok=True)
        (directory / ".cache" / "lock").touch()


class Tools:
    """What the framework's tools leave. With several nodes, the first renames its folder and the others do not."""

    def __init__(self, index: int = 0, meet: threading.Barrier | None = None) -> None:
        self.index, self.meet, self.ran = index, meet, list[list[str]]()

    def __call__(self, command: Sequence[str]) -> None:
        self.ran.append(list(command))
        options = dict(pairwise(command))
        if str(TOOLS / "convert_hf_to_torch_dist.py") in command:
            assert (Path(options["--hf-checkpoint"]) / "config.json").is_file()
            if self.meet:
                self.meet.wait(20)
            target = Path(options["--save"])
            folder = target / ("release" if self.index == 0 else "iter_0000001")
            folder.mkdir()
            (folder / f"__{self.index}_0.distcp").write_bytes(bytes([self.index]) * 100)
            if self.index == 0:
                (folder / ".metadata").write_bytes(b"metadata")
                (folder / "common.pt").write_bytes(b"common")
                (target / "latest_checkpointed_iteration.txt").write_text("release", encoding="utf-8")
        elif str(TOOLS / "convert_hf_to_fp8.py") in command:
            target = Path(options["--save-dir"])
            write_whole(target / "made", BASE | {"norm": b"8" * 16})
            for path in (target / "made").iterdir():
                path.replace(target / path.name)
            (target / "made").rmdir()
        elif str(TOOLS / "fp8_cast_bf16.py") in command:
            source, target = Path(options["--input-fp8-hf-path"]), Path(options["--output-bf16-hf-path"])
            for path in source.glob("*.safetensors"):
                (target / path.name).write_bytes(path.read_bytes())
            (target / "config.json").write_bytes((source / "config.json").read_bytes())
        else:
            raise AssertionError(command)

    @property
    def names(self) -> list[str]:
        return [Path(next(word for word in command if word.endswith(".py"))).name for command in self.ran]


def job(below: Path, *, index: int = 0, nodes: int = 1, serving: str = "tiny-fp8") -> Job:
    return Job(
        bucket=BUCKET,
        model="org/Tiny",
        source="tiny-bf16",
        serving=serving,
        reference="tiny-torch-dist",
        below=below,
        tools=TOOLS,
        index=index,
        nodes=nodes,
        gpus=8,
        rendezvous="prepare-0.prepare.rl.svc:29500",
        shape=SHAPE,
    )


def run(
    s3: S3,
    asked: Job,
    *,
    tools: Tools | None = None,
    at: Hub | None = None,
    wait: Callable[[float], object] = lambda _: threading.Event().wait(0.01),
) -> list[str]:
    return prepare.prepare(
        s3,
        asked,
        hub=at or Hub(),
        run=tools or Tools(asked.index),
        workers=1,
        wait=wait,
        report=lambda _: None,
    )


def names_of(service: FakeS3, name: str) -> set[str]:
    model = models.stored(S3(service), BUCKET, name)
    assert model is not None
    return {file.name for file in model.files}


def test_all_forms_are_made_and_stored_and_a_second_job_makes_none(tmp_path: Path) -> None:
    service, tools, source = FakeS3(), Tools(), Hub()
    assert run(S3(service), job(tmp_path), tools=tools, at=source) == ["tiny-bf16", "tiny-torch-dist", "tiny-fp8"]
    # The form for which nodes meet comes first.
    assert tools.names == ["convert_hf_to_torch_dist.py", "convert_hf_to_fp8.py"]
    assert {"config.json", "vocab.txt"} < names_of(service, "tiny-bf16")
    assert names_of(service, "tiny-torch-dist") == {
        "latest_checkpointed_iteration.txt",
        "release/.metadata",
        "release/__0_0.distcp",
        "release/common.pt",
    }
    origin = models.stored(S3(service), BUCKET, "tiny-fp8")
    assert origin is not None
    assert origin.origin == "org/Tiny@c0ffee"
    assert run(S3(service), job(tmp_path / "other"), tools=tools, at=source) == []
    assert (len(tools.ran), source.downloads) == (2, 1)


def test_what_is_complete_is_left_alone(tmp_path: Path) -> None:
    service, tools, source = FakeS3(), Tools(), Hub()
    run(S3(service), job(tmp_path / "first"))
    model = models.prefix_of("tiny-fp8") + models.MODEL_MARKER
    del service.objects[model]
    assert run(S3(service), job(tmp_path / "second"), tools=tools, at=source) == ["tiny-fp8"]
    assert (tools.names, source.downloads) == (["convert_hf_to_fp8.py"], 0)


def test_engines_in_bf16_are_served_from_the_source(tmp_path: Path) -> None:
    service, tools = FakeS3(), Tools()
    run(S3(service), job(tmp_path, serving="tiny-bf16"), tools=tools)
    assert tools.names == ["convert_hf_to_torch_dist.py"]


def test_what_this_node_made_need_not_be_fetched_again(tmp_path: Path) -> None:
    service = FakeS3()
    s3 = S3(service)
    run(s3, job(tmp_path))
    assert "download_file" not in s3.made
    again = S3(service)
    models.fetch(again, BUCKET, "tiny-fp8", below=tmp_path, workers=1, report=lambda _: None)
    assert "download_file" not in again.made


def test_a_checkpoint_in_fp8_is_cast_and_no_longer_calls_itself_fp8(tmp_path: Path) -> None:
    service, tools = FakeS3(), Tools()
    source = Hub({"model_type": "tiny", "quantization_config": {"quant_method": "fp8"}})
    run(S3(service), job(tmp_path), tools=tools, at=source)
    assert tools.names[0] == "fp8_cast_bf16.py"
    key = models.prefix_of("tiny-bf16") + "config.json"
    assert json.loads(service.objects[key].body) == {"model_type": "tiny"}
    assert "vocab.txt" in names_of(service, "tiny-bf16")


def test_another_quantisation_is_refused(tmp_path: Path) -> None:
    source = Hub({"quantization_config": {"quant_method": "compressed-tensors"}})
    with pytest.raises(RuntimeFault, match="compressed-tensors"):
        run(S3(FakeS3()), job(tmp_path), at=source)


def test_nodes_store_their_own_shards_under_one_listing(tmp_path: Path) -> None:
    service, meet, source = FakeS3(), threading.Barrier(2), Hub()
    # A listing that an earlier job left is not this job's.
    stale = models.prefix_of("tiny-torch-dist") + "nodes/001.json"
    service.client().put_object(Bucket=BUCKET, Key=stale, Body=b"{}")
    made: dict[int, list[str]] = {}
    looked = threading.Event()

    def wait(_seconds: float) -> None:
        if service.objects.keys() >= {models.prefix_of("tiny-torch-dist") + "nodes/000.json"}:
            looked.set()
        threading.Event().wait(0.01)

    def after_a_look_at_its_listing(operation: str) -> None:
        if operation == "upload_file":
            assert looked.wait(20)

    def node(index: int) -> None:
        asked = job(tmp_path / str(index), index=index, nodes=2)
        s3 = S3(service, after_a_look_at_its_listing) if index else S3(service)
        made[index] = run(s3, asked, tools=Tools(index, meet), at=source, wait=wait)

    nodes = [threading.Thread(target=node, args=(index,)) for index in range(2)]
    for each in nodes:
        each.start()
    for each in nodes:
        each.join(60)
    assert made == {0: ["tiny-bf16", "tiny-torch-dist", "tiny-fp8"], 1: []}
    assert source.downloads == 1
    found = names_of(service, "tiny-torch-dist")
    assert {"release/__0_0.distcp", "release/__1_0.distcp", "release/.metadata"} < found
    below = tmp_path / "trainer"
    directory = models.fetch(S3(service), BUCKET, "tiny-torch-dist", below=below, workers=1, report=lambda _: None)
    assert (directory / "release" / "__1_0.distcp").read_bytes() == bytes([1]) * 100


def test_killed_at_any_moment_a_second_job_completes_it(tmp_path: Path) -> None:
    moment = 0
    while True:
        service, folder = FakeS3(), tmp_path / str(moment)
        try:
            run(S3(service, Dies(moment)), job(folder))
        except Crash:
            pass
        else:
            break
        run(S3(service), job(folder))
        assert {"release/.metadata"} < names_of(service, "tiny-torch-dist")
        assert names_of(service, "tiny-fp8")
        moment += 3
    assert moment > 20


def test_no_more_processes_than_the_model_has_layers(tmp_path: Path) -> None:
    asked = job(tmp_path, index=1, nodes=2)
    command = prepare.reference_command(asked, Path("/s"), Path("/t"))
    options = dict(pairwise(command))
    assert (options["--nnodes"], options["--node-rank"], options["--nproc-per-node"]) == ("2", "1", "6")
    assert (options["--master-addr"], options["--master-port"]) == ("prepare-0.prepare.rl.svc", "29500")
    small = replace(asked, shape=("--num-layers", "1"))
    assert "1" in prepare.reference_command(small, Path("/s"), Path("/t"))
    with pytest.raises(InputFault, match="--num-layers"):
        prepare.reference_command(replace(asked, shape=()), Path("/s"), Path("/t"))
    with pytest.raises(InputFault, match="--rendezvous"):
        prepare.reference_command(replace(asked, rendezvous="nowhere"), Path("/s"), Path("/t"))
