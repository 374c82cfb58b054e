"""A trainer in miniature that publishes to the fake S3, and what must hold of what an engine gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moerl_runtime import protocol
from moerl_runtime.protocol import Attempt
from moerl_runtime.weights import cache, delta, fetch, pointer, safetensors
from moerl_runtime.weights.manifest import Kind
from moerl_runtime.weights.publish import Publisher
from tests.images.runtime.checkpoint.fake_s3 import BUCKET, Client, Crash, FakeS3, refused

PREFIX, RUN = "weights/", "trainer-1a2b3c4d"
State = dict[str, bytes]
BASE: State = {
    "embed": bytes(range(200)),
    "layers.0.experts.0": b"a" * 301,
    "layers.0.experts.1": b"b" * 301,
    "layers.0.scale": b"",
    "norm": b"n" * 16,
}
SECOND_FILE = frozenset({"layers.0.experts.1", "norm"})
CHECKSUM = "adler32"


class WeightsClient(Client):
    """With boto3's transfers, which may die in the middle of a file."""

    def _upload_file(self, Filename: str, Key: str, **_: object) -> None:
        self._service.client().put_object(Bucket=BUCKET, Key=Key, Body=Path(Filename).read_bytes())

    def _download_file(self, Filename: str, Key: str, **_: object) -> None:
        if Key not in self._service.objects:
            raise refused("404", 404, "HeadObject")
        body = self._service.objects[Key].body
        Path(Filename).write_bytes(body[: len(body) // 2])
        self._before("download_file in the middle")
        Path(Filename).write_bytes(body)

    def _head_object(self, Key: str, **_: object) -> Mapping[str, Any]:
        return {"ContentLength": len(self._found(Key, "HeadObject").body)}


class S3(WeightsClient):
    """boto3's transfers take positions, everything else names."""

    def __init__(self, service: FakeS3, before: Callable[[str], None] = lambda _: None) -> None:
        super().__init__(service, before, before)

    def upload_file(self, filename: str, bucket: str, key: str, Config: object) -> None:
        self.__getattr__("upload_file")(Filename=filename, Bucket=bucket, Key=key, Config=Config)

    def download_file(self, bucket: str, key: str, filename: str, Config: object) -> None:
        self.__getattr__("download_file")(Bucket=bucket, Key=key, Filename=filename, Config=Config)


class Dies:
    """Dies at the k-th moment before or after a call, and then for good."""

    def __init__(self, at: int) -> None:
        self.at, self.moments = at, 0

    def __call__(self, _operation: str) -> None:
        self.moments += 1
        if self.moments > self.at:
            raise Crash


def write_whole(directory: Path, state: State) -> Path:
    directory.mkdir(parents=True)
    parts = {
        "model-00001-of-00002.safetensors": {name for name in state if name not in SECOND_FILE},
        "model-00002-of-00002.safetensors": {name for name in state if name in SECOND_FILE},
    }
    for file, names in parts.items():
        tensors = {name: ("U8", (len(state[name]),), state[name]) for name in sorted(names)}
        safetensors.write(directory / file, tensors, {"format": "pt"})
    (directory / "config.json").write_text('{"model_type": "tiny"}', encoding="utf-8")
    return directory


def state_of(directory: Path) -> State:
    """Tensors of a directory, which has to have the model's other file as well."""
    assert (directory / "config.json").read_text(encoding="utf-8") == '{"model_type": "tiny"}'
    found: State = {}
    for file, header in safetensors.tensor_files(directory).items():
        raw = (directory / file).read_bytes()
        for name, tensor in header.tensors.items():
            found[name] = raw[tensor.offset : tensor.offset + tensor.size_bytes]
    return found


def changed(state: State, version: int) -> State:
    """Another state for every version, most tensors as they were."""
    turned = bytearray(state["layers.0.experts.0"])
    turned[version % len(turned)] ^= 0xFF
    turned[0] = version % 256
    return (
        state
        | {"layers.0.experts.0": bytes(turned)}
        | ({"norm": bytes([version % 256]) * 16} if version % 3 == 0 else {})
    )


def write_delta(directory: Path, old: State, new: State, version: int, encoding: delta.Encoding = "overwrite") -> Path:
    differing = {name: (old[name], new[name]) for name in new if new[name] != old[name]}
    delta.write(directory, differing, version=version, base=version - 1, encoding=encoding, checksum_format=CHECKSUM)
    return directory


class Trainer:
    """Publishes version after version and remembers what each of them is."""

    def __init__(
        self, s3: Any, folder: Path, *, attempt: int = 1, run: str = RUN, base: State = BASE, **options: Any
    ) -> None:
        self.attempt = Attempt(run=run, number=attempt)
        self.reported: list[str] = []
        self.folder = folder / f"trainer-{run}-{attempt}"
        self.base = write_whole(self.folder / "hf-checkpoint", base)
        self.states: dict[int, State] = {0: dict(base)}
        self.publisher = Publisher(
            s3,
            weights_prefix=PREFIX,
            attempt=self.attempt,
            report=self.reported.append,
            **{"bucket": BUCKET, "workers": 1, **options},
        )

    def begin(self, *, resumed: bool = False) -> None:
        self.publisher.begin(self.base, resumed=resumed)

    def step(self, *, anchor: bool = False, kind: Kind = "delta") -> int:
        """Trains and publishes one version; `anchor` also saves and offers it whole."""
        version = max(self.states) + 1
        self.states[version] = changed(self.states[version - 1], version)
        if anchor:
            whole = write_whole(self.folder / "hf" / str(version), self.states[version])
            self.publisher.offer_anchor(whole, version)
        directory = self.folder / "published" / f"weight_v{version:06d}"
        if kind == "delta":
            write_delta(directory, self.states[version - 1], self.states[version], version)
            self.publisher.enqueue(directory, version, "delta", version - 1)
        else:
            self.publisher.enqueue(write_whole(directory, self.states[version]), version, "full", None)
        self.publisher.flush(30.0)
        return version


class Node:
    """A node with the base model, on which agents bring versions."""

    def __init__(self, folder: Path, base: State = BASE) -> None:
        self.models = folder / "models"
        self.base = write_whole(self.models / "tiny-fp8", base)
        self.reported: list[str] = []
        self.waited = 0.0

    def bring(self, s3: Any, current: protocol.Current, **options: Any) -> Path:
        return fetch.bring(
            s3,
            BUCKET,
            current,
            weights_prefix=PREFIX,
            models=self.models,
            base=self.base,
            **{
                "workers": 1,
                "clock": lambda: self.waited,
                "wait": self._wait,
                "report": self.reported.append,
                "free_bytes": lambda _: 2**40,
                **options,
            },
        )

    def versions(self) -> list[str]:
        return [f"{path.parent.name}/{path.name}" for path in cache.versions(self.models)]

    def _wait(self, seconds: float) -> None:
        self.waited += seconds


def current(s3: Any) -> protocol.Current:
    found = pointer.read_current(s3, BUCKET, PREFIX)
    assert found is not None
    return found.current
