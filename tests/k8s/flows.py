"""What a run must be able to reach, and what it must not: (source, target, protocol, port, passes, why).

Addresses are those of the reference environment. `when` names the environments of a row that holds in some only.
"""

from __future__ import annotations

from dataclasses import dataclass

from k8s.ports import BUFFER_PORT, ENVIRONMENT_PORT, METRICS_PORT
from tests.k8s.network import Endpoint
from tests.shipped import SHIPPED


def _pod(name: str, address: str, namespace: str = "rl", **ports: int) -> Endpoint:
    return Endpoint(address=address, namespace=namespace, labels={"moerl.io/component": name}, ports=ports)


ENDPOINTS: dict[str, Endpoint] = {
    "trainer": _pod("trainer", "10.0.128.10", metrics=METRICS_PORT),
    "trainer-2": _pod("trainer", "10.0.128.11", metrics=METRICS_PORT),
    "rollout": _pod("rollout", "10.0.128.20", metrics=METRICS_PORT),
    "rollout-2": _pod("rollout", "10.0.128.21", metrics=METRICS_PORT),
    "environment": _pod("environment", "10.0.128.30", metrics=METRICS_PORT, http=ENVIRONMENT_PORT),
    "environment-2": _pod("environment", "10.0.128.31", metrics=METRICS_PORT, http=ENVIRONMENT_PORT),
    "buffer": _pod("buffer", "10.0.128.40", metrics=METRICS_PORT, http=BUFFER_PORT),
    "prepare": _pod("prepare", "10.0.128.50"),
    "preflight": _pod("preflight", "10.0.128.60"),
    "preflight-2": _pod("preflight", "10.0.128.61"),
    "unlabelled": Endpoint(address="10.0.128.70", namespace="rl"),
    "other": Endpoint(address="10.0.128.80", namespace="default"),
    "impostor": _pod("trainer", "10.0.128.81", namespace="default"),
    "prometheus": Endpoint(address="10.0.16.5", namespace="monitoring", labels={"app": "prometheus"}),
    "kuberay": Endpoint(address="10.0.16.6", namespace="kuberay-system"),
    "keda": Endpoint(address="10.0.16.7", namespace="keda"),
    "coredns": Endpoint(address="10.0.16.8", namespace="kube-system", labels={"k8s-app": "kube-dns"}),
    "metrics-server": Endpoint(address="10.0.16.9", namespace="kube-system", labels={"k8s-app": "metrics-server"}),
    "metadata": Endpoint(address="169.254.169.254"),
    "pod-identity": Endpoint(address="169.254.170.23"),
    "api-service": Endpoint(address="172.20.0.1"),
    "api-address": Endpoint(address="10.0.20.7"),
    "other-service": Endpoint(address="172.20.33.4"),
    "s3": Endpoint(address="52.218.128.1"),
    "endpoint": Endpoint(address="10.0.24.9"),
    "lustre": Endpoint(address="10.0.128.200"),
}


@dataclass(frozen=True, slots=True)
class Flow:
    source: str
    target: str
    port: int
    passes: bool
    why: str
    protocol: str = "TCP"
    when: tuple[str, ...] = SHIPPED

    def __str__(self) -> str:
        return f"{self.source}-{'to' if self.passes else 'not-to'}-{self.target}-{self.protocol}-{self.port}"


MULTI_NODE = ("p5", "reference-p5en")
ONE_NODE = ("p6-b200", "starter-p5en")

FLOWS: tuple[Flow, ...] = (
    # Bootstrap of a run.
    Flow("trainer", "trainer-2", 6379, True, "Ray's control store on the head"),
    Flow("trainer", "trainer-2", 41234, True, "torch and NCCL bootstrap choose their port"),
    Flow("trainer", "trainer-2", 41234, False, "all that bootstraps is TCP", protocol="UDP"),
    Flow("trainer", "trainer-2", 8265, True, "a submitter labelled as trainer reaches the dashboard"),
    Flow("rollout", "rollout-2", 50000, True, "an engine of several nodes bootstraps", when=MULTI_NODE),
    Flow("rollout", "rollout-2", 50000, False, "engines of one node have nothing to say", when=ONE_NODE),
    Flow("preflight", "preflight-2", 29500, True, "fabric tests rendezvous"),
    Flow("trainer", "rollout", 50000, False, "weights go through S3, never over a group with Spot engines"),
    Flow("rollout", "trainer", 6379, False, "an engine does not join Ray"),
    Flow("rollout", "trainer", 8265, False, "the dashboard runs code for whoever reaches it"),
    Flow("environment", "environment-2", 29500, False, "workers do not know each other"),
    Flow("environment", "trainer", 8265, False, "what a model wrote must not reach Ray"),
    Flow("environment", "rollout", 50000, False, "workers answer, they do not call"),
    Flow("unlabelled", "trainer", 6379, False, "a pod of no component has no way in"),
    Flow("other", "trainer", 6379, False, "another namespace has no way in"),
    Flow("impostor", "trainer", 6379, False, "a label counts in the run's namespace alone"),
    # What serves the run.
    Flow("rollout", "environment", ENVIRONMENT_PORT, True, "agents call environments"),
    Flow("trainer", "environment", ENVIRONMENT_PORT, True, "the trainer may call environments"),
    Flow("rollout", "buffer", BUFFER_PORT, True, "agents call buffers"),
    Flow("trainer", "buffer", BUFFER_PORT, True, "the trainer reads buffers"),
    Flow("rollout", "environment", 22, False, "only the served port is open"),
    Flow("prepare", "environment", ENVIRONMENT_PORT, False, "prepare has no business there"),
    Flow("other", "environment", ENVIRONMENT_PORT, False, "another namespace has no way in"),
    # Names.
    Flow("trainer", "coredns", 53, True, "names", protocol="UDP"),
    Flow("environment", "coredns", 53, True, "names, when the answer is long"),
    Flow("unlabelled", "coredns", 53, True, "every pod resolves names", protocol="UDP"),
    Flow("trainer", "coredns", 9153, False, "CoreDNS's metrics are not for the run"),
    Flow("trainer", "metrics-server", 53, False, "DNS is CoreDNS alone", protocol="UDP"),
    # Observation and operation.
    Flow("prometheus", "trainer", METRICS_PORT, True, "scrape"),
    Flow("prometheus", "rollout", METRICS_PORT, True, "scrape"),
    Flow("prometheus", "environment", METRICS_PORT, True, "scrape"),
    Flow("prometheus", "environment", ENVIRONMENT_PORT, False, "a scraper only scrapes"),
    Flow("other", "trainer", METRICS_PORT, False, "metrics are for the monitoring namespace"),
    Flow("kuberay", "trainer", 8265, True, "the operator submits and polls"),
    Flow("kuberay", "trainer", 6379, False, "the operator needs the dashboard only"),
    Flow("kuberay", "rollout", 8265, False, "rollouts are no Ray cluster"),
    Flow("keda", "rollout", METRICS_PORT, False, "KEDA reads the queue, not the pods"),
    # AWS.
    Flow("trainer", "s3", 443, True, "checkpoints, through the gateway endpoint"),
    Flow("rollout", "s3", 443, True, "weights and samples"),
    Flow("prepare", "s3", 443, True, "the model"),
    Flow("rollout", "endpoint", 443, True, "queues, through an interface endpoint"),
    Flow("trainer", "s3", 80, False, "TLS only"),
    Flow("environment", "s3", 443, False, "no data leaves an environment but by its answer"),
    Flow("buffer", "s3", 443, False, "buffers have no AWS role"),
    Flow("preflight", "s3", 443, False, "preflight has no AWS role"),
    Flow("trainer", "pod-identity", 80, True, "credentials of its role"),
    Flow("rollout", "pod-identity", 80, True, "credentials of its role"),
    Flow("environment", "pod-identity", 80, False, "no role, no credentials"),
    Flow("rollout", "metadata", 80, True, "Spot notice"),
    Flow("preflight", "metadata", 80, True, "proves that agents will see the Spot notice"),
    Flow("trainer", "metadata", 80, False, "the node's role is not the trainer's"),
    Flow("environment", "metadata", 80, False, "nor is it for what a model wrote"),
    Flow("unlabelled", "metadata", 80, False, "nor for a pod of no component"),
    Flow("trainer", "metadata", 443, False, "the wide rule leaves link-local out"),
    # The Kubernetes API.
    Flow("preflight", "api-service", 443, True, "reads what nodes offer"),
    Flow("preflight", "api-address", 443, True, "the same, behind the service address"),
    Flow("trainer", "api-service", 443, False, "no token, no way"),
    Flow("rollout", "api-service", 443, False, "no token, no way"),
    Flow("trainer", "api-address", 443, True, "lies among the endpoints of AWS; without a token it is nobody there"),
    Flow("environment", "api-address", 443, False, "no token, no way"),
    Flow("trainer", "other-service", 443, False, "other services of the cluster are not the run's"),
    Flow("trainer", "lustre", 988, False, "the node mounts Lustre, not the pod"),
)
