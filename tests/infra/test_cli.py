"""What a person or a pipeline meets at the command line: exit codes, JSON, and nothing written for a wrong file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from typer.testing import CliRunner, Result

import infra.cli as cli
from infra.config.loader import load
from infra.config.plan import Plan, build_plan
from infra.local.pins import fixture_pins
from infra.operations.lock import lock_text
from infra.stacks.names import stack_names
from tests.shipped import text_of

ROOT = Path(__file__).resolve().parents[2]
MOERL = Path(sys.executable).parent / "moerl"
SHIPPED = sorted(path.stem for path in (ROOT / "environments").glob("*.yaml") if not path.stem.endswith(".lock"))


def moerl(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


def process(
    *arguments: str, program: tuple[str, ...] = (str(MOERL),), cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """`moerl` as users have it, with no AWS setting and none of pytest's environment but what it needs to start."""
    kept = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
    command, environment = [*program, *arguments], kept | variables
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)  # noqa: S603


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def plan_of(name: str) -> Plan:
    loaded = load(ROOT / "environments" / f"{name}.yaml")
    return build_plan(loaded.environment, loaded.pins, loaded.warnings)


@pytest.fixture
def wrong(tmp_path: Path) -> str:
    """A file with three faults."""
    document = yaml.safe_load((ROOT / "environments/starter-p5en.yaml").read_text(encoding="utf-8"))
    document["pools"]["trainer"]["capacity"] = {"type": "spot"}
    document["kubernetes"]["admins"] = []
    path = tmp_path / "wrong.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    return str(path)


@pytest.fixture
def not_yaml(tmp_path: Path) -> str:
    path = tmp_path / "not.yaml"
    path.write_text("name: [", encoding="utf-8")
    return str(path)


@pytest.fixture
def lock(tmp_path: Path) -> str:
    path = tmp_path / "fixture.lock.yaml"
    path.write_text(lock_text("starter-p5en", fixture_pins("1.35")), encoding="utf-8")
    return str(path)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The starter environment, rendered by a process of its own."""
    out = tmp_path_factory.mktemp("render") / "made" / "here"
    done = process("render", "starter-p5en", "--out", str(out), PYTHONHASHSEED="1")
    assert done.returncode == 0, done.stderr
    return out


# --- what every command keeps


def commands() -> list[list[str]]:
    def walk(command: Any, path: list[str]) -> Iterator[list[str]]:
        if not hasattr(command, "commands"):
            yield path
            return
        for name, child in command.commands.items():
            yield from walk(child, [*path, name])

    return list(walk(typer.main.get_command(cli.app), []))


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_every_command_has_help_with_a_description_and_an_example(command: list[str]) -> None:
    done = moerl(*command, "--help")
    assert done.exit_code == 0
    assert f"Example: moerl {' '.join(command)}" in done.stdout
    described = done.stdout.partition("Usage:")[2].splitlines()[2:4]
    assert any(line.strip() for line in described)


def test_the_examples_name_shipped_environments() -> None:
    for command in commands():
        words = moerl(*command, "--help").stdout.partition("Example: moerl ")[2].splitlines()[0].split()
        named = [word for word in words if word.startswith(("reference", "p5", "p6", "starter"))]
        assert set(named) <= set(SHIPPED), (command, named)
        assert named or command[0] == "local"


def test_a_bare_call_shows_the_commands_and_the_exit_codes() -> None:
    shown = " ".join(moerl("--help").stdout.split())
    for word in ("validate", "plan", "render", "apply", "lock", "pool", "local", "2 wrong input", "3 timed out"):
        assert word in shown


@pytest.mark.parametrize("command", [["validate"], ["plan"], ["lock"], ["pool", "tag"]], ids=" ".join)
def test_an_unknown_environment_is_refused_with_the_known_names(command: list[str]) -> None:
    arguments = [*command, "refrence-p5en", *(["rollout"] if command[0] == "pool" else [])]
    done = moerl(*arguments)
    assert done.exit_code == 2
    assert done.stdout == ""
    for known in SHIPPED:
        assert known in done.stderr
    as_json = moerl(*arguments, "--json")
    assert as_json.exit_code == 2
    refused = json.loads(as_json.stdout)
    assert refused["valid"] is False
    assert refused["findings"][0]["rule"] == "file.exists"
    assert as_json.stderr == ""


@pytest.mark.parametrize("env", ["[/red]", "[bold]x", ":warning:"])
def test_markup_in_an_argument_is_shown_as_it_was_written(env: str) -> None:
    done = moerl("validate", env)
    assert done.exit_code == 2
    assert done.stderr.splitlines()[-1] == f"refused {env}: 1 fault, nothing written"


# --- validate


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_environment_is_valid_by_name_and_by_path(name: str, tmp_path: Path) -> None:
    elsewhere = tmp_path / f"{name}.yaml"
    elsewhere.write_bytes((ROOT / "environments" / f"{name}.yaml").read_bytes())
    by_name, by_path = json.loads(moerl("validate", name, "--json").stdout), moerl("validate", str(elsewhere), "--json")
    assert by_path.exit_code == 0
    assert json.loads(by_path.stdout)["findings"] == by_name["findings"]
    assert by_name["valid"] is True
    assert all(finding["severity"] == "warning" for finding in by_name["findings"])


def test_a_name_means_the_shipped_file_from_any_folder(tmp_path: Path) -> None:
    done = process("validate", "starter-p5en", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.splitlines()[-1].startswith("valid ")


def test_a_wrong_file_is_refused_with_every_fault_where_it_stands(wrong: str) -> None:
    done = moerl("validate", wrong)
    assert done.exit_code == 2
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    for key in ("pools.trainer.capacity.type: spot,", "pools.trainer.nodes: 2,", "kubernetes.admins: an empty list,"):
        (line,) = [line for line in lines if key in line]
        assert line.startswith(f"fault {wrong}:")
    assert lines[-1] == f"refused {wrong}: 3 faults, nothing written"


def test_json_of_a_wrong_file_is_one_document_and_nothing_else(wrong: str) -> None:
    done = moerl("validate", wrong, "--json")
    assert done.exit_code == 2
    assert done.stderr == ""
    document = json.loads(done.stdout)
    assert (document["path"], document["valid"]) == (wrong, False)
    faults = [finding for finding in document["findings"] if finding["severity"] == "fault"]
    assert {fault["key"] for fault in faults} == {
        "pools.trainer.capacity.type",
        "pools.trainer.nodes",
        "kubernetes.admins",
    }
    for fault in faults:
        assert fault["why"]
        assert fault["fix"]
        assert fault["line"] > 0


def test_pins_of_another_kubernetes_version_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "old.lock.yaml"
    path.write_text(lock_text("starter-p5en", fixture_pins("1.34")), encoding="utf-8")
    done = moerl("validate", "starter-p5en", "--pins", str(path), "--json")
    assert done.exit_code == 2
    assert [f["rule"] for f in json.loads(done.stdout)["findings"] if f["severity"] == "fault"] == [
        "software.pins-version"
    ]


# --- the file under another name, and what people type

COPY = "a copy.yaml"


@pytest.fixture
def copy(tmp_path: Path) -> str:
    """A copied file whose name inside is still the first one's."""
    path = tmp_path / COPY
    path.write_bytes((ROOT / "environments/starter-p5en.yaml").read_bytes())
    return str(path)


def test_a_copy_that_kept_the_name_is_warned_about(copy: str) -> None:
    (found,) = [one for one in json.loads(moerl("validate", copy, "--json").stdout)["findings"] if one["key"] == "name"]
    assert (found["severity"], found["value"], found["rule"]) == ("warning", "starter-p5en", "file.name")
    assert "owns the same stacks" in found["why"]
    assert found["line"] > 0
    assert "file.name" not in moerl("validate", "starter-p5en").stdout


def test_a_message_names_the_environment_as_it_was_typed(copy: str, tmp_path: Path) -> None:
    assert f"`moerl lock '{copy}'`" in moerl("plan", copy).stdout
    assert "`moerl lock starter-p5en`" in moerl("plan", "starter-p5en").stdout
    (tmp_path / "a copy.lock.yaml").write_text("node_release: 1\n", encoding="utf-8")
    assert f"`moerl lock '{copy}'`" in moerl("plan", copy).stderr


def test_what_is_counted_once_is_in_the_singular(tmp_path: Path) -> None:
    path = tmp_path / "starter-p5en.yaml"
    path.write_text(text_of("starter-p5en", {"account": 1}), encoding="utf-8")
    assert moerl("validate", str(path)).stderr.splitlines()[-1].endswith(": 1 fault, nothing written")
    assert moerl("validate", "p5").stdout.splitlines()[-1].endswith("p5.yaml, 1 warning")


HOSTILE = {
    "many aliases": b"a: &a [x]\n"
    + b"".join(b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1) if n else b"*a"] * 10)) for n in range(8)),
    "deep": b"[" * 3000,
    "a long number": b"nodes: 0x" + b"f" * 5000,
    "no UTF-8": b"\xff",
    "empty": b"",
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
def test_a_file_of_any_content_is_refused_with_a_document(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    done = moerl("validate", str(path), "--json")
    assert (done.exit_code, done.stderr) == (2, "")
    (found,) = json.loads(done.stdout)["findings"]
    assert found["key"]
    assert found["why"]


@pytest.mark.parametrize("content", [b"[1]", b"\xff", b"[" * 3000, None], ids=["a list", "no UTF-8", "deep", "no file"])
def test_a_lock_of_any_content_is_refused_with_a_document(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "any.lock.yaml"
    if content is not None:
        path.write_bytes(content)
    done = moerl("validate", "p5", "--pins", str(path), "--json")
    assert (done.exit_code, done.stderr) == (2, "")
    document = json.loads(done.stdout)
    assert document["path"] == str(path)
    assert document["findings"][0]["rule"] in ("file.lock", "file.yaml")


def test_a_name_that_no_file_can_have_is_refused_with_a_document() -> None:
    done = moerl("validate", "x" * 5000, "--json")
    assert done.exit_code == 2
    assert json.loads(done.stdout)["findings"][0]["rule"] == "file.exists"
    assert moerl("validate", "").stderr.splitlines()[-1] == "refused '': 1 fault, nothing written"


@pytest.mark.parametrize("command", [["validate"], ["plan"]], ids=" ".join)
def test_flags_that_a_render_would_refuse_are_refused_before(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "starter-p5en.yaml"
    path.write_text(text_of("starter-p5en", {"workload.trainer.flags": {"nosuchflag": 3}}), encoding="utf-8")
    done = moerl(*command, str(path))
    assert done.exit_code == 2
    assert "workload.trainer.flags.nosuchflag: 3, is no flag of" in done.stderr


def test_an_empty_image_is_said_to_come_from_a_command_that_printed_none(tmp_path: Path) -> None:
    done = moerl("render", "starter-p5en", "--out", str(tmp_path / "out"), "--image", "")
    assert done.exit_code == 2
    assert "--image: '', is empty: `moerl image digest starter-p5en` printed none" in done.stderr


def test_the_version_is_the_installed_one() -> None:
    done = moerl("--version")
    assert (done.exit_code, done.stdout) == (0, f"moerl {version('moerl')}\n")


@pytest.mark.parametrize("command", [[], ["pool"], ["pool", "scale"], ["validate"]], ids=" ".join)
def test_h_is_help(command: list[str]) -> None:
    assert moerl(*command, "-h").stdout == moerl(*command, "--help").stdout != ""


@pytest.mark.parametrize("variables", [{}, {"AWS_PROFILE": "nobody"}], ids=["none", "unknown profile"])
def test_without_credentials_it_says_what_to_write(variables: dict[str, str], tmp_path: Path) -> None:
    apart = {"HOME": str(tmp_path), "AWS_EC2_METADATA_DISABLED": "true", **variables}
    done = process("image", "digest", "starter-p5en", **apart)
    assert done.returncode == 1
    assert "Write AWS_PROFILE=NAME" in done.stderr
    assert "aws sso login" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# --- plan


@pytest.mark.parametrize("name", SHIPPED)
def test_plan_as_json_is_the_plan(name: str) -> None:
    done = moerl("plan", name, "--json")
    assert done.exit_code == 0
    assert done.stderr == ""
    assert json.loads(done.stdout) == json.loads(json.dumps(plan_of(name).document()))


def test_a_plan_with_pins_has_nothing_unresolved(lock: str) -> None:
    assert json.loads(moerl("plan", "starter-p5en", "--json").stdout)["unresolved"]
    assert json.loads(moerl("plan", "starter-p5en", "--pins", lock, "--json").stdout)["unresolved"] == []


def test_plan_of_a_wrong_file_shows_no_plan(wrong: str) -> None:
    done = moerl("plan", wrong)
    assert (done.exit_code, done.stdout) == (2, "")


def test_a_plan_does_not_wait_for_the_cdk_to_load() -> None:
    script = "import sys; from infra.cli import app; app(['plan', 'starter-p5en'], standalone_mode=False);"
    script += "sys.exit('aws_cdk' in sys.modules or 'jsii' in sys.modules)"
    done = process("-c", script, program=(sys.executable,))
    assert done.returncode == 0, done.stderr


# --- render


def test_render_writes_the_plan_one_template_for_each_stack_and_manifests(rendered: Path) -> None:
    plan, files = plan_of("starter-p5en"), set(content(rendered))
    templates = {f"cloudformation/{name}.template.json" for name in stack_names(plan)}
    assert {file for file in files if not file.startswith("k8s/")} == {".rendered", "plan.json", *templates}
    assert "k8s/README.md" in files
    assert json.loads((rendered / "plan.json").read_text(encoding="utf-8")) == json.loads(json.dumps(plan.document()))


def resources(rendered: Path) -> Iterator[dict[str, Any]]:
    for file in (rendered / "cloudformation").iterdir():
        yield from json.loads(file.read_text(encoding="utf-8"))["Resources"].values()


# B19, B74
def test_no_template_runs_code_of_ours_or_applies_anything_to_the_cluster(rendered: Path) -> None:
    kinds = {resource["Type"] for resource in resources(rendered)}
    assert "AWS::EKS::Nodegroup" in kinds
    assert not [kind for kind in kinds if kind.startswith(("AWS::Lambda::", "Custom::", "AWS::CloudFormation::"))]


# B75
def test_no_stack_exports_what_would_hold_it_back_while_another_uses_it(rendered: Path) -> None:
    text = "".join(file.read_text(encoding="utf-8") for file in (rendered / "cloudformation").iterdir())
    assert "Fn::GetStackOutput" in text
    assert "Fn::ImportValue" not in text
    assert '"Export"' not in text


def test_a_second_render_is_byte_identical_and_takes_only_stale_templates_away(rendered: Path, tmp_path: Path) -> None:
    first, out = content(rendered), tmp_path / "out"
    stale, kept = out / "cloudformation/starter-p5en-pool-gone.template.json", out / "cloudformation/notes.md"
    stale.parent.mkdir(parents=True)
    for file in (stale, kept, out / "README.md"):
        file.write_text("mine", encoding="utf-8")
    (out / ".rendered").write_text(f"{stale.relative_to(out)}\n", encoding="utf-8")
    done = process("render", "starter-p5en", "--out", str(out), PYTHONHASHSEED="2", TZ="Asia/Tokyo", LC_ALL="C")
    assert done.returncode == 0, done.stderr
    assert content(out) == {**first, "README.md": b"mine", "cloudformation/notes.md": b"mine"}


def test_a_file_of_a_persons_own_stays_and_is_named(rendered: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "k8s").mkdir(parents=True)
    (out / "k8s/9999-mine.yaml").write_text("mine", encoding="utf-8")
    done = process("render", "starter-p5en", "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"kept {out}/k8s/9999-mine.yaml: no render listed it" in done.stderr
    assert content(out) == {**content(rendered), "k8s/9999-mine.yaml": b"mine"}
    as_json = process("render", "starter-p5en", "--out", str(out), "--json")
    assert json.loads(as_json.stdout)["kept"] == [str(out / "k8s/9999-mine.yaml")]


def test_render_as_json_names_the_files_and_the_missing_pins(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = process("render", "starter-p5en", "--out", str(out), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["files"] == sorted(str(out / file) for file in content(out))
    assert document["unresolved"] == list(plan_of("starter-p5en").unresolved)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


NO_NETWORK_PYTHON = """
import sys
def refuse(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "socket.sendto"):
        raise SystemExit(f"{event} {arguments}")
sys.addaudithook(refuse)
from infra.cli import app
app(sys.argv[1:])
"""
NO_NETWORK_NODE = """
const refuse = () => { process.stderr.write("network"); process.exit(66) };
require("net").Socket.prototype.connect = refuse;
require("dns").lookup = refuse;
require("dgram").createSocket = refuse;
"""


def test_render_needs_neither_aws_nor_a_network(rendered: Path, tmp_path: Path) -> None:
    guard, out = tmp_path / "guard.cjs", tmp_path / "out"
    guard.write_text(NO_NETWORK_NODE, encoding="utf-8")
    python = (sys.executable, "-c", NO_NETWORK_PYTHON)
    arguments = ("render", "starter-p5en", "--out", str(out))
    done = process(*arguments, program=python, NODE_OPTIONS=f"--require={guard}", HOME=str(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert content(out) == content(rendered)


REFUSED = {
    "three faults": "{folder}/wrong.yaml",
    "not YAML": "{folder}/not.yaml",
    "unknown name": "nope",
    "no outputs file": "starter-p5en --outputs {folder}/absent.json",
    "outputs not JSON": "starter-p5en --outputs {folder}/not.yaml",
    "outputs deep": "starter-p5en --outputs {folder}/deep.json",
    "outputs of another environment": "starter-p5en --outputs {folder}/other.json",
    "image by tag": "starter-p5en --image registry.example.com/moerl:latest",
}


@pytest.mark.parametrize("arguments", REFUSED.values(), ids=REFUSED)
@pytest.mark.parametrize("existing", [False, True], ids=["fresh", "existing"])
@pytest.mark.usefixtures("wrong", "not_yaml")
def test_a_refused_render_writes_nothing(arguments: str, existing: bool, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000, encoding="utf-8")
    (tmp_path / "other.json").write_text(json.dumps({"p5-cluster": {"ClusterEndpoint": "x"}}), encoding="utf-8")
    out = tmp_path / "parent" / "out"
    if existing:
        (out / "cloudformation").mkdir(parents=True)
        (out / "plan.json").write_text("{}", encoding="utf-8")
        (out / "cloudformation/old.template.json").write_text("{}", encoding="utf-8")
    before = content(tmp_path)
    words = arguments.format(folder=tmp_path).split()
    done = moerl("render", *words, "--out", str(out))
    as_json = moerl("render", *words, "--out", str(out), "--json")
    assert (done.exit_code, done.stdout) == (2, "")
    assert (as_json.exit_code, as_json.stderr) == (2, "")
    assert json.loads(as_json.stdout)["valid"] is False
    assert content(tmp_path) == before
    assert (tmp_path / "parent").exists() == existing


def deployed(plan: Plan) -> dict[str, dict[str, str]]:
    """What `cdk deploy --outputs-file` writes."""
    stacks = {
        f"{plan.name}-cluster": {"ClusterEndpoint": "https://example.invalid"},
        f"{plan.name}-storage": {"DataKeyArn": "arn:aws:kms:us-west-2:123456789012:key/1", "RepositoryUri": "r"},
    }
    return stacks | {
        f"{plan.name}-pool-{pool.name}": {"NodeGroupName": f"group-{pool.name}"}
        for pool in plan.pools
        if pool.role != "system"
    }


def test_outputs_of_a_deploy_enter_the_rendered_plan(rendered: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "outputs.json", tmp_path / "out"
    file.write_text(json.dumps(deployed(plan_of("starter-p5en"))), encoding="utf-8")
    done = process("render", "starter-p5en", "--out", str(out), "--outputs", str(file))
    assert done.returncode == 0, done.stderr
    plan = json.loads((out / "plan.json").read_text(encoding="utf-8"))
    assert plan.pop("outputs")["node_groups"]["rollout"] == "group-rollout"
    assert plan == json.loads((rendered / "plan.json").read_text(encoding="utf-8"))


def test_the_run_is_rendered_with_an_image_by_digest_and_left_out_by_name_without(
    rendered: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    image = f"registry.example.com/moerl@sha256:{'0' * 64}"
    with_image = json.loads(process("render", "starter-p5en", "--out", str(out), "--image", image, "--json").stdout)
    without = json.loads(process("render", "starter-p5en", "--out", str(tmp_path / "none"), "--json").stdout)
    assert with_image["left_out"] == []
    assert any("image" in reason for reason in without["left_out"])
    more = set(content(out)) - set(content(rendered))
    assert "k8s/jobs/trainer.yaml" in more
    assert image in (out / "k8s/jobs/trainer.yaml").read_text(encoding="utf-8")


def test_a_folder_that_cannot_be_written_is_a_failure_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = process("render", "starter-p5en", "--out", str(tmp_path / "file" / "out"), "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["outcome"] == "failed"
    assert "Traceback" not in done.stderr
