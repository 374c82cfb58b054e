"""The three queues: names and times are the Plan's, and nothing but TLS reaches them."""

from __future__ import annotations

from typing import Any

import pytest

from .resources import ENVIRONMENTS, Plans, Template, Templates, of_type, properties


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_queues_have_the_plans_names_and_times(name: str, plan: Plans, template: Templates) -> None:
    planned = plan(name)
    queues = _queues(template(planned, "queue"))
    names = planned.names
    assert set(queues) == {names.task_queue, names.result_queue, names.dead_letter_queue}
    for queue in queues.values():
        assert queue["VisibilityTimeout"] == planned.queue.visibility_seconds
        assert queue["MessageRetentionPeriod"] == planned.queue.retention_seconds == 14 * 24 * 3600
        assert queue["ReceiveMessageWaitTimeSeconds"] == 20


def test_queues_are_encrypted_by_sqs_itself(plan: Plans, template: Templates) -> None:
    for queue in _queues(template(plan("reference-p5en"), "queue")).values():
        assert queue["SqsManagedSseEnabled"] is True
        assert "KmsMasterKeyId" not in queue


def test_queues_refuse_anything_but_tls(plan: Plans, template: Templates) -> None:
    queues = template(plan("reference-p5en"), "queue")
    denied = []
    for policy in properties(queues, "AWS::SQS::QueuePolicy"):
        (statement,) = policy["PolicyDocument"]["Statement"]
        assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", {"AWS": "*"}, "sqs:*")
        assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
        assert statement["Resource"] == {"Fn::GetAtt": [policy["Queues"][0]["Ref"], "Arn"]}
        denied += [queue["Ref"] for queue in policy["Queues"]]
    assert sorted(denied) == sorted(n for n, r in queues["Resources"].items() if r["Type"] == "AWS::SQS::Queue")


def test_tasks_and_results_go_to_the_dead_letter_queue_which_takes_from_those_two_alone(
    plan: Plans, template: Templates
) -> None:
    planned = plan("reference-p5en")
    queues = template(planned, "queue")
    by_name = _queues(queues)
    (dead_letter,) = [
        name
        for name, resource in queues["Resources"].items()
        if resource["Properties"].get("QueueName") == planned.names.dead_letter_queue
    ]
    target = {"Fn::GetAtt": [dead_letter, "Arn"]}
    redrive = {"deadLetterTargetArn": target, "maxReceiveCount": planned.queue.max_receive_count}
    sources = (planned.names.task_queue, planned.names.result_queue)
    assert [by_name[name]["RedrivePolicy"] for name in sources] == [redrive, redrive]
    # Literal ARNs: a reference each way would be a cycle that CloudFormation refuses.
    assert by_name[planned.names.dead_letter_queue]["RedriveAllowPolicy"] == {
        "redrivePermission": "byQueue",
        "sourceQueueArns": [f"arn:aws:sqs:us-west-2:123456789012:{name}" for name in sources],
    }


def test_a_deleted_queue_leaves_its_name_free(plan: Plans, template: Templates) -> None:
    queues = of_type(template(plan("reference-p5en"), "queue"), "AWS::SQS::Queue")
    assert [queue["DeletionPolicy"] for queue in queues] == ["Delete"] * 3


def _queues(template: Template) -> dict[str, dict[str, Any]]:
    return {queue["QueueName"]: queue for queue in properties(template, "AWS::SQS::Queue")}
