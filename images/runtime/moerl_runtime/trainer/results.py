"""What comes in from queues and bucket, read with suspicion: agents of any release and people write there."""

from __future__ import annotations

from moerl_runtime import protocol
from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import DeadLetter, Sample, TaskMessage
from moerl_runtime.trainer.samples import problem


def judged(body: bytes, group: int, number: int) -> Sample | str:
    """The sample that is stored under that group and number, or why it cannot be trained on."""
    try:
        sample = protocol.decode(Sample, body)
    except InputFault as fault:
        return str(fault)
    if (sample.group, sample.sample) != (group, number):
        return f"it says of itself that it is sample {sample.sample} of group {sample.group}"
    return problem(sample) or sample


def letter(body: str) -> DeadLetter | TaskMessage | None:
    """A dead letter: of an agent, or a task that SQS moved there. None for what neither can have written."""
    try:
        return protocol.decode(DeadLetter, body)
    except InputFault:
        pass
    try:
        return protocol.decode(TaskMessage, body)
    except InputFault:
        return None
