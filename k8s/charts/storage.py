"""Scratch of the trainer: where a save lands before it is uploaded.

FSx for Lustre as one static volume, or the nodes' own NVMe. Checkpoints never go below a bucket mounted as a file system:
Mountpoint for S3 has no rename and no overwrite, and both Megatron and safetensors need one. Nothing here mounts a bucket;
models come from S3 by download, and the run sees them read-only.

Volume and claim are named after the file system: neither can be led to another one, and a run that still uses the old one
keeps its claim.
"""

from __future__ import annotations

from pathlib import PurePosixPath

from infra.config.names import url_suffix
from infra.config.outputs import Outputs
from infra.config.plan import Plan
from k8s import pods
from k8s.flags.training import scratch_directory
from k8s.manifest import Object, obj
from k8s.names import RUN_NAMESPACE, SCRATCH_CLAIM
from k8s.pods import Spec

DRIVER = "fsx.csi.aws.com"
ATTEMPTS_PATH = "/attempts"
"""The whole file system, in the containers that look after it."""
ATTEMPT = "$(MOERL_RUN)/$(MOERL_ATTEMPT)"
"""An attempt's directory on it; the kubelet fills the container's own variables in."""
NOMINAL_SIZE = "1200Gi"
"""Of volume and claim, for whatever size: Lustre knows no quota by it, and a static claim cannot grow with its file system."""


def ready(plan: Plan, outputs: Outputs | None) -> bool:
    """Whether trainer pods can mount their scratch; False while the file system's id is not known."""
    return plan.storage.scratch == "nvme" or (outputs is not None and outputs.file_system_id is not None)


def claim_name(plan: Plan, outputs: Outputs | None) -> str | None:
    """The claim of the file system; None for scratch on NVMe. Raises ValueError before `ready`."""
    if plan.storage.scratch == "nvme":
        return None
    if outputs is None or outputs.file_system_id is None:
        raise ValueError("the id of the scratch file system is known after the deploy")
    return f"{SCRATCH_CLAIM}-{outputs.file_system_id}"


def objects(plan: Plan, outputs: Outputs | None) -> tuple[Object, ...]:
    """Volume and claim of the file system; nothing for scratch on NVMe, or before `ready`."""
    name = claim_name(plan, outputs) if ready(plan, outputs) else None
    if name is None or outputs is None:
        return ()
    size = {"storage": NOMINAL_SIZE}
    return (
        obj(
            "v1",
            "PersistentVolume",
            name,
            spec={
                "capacity": size,
                "accessModes": ["ReadWriteMany"],
                # The file system belongs to its CloudFormation stack.
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": "",
                "claimRef": {"namespace": RUN_NAMESPACE, "name": name},
                "mountOptions": ["flock"],
                "csi": {
                    "driver": DRIVER,
                    "volumeHandle": outputs.file_system_id,
                    "volumeAttributes": {
                        "dnsname": f"{outputs.file_system_id}.fsx.{plan.region}.{url_suffix(plan.region)}",
                        "mountname": outputs.file_system_mount_name,
                    },
                },
            },
        ),
        obj(
            "v1",
            "PersistentVolumeClaim",
            name,
            namespace=RUN_NAMESPACE,
            spec={
                "accessModes": ["ReadWriteMany"],
                "storageClassName": "",
                "volumeName": name,
                "resources": {"requests": size},
            },
        ),
    )


def scratch(plan: Plan, claim: str | None) -> tuple[Spec, Spec]:
    """(volume, mount) of scratch at the directory that holds checkpoints, published weights and exports. `claim` is
    `claim_name`'s.

    Of the file system a container sees its own attempt's directory alone, so that two attempts never write one path: pods of
    one that was deleted are at a save for as long as their grace, and those of the next are there by then. On NVMe they would
    have to stand on one node, all of whose GPUs each takes.
    """
    if claim is None:
        return pods.local_cache("scratch", scratch_directory(plan))
    volume, mount = pods.scratch_volume(claim, "scratch", scratch_directory(plan))
    return volume, mount | {"subPathExpr": ATTEMPT}


def checkpoints(plan: Plan, claim: str | None) -> tuple[Spec, str, tuple[str, ...]]:
    """(mount, checkpoint directory, more arguments) of restore and uploader: on the file system they see all attempts, and
    remove what ended ones have left."""
    path = PurePosixPath(plan.storage.checkpoint_path)
    if claim is None:
        return scratch(plan, claim)[1], str(path), ()
    _, mount = pods.scratch_volume(claim, "scratch", ATTEMPTS_PATH)
    return mount, f"{ATTEMPTS_PATH}/{ATTEMPT}/{path.name}", ("--attempts", ATTEMPTS_PATH)
