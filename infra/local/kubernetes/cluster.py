"""Start, find and stop a control plane: etcd, API server, scheduler, controller manager, three controllers and kwok."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import urllib3

from infra.config.names import NAMESPACE
from infra.local.kubernetes import controllers, core
from infra.local.kubernetes.api import Api, ApiFault, Object, serves, until
from infra.local.kubernetes.certificates import authority
from infra.local.kubernetes.nodes import MANAGED
from infra.local.kubernetes.processes import Group
from infra.local.kubernetes.programs import Programs
from infra.local.processes import LOOPBACK, end_group, free_port, start_ticks

STATE_FILE = "kubernetes.json"
ADMIN, ADMIN_GROUPS = "moerl-admin", ("system:masters",)
READY_SECONDS, ENDED_SECONDS = 60.0, 10.0
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

    leader: its process group. process_start: the kernel's start time of the leader, which tells it from a later process.
    pids: program to process. deployments: what the controllers' charts would run inside the cluster.
    """

    folder: Path
    url: str
    leader: int
    process_start: int
    pids: Mapping[str, int]
    deployments: tuple[Object, ...]

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
    bound: bool = True,
    progress: Progress = lambda _: None,
) -> tuple[Cluster, Group]:
    """Everything up and ready, without nodes.

    folder: absent or empty; takes data, keys, logs and the kubeconfig. bound: everything ends when this process does.
    Raises ProcessFault, with the end of a log, when a program does not come up, ValueError when a chart refuses its values.
    """
    held = core.keys(folder / "pki", authority(controllers.KUEUE_AUTHORITY))
    group = Group(folder / "logs", bound=bound)
    try:
        progress("etcd, kube-apiserver")
        command, etcd_url = core.etcd(programs, folder / "etcd", held)
        group.start("etcd", command)
        port = free_port()
        url = f"https://{LOOPBACK}:{port}"
        group.start("kube-apiserver", core.api_server(programs, port, etcd_url, held))
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
        health = _start_components(folder, programs, url, held, group)
        progress("kueue, lws, kuberay")
        add(api, (_namespace(name) for name in {NAMESPACE, *(controller.namespace for controller in installed)}))
        for controller in installed:  # Kueue first: it takes longest
            _install(api, controller)
            config = folder / f"{controller.name}.kubeconfig"
            core.kubeconfig(config, url, held, controller.user, controller.groups)
            group.start(controller.name, controller.command, {**controller.variables, "KUBECONFIG": str(config)})
            health[controller.name] = f"http://{LOOPBACK}:{controller.health_port}/readyz"
        for name, target in health.items():
            group.wait(name, _answers(target, held.ca), READY_SECONDS)
        for name, probe in PROBES.items():
            group.wait(name, _admits(api, probe), READY_SECONDS)
    except BaseException:
        group.end()
        raise
    cluster = Cluster(
        folder=folder,
        url=url,
        leader=group.leader,
        process_start=start_ticks(group.leader) or 0,
        pids=group.pids(),
        deployments=tuple(item for controller in installed for item in controller.deployments),
    )
    (folder / STATE_FILE).write_text(json.dumps(asdict(cluster), default=str, indent=1), encoding="utf-8")
    return cluster, group


def status(folder: Path) -> Cluster | None:
    """The control plane that the state file describes, or None when it is gone."""
    try:
        fields = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    cluster = Cluster(**{**fields, "folder": folder, "deployments": tuple(fields["deployments"])})
    return cluster if start_ticks(cluster.leader) == cluster.process_start else None


def stop(folder: Path) -> bool:
    """Ends what `start` began in this folder, waits for it, and removes the folder. False when nothing ran."""
    cluster = status(folder)
    if cluster is not None:
        end_group(cluster.leader)
        pids = cluster.pids.values()
        until("programs ended", lambda: not any(start_ticks(pid) for pid in pids), ENDED_SECONDS, pause_seconds=0.05)
    if (folder / STATE_FILE).is_file():
        shutil.rmtree(folder)
    return cluster is not None


def add(api: Api, items: Iterable[Object]) -> None:
    """Creates many objects at a time; their order does not matter. Raises the first ApiFault."""
    with ThreadPoolExecutor(WRITERS) as writers:
        list(writers.map(api.create, items))


def _start_components(folder: Path, programs: Programs, url: str, held: core.Keys, group: Group) -> dict[str, str]:
    """Scheduler, controller manager and kwok; program to the URL that tells whether it is ready."""
    health = {}
    for name, command in (("kube-scheduler", core.scheduler), ("kube-controller-manager", core.controller_manager)):
        config = core.kubeconfig(folder / f"{name}.kubeconfig", url, held, f"system:{name}", ())
        port = free_port()
        group.start(name, command(programs, config, port, held))
        health[name] = f"https://{LOOPBACK}:{port}/healthz"
    config = core.kubeconfig(folder / "kwok.kubeconfig", url, held, "kwok", ADMIN_GROUPS)
    group.start("kwok", core.kwok(programs, config, folder, MANAGED))
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
