"""A healthy node passes, and each fault is told apart from every other."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from moerl_runtime.preflight.check import exit_code, skipped
from moerl_runtime.preflight.collect import IMAGE_DOCUMENT
from moerl_runtime.preflight.judge import between_nodes
from tests.images.runtime.preflight.nodes import (
    ENGINE_OF_HALF_A_NODE,
    ENGINE_OF_TWO_NODES,
    PLUGIN,
    TYPES,
    Breaks,
    FakeNode,
    causes,
    checks_of,
    healthy,
    wanted,
)


def edit(path: str, old: str, new: str) -> Breaks:
    def change(node: FakeNode) -> None:
        text = (node.root / path).read_text(encoding="utf-8")
        assert old in text
        node.write(path, text.replace(old, new))

    return change


def answer(program: str, old: str, new: str, count: int = -1) -> Breaks:
    def change(node: FakeNode) -> None:
        ran = node.answers[program]
        assert ran is not None
        assert old in ran.output
        node.say(program, ran.output.replace(old, new, count))

    return change


def reworded(program: str, pattern: str, new: str) -> Breaks:
    """As `answer`, for what each type says in its own words."""

    def change(node: FakeNode) -> None:
        ran = node.answers[program]
        assert ran is not None
        changed, count = re.subn(pattern, new, ran.output, flags=re.MULTILINE)
        assert count
        node.say(program, changed)

    return change


def without_infiniband(lost: slice) -> Breaks:
    def change(node: FakeNode) -> None:
        for device in sorted((node.root / "sys/class/infiniband").iterdir())[lost]:
            node.remove(*(str(file.relative_to(node.root)) for file in (device / "device").iterdir()))
            (device / "device").rmdir()
            device.rmdir()

    return change


def without_uverbs(share: float) -> Breaks:
    def change(node: FakeNode) -> None:
        files = sorted((node.root / "dev/infiniband").iterdir())
        for file in files[int(share * len(files)) :]:
            file.unlink()

    return change


def one_device_twice(node: FakeNode) -> None:
    """libfabric offers one less than there are."""
    first, second = sorted(path.name for path in (node.root / "sys/class/infiniband").iterdir())[:2]
    answer(FI, f"domain: {first}-", f"domain: {second}-")(node)


def variable(name: str, value: str | None) -> Breaks:
    def change(node: FakeNode) -> None:
        node.variables.pop(name, None)
        if value is not None:
            node.variables[name] = value

    return change


SMI, SMI_Q, FI, FI_VERSION, NM = (
    "nvidia-smi --query-gpu",
    "nvidia-smi -q",
    "/opt/amazon/efa/bin/fi_info -p",
    "/opt/amazon/efa/bin/fi_info --version",
    "nm -D --defined-only",
)
ALL, LAST = slice(None), slice(-1, None)
NO_OPTIONS = 'RegistryDwords: ""\n'
NO_DATA = "fi_getinfo: -61 (No data available)\n"

FAULTS: dict[str, tuple[Breaks, list[str]]] = {
    "no driver": (lambda node: node.say(SMI, None), ["nvidia-driver-missing"]),
    "driver does not answer": (
        lambda node: node.say(SMI, "NVIDIA-SMI has failed because it couldn't communicate\n", 9),
        ["nvidia-driver-missing"],
    ),
    "a GPU has gone": (lambda node: node.say(SMI, _cut(node, SMI)), ["gpu-count"]),
    "another GPU": (reworded(SMI, "^NVIDIA [^,]+", "NVIDIA A100"), ["gpu-model"]),
    "part of a GPU": (reworded(SMI, r"^([^,]+, )\d+", r"\g<1>35840"), ["gpu-memory"]),
    "memory errors": (answer(SMI, "Enabled, 0", "Enabled, 3", 1), ["gpu-ecc-errors"]),
    "old NVIDIA driver": (answer(SMI, "580.159.03", "575.57.08"), ["nvidia-driver-old"]),
    "fabric manager": (
        answer(SMI_Q, ": Completed\n        Status                                         : Success", ": In Progress"),
        ["fabric-manager"],
    ),
    "EFA absent": (without_infiniband(ALL), ["efa-absent"]),
    "EFA partial": (without_infiniband(LAST), ["efa-partial"]),
    "EFA not given": (without_uverbs(0.0), ["efa-pod-absent"]),
    "EFA given in part": (without_uverbs(0.5), ["efa-pod-partial"]),
    "EFA module missing": (lambda node: node.remove("sys/module/efa/version"), ["efa-module-missing"]),
    "old EFA driver": (lambda node: node.write("sys/module/efa/version", "3.1.0g\n"), ["efa-driver-old"]),
    "sockets": (lambda node: node.say(FI, NO_DATA, 61), ["sockets-fallback"]),
    "provider offers a part": (one_device_twice, ["efa-partial", "efa-direct-missing"]),
    "no efa-direct": (answer(FI, "fabric: efa-direct", "fabric: efa"), ["efa-direct-missing"]),
    "old libfabric": (answer(FI_VERSION, "2.6.0", "2.4.0"), ["libfabric-old"]),
    "no libfabric": (lambda node: node.say(FI, None), ["libfabric-missing"]),
    "gdrdrv missing": (lambda node: node.remove("sys/module/gdrdrv/version"), ["gdrdrv-missing"]),
    "old gdrdrv": (lambda node: node.write("sys/module/gdrdrv/version", "2.4\n"), ["gdrdrv-old"]),
    "gdrdrv does not map persistently": (
        edit("proc/driver/gdrdrv/params", "mapping: yes", "mapping: no"),
        ["gdrdrv-not-persistent"],
    ),
    "no gdrdrv device": (lambda node: node.remove("dev/gdrdrv"), ["gdrdrv-device-missing"]),
    "no peer mapping": (lambda node: node.write("proc/driver/nvidia/params", NO_OPTIONS), ["peer-mapping"]),
    "memlock": (edit("proc/self/status", "CapEff:\t0000000000004000", "CapEff:\t0000000000000000"), ["memlock"]),
    "no plugin": (lambda node: node.remove(PLUGIN), ["sockets-fallback"]),
    "plugin with proxy alone": (answer(NM, "ncclGinPlugin_v14", "ncclNetPlugin_v9"), ["proxy-only"]),
    "plugin without GIN": (answer(NM, "ncclGinPlugin", "ncclNetPlugin"), ["plugin-without-gin"]),
    "plugin unreadable": (lambda node: node.say(NM, "nm: file format not recognized\n", 1), ["plugin-unreadable"]),
    "proxy asked for": (variable("NCCL_GIN_TYPE", "2"), ["proxy-instead-of-gda"]),
    "type unset": (variable("NCCL_GIN_TYPE", None), ["proxy-instead-of-gda"]),
    "type without its pair": (variable("NCCL_SYM_GIN_KERNELS_ENABLE", None), ["variables", "gin-pair"]),
    "no network named": (variable("NCCL_NET", None), ["sockets-fallback"]),
    "cuMem off": (variable("NCCL_CUMEM_ENABLE", "0"), ["variables", "cumem-off"]),
    "image for other GPUs": (lambda node: node.write(IMAGE_DOCUMENT, '{"cuda_archs": ["8.0"]}'), ["image-arch"]),
    "another interface": (variable("NCCL_SOCKET_IFNAME", "eth0"), ["variables"]),
}


ON_P5: dict[str, list[str]] = {
    "provider offers a part": ["efa-partial"],
    "type unset": ["variables"],
    "old EFA driver": [],
    "no efa-direct": [],
    "no peer mapping": [],
    "plugin with proxy alone": [],
    "proxy asked for": [],
    "type without its pair": [],
}
"""What those faults are there: it has no GPU-direct networking and goes by proxy, so most of them are none."""


def _lines(node: FakeNode, program: str) -> list[str]:
    ran = node.answers[program]
    assert ran is not None
    return ran.output.splitlines(keepends=True)


def _cut(node: FakeNode, program: str) -> str:
    return "".join(_lines(node, program)[:-1])


@pytest.mark.parametrize("type_name", TYPES)
def test_a_healthy_node_of_each_type_passes_as_trainer_and_as_job(type_name: str, tmp_path: Path) -> None:
    for place, whole in enumerate((True, False)):
        needs = wanted(type_name, whole_node=whole, changes=ENGINE_OF_TWO_NODES)
        assert needs.pod_efa == {"p5": 32, "p5en": 16, "p6-b200": 8}[type_name]
        (tmp_path / str(place)).mkdir()
        node = healthy(tmp_path / str(place), type_name, needs)
        checks = checks_of(node, needs)
        assert [check.line() for check in checks if check.status in ("failed", "warning")] == []
        assert exit_code(checks) == 0


@pytest.mark.parametrize(
    ("type_name", "fault"),
    [
        pytest.param(type_name, fault, id=fault if type_name == "p5en" else f"{fault}, {type_name}")
        for type_name in TYPES
        for fault in FAULTS
    ],
)
def test_each_fault_has_its_own_cause(type_name: str, fault: str, tmp_path: Path) -> None:
    needs = wanted(type_name, changes=ENGINE_OF_TWO_NODES)
    assert needs.transport == ("proxy" if type_name == "p5" else "gda")
    node = healthy(tmp_path, type_name, needs)
    damage, expected_causes = FAULTS[fault]
    if type_name == "p5":
        expected_causes = ON_P5.get(fault, expected_causes)
    damage(node)
    checks = checks_of(node, needs)
    assert causes(checks) == expected_causes
    assert exit_code(checks) == bool(expected_causes)
    for check in checks:
        if check.status == "failed":
            assert check.found
            assert check.needed
            assert check.fix.endswith(".")


def test_shared_memory_and_huge_pages_of_the_pod_count_not_those_of_the_node(tmp_path: Path) -> None:
    needs = wanted("p5en", "trainer")
    node = healthy(tmp_path, "p5en", needs)
    assert causes(checks_of(node, needs, shm_mib=64)) == ["shared-memory"]
    node.write("proc/meminfo", "HugePages_Free: 100\nHugepagesize: 2048 kB\n")
    assert causes(checks_of(node, needs)) == ["huge-pages"]


def test_local_disks_that_were_not_joined_are_found(tmp_path: Path) -> None:
    """The kubelet then fills the root volume, until pods are evicted."""
    needs = wanted("p5en")
    assert needs.ephemeral_gib > 20_000
    node = healthy(tmp_path, "p5en", needs)
    assert causes(checks_of(node, needs, disks_gib=500)) == ["local-disks"]
    assert causes(checks_of(node, needs, disks_gib=needs.ephemeral_gib - 1)) == ["local-disks"]


def test_an_image_of_somebody_elses_is_used_as_it_is(tmp_path: Path) -> None:
    needs = wanted("p5en")
    node = healthy(tmp_path, "p5en", needs)
    node.remove(IMAGE_DOCUMENT)
    checks = checks_of(node, needs)
    assert causes(checks, "warning") == ["image-unknown"]
    assert exit_code(checks) == 0


def test_warnings_do_not_fail(tmp_path: Path) -> None:
    needs = wanted("p5en")
    node = healthy(tmp_path, "p5en", needs)
    answer(SMI, "Enabled", "Disabled")(node)
    for device in (node.root / "sys/class/infiniband").iterdir():
        (device / "device/p2p").write_text("NONE\n", encoding="utf-8")
    checks = checks_of(node, needs)
    assert causes(checks, "warning") == ["gpu-ecc-off", "efa-peer-memory"]
    assert exit_code(checks) == 0


def test_proxy_nodes_need_no_gpu_direct_driver(tmp_path: Path) -> None:
    needs = wanted("p5")
    node = healthy(tmp_path, "p5", needs)
    node.write("sys/module/efa/version", "2.17.3\n")
    answer(NM, "ncclGinPlugin_v14", "ncclNetPlugin_v9")(node)
    assert causes(checks_of(node, needs)) == []
    node.write("sys/module/gdrdrv/version", "2.4\n")
    assert causes(checks_of(node, needs)) == ["gdrdrv-old"]


def test_a_module_that_does_not_tell_how_it_maps_is_a_warning(tmp_path: Path) -> None:
    needs = wanted("p5en")
    node = healthy(tmp_path, "p5en", needs)
    node.remove("proc/driver/gdrdrv/params")
    checks = checks_of(node, needs)
    assert causes(checks, "warning") == ["gdrdrv-mapping-unknown"]
    assert exit_code(checks) == 0
    node.write("sys/module/gdrdrv/version", "2.4\n")
    assert causes(checks_of(node, needs)) == ["gdrdrv-old"], "one before 2.5 has nothing to tell"


def test_an_unmounted_or_read_only_cache_is_told_from_a_writable_one(tmp_path: Path) -> None:
    needs = wanted("p5en")
    node = healthy(tmp_path, "p5en", needs)
    (node.root / "jit").rmdir()
    assert [check.status for check in checks_of(node, needs) if check.name == "node cache"] == ["skipped"]
    (node.root / "jit").mkdir()
    assert [check.status for check in checks_of(node, needs) if check.name == "node cache"] == ["ok"]
    assert list((node.root / "jit").iterdir()) == []


def test_a_cpu_pool_and_a_pod_without_efa_get_a_shorter_list(tmp_path: Path) -> None:
    cpu = wanted("p5en", "system")
    bare = FakeNode(root=tmp_path, answers={})
    checks = checks_of(bare, cpu)
    assert {check.status for check in checks} == {"skipped"}
    assert exit_code(checks) == 0
    half = wanted(
        "p5en",
        "rollout",
        whole_node=False,
        changes=ENGINE_OF_HALF_A_NODE,
    )
    assert (half.gpus, half.pod_efa, half.node_efa) == (4, 0, 16)
    (tmp_path / "half").mkdir()
    node = healthy(tmp_path / "half", "p5en", half)
    node.say(SMI, "".join(_lines(node, SMI)[:4]))
    without_uverbs(0.0)(node)
    names = {check.name for check in checks_of(node, half)}
    assert causes(checks_of(node, half)) == []
    assert not names & {
        "EFA driver",
        "gdrdrv module",
        "locked memory",
        "OFI plugin for NCCL",
        "communication variables",
    }


def test_what_several_nodes_show_is_said_as_it_was_proven_or_not() -> None:
    for pool, nodes in (("trainer", 16), ("rollout", 2)):
        needs = wanted("p5en", pool)
        assert between_nodes(needs, None) == skipped("between nodes", between_nodes(needs, None).found)
        assert f"does, on {nodes} nodes together" in between_nodes(needs, None).found
        assert (between_nodes(needs, "").status, between_nodes(needs, "").found) == ("skipped", "not proven, see above")
        passed = between_nodes(needs, "all of it")
        assert (passed.status, passed.found) == ("ok", "all of it")


def test_pods_that_work_alone_or_without_efa_have_nothing_to_prove_between_nodes() -> None:
    without = {"pools.trainer.efa": False, "workload.trainer.expert_parallel": 8}
    for needs in (wanted("p5en", "system"), wanted("p6-b200", "rollout"), wanted("p5en", "trainer", changes=without)):
        assert needs.together_nodes == 1
        assert between_nodes(needs, None).status == "skipped"
        assert "alone" in between_nodes(needs, None).found
