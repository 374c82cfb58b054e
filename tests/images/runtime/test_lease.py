"""The run's lease: one holder, numbers that grow, and no answer of S3, lost or late, that makes two holders."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError
from hypothesis import given, settings
from hypothesis import strategies as st

from moerl_runtime import lease
from moerl_runtime.checkpoint.layout import LeaseRecord, Position
from moerl_runtime.faults import InputFault
from moerl_runtime.lease import LOOK_SECONDS, MARGIN_SECONDS, RENEW_SECONDS, TTL_SECONDS, LeaseHeld, LeaseLost
from moerl_runtime.protocol import Attempt, decode

from .checkpoint.bed import PLACE, RUN, Clock, acquire
from .checkpoint.fake_s3 import FakeS3, refused

KEY = f"checkpoints/{RUN}/lease.json"
WHERE = {"bucket": PLACE["bucket"], "prefix": PLACE["prefix"]}


def record(service: FakeS3) -> LeaseRecord:
    return decode(LeaseRecord, service.objects[KEY].body)


def test_the_first_attempt_is_1_and_begins_anew() -> None:
    service = FakeS3()
    taken = acquire(service.client())
    assert (taken.attempt, taken.resumed_from) == (Attempt(run=RUN, number=1), None)
    assert taken.held()
    taken.check()


def test_a_live_lease_of_another_holder_is_refused_with_who_how_old_and_when_to_try_again() -> None:
    service = FakeS3()
    acquire(service.client(), holder="cluster-a")
    service.now += 50
    with pytest.raises(
        LeaseHeld, match=r"cluster-a holds it as attempt 1 and renewed it 50 s ago.*try again in 70 s"
    ) as told:
        acquire(service.client(), holder="cluster-b")
    assert told.value.exit_code == 3
    assert record(service).holder == "cluster-a"


def test_a_lease_that_ran_out_is_taken_with_the_next_number() -> None:
    service = FakeS3()
    acquire(service.client(), holder="cluster-a")
    service.now += TTL_SECONDS
    assert acquire(service.client(), holder="cluster-b").attempt.number == 2


def test_a_released_lease_is_taken_at_once_and_numbers_go_on() -> None:
    service = FakeS3()
    acquire(service.client(), holder="cluster-a").release()
    assert acquire(service.client(), holder="cluster-b").attempt.number == 2


def test_the_same_holder_takes_its_lease_at_once() -> None:
    service = FakeS3()
    acquire(service.client(), holder="cluster-a")
    assert acquire(service.client(), holder="cluster-a").attempt.number == 2


def test_a_lease_object_that_is_gone_does_not_reset_the_number() -> None:
    service = FakeS3()
    acquire(service.client(), holder="cluster-a").release()
    acquire(service.client(), holder="cluster-a").release()
    del service.objects[KEY]
    service.client().put_object(Bucket=PLACE["bucket"], Key=f"checkpoints/{RUN}/steps/000007/x/y", Body=b"")
    assert acquire(service.client(), holder="cluster-b").attempt.number == 8


def test_waiting_ends_when_the_holder_is_silent_for_long_enough() -> None:
    service = FakeS3()
    acquire(service.client(), holder="cluster-a")
    clock, lines = Clock(service), []
    taken = acquire(service.client(), holder="cluster-b", clock=clock, wait_seconds=300.0, report=lines.append)
    assert taken.attempt.number == 2
    assert TTL_SECONDS <= clock.seconds < TTL_SECONDS + LOOK_SECONDS
    assert "held by cluster-a, renewed 10 s ago" in lines[1]


def test_waiting_does_not_outlast_its_bound_while_the_holder_renews() -> None:
    service = FakeS3()
    first = acquire(service.client(), holder="cluster-a")
    clock = Clock(service)

    def wait(seconds: float) -> None:
        clock.wait(seconds)
        assert first.renew()

    with pytest.raises(LeaseHeld):
        lease.acquire(service.client(), **PLACE, holder="b", clock=clock, wait=wait, wait_seconds=65.0)
    assert clock.seconds == pytest.approx(65.0)


def test_a_holder_that_cannot_renew_stops_before_another_one_can_start() -> None:
    service, clock = FakeS3(), Clock()
    taken = acquire(service.client(), holder="cluster-a", clock=clock)
    clock.seconds = service_seconds = TTL_SECONDS - MARGIN_SECONDS - 1
    assert taken.held()
    clock.seconds = service_seconds + 1
    assert not taken.held()
    with pytest.raises(LeaseLost):
        taken.check()
    # Others, by S3's clock, cannot have it yet: it states whole seconds, so one may be missing.
    service.now += clock.seconds + 1
    with pytest.raises(LeaseHeld):
        acquire(service.client(), holder="cluster-b")


def test_the_life_of_a_lease_counts_from_before_the_write_was_sent() -> None:
    service, clock = FakeS3(), Clock()

    def slow(operation: str) -> None:
        if operation == "put_object":
            clock.seconds += 30

    taken = acquire(service.client(before=slow), clock=clock)
    clock.seconds = TTL_SECONDS - MARGIN_SECONDS
    assert not taken.held()


def test_renewals_keep_it_for_ever() -> None:
    service, clock = FakeS3(), Clock()
    taken = acquire(service.client(), holder="cluster-a", clock=clock)
    for _ in range(20):
        clock.seconds += RENEW_SECONDS
        service.now += RENEW_SECONDS
        assert taken.renew()
        assert taken.held()
        with pytest.raises(LeaseHeld):
            acquire(service.client(), holder="cluster-b")
    assert record(service).renewal == 20


def test_a_renewal_after_another_attempt_began_is_refused_and_writes_nothing() -> None:
    service = FakeS3()
    taken = acquire(service.client(), holder="cluster-a")
    service.now += TTL_SECONDS
    acquire(service.client(), holder="cluster-b")
    assert not taken.renew()
    assert not taken.held()
    taken.release()
    assert (record(service).holder, record(service).released) == ("cluster-b", False)


def test_a_renewal_whose_answer_was_lost_is_no_defeat() -> None:
    service = FakeS3()
    client = service.client()
    taken = acquire(client)
    client.repeat_at = client.calls
    assert taken.renew()
    taken.check()


def test_a_renewal_that_was_stored_though_it_failed_is_gone_on_from() -> None:
    service = FakeS3()
    failing: list[str] = []

    def after(operation: str) -> None:
        if operation == "put_object" and failing:
            failing.clear()
            raise EndpointConnectionError(endpoint_url="s3")

    clock = Clock()
    taken = acquire(service.client(after=after), clock=clock)
    failing.append("now")
    with pytest.raises(EndpointConnectionError):
        taken.renew()
    # The next try is a write of its own, since the lease counts from it.
    written = service.objects[KEY].written
    clock.seconds += 60
    service.now += 60
    assert taken.renew()
    assert service.objects[KEY].written == written + 60
    taken.check()


def test_what_was_restored_is_what_the_attempt_says_it_goes_on_from() -> None:
    with pytest.raises(InputFault, match="is no complete checkpoint"):
        acquire(FakeS3().client(), resumed_from=Position(attempt=1, step=5))
    assert acquire(FakeS3().client(), resumed_from=None).resumed_from is None


def test_processes_beside_the_holder_go_by_the_number() -> None:
    service = FakeS3()
    first = acquire(service.client(), holder="cluster-a").attempt
    service.now += 10 * TTL_SECONDS
    lease.check_attempt(service.client(), **WHERE, attempt=first)
    acquire(service.client(), holder="cluster-b")
    with pytest.raises(LeaseLost, match=r"attempt 2 \(cluster-b\) has it"):
        lease.check_attempt(service.client(), **WHERE, attempt=first)
    with pytest.raises(LeaseLost, match="is gone"):
        lease.check_attempt(FakeS3().client(), **WHERE, attempt=first)


def test_the_thread_renews_survives_outages_and_release_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease, "RENEW_SECONDS", 0.001)
    service, lines = FakeS3(), []
    renewed, outages = threading.Event(), [refused("SlowDown", 503, "PutObject")] * 3

    def before(operation: str) -> None:
        if operation == "put_object" and threading.current_thread().name == "lease":
            if outages:
                raise outages.pop()
            if record(service).renewal >= 3:
                renewed.set()

    with acquire(service.client(before=before), report=lines.append) as taken:
        assert renewed.wait(30)
        assert taken.held()
    assert len(lines) == 3
    assert record(service).released
    assert not taken.held()


def test_of_many_that_take_a_lease_at_once_one_wins(local_aws: str) -> None:
    from concurrent.futures import ThreadPoolExecutor

    from moerl_runtime import store

    client = store.client("us-west-2", local_aws)
    client.create_bucket(Bucket="race", CreateBucketConfiguration={"LocationConstraint": "us-west-2"})

    def take(number: int) -> Any:
        try:
            return lease.acquire(client, bucket="race", prefix="p/", run="r", holder=f"holder-{number}")
        except LeaseHeld as held:
            return held

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(take, range(8)))
    assert sum(isinstance(one, lease.Lease) for one in found) == 1
    assert sum(isinstance(one, LeaseHeld) for one in found) == 7


ACTIONS = st.one_of(
    st.tuples(st.just("wait"), st.floats(0.1, 1.3 * TTL_SECONDS) | st.floats(TTL_SECONDS - 1, TTL_SECONDS + 1)),
    st.tuples(st.sampled_from(["acquire", "renew", "release"]), st.integers(0, 2)),
    # A request that takes its time, on the way there or on the way back.
    st.tuples(st.sampled_from(["slow there", "slow back"]), st.floats(20.0, 90.0)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(ACTIONS, max_size=25), st.floats(0, 1))
def test_no_two_processes_ever_believe_that_they_hold_it(actions: list[tuple[str, float]], second: float) -> None:
    service = FakeS3()
    service.now += second
    delays = {"before": 0.0, "after": 0.0}

    def delay(moment: str) -> Callable[[str], None]:
        def call(operation: str) -> None:
            if operation == "put_object":
                service.now += delays[moment]
                delays[moment] = 0.0

        return call

    clients = [service.client(before=delay("before"), after=delay("after")) for _ in range(3)]
    leases: dict[int, lease.Lease] = {}
    numbers: list[int] = []
    for action, value in actions:
        if action == "wait":
            service.now += value
        elif action.startswith("slow"):
            delays["before" if action == "slow there" else "after"] = value
        elif action == "acquire":
            with suppress(LeaseHeld):
                # Every machine has a monotonic clock of its own, which began some time.
                clock = partial(_since, service, 1000.0 * value)
                leases[int(value)] = lease.acquire(clients[int(value)], **PLACE, holder=f"{value}", clock=clock)
                numbers.append(leases[int(value)].attempt.number)
        elif value in leases:
            getattr(leases[int(value)], action)()
        assert sum(taken.held() for taken in leases.values()) <= 1
    assert numbers == sorted(set(numbers))


def _since(service: FakeS3, seconds: float) -> float:
    return service.now - seconds


@pytest.mark.parametrize("renews", [False, True])
@pytest.mark.parametrize("slow_seconds", [0.0, 45.0])
@pytest.mark.parametrize("fraction", [0.0, 0.999])
def test_until_others_can_take_it_and_past_that_the_holder_knows(
    renews: bool, slow_seconds: float, fraction: float
) -> None:
    """S3 states whole seconds, and the answer to the write may take its time: the holder must stop first all the same."""
    stopped = taken_at = None
    for half in range(2 * 105, 2 * 123):
        service = FakeS3()
        service.now += fraction
        slow = [False]

        def after(operation: str, service: FakeS3 = service, slow: list[bool] = slow) -> None:
            if operation == "put_object" and slow[0]:
                slow[0] = False
                service.now += slow_seconds

        slow[0] = not renews
        holder = lease.acquire(
            service.client(after=after), **PLACE, holder="a", clock=partial(_since, service, 0.0), resumed_from=None
        )
        slow[0] = renews
        if renews:
            assert holder.renew()
        written = service.objects[KEY].written
        service.now = max(service.now, written + half / 2)
        if not holder.held() and stopped is None:
            stopped = half
        with suppress(LeaseHeld):
            acquire(service.client(), holder="b")
            taken_at = half
            break
    assert stopped is not None
    assert taken_at is not None
    assert stopped < taken_at
