"""SQS and S3 in memory and in virtual time, by boto3's method names, with faults on demand.

They keep what the agent relies on: leases with receipts, duplicates, writes that one of two wins. Before and after every call
`interfere(name, moment)` is asked, which may raise: that is where an agent is killed, or a call is throttled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from io import BytesIO
from typing import Any, Literal

from botocore.exceptions import ClientError

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
Moment = Literal["before", "after"]
Interfere = Callable[[str, Moment], None]


def nothing(_name: str, _moment: Moment) -> None:
    """No fault."""


def refusal(code: str, status: int = 400) -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": code}, "ResponseMetadata": {"HTTPStatusCode": status}}, code)


@dataclass
class Message:
    number: int
    body: str
    visible_seconds: float
    receipt: str = ""
    receives: int = 0


@dataclass
class Queue:
    messages: dict[int, Message] = field(default_factory=dict)
    sent: int = 0


class Sqs:
    """All queues. `duplicates` is the chance that a delivered message stays visible."""

    def __init__(self, clock: Callable[[], float], chance: random.Random, *, duplicates: float = 0.0) -> None:
        self._clock, self._chance, self.duplicates = clock, chance, duplicates
        self.queues: dict[str, Queue] = {}
        self.watch: Callable[[str, str], None] = lambda _url, _body: None
        """Sees every message that is sent."""
        self.delivered_again = 0
        self._receipts = 0

    def queue(self, url: str) -> Queue:
        return self.queues.setdefault(url, Queue())

    def send(self, url: str, body: str) -> None:
        self.watch(url, body)
        queue = self.queue(url)
        queue.sent += 1
        queue.messages[queue.sent] = Message(queue.sent, body, self._clock())

    def receive(self, url: str, most: int, lease_seconds: float) -> list[Message]:
        """Leases what is visible, in no order, as a standard queue does."""
        now, queue = self._clock(), self.queue(url)
        visible = [message for message in queue.messages.values() if message.visible_seconds <= now]
        found = self._chance.sample(visible, min(most, len(visible)))
        for message in found:
            self._receipts += 1
            message.receipt, message.receives = f"{message.number}/{self._receipts}", message.receives + 1
            self.delivered_again += message.receives > 1
            if self._chance.random() >= self.duplicates:
                message.visible_seconds = now + lease_seconds
        return found

    def change(self, url: str, receipt: str, seconds: float) -> bool:
        message = self._leased(url, receipt)
        if message is None or message.visible_seconds <= self._clock():
            return False
        message.visible_seconds = self._clock() + seconds
        return True

    def remove(self, url: str, receipt: str) -> None:
        """An old receipt of a message that was received again deletes nothing."""
        message = self._leased(url, receipt)
        if message is not None:
            del self.queue(url).messages[message.number]

    def visible(self, url: str) -> int:
        return sum(message.visible_seconds <= self._clock() for message in self.queue(url).messages.values())

    def _leased(self, url: str, receipt: str) -> Message | None:
        message = self.queue(url).messages.get(int(receipt.partition("/")[0]))
        return message if message is not None and message.receipt == receipt else None


class SqsClient:
    """One agent's view of the queues."""

    def __init__(self, sqs: Sqs, interfere: Interfere = nothing) -> None:
        self._sqs, self._interfere = sqs, interfere

    def send_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        with_faults = self._around("send")
        next(with_faults)
        for entry in Entries:
            self._sqs.send(QueueUrl, entry["MessageBody"])
        next(with_faults)
        return {}

    def receive_message(self, *, QueueUrl: str, **asked: Any) -> dict[str, Any]:
        with_faults = self._around("receive")
        next(with_faults)
        found = self._sqs.receive(QueueUrl, asked["MaxNumberOfMessages"], asked["VisibilityTimeout"])
        next(with_faults)
        return {
            "Messages": [
                {
                    "Body": message.body,
                    "ReceiptHandle": message.receipt,
                    "Attributes": {"ApproximateReceiveCount": str(message.receives)},
                }
                for message in found
            ]
        }

    def change_message_visibility_batch(self, *, QueueUrl: str, Entries: list[dict[str, Any]]) -> dict[str, Any]:
        with_faults = self._around("give back" if Entries[0]["VisibilityTimeout"] == 0 else "extend")
        next(with_faults)
        lost = [
            {"Id": entry["Id"], "Code": "MessageNotInflight"}
            for entry in Entries
            if not self._sqs.change(QueueUrl, entry["ReceiptHandle"], entry["VisibilityTimeout"])
        ]
        next(with_faults)
        return {"Failed": lost} if lost else {}

    def delete_message_batch(self, *, QueueUrl: str, Entries: list[dict[str, str]]) -> dict[str, Any]:
        with_faults = self._around("delete")
        next(with_faults)
        for entry in Entries:
            self._sqs.remove(QueueUrl, entry["ReceiptHandle"])
        next(with_faults)
        return {}

    def get_queue_attributes(self, *, QueueUrl: str, AttributeNames: list[str]) -> dict[str, Any]:
        next(self._around("depth"))
        visible = self._sqs.visible(QueueUrl)
        return {"Attributes": {AttributeNames[0]: str(visible), AttributeNames[1]: "0"}}

    def _around(self, name: str) -> Iterator[None]:
        self._interfere(name, "before")
        yield
        self._interfere(name, "after")
        yield


class S3:
    """One bucket for all, in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.objects: dict[str, tuple[bytes, str, float]] = {}
        self.refused_second = 0
        self._writes = 0

    def put(self, key: str, body: bytes) -> str:
        self._writes += 1
        self.objects[key] = (body, f'"{self._writes}"', self._clock())
        return self.objects[key][1]


class S3Client:
    def __init__(self, s3: S3, interfere: Interfere = nothing) -> None:
        self._s3, self._interfere = s3, interfere

    def get_object(self, *, Key: str, IfNoneMatch: str | None = None, **_: str) -> dict[str, Any]:
        self._interfere("get", "before")
        if Key not in self._s3.objects:
            raise refusal("NoSuchKey", 404)
        body, etag, written = self._s3.objects[Key]
        if etag == IfNoneMatch:
            raise refusal("304", 304)
        now = EPOCH + timedelta(seconds=self._s3._clock())
        return {
            "Body": BytesIO(body),
            "ETag": etag,
            "LastModified": EPOCH + timedelta(seconds=written),
            "ResponseMetadata": {"HTTPHeaders": {"date": format_datetime(now)}},
        }

    def put_object(
        self, *, Key: str, Body: bytes, IfNoneMatch: str | None = None, IfMatch: str | None = None, **_: str
    ) -> dict[str, Any]:
        self._interfere("put", "before")
        if IfNoneMatch == "*" and Key in self._s3.objects:
            self._s3.refused_second += 1
            raise refusal("PreconditionFailed", 412)
        if IfMatch is not None and (Key not in self._s3.objects or self._s3.objects[Key][1] != IfMatch):
            raise refusal("PreconditionFailed", 412)
        etag = self._s3.put(Key, Body)
        self._interfere("put", "after")
        return {"ETag": etag}

    def get_paginator(self, name: str) -> S3Client:
        assert name == "list_objects_v2"
        return self

    def paginate(self, *, Prefix: str, **_: Any) -> Iterator[dict[str, Any]]:
        self._interfere("list", "before")
        yield {"Contents": [{"Key": key} for key in sorted(self._s3.objects) if key.startswith(Prefix)]}
