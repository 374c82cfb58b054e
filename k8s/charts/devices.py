"""Devices of GPU nodes: NVIDIA's and EFA's device plugins, the gdrdrv module, and the run's image, pulled ahead.

DaemonSets of our own in place of the vendors' charts, whose lists of instance types and taints lag behind: a pool that
they do not know gets no plugin, offers no device, and NCCL goes over TCP with nobody told. Ours go by the pool label and
tolerate every taint. Nothing else has to label nodes: what feature discovery would find out (GPU model, EFA, capacity)
follows from the pool, and the node group writes the pool's labels when the node joins.

The GPU Operator is not used: EKS's NVIDIA AMI has driver and container toolkit, and the operator would install both again.

What the run's image does here (`python -m moerl_runtime ...`):
- `load-gdrdrv --minimum VERSION --device-folder DIR`: unless the AMI has loaded that version, builds gdrdrv against the
  running kernel (/lib/modules, /usr/src) and the NVIDIA driver's sources (/usr/src, where user data unpacks them on images
  that do not), loads it, and makes DIR/gdrdrv. Then it stays until it is told to stop; where it cannot, it ends non-zero
  with the reason in its log.
A pod that was started before the module is there lacks /dev/gdrdrv until it is started anew; preflight looks for it.
"""

from __future__ import annotations

from infra.catalog.ami import GDRDRV_FLOOR
from infra.config.plan import Plan
from k8s.daemonsets import AGENTS_ACCOUNT, NO_GPUS, NODE_CRITICAL, daemonset, host_path, requests
from k8s.manifest import Object, obj
from k8s.names import SYSTEM_NAMESPACE, SYSTEM_PRIORITY
from k8s.pods import Spec, container, privileged, restricted

PLUGIN_SOCKETS = "/var/lib/kubelet/device-plugins"
HOST_DEVICES = "/host/dev"


def objects(plan: Plan, *, image: str | None) -> tuple[Object, ...]:
    """`image` is the run's own, by digest; what needs it is left out without it (`left_out` says so)."""
    found: list[Object] = [
        obj("v1", "ServiceAccount", AGENTS_ACCOUNT, namespace=SYSTEM_NAMESPACE, automountServiceAccountToken=False),
        _nvidia(plan),
    ]
    if any(pool.efa_per_node for pool in plan.pools):
        found.append(_efa(plan))
    if image is not None:
        if any(pool.load_gdrdrv for pool in plan.pools):
            found.append(_gdrcopy(plan, image))
        found.append(_image_pull(plan, image))
    return tuple(found)


def left_out(plan: Plan, *, image: str | None) -> tuple[str, ...]:
    """What this chart would render if it knew the run's image."""
    if image is not None:
        return ()
    names = (*(("gdrcopy-loader",) if any(pool.load_gdrdrv for pool in plan.pools) else ()), "image-pull")
    return tuple(f"DaemonSet {name}: it runs the run's image, whose digest is not known yet" for name in names)


def _nvidia(plan: Plan) -> Object:
    """By default the plugin hands the uverbs devices, EFA's own, to every GPU pod: MOFED is off. GDRCopy is on, so that a
    GPU pod finds /dev/gdrdrv; a host path in its place would not pass the device cgroup.

    Devices go by environment variable, which the container toolkit reads when a container is made. The CDI strategies
    write the list down once, when the plugin starts: without gdrdrv if that is loaded later.
    """
    name = "nvidia-device-plugin"
    volume, mount = host_path("plugin-sockets", PLUGIN_SOCKETS, read_only=False)
    # The socket is there once the kubelet has the plugin; the image has no server to ask, but it has busybox.
    registered: Spec = {"exec": {"command": ["/busybox/test", "-S", f"{PLUGIN_SOCKETS}/nvidia-gpu.sock"]}}
    return daemonset(
        name,
        [pool for pool in plan.pools if pool.is_gpu],
        container(
            name,
            plan.images[name],
            requests(name),
            command=["nvidia-device-plugin"],
            variables={
                "DEVICE_ID_STRATEGY": "uuid",
                "DEVICE_LIST_STRATEGY": "envvar",
                "FAIL_ON_INIT_ERROR": "true",
                "GDRCOPY_ENABLED": "true",
                "GDS_ENABLED": "false",
                "MIG_STRATEGY": "none",
                "MOFED_ENABLED": "false",
                "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
                "NVIDIA_VISIBLE_DEVICES": "all",
                "PASS_DEVICE_SPECS": "false",
            },
            mounts=[mount],
            security=_root(),
            readinessProbe=registered | {"periodSeconds": 10},
            livenessProbe=registered | {"initialDelaySeconds": 60, "periodSeconds": 30, "failureThreshold": 4},
        ),
        volumes=[volume],
        priority=NODE_CRITICAL,
        max_unavailable="10%",
        grace_seconds=10,
    )


def _efa(plan: Plan) -> Object:
    """Its source is not public, so it gets what its chart gives it (privileged, the node's network), less the Neuron tools.
    No probe: it serves no port, and what its image holds is not known. What counts, the node's allocatable, is read
    before a run by preflight."""
    name = "efa-device-plugin"
    sockets, devices = (
        host_path("plugin-sockets", PLUGIN_SOCKETS, read_only=False),
        host_path("infiniband", "/dev/infiniband"),
    )
    return daemonset(
        name,
        [pool for pool in plan.pools if pool.efa_per_node],
        container(
            name,
            plan.images[name],
            requests(name),
            mounts=[sockets[1], devices[1]],
            security=privileged(),
        ),
        volumes=[sockets[0], devices[0]],
        priority=NODE_CRITICAL,
        max_unavailable="10%",
        grace_seconds=10,
        hostNetwork=True,
    )


def _gdrcopy(plan: Plan, image: str) -> Object:
    """Only where the transport goes through gdrdrv and the AMI is not said to have it; one that has it all the same finds
    it content. Its device node has to appear in the host's /dev, where the container toolkit looks for it."""
    name = "gdrcopy-loader"
    modules, sources, devices = (
        host_path("modules", "/lib/modules"),
        host_path("sources", "/usr/src"),
        host_path("devices", "/dev", mount_path=HOST_DEVICES, read_only=False),
    )
    scratch = {"name": "build", "emptyDir": {"sizeLimit": "512Mi"}}
    loaded: Spec = {"exec": {"command": ["test", "-c", f"{HOST_DEVICES}/gdrdrv"]}, "periodSeconds": 10}
    return daemonset(
        name,
        [pool for pool in plan.pools if pool.load_gdrdrv],
        container(
            name,
            image,
            requests(name),
            command=["python", "-m", "moerl_runtime", "load-gdrdrv"],
            args=["--minimum", GDRDRV_FLOOR, "--device-folder", HOST_DEVICES],
            variables={**NO_GPUS, "TMPDIR": "/build"},
            mounts=[modules[1], sources[1], devices[1], {"name": "build", "mountPath": "/build"}],
            security=privileged(),
            startupProbe=loaded | {"failureThreshold": 90},
            readinessProbe=dict(loaded),
        ),
        volumes=[modules[0], sources[0], devices[0], scratch],
        priority=NODE_CRITICAL,
        max_unavailable="10%",
        grace_seconds=10,
    )


def _image_pull(plan: Plan, image: str) -> Object:
    """Pulls the image, tens of GiB, while the node has nothing else to do, and keeps a container of it, so that the
    kubelet never collects it. `sleep` as process 1 takes no notice of SIGTERM, hence the short grace."""
    name = "image-pull"
    return daemonset(
        name,
        [pool for pool in plan.pools if pool.is_gpu],
        container(
            name,
            image,
            requests(name),
            command=["sleep", "infinity"],
            variables=NO_GPUS,
            security=restricted() | {"readOnlyRootFilesystem": True},
        ),
        priority=SYSTEM_PRIORITY,
        max_unavailable="100%",
        grace_seconds=1,
    )


def _root() -> Spec:
    """Root, to write beside the kubelet's sockets, and nothing more."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsUser": 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
