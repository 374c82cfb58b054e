"""Network policies of the run's namespace: nothing in, nothing out, but the flows below.

EFA is not governed here: its traffic never passes the pod's network interface, and its security group alone decides.
Neither is Lustre: the node's kernel mounts the file system from the node's own network namespace. The kubelet's probes
always pass.

Flows name components (`moerl.io/component`), and served ports go by name (`metrics`, `http`) on the pod's main
container. Two traps of the VPC CNI, which sees the address that the pod dials and not the one behind a Service: a
ClusterIP Service is opened only if its selector carries the component label (Ray's head Service is headless, so it
needs none), and the API server has to be opened as service address and as address in its subnets.

A label cannot say "of my own group", so all rollout pods of multi-node engines may talk to each other. What broadcast
mode adds stands with its router.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra.catalog.controllers import CONTROLLERS
from infra.config.plan import Plan
from k8s.manifest import Object, component, obj
from k8s.names import (
    BUFFER,
    ENVIRONMENT,
    MONITORING_NAMESPACE,
    PREFLIGHT,
    PREPARE,
    ROLLOUT,
    RUN_NAMESPACE,
    TRAINER,
)
from k8s.ports import METRICS_PORT_NAME, SERVE_PORT_NAME

Rule = dict[str, Any]

RAY_DASHBOARD_PORT = 8265
COREDNS: Rule = {"matchLabels": {"k8s-app": "kube-dns"}}
IMDS, POD_IDENTITY = "169.254.169.254/32", "169.254.170.23/32"
LINK_LOCAL, ANYWHERE = "169.254.0.0/16", "0.0.0.0/0"

WITH_AWS = (TRAINER, ROLLOUT, PREPARE)
"""Components that hold an AWS role. Environment workers may run what a model wrote: no role, no metadata, no way out."""
WITH_METADATA = (ROLLOUT, PREFLIGHT)
"""Rollout agents read the Spot notice; preflight proves that they can."""
WITH_API = (PREFLIGHT,)
SERVED = (ENVIRONMENT, BUFFER)
"""Components that serve the trainer and the rollout agents."""
CLIENTS = (TRAINER, ROLLOUT)


def objects(plan: Plan) -> tuple[Object, ...]:
    """Default deny and its openings, one policy per reason."""
    run = plan.workload
    together = [TRAINER, PREFLIGHT]
    if any(rollout.pods.pods_per_group > 1 for rollout in run.rollouts):
        together.append(ROLLOUT)
    if run.files.conversion_nodes > 1:
        together.append(PREPARE)
    private = [subnet.cidr for subnet in plan.network.subnets if subnet.kind == "private"]
    service_cidr = plan.kubernetes.service_cidr
    return (
        _policy("default-deny", {}, ingress=[], egress=[]),
        _policy("dns", {}, egress=[_to(_pods(COREDNS, "kube-system"), ports=[_udp(53), _tcp(53)])]),
        _policy("metrics", {}, ingress=[_from(_pods({}, MONITORING_NAMESPACE), ports=[_tcp(METRICS_PORT_NAME)])]),
        *(_among(name) for name in together),
        _policy(
            "ray-dashboard",
            _any_of(TRAINER),
            ingress=[_from(_pods({}, CONTROLLERS["kuberay-operator"].namespace), ports=[_tcp(RAY_DASHBOARD_PORT)])],
        ),
        _policy(
            "serve",
            _any_of(*SERVED),
            ingress=[_from(_pods(_any_of(*CLIENTS)), ports=[_tcp(SERVE_PORT_NAME)])],
        ),
        _policy(
            "use-served",
            _any_of(*CLIENTS),
            egress=[_to(_pods(_any_of(*SERVED)), ports=[_tcp(SERVE_PORT_NAME)])],
        ),
        # The S3 gateway endpoint keeps S3's public addresses, so the way to AWS cannot be the VPC's range alone; nor can
        # it leave out the API server's own addresses, which lie among the interface endpoints. No token is mounted.
        _policy(
            "aws",
            _any_of(*WITH_AWS),
            egress=[_to(_addresses(ANYWHERE, without=[service_cidr, LINK_LOCAL]), ports=[_tcp(443)])],
        ),
        _policy("pod-identity", _any_of(*WITH_AWS), egress=[_to(_addresses(POD_IDENTITY), ports=[_tcp(80)])]),
        _policy("metadata", _any_of(*WITH_METADATA), egress=[_to(_addresses(IMDS), ports=[_tcp(80)])]),
        _policy(
            "api-server",
            _any_of(*WITH_API),
            egress=[_to(*(_addresses(cidr) for cidr in (service_cidr, *private)), ports=[_tcp(443)])],
        ),
    )


def _policy(
    name: str, pods: Rule, *, ingress: Sequence[Rule] | None = None, egress: Sequence[Rule] | None = None
) -> Object:
    """A policy on the pods of that selector, `{}` for all. A direction that is None stays ungoverned by it."""
    spec: Rule = {"podSelector": pods, "policyTypes": []}
    for direction, rules in (("Ingress", ingress), ("Egress", egress)):
        if rules is not None:
            spec["policyTypes"].append(direction)
            if rules:  # an empty list would be dropped by the API server, and look changed at every apply
                spec[direction.lower()] = list(rules)
    return obj("networking.k8s.io/v1", "NetworkPolicy", name, namespace=RUN_NAMESPACE, spec=spec)


def _among(name: str) -> Object:
    """All TCP ports among the pods of one component: Ray, torch and NCCL bootstrap on ports that they choose."""
    peers, ports = _pods(_any_of(name)), [{"protocol": "TCP"}]
    return _policy(
        f"among-{name}", _any_of(name), ingress=[_from(peers, ports=ports)], egress=[_to(peers, ports=ports)]
    )


def _any_of(*names: str) -> Rule:
    """Selector of the pods of these components."""
    if len(names) == 1:
        return {"matchLabels": component(names[0])}
    (key,) = component(names[0])
    return {"matchExpressions": [{"key": key, "operator": "In", "values": list(names)}]}


def _pods(selector: Rule, namespace: str | None = None) -> Rule:
    """Peer: the pods of that selector, in the run's namespace unless another is named."""
    if namespace is None:
        return {"podSelector": selector}
    where = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {"namespaceSelector": where, "podSelector": selector}


def _addresses(cidr: str, *, without: Sequence[str] = ()) -> Rule:
    return {"ipBlock": {"cidr": cidr, **({"except": list(without)} if without else {})}}


def _from(*peers: Rule, ports: Sequence[Rule]) -> Rule:
    return {"from": list(peers), "ports": list(ports)}


def _to(*peers: Rule, ports: Sequence[Rule]) -> Rule:
    return {"to": list(peers), "ports": list(ports)}


def _tcp(port: int | str) -> Rule:
    return {"protocol": "TCP", "port": port}


def _udp(port: int) -> Rule:
    return {"protocol": "UDP", "port": port}
