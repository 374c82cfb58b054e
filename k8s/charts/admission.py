"""What a pod of the run may ask for: one ValidatingAdmissionPolicy, bound to the run's namespace.

Containers are checked all alike: main, init (sidecars among them) and ephemeral. Expressions use `has`, `all`, `in`
and the ternary alone, so that they read the same to any evaluator of CEL.

Pods that a controller makes are judged like any other. KubeRay copies the worker's security context to the init
container that it adds, but its default submitter pod states no user: a RayJob in K8sJobMode needs its own template.
"""

from __future__ import annotations

from infra.config.plan import Plan
from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE
from k8s.manifest import Object, obj
from k8s.names import RUN_NAMESPACE
from k8s.pods import LOCAL_CACHE_PATH

API = "admissionregistration.k8s.io/v1"
POLICY = "moerl-run-pods"

_USER = "(has(c.securityContext) && has(c.securityContext.runAsUser) ? c.securityContext.runAsUser : variables.podUser)"
_NON_ROOT = (
    "(has(c.securityContext) && has(c.securityContext.runAsNonRoot) "
    "? c.securityContext.runAsNonRoot : variables.podNonRoot)"
)
_ADDED = (
    "(has(c.securityContext) && has(c.securityContext.capabilities) && has(c.securityContext.capabilities.add) "
    "? c.securityContext.capabilities.add : [])"
)
_REQUESTS = "(has(c.resources) && has(c.resources.requests) ? c.resources.requests : {})"
_LIMITS = "(has(c.resources) && has(c.resources.limits) ? c.resources.limits : {})"
_DEVICES = f"['{GPU_RESOURCE}', '{EFA_RESOURCE}']"

VARIABLES: tuple[tuple[str, str], ...] = (
    (
        # dyn: ephemeral containers are a type of their own, and lists of two types do not add up.
        "containers",
        "object.spec.containers"
        " + (has(object.spec.initContainers) ? object.spec.initContainers : [])"
        " + (has(object.spec.ephemeralContainers) ? dyn(object.spec.ephemeralContainers) : [])",
    ),
    ("volumes", "has(object.spec.volumes) ? object.spec.volumes : []"),
    (
        "podUser",
        "has(object.spec.securityContext) && has(object.spec.securityContext.runAsUser) "
        "? object.spec.securityContext.runAsUser : -1",
    ),
    (
        "podNonRoot",
        "has(object.spec.securityContext) && has(object.spec.securityContext.runAsNonRoot) "
        "? object.spec.securityContext.runAsNonRoot : false",
    ),
)


def _each_container(condition: str) -> str:
    return f"variables.containers.all(c, {condition})"


def _not(path: str) -> str:
    """True unless the boolean field is there and true."""
    return f"!(has({path}) && {path})"


def _confined(holder: str) -> str:
    """True unless the security context of `holder` takes a profile away."""
    context = f"{holder}.securityContext"
    profiles = (f"{context}.seccompProfile", f"{context}.appArmorProfile")
    return " && ".join(
        f"(!has({context}) || !has({profile}) || {profile}.type != 'Unconfined')" for profile in profiles
    )


VALIDATIONS: tuple[tuple[str, str], ...] = (
    (
        " && ".join(_not(f"object.spec.{field}") for field in ("hostNetwork", "hostPID", "hostIPC")),
        "no hostNetwork, hostPID or hostIPC: EFA reaches the pod through its device plugin",
    ),
    (
        _each_container("!has(c.ports) || c.ports.all(p, !has(p.hostPort) || p.hostPort == 0)"),
        "no hostPort: name a containerPort and reach the pod by its own address",
    ),
    (
        _each_container(f"!has(c.securityContext) || {_not('c.securityContext.privileged')}"),
        "no privileged container: devices come from the NVIDIA and EFA device plugins",
    ),
    (
        _each_container(f"{_ADDED}.all(capability, capability == 'IPC_LOCK')"),
        "IPC_LOCK is the only capability that may be added",
    ),
    (
        _each_container(f"{_USER} == 0 ? 'IPC_LOCK' in {_ADDED} : ({_USER} > 0 || {_NON_ROOT})"),
        "a container runs as root only to lock memory for EFA (runAsUser 0 with IPC_LOCK added); set runAsUser or "
        "runAsNonRoot otherwise",
    ),
    (
        # That root holds IPC_LOCK is the rule before.
        _each_container(f"(!('{EFA_RESOURCE}' in {_LIMITS}) && !('{EFA_RESOURCE}' in {_REQUESTS})) || {_USER} == 0"),
        "a container with EFA devices needs runAsUser 0 and IPC_LOCK: another user locks 8 MiB and NCCL falls back to "
        "TCP",
    ),
    (
        _each_container(
            f"{_LIMITS} == {_REQUESTS} || {_DEVICES}.all(device, !(device in {_LIMITS}) && !(device in {_REQUESTS}))"
        ),
        "a container with GPUs or EFA devices states requests equal to limits, for every resource",
    ),
    (
        # One level deep: a pod could plant a link below its own directory and mount what the link points to.
        "variables.volumes.all(v, !has(v.hostPath) "
        f"|| (v.hostPath.path.matches('^{LOCAL_CACHE_PATH}/[a-z0-9][a-z0-9-]*$') "
        "&& has(v.hostPath.type) && v.hostPath.type in ['Directory', 'DirectoryOrCreate']))",
        f"the only host paths are directories right below {LOCAL_CACHE_PATH}",
    ),
    (
        _each_container("has(c.image) && c.image.matches('@sha256:[0-9a-f]{64}$')"),
        "images are named by digest: repository@sha256:...",
    ),
    (
        f"{_confined('object.spec')} && {_each_container(_confined('c'))}",
        "no Unconfined seccomp or AppArmor profile",
    ),
    (
        "(!has(object.spec.securityContext) || !has(object.spec.securityContext.sysctls) "
        "|| object.spec.securityContext.sysctls.all(s, false)) && "
        + _each_container(
            "!has(c.securityContext) || !has(c.securityContext.procMount) || c.securityContext.procMount == 'Default'"
        ),
        "no sysctls and no other procMount than Default",
    ),
)

MATCH_CONDITIONS: tuple[tuple[str, str], ...] = (
    # A pod that is older than the policy must still be able to lose its finalizers.
    # `has`, since a request for the pod itself has no such key; an error here would hold every leaving pod for ever.
    (
        "not-leaving",
        "(has(request.subResource) && request.subResource != '') || !has(object.metadata.deletionTimestamp)",
    ),
)


def objects(_plan: Plan) -> tuple[Object, ...]:
    """The policy and its binding. An error in evaluation refuses the pod."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE", "UPDATE"],
        "resources": ["pods", "pods/ephemeralcontainers", "pods/resize"],
        "scope": "Namespaced",
    }
    policy = obj(
        API,
        "ValidatingAdmissionPolicy",
        POLICY,
        spec={
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [rule], "matchPolicy": "Equivalent"},
            "matchConditions": [{"name": name, "expression": expression} for name, expression in MATCH_CONDITIONS],
            "variables": [{"name": name, "expression": expression} for name, expression in VARIABLES],
            "validations": [
                {"expression": expression, "message": message, "reason": "Forbidden"}
                for expression, message in VALIDATIONS
            ],
        },
    )
    here = {"matchLabels": {"kubernetes.io/metadata.name": RUN_NAMESPACE}}
    binding = obj(
        API,
        "ValidatingAdmissionPolicyBinding",
        POLICY,
        spec={
            "policyName": POLICY,
            "validationActions": ["Deny", "Audit"],
            "matchResources": {"namespaceSelector": here},
        },
    )
    return policy, binding
