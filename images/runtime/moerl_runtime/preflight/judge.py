"""Judgements over what was found on a node, one group of checks after the other. Pure: facts and needs in, checks out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from moerl_runtime.preflight import parse
from moerl_runtime.preflight.check import Check, judged, skipped
from moerl_runtime.preflight.collect import JIT_VARIABLE, Facts
from moerl_runtime.preflight.expected import Expected

AMAZON = "0x1d0f"
MIB, GIB = 2**20, 2**30
MEMORY_SHARE = 0.93
"""Of the nominal size: nvidia-smi shows what firmware and ECC leave."""
HUGE_PAGES_SHARE = 0.99
TWO_NODES = "between nodes"
PEER_MAPPING = "PeerMappingOverride"
_REPLACE = "Terminate the instance; its node group brings another."


def judge(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    """Every check that this pod's part of the plan asks for, in the order in which causes come before effects."""
    return (
        *_gpus(facts, expected),
        *_image(facts, expected),
        *_efa_devices(facts, expected),
        *_efa_driver(facts, expected),
        *_provider(facts, expected),
        *_device_side(facts, expected),
        *_memory(facts, expected),
        *_plugin(facts, expected),
        *_variables(facts.variables, expected),
        *_disks(facts, expected),
        *_cache(facts, expected),
    )


def between_nodes(expected: Expected, proven: str | None) -> Check:
    """What one node cannot show: `proven` is what was, '' where that failed, None where it was not tried."""
    if expected.together_nodes == 1:
        return skipped(TWO_NODES, "pods of this pool work alone, or without EFA")
    if proven is None:
        return skipped(
            TWO_NODES, f"not tried here: `preflight fabric` does, on {expected.together_nodes} nodes together"
        )
    return Check(name=TWO_NODES, status="ok", found=proven) if proven else skipped(TWO_NODES, "not proven, see above")


def _gpus(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    if expected.gpus == 0:
        return (skipped("GPUs", "this pod takes none"),)
    if facts.gpus is None or facts.gpus.code:
        said = "nvidia-smi is not there" if facts.gpus is None else _last_line(facts.gpus.output)
        return (
            Check(
                name="GPUs",
                status="failed",
                found=said,
                needed=f"{expected.gpus} x {expected.gpu_model}",
                fix="The NVIDIA driver does not answer. Check its module on the node and the pod's GPU request.",
                cause="nvidia-driver-missing",
            ),
        )
    found = parse.gpus(facts.gpus.output)
    models = parse.some([gpu.name for gpu in found])
    checks = [
        judged(
            "GPUs",
            len(found) == expected.gpus and all(expected.gpu_model in gpu.name for gpu in found),
            found=f"{len(found)} x {models}",
            needed=f"{expected.gpus} x {expected.gpu_model}",
            fix=f"A GPU has fallen off the bus, or the pod stands on another pool's node. {_REPLACE}",
            cause="gpu-count" if len(found) != expected.gpus else "gpu-model",
        )
    ]
    if not found:
        return tuple(checks)
    least, floor = min(gpu.memory_mib for gpu in found), int(expected.gpu_memory_gib * 1000**3 / MIB * MEMORY_SHARE)
    errors = sum(gpu.uncorrected for gpu in found)
    checks += [
        judged(
            "GPU memory",
            least >= floor,
            found=f"{least} MiB on the smallest",
            needed=f"at least {floor} MiB",
            fix=f"MIG or another partition is on, or it is another model. {_REPLACE}",
            cause="gpu-memory",
        ),
        judged(
            "GPU memory errors",
            errors == 0,
            found=f"{errors} uncorrected",
            needed="none",
            fix=f"Rows may wait to be remapped, which a reset does. {_REPLACE}",
            cause="gpu-ecc-errors",
        ),
        judged(
            "GPU ECC",
            all(gpu.ecc == "Enabled" for gpu in found),
            found=parse.some([gpu.ecc for gpu in found]),
            needed="Enabled",
            fix="EC2 has it on: somebody switched it off on this node.",
            cause="gpu-ecc-off",
            severity="warning",
        ),
    ]
    if expected.nvidia_driver is not None:
        drivers = [gpu.driver for gpu in found]
        checks.append(
            judged(
                "NVIDIA driver",
                all(parse.at_least(driver, expected.nvidia_driver) for driver in drivers),
                found=parse.some(drivers),
                needed=f"at least {expected.nvidia_driver}, for the image's CUDA",
                fix="Move the pool to a newer AMI release (`moerl lock`, then deploy).",
                cause="nvidia-driver-old",
            )
        )
    return (*checks, *_fabric(facts))


def _fabric(facts: Facts) -> tuple[Check, ...]:
    states = parse.fabric_states(facts.gpu_details.output) if facts.gpu_details and not facts.gpu_details.code else ()
    if not states:
        return (skipped("NVLink fabric", "nvidia-smi -q shows none"),)
    return (
        judged(
            "NVLink fabric",
            all(state == "Completed/Success" for state in states),
            found=parse.some(states),
            needed="Completed/Success on every GPU",
            fix="nvidia-fabricmanager is not up or not of the driver's release; without it CUDA ends with 802.",
            cause="fabric-manager",
        ),
    )


def _image(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    """A kernel that lacks the GPU's architecture shows at its first call, after start-up was paid for."""
    if expected.cuda_arch is None:
        return ()
    archs = parse.image_archs(facts.image or "")
    if archs is None:
        return (
            Check(
                name="image",
                status="warning",
                found="says nothing of what it was built for",
                needed="/opt/moerl/capabilities.json",
                fix="Build the image with `moerl image`; this one is used as it is.",
                cause="image-unknown",
            ),
        )
    return (
        judged(
            "image",
            expected.cuda_arch in archs,
            found=f"built for {parse.some(archs)}",
            needed=f"CUDA architecture {expected.cuda_arch}",
            fix="Build the image anew for the pools of this environment (`moerl image args STACK --env ENV`).",
            cause="image-arch",
        ),
    )


def _efa_devices(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    if expected.node_efa == 0:
        return (skipped("EFA devices", "the pool has none"),)
    if expected.pod_efa == 0:
        return (skipped("EFA devices", "this pod is given none: what it sends stays on the node"),)
    present = [device for device in facts.infiniband if device.vendor in (AMAZON, "")]
    count = len(present)
    checks = [
        judged(
            "EFA devices of the node",
            count == expected.node_efa,
            found=count,
            needed=f"{expected.node_efa} ({' or '.join(expected.instance_types)})",
            fix=f"Interfaces are made as EFA at launch and cannot be added later: the launch template is not the plan's, or "
            f"the efa module is not loaded. {_REPLACE}"
            if count == 0
            else f"A part of the devices is missing: point-to-point traffic breaks where all-reduce still works. {_REPLACE}",
            cause="efa-absent" if count == 0 else "efa-partial",
        ),
        judged(
            "EFA devices of this pod",
            facts.uverbs == expected.pod_efa,
            found=facts.uverbs,
            needed=expected.pod_efa,
            fix="Request vpc.amazonaws.com/efa in full, and check that the EFA device plugin runs on this node and that its "
            "allocatable count is the plan's.",
            cause="efa-pod-absent" if facts.uverbs == 0 else "efa-pod-partial",
        ),
    ]
    peers = {device.peer for device in present if device.peer is not None}
    if peers:
        checks.append(
            judged(
                "EFA peer memory",
                all("NVIDIA" in peer.upper() for peer in peers),
                found=parse.some(sorted(peers)),
                needed="NVIDIA",
                fix="The EFA driver sees no GPU memory; without DMA-BUF data would go through the host.",
                cause="efa-peer-memory",
                severity="warning",
            )
        )
    return tuple(checks)


def _efa_driver(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    if expected.pod_efa == 0:
        return ()
    version = facts.efa_version
    if version is None:
        return (
            Check(
                name="EFA driver",
                status="failed",
                found="the module efa is not loaded",
                needed=f"at least {expected.efa_driver}" if expected.efa_driver else "any version",
                fix="`modprobe efa` on the node says why; use an AMI with the EFA driver.",
                cause="efa-module-missing",
            ),
        )
    if expected.efa_driver is None:
        return (Check(name="EFA driver", status="ok", found=f"{version} loaded", needed="any version"),)
    return (
        judged(
            "EFA driver",
            parse.at_least(version, expected.efa_driver),
            found=f"{version} loaded",
            needed=f"at least {expected.efa_driver}, for GPU-direct",
            fix="Move the pool to an AMI with it; after an upgrade in place reboot, since the loaded module stays the old "
            "one. Or set transport: proxy for the pool.",
            cause="efa-driver-old",
        ),
    )


def _provider(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    """libfabric's view, which is what NCCL gets."""
    if expected.pod_efa == 0 or not expected.efa_installer_libfabric:
        return ()
    if facts.fi_info is None:
        return (
            Check(
                name="libfabric",
                status="failed",
                found="fi_info is not in the image",
                needed="libfabric of the EFA installer",
                fix="Build the image with `moerl` as documented; without libfabric NCCL goes over sockets.",
                cause="libfabric-missing",
            ),
        )
    offered = parse.fabrics(facts.fi_info.output)
    most = max(offered.efa, offered.efa_direct)
    checks = [
        judged(
            "libfabric EFA provider",
            most == expected.pod_efa,
            found=f"{most} devices" if most else f"none ({_last_line(facts.fi_info.output)})",
            needed=f"{expected.pod_efa} devices",
            fix="NCCL would fall back to sockets: check the EFA checks above and IPC_LOCK."
            if most == 0
            else "A part of the devices cannot be opened: check the EFA checks above.",
            cause="sockets-fallback" if most == 0 else "efa-partial",
        )
    ]
    if most and expected.transport == "gda":
        checks.append(
            judged(
                "libfabric fabric efa-direct",
                offered.efa_direct == expected.pod_efa,
                found=f"{offered.efa_direct} devices",
                needed=f"{expected.pod_efa} devices",
                fix="The image's libfabric or rdma-core is too old for GPU-direct: EFA installer 1.50.0 or later.",
                cause="efa-direct-missing",
            )
        )
    version = parse.libfabric_version(facts.fi_version.output) if facts.fi_version else ""
    if expected.libfabric is not None:
        checks.append(
            judged(
                "libfabric version",
                parse.at_least(version, expected.libfabric),
                found=version or "unknown",
                needed=f"at least {expected.libfabric}",
                fix="Another libfabric comes first on the path, or the image is not the plan's stack.",
                cause="libfabric-old",
            )
        )
    return tuple(checks)


def _device_side(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    """gdrdrv and the NVIDIA driver's option, which device-side networking goes through."""
    checks = []
    if expected.gdrdrv is not None:
        version = facts.gdrdrv_version
        checks.append(
            judged(
                "gdrdrv module",
                parse.at_least(version, expected.gdrdrv),
                found=f"{version} loaded" if version else "not loaded",
                needed=f"at least {expected.gdrdrv}",
                fix="The AMI or else the DaemonSet gdrcopy-loader loads it: read its log on this node.",
                cause="gdrdrv-old" if version else "gdrdrv-missing",
            )
        )
        if parse.at_least(version, expected.gdrdrv):
            checks.append(_persistent_mapping(facts))
        checks.append(
            judged(
                "gdrdrv device",
                facts.gdrdrv_device,
                found="/dev/gdrdrv" if facts.gdrdrv_device else "no /dev/gdrdrv",
                needed="/dev/gdrdrv in this pod",
                fix="A pod that was started before the module was loaded lacks it: delete the pod. Else check "
                "GDRCOPY_ENABLED of the NVIDIA device plugin and NVIDIA_GDRCOPY=enabled of the pod.",
                cause="gdrdrv-device-missing",
            )
        )
    if expected.peer_mapping:
        value = parse.registry_dwords(facts.nvidia_params or "").get(PEER_MAPPING)
        checks.append(
            judged(
                PEER_MAPPING,
                value == "1",
                found=f"{PEER_MAPPING}={value}" if value else "not set",
                needed=f"{PEER_MAPPING}=1 in /proc/driver/nvidia/params",
                fix="A boothook writes it, and reboots a node once whose driver came first: read the lines `moerl:` of the "
                "console log, then reboot or replace the node. An AMI that is baked (images.bake_ami) has it from the start.",
                cause="peer-mapping",
            )
        )
    return tuple(checks)


def _persistent_mapping(facts: Facts) -> Check:
    persistent = parse.maps_persistently(facts.gdrdrv_params or "")
    said = "in /proc/driver/gdrdrv/params"
    return judged(
        "gdrdrv mapping",
        persistent is True,
        found={True: "persistent", False: f"not persistent, {said}", None: f"not told {said}"}[persistent],
        needed="persistent: else pages are unpinned under RDMA when memory is freed",
        fix="Load it with use_persistent_mapping=1: the DaemonSet gdrcopy-loader does, and where no loader runs the AMI has "
        "to. A module that a process uses is not replaced: reboot the node.",
        cause="gdrdrv-mapping-unknown" if persistent is None else "gdrdrv-not-persistent",
        severity="warning" if persistent is None else "failed",
    )


def _memory(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    """Locked memory, huge pages, shared memory."""
    checks = []
    if expected.pod_efa:
        limit, capable = parse.locked_memory_bytes(facts.limits or ""), parse.has_ipc_lock(facts.status or "")
        unlimited = limit == parse.UNLIMITED
        shown = "unlimited" if unlimited else "unknown" if limit is None else f"{limit // 1024} KiB"
        checks.append(
            judged(
                "locked memory",
                bool(capable) or unlimited,
                found=f"limit {shown}, IPC_LOCK {'held' if capable else 'not held'}",
                needed="IPC_LOCK, or no limit",
                fix="Add IPC_LOCK to the container and run it as root: else memory cannot be registered and NCCL falls back "
                "to sockets.",
                cause="memlock",
            )
        )
    if expected.huge_pages_mib:
        free = parse.huge_pages_mib(facts.meminfo or "")
        checks.append(
            judged(
                "huge pages",
                free >= expected.huge_pages_mib * HUGE_PAGES_SHARE,
                found=f"{free} MiB free on the node",
                needed=f"{expected.huge_pages_mib} MiB",
                fix="The EFA driver reserves them at boot: another process has them, or memory was short. Reboot the node.",
                cause="huge-pages",
            )
        )
    if expected.shm_mib:
        size = (facts.shm_bytes or 0) // MIB
        checks.append(
            judged(
                "shared memory",
                size >= expected.shm_mib,
                found=f"/dev/shm of {size} MiB",  # noqa: S108 - a mount point, not a file
                needed=f"{expected.shm_mib} MiB",
                fix="Mount the plan's memory volume at /dev/shm: NCCL dies in the default of 64 MiB.",
                cause="shared-memory",
            )
        )
    return tuple(checks)


def _plugin(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    if expected.pod_efa == 0 or not expected.efa_installer_libfabric:
        return ()
    if facts.plugin is None:
        return (
            Check(
                name="OFI plugin for NCCL",
                status="failed",
                found="not in the image",
                needed="libnccl-net-ofi.so below /opt/amazon/ofi-nccl",
                fix="The EFA installer leaves it out on images that it takes for NGC's: pass --disable-ngc.",
                cause="sockets-fallback",
            ),
        )
    if expected.gin_export is None:
        return (Check(name="OFI plugin for NCCL", status="ok", found=facts.plugin),)
    if facts.plugin_symbols is None or facts.plugin_symbols.code:
        return (
            Check(
                name="OFI plugin for NCCL",
                status="failed",
                found=f"nm cannot read {facts.plugin}",
                needed=expected.gin_export,
                fix="The image needs binutils, which nvcc needs as well.",
                cause="plugin-unreadable",
            ),
        )
    exports = parse.exported(facts.plugin_symbols.output, "ncclGinPlugin_")
    return (
        judged(
            "OFI plugin for NCCL",
            expected.gin_export in exports,
            found=f"{Path(facts.plugin).name} exports {parse.some(exports)}",
            needed=expected.gin_export,
            fix="The image's EFA installer is too old for this transport; whatever its label says, the symbol decides.",
            cause="proxy-only" if exports else "plugin-without-gin",
        ),
    )


def _variables(variables: Mapping[str, str], expected: Expected) -> tuple[Check, ...]:
    if not expected.variables:
        return ()
    different = [
        f"{name}={variables.get(name, 'unset')} (plan: {value})"
        for name, value in sorted(expected.variables.items())
        if variables.get(name) != value
    ]
    checks = [
        judged(
            "communication variables",
            not different,
            found=", ".join(different) or f"{len(expected.variables)} as in the plan",
            needed="the plan's values",
            fix="Render the manifests anew; change them in the environment's file, under workload.*.variables.",
            cause=_variable_cause(variables, expected) if different else "",
        )
    ]
    if variables.get("NCCL_GIN_TYPE") == "5" and variables.get("NCCL_SYM_GIN_KERNELS_ENABLE") != "0":
        checks.append(
            Check(
                name="GIN variables",
                status="failed",
                found="NCCL_GIN_TYPE=5 without NCCL_SYM_GIN_KERNELS_ENABLE=0",
                needed="both",
                fix="Set both or neither: NCCL's own kernels need signals that EFA GPU-direct does not have.",
                cause="gin-pair",
            )
        )
    if expected.transport != "none" and variables.get("NCCL_CUMEM_ENABLE", "1") == "0":
        checks.append(
            Check(
                name="cuMem",
                status="failed",
                found="NCCL_CUMEM_ENABLE=0",
                needed="1",
                fix="DeepEP's buffer is symmetric memory, which is cuMem memory; SGLang and Miles must not switch it off.",
                cause="cumem-off",
            )
        )
    return tuple(checks)


def _variable_cause(variables: Mapping[str, str], expected: Expected) -> str:
    """The effect that the first wrong variable has."""
    if variables.get("NCCL_NET") != expected.variables.get("NCCL_NET"):
        return "sockets-fallback"
    if expected.transport == "gda" and variables.get("NCCL_GIN_TYPE") != "5":
        return "proxy-instead-of-gda"
    return "variables"


def _disks(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    if expected.ephemeral_gib == 0:
        return ()
    size = (facts.ephemeral_bytes or 0) // GIB
    return (
        judged(
            "local disks",
            size >= expected.ephemeral_gib,
            found=f"the kubelet's directory lies on a file system of {size} GiB",
            needed=f"{expected.ephemeral_gib} GiB, the node's local disks together",
            fix=f"nodeadm has not joined them to RAID0 below kubelet and containerd: NodeConfig was not read. {_REPLACE}",
            cause="local-disks",
        ),
    )


def _cache(facts: Facts, expected: Expected) -> tuple[Check, ...]:
    if not expected.nvme or facts.cache_folder is None:
        return (skipped("node cache", f"none is mounted ({JIT_VARIABLE})"),) if expected.gpus else ()
    return (
        judged(
            "node cache",
            not facts.cache_error,
            found=f"{facts.cache_folder}: {facts.cache_error or 'writable'}",
            needed="a folder on the node's NVMe that this user may write",
            fix="The RAID of local disks is not mounted at /mnt/k8s-disks/0, or belongs to another user: replace the node.",
            cause="node-cache",
        ),
    )


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no output"
