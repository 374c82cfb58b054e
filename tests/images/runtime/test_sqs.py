"""SQS: batches of ten, refused entries sent again, a lease that is over is told and harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from moerl_runtime import sqs


@pytest.fixture
def queue() -> Iterator[tuple[sqs.SqsClient, str]]:
    with mock_aws():
        client = boto3.client("sqs", region_name="us-west-2", aws_access_key_id="x", aws_secret_access_key="x")  # noqa: S106
        yield client, client.create_queue(QueueName="tasks")["QueueUrl"]


def test_more_than_ten_are_sent_and_received(queue: tuple[sqs.SqsClient, str]) -> None:
    client, url = queue
    sqs.send(client, url, [str(number) for number in range(23)])
    got: set[str] = set()
    while len(got) < 23:
        found = sqs.receive(client, url, most=100, wait_seconds=0, lease_seconds=60)
        assert 0 < len(found) <= sqs.BATCH
        got |= {message.body for message in found}
    assert sqs.depth(client, url) == (0, 23)


def test_what_is_given_back_is_there_at_once(queue: tuple[sqs.SqsClient, str]) -> None:
    client, url = queue
    sqs.send(client, url, ["task"])
    (first,) = sqs.receive(client, url, most=1, wait_seconds=0, lease_seconds=600)
    assert sqs.receive(client, url, most=1, wait_seconds=0, lease_seconds=600) == []
    assert sqs.give_back(client, url, [first.receipt]) == []
    (second,) = sqs.receive(client, url, most=1, wait_seconds=0, lease_seconds=600)
    assert (second.body, second.receive_count) == ("task", 2)
    sqs.delete(client, url, [second.receipt])
    assert sqs.depth(client, url) == (0, 0)


def test_a_lease_that_is_over_is_told(queue: tuple[sqs.SqsClient, str]) -> None:
    client, url = queue
    sqs.send(client, url, ["task"])
    (message,) = sqs.receive(client, url, most=1, wait_seconds=0, lease_seconds=600)
    sqs.delete(client, url, [message.receipt])
    assert sqs.extend(client, url, [message.receipt], lease_seconds=600) == [message.receipt]
    sqs.delete(client, url, [message.receipt])


def test_refused_entries_are_sent_again_and_at_last_named() -> None:
    client = _Refusing(times=2)
    sqs.send(client, "url", ["a", "b", "c"])
    assert client.sent == ["a", "c", "b"], "the refused one alone is sent again"
    with pytest.raises(ClientError, match="refused 1 messages"):
        sqs.send(_Refusing(times=99), "url", ["a", "b", "c"])


class _Refusing:
    """Refuses 'b' so many times."""

    def __init__(self, times: int) -> None:
        self.sent: list[str] = []
        self._times = times

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: ARG002
        failed = []
        for entry in Entries:
            if entry["MessageBody"] == "b" and self._times > 0:
                self._times -= 1
                failed.append({"Id": entry["Id"]})
            else:
                self.sent.append(entry["MessageBody"])
        return {"Failed": failed}


class Failing:
    """Answers as SQS does where it failed itself at one entry, and the caller's lease was over at another."""

    def answer(self, **_: object) -> dict[str, object]:
        over = {"Id": "0", "Code": "ReceiptHandleIsInvalid", "SenderFault": True}
        return {"Failed": [over, {"Id": "1", "Code": "InternalError", "SenderFault": False}]}

    change_message_visibility_batch = delete_message_batch = answer


def test_a_failure_of_sqs_itself_is_not_taken_for_a_lost_lease() -> None:
    with pytest.raises(ClientError, match="1 leases"):
        sqs.extend(Failing(), "url", ["a", "b", "c"], lease_seconds=30)


def test_a_delete_at_which_sqs_failed_is_told_and_one_of_a_lost_lease_is_not() -> None:
    with pytest.raises(ClientError, match="1 messages"):
        sqs.delete(Failing(), "url", ["a", "b", "c"])
