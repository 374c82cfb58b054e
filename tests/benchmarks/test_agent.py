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


def test_a_fleets_longer_answers_cost_what_two_measured_lengths_say() -> None:
    """The numbers of docs/results/2026-11-29-agent-throughput.md."""

    def row(services: str, tokens: int, cpu: float, http: float) -> dict[str, object]:
        return {
            "services": services,
            "answer_tokens": tokens,
            "cpu_ms_per_task": {"median": cpu},
            "http_cpu_ms_per_task": http,
        }

    in_memory = [row("memory", 16, 0.71, 6.5), row("memory", 1_000, 2.97, 11.7)]
    assert agent.cpu_ms(in_memory, 16) == pytest.approx(0.71 + 6.5)
    assert agent.cpu_ms(in_memory, 1_000) == pytest.approx(2.97 + 11.7)
    through_boto3 = row("embedded", 16, 24.1, 6.5)
    assert agent.cpu_ms([*in_memory, through_boto3], 2_000) == pytest.approx(45.7, abs=0.1)
