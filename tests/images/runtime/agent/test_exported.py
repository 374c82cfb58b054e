"""The agent's metrics are those that rules and dashboards name."""

from __future__ import annotations

from k8s.metrics import AGENT
from k8s.metrics import METRICS as CHARTED
from moerl_runtime.agent.exported import METRICS
from moerl_runtime.metrics import Metrics
from tests.images.runtime.agent.simulation import Agent, Engine, World, current


def test_names_kinds_and_texts_are_the_charts_own() -> None:
    charted = {name: (metric.kind, metric.help) for name, metric in CHARTED.items() if metric.exporter is AGENT}
    assert dict(METRICS) == charted


def test_labels_are_the_charts_own() -> None:
    world = World()
    world.point_at(current())
    world.issue(0)
    agent = Agent(world, Engine(world))
    world.run(lambda: world.finished(1), limit_seconds=60)
    agent.notice()
    world.run(lambda: not agent.alive, limit_seconds=60)
    written = {
        (name, label) for name, series in agent.metrics._values.items() for labels in series for label, _ in labels
    }
    assert written == {("moerl_agent_tasks_total", "outcome"), ("moerl_agent_interruptions_total", "reason")}
    assert all(label in CHARTED[name].labels for name, label in written)
    assert agent.metrics.value("moerl_agent_draining_seconds") > 0
    assert agent.metrics.value("moerl_agent_ready") == 0


def test_a_new_agent_exports_every_family() -> None:
    text = Metrics(METRICS).exposition()
    assert all(f"# TYPE {name} " in text for name in METRICS)
