"""What a local engine is started with: the arguments of SGLang that its callers meet, and knobs for every delay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Release = Literal["0.5.17", "0.5.19"]
"""SGLang release whose behaviour is reproduced, where the two differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """Defaults of times are SGLang's own; tests and the smoke job shorten them."""

    release: Release = "0.5.19"
    tp_size: int = 1
    ep_size: int = 1
    dp_size: int = 1
    moe_a2a_backend: str = "none"
    """Shown as asked for; one process does the work whatever they say."""
    model_path: str = "local"
    weight_version: str = "default"
    context_length: int = 4096
    running_requests_max: int = 256
    queued_requests_max: int | None = None
    api_key: str | None = None
    admin_api_key: str | None = None
    enable_metrics: bool = True
    incremental_streaming_output: bool = False
    health_generation: bool = True
    """SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION: whether /health runs the scheduler once, like /health_generate."""

    start_seconds: float = 0.0
    """Until the port opens: load and graph capture."""
    warmup_seconds: float = 0.0
    """From the open port to health 200."""
    load_seconds: float = 0.0
    """Of every weight update, beside what reading the files takes."""
    step_seconds: float = 0.0
    """Of every forward step, beside what the model takes."""
    health_probe_seconds: float = 1.0
    """/health answers no sooner."""
    health_timeout_seconds: float = 20.0
    sigterm_tick_seconds: float = 5.0
    disconnect_tick_seconds: float = 4.0
    """How often a request that does not stream looks for its client."""
    stream_disconnect_seconds: float = 2.0
    abort_repeat_seconds: float = 1.0
    """Of a pause by abort."""
    watchdog_seconds: float = 300.0
    """Without a forward step while a batch is current."""

    @property
    def spans(self) -> bool:
        """Whether answers list which version made which token."""
        return self.release == "0.5.19"
