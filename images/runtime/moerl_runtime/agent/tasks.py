"""Tasks from their lease to their end, and their samples from the request to the announcement."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace

from moerl_runtime.agent import effects as do
from moerl_runtime.agent.agenda import Agenda
from moerl_runtime.agent.ledger import Lease, Ledger, Receipt, Run, Stage
from moerl_runtime.agent.settings import (
    FOREIGN_DELAY_SECONDS,
    GIVE_BACK_DELAY_SECONDS,
    GRADER_DELAY_SECONDS,
    GRADES_MAX,
    LEASE_TOTAL_SECONDS,
    POLL_SLACK_SECONDS,
    RETRIES_MAX,
    RETRY_SECONDS,
    Settings,
    backoff,
    company,
)
from moerl_runtime.agent.weights import Weights, version_of
from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import TaskMessage, decode, request_id, task_key
from moerl_runtime.sqs import BATCH, Received

TASKS = "moerl_agent_tasks_total"


class Tasks:
    """Part of a core. `draining` is set once by the core and never taken back."""

    def __init__(
        self,
        agenda: Agenda,
        ledger: Ledger,
        weights: Weights,
        settings: Settings,
        *,
        metrics: Metrics,
        log: Callable[[str], None],
    ) -> None:
        self._agenda, self._ledger, self._weights, self._settings = agenda, ledger, weights, settings
        self._metrics, self._log = metrics, log
        self.draining = False
        self.trusted = True
        """False once the engine may hold weights that are neither old nor new: no answer of it is stored any more."""
        self.receiving = False
        """A long poll is open."""
        self.poll_ends_seconds = 0.0
        """When that long poll is over at the latest, if it does not hang."""
        self.held = False
        """More results wait for the trainer than it could want."""
        self._waiting: list[Lease] = []
        """Read, and not admitted to the engine."""
        self._queue: deque[tuple[int, int]] = deque()

    # --- leasing ---

    def pull(self) -> None:
        """Asks for as many tasks as there is room for, one long poll at a time, and for none while it has suspects: those wait
        until the engine is empty, and what came meanwhile would wait for them."""
        free = self._settings.tasks_max - len(self._ledger.leases)
        if not self.receiving and not self.held and free > 0 and not any(map(self._suspect, self._ledger.open())):
            self.receiving = True
            self.poll_ends_seconds = self._agenda.now + self._settings.poll_seconds + POLL_SLACK_SECONDS
            self._agenda.do(do.Receive(most=min(free, BATCH), wait_seconds=self._settings.poll_seconds))

    def arrived(self, event: do.Arrived, *, engine_up: bool) -> None:
        """A long poll may outlive the engine, and then brings what was just given back: that is for somebody else."""
        self.receiving = False
        taken = [self._take(received, event.asked_seconds) for received in event.messages]
        new = [lease for lease in taken if lease is not None]
        if engine_up:
            for lease in new:
                self._place(lease)
        else:
            self.give_back(new)

    def place_again(self) -> None:
        """After a look at current.json or a reload: those that wait, and those that are void now."""
        current = self._weights.current
        for lease in self._ledger.open():
            if lease.stage is Stage.WAITING:
                self._place(lease)
            elif current is not None and _void(lease.message, current.run, current.attempt):
                self._discard(lease)

    def read(self, event: do.TaskRead) -> None:
        lease = self._ledger.wanted(event.lease)
        if lease is None or lease.stage is not Stage.READING:
            return
        lease.stage, lease.payload = Stage.WORKING, event.payload
        lease.done = set(event.stored) & set(range(event.payload.samples))
        lease.todo = set(range(event.payload.samples)) - lease.done
        self._waiting.append(lease)
        self._finish_if_complete(lease)

    def unreadable(self, event: do.TaskUnreadable) -> None:
        lease = self._ledger.wanted(event.lease)
        if lease is not None:
            self._fail(lease, event.reason)

    def extend(self) -> None:
        """Extends leases that have run half of their time. SQS ends one after 12 h; those are given back before."""
        now, half = self._agenda.now, self._settings.lease_seconds / 2
        due: list[tuple[int, str]] = []
        for lease in list(self._ledger.leases.values()):
            lease.receipts = {name: each for name, each in lease.receipts.items() if each.ends_seconds > now}
            if not lease.open:
                continue  # extending what is being given back would hide it again
            if any(now - each.first_seconds > LEASE_TOTAL_SECONDS for each in lease.receipts.values()):
                self._log(f"group {lease.message.group} is given back: SQS would end its lease")
                self._release(lease)
                self.give_back([lease])
            else:
                due += [
                    (lease.number, name) for name, each in lease.receipts.items() if each.ends_seconds - now <= half
                ]
        if due:
            numbers, names = zip(*due, strict=True)
            self._agenda.do(do.Extend(numbers, names))

    def extended(self, event: do.Extended) -> None:
        for number, name in zip(event.effect.leases, event.effect.receipts, strict=True):
            lease = self._ledger.leases.get(number)
            if lease is None or name not in lease.receipts:
                continue
            if name in event.lost:
                del lease.receipts[name]
                self._log(f"group {lease.message.group}: a lease of it is over; what runs goes on")
            else:
                first = lease.receipts[name].first_seconds
                lease.receipts[name] = Receipt(first, event.asked_seconds + self._settings.lease_seconds)

    # --- samples ---

    def submit(self) -> None:
        """Sends samples to the engine, up to what it runs at once."""
        if self._waiting:
            self._admit()
        room = self._settings.requests_max - len(self._ledger.runs)
        while self._queue and room > 0:
            number, sample = self._queue.popleft()
            lease = self._ledger.wanted(number)
            if lease is not None and sample in lease.todo:
                self._generate(lease, sample)
                room -= 1

    def ask_again(self, number: int, sample: int) -> None:
        self._queue.append((number, sample))

    def answered(self, event: do.Answered) -> None:
        run, lease = self._read_reply(event.effect)
        if lease is None or lease.payload is None or not self.trusted:
            return
        answer, of = event.answer, lease.message.of
        if self._weights.uncertain:
            self._put_off(lease, run.sample, "its weights are not known")
            return
        if answer.ending == "aborted":
            self._put_off(lease, run.sample, "aborted by somebody else")
            return
        versions: tuple[int, ...] = tuple(dict.fromkeys(run.versions))
        if answer.spans:
            found = [version_of(tag, of) for tag in answer.tags]
            if None in found:
                self._put_off(lease, run.sample, f"served by weights {', '.join(answer.tags)}")
                return
            versions = tuple(version for version in found if version is not None)
        lease.publishing.add(run.sample)
        self._agenda.do(do.Publish(lease.number, run.sample, of, lease.payload, answer, versions))

    def unanswered(self, event: do.Unanswered) -> None:
        run, lease = self._read_reply(event.effect)
        if lease is None:
            return
        if event.kind == "refused":
            self._fail(lease, f"sample {run.sample}: {event.reason}")
        else:
            self._put_off(lease, run.sample, event.reason)

    def published(self, event: do.Published) -> None:
        if event.new:
            self._metrics.add("moerl_agent_samples_total")
        lease = self._ledger.wanted(event.lease)
        if lease is not None:
            lease.publishing.discard(event.sample)
            lease.done.add(event.sample)
            self._finish_if_complete(lease)

    def ungraded(self, event: do.Ungraded) -> None:
        lease = self._ledger.wanted(event.lease)
        if lease is not None:
            lease.publishing.discard(event.sample)
            self._fail(lease, f"sample {event.sample}: {event.reason}")

    def grader_busy(self, event: do.GraderBusy) -> None:
        """The answer is offered again a little later. In the end the task goes back: no failure of its own, so it is not counted
        as one, but its lease would last for ever."""
        self._metrics.add("moerl_agent_grader_busy_total")
        effect, lease = event.effect, self._ledger.wanted(event.effect.lease)
        if lease is None:
            return
        offers = lease.offers[effect.sample] = lease.offers.get(effect.sample, 0) + 1
        if self.draining:
            self._agenda.later(RETRY_SECONDS / 2, do.Due("retry", effect))
        elif offers < GRADES_MAX:
            self._agenda.later(backoff(offers - 1), do.Due("retry", effect))
        else:
            self._log(f"group {lease.message.group} is given back: no grader had time, {offers} times: {event.reason}")
            self._release(lease)
            self.give_back([lease], GRADER_DELAY_SECONDS)

    # --- ends ---

    def engine_lost(self, reason: str, *, blame: bool) -> None:
        """All tasks go back, except those that only have to be published. With `blame` those that the engine worked at are
        counted: it may have been one of them that ended it, and without a count it would end every engine."""
        for lease in self._ledger.open(Stage.WORKING):
            if blame and (lease.running or lease.tries):
                self._crash(lease, reason)
        self.give_back([lease for lease in self._ledger.open() if lease.todo or lease.running or not lease.publishing])

    def give_back(self, leases: Iterable[Lease], delay_seconds: int = 0) -> None:
        ours = []
        for lease in leases:
            lease.stage = Stage.CLOSING
            if lease.receipts:
                ours.append(lease)
            else:
                self.close(lease.number, "expired")
        if ours:
            receipts = tuple(name for lease in ours for name in lease.receipts)
            self._agenda.do(do.GiveBack(tuple(lease.number for lease in ours), receipts, delay_seconds))

    def sent_again(self, event: do.FailureSent) -> None:
        lease = self._ledger.leases.get(event.lease)
        if lease is not None:
            self.close(event.lease, "dead_lettered" if event.dead else lease.sent_again_as)

    def close(self, number: int, outcome: str) -> None:
        """The task is out of this agent's hands."""
        if self._ledger.leases.pop(number, None) is not None:
            self._metrics.add(TASKS, outcome=outcome)

    def _take(self, received: Received, asked_seconds: float) -> Lease | None:
        """The new lease, where there is one."""
        try:
            message = _message(received.body)
        except InputFault as fault:
            self._log(str(fault))
            foreign = fault.key == "protocol"  # agents of its release will take it
            receipt = received.receipt
            self._agenda.do(
                do.GiveBack((), (receipt,), FOREIGN_DELAY_SECONDS) if foreign else do.Bury(receipt, received.body)
            )
            return None
        delivery = Receipt(asked_seconds, asked_seconds + self._settings.lease_seconds)
        fresh = received.receive_count == 1 and not (message.issue or message.failures or message.crashes)
        return self._ledger.add(message, received.receipt, delivery, now=self._agenda.now, fresh=fresh)

    def _place(self, lease: Lease) -> None:
        """Begins a task, or says why not: drained, void, or waiting for a look at current.json or for weights."""
        current, of, version_min = self._weights.current, lease.message.of, lease.message.version_min
        looked = self._weights.looked_seconds >= lease.arrived_seconds
        if self.draining:
            self.give_back([lease])
        elif current is not None and current.of == of and version_min <= current.version:
            loaded = self._weights.loaded
            if loaded is not None and loaded.of == of and version_min <= loaded.version:
                lease.stage = Stage.READING
                self._agenda.do(do.ReadTask(lease.number, lease.message, lease.fresh))
            elif self._weights.cannot_load(current):
                self.give_back([lease], GIVE_BACK_DELAY_SECONDS)
        elif not looked:
            self._weights.look()
        elif current is not None and _void(lease.message, current.run, current.attempt):
            self._discard(lease)
        else:
            self.give_back([lease], GIVE_BACK_DELAY_SECONDS)

    def _suspect(self, lease: Lease) -> bool:
        return company(lease.message.crashes, self._settings.tasks_max) < self._settings.tasks_max

    def _admit(self) -> None:
        """Lets tasks into the engine that were read: first those of which nothing is suspected, then the others among themselves,
        in no more company than they may have."""
        waiting = sorted(
            (lease for lease in self._waiting if lease.stage is Stage.WORKING), key=lambda lease: lease.message.crashes
        )
        inside = [lease for lease in self._ledger.open(Stage.WORKING) if lease.inside]
        # Requests that nobody wants any more may end an engine as well, and may hang: a suspect is for somebody else then.
        strangers = not inside and bool(self._ledger.runs)
        self._waiting = []
        for lease in waiting:
            if strangers and self._suspect(lease):
                self.give_back([lease], GIVE_BACK_DELAY_SECONDS)
                continue
            if not self._may_join(lease, inside):
                self._waiting.append(lease)
                continue
            lease.admitted, lease.alone = True, not inside and not strangers
            for other in inside:
                other.alone = False
            inside.append(lease)
            self._queue.extend((lease.number, sample) for sample in sorted(lease.todo))

    def _may_join(self, lease: Lease, inside: list[Lease]) -> bool:
        if any(self._suspect(other) != self._suspect(lease) for other in inside):
            return False
        if not self._suspect(lease):
            return True
        together = min(company(each.message.crashes, self._settings.tasks_max) for each in (lease, *inside))
        return len(inside) < together

    def _generate(self, lease: Lease, sample: int) -> None:
        loaded, payload = self._weights.loaded, lease.payload
        assert loaded is not None, "nothing is submitted to an engine of unknown weights"
        assert payload is not None, "only tasks that were read are queued"
        name = request_id(lease.message.of, lease.message.group, sample, self._ledger.next_request())
        lease.todo.discard(sample)
        lease.running.add(sample)
        self._ledger.runs[name] = Run(lease.number, sample, [loaded.version])
        self._agenda.do(do.Generate(lease.number, sample, name, payload, loaded.tag))

    def _read_reply(self, effect: do.Generate) -> tuple[Run, Lease | None]:
        run = self._ledger.runs.pop(effect.request_id)
        lease = None if run.lease is None else self._ledger.wanted(run.lease)
        if lease is not None:
            lease.running.discard(run.sample)
        return run, lease

    def _put_off(self, lease: Lease, sample: int, reason: str) -> None:
        """The sample is asked for again a little later. In a drain it is not: its task stays unfinished."""
        lease.todo.add(sample)
        if self.draining:
            return
        tries = lease.tries[sample] = lease.tries.get(sample, 0) + 1
        if tries > RETRIES_MAX:
            self._fail(lease, f"sample {sample}, {tries} times: {reason}")
        else:
            self._agenda.later(backoff(tries - 1), do.Due("sample", lease=lease.number, sample=sample))

    def _finish_if_complete(self, lease: Lease) -> None:
        if not lease.complete:
            return
        lease.stage = Stage.CLOSING
        if lease.receipts:
            self._agenda.do(do.Delete(lease.number, tuple(lease.receipts), "completed"))
        else:
            self.close(lease.number, "expired")  # whoever has it now finds everything stored

    def _discard(self, lease: Lease) -> None:
        """Of an older attempt or another run: nobody wants it."""
        self._release(lease)
        lease.stage = Stage.CLOSING
        if lease.receipts:
            self._agenda.do(do.Delete(lease.number, tuple(lease.receipts), "stale"))
        else:
            self.close(lease.number, "stale")

    def _fail(self, lease: Lease, reason: str) -> None:
        """An own failure."""
        self._log(f"group {lease.message.group}, failure {lease.message.failures + 1}: {reason}")
        self._release(lease)
        self._send_again(lease, replace(lease.message, failures=lease.message.failures + 1), reason)

    def _crash(self, lease: Lease, reason: str) -> None:
        """The engine ended with it inside. That is its own failure where nothing else can have been the cause."""
        counted = replace(
            lease.message, crashes=lease.message.crashes + 1, failures=lease.message.failures + lease.alone
        )
        lease.sent_again_as = "failed" if lease.alone else "crashed"
        with_whom = "it alone" if lease.alone else "it and others"
        said = f"the engine ended while it worked at {with_whom}: {reason}"
        self._log(f"group {counted.group}, crash {counted.crashes}, failures {counted.failures}: {said}")
        self._release(lease, abort=False)
        self._send_again(lease, counted, said)

    def _send_again(self, lease: Lease, counted: TaskMessage, reason: str) -> None:
        """The message goes to the end of the queue with what is counted in it, or to the dead letters."""
        lease.stage = Stage.CLOSING
        if lease.receipts:
            self._agenda.do(do.Fail(lease.number, tuple(lease.receipts), counted, reason))
        else:
            self.close(lease.number, "expired")  # whoever has it now counts for himself

    def _release(self, lease: Lease, *, abort: bool = True) -> None:
        """Nobody wants what the engine still does for it."""
        for name in list(self._ledger.orphan(lease)):
            if abort:
                self._agenda.do(do.AbortRequest(name))


def _message(body: str) -> TaskMessage:
    """Raises InputFault, also for a task with the key of another: S3 would be asked for it for ever."""
    message = decode(TaskMessage, body)
    if message.key != (own := task_key(message.of, message.group)):
        raise InputFault("key", message.key, f"is not {own}", "Send it anew.")
    return message


def _void(message: TaskMessage, run: str, attempt: int) -> bool:
    return message.run != run or message.attempt < attempt
