"""Tasks go out up to the window, and every sample that is stored is found, whatever happens to its message."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from moerl_runtime import protocol, sqs, store
from moerl_runtime.faults import InputFault
from moerl_runtime.metrics import Metrics
from moerl_runtime.protocol import Attempt, DeadLetter, ResultMessage, Sample, TaskMessage, TaskPayload
from moerl_runtime.trainer.dispatch import Feed, Limits, Pace, Stalled, TooManyDead
from moerl_runtime.trainer.ledger import Ledger
from moerl_runtime.trainer.metrics import metrics
from tests.images.runtime.trainer.fakes import Agent, Bed, Clock, Fleet, chaos, payload, sample

ATTEMPT = Attempt(run="trainer-0123abcd", number=3)
FAST = Pace(
    reissue_seconds=100.0,
    stall_seconds=1_000.0,
    sweep_seconds=0.3,
    poll_seconds=0.02,
    long_poll_seconds=1,
)


class Rig:
    """A feed, its parts, and a clock that the test moves."""

    def __init__(self, aws: Bed, *, batch: int = 2, staleness: int = 2, samples: int = 2, **changes: Any) -> None:
        self.aws, self.clock = aws, Clock()
        self.metrics: Metrics = metrics()
        self.limits = Limits(batch=batch, staleness=staleness, dead_min=3)
        self.ledger = Ledger(samples=samples, window=self.limits.window, reissue_seconds=FAST.reissue_seconds)
        given: dict[str, Any] = {
            "ledger": self.ledger,
            "attempt": ATTEMPT,
            "payload": lambda position, group: payload(position, group, samples),
            "limits": self.limits,
            "queues": aws.queues,
            "bucket": aws.bucket,
            "s3": aws.s3,
            "sqs_client": aws.sqs_client,
            "fetch": self.fetch,
            "metrics": self.metrics,
            "clock": self.clock,
            "pace": FAST,
        }
        self.feed = Feed(**(given | changes))
        self.agent = Agent(aws, ATTEMPT)

    def fetch(self, _group: int, key: str) -> bytes | None:
        found = store.get(self.aws.s3, self.aws.bucket, key)
        return None if found is None else found.body

    def tasks(self) -> list[TaskMessage]:
        """What waits in the task queue, taken out of it."""
        found = []
        while messages := sqs.receive(
            self.aws.sqs_client, self.aws.queues.task, most=10, wait_seconds=0, lease_seconds=30
        ):
            found += [protocol.decode(TaskMessage, message.body) for message in messages]
            sqs.delete(self.aws.sqs_client, self.aws.queues.task, [message.receipt for message in messages])
        return sorted(found, key=lambda task: task.group)

    def collect(self) -> int:
        total = 0
        while count := self.feed.collect_once(0):
            total += count
        return total

    def counted(self, outcome: str) -> float:
        return self.metrics.value("moerl_trainer_results_total", outcome=outcome)


def waiting(aws: Bed, queue: str) -> int:
    return sum(sqs.depth(aws.sqs_client, queue))


def test_the_window_goes_out_with_payloads_that_were_written_first(aws: Bed) -> None:
    rig = Rig(aws)
    assert rig.feed.dispatch_once() == 4
    assert rig.feed.dispatch_once() == 0
    tasks = rig.tasks()
    assert [task.group for task in tasks] == [0, 1, 2, 3]
    for task in tasks:
        stored = store.get(aws.s3, aws.bucket, task.key)
        assert stored is not None
        found = protocol.decode(TaskPayload, stored.body)
        assert (found.group, found.metadata) == (task.group, {"position": task.group})
    assert rig.metrics.value("moerl_trainer_tasks_outstanding") == 4


def test_a_batch_comes_in_the_order_of_ids_and_makes_room_for_the_next(aws: Bed) -> None:
    rig = Rig(aws)
    rig.feed.dispatch_once()
    assert rig.agent.work() == 4
    assert rig.collect() == 8
    taken = rig.feed.batch(0, 0)
    assert [group.id for group in taken] == [0, 1]
    assert all(isinstance(entry, Sample) for group in taken for entry in group.samples)
    assert rig.feed.dispatch_once() == 2
    assert [task.group for task in rig.tasks()] == [4, 5]
    assert rig.counted("used") == 8
    assert waiting(aws, aws.queues.result) == 0


def test_no_task_asks_for_weights_that_do_not_exist_and_none_will_be_too_old(aws: Bed) -> None:
    rig = Rig(aws, batch=2, staleness=2)
    version, seen = 0, []
    rig.agent.version = lambda: version
    for step in range(6):
        rig.feed.dispatch_once()
        for task in rig.tasks():
            assert task.version_min <= version
            seen.append(task.version_min)
            for number in range(2):
                # The oldest weights that the task allows.
                rig.agent.version = lambda task=task: task.version_min
                rig.agent.publish(task, number)
        rig.collect()
        rig.clock.step_seconds = 50.0  # a wait would end in a stall
        taken = rig.feed.batch(step, version)
        rig.clock.step_seconds = 0.0
        assert min(group.samples[0].versions[0] for group in taken) >= version - 2
        version += 1
    assert rig.ledger.counters.stale == 0
    assert max(seen) == 4


def test_a_result_that_was_lost_is_found_in_s3(aws: Bed) -> None:
    rig = Rig(aws)
    rig.agent.fate = lambda _: "lose-result"
    rig.feed.dispatch_once()
    rig.agent.work()
    assert rig.collect() == 0
    assert rig.feed.sweep_once() == 8
    assert [group.id for group in rig.feed.batch(0, 0)] == [0, 1]
    assert rig.feed.sweep_once() == 0


def test_what_nobody_of_the_run_wrote_below_its_samples_is_passed_over_and_named_once(
    aws: Bed, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(aws)
    rig.agent.fate = lambda _: "lose-result"
    rig.feed.dispatch_once()
    rig.agent.work()
    below = protocol.stored_prefix(ATTEMPT)
    strays = [f"{below}a-note.txt", f"{below}0000000000/copy of 0001.json", f"{below}0000000001/0001.json.old"]
    for key in strays:
        store.put(aws.s3, aws.bucket, key, b"{}")
    assert rig.feed.sweep_once() == 8
    rig.feed.sweep_once()
    logged = [record.getMessage() for record in caplog.records if "passed over" in record.getMessage()]
    assert sorted(line.split(" is nothing", 1)[0] for line in logged) == sorted(strays)


def test_a_sample_counts_once_however_often_it_is_announced(aws: Bed) -> None:
    rig = Rig(aws)
    rig.agent.fate = lambda _: "twice"
    rig.feed.dispatch_once()
    rig.agent.work()
    rig.feed.sweep_once()
    rig.collect()
    assert rig.counted("used") == 8
    assert rig.counted("duplicate") == 16
    assert len(rig.feed.batch(0, 0)) == 2


def test_results_of_another_attempt_or_run_are_dropped(aws: Bed) -> None:
    rig = Rig(aws)
    rig.feed.dispatch_once()
    for attempt in (Attempt(run=ATTEMPT.run, number=2), Attempt(run="other", number=3)):
        body = ResultMessage(run=attempt.run, attempt=attempt.number, group=0, sample=0, key="k")
        sqs.send(aws.sqs_client, aws.queues.result, [protocol.encode(body)])
    sqs.send(aws.sqs_client, aws.queues.result, ["{}"])
    assert rig.collect() == 3
    assert (rig.counted("stale"), rig.counted("invalid"), rig.counted("used")) == (2, 1, 0)
    assert waiting(aws, aws.queues.result) == 0


def test_a_task_that_is_late_is_issued_again_unless_the_queue_still_holds_all(aws: Bed) -> None:
    rig = Rig(aws)
    rig.feed.dispatch_once()
    rig.clock.now = 101.0
    assert rig.feed.dispatch_once() == 0, "all four wait in the queue: nobody takes tasks"
    rig.tasks()
    rig.clock.now = 1_000.0
    assert rig.feed.dispatch_once() == 4
    assert [task.issue for task in rig.tasks()] == [1, 1, 1, 1]
    assert rig.metrics.value("moerl_trainer_tasks_reissued_total") == 4


def test_estimates_of_the_queue_hold_a_task_back_three_times_at_most(aws: Bed) -> None:
    rig = Rig(aws)
    rig.feed.dispatch_once()
    sent = []
    for _ in range(5):
        rig.clock.now += 10_000.0
        sent.append(rig.feed.dispatch_once())
    assert sent == [0, 0, 0, 4, 4]


def test_a_half_finished_group_is_completed_under_its_own_id(aws: Bed) -> None:
    rig = Rig(aws, batch=1, staleness=1)
    rig.agent.fate, rig.agent.lease_seconds = (lambda _: "half"), 0
    rig.feed.dispatch_once()
    rig.agent.work(most=1)
    rig.agent.fate = lambda _: None
    rig.agent.work(most=1)
    rig.collect()
    (group,) = rig.feed.batch(0, 0)
    assert (group.id, len(group.samples)) == (0, 2)


def test_too_old_samples_are_issued_again_under_a_new_id(aws: Bed) -> None:
    rig = Rig(aws, batch=1, staleness=1)
    rig.feed.dispatch_once()
    rig.agent.work()
    rig.collect()
    got: list[Any] = []
    trainer = threading.Thread(target=lambda: got.append(rig.feed.batch(5, 5)), daemon=True)
    trainer.start()
    rig.agent.version = lambda: 5
    while trainer.is_alive():
        rig.feed.dispatch_once()
        rig.agent.work()
        rig.feed.collect_once(0)
    (group,) = got[0]
    assert (group.id, group.position, group.samples[0].versions) == (1, 0, (5,))
    assert rig.counted("stale") == 2


def test_a_damaged_sample_costs_its_group_a_new_id_and_three_of_them_the_prompt(aws: Bed) -> None:
    rig = Rig(aws, batch=1, staleness=1, samples=1)
    positions = []
    for number in range(3):
        rig.feed.dispatch_once()
        (task,) = rig.tasks()
        stored = store.get(aws.s3, aws.bucket, task.key)
        assert stored is not None
        positions.append(protocol.decode(TaskPayload, stored.body).metadata["position"])
        bad = replace(sample(number, 0), log_probs=())
        store.put_new(aws.s3, aws.bucket, protocol.sample_key(ATTEMPT, number, 0), protocol.encode(bad))
        rig.feed.sweep_once()
    assert positions == [0, 0, 0]
    assert (rig.ledger.counters.dead, rig.counted("invalid")) == (1, 3)
    assert [group.position for group in rig.ledger.fill()] == [1]


def test_a_sample_under_another_groups_key_is_not_trained_on(aws: Bed) -> None:
    rig = Rig(aws, samples=1)
    rig.feed.dispatch_once()
    store.put_new(aws.s3, aws.bucket, protocol.sample_key(ATTEMPT, 1, 0), protocol.encode(sample(0, 0)))
    rig.feed.sweep_once()
    assert rig.counted("used") == 0
    assert rig.ledger.counters.invalid == 1


def test_an_answer_to_other_tokens_than_the_prompts_is_not_trained_on(aws: Bed) -> None:
    rig = Rig(aws, samples=1)
    rig.feed.dispatch_once()
    other = sample(0, 0, tokens=(7, 2, 3))
    store.put_new(aws.s3, aws.bucket, protocol.sample_key(ATTEMPT, 0, 0), protocol.encode(other))
    rig.feed.sweep_once()
    assert (rig.counted("used"), rig.ledger.counters.invalid) == (0, 1)


def test_a_dead_group_is_replaced_by_the_next_prompt_and_its_reason_is_kept(aws: Bed) -> None:
    rig = Rig(aws, batch=2, staleness=1)
    rig.agent.fate = lambda task: "die" if task.group == 0 else None
    rig.feed.dispatch_once()
    rig.agent.work()
    assert rig.feed.sweep_once() >= 1
    rig.feed.dispatch_once()
    rig.agent.work()
    rig.collect()
    assert [(group.id, group.position) for group in rig.feed.batch(0, 0)] == [(1, 1), (2, 2)]
    stored = store.get(aws.s3, aws.bucket, protocol.dead_key(ATTEMPT, 0))
    assert stored is not None
    assert protocol.decode(DeadLetter, stored.body).reason == "no grader"
    assert waiting(aws, aws.queues.dead_letter) == 0


def test_a_task_that_sqs_itself_set_aside_is_issued_again(aws: Bed) -> None:
    """A thousand receives are a thousand interruptions, and those say nothing against the task."""
    rig = Rig(aws)
    rig.feed.dispatch_once()
    first = rig.tasks()[0]
    sqs.send(aws.sqs_client, aws.queues.dead_letter, [protocol.encode(first)])
    assert rig.feed.sweep_once() == 1
    (again,) = rig.tasks()
    assert (again.group, again.issue) == (0, 1)
    assert rig.ledger.counters.dead == 0


def test_what_nobody_of_the_run_wrote_stays_in_the_dead_letter_queue(aws: Bed) -> None:
    rig = Rig(aws)
    sqs.send(aws.sqs_client, aws.queues.dead_letter, ["by hand"])
    assert rig.feed.sweep_once() == 0
    assert waiting(aws, aws.queues.dead_letter) == 1


def test_too_many_dead_groups_end_the_wait_with_where_to_look(aws: Bed) -> None:
    rig = Rig(aws, batch=2, staleness=2)
    rig.agent.fate = lambda _: "die"
    rig.feed.dispatch_once()
    rig.agent.work()
    rig.feed.sweep_once()
    with pytest.raises(TooManyDead, match=r"4 of 4.*dead/"):
        rig.feed.batch(0, 0)


def test_a_wait_without_samples_says_what_for_and_ends(aws: Bed, caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig(aws)
    rig.feed.dispatch_once()
    rig.clock.step_seconds = 50.0
    with pytest.raises(Stalled, match=r"0 of 2 groups ready, 4 outstanding with 0 of 8 samples.*no sample came"):
        rig.feed.batch(7, 0)
    assert "step 7 has waited" in caplog.text


def test_a_new_sample_starts_the_patience_anew(aws: Bed) -> None:
    rig = Rig(aws, batch=2, staleness=1)
    rig.feed.dispatch_once()
    rig.clock.now = 900.0
    (first, second) = rig.tasks()
    for number in range(2):
        rig.agent.publish(first, number)
    rig.collect()
    rig.clock.now = 1_800.0
    for number in range(2):
        rig.agent.publish(second, number)
    rig.collect()
    assert len(rig.feed.batch(0, 0)) == 2


def test_an_error_in_a_thread_ends_the_wait_and_a_throttle_does_not(aws: Bed) -> None:
    calls = []

    def fetch(_group: int, key: str) -> bytes | None:
        calls.append(key)
        if len(calls) < 3:
            raise ClientError({"Error": {"Code": "SlowDown"}}, "GetObject")
        return rig.fetch(0, key)

    rig = Rig(aws, samples=1, batch=1, staleness=1, fetch=fetch, pace=replace(FAST, result_lease_seconds=0))
    rig.feed.start()
    with Fleet([rig.agent]):
        assert len(rig.feed.batch(0, 0)) == 1
    rig.feed.close()

    broken = Rig(aws, payload=lambda _position, _group: 1 / 0)
    broken.feed.start()
    with pytest.raises(ZeroDivisionError):
        broken.feed.batch(0, 0)
    broken.feed.close()


def test_prompts_that_cannot_be_used_are_skipped_and_a_file_full_of_them_is_refused(aws: Bed) -> None:
    rig = Rig(
        aws, batch=2, staleness=1, payload=lambda position, group: None if position < 3 else payload(position, group)
    )
    while len(rig.ledger.outstanding()) < 2:
        rig.feed.dispatch_once()
    assert [group.position for group in rig.ledger.outstanding()] == [3, 4]
    useless = Rig(aws, payload=lambda _position, _group: None)
    useless.feed.start()
    with pytest.raises(InputFault, match="too long or empty"):
        useless.feed.batch(0, 0)
    useless.feed.close()


def test_samples_must_be_allowed_to_be_one_version_old() -> None:
    with pytest.raises(InputFault, match="max-weight-staleness"):
        Limits(batch=1, staleness=0)


def test_two_hundred_groups_through_losses_duplicates_and_a_resume_are_trained_on_once_each(
    aws: Bed, proved: Callable[[str], None]
) -> None:
    """The whole core with agents in threads: every prompt is trained on exactly once, or is dead with a reason."""
    batch, samples, steps, killed_after, save_every = 10, 2, 20, 9, 4
    fates = ("lose-result", "lose-task", "twice", "half", "die")
    trained: dict[int, list[int]] = {}
    state: dict[str, Any] | None = None
    saved_step, reissued, duplicates = -1, 0.0, 0.0
    for number in (3, 4):
        attempt = Attempt(run=ATTEMPT.run, number=number)
        limits = Limits(batch=batch, staleness=2, dead_share_max=0.5)
        ledger = Ledger(samples=samples, window=limits.window, reissue_seconds=0.3)
        if state is not None:
            ledger.restore(state)
        rig = Rig(aws, samples=samples, ledger=ledger, attempt=attempt, limits=limits, clock=time.monotonic)
        served = [0]
        agents = [
            Agent(
                aws,
                attempt,
                version=lambda served=served: served[-1],
                fate=chaos(index, share=0.25, fates=fates),
                lease_seconds=1,
            )
            for index in range(3)
        ]
        rig.feed.start()
        with Fleet(agents):
            for step in range(saved_step + 1, steps):
                trained[step] = [group.position for group in rig.feed.batch(step, served[-1])]
                served.append(served[-1] + 1)
                if (step + 1) % save_every == 0:
                    state, saved_step = json.loads(json.dumps(rig.feed.state(step))), step
                    rig.feed.saved(step)
                if number == 3 and step == killed_after:
                    break  # what the two steps after the save had taken comes again
        rig.feed.close()
        reissued += rig.metrics.value("moerl_trainer_tasks_reissued_total")
        duplicates += rig.counted("duplicate")
    positions = [position for step in range(steps) for position in trained[step]]
    assert len(positions) == len(set(positions)) == batch * steps
    assert state is not None
    owed = {entry[1] for entry in state["open"]} | {entry[0] for entry in state["again"]}
    gone = set(range(state["next_position"])) - set(positions) - owed
    assert len(gone) == state["counters"]["dead"] > 0, "only what an agent gave up is missing"
    assert reissued > 0
    assert duplicates > 0
    proved(
        f"runtime: trainer core: {len(positions)} groups trained on once each, {reissued:.0f} issued again,"
        f" {duplicates:.0f} samples delivered twice, {len(gone)} dead, 1 resume, 0 lost"
    )
