"""Device plugins, the module loader and the image pulled ahead: what each is told and what it may do."""

from __future__ import annotations

import pytest

from k8s.charts import devices
from k8s.manifest import Object
from tests.shipped import IMAGE, SHIPPED, plan_of

CUSTOM = {"id": "ami-0123456789abcdef0", "efa_driver": "3.3.0", "gdrdrv": "2.5.2"}
BASELINE = {
    "software": "baseline",
    "workload.rollout.gpus_per_engine": 8,
    "workload.rollout.expert_parallel": 8,
}


def rendered(name: str = "reference-p5en", image: str | None = IMAGE, **changes: object) -> dict[str, Object]:
    found = devices.objects(plan_of(name, changes or None), image=image)
    return {item["metadata"]["name"]: item for item in found if item["kind"] == "DaemonSet"}


def pod(item: Object) -> Object:
    spec: Object = item["spec"]["template"]["spec"]
    return spec


def main(item: Object) -> Object:
    (one,) = pod(item)["containers"]
    return one  # type: ignore[no-any-return]


def variables(item: Object) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in main(item)["env"]}


def test_the_gpu_plugin_leaves_verbs_devices_alone_and_gives_pods_gdrcopy() -> None:
    told = variables(rendered()["nvidia-device-plugin"])
    assert told["MOFED_ENABLED"] == "false"
    assert told["GDRCOPY_ENABLED"] == "true"
    assert told["DEVICE_LIST_STRATEGY"] == "envvar"
    assert told["FAIL_ON_INIT_ERROR"] == "true"


def test_the_gpu_plugin_is_root_for_its_socket_and_nothing_else() -> None:
    context = main(rendered()["nvidia-device-plugin"])["securityContext"]
    assert not context.get("privileged")
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["allowPrivilegeEscalation"] is False
    assert context["readOnlyRootFilesystem"] is True


def test_both_plugins_may_write_beside_the_kubelets_sockets_and_nowhere_else_on_the_host() -> None:
    for name in ("nvidia-device-plugin", "efa-device-plugin"):
        item = rendered()[name]
        paths = {volume["name"]: volume["hostPath"]["path"] for volume in pod(item)["volumes"]}
        writable = {paths[mount["name"]] for mount in main(item)["volumeMounts"] if not mount["readOnly"]}
        assert writable == {"/var/lib/kubelet/device-plugins"}


def test_only_the_efa_plugin_joins_the_nodes_network() -> None:
    joined = {name for name, item in rendered().items() if pod(item).get("hostNetwork")}
    assert joined == {"efa-device-plugin"}


def test_only_the_efa_plugin_and_the_loader_are_privileged() -> None:
    found = {name for name, item in rendered().items() if main(item)["securityContext"].get("privileged")}
    assert found == {"efa-device-plugin", "gdrcopy-loader"}


def test_plugins_are_third_party_images_by_digest_and_the_rest_is_the_runs_image() -> None:
    images = {name: main(item)["image"] for name, item in rendered().items()}
    plan = plan_of("reference-p5en")
    assert images == {
        "nvidia-device-plugin": plan.images["nvidia-device-plugin"],
        "efa-device-plugin": plan.images["efa-device-plugin"],
        "gdrcopy-loader": IMAGE,
        "image-pull": IMAGE,
    }
    assert all("@sha256:" in image for image in images.values())


@pytest.mark.parametrize(
    ("name", "changes", "on"),
    [
        ("reference-p5en", {}, ["trainer", "rollout"]),
        ("p5", {}, ["trainer", "rollout"]),
        ("reference-p5en", {"pools.trainer.ami": CUSTOM}, ["rollout"]),
        ("reference-p5en", {"pools.trainer.ami": CUSTOM, "pools.rollout.ami": CUSTOM}, None),
        ("reference-p5en", BASELINE, None),
    ],
    ids=["gda", "proxy", "one AMI has it", "both have it", "no transport"],
)
def test_gdrdrv_is_loaded_exactly_where_the_transport_needs_it_and_the_ami_lacks_it(
    name: str, changes: dict[str, object], on: list[str] | None
) -> None:
    loader = rendered(name, **changes).get("gdrcopy-loader")
    if on is None:
        assert loader is None
        return
    assert loader is not None
    (term,) = pod(loader)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
        "nodeSelectorTerms"
    ]
    assert term["matchExpressions"][0]["values"] == on


def test_the_loader_makes_its_device_in_the_hosts_folder_and_is_ready_once_it_is_there() -> None:
    loader = rendered()["gdrcopy-loader"]
    one = main(loader)
    folder = one["args"][one["args"].index("--device-folder") + 1]
    (mount,) = (mount for mount in one["volumeMounts"] if mount["mountPath"] == folder)
    (volume,) = (volume for volume in pod(loader)["volumes"] if volume["name"] == mount["name"])
    assert (volume["hostPath"]["path"], mount["readOnly"]) == ("/dev", False)
    assert one["readinessProbe"]["exec"]["command"][-1] == f"{folder}/gdrdrv"
    assert one["args"][one["args"].index("--minimum") + 1] == "2.5"
    others = [mount for mount in one["volumeMounts"] if mount["name"] in ("modules", "sources")]
    assert len(others) == 2
    assert all(mount["readOnly"] for mount in others)


def test_pods_of_the_runs_image_take_no_gpu_past_the_device_plugin() -> None:
    for name in ("gdrcopy-loader", "image-pull"):
        item = rendered()[name]
        assert variables(item)["NVIDIA_VISIBLE_DEVICES"] == "void"
        assert "nvidia.com/gpu" not in main(item)["resources"]["requests"]


def test_the_image_is_pulled_on_all_nodes_at_once_and_held() -> None:
    item = rendered()["image-pull"]
    assert item["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": "100%"}
    assert main(item)["command"] == ["sleep", "infinity"]
    assert pod(item)["terminationGracePeriodSeconds"] == 1
    assert main(item)["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("name", SHIPPED)
def test_without_an_image_what_runs_it_is_left_out_by_name_and_the_plugins_stay(name: str) -> None:
    plan = plan_of(name)
    assert set(rendered(name, image=None)) == {"nvidia-device-plugin", "efa-device-plugin"}
    said = devices.left_out(plan, image=None)
    assert [text.partition(":")[0] for text in said] == ["DaemonSet gdrcopy-loader", "DaemonSet image-pull"]
    assert devices.left_out(plan, image=IMAGE) == ()


def test_a_loader_that_nobody_needs_is_not_called_left_out() -> None:
    said = devices.left_out(plan_of("reference-p5en", BASELINE), image=None)
    assert [text.partition(":")[0] for text in said] == ["DaemonSet image-pull"]


def test_plugins_and_loader_outlive_pressure_on_the_node() -> None:
    priorities = {name: pod(item)["priorityClassName"] for name, item in rendered().items()}
    assert priorities == {
        "nvidia-device-plugin": "system-node-critical",
        "efa-device-plugin": "system-node-critical",
        "gdrcopy-loader": "system-node-critical",
        "image-pull": "moerl-system",
    }
