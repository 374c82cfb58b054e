"""Values files and the install script: what is written, and what the script does with helm and kubectl in its way."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from infra.catalog.controllers import CONTROLLERS
from infra.config.loader import load
from infra.config.plan import build_plan
from k8s.controllers import CONTROLLER_VALUES
from k8s.helm import helm_files, install_script
from tests.shipped import ENVIRONMENTS, SHIPPED, plan_of

CHART = b"a chart\n"
HELM = """#!/bin/sh
echo "helm $*" >> "$CALLS"
case "$1" in
  version) printf '%s' "$HELM_VERSION" ;;
  pull)
    shift
    while [ "$#" -gt 0 ]; do
      case "$1" in
        --version) version="$2"; shift ;;
        --destination) folder="$2"; shift ;;
        --repo) shift ;;
        *) chart="${1##*/}" ;;
      esac
      shift
    done
    printf 'a chart\\n' > "$folder/$chart-$version.tgz" ;;
  show) [ -z "$SHOW_FAILS" ] || exit 1; echo "kind: CustomResourceDefinition" ;;
esac
"""
KUBECTL = """#!/bin/sh
echo "kubectl $*" >> "$CALLS"
[ "$1" != get ] || [ -z "$NO_NAMESPACE" ]
"""


def pinned(name: str = "reference-p5en", sha256: str = hashlib.sha256(CHART).hexdigest()) -> str:
    plan = plan_of(name)
    text = install_script(plan)
    for digest in set(plan.charts.values()):
        text = text.replace(digest, sha256)
    return text


class Bench:
    """A folder with the script, and a PATH on which helm and kubectl write down what they are asked."""

    def __init__(self, folder: Path, script: str) -> None:
        self.calls = folder / "calls"
        programs = folder / "bin"
        programs.mkdir()
        for name, text in (("helm", HELM), ("kubectl", KUBECTL)):
            (programs / name).write_text(text, encoding="utf-8")
            (programs / name).chmod(0o755)
        self.path = f"{programs}:{os.environ['PATH']}"
        self.script = folder / "rendered" / "install.sh"
        self.script.parent.mkdir()
        self.script.write_text(script, encoding="utf-8")
        self.folder = folder

    def run(self, **variables: str) -> subprocess.CompletedProcess[str]:
        shell = shutil.which("dash") or "/bin/sh"
        environment = {
            "PATH": self.path,
            "CALLS": str(self.calls),
            "TMPDIR": str(self.folder),
            "HELM_VERSION": "v3.18.4",
            "SHOW_FAILS": "",
            "NO_NAMESPACE": "",
            **variables,
        }
        command = [shell, str(self.script)]
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd="/", check=False)  # noqa: S603

    def asked(self, program: str) -> list[str]:
        lines = self.calls.read_text(encoding="utf-8").splitlines() if self.calls.exists() else []
        return [line for line in lines if line.startswith(program)]


@pytest.mark.parametrize("name", SHIPPED)
def test_each_chart_has_a_values_file_that_reads_back_as_its_values(name: str) -> None:
    plan = plan_of(name)
    files = helm_files(plan)
    assert set(files) == {f"helm/{chart}.values.yaml" for chart in CONTROLLER_VALUES} | {"helm/install.sh"}
    for chart, values in CONTROLLER_VALUES.items():
        text = files[f"helm/{chart}.values.yaml"]
        assert yaml.safe_load(text) == values(plan)
        assert "&id" not in text
        assert str(CONTROLLERS[chart].version) in text.splitlines()[0]
    assert helm_files(plan) == files


@pytest.mark.parametrize("name", SHIPPED)
def test_nothing_of_an_environment_file_is_in_the_script(name: str) -> None:
    plan = plan_of(name)
    script = install_script(plan)
    assert script == install_script(plan_of("starter-p5en"))
    for word in (plan.account, plan.region, plan.names.cluster):
        assert word not in script
    assert "--set" not in script


def test_charts_are_installed_in_order_by_exact_version_from_the_archive_that_was_checked(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned())
    done = bench.run()
    assert (done.returncode, done.stderr) == (0, "")
    installed = [line.split() for line in bench.asked("helm upgrade")]
    assert [words[3] for words in installed] == list(CONTROLLER_VALUES)
    for words in installed:
        controller = CONTROLLERS[words[3]]
        assert words[4].endswith(f"/{controller.chart}-{controller.version}.tgz")
        assert words[words.index("--namespace") + 1] == controller.namespace
        assert words[words.index("--values") + 1] == f"{controller.name}.values.yaml"
        assert "--skip-crds" in words
    pulled = bench.asked("helm pull")
    assert any("oci://registry.k8s.io/kueue/charts/kueue --version 0.17.0" in line for line in pulled)
    assert any("keda --repo https://kedacore.github.io/charts --version 2.20.1" in line for line in pulled)


def test_b84_crds_in_a_charts_folder_are_applied_server_side(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned())
    bench.run()
    shown = [line.rpartition("/")[2] for line in bench.asked("helm show crds")]
    applied = bench.asked("kubectl apply")
    wanted = [name for name in CONTROLLER_VALUES if CONTROLLERS[name].crds_in_folder]
    assert [line.partition("-")[0] for line in shown] == [name.partition("-")[0] for name in wanted]
    assert len(applied) == len(wanted) == 3
    assert all("--server-side --force-conflicts --field-manager=moerl" in line for line in applied)


def test_a_chart_with_another_digest_is_not_installed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned(sha256="ab" * 32))
    done = bench.run()
    assert done.returncode == 1
    assert "kube-prometheus-stack 88.3.0 does not have the pinned digest" in done.stderr
    assert not bench.asked("helm upgrade")
    assert not bench.asked("helm show")


def test_an_unresolved_chart_stops_the_script_before_anything_is_pulled(tmp_path: Path) -> None:
    loaded = load(ENVIRONMENTS / "starter-p5en.yaml")
    script = install_script(build_plan(loaded.environment, loaded.pins, loaded.warnings))
    bench = Bench(tmp_path, script)
    done = bench.run()
    assert done.returncode == 1
    assert "chart kube-prometheus-stack is not pinned: run moerl lock" in done.stderr
    assert not bench.asked("helm pull")


@pytest.mark.parametrize("version", ["v3.13.3", "v3.9.0", "v2.17.0"])
def test_an_older_helm_is_refused(version: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned())
    done = bench.run(HELM_VERSION=version)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"this is {version}" in done.stderr
    assert not bench.asked("helm pull")


@pytest.mark.parametrize("version", ["v3.14.0", "v3.20.1", "v4.1.4"])
def test_a_newer_helm_is_taken(version: str, tmp_path: Path) -> None:
    assert Bench(tmp_path, pinned()).run(HELM_VERSION=version).returncode == 0


def test_missing_namespaces_are_said_before_anything_is_installed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned())
    done = bench.run(NO_NAMESPACE="yes")
    assert done.returncode == 1
    assert "namespace rl is missing" in done.stderr
    assert not bench.asked("helm pull")


def test_crds_that_cannot_be_read_stop_the_script(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned())
    assert bench.run(SHOW_FAILS="yes").returncode != 0
    assert not bench.asked("kubectl apply")
    assert not bench.asked("helm upgrade")


def test_nothing_is_left_in_the_temporary_folder(tmp_path: Path) -> None:
    bench = Bench(tmp_path, pinned())
    bench.run()
    assert {path.name for path in tmp_path.iterdir()} == {"bin", "calls", "rendered"}
