"""How pods start, are probed, scaled and ended; and the values of a pod that schemas let pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from infra.config.plan import Plan
from infra.config.pool_plan import GPU_RESOURCE
from k8s.checks.scheduling import reached
from k8s.checks.tree import Pods, Problem, Tree, where
from k8s.pods import Spec

SPOT_GRACE_LIMIT_SECONDS = 110
"""A Spot notice comes 120 s before the end of the node; ten are left to the kubelet."""
START_LIMIT_SECONDS = 30 * 60
"""Least time that a GPU container gets to start: weights to load, kernels to compile."""
PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_VALUES: dict[str, frozenset[str]] = {
    "restartPolicy": frozenset({"Always", "OnFailure", "Never"}),
    "dnsPolicy": frozenset({"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"}),
    "preemptionPolicy": frozenset({"PreemptLowerPriority", "Never"}),
}
_PULL = frozenset({"Always", "IfNotPresent", "Never"})
_EFFECTS = frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"})


def grace_is_stated(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Every pod states its grace period; on Spot it ends inside the notice."""
    spot = {pool.name for pool in plan.pools if pool.capacity.type == "spot"}
    for pods in tree.pods:
        grace = pods.spec.get("terminationGracePeriodSeconds")
        if grace is None:
            why = "must be stated: the default of 30 s is too short for a drain and too long for an agent"
        elif grace > SPOT_GRACE_LIMIT_SECONDS and spot & set(reached(pods.spec, plan)):
            why = f"a Spot notice leaves 120 s, so at most {SPOT_GRACE_LIMIT_SECONDS} can be used"
        else:
            continue
        yield Problem(
            where=f"{pods.where}.spec.terminationGracePeriodSeconds",
            value=grace,
            why=why,
            fix="Use the Plan's grace_seconds.",
        )


def probes_hold(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A probe's named port is the container's own; a container that serves under a Deployment or StatefulSet says when it is
    ready."""
    for pods in tree.pods:
        for place, container in pods.containers():
            ports = {port.get("name") for port in container.get("ports", ())}
            for probe in PROBES:
                port = _probe_port(container.get(probe) or {})
                if isinstance(port, str) and port not in ports:
                    yield _probe_problem(f"{place}.{probe}", port, "is a port that the container does not declare")
            serves = pods.kind in ("Deployment", "StatefulSet") and container in pods.spec["containers"] and ports
            if serves and "readinessProbe" not in container:
                yield _probe_problem(place, "no readinessProbe", "gets traffic before it can answer")


def gpu_containers_start_in_peace(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Nothing kills a GPU container while it loads weights or compiles: a liveness probe of one waits for a startup probe of
    at least half an hour, and does not ask a server that is busy while it generates."""
    for pods in tree.pods:
        for place, container in pods.containers():
            requests = (container.get("resources") or {}).get("requests") or {}
            if GPU_RESOURCE not in requests:
                continue
            startup, liveness = container.get("startupProbe"), container.get("livenessProbe")
            window = _window_seconds(startup) if startup else None
            if window is not None and window < START_LIMIT_SECONDS:
                yield _probe_problem(f"{place}.startupProbe", f"{window} s", "is too short for weights and compilation")
            if liveness and not startup:
                yield _probe_problem(f"{place}.livenessProbe", "no startupProbe", "would kill it while it starts")
            if liveness and "httpGet" in liveness:
                yield _probe_problem(
                    f"{place}.livenessProbe",
                    liveness["httpGet"].get("path"),
                    "asks the server over HTTP, which may not answer in time during a long step or a weight update",
                )


def autoscaled_has_no_count(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """What KEDA scales carries no replica count: each apply would set the fleet back to it. Bounds are in order."""
    for item in tree.of_kind("ScaledObject"):
        spec = item["spec"]
        low, high = spec.get("minReplicaCount", 0), spec.get("maxReplicaCount", 100)
        if low > high:
            yield Problem(
                where=where(item), value=f"{low} to {high}", why="the minimum is above the maximum", fix="Swap the two."
            )
        reference = spec["scaleTargetRef"]
        kind = reference.get("kind", "Deployment")
        target = tree.find(kind, item["metadata"]["namespace"], reference["name"])
        if target is not None and "replicas" in target["spec"]:
            yield Problem(
                where=f"{where(target)}: spec.replicas",
                value=target["spec"]["replicas"],
                why=f"{where(item)} scales it, and each apply would set it back",
                fix="Leave the replica count out.",
            )


def volumes_are_mounted(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Each mount names a volume of its pod, each volume is mounted, and no path is mounted over."""
    for pods in tree.pods:
        volumes = {volume.get("name") for volume in pods.spec.get("volumes", ())}
        used: set[object] = set()
        for place, container in pods.containers():
            mounts = container.get("volumeMounts", ())
            used |= {mount.get("name") for mount in mounts}
            paths = [mount.get("mountPath") for mount in mounts]
            for name in sorted({str(mount.get("name")) for mount in mounts} - {str(name) for name in volumes}):
                yield Problem(
                    where=place, value=name, why="is a volume that the pod does not have", fix="Add the volume."
                )
            for path in sorted({str(path) for path in paths if paths.count(path) > 1}):
                yield Problem(where=place, value=path, why="is mounted twice", fix="Mount it once.")
        for name in sorted(str(name) for name in volumes - used):
            yield Problem(where=pods.where, value=name, why="is mounted by no container", fix="Leave the volume out.")


def pod_values_are_known(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Closed sets that the published schemas give as any text: policies, operators, effects."""
    for pods in tree.pods:
        for path, value, known in _closed(pods):
            if value not in known:
                yield Problem(
                    where=f"{pods.where}.spec.{path}",
                    value=value,
                    why=f"is none of {', '.join(sorted(known))}",
                    fix="Write one of them.",
                )
    for item in tree.of_kind("PriorityClass"):
        policy = item.get("preemptionPolicy", "Never")
        if policy not in _VALUES["preemptionPolicy"]:
            yield Problem(where=where(item), value=policy, why="is no preemption policy", fix="Write one of the two.")


def _closed(pods: Pods) -> Iterator[tuple[str, Any, frozenset[str]]]:
    spec = pods.spec
    for key, known in _VALUES.items():
        if key in spec:
            yield key, spec[key], known
    if pods.kind in ("Job", "CronJob"):
        yield "restartPolicy", spec.get("restartPolicy"), frozenset({"OnFailure", "Never"})
    if pods.kind in ("Deployment", "StatefulSet", "DaemonSet", "LeaderWorkerSet"):
        yield "restartPolicy", spec.get("restartPolicy", "Always"), frozenset({"Always"})
    for toleration in spec.get("tolerations", ()):
        yield "tolerations", toleration.get("operator", "Equal"), frozenset({"Equal", "Exists"})
        if toleration.get("effect"):
            yield "tolerations", toleration["effect"], _EFFECTS
    for _, container in pods.containers():
        yield f"[{container.get('name')}].imagePullPolicy", container.get("imagePullPolicy"), _PULL
    for container in spec.get("initContainers", ()):
        yield (
            f"[{container.get('name')}].restartPolicy",
            container.get("restartPolicy", "Always"),
            frozenset({"Always"}),
        )


def _probe_port(probe: Spec) -> object:
    return next((probe[kind].get("port") for kind in ("httpGet", "tcpSocket", "grpc") if kind in probe), None)


def _window_seconds(probe: Spec) -> int:
    return int(probe.get("initialDelaySeconds", 0)) + int(probe.get("periodSeconds", 10)) * int(
        probe.get("failureThreshold", 3)
    )


def _probe_problem(place: str, value: object, why: str) -> Problem:
    return Problem(where=place, value=value, why=why, fix="Set the probe as the engine and trainer contracts say.")
