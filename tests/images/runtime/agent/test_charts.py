"""The command lines that the charts render are those that this program takes."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.config.plan import Plan
from k8s.charts import rollout
from k8s.charts.rollout import AGENT_PORT
from moerl_runtime import serve
from moerl_runtime.agent import cli
from moerl_runtime.agent.cli import HOOK_SECONDS
from tests.shipped import IMAGE, SHIPPED, plan_of


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(exit_on_error=False)
    cli.register(made.add_subparsers(required=True))
    return made


def agents(plan: Plan) -> Iterator[tuple[Plan, dict[str, Any], dict[str, Any]]]:
    """(plan, pod spec, agent container) of every pod template."""
    for fleet in rollout.objects(plan, image=IMAGE):
        if fleet["kind"] == "LeaderWorkerSet":
            group = fleet["spec"]["leaderWorkerTemplate"]
            for name in ("leaderTemplate", "workerTemplate"):
                if name in group:
                    spec = group[name]["spec"]
                    (container,) = [each for each in spec["containers"] if each["name"] == "agent"]
                    yield plan, spec, container


def words(command: list[str]) -> list[str]:
    assert command[:3] == ["python", "-m", "moerl_runtime"]
    return [word.replace("$(POD_IP)", "10.0.1.7").replace("$(LWS_LEADER_ADDRESS)", "leader.rl") for word in command[3:]]


BROADCAST = {
    "pools.rollout.nodes": 2,
    "pools.rollout.capacity": {"type": "on_demand"},
    "workload.rollout.router": True,
}
CASES = [
    *(pytest.param(name, {}, id=name) for name in SHIPPED),
    pytest.param("starter-p5en", BROADCAST, id="behind a router"),
]


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_every_rendered_command_line_is_understood(name: str, changes: dict[str, Any]) -> None:
    plan = plan_of(name, changes)
    found = list(agents(plan))
    assert found
    for _, _, container in found:
        parsed = parser().parse_args(words([*container["command"], *container["args"]]))
        assert parsed.pool in {each.pool for each in plan.workload.rollouts}
        assert serve.address(parsed.listen) == ("10.0.1.7", AGENT_PORT)
        assert parsed.engine.endswith(":30000")
        assert parsed.models == Path("/models")
        assert parsed.plan == Path("/etc/moerl/plan.json")
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert parsed.metrics_port == ports["metrics"]
        if "lead" in container["command"]:
            assert bool(parsed.router) == bool(parsed.advertise) == plan.workload.router


@pytest.mark.parametrize(("name", "changes"), CASES)
def test_the_hook_is_understood_and_leaves_the_follower_time_to_end(name: str, changes: dict[str, Any]) -> None:
    for _, spec, container in agents(plan_of(name, changes)):
        hook = container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if hook is not None:
            parsed = parser().parse_args(words(hook))
            assert parsed.port == AGENT_PORT
            assert parsed.seconds == HOOK_SECONDS < spec["terminationGracePeriodSeconds"]
