"""A data source under the frameworks' protocol: what a save hands over is what the next attempt goes on from."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from moerl_runtime import lease, protocol, sqs
from moerl_runtime.checkpoint import handover
from moerl_runtime.faults import InputFault
from moerl_runtime.lease import LeaseLost
from moerl_runtime.protocol import Attempt
from moerl_runtime.trainer import gates
from moerl_runtime.trainer.data_source import DataSource, Parts, fetcher
from moerl_runtime.trainer.dispatch import Pace
from moerl_runtime.trainer.prompts import renderer
from moerl_runtime.trainer.report import HISTORY_PATH
from moerl_runtime.trainer.settings import Resumed
from moerl_runtime.weights import safetensors
from moerl_runtime.weights.pointer import read_current
from moerl_runtime.workers.buffer_client import BufferClient
from tests.images.runtime.trainer.fakes import (
    Agent,
    Bed,
    Fleet,
    FrameworkSample,
    Posts,
    Tokenizer,
    arguments_of,
    plan_document,
    reporter,
    sample,
)

RUN = "trainer-0123abcd"
PACE = Pace(sweep_seconds=0.05, poll_seconds=0.02, long_poll_seconds=1)


def source(aws: Bed, args: Namespace, posts: Posts | None = None) -> DataSource:
    parts = Parts(
        s3=aws.s3,
        sqs_client=aws.sqs_client,
        render=renderer(Tokenizer(), chat_template=args.apply_chat_template),
        reporter=reporter(posts or Posts()),
        sample_class=FrameworkSample,
        fetch=fetcher(aws.s3, aws.bucket, BufferClient(())),
        pace=PACE,
    )
    return DataSource(args, parts)


def args_of(aws: Bed, tmp_path: Path, **changes: Any) -> Namespace:
    scratch = changes.pop("scratch", "fsx")
    return arguments_of(tmp_path, plan_document(aws, scratch=scratch), **changes)


def save_files(args: Namespace, step: int) -> None:
    """What Megatron and the export leave on disk."""
    for directory in (Path(args.save) / f"iter_{step:07d}", Path(args.save_hf.format(rollout_id=step))):
        directory.mkdir(parents=True)
        write_model(directory, step)


def write_model(directory: Path, step: int) -> None:
    safetensors.write(directory / "model.safetensors", {"weight": ("U8", (1,), bytes([step]))}, {})


def agent(aws: Bed, attempt: int, version: int = 0) -> Agent:
    return Agent(aws, Attempt(run=RUN, number=attempt), version=lambda: version)


def test_a_run_of_two_attempts_trains_on_every_prompt_once(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, prompts=100)
    posts = Posts()
    first = source(aws, args, posts)
    first.load(-1)
    with Fleet([agent(aws, 1)]):
        groups = [first.batch(step, 0)[0] for step in (0, 1)]
        save_files(args, 1)
        first.save(1)
        lost, _ = first.batch(2, 0)
        first.close()
    (ready,) = handover.waiting(Path(args.save))
    assert (ready.run, ready.attempt, ready.step, ready.nodes) == (RUN, 1, 1, 1)
    assert ready.items == ("checkpoints/iter_0000001", "hf/1")
    assert [phase for phase, _ in posts.phases()] == ["wait", "train"] * 2 + ["save", "publish", "wait", "train"]

    resumed = Resumed(attempt=1, step=1, metadata=json.loads(json.dumps(dict(ready.metadata))))
    again = args_of(aws, tmp_path, resumed=resumed, attempt=2)
    second = source(aws, again)
    second.load(1)
    with Fleet([agent(aws, 2)]):
        groups += [second.batch(step, 0)[0] for step in (2, 3)]
        second.close()
    assert [group[0].group_index for group in lost] == [group[0].group_index for group in groups[2]]
    prompts = [group[0].prompt for batch in groups for group in batch]
    assert len(set(prompts)) == len(prompts) == 16
    indices = [entry.index for batch in groups for group in batch for entry in group]
    assert len(set(indices)) == len(indices) == 32


def test_a_save_tells_the_batches_until_its_step_and_a_resume_goes_on_from_them(aws: Bed, tmp_path: Path) -> None:
    """Miles asks for the next batch before it saves a step, and a resumed run asks for that batch again."""
    args = args_of(aws, tmp_path, prompts=100)
    posts = Posts()
    first = source(aws, args, posts)
    first.load(-1)
    with Fleet([agent(aws, 1)]):
        for step in range(8):
            first.batch(step, 0)
        save_files(args, 6)
        first.save(6)
        first.close()
    (ready,) = handover.waiting(Path(args.save))
    told = gates.history(json.loads(json.dumps(ready.metadata["history"])))
    assert [batch.step for batch in told.batches] == [2, 3, 4, 5, 6], "as many as are judged"
    assert all((batch.reward_min, batch.reward_max) == (0.0, 1.0) for batch in told.batches)
    assert told.reward_lowest == 0.0
    heard = [gates.history(body) for path, body in posts.bodies if path == HISTORY_PATH]
    assert [found.batches[-1].step for found in heard] == list(range(8)), "the head hears each at once"

    resumed = Resumed(attempt=1, step=6, metadata=json.loads(json.dumps(dict(ready.metadata))))
    second = source(aws, args_of(aws, tmp_path, resumed=resumed, attempt=2), posts)
    second.load(6)
    with Fleet([agent(aws, 2)]):
        second.batch(7, 0)
        second.close()
    assert [batch.step for batch in second._history.batches] == [2, 3, 4, 5, 6, 7]


def test_a_batch_is_in_the_frameworks_form_with_its_metrics(aws: Bed, tmp_path: Path) -> None:
    made = source(aws, args_of(aws, tmp_path))
    made.load()
    with Fleet([agent(aws, 1)]):
        groups, metrics = made.batch(0, 0)
        made.close()
    assert [[entry.index for entry in group] for group in groups] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    assert all(isinstance(entry, FrameworkSample) for group in groups for entry in group)
    assert metrics["rollout/moerl/staleness_versions"] == 0.0
    assert set(metrics) == {
        "rollout/moerl/wait_seconds",
        "rollout/moerl/staleness_versions",
        "rollout/moerl/ready_groups",
    }


def test_the_framework_must_go_on_where_the_checkpoint_ends(aws: Bed, tmp_path: Path) -> None:
    """Without its tracker file Megatron begins at step 0 in silence, and with a stray one at a step that was not committed."""
    fresh = source(aws, args_of(aws, tmp_path))
    with pytest.raises(InputFault, match="next step is 0"):
        fresh.load(4)
    resumed = source(aws, args_of(aws, tmp_path, resumed=Resumed(attempt=1, step=4, metadata={}), attempt=2))
    with pytest.raises(InputFault, match="next step is 5"):
        resumed.load(-1)


def test_another_prompt_file_is_refused_on_a_resume(aws: Bed, tmp_path: Path) -> None:
    state = {"prompts": "of another file", "ledger": {}}
    made = source(aws, args_of(aws, tmp_path, resumed=Resumed(attempt=1, step=0, metadata=state), attempt=2))
    with pytest.raises(InputFault, match="positions in it would mean other prompts"):
        made.load(0)


def test_no_task_goes_out_before_the_first_batch(aws: Bed, tmp_path: Path) -> None:
    """Miles loads first and points engines at this attempt afterwards; until then agents delete its tasks."""
    made = source(aws, args_of(aws, tmp_path))
    made.load()
    assert made._feed._threads == []
    assert sum(sqs.depth(aws.sqs_client, aws.queues.task)) == 0
    with Fleet([agent(aws, 1)]):
        assert len(made.batch(0, 0)[0]) == 4
        made.close()


def test_no_batch_before_a_checkpoint_was_taken_up(aws: Bed, tmp_path: Path) -> None:
    with pytest.raises(InputFault, match="not loaded"):
        source(aws, args_of(aws, tmp_path)).batch(0, 0)


def test_with_scratch_on_every_node_the_save_waits_for_all_of_them(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, scratch="nvme", actor_num_nodes=3)
    made = source(aws, args)
    made.load()
    made.save(0)  # the files may be on other nodes
    (ready,) = handover.waiting(Path(args.save))
    made.close()
    assert ready.nodes == 3


def test_lent_prompts_never_reach_the_queue_and_come_again_when_given_back(aws: Bed, tmp_path: Path) -> None:
    made = source(aws, args_of(aws, tmp_path))
    lent = made.get_samples(2)
    assert [(group[0].group_index, group[0].prompt, len(group)) for group in lent] == [
        (0, "question 0", 2),
        (1, "question 1", 2),
    ]
    made.add_samples(lent[:1])
    made.load()
    with Fleet([agent(aws, 1)]):
        groups, _ = made.batch(0, 0)
        made.close()
    assert [group[0].prompt for group in groups] == [f"question {number}" for number in (0, 2, 3, 4)]
    assert 0 not in [group[0].group_index for group in groups]


def test_lengths_that_the_frameworks_ask_for(aws: Bed, tmp_path: Path) -> None:
    made = source(aws, args_of(aws, tmp_path, prompts=10))
    assert len(made) == len(made.dataset) == 10
    assert made.get_buffer_length() == 0


def test_tasks_carry_the_frameworks_sampling(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, rollout_temperature=0.7, rollout_stop_token_ids=[5], rm_type="math")
    task = source(aws, args).prompts.payload(0, 0)
    assert task is not None
    assert task.sampling == {
        "temperature": 0.7,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 16,
        "stop_token_ids": [5],
        "skip_special_tokens": False,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    assert task.grader == "math"
    assert task.prompt == "<user> question 0 <assistant>"


@pytest.mark.parametrize(("name", "value"), [("rollout_num_gpus", 8), ("moerl", None)])
def test_arguments_that_would_break_the_run_stop_the_start(aws: Bed, tmp_path: Path, name: str, value: Any) -> None:
    with pytest.raises(InputFault, match=name):
        source(aws, args_of(aws, tmp_path, **{name: value}))


def test_the_first_look_is_at_the_buffer_and_s3_has_it_in_any_case(aws: Bed) -> None:
    class Buffers(BufferClient):
        def get(self, group: int, key: str) -> bytes | None:  # noqa: ARG002 - as its base
            return b"buffered" if group == 1 else None

    fetch = fetcher(aws.s3, aws.bucket, Buffers(()))
    aws.s3.put_object(Bucket=aws.bucket, Key="k", Body=b"stored")
    assert fetch(1, "k") == b"buffered"
    assert fetch(2, "k") == b"stored"
    assert fetch(2, "none") is None


@pytest.mark.parametrize("framework", ["miles", "slime"])
def test_as_many_batches_are_out_at_once_as_the_plan_has_sized_the_fleet_for(
    aws: Bed, tmp_path: Path, framework: str
) -> None:
    document = plan_document(aws)
    document["workload"]["batch"]["staleness_versions"] = 3
    made = source(aws, arguments_of(tmp_path, document, framework=framework, batch=4, prompts=100))
    assert made._feed.dispatch_once() == 12
    assert made._feed.dispatch_once() == 0


def test_a_plan_of_a_release_without_the_batch_is_refused(aws: Bed, tmp_path: Path) -> None:
    document = plan_document(aws)
    del document["workload"]["batch"]
    with pytest.raises(InputFault, match=r"workload\.batch"):
        source(aws, arguments_of(tmp_path, document))


# --- slime


def begin_attempt(aws: Bed) -> int:
    """Takes the run's lease, as the entrypoint does. Returns the attempt's number."""
    taken = lease.acquire(
        aws.s3, bucket=aws.bucket, prefix="checkpoints/", run=RUN, holder="cluster", resumed_from=None
    )
    return taken.attempt.number


def test_slime_publishes_a_whole_version_with_every_save(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, framework="slime", save_interval=2)
    Path(args.hf_checkpoint).mkdir()
    begin_attempt(aws)
    posts = Posts()
    made = source(aws, args, posts)
    made.load(-1)
    begun = read_current(aws.s3, aws.bucket, "weights/")
    assert begun is not None
    assert (begun.current.version, begun.current.manifest) == (0, None)
    save_files(args, 1)
    made.save(1)
    now = read_current(aws.s3, aws.bucket, "weights/")
    assert now is not None
    assert (now.current.attempt, now.current.version) == (1, 1)
    with Fleet([agent(aws, 1, version=1)]):
        _, metrics = made.batch(2, None)
    assert metrics["rollout/moerl/staleness_versions"] == 0.0, "the version is the data source's own"
    made.close()
    assert made._parts.reporter.metrics.value("moerl_trainer_weight_version") == 1


def test_a_resumed_slime_run_begins_with_the_export_and_not_with_the_base(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, framework="slime", prompts=100)
    begin_attempt(aws)
    state = source(aws, args)._feed.state(0)
    fingerprint = source(aws, args).prompts.fingerprint
    export = tmp_path / "scratch" / "hf" / "0"
    export.mkdir(parents=True)
    write_model(export, 0)
    begin_attempt(aws)
    resumed = Resumed(attempt=1, step=0, metadata={"ledger": state, "prompts": fingerprint})
    made = source(
        aws,
        args_of(aws, tmp_path, framework="slime", resumed=resumed, attempt=2, hf_checkpoint=str(export)),
    )
    made.load(0)
    made.close()
    begun = read_current(aws.s3, aws.bucket, "weights/")
    assert begun is not None
    assert begun.current.version == 0
    assert begun.current.manifest is not None


def test_an_export_that_failed_ends_a_slime_run(aws: Bed, tmp_path: Path) -> None:
    """slime logs the failure and trains on; engines would sample the old weights for ever."""
    args = args_of(aws, tmp_path, framework="slime")
    Path(args.hf_checkpoint).mkdir()
    begin_attempt(aws)
    made = source(aws, args)
    made.load(-1)
    with pytest.raises(InputFault, match="holds no weights of step 0"):
        made.save(0)
    assert handover.waiting(Path(args.save)) == []
    made.close()


def test_an_attempt_that_was_replaced_publishes_nothing(aws: Bed, tmp_path: Path) -> None:
    args = args_of(aws, tmp_path, framework="slime")
    Path(args.hf_checkpoint).mkdir()
    begin_attempt(aws)
    begin_attempt(aws)
    with pytest.raises(LeaseLost):
        source(aws, args).load(-1)
    assert read_current(aws.s3, aws.bucket, "weights/") is None


def test_samples_of_an_older_attempt_are_not_read(aws: Bed, tmp_path: Path) -> None:
    made = source(aws, args_of(aws, tmp_path, attempt=1, batch=1))
    old = protocol.sample_key(Attempt(run=RUN, number=7), 0, 0)
    aws.s3.put_object(Bucket=aws.bucket, Key=old, Body=protocol.encode(sample(0, 0)).encode())
    made.load()
    made._feed.dispatch_once()
    assert made._feed.sweep_once() == 0
    made.close()
