"""Start, find and stop a control plane: etcd, API server, scheduler, controller manager, three controllers and kwok."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import urllib3

from infra.config.names import NAMESPACE
from infra.local.kubernetes import controllers, core
from infra.local.kubernetes.api import Api, ApiFault, Object, serves, until
from infra.local.kubernetes.certificates import authority
from infra.local.kubernetes.nodes import MANAGED
from infra.local.kubernetes.processes import Group, ProcessFault
from infra.local.kubernetes.programs import Programs
from infra.local.processes import LOOPBACK, free_port, start_ticks, write_whole

STATE_FILE = "kubernetes.json"
ADMIN, ADMIN_GROUPS = "moerl-admin", ("system:masters",)
READY_SECONDS, ENDED_SECONDS = 180.0, 10.0
"""Only for a program that hangs: one that ends is noticed at once."""
WRITERS = 6
"""Requests in flight while objects go in."""
PROBES: Mapping[str, Object] = {
    controllers.KUEUE: {
        "apiVersion": "kueue.x-k8s.io/v1beta2",
        "kind": "ResourceFlavor",
        "metadata": {"name": "probe"},
    },
    controllers.LWS: {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "probe", "namespace": NAMESPACE},
        "spec": {"leaderWorkerTemplate": {"workerTemplate": {"spec": {"containers": [{"name": "c", "image": "c"}]}}}},
    },
}
"""Objects whose dry run passes through a controller's webhooks: they answer a moment after the program says it is ready."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running control plane.

    pids: program to process. started: program to the kernel's start time of its process, which tells it from a later one of
    the same number. deployments: what the controllers' charts would run inside the cluster. starter: process that brings it
    up, with its start time; None once that has ended.
    """

    folder: Path
    url: str
    pids: Mapping[str, int]
    started: Mapping[str, int]
    deployments: tuple[Object, ...]
    starter: tuple[int, int] | None = None

    @property
    def kubeconfig(self) -> Path:
        return self.folder / "kubeconfig"

    @property
    def logs(self) -> Path:
        return self.folder / "logs"

    def api(self) -> Api:
        """As cluster admin."""
        pki = self.folder / "pki"
        return Api(self.url, pki / "ca.crt", pki / "admin.crt", pki / "admin.key")


@dataclass(frozen=True, slots=True)
class ControllerValues:
    """Helm values of the controllers. KubeRay's chart is not at hand: of its values the variables of the operator count."""

    kueue: controllers.Values
    lws: controllers.Values
    kuberay: controllers.Values


def start(
    folder: Path,
    programs: Programs,
    values: ControllerValues,
    *,
    progress: Progress = lambda _: None,
) -> tuple[Cluster, Group]:
    """Everything up and ready, without nodes. It ends when this process does, unless the group is released.

    folder: takes data, keys, logs and the kubeconfig; what an earlier start left there is ended and removed.
    Raises ProcessFault, with the end of a log, when a program does not come up, or when the folder is somebody else's;
    ValueError when a chart refuses its values.
    """
    port = free_port()
    url = f"https://{LOOPBACK}:{port}"
    cluster = _claim(folder, url)
    group = Group(cluster.logs)

    def begin(name: str, command: core.Command, variables: Mapping[str, str] | None = None) -> None:
        group.start(name, command, variables)
        _write(_with_programs(cluster, group))

    try:
        held = core.keys(folder / "pki", authority(controllers.KUEUE_AUTHORITY))
        progress("etcd, kube-apiserver")
        command, etcd_url = core.etcd(programs, folder / "etcd", held)
        begin("etcd", command)
        begin("kube-apiserver", core.api_server(programs, port, etcd_url, held))
        core.kubeconfig(folder / "kubeconfig", url, held, ADMIN, ADMIN_GROUPS)
        api = Api(url, held.ca, *held.authority.client(ADMIN, ADMIN_GROUPS).write(held.folder, "admin"))
        # While the server starts: Helm needs a second.
        installed = (
            controllers.kueue(programs, folder / "kueue", held.authority, values.kueue),
            controllers.lws(programs, folder / "lws", held.authority, values.lws),
            controllers.kuberay(programs, values.kuberay),
        )
        group.wait("kube-apiserver", api.ready, READY_SECONDS)
        progress("kube-scheduler, kube-controller-manager, kwok")
        health = _start_components(folder, programs, url, held, begin)
        progress("kueue, lws, kuberay")
        add(api, (_namespace(name) for name in {NAMESPACE, *(controller.namespace for controller in installed)}))
        for controller in installed:  # Kueue first: it takes longest
            _install(api, controller)
            config = folder / f"{controller.name}.kubeconfig"
            core.kubeconfig(config, url, held, controller.user, controller.groups)
            begin(controller.name, controller.command, {**controller.variables, "KUBECONFIG": str(config)})
            health[controller.name] = f"http://{LOOPBACK}:{controller.health_port}/readyz"
        for name, target in health.items():
            group.wait(name, _answers(target, held.ca), READY_SECONDS)
        for name, probe in PROBES.items():
            group.wait(name, _admits(api, probe), READY_SECONDS)
    except BaseException:
        group.end()
        _write(replace(cluster, starter=None))
        raise
    deployments = tuple(item for controller in installed for item in controller.deployments)
    cluster = replace(_with_programs(cluster, group), deployments=deployments, starter=None)
    _write(cluster)
    return cluster, group


def status(folder: Path) -> Cluster | None:
    """The control plane that the state file describes, or None unless it is up and every program of it runs."""
    cluster = _read(folder)
    if cluster is None or cluster.starter is not None or len(_alive(cluster)) < len(cluster.pids):
        return None
    return cluster if cluster.pids else None


def stop(folder: Path) -> bool:
    """Ends what is left of what `start` began in this folder, waits for it, and removes the folder. False when nothing ran."""
    cluster = _read(folder)
    if cluster is None:
        return False
    ended = _alive(cluster)
    for pid in ended:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    until("programs ended", lambda: not _alive(cluster), ENDED_SECONDS, pause_seconds=0.05)
    shutil.rmtree(folder)
    return bool(ended)


def _claim(folder: Path, url: str) -> Cluster:
    """The folder, empty but for a state file without programs: whatever ends this start, the next one knows it for ours."""
    before = _read(folder)
    if before is not None and before.starter is not None:
        pid, ticks = before.starter
        if pid != os.getpid() and start_ticks(pid) == ticks:
            raise ProcessFault(f"process {pid} is starting a control plane in {folder}")
    stop(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise ProcessFault(f"{folder} holds files that no control plane left there: name another folder, or empty it")
    pid = os.getpid()
    cluster = Cluster(folder, url, pids={}, started={}, deployments=(), starter=(pid, start_ticks(pid) or 0))
    _write(cluster)
    return cluster


def _with_programs(cluster: Cluster, group: Group) -> Cluster:
    pids = group.pids()
    return replace(cluster, pids=pids, started={name: start_ticks(pid) or 0 for name, pid in pids.items()})


def _write(cluster: Cluster) -> None:
    write_whole(cluster.folder / STATE_FILE, json.dumps(asdict(cluster), default=str, indent=1))


def _read(folder: Path) -> Cluster | None:
    """What the state file says, whether or not it still holds; None without one. Raises ProcessFault for one that is damaged,
    or was written by another release."""
    path = folder / STATE_FILE
    try:
        fields = json.loads(path.read_text(encoding="utf-8"))
        starter = tuple(fields["starter"]) if fields["starter"] else None
        return Cluster(**{**fields, "folder": folder, "deployments": tuple(fields["deployments"]), "starter": starter})
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError) as error:
        raise ProcessFault(
            f"{path} is damaged: {error!r}. End what `pgrep -f {folder}` shows of it, and remove the folder."
        ) from error


def _alive(cluster: Cluster) -> list[int]:
    """Processes of the cluster that still run; a later one of the same number does not count."""
    return [pid for name, pid in cluster.pids.items() if start_ticks(pid) == cluster.started[name]]


def add(api: Api, items: Iterable[Object]) -> None:
    """Creates many objects at a time; their order does not matter. Raises the first ApiFault."""
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(api.create, items))


def _start_components(
    folder: Path, programs: Programs, url: str, held: core.Keys, begin: Callable[[str, core.Command], None]
) -> dict[str, str]:
    """Scheduler, controller manager and kwok; program to the URL that tells whether it is ready."""
    health = {}
    for name, command in (("kube-scheduler", core.scheduler), ("kube-controller-manager", core.controller_manager)):
        config = core.kubeconfig(folder / f"{name}.kubeconfig", url, held, f"system:{name}", ())
        port = free_port()
        begin(name, command(programs, config, port, held))
        health[name] = f"https://{LOOPBACK}:{port}/healthz"
    config = core.kubeconfig(folder / "kwok.kubeconfig", url, held, "kwok", ADMIN_GROUPS)
    begin("kwok", core.kwok(programs, config, folder, MANAGED))
    return health


def _install(api: Api, controller: controllers.Controller) -> None:
    add(api, controller.definitions)
    until(f"{controller.name} served", lambda: serves(api, controller.definitions), READY_SECONDS)
    add(api, controller.objects)


def _namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def _answers(url: str, ca: Path) -> Callable[[], bool]:
    pool = urllib3.PoolManager(ca_certs=str(ca), retries=False, timeout=5)

    def ask() -> bool:
        try:
            return pool.request("GET", url).status == 200
        except urllib3.exceptions.HTTPError:
            return False

    return ask


def _admits(api: Api, probe: Object) -> Callable[[], bool]:
    def ask() -> bool:
        try:
            api.create(probe, dry_run=True)
        except ApiFault as fault:
            if fault.status == 500:  # "failed calling webhook"
                return False
            raise
        return True

    return ask
