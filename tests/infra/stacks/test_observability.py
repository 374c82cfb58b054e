"""Observability: who may publish alerts, which events are counted for which pool, and what raises an alarm."""

from __future__ import annotations

import json
import re
from math import ceil
from typing import Any

import pytest

from infra.config.plan import Plan

from .events import counted, flat
from .resources import ENVIRONMENTS, Plans, Template, Templates, by_type, of_type, only, properties

REFERENCE = "reference-p5en"
RECLAIMED = (
    "At 2026-11-29T10:00:00Z an instance was taken out of service in response to an EC2 health check indicating it has"
    " been terminated or stopped."
)
ASKED_FOR = (
    "At 2026-11-29T10:00:00Z instance i-0 was taken out of service in response to a user request, shrinking the capacity"
    " from 4 to 3."
)


@pytest.fixture(scope="session")
def reference(plan: Plans, template: Templates) -> Template:
    return template(plan(REFERENCE), "observability")


def scaling_event(kind: str, group: str, cause: str = "") -> dict[str, Any]:
    """As in the EC2 Auto Scaling event reference, with the fields that matter here."""
    return {
        "source": "aws.autoscaling",
        "detail-type": kind,
        "resources": ["arn:aws:autoscaling:us-west-2:123456789012:autoScalingGroup:0:autoScalingGroupName/0"],
        "detail": {"AutoScalingGroupName": group, "Cause": cause, "StatusCode": "InProgress"},
    }


def group_of(plan: Plan, pool: str) -> str:
    """Name of a pool's Auto Scaling group, where the tests let the stack's name stand for the node group's."""
    return f"eks-{plan.name}-pool-{pool}-0ab1cd23-4567-89ab-cdef-0123456789ab"


def spot_event(at: str) -> dict[str, Any]:
    return {
        "source": "aws.ec2",
        "detail-type": "EC2 Spot Instance Interruption Warning",
        "resources": [f"arn:aws:ec2:{at}:instance/i-0b662ef9931388ba0"],
        "detail": {"instance-id": "i-0b662ef9931388ba0", "instance-action": "terminate"},
    }


def alarms(template: Template) -> dict[str, dict[str, Any]]:
    """Properties of each alarm by its logical id without the hash."""
    return {key[:-8]: alarm["Properties"] for key, alarm in by_type(template, "AWS::CloudWatch::Alarm").items()}


def of_one_metric(template: Template) -> dict[str, dict[str, Any]]:
    """The alarms that compute nothing."""
    return {name: alarm for name, alarm in alarms(template).items() if not name.startswith("NatTraffic")}


def metric_of(alarm: dict[str, Any]) -> tuple[str, str, str]:
    """Namespace, name and statistic of an alarm's one metric."""
    if "MetricName" in alarm:
        return alarm["Namespace"], alarm["MetricName"], alarm["Statistic"]
    stat = only(alarm["Metrics"])["MetricStat"]
    return stat["Metric"]["Namespace"], stat["Metric"]["MetricName"], stat["Stat"]


@pytest.mark.parametrize("service", ["cloudwatch.amazonaws.com", "budgets.amazonaws.com"])
def test_a_publisher_may_use_topic_and_key_for_this_account_alone(reference: Template, service: str) -> None:
    key_policy = only(properties(reference, "AWS::KMS::Key"))["KeyPolicy"]["Statement"]
    topic_policy = only(properties(reference, "AWS::SNS::TopicPolicy"))["PolicyDocument"]["Statement"]
    for statements, actions in ((key_policy, ["kms:Decrypt", "kms:GenerateDataKey*"]), (topic_policy, "sns:Publish")):
        statement = only(one for one in statements if one["Principal"] == {"Service": service})
        assert statement["Action"] == actions
        assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": "123456789012"}
        assert ":123456789012:" in statement["Condition"]["ArnLike"]["aws:SourceArn"]


def test_the_topic_is_under_its_own_key_and_takes_no_message_without_tls(reference: Template) -> None:
    topic = only(properties(reference, "AWS::SNS::Topic"))
    assert topic["KmsMasterKeyId"]["Fn::GetAtt"][0] in by_type(reference, "AWS::KMS::Key")
    statements = only(properties(reference, "AWS::SNS::TopicPolicy"))["PolicyDocument"]["Statement"]
    denied = only(one for one in statements if one["Effect"] == "Deny")
    assert denied["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}


def test_nobody_else_publishes(reference: Template) -> None:
    statements = only(properties(reference, "AWS::SNS::TopicPolicy"))["PolicyDocument"]["Statement"]
    allowed = {one["Principal"]["Service"] for one in statements if one["Effect"] == "Allow"}
    assert allowed == {"cloudwatch.amazonaws.com", "budgets.amazonaws.com"}


def test_every_address_of_the_file_is_subscribed(plan: Plans, template: Templates) -> None:
    addresses = ["one@example.com", "two@example.com"]
    stack = template(plan("starter-p5en", {"alerts.emails": addresses}), "observability")
    subscriptions = properties(stack, "AWS::SNS::Subscription")
    assert [(one["Protocol"], one["Endpoint"]) for one in subscriptions] == [("email", one) for one in addresses]


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_node_that_nobody_gave_up_counts_for_its_pool_alone(name: str, plan: Plans, template: Templates) -> None:
    planned = plan(name)
    stack = template(planned, "observability")
    for pool in planned.pools:
        if pool.role != "system":
            event = scaling_event("EC2 Instance Terminate Successful", group_of(planned, pool.name), RECLAIMED)
            assert counted(stack, event) == {f"NodesLost.{pool.name}"}


def test_a_node_that_was_scaled_in_is_not_lost(plan: Plans, reference: Template) -> None:
    event = scaling_event("EC2 Instance Terminate Successful", group_of(plan(REFERENCE), "rollout"), ASKED_FOR)
    assert counted(reference, event) == set()


# B26: missing capacity shows as a failed launch
def test_a_failed_launch_counts_for_its_pool_alone(plan: Plans, reference: Template) -> None:
    event = scaling_event("EC2 Instance Launch Unsuccessful", group_of(plan(REFERENCE), "trainer"))
    assert counted(reference, event) == {"LaunchesFailed.trainer"}


def test_another_environment_of_the_account_does_not_count(plan: Plans, reference: Template) -> None:
    event = scaling_event("EC2 Instance Terminate Successful", group_of(plan("starter-p5en"), "rollout"), RECLAIMED)
    assert counted(reference, event) == set()


def test_a_node_group_is_told_from_one_whose_name_starts_alike(plan: Plans, reference: Template) -> None:
    event = scaling_event("EC2 Instance Launch Unsuccessful", group_of(plan(REFERENCE), "rolloutmore"))
    assert counted(reference, event) == set()


# The field has held the zone, and in newer documents region and account.
@pytest.mark.parametrize(
    ("at", "metrics"),
    [
        ("us-west-2b", {"SpotNotices.us-west-2b"}),
        ("us-west-2:123456789012", {"SpotNotices.us-west-2b"}),
        ("us-west-2a", set()),
    ],
)
def test_a_spot_notice_counts_in_the_zone_of_the_spot_pools(reference: Template, at: str, metrics: set[str]) -> None:
    assert counted(reference, spot_event(at)) == metrics


@pytest.mark.parametrize("kind", ["Capacity Block Expiration Warning", "Capacity Block Reservation Expiration Warning"])
def test_the_end_of_our_capacity_block_is_counted(kind: str, plan: Plans, template: Templates) -> None:
    stack = template(plan("p6-b200"), "observability")
    ours, other = (
        {"source": "aws.ec2", "detail-type": kind, "resources": [], "detail": {"capacity-reservation-id": block}}
        for block in ("cr-0fedcba9876543210", "cr-00000000000000000")
    )
    assert counted(stack, ours) == {"BlocksEnding"}
    assert counted(stack, other) == set()
    assert "BlockEnding" in alarms(stack)


def test_an_environment_without_blocks_has_no_alarm_for_them(reference: Template) -> None:
    assert "BlockEnding" not in alarms(reference)


def test_events_may_be_written_to_their_own_log_group_alone(reference: Template) -> None:
    group = only(properties(reference, "AWS::Logs::LogGroup"))
    assert (group["LogGroupName"], group["RetentionInDays"]) == (f"/aws/events/{REFERENCE}-capacity", 90)
    arn = f"arn:aws:logs:us-west-2:123456789012:log-group:{group['LogGroupName']}"
    statement = only(
        json.loads(only(properties(reference, "AWS::Logs::ResourcePolicy"))["PolicyDocument"])["Statement"]
    )
    assert statement["Resource"] == f"{arn}:*"
    for rule in of_type(reference, "AWS::Events::Rule"):
        assert only(rule["Properties"]["Targets"])["Arn"] == arn
        assert set(by_type(reference, "AWS::Logs::ResourcePolicy")) <= set(rule["DependsOn"])


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_counted_metric_that_is_read_is_also_written(name: str, plan: Plans, template: Templates) -> None:
    stack = template(plan(name), "observability")
    written = {
        (one["MetricNamespace"], one["MetricName"])
        for found in properties(stack, "AWS::Logs::MetricFilter")
        for one in found["MetricTransformations"]
    }
    read = {metric_of(alarm)[:2] for alarm in of_one_metric(stack).values()}
    board = json.loads(flat_dashboard(stack))
    read |= {
        tuple(metric[:2])
        for widget in board["widgets"]
        for metric in widget["properties"]["metrics"]
        if isinstance(metric[0], str)
    }
    assert {metric for metric in read if metric[0] == f"moerl/{name}"} == written


def flat_dashboard(template: Template) -> str:
    body = only(properties(template, "AWS::CloudWatch::Dashboard"))["DashboardBody"]
    parts = [part if isinstance(part, str) or "Ref" not in part else part["Ref"] for part in body["Fn::Join"][1]]
    return flat({"Fn::Join": ["", parts]})


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_every_alarm_reaches_the_topic_says_what_to_do_and_decides_on_silence(
    name: str, plan: Plans, template: Templates
) -> None:
    stack = template(plan(name), "observability")
    for alarm in alarms(stack).values():
        assert only(alarm["AlarmActions"])["Ref"] in by_type(stack, "AWS::SNS::Topic")
        assert name in alarm["AlarmDescription"]
        assert re.search(r"[.:;] ?(Check|check|Look|Read)", alarm["AlarmDescription"]), alarm["AlarmDescription"]
        assert alarm["TreatMissingData"] in ("notBreaching", "breaching")


# B29: Spot takes many nodes of a pool at once
@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_third_of_a_spot_pool_lost_at_once_is_an_alarm_and_so_is_any_other_gpu_node(
    name: str, plan: Plans, template: Templates
) -> None:
    planned = plan(name)
    found = alarms(template(planned, "observability"))
    for pool in (pool for pool in planned.pools if pool.is_gpu):
        kind = "SpotLoss" if pool.capacity.type == "spot" else "NodeLost"
        alarm = found[f"{kind}{pool.name}"]
        assert metric_of(alarm) == (f"moerl/{name}", f"NodesLost.{pool.name}", "Sum")
        assert alarm["Threshold"] == (ceil(pool.size.max / 3) if pool.capacity.type == "spot" else 1)
        assert (alarm["EvaluationPeriods"], only(alarm["Metrics"])["MetricStat"]["Period"]) == (1, 300)


def test_queues_raise_alarms_on_waiting_tasks_unread_results_and_dead_letters(reference: Template) -> None:
    found = {name: alarm for name, alarm in of_one_metric(reference).items() if metric_of(alarm)[0] == "AWS/SQS"}
    assert {name: (metric_of(alarm)[1:], alarm["Threshold"]) for name, alarm in found.items()} == {
        "TasksWaiting": (("ApproximateAgeOfOldestMessage", "Maximum"), 1800),
        "ResultsUnread": (("ApproximateAgeOfOldestMessage", "Maximum"), 3600),
        "DeadLetters": (("ApproximateNumberOfMessagesVisible", "Maximum"), 1),
    }
    # An empty queue publishes nothing after a while, and that is fine.
    assert {alarm["TreatMissingData"] for alarm in found.values()} == {"notBreaching"}


def test_a_gpu_node_without_a_gpu_pod_for_half_an_hour_is_an_alarm(reference: Template) -> None:
    alarm = alarms(reference)["GpuNodeIdle"]
    assert metric_of(alarm) == ("ContainerInsights", "node_gpu_usage_total", "Minimum")
    stat = only(alarm["Metrics"])["MetricStat"]
    assert stat["Metric"]["Dimensions"] == [{"Name": "ClusterName", "Value": REFERENCE}]
    assert stat["Period"] * alarm["EvaluationPeriods"] == 30 * 60
    assert (alarm["ComparisonOperator"], alarm["Threshold"]) == ("LessThanOrEqualToThreshold", 0)
    assert alarm["TreatMissingData"] == "notBreaching"


def test_bytes_through_each_nat_gateway_both_ways_are_an_alarm(plan: Plans, template: Templates) -> None:
    planned = plan(REFERENCE)
    found = alarms(template(planned, "observability"))
    network = template(planned, "network")
    gateways = by_type(network, "AWS::EC2::NatGateway")
    watched = set()
    for zone in planned.network.zones:
        alarm = found[f"NatTraffic{zone.replace('-', '')}"]
        (math,) = (one for one in alarm["Metrics"] if "Expression" in one)
        read = {one["Id"]: one["MetricStat"] for one in alarm["Metrics"] if "MetricStat" in one}
        assert {(stat["Metric"]["Namespace"], stat["Metric"]["MetricName"]) for stat in read.values()} == {
            ("AWS/NATGateway", "BytesOutToDestination"),
            ("AWS/NATGateway", "BytesInFromDestination"),
        }
        assert {(stat["Stat"], stat["Period"]) for stat in read.values()} == {("Sum", 3600)}
        assert math["Expression"] == f"({' + '.join(sorted(read, reverse=True))}) / 1073741824"
        gateway = only({json.dumps(stat["Metric"]["Dimensions"]) for stat in read.values()})
        assert '"NatGatewayId"' in gateway
        watched.add(gateway)
        # Each node of the zone at 4 GiB: the system pool is in every zone, the others are in one.
        nodes = sum(pool.size.max for pool in planned.pools if zone in pool.zones)
        assert (alarm["Threshold"], alarm["EvaluationPeriods"]) == (4 * nodes, 3)
        assert alarm["TreatMissingData"] == "notBreaching"
    assert len(watched) == len(gateways) == len(planned.network.zones)


def test_without_nat_there_is_no_alarm_and_no_graph_of_it(plan: Plans, template: Templates) -> None:
    stack = template(plan(REFERENCE, {"network.egress": "none"}), "observability")
    assert not [name for name in alarms(stack) if name.startswith("NatTraffic")]
    titles = [widget["properties"]["title"] for widget in json.loads(flat_dashboard(stack))["widgets"]]
    assert not [title for title in titles if "NAT" in title]


def test_the_dashboard_draws_the_traffic_of_every_nat_gateway(plan: Plans, reference: Template) -> None:
    widgets = json.loads(flat_dashboard(reference))["widgets"]
    (graph,) = (widget["properties"] for widget in widgets if "NAT" in widget["properties"]["title"])
    drawn = {metric[0]["label"] for metric in graph["metrics"] if isinstance(metric[0], dict)}
    assert drawn == set(plan(REFERENCE).network.zones)


def test_silence_of_container_insights_is_an_alarm_since_a_cluster_always_has_nodes(reference: Template) -> None:
    assert alarms(reference)["NodesFailed"]["TreatMissingData"] == "breaching"


def test_the_stack_runs_no_code(reference: Template) -> None:
    assert not [one for one in reference["Resources"].values() if one["Type"].startswith(("AWS::Lambda", "Custom::"))]
