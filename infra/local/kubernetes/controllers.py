"""Kueue, LeaderWorkerSet and KubeRay as their own packages install them, led to processes on this machine.

Helm renders the charts that the Kueue and LWS modules carry, with the values that a cluster would get. Changed is only what
follows from running outside: webhook calls go to a port on loopback, and the certificates are ours.
"""

from __future__ import annotations

import base64
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from infra.config.names import NAMESPACE
from infra.local.kubernetes.api import Object
from infra.local.kubernetes.certificates import Authority, Pair
from infra.local.kubernetes.programs import Programs, versions
from infra.local.processes import LOOPBACK, free_port

Values = Mapping[str, Any]
KUEUE, LWS, KUBERAY = "kueue", "lws", "kuberay"
KUEUE_NAMESPACE, LWS_NAMESPACE, KUBERAY_NAMESPACE = "kueue-system", "lws-system", "kuberay-system"
KUEUE_AUTHORITY = "kueue-ca"
"""Name that Kueue's rotator looks for in the authority's certificate."""
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """What the API server must hold before the program starts, and how it starts.

    `deployments` are the chart's own, for whoever wants to see them placed: the program runs beside the cluster.
    """

    name: str
    namespace: str
    user: str
    groups: tuple[str, ...]
    definitions: tuple[Object, ...]
    objects: tuple[Object, ...]
    deployments: tuple[Object, ...]
    command: tuple[str, ...]
    variables: Mapping[str, str]
    health_port: int


def kueue(programs: Programs, folder: Path, authority: Authority, values: Values) -> Controller:
    """`folder` takes certificates and configuration; `values` are the chart's."""
    rendered = _rendered(programs, KUEUE, KUEUE_NAMESPACE, values)
    port, health = free_port(), free_port()
    certificates = _webhook_certificates(folder, authority.server(f"kueue-webhook-service.{KUEUE_NAMESPACE}.svc"))
    configuration = _configuration(rendered, "kueue-manager-config")
    _lead_to_loopback(configuration, port, health, certificates)
    _, *arguments = _manager_arguments(rendered)
    gates = next((item for item in arguments if item.startswith("--feature-gates=")), None)
    if gates:  # the visibility server listens on every interface, and nothing here asks it
        arguments[arguments.index(gates)] = f"{gates},VisibilityOnDemand=false"
    else:
        configuration["featureGates"] = {**configuration.get("featureGates", {}), "VisibilityOnDemand": False}
    held = _held(rendered, authority, port)
    for item in held:
        if item["kind"] == "Secret":
            item["data"] = _secret_data(authority, certificates)
    config = folder / "kueue.yaml"
    config.write_text(yaml.dump(configuration, Dumper=_DUMPER), encoding="utf-8")
    return _controller(
        KUEUE,
        (KUEUE_NAMESPACE, "kueue-controller-manager"),
        held,
        rendered,
        (str(programs.path(KUEUE)), f"--config={config}", *arguments),
        health,
    )


def lws(programs: Programs, folder: Path, authority: Authority, values: Values) -> Controller:
    """As `kueue`."""
    rendered = _rendered(programs, LWS, LWS_NAMESPACE, values)
    port, health = free_port(), free_port()
    certificates = _webhook_certificates(folder, authority.server(f"lws-webhook-service.{LWS_NAMESPACE}.svc"))
    configuration = _configuration(rendered, "lws-manager-config")
    _lead_to_loopback(configuration, port, health, certificates)
    configuration["internalCertManagement"] = {"enable": False}
    config = folder / "lws.yaml"
    config.write_text(yaml.dump(configuration, Dumper=_DUMPER), encoding="utf-8")
    _, *arguments = _manager_arguments(rendered)
    return _controller(
        LWS,
        (LWS_NAMESPACE, "lws-controller-manager"),
        _held(rendered, authority, port),
        rendered,
        (str(programs.path(LWS)), f"--config={config}", *arguments),
        health,
    )


def kuberay(programs: Programs, values: Values) -> Controller:
    """The operator with rights in the run's namespace alone, which it watches. Its chart is not in its module."""
    health = free_port()
    account = {"kind": "ServiceAccount", "name": "kuberay-operator", "namespace": KUBERAY_NAMESPACE}
    role = next(iter(_documents((programs.asset("kuberay-rbac") / "role.yaml").read_text(encoding="utf-8"))))
    objects: list[Object] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {k: account[k] for k in ("name", "namespace")}},
        role,
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "kuberay-operator", "namespace": NAMESPACE},
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io",
                "kind": role["kind"],
                "name": role["metadata"]["name"],
            },
            "subjects": [account],
        },
    ]
    definitions = [
        item
        for path in sorted(programs.asset("kuberay-crds").glob("*.yaml"))
        for item in _documents(path.read_text(encoding="utf-8"))
    ]
    return _controller(
        KUBERAY,
        (KUBERAY_NAMESPACE, "kuberay-operator"),
        [*definitions, *objects],
        (),
        (
            str(programs.path(KUBERAY)),
            "--metrics-addr=0",
            f"--health-probe-bind-address={LOOPBACK}:{health}",
            "--enable-leader-election=false",
            f"--watch-namespace={NAMESPACE}",
        ),
        health,
        {entry["name"]: entry["value"] for entry in values.get("env", ())},
    )


def _controller(
    name: str,
    account: tuple[str, str],
    held: Iterable[Object],
    rendered: Iterable[Object],
    command: tuple[str, ...],
    health_port: int,
    variables: Mapping[str, str] | None = None,
) -> Controller:
    """With the identity of its service account, so that the roles of its own package bind it."""
    kept = list(held)
    namespace, user = account
    return Controller(
        name=name,
        namespace=namespace,
        user=f"system:serviceaccount:{namespace}:{user}",
        groups=("system:serviceaccounts", f"system:serviceaccounts:{namespace}"),
        definitions=tuple(item for item in kept if item["kind"] == "CustomResourceDefinition"),
        objects=tuple(item for item in kept if item["kind"] != "CustomResourceDefinition"),
        deployments=tuple(item for item in rendered if item["kind"] == "Deployment"),
        command=command,
        variables=variables or {},
        health_port=health_port,
    )


def _rendered(programs: Programs, name: str, namespace: str, values: Values) -> list[Object]:
    command = [
        *(str(programs.path("helm")), "template", name, str(programs.asset(f"{name}-chart"))),
        *("--namespace", namespace, "--include-crds", "--kube-version", versions()["kube-apiserver"]),
        *("--values", "-"),
    ]
    done = subprocess.run(  # noqa: S603 - fixed arguments
        command, input=yaml.safe_dump(dict(values)), capture_output=True, text=True, check=False, env={"HOME": "/"}
    )
    if done.returncode:
        raise ValueError(f"the {name} chart refuses these values: {done.stderr.strip()}")
    return list(_documents(done.stdout))


def _documents(text: str) -> Iterator[Object]:
    return (document for document in yaml.load_all(text, Loader=_LOADER) if document)


def _configuration(rendered: Iterable[Object], name: str) -> Object:
    found = next(item for item in rendered if item["kind"] == "ConfigMap" and item["metadata"]["name"] == name)
    configuration: Object = yaml.safe_load(found["data"]["controller_manager_config.yaml"])
    return configuration


def _manager_arguments(rendered: Iterable[Object]) -> list[str]:
    deployment = next(item for item in rendered if item["kind"] == "Deployment")
    return list(deployment["spec"]["template"]["spec"]["containers"][0]["args"])


def _lead_to_loopback(configuration: Object, port: int, health: int, certificates: Path) -> None:
    configuration["webhook"] = {"host": LOOPBACK, "port": port, "certDir": str(certificates)}
    configuration["metrics"] = {**configuration.get("metrics", {}), "bindAddress": "0"}
    configuration["health"] = {"healthProbeBindAddress": f"{LOOPBACK}:{health}"}
    configuration["leaderElection"] = {"leaderElect": False}


def _webhook_certificates(folder: Path, pair: Pair) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    pair.write(folder, "tls")
    return folder


def _secret_data(authority: Authority, certificates: Path) -> dict[str, str]:
    content = {
        "ca.crt": authority.pair.certificate,
        "ca.key": authority.pair.key,
        "tls.crt": (certificates / "tls.crt").read_bytes(),
        "tls.key": (certificates / "tls.key").read_bytes(),
    }
    return {key: base64.b64encode(value).decode() for key, value in content.items()}


def _held(rendered: Iterable[Object], authority: Authority, port: int) -> list[Object]:
    """What the API server gets. Left out are Deployments, whose programs run outside, and the aggregated API that goes
    with Kueue's visibility server, which does not run."""
    bundle = base64.b64encode(authority.pair.certificate).decode()
    kept = []
    for item in rendered:
        if item["kind"] in ("Deployment", "APIService"):
            continue
        if item["kind"] == "Service" and item["metadata"]["name"].endswith("webhook-service"):
            item["spec"] = {"type": "ExternalName", "externalName": LOOPBACK}
        for client in _clients(item):
            client["caBundle"] = bundle
            client["service"]["port"] = port
        kept.append(item)
    return kept


def _clients(item: Object) -> Iterator[Object]:
    """Every clientConfig of a webhook configuration or of a CustomResourceDefinition's conversion."""
    for webhook in item.get("webhooks", ()):
        yield webhook["clientConfig"]
    conversion = item.get("spec", {}).get("conversion", {}) if item["kind"] == "CustomResourceDefinition" else {}
    if "webhook" in conversion:
        yield conversion["webhook"]["clientConfig"]
