"""The trainer's book of groups: what was issued, what came back, what was trained on. No clock, thread or client.

A prompt has a position in the endless, shuffled stream of prompts; a group is one try at it, with an id that is used once
in the life of a run. Every position below the cursor is in exactly one place: open (sent, or to be sent, or complete and
waiting), due again under a new id, taken by a step, or dead. That sum is what a checkpoint keeps and what the tests hold.

A group whose samples are too old or damaged gets a new id, because sample objects are written once: under the old id every
agent would find them stored and generate nothing. A group that is late keeps its id, since a second answer then counts as
done already.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import Sample

FORM = 1
"""Of the state in a checkpoint."""
BACKOFF_MAX = 3
"""Doublings of the deadline of a group that is late again and again."""

Recorded = Literal["used", "duplicate", "unknown"]


@dataclass(slots=True, kw_only=True)
class Group:
    """One open group. Times are the caller's clock, in seconds."""

    id: int
    position: int
    tries: int = 0
    """Earlier groups of this prompt that came to nothing by their own fault."""
    sent: bool = False
    sent_at: float = 0.0
    """First time under this attempt."""
    deadline: float = 0.0
    issues: int = 0
    """Times it was sent again."""
    postponed: int = 0
    """Times that its deadline moved because the queue still held it."""
    samples: dict[int, Sample] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """A group as a step trains on it: samples in the order of their numbers."""

    id: int
    position: int
    tries: int
    samples: tuple[Sample, ...]


@dataclass(slots=True, kw_only=True)
class Counters:
    """Totals over all attempts of the run, in groups."""

    taken: int = 0
    dead: int = 0
    skipped: int = 0
    stale: int = 0
    invalid: int = 0
    reissued: int = 0


class Ledger:
    """Not thread-safe: its owner holds the lock."""

    def __init__(self, *, samples: int, window: int, reissue_seconds: float, tries_max: int = 3) -> None:
        if samples < 1 or window < 1:
            raise ValueError(f"a ledger of {samples} samples a group and {window} groups holds nothing")
        self.samples = samples
        self.window = window
        self.counters = Counters()
        self._reissue_seconds = reissue_seconds
        self._tries_max = tries_max
        self._next_group = 0
        self._next_position = 0
        self._open: dict[int, Group] = {}
        """In the order of ids."""
        self._again: deque[tuple[int, int]] = deque()
        """(position, tries) that are due under a new id."""
        self._taken: dict[int, list[tuple[int, int, int]]] = {}
        """Step to its groups, of steps that no checkpoint holds yet."""

    # --- issuing

    def fill(self) -> list[Group]:
        """Opens groups up to the window. Returns all that are to be sent, in order."""
        while len(self._open) < self.window:
            self._opened()
        return [group for group in self._open.values() if not group.sent]

    def room(self) -> int:
        """Groups that `fill` would return."""
        return self.window - len(self._open) + sum(not group.sent for group in self._open.values())

    def sent(self, group: int, now: float) -> None:
        """The group's message is in the queue, for the first time or again."""
        found = self._open.get(group)
        if found is None:
            return
        if found.sent:
            found.issues += 1
            self.counters.reissued += 1
        else:
            found.sent, found.sent_at = True, now
        self._set_deadline(found, now)

    def overdue(self, now: float) -> list[Group]:
        """Incomplete groups whose deadline has passed."""
        return [group for group in self.outstanding() if group.deadline <= now]

    def postpone(self, group: int, now: float) -> None:
        """The queue still holds it: it is late, not lost."""
        found = self._open.get(group)
        if found is not None and found.sent:
            found.postponed += 1
            self._set_deadline(found, now)

    # --- results

    def missing(self, group: int, sample: int) -> bool:
        """Whether that sample would be of use."""
        found = self._open.get(group)
        return found is not None and 0 <= sample < self.samples and sample not in found.samples

    def record(self, sample: Sample) -> Recorded:
        """Keeps a valid sample; twice the same, or one of a group that is finished, changes nothing."""
        found = self._open.get(sample.group)
        # Not whether it was sent: an agent may be done before the sender has noted it.
        if found is None or not 0 <= sample.sample < self.samples:
            return "unknown"
        if sample.sample in found.samples:
            return "duplicate"
        found.samples[sample.sample] = sample
        return "used"

    def damaged(self, group: int) -> Literal["again", "dead", "unknown"]:
        """A stored sample of it cannot be trained on. It gets a new id, and is dead after `tries_max` of them."""
        found = self._open.pop(group, None)
        if found is None:
            return "unknown"
        self.counters.invalid += 1
        if found.tries + 1 >= self._tries_max:
            self.counters.dead += 1
            return "dead"
        self._again.append((found.position, found.tries + 1))
        return "again"

    def dead(self, group: int) -> bool:
        """An agent set it aside. The next prompt takes its place. False where it was not open any more."""
        found = self._open.get(group)
        if found is None or self._is_ready(found):
            return False
        del self._open[group]
        self.counters.dead += 1
        return True

    def skip(self, group: int) -> None:
        """Its prompt cannot be used at all (too long, for example)."""
        if self._open.pop(group, None) is not None:
            self.counters.skipped += 1

    def take(self, step: int, count: int, *, oldest_version: int) -> list[Taken] | None:
        """The `count` oldest complete groups for a step, or None while there are fewer.

        Groups with a sample of weights before `oldest_version` are not trained on; they are due again.
        """
        for group in [group for group in self._ready() if _oldest(group) < oldest_version]:
            del self._open[group.id]
            self.counters.stale += 1
            self._again.append((group.position, group.tries))
        ready = self._ready()[:count]
        if len(ready) < count:
            return None
        for group in ready:
            del self._open[group.id]
        self.counters.taken += count
        self._taken.setdefault(step, []).extend((group.id, group.position, group.tries) for group in ready)
        return [
            Taken(
                id=group.id,
                position=group.position,
                tries=group.tries,
                samples=tuple(group.samples[number] for number in range(self.samples)),
            )
            for group in ready
        ]

    # --- prompts for somebody else

    def lend(self, step: int) -> tuple[int, int]:
        """(id, position) of a prompt that the caller finishes by himself; it counts as taken by that step."""
        group = self._opened()
        del self._open[group.id]
        self.counters.taken += 1
        self._taken.setdefault(step, []).append((group.id, group.position, group.tries))
        return group.id, group.position

    def give_back(self, group: int) -> bool:
        """Takes a lent prompt back; it is due again under a new id. False for an id that no open step holds."""
        for entries in self._taken.values():
            for entry in entries:
                if entry[0] == group:
                    entries.remove(entry)
                    self.counters.taken -= 1
                    self._again.append((entry[1], entry[2]))
                    return True
        return False

    # --- views

    def outstanding(self) -> list[Group]:
        """Sent and incomplete, in order."""
        return [group for group in self._open.values() if group.sent and not self._is_ready(group)]

    def ready_count(self) -> int:
        return len(self._ready())

    def place(self, group: int) -> int:
        """How many open groups come before it."""
        return sum(1 for other in self._open if other < group)

    def first_open(self) -> int:
        """The lowest open id; the next id where none is open."""
        return next(iter(self._open), self._next_group)

    @property
    def next_position(self) -> int:
        return self._next_position

    # --- checkpoints

    def state(self, step: int) -> dict[str, Any]:
        """What a checkpoint of `step` has to know: whatever later steps have taken counts as open."""
        later = [entry for taken, entries in self._taken.items() if taken > step for entry in entries]
        open_groups = sorted([*later, *((group.id, group.position, group.tries) for group in self._open.values())])
        counters = {name: getattr(self.counters, name) for name in Counters.__slots__}
        counters["taken"] -= len(later)
        return {
            "form": FORM,
            "samples": self.samples,
            "next_group": self._next_group,
            "next_position": self._next_position,
            "open": [list(entry) for entry in open_groups],
            "again": [list(entry) for entry in self._again],
            "counters": counters,
        }

    def saved(self, step: int) -> None:
        """The state of that step is handed over; what it took is not asked for any more."""
        self._taken = {taken: entries for taken, entries in self._taken.items() if taken > step}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes up a checkpoint's state; open groups are to be sent anew, under the same ids and the new attempt."""
        if self._next_group:
            raise ValueError("restore() is for a ledger that has issued nothing")
        if state.get("form") != FORM:
            raise InputFault("ledger.form", state.get("form"), f"is not {FORM}", "Resume with the image that saved it.")
        if state["samples"] != self.samples:
            raise InputFault(
                "--n-samples-per-prompt",
                self.samples,
                f"the checkpoint was saved with {state['samples']}, and open groups have that many samples",
                "Start a new run, or write the old number.",
            )
        self._next_group = int(state["next_group"])
        self._next_position = int(state["next_position"])
        self._open = {
            number: Group(id=number, position=position, tries=tries) for number, position, tries in state["open"]
        }
        self._again = deque((position, tries) for position, tries in state["again"])
        self.counters = Counters(**state["counters"])

    # --- inside

    def _opened(self) -> Group:
        if self._again:
            position, tries = self._again.popleft()
        else:
            position, tries = self._next_position, 0
            self._next_position += 1
        group = Group(id=self._next_group, position=position, tries=tries)
        self._next_group += 1
        self._open[group.id] = group
        return group

    def _set_deadline(self, group: Group, now: float) -> None:
        group.deadline = now + self._reissue_seconds * 2 ** min(group.issues + group.postponed, BACKOFF_MAX)

    def _is_ready(self, group: Group) -> bool:
        return len(group.samples) == self.samples

    def _ready(self) -> list[Group]:
        return [group for group in self._open.values() if self._is_ready(group)]


def positions(state: Mapping[str, Any]) -> Iterator[int]:
    """Prompt positions that a state still owes, open ones first."""
    yield from (entry[1] for entry in state["open"])
    yield from (entry[0] for entry in state["again"])


def _oldest(group: Group) -> int:
    versions: Sequence[int] = [version for sample in group.samples.values() for version in sample.versions]
    return min(versions)
