"""What comes in from queues and bucket, read with suspicion: agents of any release and people write there."""

from __future__ import annotations

from moerl_runtime import protocol
from moerl_runtime.faults import InputFault
from moerl_runtime.protocol import DeadLetter, Sample, TaskMessage
from moerl_runtime.trainer.samples import problem


def judged(body: bytes, group: int, number: int, asked: tuple[int, ...] | None) -> Sample | str:
    """The sample that is stored under that group and number, or why it cannot be trained on.

    `asked` are the tokens of its prompt, where they are known: an answer to other tokens would be trained on as if it were
    the policy's own, with log-probabilities that belong to something else.
    """
    try:
        sample = protocol.decode(Sample, body)
    except InputFault as fault:
        return str(fault)
    if (sample.group, sample.sample) != (group, number):
        return f"it says of itself that it is sample {sample.sample} of group {sample.group}"
    wrong = problem(sample)
    if wrong is None and asked is not None and sample.tokens[: -sample.response_length] != asked:
        wrong = f"it does not begin with the {len(asked)} tokens of its prompt, so it was tokenized anew"
    return wrong or sample


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
