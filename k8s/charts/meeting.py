"""Headless Services under which pods that work together find each other."""

from __future__ import annotations

from collections.abc import Mapping

from k8s.manifest import Object, obj
from k8s.names import RUN_NAMESPACE

PORT = 29_500
"""Of the Service and its pods. Ranks of preflight take the two behind it as well."""
PORT_NAME = "rendezvous"


def service(name: str, *, labels: Mapping[str, str], selector: Mapping[str, str]) -> Object:
    """The selector's pods from their first address on: they meet before they are ready."""
    return obj(
        "v1",
        "Service",
        name,
        namespace=RUN_NAMESPACE,
        labels=labels,
        spec={
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": dict(selector),
            # By number: names of init containers' ports are not looked up, and a pod without its port may get no record.
            "ports": [{"name": PORT_NAME, "port": PORT, "targetPort": PORT}],
        },
    )


def host(service_name: str) -> str:
    """Name of a Service of the run's namespace."""
    return f"{service_name}.{RUN_NAMESPACE}.svc"


def by_service(service_name: str, nodes: int) -> list[str]:
    """Arguments of preflight for `nodes` pods that know each other by this Service alone."""
    return ["--service", f"{host(service_name)}:{PORT}", "--nodes", str(nodes)]


def by_first_pod(job: str, nodes: int) -> list[str]:
    """Arguments for the pods of an Indexed Job, whose Service has its name: they meet at the first one."""
    return ["--rendezvous", f"{job}-0.{host(job)}:{PORT}", "--nodes", str(nodes)]
