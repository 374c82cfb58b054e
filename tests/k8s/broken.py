"""Manifests with one thing broken: the rendered reference objects, less or more one line each, and the check that has to
notice. What a check reports here is what was broken, since the unbroken render passes every check (test_render.py)."""

from __future__ import annotations

import copy

from infra.config.pool_plan import EFA_RESOURCE, GPU_RESOURCE, HUGE_PAGES_RESOURCE
from k8s.manifest import Object, component, obj
from k8s.render import TRAINER_FILE
from tests.k8s.drafts import (
    FOLLOWER,
    LEADER,
    Break,
    Draft,
    ask,
    budget,
    cluster,
    daemon,
    daemon_labels,
    drop,
    engine,
    environment,
    group,
    main,
    one,
    rollout,
    service_monitor,
    trainer,
    volume,
)

SCRATCH = "scratch-fs-0123456789abcdef0"


def taints_as_vendors_write_them(changed: Draft) -> None:
    """The toleration of vendors' charts: right key, another value."""
    spec = daemon(changed, "nvidia-device-plugin")
    spec["tolerations"] = [{"key": GPU_RESOURCE, "operator": "Equal", "value": "present", "effect": "NoSchedule"}]


def pools_of_last_year(changed: Draft) -> None:
    """A list of pools that ends before the newest one."""
    term = daemon(changed, "efa-device-plugin")["affinity"]["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    term["nodeSelectorTerms"][0]["matchExpressions"][0]["values"].remove("rollout")


def everywhere(changed: Draft) -> None:
    """Device plugin without a selector: it runs, and fails, on CPU nodes too."""
    del daemon(changed, "nvidia-device-plugin")["affinity"]


def add(changed: Draft, item: Object) -> None:
    changed[TRAINER_FILE].append(item)


def uncovered(changed: Draft, resource: str) -> None:
    """The queue takes no account of a resource that pods request."""
    for resource_group in one(changed, "ClusterQueue")["spec"]["resourceGroups"]:
        resource_group["coveredResources"].remove(resource)
        for flavor in resource_group["flavors"]:
            flavor["resources"] = [entry for entry in flavor["resources"] if entry["name"] != resource]


def quota(changed: Draft, pool: str, resource: str, value: str) -> None:
    for flavor in one(changed, "ClusterQueue")["spec"]["resourceGroups"][0]["flavors"]:
        if flavor["name"] == pool:
            next(entry for entry in flavor["resources"] if entry["name"] == resource)["nominalQuota"] = value


def one_gpu_less_in_the_limit(changed: Draft) -> None:
    engine(changed)["resources"]["limits"][GPU_RESOURCE] = "7"


def eight_of_sixteen(changed: Draft) -> None:
    ask(main(trainer(changed)), EFA_RESOURCE, "8")


def nothing_denied(changed: Draft) -> None:
    drop(changed, "NetworkPolicy", "default-deny")
    drop(changed, "NetworkPolicy", "metrics")


def namespace_last(changed: Draft) -> None:
    namespaces = changed.pop("0100-namespaces.yaml")
    changed["0150-namespaces.yaml"] = namespaces


def agent_with_the_gpus(changed: Draft) -> None:
    """Two main containers: they are stopped together, and the engine is gone before the drain."""
    spec = rollout(changed, FOLLOWER)
    moved = spec["initContainers"].pop()
    del moved["restartPolicy"]
    spec["containers"].append(moved)


BROKEN: tuple[tuple[str, str, Break], ...] = (
    ("name.unique", "one object in two files", lambda d: add(d, copy.deepcopy(one(d, "ClusterQueue")))),
    ("name.valid", "object name of 70 letters", lambda d: one(d, "PodMonitor")["metadata"].update(name="a" * 70)),
    ("name.valid", "container name with a dot", lambda d: main(environment(d)).update(name="environment.main")),
    ("name.valid", "variable twice", lambda d: main(trainer(d))["env"].append({"name": "AWS_REGION", "value": "x"})),
    ("name.label", "label key with a space", lambda d: one(d, "RayJob")["metadata"]["labels"].update({"a b": "c"})),
    ("name.label", "label value of 70 letters", lambda d: group(d)[LEADER]["metadata"]["labels"].update(run="r" * 70)),
    ("name.namespace", "namespaces after what lives in them", namespace_last),
    ("resources.quantity", "8 gpus", lambda d: ask(engine(d), GPU_RESOURCE, "8 gpus")),
    ("resources.quantity", "memory in GiB", lambda d: ask(main(rollout(d)), "memory", "16GiB")),
    ("resources.stated", "no limits", lambda d: main(environment(d))["resources"].pop("limits")),
    ("resources.stated", "no memory", lambda d: ask(main(rollout(d)), "memory", None)),
    ("resources.stated", "memory overcommitted", lambda d: engine(d)["resources"]["limits"].update(memory="1900Gi")),
    ("resources.gpu", "GPU limit below the request", one_gpu_less_in_the_limit),
    ("resources.gpu", "GPU limit alone", lambda d: engine(d)["resources"]["requests"].pop(GPU_RESOURCE)),
    ("resources.efa", "8 EFA devices of 16", eight_of_sixteen),
    ("resources.efa", "a whole node without EFA", lambda d: ask(engine(d), EFA_RESOURCE, None)),
    (
        "resources.huge-pages",
        "huge pages on Spot",
        lambda d: ask(main(one(d, "Job", "preflight-rollout")["spec"]["template"]["spec"]), HUGE_PAGES_RESOURCE, "2Gi"),
    ),
    (
        "resources.memory-volume",
        "shared memory larger than the pod",
        lambda d: volume(rollout(d), "shm")["emptyDir"].update(sizeLimit="2000Gi"),
    ),
    (
        "resources.memory-volume",
        "shared memory without a size",
        lambda d: volume(trainer(d), "shm")["emptyDir"].pop("sizeLimit"),
    ),
    ("nodes.room", "no room for the head beside a worker", lambda d: ask(main(trainer(d)), "cpu", "184")),
    ("nodes.room", "an agent that takes the engine's share", lambda d: ask(main(rollout(d)), "cpu", "5")),
    (
        "nodes.daemonset-budget",
        "an agent that takes more than the Plan left it",
        lambda d: ask(main(daemon(d, "dcgm-exporter")), "memory", "1Gi"),
    ),
    ("placement.daemonset", "toleration of another value", taints_as_vendors_write_them),
    ("placement.daemonset", "a list of pools without the newest", pools_of_last_year),
    ("placement.daemonset", "device plugin on CPU nodes", everywhere),
    ("placement.run", "workers without a selector", lambda d: environment(d).pop("nodeSelector")),
    ("placement.run", "engines without tolerations", lambda d: rollout(d, FOLLOWER).pop("tolerations")),
    (
        "placement.pool",
        "a selector that no node has",
        lambda d: one(d, "Job", "preflight-trainer")["spec"]["template"]["spec"].update(nodeSelector={"gpu": "yes"}),
    ),
    (
        "reference.service-account",
        "account of another name",
        lambda d: rollout(d).update(serviceAccountName="rollouts"),
    ),
    ("reference.service-account", "no account", lambda d: environment(d).pop("serviceAccountName")),
    ("reference.role", "binding to no role", lambda d: one(d, "ClusterRoleBinding")["roleRef"].update(name="nodes")),
    (
        "reference.config-map",
        "config map of another run",
        lambda d: volume(trainer(d), "trainer-config")["configMap"].update(name="trainer-00000000"),
    ),
    (
        "reference.secret",
        "secret that nobody makes",
        lambda d: main(environment(d)).update(
            env=[{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "token", "key": "t"}}}]
        ),
    ),
    ("reference.claim", "claim that is not rendered", lambda d: drop(d, "PersistentVolumeClaim", SCRATCH)),
    (
        "reference.priority-class",
        "priority class that is not rendered",
        lambda d: trainer(d).update(priorityClassName="high"),
    ),
    ("reference.priority-class", "no priority class", lambda d: environment(d).pop("priorityClassName")),
    ("reference.queue", "queue that is not rendered", lambda d: drop(d, "WorkloadPriorityClass", "trainer")),
    ("reference.queue", "flavor that is not rendered", lambda d: drop(d, "ResourceFlavor", "buffer")),
    (
        "reference.scale-target",
        "no identity to read the queue with",
        lambda d: drop(d, "TriggerAuthentication", "task-queue-reader"),
    ),
    (
        "selector.workload",
        "selector of other labels",
        lambda d: one(d, "Deployment")["spec"]["selector"].update(matchLabels={"app": "environment"}),
    ),
    (
        "selector.service",
        "service without pods",
        lambda d: one(d, "Service", "environment")["spec"].update(selector={"app": "environment"}),
    ),
    (
        "selector.service",
        "service on a port that nobody has",
        lambda d: one(d, "Service", "environment")["spec"]["ports"][0].update(targetPort="grpc"),
    ),
    (
        "selector.disruption-budget",
        "both bounds",
        lambda d: one(d, "PodDisruptionBudget")["spec"].update(maxUnavailable=0),
    ),
    (
        "selector.disruption-budget",
        "budget over nothing",
        lambda d: add(d, budget("extra", component("trainers"), maxUnavailable=1)),
    ),
    (
        "selector.monitor",
        "monitor of a port that nobody has",
        lambda d: one(d, "PodMonitor")["spec"]["podMetricsEndpoints"][0].update(port="prometheus"),
    ),
    ("disruption.trainer", "no budget", lambda d: drop(d, "PodDisruptionBudget", "trainer")),
    (
        "disruption.trainer",
        "one may go",
        lambda d: one(d, "PodDisruptionBudget")["spec"].update(minAvailable=17),
    ),
    ("disruption.spot", "budget over Spot", lambda d: add(d, budget("spot", component("rollout"), maxUnavailable=1))),
    ("queue.suspended", "a trainer that starts at once", lambda d: one(d, "RayJob")["spec"].update(suspend=False)),
    ("queue.covered", "queue without EFA", lambda d: uncovered(d, EFA_RESOURCE)),
    ("queue.covered", "queue without huge pages", lambda d: uncovered(d, HUGE_PAGES_RESOURCE)),
    ("queue.quota", "one GPU short", lambda d: quota(d, "trainer", GPU_RESOURCE, "127")),
    (
        "quota.covers",
        "namespace quota one GPU short",
        lambda d: one(d, "ResourceQuota", "rollout")["spec"]["hard"].update({f"requests.{GPU_RESOURCE}": "255"}),
    ),
    (
        "quota.covers",
        "range of the nominal instance halved",
        lambda d: one(d, "LimitRange")["spec"]["limits"][0]["max"].update(memory="1024Gi"),
    ),
    ("security.image", "image by tag", lambda d: main(trainer(d)).update(image="registry.example.com/moerl:latest")),
    ("security.image", "no image", lambda d: main(rollout(d)).update(image="")),
    ("security.host", "host network", lambda d: rollout(d).update(hostNetwork=True)),
    ("security.host", "host IPC", lambda d: trainer(d).update(hostIPC=True)),
    (
        "security.privilege",
        "privileged for EFA",
        lambda d: engine(d)["securityContext"].update(privileged=True),
    ),
    (
        "security.privilege",
        "another capability",
        lambda d: engine(d)["securityContext"]["capabilities"]["add"].append("SYS_ADMIN"),
    ),
    ("security.privilege", "no security context", lambda d: main(environment(d)).pop("securityContext")),
    ("security.privilege", "root for nothing", lambda d: main(environment(d))["securityContext"].update(runAsUser=0)),
    (
        "security.locked-memory",
        "IPC_LOCK of a user who is not root",
        lambda d: main(trainer(d))["securityContext"].update(runAsUser=1000),
    ),
    (
        "security.host-path",
        "the host's devices",
        lambda d: volume(rollout(d), "models")["hostPath"].update(path="/dev"),
    ),
    (
        "security.host-path",
        "out of the cache and up",
        lambda d: volume(rollout(d), "models")["hostPath"].update(path="/mnt/k8s-disks/0/moerl/../.."),
    ),
    ("pod.grace", "grace beyond the Spot notice", lambda d: rollout(d).update(terminationGracePeriodSeconds=300)),
    ("pod.grace", "grace not stated", lambda d: trainer(d).pop("terminationGracePeriodSeconds")),
    ("pod.probe", "traffic before it can answer", lambda d: main(environment(d)).pop("readinessProbe")),
    (
        "pod.probe",
        "probe of a port that is not there",
        lambda d: main(rollout(d))["livenessProbe"]["httpGet"].update(port="health"),
    ),
    (
        "pod.start",
        "killed while it compiles",
        lambda d: engine(d)["startupProbe"].update(failureThreshold=20),
    ),
    (
        "pod.start",
        "killed while it generates",
        lambda d: engine(d).update(livenessProbe={"httpGet": {"path": "/health", "port": 30000}}),
    ),
    ("pod.volume", "mount without a volume", lambda d: rollout(d)["volumes"].remove(volume(rollout(d), "shm"))),
    (
        "pod.volume",
        "mounted twice",
        lambda d: engine(d)["volumeMounts"].append(engine(d)["volumeMounts"][0] | {"readOnly": True}),
    ),
    ("pod.value", "unknown restart policy", lambda d: rollout(d).update(restartPolicy="Sometimes")),
    (
        "pod.value",
        "unknown effect",
        lambda d: trainer(d)["tolerations"].append({"key": "team", "operator": "Exists", "effect": "NoScheduling"}),
    ),
    ("scale.count", "replicas beside an autoscaler", lambda d: one(d, "LeaderWorkerSet")["spec"].update(replicas=4)),
    ("scale.count", "bounds the wrong way round", lambda d: one(d, "ScaledObject")["spec"].update(minReplicaCount=99)),
    ("network.covered", "nothing denied on the way in", nothing_denied),
    (
        "network.selector",
        "policy with a misspelt component",
        lambda d: one(d, "NetworkPolicy", "among-trainer")["spec"].update(
            podSelector={"matchLabels": component("trainers")}
        ),
    ),
    (
        "network.value",
        "ports that end before they begin",
        lambda d: one(d, "NetworkPolicy", "aws")["spec"]["egress"][0]["ports"][0].update(endPort=80),
    ),
    (
        "network.value",
        "network with host bits",
        lambda d: one(d, "NetworkPolicy", "metadata")["spec"]["egress"][0]["to"][0]["ipBlock"].update(
            cidr="169.254.169.254/30"
        ),
    ),
    ("trainer.once", "retries", lambda d: one(d, "RayJob")["spec"].update(backoffLimit=3)),
    ("trainer.once", "autoscaling", lambda d: cluster(d).update(enableInTreeAutoscaling=True)),
    (
        "trainer.workers",
        "one worker for sixteen nodes",
        lambda d: cluster(d)["workerGroupSpecs"][0].update(replicas=1, minReplicas=1, maxReplicas=1),
    ),
    ("trainer.workers", "a range of workers", lambda d: cluster(d)["workerGroupSpecs"][0].update(minReplicas=0)),
    (
        "trainer.head",
        "head that offers what it sees",
        lambda d: cluster(d)["headGroupSpec"]["rayStartParams"].pop("num-gpus"),
    ),
    ("rollout.group", "one pod left behind", lambda d: group(d).update(restartPolicy="None")),
    ("rollout.sidecar", "engine beside the agent", agent_with_the_gpus),
    (
        "run.transport",
        "transport not stated",
        lambda d: main(trainer(d))["env"].remove({"name": "NCCL_NET", "value": "Libfabric"}),
    ),
    ("name.valid", "port name of 20 letters", lambda d: main(rollout(d))["ports"][0].update(name="p" * 20)),
    ("name.valid", "volume twice", lambda d: rollout(d)["volumes"].append(volume(rollout(d), "shm"))),
    (
        "resources.huge-pages",
        "volume of huge pages without a request",
        lambda d: rollout(d)["volumes"][0].update(emptyDir={"medium": "HugePages"}),
    ),
    ("reference.claim", "volume that is not rendered", lambda d: drop(d, "PersistentVolume", SCRATCH)),
    (
        "reference.queue",
        "queue of another name",
        lambda d: one(d, "RayJob")["metadata"]["labels"].update({"kueue.x-k8s.io/queue-name": "training"}),
    ),
    (
        "reference.queue",
        "local queue without a cluster queue",
        lambda d: add(d, obj("kueue.x-k8s.io/v1beta2", "LocalQueue", "x", namespace="rl", spec={"clusterQueue": "x"})),
    ),
    (
        "reference.scale-target",
        "nothing to scale",
        lambda d: one(d, "ScaledObject", "environment-environments")["spec"]["scaleTargetRef"].update(name="workers"),
    ),
    (
        "selector.workload",
        "selector that takes in another workload's pods",
        lambda d: daemon_labels(d, "efa-exporter").update(daemon_labels(d, "dcgm-exporter")),
    ),
    (
        "selector.monitor",
        "service monitor of a port that nobody has",
        lambda d: add(d, service_monitor("environment", "metrics")),
    ),
    ("queue.suspended", "a job that starts at once", lambda d: one(d, "Job")["spec"].pop("suspend")),
    (
        "queue.covered",
        "flavor of nodes that do not exist",
        lambda d: one(d, "ResourceFlavor", "trainer")["spec"]["nodeLabels"].update({"moerl.io/pool": "trainers"}),
    ),
    ("pod.volume", "volume that nobody mounts", lambda d: rollout(d)["volumes"].append({"name": "x", "emptyDir": {}})),
    ("pod.start", "alive before it has started", lambda d: main(trainer(d)).pop("startupProbe")),
    (
        "trainer.once",
        "a cluster that outlives its job",
        lambda d: one(d, "RayJob")["spec"].pop("shutdownAfterJobFinishes"),
    ),
    ("trainer.workers", "a worker that comes back", lambda d: trainer(d).update(restartPolicy="OnFailure")),
    ("rollout.group", "a group without its worker", lambda d: group(d).update(size=1)),
    (
        "network.value",
        "rules in a direction that the policy does not have",
        lambda d: one(d, "NetworkPolicy", "serve")["spec"].update(policyTypes=[]),
    ),
    (
        "network.value",
        "exception outside its network",
        lambda d: one(d, "NetworkPolicy", "aws")["spec"]["egress"][0]["to"][0]["ipBlock"].update(cidr="10.0.0.0/8"),
    ),
)
"""(check, what is broken, how)."""
