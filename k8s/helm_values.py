"""What the values of several charts share: images with digests, requests equal to limits, contexts, the system pool."""

from __future__ import annotations

from typing import Any

from infra.config.plan import Plan
from infra.config.pod_plan import PodResources
from infra.config.pool_plan import LABEL_DOMAIN, TAINT_EFFECTS
from k8s.pods import quantity

Values = dict[str, Any]


def image_parts(plan: Plan, name: str) -> tuple[str, str, str]:
    """(registry, repository, tag); the tag ends in the digest, so that charts which join `repository:tag` pull by it."""
    place, _, tag = plan.images[name].partition(":")
    registry, _, repository = place.partition("/")
    return registry, repository, tag


def image(plan: Plan, name: str) -> Values:
    """The `image` value of charts that have the registry in the repository."""
    registry, repository, tag = image_parts(plan, name)
    return {"repository": f"{registry}/{repository}", "tag": tag, "pullPolicy": "IfNotPresent"}


def resources(cpu_millis: int, memory_mib: int) -> Values:
    """Requests and limits, the same."""
    both = quantity(PodResources(cpu_millis=cpu_millis, memory_mib=memory_mib))
    return {"requests": both, "limits": dict(both)}


def pod_security() -> Values:
    """Of a pod, for the restricted level; user ids stay the image's own."""
    return {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


def container_security() -> Values:
    """Of a container, for the restricted level, without a writable root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def on_system_pools(plan: Plan) -> Values:
    """Node selector and tolerations for the system pool, whatever taints its owner gave it."""
    taints = {taint for pool in plan.pools if pool.role == "system" for taint in pool.taints}
    tolerations = [
        {"key": taint.key, "operator": "Equal", "value": taint.value, "effect": TAINT_EFFECTS[taint.effect]}
        for taint in sorted(taints, key=lambda taint: (taint.key, taint.value, taint.effect))
    ]
    return {"nodeSelector": {f"{LABEL_DOMAIN}/role": "system"}, "tolerations": tolerations}
