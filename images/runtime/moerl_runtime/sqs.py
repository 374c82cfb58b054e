"""SQS as this package uses it: leases of single messages. A lease is a received message that is not visible to others.

SQS ends every lease 12 hours after the receive, however often it was extended. Deleting or extending one that has run out
may fail or may hit nobody; both are harmless, since what counts is stored in S3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

BATCH = 10
"""Most messages of one call."""
LEASE_SECONDS_MAX = 12 * 3600
LONG_POLL_SECONDS = 20
CONNECTIONS = 16
GONE = frozenset({"ReceiptHandleIsInvalid", "InvalidParameterValue", "MessageNotInflight"})
"""The lease is over: someone else has the message, or it was deleted."""

SqsClient = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """One leased message."""

    body: str
    receipt: str
    receive_count: int


def client(region: str, endpoint_url: str | None = None, *, connections: int = CONNECTIONS) -> SqsClient:
    """An SQS client whose reads outlast a long poll and nothing more.

    Without `endpoint_url` botocore takes AWS_ENDPOINT_URL_SQS, else AWS_ENDPOINT_URL, else AWS itself.
    """
    return boto3.client(
        "sqs",
        region_name=region,
        endpoint_url=endpoint_url,
        config=Config(
            connect_timeout=5,
            read_timeout=LONG_POLL_SECONDS + 10,
            max_pool_connections=connections,
            retries={"mode": "adaptive", "total_max_attempts": 10},
        ),
    )


def send(sqs: SqsClient, queue_url: str, bodies: Sequence[str]) -> None:
    """Sends all of them, ten a call. Those that SQS refused one by one are sent again; raises ClientError if some stay."""
    for batch in _batches(bodies):
        left = {str(number): body for number, body in enumerate(batch)}
        for _ in range(3):
            entries = [{"Id": number, "MessageBody": body} for number, body in left.items()]
            answer = sqs.send_message_batch(QueueUrl=queue_url, Entries=entries)
            left = {entry["Id"]: left[entry["Id"]] for entry in answer.get("Failed", ())}
            if not left:
                break
        else:
            raise _partial("SendMessageBatch", f"SQS refused {len(left)} messages to {queue_url}")


def receive(sqs: SqsClient, queue_url: str, *, most: int, wait_seconds: int, lease_seconds: int) -> list[Received]:
    """Leases up to `most` (at most ten) messages, waiting for the first one."""
    answer = sqs.receive_message(
        QueueUrl=queue_url,
        MaxNumberOfMessages=min(most, BATCH),
        WaitTimeSeconds=wait_seconds,
        VisibilityTimeout=lease_seconds,
        MessageSystemAttributeNames=["ApproximateReceiveCount"],
    )
    return [
        Received(
            body=message["Body"],
            receipt=message["ReceiptHandle"],
            receive_count=int(message.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
        )
        for message in answer.get("Messages", ())
    ]


def extend(sqs: SqsClient, queue_url: str, receipts: Sequence[str], *, lease_seconds: int) -> list[str]:
    """Makes the leases last `lease_seconds` from now. Returns the receipts whose lease is over. 0 seconds gives back.

    Raises ClientError where SQS itself failed at some, after the others are done.
    """
    lost: list[str] = []
    failed = 0
    for batch in _batches(receipts):
        answer = sqs.change_message_visibility_batch(
            QueueUrl=queue_url,
            Entries=[
                {"Id": str(number), "ReceiptHandle": receipt, "VisibilityTimeout": lease_seconds}
                for number, receipt in enumerate(batch)
            ],
        )
        for entry in answer.get("Failed", ()):
            if entry.get("SenderFault", True):
                lost.append(batch[int(entry["Id"])])
            else:
                failed += 1
    if failed:
        raise _partial("ChangeMessageVisibilityBatch", f"SQS failed at {failed} leases of {queue_url}")
    return lost


def give_back(sqs: SqsClient, queue_url: str, receipts: Sequence[str]) -> list[str]:
    """Makes the messages visible at once. Returns the receipts whose lease was over already."""
    return extend(sqs, queue_url, receipts, lease_seconds=0)


def delete(sqs: SqsClient, queue_url: str, receipts: Sequence[str]) -> None:
    """Deletes the messages; a lease that is over is nobody's loss, since its work is stored. Raises ClientError where SQS itself
    failed at some."""
    failed = 0
    for batch in _batches(receipts):
        try:
            answer = sqs.delete_message_batch(
                QueueUrl=queue_url,
                Entries=[{"Id": str(number), "ReceiptHandle": receipt} for number, receipt in enumerate(batch)],
            )
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in GONE:
                raise
        else:
            failed += sum(not entry.get("SenderFault", True) for entry in answer.get("Failed", ()))
    if failed:
        raise _partial("DeleteMessageBatch", f"SQS failed to delete {failed} messages of {queue_url}")


def depth(sqs: SqsClient, queue_url: str) -> tuple[int, int]:
    """(visible, leased) messages, as SQS estimates them."""
    names = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"]
    found = sqs.get_queue_attributes(QueueUrl=queue_url, AttributeNames=names)["Attributes"]
    return int(found[names[0]]), int(found[names[1]])


def _partial(operation: str, text: str) -> ClientError:
    """A call that SQS took and did in part only, as the error that callers expect of a call that failed."""
    return ClientError({"Error": {"Code": "PartialFailure", "Message": text}}, operation)


def _batches(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[start : start + BATCH] for start in range(0, len(items), BATCH)]
