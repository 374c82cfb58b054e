"""Command lines of etcd, the API server, the scheduler, the controller manager and kwok, and their kubeconfigs."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from infra.local.kubernetes.certificates import Authority, Pair, signing_key, write_private
from infra.local.kubernetes.programs import Programs
from infra.local.processes import LOOPBACK, free_port

SERVICE_CIDR = "10.100.0.0/16"
ISSUER = "https://kubernetes.default.svc"
KWOK_STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-delete.yaml",
)
"""A Job's pod runs on, as long training does: kwok's stage that completes it at once is left out."""
POD_ENDS_MILLISECONDS = 1000
"""From a pod's deletion to its end, where kwok would take none: controllers must see it on its way out, as in any grace
period. LeaderWorkerSet renews a group for no other pod."""
Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keys:
    """Certificates of one control plane, as files below `folder`."""

    folder: Path
    authority: Authority
    ca: Path
    server: tuple[Path, Path]
    tokens: tuple[Path, Path]
    """(public, private) of service-account tokens."""
    data: tuple[Path, Path]
    """Client certificate and key for etcd, which takes no other caller."""


def keys(folder: Path, authority: Authority) -> Keys:
    """Writes them. `folder` is for the owner alone."""
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    return Keys(
        folder=folder,
        authority=authority,
        ca=authority.pair.write(folder, "ca")[0],
        server=authority.server(LOOPBACK, "localhost", "kubernetes.default.svc").write(folder, "server"),
        tokens=signing_key(folder),
        data=authority.client("kube-apiserver-etcd").write(folder, "etcd-client"),
    )


def etcd(programs: Programs, data: Path, held: Keys) -> tuple[Command, str]:
    """(command, client URL). Nothing is synced to disk: the state is thrown away."""
    client, peer = (f"https://{LOOPBACK}:{free_port()}" for _ in range(2))
    certificate, key = held.server
    return (
        str(programs.path("etcd")),
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        *(f"--{kind}cert-file={certificate}" for kind in ("", "peer-")),
        *(f"--{kind}key-file={key}" for kind in ("", "peer-")),
        *(f"--{kind}trusted-ca-file={held.ca}" for kind in ("", "peer-")),
        *(f"--{kind}client-cert-auth" for kind in ("", "peer-")),
        "--unsafe-no-fsync",
        "--log-level=warn",
    ), client


def api_server(programs: Programs, port: int, etcd_url: str, held: Keys) -> Command:
    """With the admission plug-ins and feature gates of its release's defaults, RBAC, and no anonymous caller."""
    certificate, key = held.server
    public, private = held.tokens
    data_certificate, data_key = held.data
    return (
        str(programs.path("kube-apiserver")),
        f"--etcd-servers={etcd_url}",
        f"--etcd-cafile={held.ca}",
        f"--etcd-certfile={data_certificate}",
        f"--etcd-keyfile={data_key}",
        f"--bind-address={LOOPBACK}",
        f"--advertise-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        f"--client-ca-file={held.ca}",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={public}",
        f"--service-account-signing-key-file={private}",
        f"--service-cluster-ip-range={SERVICE_CIDR}",
        "--authorization-mode=RBAC",
        "--anonymous-auth=false",
        "--allow-privileged=true",
        "--endpoint-reconciler-type=none",
        "--profiling=false",
    )


def scheduler(programs: Programs, config: Path, port: int, held: Keys) -> Command:
    return (str(programs.path("kube-scheduler")), *_component(config, port, held))


def controller_manager(programs: Programs, config: Path, port: int, held: Keys) -> Command:
    """Every controller that is on by default, each with its own service account's rights."""
    return (
        str(programs.path("kube-controller-manager")),
        *_component(config, port, held),
        f"--root-ca-file={held.ca}",
        f"--service-account-private-key-file={held.tokens[1]}",
        "--use-service-account-credentials",
        # A claim that is seen before its volume waits for the next round; the default is 15 s.
        "--pvclaimbinder-sync-period=1s",
    )


def _component(config: Path, port: int, held: Keys) -> Command:
    certificate, key = held.server
    return (
        f"--kubeconfig={config}",
        f"--bind-address={LOOPBACK}",
        f"--secure-port={port}",
        f"--tls-cert-file={certificate}",
        f"--tls-private-key-file={key}",
        "--authentication-skip-lookup",
        "--leader-elect=false",
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--profiling=false",
    )


def kwok(programs: Programs, config: Path, folder: Path, selector: tuple[str, str]) -> Command:
    """Plays the kubelet of every node with the annotation `selector`; listens on no port."""
    stages = folder / "stages.yaml"
    documents = [
        yaml.safe_load((programs.asset("kwok-stages") / name).read_text(encoding="utf-8")) for name in KWOK_STAGES
    ]
    for document in documents:
        if document["metadata"]["name"] == "pod-delete":
            document["spec"]["delay"] = {"durationMilliseconds": POD_ENDS_MILLISECONDS}
    stages.write_text(yaml.safe_dump_all(documents), encoding="utf-8")
    key, value = selector
    return (
        str(programs.path("kwok")),
        f"--kubeconfig={config}",
        f"--config={stages}",
        f"--manage-nodes-with-annotation-selector={key}={value}",
        "--node-lease-duration-seconds=40",
        "--node-port=0",
        f"--node-ip={LOOPBACK}",
    )


def kubeconfig(path: Path, url: str, held: Keys, user: str, groups: Sequence[str]) -> Path:
    """Writes a kubeconfig that carries its certificates, for its owner alone."""
    pair: Pair = held.authority.client(user, groups)
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "moerl-local",
                "cluster": {"server": url, "certificate-authority-data": _base64(held.authority.pair.certificate)},
            }
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(pair.certificate),
                    "client-key-data": _base64(pair.key),
                },
            }
        ],
        "contexts": [{"name": "moerl-local", "context": {"cluster": "moerl-local", "user": user}}],
        "current-context": "moerl-local",
    }
    write_private(path, yaml.safe_dump(document, sort_keys=False).encode())
    return path


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
