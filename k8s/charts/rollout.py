"""The rollout fleet: one LeaderWorkerSet per rollout pool, one group per engine, one pod per node of the engine.

A pod runs, in this order:

    preflight `moerl_runtime preflight node --pool POOL`: proves node and image, with the engine's devices and variables
    fetch     `moerl_runtime weights fetch --pool POOL --below DIR`: base model to the node's NVMe, once a node (it locks),
              and opens the cache's directories to the agent's user
    engine    `sglang.launch_server`, a native sidecar: it starts before the agent and is stopped after it
    agent     `moerl_runtime agent lead|follow --pool POOL --listen IP:PORT --engine URL --models DIR`, the main container

Every other number of the agent (tasks at once, drain budget, queue URLs) is in plan.json, under the rollout of that pool.

| argument | who | meaning |
|---|---|---|
| `--pool` | all of ours | which rollout of plan.json |
| `--listen` | agents | address of `/live`, `/ready` and the group's own routes; on the metrics port beside it `/metrics` has the
  agent's own and `/engine/metrics` the engine's, which binds loopback |
| `--engine` | agents | the pod's own engine; a follower's answers `/health` and metrics only |
| `--models` | agents | directory that fetch and agent write and the engine reads; reloads name a path below it |
| `--rebalance` | agents | drain at a rebalance recommendation too, where the file asks for it |
| `--leader` | `follow` | the leader's agent: the follower reports a Spot notice or a stop there and fetches what it is told to |
| `--router`, `--advertise` | `lead` | broadcast mode: register this URL there, remove it at the start of a drain |

`agent await-drain --port PORT` is the preStop hook of a follower: it has the leader drain (LWS_LEADER_ADDRESS) and returns when
that is done, or at once when no agent listens there: then nothing has been taken yet, or all is done. A leader needs no
hook; the agent drains on SIGTERM.

Every group starts from the same base model, and its agents bring all its nodes to one version before the leader takes a
task: nodes that each started from 'the newest' would hold different weights.

No replica count: KEDA owns it. The CRD's default of 1 fills it in once, owned by nobody, so that a later server-side apply
leaves it alone. No disruption budget either: it would block the node group's own drain of a Spot node.

An engine's liveness is its process. SGLang's watchdog ends a stuck one and LeaderWorkerSet counts a sidecar's restart as the
group's; `/health` by default turns 503 in a long pause or load, and a kubelet's TCP probe cannot reach loopback.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from infra.config.model_plan import MODELS_PATH
from infra.config.plan import Plan
from infra.config.pool_plan import LABEL_DOMAIN, PoolPlan
from infra.config.workload_plan import RolloutPlan
from k8s import pods
from k8s.charts import router as router_chart
from k8s.charts import run_config
from k8s.daemonsets import NO_GPUS
from k8s.flags.sglang import LOOPBACK, engine_command
from k8s.manifest import Object, component, obj
from k8s.names import ROLLOUT, ROLLOUT_PRIORITY, RUN_NAMESPACE
from k8s.ports import AGENT_PORT, ENGINE_PORT, METRICS_PORT, METRICS_PORT_NAME

Spec = dict[str, Any]

JIT_PATH = "/jit"
STARTUP_PERIOD_SECONDS, STARTUP_FAILURES = 15, 240
"""An hour: a first start reads hundreds of GiB and compiles kernels."""
ROLLING_PARTS = 4
"""A new image or a new flag takes one engine in so many out of service together. As a number: a share of few replicas is
none, which the controller's webhook refuses."""


def objects(plan: Plan, *, image: str) -> tuple[Object, ...]:
    """The fleet of every rollout pool. `image` is the run's, by digest; ValueError without one.

    In broadcast mode engines bind the pod's address and register with a router.
    """
    router = plan.workload.router
    fleets = tuple(_fleet(plan, rollout, image=image, router=router) for rollout in plan.workload.rollouts)
    return (*fleets, *(router_chart.objects(plan, image=image) if router else ()))


def fleet_name(rollout: RolloutPlan) -> str:
    """Name of the LeaderWorkerSet of a rollout pool."""
    return f"engines-{rollout.pool}"


def image_digest(image: str) -> str:
    """First 12 digits of an image's digest. Raises ValueError for an image named otherwise."""
    match = re.search(r"@sha256:([0-9a-f]{64})$", image)
    if match is None:
        raise ValueError(f"image {image!r} is not named by digest")
    return match[1][:12]


def _fleet(plan: Plan, rollout: RolloutPlan, *, image: str, router: bool) -> Object:
    size = rollout.pods.pods_per_group
    leader = _pod(plan, rollout, image=image, router=router, leads=True)
    template: Spec = {"size": size, "restartPolicy": "None", "workerTemplate": leader}
    if size > 1:
        # One rank that dies leaves the others waiting in a collective: the group ends together.
        template |= {
            "restartPolicy": "RecreateGroupOnPodRestart",
            "leaderTemplate": leader,
            "workerTemplate": _pod(plan, rollout, image=image, router=router, leads=False),
        }
    return obj(
        "leaderworkerset.x-k8s.io/v1",
        "LeaderWorkerSet",
        fleet_name(rollout),
        namespace=RUN_NAMESPACE,
        labels=component(ROLLOUT),
        spec={
            "leaderWorkerTemplate": template,
            "networkConfig": {"subdomainPolicy": "Shared"},
            "rolloutStrategy": {
                "type": "RollingUpdate",
                "rollingUpdateConfiguration": {
                    "maxUnavailable": max(1, rollout.geometry.engines_max // ROLLING_PARTS),
                    "maxSurge": 0,
                    "partition": 0,
                },
            },
            # Workers join the bootstrap that makes the leader ready.
            "startupPolicy": "LeaderCreated",
        },
    )


def _pod(plan: Plan, rollout: RolloutPlan, *, image: str, router: bool, leads: bool) -> Spec:
    pool = plan.pool(rollout.pool)
    volumes = {
        "shm": pods.shm(rollout.pods.engine),
        "models": _cache(pool, "models", MODELS_PATH),
        # One directory per image: DeepEP names a compiled kernel after its includes, not after what they contain.
        "jit": _cache(pool, f"jit-{image_digest(image)}", JIT_PATH),
        "config": run_config.volume(),
    }
    mounts = {name: mount for name, (_, mount) in volumes.items()}
    engine = pods.with_pod_ip(_engine(plan, rollout, image, mounts, router=router, leads=leads))
    return pods.pod_template(
        component(ROLLOUT) | {f"{LABEL_DOMAIN}/pool": rollout.pool},
        {
            "serviceAccountName": ROLLOUT,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "priorityClassName": ROLLOUT_PRIORITY,
            "terminationGracePeriodSeconds": rollout.engine.grace_seconds,
            **pods.on_pool(pool),
            "initContainers": [
                _preflight(rollout, image, engine, mounts),
                _fetch(plan, rollout, image, mounts),
                engine,
            ],
            "containers": [pods.with_pod_ip(_agent(plan, rollout, image, mounts, router=router, leads=leads))],
            "volumes": [volume for volume, _ in volumes.values()],
        },
        # A node that is half empty is not a reason to end the engine on its other half.
        annotations={"cluster-autoscaler.kubernetes.io/safe-to-evict": "false"},
    )


def _preflight(rollout: RolloutPlan, image: str, engine: Spec, mounts: Mapping[str, Spec]) -> Spec:
    """With the engine's environment and devices, which an init container hands on to the sidecar after it."""
    container = pods.container(
        "preflight",
        image,
        rollout.pods.engine,
        command=["python", "-m", "moerl_runtime", "preflight", "node"],
        args=["--pool", rollout.pool],
        # With the cache of kernels: it compiles what the engine would.
        mounts=[mounts["shm"], mounts["jit"], mounts["config"]],
        security=pods.rdma(),
    )
    return container | {"env": engine["env"]}


def _fetch(plan: Plan, rollout: RolloutPlan, image: str, mounts: Mapping[str, Spec]) -> Spec:
    return pods.container(
        "fetch",
        image,
        # It runs before the engine, so it may have all that the engine gets, but no device.
        replace(rollout.pods.engine, gpus=0, efa=0, huge_pages_mib=0, shm_mib=0),
        command=["python", "-m", "moerl_runtime", "weights", "fetch"],
        args=["--pool", rollout.pool, "--below", MODELS_PATH],
        variables=pods.base_variables(plan) | NO_GPUS,
        mounts=[mounts["models"], mounts["config"]],
        # Directories of the node belong to root.
        security=pods.rdma(),
    )


def _engine(
    plan: Plan, rollout: RolloutPlan, image: str, mounts: Mapping[str, Spec], *, router: bool, leads: bool
) -> Spec:
    model_path = f"{MODELS_PATH}/{plan.workload.files.serving}"
    host = "$(POD_IP)" if router else LOOPBACK
    command = engine_command(plan, rollout, model_path=model_path, jit_path=JIT_PATH, host=host)
    return pods.container(
        "engine",
        image,
        rollout.pods.engine,
        command=["python", "-m", "sglang.launch_server"],
        args=command.flags,
        variables={**pods.base_variables(plan), **pods.gdrcopy(command.variables), **command.variables},
        mounts=[mounts["shm"], mounts["models"] | {"readOnly": True}, mounts["jit"]],
        ports={"engine": ENGINE_PORT} if router else None,
        security=pods.rdma(),
        restartPolicy="Always",
        **(_engine_probes(router) if leads else {}),
    )


def _agent(
    plan: Plan, rollout: RolloutPlan, image: str, mounts: Mapping[str, Spec], *, router: bool, leads: bool
) -> Spec:
    return pods.container(
        "agent",
        image,
        rollout.pods.agent,
        command=["python", "-m", "moerl_runtime", "agent", "lead" if leads else "follow"],
        args=_agent_arguments(rollout, router=router, leads=leads),
        variables=pods.base_variables(plan) | NO_GPUS,
        mounts=[mounts["models"], mounts["config"]],
        ports={"control": AGENT_PORT, METRICS_PORT_NAME: METRICS_PORT},
        **(_agent_probes() if leads else _follower_hook()),
    )


def _cache(pool: PoolPlan, name: str, mount_path: str) -> tuple[Spec, Spec]:
    """(volume, mount) on the node's NVMe, where it has any: what can be made again, and is slow to."""
    if pool.raid0:
        return pods.local_cache(name, mount_path)
    return {"name": name, "emptyDir": {}}, {"name": name, "mountPath": mount_path}


def _agent_arguments(rollout: RolloutPlan, *, router: bool, leads: bool) -> list[str]:
    host = "$(POD_IP)" if router else LOOPBACK
    arguments = ["--pool", rollout.pool, "--listen", f"$(POD_IP):{AGENT_PORT}"]
    arguments += ["--engine", f"http://{host}:{ENGINE_PORT}", "--models", MODELS_PATH]
    if rollout.drain_on_rebalance:
        arguments.append("--rebalance")
    if not leads:
        return [*arguments, "--leader", f"$(LWS_LEADER_ADDRESS):{AGENT_PORT}"]
    if router:
        arguments += ["--router", router_chart.URL, "--advertise", f"http://$(POD_IP):{ENGINE_PORT}"]
    return arguments


def _engine_probes(router: bool) -> Spec:
    """Start and readiness of the leader's engine. Readiness outlasts a weight load: it only says who counts as up."""
    return {
        "startupProbe": {
            **_asks(router, "/health", timeout_seconds=10),
            "periodSeconds": STARTUP_PERIOD_SECONDS,
            "failureThreshold": STARTUP_FAILURES,
        },
        # Generates one token, unless the engine is busy: at least a second, more under load.
        "readinessProbe": {
            **_asks(router, "/health_generate", timeout_seconds=30),
            "periodSeconds": 60,
            "failureThreshold": 5,
        },
    }


def _asks(router: bool, path: str, *, timeout_seconds: int) -> Spec:
    """Kubelet's own HTTP probes go to the pod's address, so an engine on loopback is asked from inside its container."""
    if router:
        return {"httpGet": {"path": path, "port": ENGINE_PORT}, "timeoutSeconds": timeout_seconds}
    url = f"http://{LOOPBACK}:{ENGINE_PORT}{path}"
    ask = f"import urllib.request as r; r.urlopen('{url}', timeout={timeout_seconds})"
    return {"exec": {"command": ["python", "-I", "-c", ask]}, "timeoutSeconds": timeout_seconds + 5}


def _agent_probes() -> Spec:
    """Ready: engine up, newest version loaded, not draining. Alive: the agent's loop turns, however long a load takes."""
    live: Mapping[str, Any] = {"httpGet": {"path": "/live", "port": AGENT_PORT}, "timeoutSeconds": 10}
    return {
        "startupProbe": {**live, "periodSeconds": 5, "failureThreshold": 60},
        "livenessProbe": {**live, "periodSeconds": 30, "failureThreshold": 10},
        "readinessProbe": {
            "httpGet": {"path": "/ready", "port": AGENT_PORT},
            "timeoutSeconds": 10,
            "periodSeconds": 10,
            "failureThreshold": 3,
        },
    }


def _follower_hook() -> Spec:
    command = ["python", "-m", "moerl_runtime", "agent", "await-drain", "--port", str(AGENT_PORT)]
    return {"lifecycle": {"preStop": {"exec": {"command": command}}}}
