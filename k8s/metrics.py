"""Every metric that a rule or a dashboard may name, with its exporter, that exporter's version, and its labels.

Names of other projects are facts about the version named. Names that begin with `moerl_` are this package's own: the
runtime exports them, and its tests compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Kind = Literal["gauge", "counter"]

TARGET_LABELS = ("job", "instance", "namespace", "pod", "container", "endpoint", "node", "pool", "role")
"""What the monitors put on every series (`k8s.charts.observability`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exporter:
    """Who exports, in which release, and where its names were read."""

    name: str
    version: str
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One series family. `labels` are the exporter's own, beside TARGET_LABELS."""

    name: str
    exporter: Exporter
    kind: Kind
    labels: tuple[str, ...] = ()
    help: str


AGENT = Exporter(name="moerl_runtime agent", version="this package", source="k8s/metrics.py")
TRAINER = Exporter(name="moerl_runtime trainer", version="this package", source="k8s/metrics.py")
EFA = Exporter(
    name="moerl_runtime efa-exporter",
    version="this package",
    source="names and types of the efa-node-exporter in awslabs/awsome-distributed-ai, 4.validation_and_observability",
)
SGLANG = Exporter(
    name="SGLang",
    version="0.5.9, 0.5.17 and 0.5.19",
    source="sglang/srt/observability/metrics_collector.py of the wheels",
)
DCGM = Exporter(name="dcgm-exporter", version="4.5.3-4.8.2", source="etc/default-counters.csv of that tag")
KUBE_STATE = Exporter(
    name="kube-state-metrics", version="as kube-prometheus-stack 88.3.0 installs it", source="docs/metrics/workload"
)

_SCHEDULER = ("model_name", "engine_type", "tp_rank", "pp_rank", "moe_ep_rank", "dp_rank")
_DEVICE = ("device", "port")
_GPU = ("gpu", "UUID", "device", "modelName", "Hostname")


def _family(exporter: Exporter, *rows: tuple[str, Kind, tuple[str, ...], str]) -> tuple[Metric, ...]:
    return tuple(
        Metric(name=name, exporter=exporter, kind=kind, labels=labels, help=text) for name, kind, labels, text in rows
    )


_ALL = (
    *_family(
        AGENT,
        ("moerl_agent_ready", "gauge", (), "1 while the agent takes tasks."),
        ("moerl_agent_held", "gauge", (), "1 while it takes none since too many results wait for the trainer."),
        ("moerl_agent_weight_version", "gauge", (), "Version that the engine serves; 0 is the base model."),
        ("moerl_agent_weight_load_seconds", "gauge", (), "Duration of the last fetch and reload."),
        ("moerl_agent_tasks_in_flight", "gauge", (), "Tasks leased and not given back."),
        (
            "moerl_agent_tasks_total",
            "counter",
            ("outcome",),
            "completed, returned, failed, crashed, dead_lettered, stale or expired.",
        ),
        ("moerl_agent_samples_total", "counter", (), "Samples stored in S3."),
        ("moerl_agent_grader_busy_total", "counter", (), "Answers that waited since no grader had time."),
        ("moerl_agent_interruptions_total", "counter", ("reason",), "Drains begun: spot, rebalance or stop."),
        ("moerl_agent_draining_seconds", "gauge", (), "Since this drain began; 0 outside one."),
    ),
    *_family(
        TRAINER,
        ("moerl_trainer_step", "gauge", (), "Step in work."),
        ("moerl_trainer_step_started_timestamp_seconds", "gauge", (), "When that step began, as Unix time."),
        ("moerl_trainer_phase", "gauge", ("phase",), "1 for the phase in work: wait, train, save or publish."),
        ("moerl_trainer_phase_seconds_total", "counter", ("phase",), "Time spent in each phase."),
        ("moerl_trainer_weight_version", "gauge", (), "Newest version published."),
        ("moerl_trainer_reward_mean", "gauge", (), "Mean raw reward of the last batch."),
        ("moerl_trainer_repetition_share", "gauge", (), "Share of repetitive samples in the last batch."),
        ("moerl_trainer_truncated_share", "gauge", (), "Share of truncated samples in the last batch."),
        ("moerl_trainer_staleness_versions", "gauge", (), "Mean age of the last batch's samples, in versions."),
        ("moerl_trainer_tasks_outstanding", "gauge", (), "Tasks issued and without all results."),
        ("moerl_trainer_oldest_task_age_seconds", "gauge", (), "Age of the oldest of those."),
        ("moerl_trainer_tasks_reissued_total", "counter", (), "Tasks issued again from the ledger."),
        ("moerl_trainer_results_total", "counter", ("outcome",), "used, stale, duplicate or invalid."),
        ("moerl_trainer_save_seconds", "gauge", (), "Duration of the last save, for which all ranks waited."),
        ("moerl_trainer_checkpoint_step", "gauge", (), "Step of the newest committed checkpoint."),
    ),
    *_family(
        SGLANG,
        ("sglang:num_running_reqs", "gauge", _SCHEDULER, "Requests in the running batch."),
        ("sglang:num_queue_reqs", "gauge", _SCHEDULER, "Requests that wait."),
        ("sglang:token_usage", "gauge", _SCHEDULER, "Share of the KV cache in use."),
        (
            "sglang:generation_tokens_total",
            "counter",
            ("model_name", "engine_type", "is_streaming"),
            "Tokens generated.",
        ),
        ("sglang:num_retracted_reqs", "gauge", _SCHEDULER, "Requests pushed out of the KV cache."),
    ),
    *_family(
        EFA,
        ("node_amazonefa_rdma_write_bytes", "counter", _DEVICE, "Bytes written by RDMA."),
        ("node_amazonefa_rdma_read_bytes", "counter", _DEVICE, "Bytes read by RDMA."),
        ("node_amazonefa_tx_bytes", "counter", _DEVICE, "Bytes sent."),
        ("node_amazonefa_rx_bytes", "counter", _DEVICE, "Bytes received."),
        ("node_amazonefa_rx_drops", "counter", _DEVICE, "Packets dropped."),
        ("node_amazonefa_rdma_write_wr_err", "counter", _DEVICE, "RDMA writes that failed."),
        ("node_amazonefa_rdma_read_wr_err", "counter", _DEVICE, "RDMA reads that failed."),
    ),
    *_family(
        DCGM,
        ("DCGM_FI_DEV_GPU_UTIL", "gauge", _GPU, "Share of time with a kernel on the GPU, in percent."),
        ("DCGM_FI_DEV_FB_USED", "gauge", _GPU, "GPU memory in use, in MiB."),
        ("DCGM_FI_DEV_XID_ERRORS", "gauge", (*_GPU, "err_code", "err_msg"), "Number of the last Xid."),
        ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", _GPU, "Share of cycles with the tensor pipe active."),
    ),
    *_family(
        KUBE_STATE,
        ("kube_job_status_failed", "gauge", ("job_name", "reason"), "Failed pods of a Job."),
        ("kube_pod_status_phase", "gauge", ("phase", "uid"), "1 for the pod's phase."),
    ),
)

METRICS: Mapping[str, Metric] = MappingProxyType({metric.name: metric for metric in _ALL})
