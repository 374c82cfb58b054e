"""The agent's benchmark serves what it issues, and its arithmetic is that of the fleet it names."""

from __future__ import annotations

import pytest

from benchmarks import agent


def test_every_task_of_a_run_is_served_and_stored() -> None:
    services = agent.in_memory()
    spent = agent.serve(services, 12, answer_tokens=3)
    samples = [key for key in services.s3.objects if "/samples/0" in key]
    assert len(samples) == 12 * agent.SAMPLES
    assert len(services.sqs.queues["results"]) == 12 * agent.SAMPLES
    assert services.sqs.queues["tasks"] == []
    assert spent["cpu_seconds"] > 0


def test_a_fleets_load_follows_from_its_tokens() -> None:
    rows = agent.fleet(cpu_ms_per_task=10.0)
    for row, rate in zip(rows, agent.TOKENS_PER_SECOND_AND_GPU, strict=True):
        tokens_per_second = row["tasks_per_second"] * agent.SAMPLES * agent.FLEET_ANSWER_TOKENS
        assert tokens_per_second == pytest.approx(rate * agent.FLEET_GPUS)
        engines = agent.FLEET_GPUS / agent.GPUS_PER_ENGINE
        assert row["tasks_per_second_and_engine"] * engines == pytest.approx(row["tasks_per_second"])
        assert row["cores_per_engine"] == pytest.approx(row["tasks_per_second_and_engine"] * 0.010)
