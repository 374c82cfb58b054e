"""Reading a node: lists of arguments, time limits, and None for what is not there."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from moerl_runtime.preflight.collect import GPU_FIELDS, Ran, collect, run_program
from tests.images.runtime.preflight.nodes import FakeNode, healthy, wanted


def test_an_empty_node_shows_nothing_and_stops_nothing(tmp_path: Path) -> None:
    facts = FakeNode(root=tmp_path, answers={}).facts()
    assert facts.infiniband == ()
    assert facts.uverbs == 0
    assert not facts.gdrdrv_device
    found = (facts.efa_version, facts.gdrdrv_version, facts.nvidia_params, facts.gpus, facts.fi_info, facts.plugin)
    assert found == (None,) * 6


def test_programs_get_lists_of_arguments_and_the_installers_fi_info_comes_first(tmp_path: Path) -> None:
    node = healthy(tmp_path, "p5en", wanted("p5en"))
    node.facts()
    assert ["nvidia-smi", f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits"] in node.asked
    fi_info = [arguments for arguments in node.asked if arguments[0].endswith("fi_info")]
    assert fi_info == [["/opt/amazon/efa/bin/fi_info", "-p", "efa"], ["/opt/amazon/efa/bin/fi_info", "--version"]]
    node.answers = {"fi_info -p": Ran(code=0, output="provider: efa\n")}
    assert node.facts().fi_info == Ran(code=0, output="provider: efa\n")


def test_a_cache_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    # Not even root can make a file in a file.
    facts = collect(tmp_path, run=lambda *_: None, variables={"EP_JIT_CACHE_DIR": "/proc/deep_ep"})
    assert facts.cache_error == ""
    broken = collect(Path("/"), run=lambda *_: None, variables={"EP_JIT_CACHE_DIR": "/proc/self/deep_ep"})
    assert broken.cache_folder == "/proc/self"
    assert broken.cache_error


def test_a_program_that_is_not_there_fails_or_lasts_is_told_apart() -> None:
    assert run_program(["/nowhere/program"], 5.0) is None
    failed = run_program([sys.executable, "-c", "import sys; print('why'); sys.exit(3)"], 30.0)
    assert failed == Ran(code=3, output="why\n")
    late = run_program([sys.executable, "-c", "import threading; threading.Event().wait()"], 0.3)
    assert late is not None
    assert late.code == 124
    assert "no answer" in late.output


def test_arguments_are_not_read_by_a_shell() -> None:
    ran = run_program([sys.executable, "-c", "import sys; print(sys.argv[1])", "$(id); `id`"], 30.0)
    assert ran == Ran(code=0, output="$(id); `id`\n")


def test_ephemeral_storage_is_where_the_kubelet_keeps_the_pods_hosts_file(tmp_path: Path) -> None:
    node = FakeNode(root=tmp_path, answers={})
    assert node.facts().ephemeral_bytes is None
    node.write("etc/hosts", "127.0.0.1 localhost\n")
    size = os.statvfs(tmp_path)
    assert node.facts().ephemeral_bytes == size.f_blocks * size.f_frsize
