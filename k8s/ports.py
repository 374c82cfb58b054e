"""Container ports of the run, once: charts open them, network policies allow them, monitors scrape them."""

from __future__ import annotations

from infra.config.workload_plan import WORKER_PORTS

METRICS_PORT_NAME, SERVE_PORT_NAME = "metrics", "http"
"""Ports that Prometheus scrapes, and ports that environment and buffer workers serve on."""
METRICS_PORT = 9_090
"""Of every container of this package that has metrics."""
FRAMEWORK_METRICS_PORT = 9_091
"""Miles' own exporter, beside it on the trainer's head. Prometheus reads it through METRICS_PORT: Miles binds every address."""
ENGINE_PORT = 30_000
"""SGLang's HTTP server: on loopback, or on the pod's address in broadcast mode."""
ENGINE_BOOTSTRAP_PORT = 20_000
"""torch.distributed of a multi-node engine, on its leader. SGLang takes ports behind it as well, and NCCL any."""
AGENT_PORT = 8_090
"""Rollout agent: probes, and what the agents of a group tell each other (a Spot notice, the version to load)."""
ENVIRONMENT_PORT, BUFFER_PORT = WORKER_PORTS["environment"], WORKER_PORTS["buffer"]
ROUTER_PORT = 30_100
"""Not SGLang's default, which the engine has."""
