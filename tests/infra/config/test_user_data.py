"""C5: user data is one well-formed MIME document that holds exactly one NodeConfig."""

from __future__ import annotations

import os
import re
import subprocess
from email import message_from_string
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.config.user_data import (
    BOUNDARY,
    DRIVER_SOURCES_SCRIPT,
    GPU_DIRECT_BOOTHOOK,
    LUSTRE_SCRIPT,
    JoinData,
    node_config,
    parts,
    user_data,
)

NODE = node_config(max_pods=149, raid0=True, labels={}, taints=(), join=None)
MULTIPART = """Content-Type: multipart/mixed; boundary="theirs"
MIME-Version: 1.0

--theirs
Content-Type: text/x-shellscript; charset="utf-8"

#!/bin/bash
echo one
--theirs
Content-Type: text/cloud-config; charset="utf-8"

packages: [htop]
--theirs--
"""
NODE_TYPE, SHELL, HOOK = "application/node.eks.aws", "text/x-shellscript", "text/cloud-boothook"
scripts = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc"), include_characters="\n\t")).filter(
    lambda text: BOUNDARY not in text
)


def kinds(document: str) -> list[str]:
    return [kind for kind, _ in parts(document)]


@pytest.mark.parametrize("gpu_direct", [True, False])
@pytest.mark.parametrize("extra", [None, "#!/bin/bash\necho hi\n", MULTIPART])
def test_declared_boundary_is_the_used_one_and_there_is_one_node_config(gpu_direct, extra) -> None:
    document = user_data(NODE, extra, gpu_direct=gpu_direct)
    assert document.startswith("Content-Type: multipart/mixed; boundary=")
    declared = message_from_string(document).get_boundary()
    assert declared == BOUNDARY
    used = re.findall(rf"^--{re.escape(declared)}(?:--)?$", document, re.MULTILINE)
    assert len(used) == len(kinds(document)) + 1
    assert used[-1] == f"--{declared}--"
    assert kinds(document).count(NODE_TYPE) == 1
    assert "MIME-Version: 1.0" in document.split("\n\n")[0]


def test_node_config_comes_back_as_it_went_in_with_raid0() -> None:
    (text,) = (text for kind, text in parts(user_data(NODE, None, gpu_direct=False)) if kind == NODE_TYPE)
    document = yaml.safe_load(text)
    assert (document["apiVersion"], document["kind"]) == ("node.eks.aws/v1alpha1", "NodeConfig")
    assert document["spec"] == {
        "kubelet": {"config": {"maxPods": 149}},
        "instance": {"localStorage": {"strategy": "RAID0"}},
    }


def test_node_without_local_disks_asks_for_no_raid() -> None:
    spec = yaml.safe_load(node_config(max_pods=110, raid0=False, labels={}, taints=(), join=None))["spec"]
    assert "instance" not in spec


def test_bare_script_is_wrapped_as_a_shell_part() -> None:
    script = "#!/bin/bash\nset -eu\necho 'From here'\nFrom there\n"
    document = user_data(NODE, script, gpu_direct=False)
    assert parts(document)[1:] == [(SHELL, script)]
    assert "charset" in document.split(script)[0].rsplit("--", 1)[1]


def test_multipart_is_merged_part_by_part_without_its_own_envelope() -> None:
    document = user_data(NODE, MULTIPART, gpu_direct=False)
    assert kinds(document) == [NODE_TYPE, SHELL, "text/cloud-config"]
    assert "theirs" not in document
    assert [text.strip() for _, text in parts(document)[1:]] == ["#!/bin/bash\necho one", "packages: [htop]"]


@pytest.mark.parametrize("extra", ["echo hi\n", "#cloud-config\n", "", "Content-Type: text/plain\n\nhi\n"])
def test_anything_else_is_a_value_error(extra) -> None:
    with pytest.raises(ValueError, match="neither a shell script nor a MIME multipart"):
        user_data(NODE, extra, gpu_direct=False)


def test_driver_option_comes_first_and_only_for_gpu_direct() -> None:
    assert parts(user_data(NODE, "#!/bin/sh\n", gpu_direct=True))[0] == (HOOK, GPU_DIRECT_BOOTHOOK)
    assert kinds(user_data(NODE, "#!/bin/sh\n", gpu_direct=True)) == [HOOK, NODE_TYPE, SHELL]
    assert HOOK not in kinds(user_data(NODE, None, gpu_direct=False))
    assert "NVreg_RegistryDwords" in GPU_DIRECT_BOOTHOOK


OPTION = 'options nvidia NVreg_RegistryDwords="PeerMappingOverride=1;"\n'
WITH, WITHOUT = 'RegistryDwords: "PeerMappingOverride=1;"\n', 'RegistryDwords: ""\n'


class Host:
    """A node's files under a folder, and programs that write down their calls; the script's paths are moved there."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("bin", "etc/modprobe.d", "proc/driver/nvidia", "var/lib", "dev", "sys/bus/pci/devices/0"):
            (root / folder).mkdir(parents=True)
        self.file = root / "etc/modprobe.d/50-moerl-nvidia.conf"
        self.params = root / "proc/driver/nvidia/params"
        self.gpu("0x10de")
        self.program("systemctl", "exit 1")
        self.program("sleep")

    def gpu(self, vendor: str) -> None:
        (self.root / "sys/bus/pci/devices/0/vendor").write_text(f"{vendor}\n", encoding="ascii")

    def program(self, name: str, body: str = "") -> None:
        path = self.root / "bin" / name
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.root}/calls"\n{body}\n', encoding="utf-8")
        path.chmod(0o755)

    def boots_beside_cloud_init(self) -> None:
        """As images since 20260917, whose unit is there and enabled."""
        self.program("systemctl")

    def run(self, script: str, shell: str = "sh") -> int:
        moved = re.sub(r"(?<![\w/.])/(?=(?:etc|proc|sys|var|dev|opt|usr/src)\b)", f"{self.root}/", script)
        moved = moved.replace("cd / ", f"cd {self.root} ").replace("> " + f"{self.root}/dev/console", ">> dev/console")
        return subprocess.run(  # noqa: S603 - the script under test
            [shell, "-c", moved],
            cwd=self.root,
            env={"PATH": f"{self.root}/bin:{os.environ['PATH']}"},
            check=False,
            timeout=60,
        ).returncode

    def calls(self, program: str) -> list[str]:
        path = self.root / "calls"
        written = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [call for call in written if call.startswith(f"{program} ")]

    def reboots(self) -> int:
        return len([call for call in self.calls("systemctl") if call.endswith(" reboot")])

    def console(self) -> str:
        path = self.root / "dev/console"
        return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_before_a_driver_that_waits_for_cloud_init_the_option_is_written_and_nothing_waited_for(host: Host) -> None:
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert host.file.read_text(encoding="utf-8") == OPTION
    assert (host.calls("sleep"), host.reboots(), host.console()) == ([], 0, "")
    assert [path.name for path in host.file.parent.iterdir()] == [host.file.name]


def test_a_driver_that_was_loaded_without_the_option_costs_one_reboot_and_never_two(host: Host) -> None:
    host.boots_beside_cloud_init()
    host.params.write_text(WITHOUT, encoding="ascii")
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert host.reboots() == 1
    assert host.file.read_text(encoding="utf-8") == OPTION
    # cloud-init, and with it the kubelet, is held back while the node goes down.
    assert host.calls("sleep") == ["sleep 600"]
    assert "rebooting once" in host.console()
    host.params.write_text(WITHOUT, encoding="ascii")
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert host.reboots() == 1
    assert "even after a reboot" in host.console().splitlines()[-1]


def test_a_driver_that_has_the_option_is_left_alone_and_so_is_the_file_that_it_may_be_reading(host: Host) -> None:
    host.boots_beside_cloud_init()
    host.file.write_text(OPTION, encoding="ascii")
    before = host.file.stat()
    host.params.write_text(WITH, encoding="ascii")
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert (host.reboots(), host.console(), host.calls("sleep")) == (0, "", [])
    assert (host.file.stat().st_ino, host.file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


@pytest.mark.parametrize(("loaded", "reboots"), [(WITH, 0), (WITHOUT, 1)])
def test_a_driver_that_is_just_being_loaded_is_waited_for_and_judged(host: Host, loaded: str, reboots: int) -> None:
    host.boots_beside_cloud_init()
    host.program("sleep", f"[ \"$(grep -c 'sleep 1$' {host.root}/calls)\" -lt 3 ] || printf '{loaded}' > {host.params}")
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert host.calls("sleep")[:4] == ["sleep 1"] * 3 + ["sleep 600"] * reboots
    assert host.reboots() == reboots


def test_a_driver_that_never_comes_is_waited_for_so_long_and_no_longer(host: Host) -> None:
    host.boots_beside_cloud_init()
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert (host.calls("sleep"), host.reboots()) == (["sleep 1"] * 300, 0)


def test_a_builder_without_gpus_waits_for_no_driver(host: Host) -> None:
    host.boots_beside_cloud_init()
    host.gpu("0x1d0f")
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert (host.calls("sleep"), host.reboots()) == ([], 0)
    assert host.file.read_text(encoding="utf-8") == OPTION


def test_a_node_that_cannot_remember_its_reboot_is_not_rebooted(host: Host) -> None:
    host.params.write_text(WITHOUT, encoding="ascii")
    host.program("touch", "exit 1")
    assert host.run(GPU_DIRECT_BOOTHOOK) == 0
    assert host.reboots() == 0


UNPACKS = "cat > /dev/null; mkdir -p usr/src/nvidia-580.159.03/nvidia; touch usr/src/nvidia-580.159.03/nvidia/nv-p2p.c"


@pytest.mark.parametrize("folder", [".rpms", "flavors/open/.rpms"])
def test_the_drivers_sources_are_unpacked_from_the_chosen_tree(host: Host, folder: str) -> None:
    tree = host.root / "opt/nvidia/current"
    (tree / folder).mkdir(parents=True)
    (tree / ".driver-flavor").write_text("open\n", encoding="ascii")
    package = tree / folder / "kmod-nvidia-open-dkms-580.159.03-1.amzn2023.noarch.rpm"
    package.touch()
    (tree / folder / "kmod-nvidia-latest-dkms-580.159.03-1.amzn2023.noarch.rpm").touch()
    host.program("rpm2cpio")
    host.program("cpio", UNPACKS)
    assert host.run(DRIVER_SOURCES_SCRIPT, "bash") == 0
    assert host.calls("rpm2cpio") == [f"rpm2cpio {package}"]
    assert host.calls("cpio")[0].endswith("--quiet *usr/src/*")
    assert (host.root / "usr/src/nvidia-580.159.03/nvidia/nv-p2p.c").exists()
    assert (host.calls("sleep"), host.console()) == ([], "")


def test_an_image_that_unpacks_its_driver_itself_is_left_alone(host: Host) -> None:
    assert host.run(DRIVER_SOURCES_SCRIPT, "bash") == 0
    assert (host.calls("sleep"), host.console()) == ([], "")


def test_a_tree_without_sources_is_said_on_the_console(host: Host) -> None:
    (host.root / "opt/nvidia").mkdir(parents=True)
    assert host.run(DRIVER_SOURCES_SCRIPT, "bash") == 1
    assert len(host.calls("sleep")) == 60
    assert "no sources of the NVIDIA driver" in host.console()


def test_sources_are_unpacked_before_what_the_file_adds_and_only_where_gdrdrv_is_built() -> None:
    document = parts(user_data(NODE, "#!/bin/sh\n", gpu_direct=False, driver_sources=True))
    assert document[1:] == [(SHELL, DRIVER_SOURCES_SCRIPT), (SHELL, "#!/bin/sh\n")]
    assert DRIVER_SOURCES_SCRIPT not in user_data(NODE, "#!/bin/sh\n", gpu_direct=True)


def test_huge_pages_are_reserved_by_a_boothook_that_names_their_number() -> None:
    document = parts(user_data(NODE, "#!/bin/sh\n", gpu_direct=True, huge_pages=5128))
    assert [kind for kind, _ in document] == [HOOK, HOOK, NODE_TYPE, SHELL]
    text = document[1][1]
    assert text.startswith("#!/bin/sh\n")
    assert "echo 'vm.nr_hugepages = 5128' > /etc/sysctl.d/" in text
    assert "{" not in text.replace("${", "")
    assert HOOK not in kinds(user_data(NODE, None, gpu_direct=False, huge_pages=0))


def test_the_lustre_client_is_installed_before_what_the_file_adds() -> None:
    document = parts(user_data(NODE, "#!/bin/sh\n", gpu_direct=False, lustre_client=True))
    assert document[1:] == [(SHELL, LUSTRE_SCRIPT), (SHELL, "#!/bin/sh\n")]
    assert LUSTRE_SCRIPT not in user_data(NODE, "#!/bin/sh\n", gpu_direct=False)


RPM = "#!/bin/sh\n[ -f installed ]\n"
DNF = '#!/bin/sh\necho "$*" >> calls\n[ "$(wc -l < calls)" -lt "$FAILS" ] || touch installed\n'


@pytest.mark.parametrize(("fails", "installs"), [(0, 0), (1, 1), (3, 3), (9, 5)])
def test_the_lustre_script_tries_again_and_says_when_it_gives_up(tmp_path, fails, installs) -> None:
    (tmp_path / "calls").touch()
    if fails == 0:
        (tmp_path / "installed").touch()
    tools = {"rpm": RPM, "dnf": DNF, "modprobe": RPM, "sleep": "#!/bin/sh\n"}
    for name, text in tools.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    script = LUSTRE_SCRIPT.replace("/dev/console", "console")
    done = subprocess.run(  # noqa: S603 - the script under test
        ["bash", "-c", script],  # noqa: S607 - the one that cloud-init would find
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "FAILS": str(fails)},
        check=False,
        timeout=30,
    )
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert calls == ["install --assumeyes --quiet lustre-client"] * installs
    assert done.returncode == (fails > 5)
    assert (tmp_path / "console").exists() is (fails > 5)


def test_fast_image_pull_is_a_feature_gate_of_nodeadm() -> None:
    text = node_config(max_pods=149, raid0=True, labels={}, taints=(), join=None, fast_image_pull=True)
    assert yaml.safe_load(text)["spec"]["featureGates"] == {"FastImagePull": True}
    assert "featureGates" not in NODE


@given(body=scripts)
def test_any_script_comes_back_unchanged(body) -> None:
    script = "#!/bin/sh\n" + body
    document = user_data(NODE, script, gpu_direct=True)
    assert parts(document) == [(HOOK, GPU_DIRECT_BOOTHOOK), (NODE_TYPE, NODE), (SHELL, script)]
    document.encode("utf-8")


def test_same_input_gives_the_same_bytes() -> None:
    assert user_data(NODE, "#!/bin/sh\necho ü\n", gpu_direct=True) == user_data(
        NODE, "#!/bin/sh\necho ü\n", gpu_direct=True
    )


def test_no_interface_name_is_written_down() -> None:
    assert not re.search(r"\b(eth|ens|enp|rdmap|efa_)\d", user_data(NODE, None, gpu_direct=True))


def test_custom_ami_gets_a_complete_node_config_with_labels_and_taints() -> None:
    join = JoinData(
        cluster="mine", endpoint="https://api.example.com", certificate_authority="Q0E=", service_cidr="172.20.0.0/16"
    )
    text = node_config(
        max_pods=149, raid0=True, labels={"b": "2", "a": "1"}, taints=("k=v:NoSchedule", "g=true:NoExecute"), join=join
    )
    spec = yaml.safe_load(text)["spec"]
    assert spec["cluster"] == {
        "name": "mine",
        "apiServerEndpoint": "https://api.example.com",
        "certificateAuthority": "Q0E=",
        "cidr": "172.20.0.0/16",
    }
    assert spec["kubelet"]["flags"] == [
        "--node-labels=a=1,b=2",
        "--register-with-taints=k=v:NoSchedule,g=true:NoExecute",
    ]
    untainted = yaml.safe_load(node_config(max_pods=1, raid0=False, labels={"a": "1"}, taints=(), join=join))["spec"]
    assert untainted["kubelet"]["flags"] == ["--node-labels=a=1"]


@pytest.mark.parametrize(
    "text",
    ["", "#!/bin/sh\n", "Content-Type: text/plain\n\nhi\n", 'Content-Type: multipart/mixed; boundary="x"\n\n--y\n'],
)
def test_parts_of_what_is_not_multipart_is_a_value_error(text) -> None:
    with pytest.raises(ValueError, match="not a well-formed MIME"):
        parts(text)
