"""The one topic that alarms and budgets publish to.

Encrypted under a key of its own: the AWS managed key (alias/aws/sns) has a policy that nobody can change and that lets
neither CloudWatch alarms nor Budgets use it, so their messages would vanish without an error.

EventBridge may not publish. Its calls to KMS carry no source account (SNS developer guide, key management), so it could
be let in only for every account's rules; events reach people through a metric and an alarm instead.
"""

from __future__ import annotations

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_kms as kms
from aws_cdk import aws_sns as sns
from aws_cdk import aws_sns_subscriptions as subscriptions
from constructs import Construct

from infra.config.plan import Plan

KEY_WAITING_PERIOD = cdk.Duration.days(7)
"""The shortest that KMS takes: the key protects messages on their way, nothing that lasts."""


def alert_topic(scope: Construct, plan: Plan) -> sns.Topic:
    """The topic, its key, and one e-mail subscription per address of the plan."""
    publishers = {
        "cloudwatch.amazonaws.com": f"arn:{plan.partition}:cloudwatch:{plan.region}:{plan.account}:alarm:*",
        "budgets.amazonaws.com": f"arn:{plan.partition}:budgets::{plan.account}:*",
    }
    key = kms.Key(
        scope,
        "AlertsKey",
        description=f"{plan.name}: alert messages",
        enable_key_rotation=True,
        removal_policy=cdk.RemovalPolicy.DESTROY,
        pending_window=KEY_WAITING_PERIOD,
    )
    topic = sns.Topic(scope, "Alerts", topic_name=plan.names.alert_topic, master_key=key, enforce_ssl=True)
    for service, source in publishers.items():
        key.add_to_resource_policy(_grant(plan, service, source, ["kms:GenerateDataKey*", "kms:Decrypt"], "*"))
        topic.add_to_resource_policy(_grant(plan, service, source, ["sns:Publish"], topic.topic_arn))
    for address in plan.emails:
        topic.add_subscription(subscriptions.EmailSubscription(address))
    return topic


def _grant(plan: Plan, service: str, source: str, actions: list[str], resource: str) -> iam.PolicyStatement:
    return iam.PolicyStatement(
        principals=[iam.ServicePrincipal(service)],
        actions=actions,
        resources=[resource],
        conditions={"StringEquals": {"aws:SourceAccount": plan.account}, "ArnLike": {"aws:SourceArn": source}},
    )
