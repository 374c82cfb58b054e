"""Which programs the control plane needs, at which versions, and where they are on this machine."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCES = ROOT / "tests" / "cluster" / "programs"
"""One folder for each go.mod."""
CACHE = ROOT / ".cache" / "control-plane"
GIVEN_VARIABLE = "KUBEBUILDER_ASSETS"
BUILT = "complete"
"""Written last into a cache folder: a build that was cut off does not count. It may lack programs that were given."""
VERSION_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One executable. `folder` holds its go.mod below SOURCES; `module` is the required module whose version counts."""

    name: str
    folder: str
    module: str
    package: str
    stamp: str = ""
    """Package whose variables gitVersion, gitMajor and gitMinor the linker sets."""


_KUBERNETES = "k8s.io/kubernetes"
_STAMP = "k8s.io/component-base/version"
PROGRAMS: tuple[Program, ...] = (
    Program(name="etcd", folder="etcd", module="go.etcd.io/etcd/server/v3", package="go.etcd.io/etcd/server/v3"),
    *(
        Program(name=name, folder="kube", module=_KUBERNETES, package=f"{_KUBERNETES}/cmd/{name}", stamp=_STAMP)
        for name in ("kube-apiserver", "kube-scheduler", "kube-controller-manager")
    ),
    Program(name="lws", folder="lws", module="sigs.k8s.io/lws", package="sigs.k8s.io/lws/cmd"),
    Program(
        name="kuberay",
        folder="kuberay",
        module="github.com/ray-project/kuberay/ray-operator",
        package="github.com/ray-project/kuberay/ray-operator",
    ),
    Program(name="kueue", folder="kueue", module="sigs.k8s.io/kueue", package="sigs.k8s.io/kueue/cmd/kueue"),
    Program(name="kwok", folder="kwok", module="sigs.k8s.io/kwok", package="sigs.k8s.io/kwok/cmd/kwok"),
    Program(name="helm", folder="helm", module="helm.sh/helm/v3", package="helm.sh/helm/v3/cmd/helm"),
)

TELL_VERSION = frozenset({"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"})
"""Programs that say which release they are. Of a given folder only these count: the others could be anything."""

ASSETS: Mapping[str, tuple[str, str]] = {
    "kueue-chart": ("kueue", "charts/kueue"),
    "lws-chart": ("lws", "charts/lws"),
    "kueue-crds": ("kueue", "config/components/crd/bases"),
    "lws-crds": ("lws", "config/crd/bases"),
    "kuberay-crds": ("kuberay", "config/crd/bases"),
    "kuberay-rbac": ("kuberay", "config/rbac"),
    "kwok-stages": ("kwok", "kustomize/stage"),
}
"""Name in the cache folder → (program, folder in its module)."""


class ProgramsMissing(RuntimeError):
    """The control plane cannot start here; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the folder that KUBEBUILDER_ASSETS names holds: programs of our versions, and why others do not count."""

    paths: Mapping[str, Path]
    refused: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Built programs and the files that came with their modules."""

    paths: Mapping[str, Path]
    assets: Path

    def path(self, name: str) -> Path:
        return self.paths[name]

    def asset(self, name: str) -> Path:
        """A folder of ASSETS."""
        return self.assets / name


def versions() -> dict[str, str]:
    """Program → version of its module, without the leading `v`, as its go.mod requires it."""
    return {program.name: module_version(program) for program in PROGRAMS}


def module_version(program: Program) -> str:
    """Raises LookupError when the go.mod does not require the module."""
    text = (SOURCES / program.folder / "go.mod").read_text(encoding="utf-8")
    found = re.search(rf"^(?:require)?\s*{re.escape(program.module)} v(\S+)", text, re.MULTILINE)
    if not found:
        raise LookupError(f"{program.folder}/go.mod does not require {program.module}")
    return found[1]


def go_version() -> str | None:
    """The Go release on this machine, such as `go1.26.8`; None without Go."""
    go = shutil.which("go")
    if go is None:
        return None
    done = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False)  # noqa: S603
    return done.stdout.strip() or None


def sources_digest() -> str:
    """Of every go.mod and go.sum, and of the list of programs and assets."""
    digest = hashlib.sha256(repr((PROGRAMS, sorted(ASSETS.items()))).encode())
    for path in sorted(SOURCES.glob("*/go.*")):
        digest.update(f"{path.parent.name}/{path.name}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def cache_folder(go: str) -> Path:
    return CACHE / f"{sources_digest()}-{go}"


def given(variables: Mapping[str, str]) -> Given:
    """Asks each program in that folder for its version. variables: the process environment."""
    folder = variables.get(GIVEN_VARIABLE)
    paths, refused = {}, []
    for program in PROGRAMS if folder else ():
        path = Path(folder or "") / program.name
        if program.name not in TELL_VERSION or not path.is_file():
            continue
        found, wanted = _reported_version(path), module_version(program)
        if found == wanted:
            paths[program.name] = path
        else:
            refused.append(f"{path} is {found or 'of no version that it tells'}, and {wanted} is needed")
    return Given(paths, tuple(refused))


def _reported_version(path: Path) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - a program that the caller names
            [path, "--version"], capture_output=True, text=True, check=False, timeout=VERSION_SECONDS, env={"HOME": "/"}
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"\bv?(\d+\.\d+\.\d+\S*)", done.stdout)
    return found[1] if found else None


def locate(variables: Mapping[str, str]) -> Programs:
    """The programs, those in the folder that KUBEBUILDER_ASSETS names first, else as built here.

    variables: the process environment. Raises ProgramsMissing. Without Go on the machine, a build by any Go release counts.
    """
    go, ready = go_version(), given(variables)
    folders = [cache_folder(go)] if go else sorted(CACHE.glob(f"{sources_digest()}-*"))
    built = next((folder for folder in folders if (folder / BUILT).is_file()), None)
    if built is not None:
        paths = {program.name: ready.paths.get(program.name, built / program.name) for program in PROGRAMS}
        if all(path.is_file() for path in paths.values()):
            return Programs(paths=paths, assets=built)
    what_to_do = (
        "run `make control-plane` (about 20 minutes, once)"
        if go
        else "and there is no Go on this machine to build it with"
    )
    raise ProgramsMissing("; ".join([*ready.refused, f"the control plane is not built: {what_to_do}"]))
