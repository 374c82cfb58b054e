"""C5: user data is one well-formed MIME document that holds exactly one NodeConfig."""

from __future__ import annotations

import os
import re
import subprocess
from email import message_from_string

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from infra.config.user_data import (
    BOUNDARY,
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
