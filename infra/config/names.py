"""Every physical name, derived from the file alone, so that manifests know them before a deploy."""

from __future__ import annotations

from dataclasses import dataclass

from infra.config.environment import Environment

NAMESPACE = "rl"
"""Namespace of the run: trainer, rollout, environment and buffer pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    cluster: str
    checkpoint_bucket: str
    weights_bucket: str
    log_bucket: str
    apply_bucket: str
    repository: str
    task_queue: str
    result_queue: str
    dead_letter_queue: str
    alert_topic: str
    apply_project: str
    image_project: str
    image_parameters: str
    """SSM path of the digests of the run's images; `image_parameter` adds the software stack."""
    ami_pipeline: str
    """Also the name of what the pipeline is made of: recipe, infrastructure, distribution, log group."""
    ami_parameter: str
    """SSM parameter that a bake writes its AMI to; Image Builder's service role writes below `/imagebuilder/` alone."""
    event_log_group: str
    container_log_group: str
    flow_log_group: str
    budget: str
    metric_namespace: str
    namespace: str = NAMESPACE


def names(environment: Environment) -> Names:
    """Names of one environment. Buckets carry account and region, since S3 names are shared by all accounts."""
    name = environment.name
    checkpoints, weights, logs, apply = bucket_names(environment)
    return Names(
        cluster=name,
        checkpoint_bucket=environment.checkpoints.bucket or checkpoints,
        weights_bucket=weights,
        log_bucket=logs,
        apply_bucket=apply,
        repository=f"{name}/moerl",
        task_queue=f"{name}-tasks",
        result_queue=f"{name}-results",
        dead_letter_queue=f"{name}-dead-letter",
        alert_topic=f"{name}-alerts",
        apply_project=f"{name}-apply",
        image_project=f"{name}-image",
        image_parameters=f"/moerl/{name}/image",
        ami_pipeline=f"{name}-ami",
        ami_parameter=f"/imagebuilder/{name}/ami",
        event_log_group=f"/aws/events/{name}-capacity",
        container_log_group=f"/aws/containerinsights/{name}/application",
        flow_log_group=f"/aws/vpc/{name}-flow",
        budget=f"{name}-monthly",
        metric_namespace=f"moerl/{name}",
    )


def bucket_names(environment: Environment) -> tuple[str, str, str, str]:
    """Checkpoints, weights, logs, apply."""
    checkpoints, weights, logs, apply = (
        f"{environment.name}-{use}-{environment.account}-{environment.region}"
        for use in ("checkpoints", "weights", "logs", "apply")
    )
    return checkpoints, weights, logs, apply


def stack_name(environment: str, part: str) -> str:
    """CloudFormation stack name of one part, for example `reference-p5en-pool-trainer`."""
    return f"{environment}-{part}"


def schedule_group(environment: str, pool: str) -> str:
    """EventBridge Scheduler group of a capacity block's pool. Dots for the pool's dashes tell where the environment ends:
    pool `a-b` of `x` and pool `b` of `x-a` are two groups."""
    return f"{environment}-{pool.replace('-', '.')}"


def checkpoint_path(environment: Environment) -> str:
    """Directory, on the scratch file system, that a run both saves to and loads from."""
    return f"/scratch/{environment.name}/checkpoints"


def queue_url(region: str, account: str, queue: str) -> str:
    return f"https://sqs.{region}.{url_suffix(region)}/{account}/{queue}"


def repository_uri(region: str, account: str, repository: str) -> str:
    """Where docker and nodes reach an ECR repository of the account."""
    return f"{account}.dkr.ecr.{region}.{url_suffix(region)}/{repository}"


def image_parameter(known: Names, software: str) -> str:
    """SSM parameter that holds REPOSITORY@DIGEST of the newest image of a software stack that passed its gate."""
    return f"{known.image_parameters}/{software}"


def partition(region: str) -> str:
    """ARN partition of a region."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def url_suffix(region: str) -> str:
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
