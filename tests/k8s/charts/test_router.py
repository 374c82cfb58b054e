"""The router of broadcast mode: it is there with everything it needs, and finds a dead engine soon."""

from __future__ import annotations

from typing import Any

from k8s.charts import rollout, router
from k8s.manifest import Object
from tests.k8s.charts.test_rollout import STABLE
from tests.shipped import IMAGE, plan_of


def objects() -> dict[tuple[str, str], Object]:
    made = rollout.objects(plan_of("starter-p5en", {**STABLE, "workload.rollout.router": True}), image=IMAGE)
    return {(item["kind"], item["metadata"]["name"]): item for item in made}


def flags() -> dict[str, str]:
    container = objects()["Deployment", "router"]["spec"]["template"]["spec"]["containers"][0]
    return dict(zip(container["args"][::2], container["args"][1::2], strict=True))


def test_the_service_reaches_the_pods_on_the_port_that_agents_are_told() -> None:
    service, deployment = objects()["Service", "router"], objects()["Deployment", "router"]
    pod = deployment["spec"]["template"]
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert deployment["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    (port,) = service["spec"]["ports"]
    named = {each["name"]: each["containerPort"] for each in pod["spec"]["containers"][0]["ports"]}
    assert f"http://router.rl.svc:{port['port']}" == router.URL
    assert named[port["targetPort"]] == int(flags()["--port"])


def test_a_dead_engine_is_dropped_within_half_a_minute() -> None:
    """The router's default is three minutes."""
    found = flags()
    interval, failures = int(found["--health-check-interval-secs"]), int(found["--health-failure-threshold"])
    assert interval * failures + int(found["--health-check-timeout-secs"]) <= 30
    assert "--service-discovery" not in found


def test_it_binds_its_own_address_and_stops_inside_its_grace() -> None:
    pod = objects()["Deployment", "router"]["spec"]["template"]["spec"]
    assert {flags()["--host"], flags()["--prometheus-host"]} == {"$(POD_IP)"}
    assert int(flags()["--shutdown-grace-period-secs"]) < pod["terminationGracePeriodSeconds"]


def test_each_new_flow_is_open_at_both_ends() -> None:
    """A policy that lets traffic out is of no use where the other end lets nothing in."""
    policies = [item for (kind, _), item in objects().items() if kind == "NetworkPolicy"]
    came, went = set(), set()
    for policy in policies:
        here = policy["spec"]["podSelector"]["matchLabels"]["moerl.io/component"]
        for direction, peers, found in (("ingress", "from", came), ("egress", "to", went)):
            for rule in policy["spec"][direction]:
                there = rule[peers][0]["podSelector"]["matchLabels"]["moerl.io/component"]
                port: Any = rule["ports"][0].get("port")
                found.add((there, here, port) if direction == "ingress" else (here, there, port))
    assert came == went
    assert ("router", "rollout", 30000) in went
    assert ("rollout", "router", 30100) in went
