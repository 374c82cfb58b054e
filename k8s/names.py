"""Names that several charts share."""

from __future__ import annotations

from infra.config.names import NAMESPACE

RUN_NAMESPACE = NAMESPACE
SYSTEM_NAMESPACE = "moerl-system"
"""Privileged agents: device plugins, module loader, exporters."""
MONITORING_NAMESPACE = "monitoring"

TRAINER, ROLLOUT, ENVIRONMENT, BUFFER = "trainer", "rollout", "environment", "buffer"
PREPARE, PREFLIGHT = "prepare", "preflight"
SERVICE_ACCOUNTS = (TRAINER, ROLLOUT, ENVIRONMENT, BUFFER, PREPARE, PREFLIGHT)
"""One per kind of pod; trainer and rollout have AWS roles by Pod Identity, prepare borrows the trainer's."""

SYSTEM_PRIORITY, TRAINER_PRIORITY, ROLLOUT_PRIORITY, WORKER_PRIORITY = (
    "moerl-system",
    "moerl-trainer",
    "moerl-rollout",
    "moerl-worker",
)
TRAINER_QUEUE, BATCH_QUEUE = "trainer", "batch"
RUN_CONFIG = "run-config"
"""ConfigMap with plan.json, mounted at RUN_CONFIG_PATH in every pod of the run."""
RUN_CONFIG_PATH = "/etc/moerl"
SCRATCH_CLAIM = "scratch"
SCRATCH_PATH = "/scratch"
