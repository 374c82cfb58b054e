"""Whether the last batches of a run were worth training on: a run may end with exit code 0 only if they were.

Bounds are the plan's. Three gates, each closed only if all of the last batches are beyond it:

- `repetition` and `truncated`: shares of samples, as the alerts ask for them.
- `reward`: no sample has more than the lowest reward of the whole run. It is no bound on the mean, since a task may have
  negative rewards, or such whose mean is 0. A healthy run cannot close it: one that learns has had lower rewards than its
  last ones, also where all of those are equal, and a hard task without any success teaches nothing, which is the finding.

Rewards that are not finite never come so far (`samples.problem`); gradients that are not end train.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from moerl_runtime.faults import RuntimeFault
from moerl_runtime.plan import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Gates:
    enforced: bool
    batches: int
    """Latest ones that must all be beyond a bound; all, of a run that has fewer."""
    repetition_share_max: float
    truncated_share_max: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one step trained on."""

    step: int
    reward_min: float
    reward_max: float
    repetition_share: float
    truncated_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The latest batches of a run, over all its attempts."""

    batches: tuple[Batch, ...] = ()
    reward_lowest: float | None = None
    """Of every batch of the run."""

    def __bool__(self) -> bool:
        return bool(self.batches)

    def after(self, batch: Batch, *, keep: int) -> History:
        """With one batch more, and of those before it the `keep` latest."""
        earlier = tuple(known for known in self.batches if known.step < batch.step)
        lowest = batch.reward_min if self.reward_lowest is None else min(self.reward_lowest, batch.reward_min)
        return History(batches=(*earlier[-keep:], batch), reward_lowest=lowest)

    def until(self, step: int) -> History:
        """As of that step: the batch of the next one may be there before a step is saved."""
        return History(
            batches=tuple(batch for batch in self.batches if batch.step <= step), reward_lowest=self.reward_lowest
        )

    def document(self) -> dict[str, Any]:
        return {"batches": [asdict(batch) for batch in self.batches], "reward_lowest": self.reward_lowest}


class BadBatches(RuntimeFault):
    """The processes ended well, and what they trained on was garbage."""

    exit_code = 8


def read(plan: Node) -> Gates:
    """The plan's gates. Raises InputFault for a plan that lacks a bound."""
    written = plan["workload"]["gates"]
    return Gates(
        enforced=written["enforced"].flag,
        batches=written["batches"].number,
        repetition_share_max=written["repetition_share_max"].share,
        truncated_share_max=written["truncated_share_max"].share,
    )


def history(document: Mapping[str, Any] | None) -> History:
    """From its document; empty where there is none."""
    if document is None:
        return History()
    return History(
        batches=tuple(Batch(**batch) for batch in document["batches"]), reward_lowest=document["reward_lowest"]
    )


def fault(gates: Gates, found: History) -> BadBatches | None:
    """What is wrong with the latest batches, or None."""
    latest = found.batches[-gates.batches :]
    lowest = found.reward_lowest
    if not latest or lowest is None:
        return BadBatches(
            "batches", None, "none is known, so nobody can say what was trained on", "Read the rollout manager's log."
        )
    over = f"in each of the last {len(latest)} batches, to step {latest[-1].step}"
    if all(batch.reward_max <= lowest for batch in latest):
        return BadBatches(
            "reward",
            latest[-1].reward_max,
            f"is the lowest of the run, and no sample had more {over}",
            "Read samples and their labels: garbage from every engine is a split of experts or a weight format, and good"
            " answers without reward are a grader that does not read them.",
        )
    for gate, shares, most, fix in (
        (
            "repetition share",
            [batch.repetition_share for batch in latest],
            gates.repetition_share_max,
            "Compare the engines' weight checksums with the published version, and read samples.",
        ),
        (
            "truncated share",
            [batch.truncated_share for batch in latest],
            gates.truncated_share_max,
            "Raise --rollout-max-response-len, or read samples: a policy that never stops looks the same.",
        ),
    ):
        if min(shares) > most:
            return BadBatches(gate, round(shares[-1], 3), f"is beyond {most} {over}", fix)
    return None
