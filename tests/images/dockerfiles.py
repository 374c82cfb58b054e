"""Dockerfiles as stages of instructions, and the traps of these images as rules over them."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from dockerfile_parse import DockerfileParser

ROOT = Path(__file__).resolve().parents[2]
CONTEXT = ROOT / "images"
SCRIPTS = CONTEXT / "build"
VARIABLE = re.compile(r"\$\{?([A-Z][A-Z0-9_]*)(?![A-Za-z0-9_])")
MOUNT = re.compile(r"--mount=(\S+)")
SCRIPT = re.compile(r"/mnt/build/([a-z-]+\.sh)")
PIP_CHANGES = re.compile(r"\bpip (install|uninstall|wheel)\b")
PACKAGE = "install-runtime.sh package "
"""Installs the runtime without its dependencies, below a folder of its own: no other package can move."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Instruction:
    word: str
    value: str

    @property
    def mounts(self) -> list[dict[str, str]]:
        return [dict(part.partition("=")[::2] for part in mount.split(",")) for mount in MOUNT.findall(self.value)]

    @property
    def command(self) -> str:
        """A RUN without its mounts."""
        return MOUNT.sub("", self.value).strip()

    @property
    def scripts(self) -> list[str]:
        return SCRIPT.findall(self.command)

    @property
    def names(self) -> list[str]:
        """Variables of an ARG or ENV."""
        return re.findall(r"(?:^|\s)([A-Z][A-Z0-9_]*)(?==|\s|$)", self.value)


@dataclass(slots=True, kw_only=True)
class Stage:
    name: str
    base: str
    parent: Stage | None
    instructions: list[Instruction] = field(default_factory=list)

    def lineage(self) -> list[Instruction]:
        """Its instructions after those of the stage that it is built on."""
        return [*(self.parent.lineage() if self.parent else []), *self.instructions]

    def runs(self) -> list[Instruction]:
        return [item for item in self.lineage() if item.word == "RUN"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dockerfile:
    """`defaults` are the arguments before the first stage: name to default, None without one."""

    defaults: Mapping[str, str | None]
    stages: list[Stage]

    @property
    def final(self) -> Stage:
        return self.stages[-1]


def parse(text: str) -> Dockerfile:
    defaults: dict[str, str | None] = {}
    stages: list[Stage] = []
    for item in DockerfileParser(fileobj=io.BytesIO(text.encode())).structure:
        word, value = item["instruction"], item["value"]
        if word == "COMMENT":
            continue
        if word == "FROM":
            base, _, name = value.partition(" AS ")
            parent = next((stage for stage in stages if stage.name == base), None)
            stages.append(Stage(name=name, base=base, parent=parent))
        elif stages:
            stages[-1].instructions.append(Instruction(word=word, value=value))
        else:
            name, given, default = value.partition("=")
            defaults[name] = default.strip('"') if given else None
    return Dockerfile(defaults=defaults, stages=stages)


def shell(name: str) -> str:
    """Text of a build script."""
    return (SCRIPTS / name).read_text(encoding="utf-8")


def code(name: str) -> str:
    """A build script without its comments."""
    return re.sub(r"(?m)^\s*#.*$", "", shell(name))


def read_by(name: str) -> set[str]:
    """Variables that a script reads and does not set, or has a default for."""
    text = code(name)
    own = set(re.findall(r"(?m)(?:^|[\s;(])(?:export )?([A-Z][A-Z0-9_]*)=", text))
    defaulted = set(re.findall(r"\$\{([A-Z][A-Z0-9_]*):?-", text))
    return set(VARIABLE.findall(text)) - own - defaulted


def ignored(path: str) -> bool:
    """Whether images/.dockerignore keeps a path out of the context; the last pattern that fits decides."""
    out = False
    for line in (CONTEXT / ".dockerignore").read_text(encoding="utf-8").splitlines():
        pattern = line.removeprefix("!")
        body = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        # A pattern fits a file below the folder that it names, too.
        if pattern and re.fullmatch(f"{body}(?:/.*)?", path):
            out = not line.startswith("!")
    return out


def faults(dockerfile: Dockerfile, stack: str) -> Iterator[str]:
    """Every trap that the file walks into."""
    yield from _bases(dockerfile)
    yield from _names(dockerfile)
    yield from _files(dockerfile)
    yield from _order(dockerfile)
    yield from _labels(dockerfile)
    last = dockerfile.final.instructions[-1]
    if last.word != "RUN" or last.command != f"python -m moerl_runtime image check --stack {stack}":
        yield "the last instruction is not the check of this stack"
    folder = next((item.value for item in reversed(dockerfile.final.lineage()) if item.word == "WORKDIR"), "/")
    if folder not in ("/", "/opt/moerl"):
        yield f"WORKDIR {folder} may shadow an installed package"
    for item in (item for stage in dockerfile.stages for item in stage.instructions if item.word == "RUN"):
        if re.search(r"(curl|wget)[^|]*\|\s*(ba|da)?sh", item.command) or "type=secret" in item.value:
            yield f"runs what it downloads, or takes a secret: {item.command}"


def _bases(dockerfile: Dockerfile) -> Iterator[str]:
    known: set[str] = set()
    for position, stage in enumerate(dockerfile.stages):
        wanted = "${BASE_IMAGE}@${BASE_DIGEST" + ("}" if position else ":?unresolved-see-moerl-image-args}")
        if stage.base not in known and stage.base != wanted:
            yield f"stage {stage.name} is not built on the base image by its digest"
        known.add(stage.name)


def _names(dockerfile: Dockerfile) -> Iterator[str]:
    for stage in dockerfile.stages:
        declared = {name for item in (stage.parent.lineage() if stage.parent else []) for name in _declares(item)}
        for item in stage.instructions:
            used = set(VARIABLE.findall(item.value)) - {"PATH"}
            used |= {name for script in item.scripts for name in read_by(script)}
            yield from (f"{name} is not declared in stage {stage.name}" for name in sorted(used - declared))
            declared |= set(_declares(item))


def _declares(item: Instruction) -> list[str]:
    return item.names if item.word in ("ARG", "ENV") else []


def _files(dockerfile: Dockerfile) -> Iterator[str]:
    stages: list[str] = []
    for stage in dockerfile.stages:
        for item in stage.instructions:
            copies = item.value.split()[:-1] if item.word == "COPY" else []
            sources = [(word, "") for word in copies if not word.startswith("--")]
            mounts = item.mounts if item.word == "RUN" else []
            sources += [(mount["source"], mount.get("from", "")) for mount in mounts]
            for source, origin in sources:
                if origin and origin not in stages:
                    yield f"{origin} is no earlier stage"
                elif not origin and (not (CONTEXT / source).exists() or _all_ignored(source)):
                    yield f"{source} is not in the build context"
            mounted = {Path(mount["target"]).name for mount in mounts}
            for script in item.scripts:
                if script not in mounted:
                    yield f"{script} is called and not mounted"
        stages.append(stage.name)


def _all_ignored(source: str) -> bool:
    path = CONTEXT / source
    files = [path] if path.is_file() else list(path.rglob("*.py"))
    return all(ignored(str(found.relative_to(CONTEXT))) for found in files)


def _order(dockerfile: Dockerfile) -> Iterator[str]:
    runs = dockerfile.final.runs()

    def last(fits: str) -> int:
        return max((place for place, run in enumerate(runs) if re.search(fits, run.command)), default=-1)

    pip = max(place for place, run in enumerate(runs) if _changes_packages(run))
    if not runs[pip].command.endswith("/install-nccl.sh"):
        yield "NCCL is not pinned again after the last pip step"
    if "NVSHMEM" in dockerfile.defaults and "install-libraries.sh" not in runs[pip].scripts:
        yield "cuDNN and NVSHMEM are not pinned again after the last pip step"
    if last("install-efa.sh") < last("remove-conflicts.sh"):
        yield "EFA is installed before what conflicts with it is removed"
    if -1 < last(r"wheels/deep_ep") < last("install-sglang.sh"):
        yield "DeepEP is installed before SGLang's own build of it is removed"
    taken = [place for place, run in enumerate(runs) if PACKAGE in run.command]
    copied = any(item.word in ("COPY", "ADD") for item in dockerfile.final.lineage())
    if len(taken) != 1 or copied or any(run.scripts for run in runs[taken[0] + 1 :]):
        yield "the runtime is not installed once, after all steps that do not need it"


def _changes_packages(run: Instruction) -> bool:
    texts = (run.command, *map(code, run.scripts))
    return PACKAGE not in run.command and any(PIP_CHANGES.search(text) for text in texts)


def _labels(dockerfile: Dockerfile) -> Iterator[str]:
    labels = " ".join(item.value for item in dockerfile.final.instructions if item.word == "LABEL")
    for name in dockerfile.defaults:
        label = {
            "BASE_IMAGE": "org.opencontainers.image.base.name",
            "BASE_DIGEST": "org.opencontainers.image.base.digest",
        }.get(name, f"io.moerl.{name.lower().replace('_', '-')}")
        if name != "CAPABILITIES" and f'{label}="${{{name}}}"' not in labels:
            yield f"no label holds {name}"
