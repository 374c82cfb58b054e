"""Readers for queues, topics, rules, logs, alarms, budgets, builds, schedules and parameters."""

from __future__ import annotations

import json
from typing import Any

from .base import Actual, Properties, Reader, Source, one, optional, pascal, renamed, tag_list, tag_map


def queue(source: Source, physical_id: str, _props: Properties) -> Actual:
    sqs = source.client("sqs")
    raw = sqs.get_queue_attributes(QueueUrl=physical_id, AttributeNames=["All"])["Attributes"]
    tags = sqs.list_queue_tags(QueueUrl=physical_id).get("Tags", {})
    name = physical_id.rpartition("/")[2]
    attributes = {"Arn": raw["QueueArn"], "QueueName": name, "QueueUrl": physical_id}
    return Actual({**raw, "QueueName": name, "Tags": tag_list(tags)}, attributes)


def queue_policy(source: Source, _physical_id: str, props: Properties) -> Actual:
    sqs = source.client("sqs")
    documents = [
        json.loads(sqs.get_queue_attributes(QueueUrl=url, AttributeNames=["Policy"])["Attributes"]["Policy"])
        for url in props["Queues"]
    ]
    return Actual({"Queues": props["Queues"], "PolicyDocument": _common(documents)})


def _common(documents: list[Any]) -> Any:
    """The document that every target shows; all of them when they differ, which then matches nothing."""
    return documents[0] if all(document == documents[0] for document in documents) else documents


def topic(source: Source, physical_id: str, _props: Properties) -> Actual:
    sns = source.client("sns")
    raw = sns.get_topic_attributes(TopicArn=physical_id)["Attributes"]
    subscriptions = sns.list_subscriptions_by_topic(TopicArn=physical_id)["Subscriptions"]
    found = {
        **raw,
        "TopicName": physical_id.rpartition(":")[2],
        "Subscription": [{"Endpoint": row["Endpoint"], "Protocol": row["Protocol"]} for row in subscriptions],
        "Tags": tag_list(sns.list_tags_for_resource(ResourceArn=physical_id)["Tags"]),
    }
    return Actual(found, {"TopicArn": physical_id, "TopicName": found["TopicName"]})


def topic_policy(source: Source, _physical_id: str, props: Properties) -> Actual:
    sns = source.client("sns")
    documents = [json.loads(sns.get_topic_attributes(TopicArn=arn)["Attributes"]["Policy"]) for arn in props["Topics"]]
    return Actual({"Topics": props["Topics"], "PolicyDocument": _common(documents)})


def subscription(source: Source, physical_id: str, _props: Properties) -> Actual:
    raw = source.client("sns").get_subscription_attributes(SubscriptionArn=physical_id)["Attributes"]
    return Actual(raw, {"Arn": physical_id})


def rule(source: Source, physical_id: str, props: Properties) -> Actual:
    events = source.client("events")
    name = physical_id.rpartition("/")[2]
    bus = {"EventBusName": props["EventBusName"]} if "EventBusName" in props else {}
    raw = events.describe_rule(Name=name, **bus)
    found = {
        **raw,
        "Targets": events.list_targets_by_rule(Rule=name, **bus)["Targets"],
        "Tags": tag_list(events.list_tags_for_resource(ResourceARN=raw["Arn"])["Tags"]),
    }
    return Actual(found, {"Arn": raw["Arn"], "RuleName": name})


def log_group(source: Source, physical_id: str, _props: Properties) -> Actual:
    logs = source.client("logs")
    rows = logs.describe_log_groups(logGroupNamePrefix=physical_id)["logGroups"]
    raw = one([row for row in rows if row["logGroupName"] == physical_id], physical_id)
    arn = raw["arn"].removesuffix(":*")
    tags = logs.list_tags_for_resource(resourceArn=arn)["tags"]
    found = {**pascal(raw), "Tags": tag_list(tags)}
    return Actual(found, {"Arn": f"{arn}:*"})


def metric_filter(source: Source, physical_id: str, props: Properties) -> Actual:
    reply = source.client("logs").describe_metric_filters(logGroupName=props["LogGroupName"])
    name = props.get("FilterName", physical_id)
    raw = one([row for row in reply["metricFilters"] if row["filterName"] == name], name)
    return Actual(pascal(raw))


def log_policy(source: Source, _physical_id: str, props: Properties) -> Actual:
    rows = source.client("logs").describe_resource_policies()["resourcePolicies"]
    raw = one([row for row in rows if row["policyName"] == props["PolicyName"]], props["PolicyName"])
    return Actual({"PolicyName": raw["policyName"], "PolicyDocument": raw["policyDocument"]})


def alarm(source: Source, physical_id: str, _props: Properties) -> Actual:
    cloudwatch = source.client("cloudwatch")
    raw = one(cloudwatch.describe_alarms(AlarmNames=[physical_id])["MetricAlarms"], physical_id)
    tags = cloudwatch.list_tags_for_resource(ResourceARN=raw["AlarmArn"])["Tags"]
    return Actual({**raw, "Tags": tag_list(tags)}, {"Arn": raw["AlarmArn"]})


def dashboard(source: Source, physical_id: str, _props: Properties) -> Actual:
    cloudwatch = source.client("cloudwatch")
    raw = cloudwatch.get_dashboard(DashboardName=physical_id)
    tags = cloudwatch.list_tags_for_resource(ResourceARN=raw["DashboardArn"])["Tags"]
    return Actual({**raw, "Tags": tag_list(tags)})


def budget(source: Source, physical_id: str, _props: Properties) -> Actual:
    client = source.client("budgets")
    key = {"AccountId": source.account, "BudgetName": physical_id}
    raw = client.describe_budget(**key)["Budget"]
    rows = []
    for notification in client.describe_notifications_for_budget(**key)["Notifications"]:
        reply = client.describe_subscribers_for_notification(**key, Notification=notification)
        rows.append({"Notification": notification, "Subscribers": reply["Subscribers"]})
    arn = f"arn:aws:budgets::{source.account}:budget/{physical_id}"
    tags = client.list_tags_for_resource(ResourceARN=arn).get("ResourceTags", [])
    return Actual(
        {"Budget": raw, "NotificationsWithSubscribers": rows, "ResourceTags": tag_list(tags)}, {"Id": physical_id}
    )


def build_project(source: Source, physical_id: str, _props: Properties) -> Actual:
    name = physical_id.rpartition("/")[2]
    raw = one(source.client("codebuild").batch_get_projects(names=[name])["projects"], name)
    found = pascal(raw)
    found["Source"] = renamed(found["Source"], {"Buildspec": "BuildSpec"})
    found["TimeoutInMinutes"] = raw.get("timeoutInMinutes")
    found["Tags"] = tag_list(raw.get("tags"), "key", "value")
    return Actual(found, {"Arn": raw["arn"]})


def _image_builder(operation: str, argument: str, member: str) -> Reader:
    """Reader of one kind of Image Builder resource, whose physical id is its ARN."""

    def read(source: Source, physical_id: str, _props: Properties) -> Actual:
        raw = getattr(source.client("imagebuilder"), operation)(**{argument: physical_id})[member]
        found = pascal(raw, frozenset({"amiTags", "resourceTags", "tags"}))
        return Actual({**found, "Tags": tag_map(raw.get("tags"))}, {"Arn": raw["arn"], "Name": raw["name"]})

    return read


def schedule(source: Source, physical_id: str, props: Properties) -> Actual:
    group = {"GroupName": props["GroupName"]} if "GroupName" in props else {}
    raw = source.client("scheduler").get_schedule(Name=physical_id, **group)
    return Actual(raw, {"Arn": raw["Arn"]})


def schedule_group(source: Source, physical_id: str, _props: Properties) -> Actual:
    scheduler = source.client("scheduler")
    raw = scheduler.get_schedule_group(Name=physical_id)
    tags = scheduler.list_tags_for_resource(ResourceArn=raw["Arn"])["Tags"]
    return Actual({**raw, "Tags": tag_list(tags)}, {"Arn": raw["Arn"]})


def parameter(source: Source, physical_id: str, _props: Properties) -> Actual:
    ssm = source.client("ssm")
    raw = ssm.get_parameter(Name=physical_id)["Parameter"]
    filters = [{"Key": "Name", "Values": [physical_id]}]
    described = one(ssm.describe_parameters(ParameterFilters=filters)["Parameters"], physical_id)
    tags = optional(
        ssm.list_tags_for_resource, "InvalidResourceId", ResourceType="Parameter", ResourceId=physical_id
    ).get("TagList")
    return Actual({**described, **raw, "Tags": tag_map(tags)}, {"Type": raw["Type"], "Value": raw["Value"]})


READERS: dict[str, Reader] = {
    "AWS::Budgets::Budget": budget,
    "AWS::CloudWatch::Alarm": alarm,
    "AWS::CloudWatch::Dashboard": dashboard,
    "AWS::CodeBuild::Project": build_project,
    "AWS::Events::Rule": rule,
    "AWS::ImageBuilder::Component": _image_builder("get_component", "componentBuildVersionArn", "component"),
    "AWS::ImageBuilder::DistributionConfiguration": _image_builder(
        "get_distribution_configuration", "distributionConfigurationArn", "distributionConfiguration"
    ),
    "AWS::ImageBuilder::ImagePipeline": _image_builder("get_image_pipeline", "imagePipelineArn", "imagePipeline"),
    "AWS::ImageBuilder::ImageRecipe": _image_builder("get_image_recipe", "imageRecipeArn", "imageRecipe"),
    "AWS::ImageBuilder::InfrastructureConfiguration": _image_builder(
        "get_infrastructure_configuration", "infrastructureConfigurationArn", "infrastructureConfiguration"
    ),
    "AWS::Logs::LogGroup": log_group,
    "AWS::Logs::MetricFilter": metric_filter,
    "AWS::Logs::ResourcePolicy": log_policy,
    "AWS::SNS::Subscription": subscription,
    "AWS::SNS::Topic": topic,
    "AWS::SNS::TopicPolicy": topic_policy,
    "AWS::SQS::Queue": queue,
    "AWS::SQS::QueuePolicy": queue_policy,
    "AWS::SSM::Parameter": parameter,
    "AWS::Scheduler::Schedule": schedule,
    "AWS::Scheduler::ScheduleGroup": schedule_group,
}
