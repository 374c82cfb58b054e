"""What pods may do: images by digest, nothing of the host but what is named, locked memory where EFA needs it."""

from __future__ import annotations

import re
from collections.abc import Iterator

from infra.config.pins import UNRESOLVED_TEXT
from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE
from k8s.checks.quantities import amounts
from k8s.checks.tree import Problem, Tree
from k8s.names import RUN_NAMESPACE, SYSTEM_NAMESPACE
from k8s.pods import LOCAL_CACHE_PATH, Spec

_BY_DIGEST = re.compile(r"^[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}$")
_CACHE = re.compile(f"^{re.escape(LOCAL_CACHE_PATH)}/[a-z0-9][a-z0-9-]*$")
"""One level deep: a pod could plant a link below its own directory and mount what the link points to."""
_ON_THE_HOST = frozenset({(SYSTEM_NAMESPACE, "efa-device-plugin", "hostNetwork")})
"""Its vendor ships it so, and its source is not public."""
_HOST_KEYS = ("hostNetwork", "hostPID", "hostIPC")


def images_by_digest(tree: Tree, plan: Plan) -> Iterator[Problem]:
    """Every image is REPOSITORY@sha256:DIGEST. A pin that nobody has looked up shows as unresolved, and deploys refuse it."""
    pending = {reference for reference in plan.images.values() if UNRESOLVED_TEXT in reference}
    for pods in tree.pods:
        for place, container in pods.containers():
            image = container.get("image", "")
            if not _BY_DIGEST.match(image) and image not in pending:
                yield Problem(
                    where=place,
                    value=image,
                    why="an image without a digest is another one tomorrow, and an empty one waits for ever",
                    fix="Use plan.images or the image that the render was given.",
                )


def nothing_of_the_host(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """No pod joins the host's network, processes or IPC: EFA, GPUs and NVMe need none of them. The one exception has a name."""
    for pods in tree.pods:
        for key in _HOST_KEYS:
            if pods.spec.get(key) and (pods.namespace, pods.owner["metadata"]["name"], key) not in _ON_THE_HOST:
                yield Problem(
                    where=f"{pods.where}.spec.{key}",
                    value=True,
                    why="network policies and Pod Identity do not hold for a pod in a namespace of the host",
                    fix="Leave the key out.",
                )


def privileges_are_named(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Privileged containers in the system namespace alone; elsewhere every container forbids escalation, drops all
    capabilities, adds at most IPC_LOCK, and is root only with that."""
    for pods in tree.pods:
        for place, container in pods.containers():
            context = container.get("securityContext")
            if context is None:
                value, why = "no securityContext", "what a container may do must be stated"
            elif pods.namespace == SYSTEM_NAMESPACE:
                continue
            elif context.get("privileged"):
                value, why = "privileged", f"only agents in {SYSTEM_NAMESPACE} may be"
            elif context.get("allowPrivilegeEscalation") is not False:
                value, why = "allowPrivilegeEscalation", "must be false outside the system namespace"
            elif "ALL" not in (context.get("capabilities") or {}).get("drop", ()):
                value, why = "capabilities", "must all be dropped before any is added"
            elif set(added := (context.get("capabilities") or {}).get("add", ())) - {"IPC_LOCK"}:
                value, why = f"adds {added}", "only IPC_LOCK may be added"
            elif not added and not _is_other_user({**(pods.spec.get("securityContext") or {}), **context}):
                value, why = "root", "only a container that locks memory for EFA may be root"
            else:
                continue
            yield Problem(where=place, value=value, why=why, fix="Use restricted() or rdma() of k8s.pods.")


def _is_other_user(context: Spec) -> bool:
    return bool(context.get("runAsUser")) or ("runAsUser" not in context and context.get("runAsNonRoot") is True)


def efa_can_lock_memory(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """A container with EFA devices is root with IPC_LOCK: the capability does nothing for another user, locked memory then
    stays at 8 MiB, and NCCL goes over TCP."""
    for pods in tree.pods:
        for place, container in pods.containers():
            if not amounts(container.get("resources"), "requests").get(EFA_RESOURCE):
                continue
            context = {**(pods.spec.get("securityContext") or {}), **(container.get("securityContext") or {})}
            added = (context.get("capabilities") or {}).get("add", ())
            locks = context.get("privileged") or "IPC_LOCK" in added
            if context.get("runAsUser") != 0 or context.get("runAsNonRoot") or not locks:
                yield Problem(
                    where=place,
                    value=f"user {context.get('runAsUser')}, capabilities {list(added)}",
                    why="registering memory with EFA takes IPC_LOCK in a process of root",
                    fix="Use rdma() of k8s.pods.",
                )


def host_paths_are_named(tree: Tree, _plan: Plan) -> Iterator[Problem]:
    """Pods of the run mount the node's cache directory and nothing else of the host."""
    for pods in tree.pods:
        if pods.namespace == SYSTEM_NAMESPACE:
            continue
        for volume in pods.spec.get("volumes", ()):
            path = (volume.get("hostPath") or {}).get("path")
            if path is not None and not (pods.namespace == RUN_NAMESPACE and _CACHE.match(path)):
                yield Problem(
                    where=f"{pods.where}.spec.volumes[{volume.get('name')}]",
                    value=path,
                    why=f"pods of the run may mount {LOCAL_CACHE_PATH} of the host and nothing else",
                    fix="Use local_cache() of k8s.pods.",
                )
