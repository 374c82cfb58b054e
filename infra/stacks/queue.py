"""Task, result and dead-letter queue of one run.

Messages carry ids and S3 keys, never payloads. A queue that is lost takes only leases with it: the trainer's ledger
in S3 reissues every id that has no result. So the queues are not retained, and their fixed names are free again for
the next deploy (SQS gives a name back 60 seconds after its deletion); termination protection guards against accidents.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_sqs as sqs
from constructs import Construct

from infra.config.plan import Plan
from infra.constructs.pod_identity import queue_arn
from infra.constructs.stack import PlanStack

LONG_POLL_SECONDS = 20


class QueueStack(PlanStack):
    """Three standard queues under SSE-SQS: at-least-once delivery, which idempotent results make harmless."""

    def __init__(self, scope: Construct, plan: Plan) -> None:
        super().__init__(scope, "queue", plan, description="Task, result and dead-letter queues", protected=True)
        # By literal ARN: the queues refer to each other both ways, and references would be a cycle.
        sources = [
            sqs.Queue.from_queue_arn(self, f"{use}Source", queue_arn(plan, name))
            for use, name in (("Task", plan.names.task_queue), ("Result", plan.names.result_queue))
        ]
        self.dead_letter = self._queue(
            "DeadLetterQueue",
            plan.names.dead_letter_queue,
            redrive_allow_policy=sqs.RedriveAllowPolicy(
                redrive_permission=sqs.RedrivePermission.BY_QUEUE, source_queues=sources
            ),
        )
        redrive = sqs.DeadLetterQueue(queue=self.dead_letter, max_receive_count=plan.queue.max_receive_count)
        self.tasks = self._queue("TaskQueue", plan.names.task_queue, dead_letter_queue=redrive)
        self.results = self._queue("ResultQueue", plan.names.result_queue, dead_letter_queue=redrive)

    def _queue(
        self,
        identifier: str,
        name: str,
        *,
        dead_letter_queue: sqs.DeadLetterQueue | None = None,
        redrive_allow_policy: sqs.RedriveAllowPolicy | None = None,
    ) -> sqs.Queue:
        queue = self.plan.queue
        return sqs.Queue(
            self,
            identifier,
            queue_name=name,
            encryption=sqs.QueueEncryption.SQS_MANAGED,
            enforce_ssl=True,
            visibility_timeout=cdk.Duration.seconds(queue.visibility_seconds),
            retention_period=cdk.Duration.seconds(queue.retention_seconds),
            receive_message_wait_time=cdk.Duration.seconds(LONG_POLL_SECONDS),
            dead_letter_queue=dead_letter_queue,
            redrive_allow_policy=redrive_allow_policy,
            removal_policy=cdk.RemovalPolicy.DESTROY,
        )
