"""Bounds of a batch that is worth training on: alerts ask for them while a run goes on, the entrypoint at its end.

Exit code 0 says that processes ended well. In Miles' own verification of its AWS examples (docs/VERIFICATION_LOG.md of
awsome-distributed-ai, August 2026) an engine that lost a reduction gave repetition shares of 0.3 to 0.8 and a reward of 0,
and the job succeeded.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class GatesPlan:
    """Bounds of one batch."""

    enforced: bool
    """Whether a run whose last batches are all beyond a bound ends with an error."""
    batches: int = 5
    """Latest batches that must all be beyond a bound; all, of a run that has fewer."""
    repetition_share_max: float = 0.3
    truncated_share_max: float = 0.9
    reward_near_zero: float = 0.01
    """Mean reward, from 0 to either side, at which people are told. No end of a run: rewards may well have the mean 0."""
