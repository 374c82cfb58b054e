"""The prepare job: a model from the hub, and what is made of it, into the bucket.

    source     the hub's checkpoint in BF16; one that the hub has in FP8 is cast first
    reference  Megatron's torch_dist form of the source, made on the GPUs of all nodes of the job
    serving    FP8 in blocks of 128 x 128, where the engines are FP8

Each is left alone where it is complete. Conversions are the framework's own tools, as processes with argument lists. The
reference comes before the serving form: all nodes of the job meet for it, and none should wait for the first one's FP8.

Sources: tools/convert_hf_to_torch_dist.py and tools/fp8_cast_bf16.py of radixark/miles v0.1.0, tools/convert_hf_to_fp8.py of
THUDM/slime v0.2.4, called as Miles' own launchers do. The torch_dist tool renames iter_0000001 to release on its first rank
alone: on the other nodes, whose disks are their own, the folder keeps its old name until it is stored.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from moerl_runtime import store
from moerl_runtime.arguments import host_port
from moerl_runtime.faults import InputFault, RuntimeFault
from moerl_runtime.weights import cache, manifest, models, transfer
from moerl_runtime.weights.cache import Clock, Wait
from moerl_runtime.weights.manifest import Model, list_files
from moerl_runtime.weights.publish import every_name, transferred_names

HUB_FILES = ("*.safetensors", "*.json", "*.txt", "*.model", "*.jinja", "*.py", "LICENSE*")
FP8_BLOCK = ("128", "128")
FP8_WORKERS = "4"
ITERATION_FOLDER, RELEASE_FOLDER = "iter_0000001/", "release/"
LOOK_SECONDS = 15.0
NODE_SECONDS = 4 * 3600.0
"""How long one node may be behind the others: a download of a terabyte, or its upload."""
NODES_FOLDER = "nodes/"

Run = Callable[[Sequence[str]], object]


class Hub(Protocol):
    def revision(self, name: str) -> str:
        """The commit that the name stands for now."""

    def download(self, name: str, revision: str, directory: Path) -> None:
        """Brings HUB_FILES of that commit; goes on where it was interrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One pod of the job."""

    bucket: str
    model: str
    """Name on the hub."""
    source: str
    serving: str
    reference: str
    below: Path
    tools: Path
    """The framework's tools directory."""
    index: int
    nodes: int
    gpus: int
    """Of this node."""
    rendezvous: str
    shape: tuple[str, ...]
    """The framework's flags of the model's shape."""


def prepare(
    s3: store.S3Client,
    job: Job,
    *,
    hub: Hub,
    run: Run,
    workers: int = transfer.FILES_AT_ONCE,
    clock: Clock = time.monotonic,
    wait: Wait = time.sleep,
    report: Callable[[str], object] = print,
) -> list[str]:
    """Makes what is missing. Returns the names of the models that this call completed."""
    missing = [
        name
        for name in dict.fromkeys((job.source, job.reference, job.serving))
        if models.stored(s3, job.bucket, name) is None
    ]
    if not missing:
        report("prepare: everything is there")
        return []
    job.below.mkdir(parents=True, exist_ok=True)
    made: list[str] = []
    if job.source in missing and job.index == 0:
        _from_hub(s3, job, hub=hub, run=run, workers=workers, report=report)
        made.append(job.source)
    elif job.source in missing:
        _wait_for(partial(models.stored, s3, job.bucket, job.source), job.source, clock=clock, wait=wait)
    origin = models.stored(s3, job.bucket, job.source)
    if origin is None:
        raise RuntimeFault("model", job.source, "was removed meanwhile", "Run the job again.")
    if job.reference in missing or (job.serving in missing and job.index == 0):
        models.fetch(
            s3, job.bucket, job.source, below=job.below, workers=workers, clock=clock, wait=wait, report=report
        )
    if job.reference in missing:
        _reference(s3, job, origin.origin, run=run, workers=workers, clock=clock, wait=wait, report=report)
        made += [job.reference] if job.index == 0 else []
    if job.serving in missing and job.serving != job.source and job.index == 0:
        half = _fresh(job.below / job.serving)
        run(fp8_command(job.tools, job.below / job.source, half))
        _store(s3, job, job.serving, half, origin.origin, workers=workers, report=report)
        report(f"prepare: {job.serving} is complete")
        made.append(job.serving)
    return made


def fp8_command(tools: Path, source: Path, target: Path) -> list[str]:
    return [
        sys.executable,
        str(tools / "convert_hf_to_fp8.py"),
        *("--model-dir", str(source)),
        *("--save-dir", str(target)),
        *("--strategy", "block"),
        *("--block-size", *FP8_BLOCK),
        *("--max-workers", FP8_WORKERS),
    ]


def bf16_command(tools: Path, source: Path, target: Path) -> list[str]:
    return [
        sys.executable,
        str(tools / "fp8_cast_bf16.py"),
        *("--input-fp8-hf-path", str(source)),
        *("--output-bf16-hf-path", str(target)),
    ]


def reference_command(job: Job, source: Path, target: Path) -> list[str]:
    """One process per GPU, fewer where the model has fewer layers than the job has GPUs: the tool refuses more."""
    found = host_port(job.rendezvous)
    if found is None or not found[0]:
        raise InputFault("--rendezvous", job.rendezvous, "is not HOST:PORT", "Write the first pod's name and a port.")
    host, port = found
    return [
        sys.executable,
        *("-m", "torch.distributed.run"),
        *("--nnodes", str(job.nodes)),
        *("--node-rank", str(job.index)),
        *("--nproc-per-node", str(max(1, min(job.gpus, layers(job.shape) // job.nodes)))),
        *("--master-addr", host),
        *("--master-port", str(port)),
        str(job.tools / "convert_hf_to_torch_dist.py"),
        *job.shape,
        *("--hf-checkpoint", str(source)),
        *("--save", str(target)),
    ]


def layers(shape: Sequence[str]) -> int:
    """Value of --num-layers. Raises InputFault without it."""
    for flag, value in pairwise(shape):
        if flag == "--num-layers" and value.isdigit():
            return int(value)
    raise InputFault(
        "MODEL FLAGS", " ".join(shape), "have no --num-layers", "Render the job with the release that built this image."
    )


def _from_hub(
    s3: store.S3Client, job: Job, *, hub: Hub, run: Run, workers: int, report: Callable[[str], object]
) -> None:
    revision = hub.revision(job.model)
    # Named after the commit: a partial download of another one is not taken for this.
    raw = job.below / f".{job.source}.{revision}"
    raw.mkdir(exist_ok=True)
    hub.download(job.model, revision, raw)
    report(f"prepare: {job.model} at {revision} is here")
    directory = raw
    if (method := _quantization(raw)) == "fp8":
        directory = _fresh(job.below / job.source)
        run(bf16_command(job.tools, raw, directory))
        _complete_cast(raw, directory)
    elif method is not None:
        raise RuntimeFault("model", job.model, f"is quantised by {method}", "Name a checkpoint in BF16 or FP8.")
    _store(s3, job, job.source, directory, f"{job.model}@{revision}", workers=workers, report=report)
    report(f"prepare: {job.source} is complete")
    cache.discard(raw)


def _quantization(directory: Path) -> str | None:
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    found = config.get("quantization_config")
    return None if found is None else str(found.get("quant_method"))


def _complete_cast(raw: Path, cast: Path) -> None:
    """What the tool leaves out: small files by other names, and the config, which would still call the tensors FP8."""
    for path in sorted(raw.iterdir()):
        if path.is_file() and path.suffix != ".safetensors" and not (cast / path.name).exists():
            shutil.copyfile(path, cast / path.name)
    config = json.loads((raw / "config.json").read_text(encoding="utf-8"))
    del config["quantization_config"]
    (cast / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _reference(
    s3: store.S3Client,
    job: Job,
    origin: str,
    *,
    run: Run,
    workers: int,
    clock: Clock,
    wait: Wait,
    report: Callable[[str], object],
) -> None:
    """Every node stores its own shards and lists them; the first one puts the listings together."""
    prefix = models.prefix_of(job.reference) + NODES_FOLDER
    mine = f"{prefix}{job.index:03d}.json"
    # Before the conversion, in which all nodes meet: after it no listing of an earlier job is left.
    store.delete(s3, job.bucket, mine)
    half = _fresh(job.below / job.reference)
    run(reference_command(job, job.below / job.source, half))
    old = half / ITERATION_FOLDER
    if old.is_dir():
        old.rename(half / RELEASE_FOLDER)
    files = list_files(half, every_name(half), workers=workers)
    if not files:
        raise RuntimeFault("reference", str(half), "is empty after the conversion", "Look at the tool's log.")
    transfer.upload(s3, job.bucket, models.prefix_of(job.reference), half, files, workers=workers, report=report)
    store.put(s3, job.bucket, mine, manifest.encode(Model(name=job.reference, origin=origin, files=files)))
    report(f"prepare: {len(files)} files of {job.reference} from node {job.index}")
    if job.index == 0:
        listings = [f"{prefix}{number:03d}.json" for number in range(job.nodes)]
        for key in listings:
            _wait_for(partial(store.get, s3, job.bucket, key), key, clock=clock, wait=wait)
        found = [store.get(s3, job.bucket, key) for key in listings]
        parts = [manifest.decode_model(listing.body) for listing in found if listing is not None]
        models.complete(s3, job.bucket, models.merged(job.reference, origin, parts))
        report(f"prepare: {job.reference} is complete")
    # With several nodes this one has its own shards only; a trainer's pod fetches them all.
    cache.discard(half)


def _store(
    s3: store.S3Client,
    job: Job,
    name: str,
    directory: Path,
    origin: str,
    *,
    workers: int,
    report: Callable[[str], object],
) -> None:
    """The directory into the bucket, and under its name on this node, as a fetch would leave it."""
    model = Model(name=name, origin=origin, files=list_files(directory, transferred_names(directory), workers=workers))
    transfer.upload(s3, job.bucket, models.prefix_of(name), directory, model.files, workers=workers, report=report)
    models.complete(s3, job.bucket, model)
    models.adopt(directory, job.below / name, model)


def _fresh(path: Path) -> Path:
    """An empty hidden directory for what becomes `path`: no tool says whether what it left is whole."""
    half = cache.hidden(path, "partial")
    cache.discard(half)
    half.mkdir(parents=True)
    return half


def _wait_for(there: Callable[[], Any], what: str, *, clock: Clock, wait: Wait) -> None:
    end = clock() + NODE_SECONDS
    while not there():
        if clock() >= end:
            raise RuntimeFault(
                "prepare", what, f"did not come in {NODE_SECONDS:.0f} s", "Look at the logs of the job's other pods."
            )
        wait(LOOK_SECONDS)
