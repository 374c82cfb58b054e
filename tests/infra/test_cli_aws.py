"""The commands that talk to AWS: what they print and how they end, with AWS and the work itself played by the test."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ProfileNotFound
from typer.testing import CliRunner, Result

import infra.cli as cli
from infra.config.pins import Pins, load_pins
from infra.local import server
from infra.local.pins import fixture_pins
from infra.local.processes import held
from infra.operations.apply import ApplyFault
from infra.operations.lock import LockError
from infra.operations.pool import PoolError, Progress, ScaleResult

DENIED = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no [/bold] access"}}, "ListNodegroups")
OFFLINE = EndpointConnectionError(endpoint_url="https://eks.us-west-2.amazonaws.com")


def moerl(*arguments: str) -> Result:
    return CliRunner().invoke(cli.app, list(arguments))


class Session:
    """Stands for boto3.Session; keeps what it was asked for."""

    def __init__(self, region_name: str) -> None:
        self.region = region_name

    def client(self, service: str, region_name: str | None = None) -> tuple[str, str]:
        return service, region_name or self.region


@pytest.fixture(autouse=True)
def no_aws(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.boto3, "Session", Session)
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)


Played = Callable[[Any, str, Any], list[dict[str, Any]]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Played:
    """`play(MODULE, FUNCTION, RESULT)`: replaces the function by its result, or by an error; returns the calls."""

    def replace(module: Any, function: str, result: Any) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def played(*arguments: Any, **options: Any) -> Any:
            calls.append({"arguments": arguments, **options})
            if isinstance(result, Exception):
                raise result
            return result(options) if callable(result) else result

        monkeypatch.setattr(module, function, played)
        return calls

    return replace


def scaled(outcome: Any, *problems: str) -> Callable[[dict[str, Any]], ScaleResult]:
    last = Progress(wanted=8, in_service=5 if problems else 8, problems=problems)

    def result(options: dict[str, Any]) -> ScaleResult:
        options["report"](last)
        return ScaleResult(pool="trainer", node_group="trainer-1", outcome=outcome, last=last)

    return result


SCALE = ("pool", "scale", "p6-b200", "trainer", "--nodes", "8")
TAG = ("pool", "tag", "p6-b200", "trainer")


def test_scale_hands_on_the_size_and_the_wait_and_says_what_is_in_service(play: Played) -> None:
    call = play(cli.pools, "scale", scaled("reached"))
    done = moerl(*SCALE, "--timeout-minutes", "2.5")
    assert done.exit_code == 0
    assert done.stdout == "8 of 8 nodes in service\n"
    ((plan, pool, nodes),) = [one["arguments"] for one in call]
    assert (plan.name, pool.name, nodes) == ("p6-b200", "trainer", 8)
    assert call[0]["timeout_seconds"] == 150
    assert call[0]["eks"] == ("eks", "us-west-2")


def test_a_wait_that_ran_out_exits_3_and_shows_the_capacity_error_as_aws_wrote_it(play: Played) -> None:
    problem = "at-1: Could not launch [Spot] Instances. InsufficientInstanceCapacity - " + "no capacity " * 10
    play(cli.pools, "scale", scaled("timed-out", problem))
    done = moerl(*SCALE)
    assert done.exit_code == 3
    assert done.stdout == f"5 of 8 nodes in service\n  {problem}\n"
    assert done.stderr.startswith(
        "timed out 5 of 8 nodes of trainer in service after 20 minutes. The wish for 8 stays set"
    )
    assert "node group trainer-1" in done.stderr
    as_json = moerl(*SCALE, "--json")
    assert as_json.exit_code == 3
    assert json.loads(as_json.stdout) == {
        "pool": "trainer",
        "node_group": "trainer-1",
        "outcome": "timed-out",
        "wanted": 8,
        "in_service": 5,
        "problems": [problem],
    }


@pytest.mark.parametrize(
    ("error", "code"),
    [(PoolError("pool [trainer] is fixed"), 2), (DENIED, 1), (OFFLINE, 1)],
    ids=["size", "denied", "off"],
)
@pytest.mark.parametrize(("command", "function"), [(SCALE, "scale"), (TAG, "tag")], ids=["scale", "tag"])
def test_what_goes_wrong_is_one_line_or_one_document(
    error: Exception, code: int, command: tuple[str, ...], function: str, play: Played
) -> None:
    play(cli.pools, function, error)
    done = moerl(*command)
    word = {1: "failed", 2: "wrong input"}[code]
    assert (done.exit_code, done.stdout, done.stderr) == (code, "", f"{word} {error}\n")
    as_json = moerl(*command, "--json")
    assert (as_json.exit_code, as_json.stderr) == (code, "")
    assert json.loads(as_json.stdout) == {"outcome": word, "error": str(error)}


def test_a_profile_that_does_not_exist_is_a_failure_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(**_: str) -> None:
        raise ProfileNotFound(profile="nope")

    monkeypatch.setattr(cli.boto3, "Session", session)
    for command in (SCALE, TAG, ("lock", "starter-p5en")):
        done = moerl(*command)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith("failed The config profile (nope) could not be found. Write AWS_PROFILE=NAME")
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", [("scale", "--nodes", "1"), ("tag",)], ids=["scale", "tag"])
def test_an_unknown_pool_is_wrong_input_and_the_pools_are_named(command: tuple[str, ...]) -> None:
    verb, *options = command
    done = moerl("pool", verb, "p6-b200", "trainers", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    for pool in ("system", "trainer", "rollout", "environments", "buffer"):
        assert pool in done.stderr
    as_json = moerl("pool", verb, "p6-b200", "trainers", *options, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["outcome"]) == (2, "wrong input")


@pytest.mark.parametrize("option", [("--nodes", "-1"), ("--timeout-minutes", "-5")], ids=["size", "wait"])
def test_a_negative_number_is_refused_by_the_command_line(option: tuple[str, str], play: Played) -> None:
    call = play(cli.pools, "scale", scaled("reached"))
    done = moerl(*SCALE, *option)
    assert done.exit_code == 2
    assert option[0] in done.stderr
    assert call == []


def test_tag_shows_every_tag_that_it_wrote(play: Played) -> None:
    tags = {"team": "rl", "k8s.io/cluster-autoscaler/node-template/taint/nvidia.com/gpu": "true:NoSchedule"}
    play(cli.pools, "tag", ("eks-asg-1", tags))
    done = moerl(*TAG)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == ["eks-asg-1:", *(f"  {key} = {value}" for key, value in sorted(tags.items()))]
    assert json.loads(moerl(*TAG, "--json").stdout) == {"auto_scaling_group": "eks-asg-1", "tags": tags}


# --- lock

PINS = fixture_pins("1.35").model_copy(update={"fixture": False})


def test_lock_writes_the_file_it_names_and_asks_the_bucket_where_it_lies(play: Played, tmp_path: Path) -> None:
    call = play(cli.locking, "resolve", PINS)
    target = tmp_path / "x.lock.yaml"
    done = moerl("lock", "p5", "--out", str(target))
    assert (done.exit_code, done.stdout) == (0, f"wrote {target}\n")
    assert load_pins(target) == PINS
    assert (call[0]["s3"], call[0]["ssm"]) == (("s3", "us-west-2"), ("ssm", "us-east-1"))
    assert call[0]["embedded"] is False


def test_lock_as_json_is_the_pins_and_progress_goes_to_stderr(play: Played, tmp_path: Path) -> None:
    def resolve(options: dict[str, Any]) -> Pins:
        options["report"]("add-on [coredns]: v1")
        return PINS

    play(cli.locking, "resolve", resolve)
    done = moerl("lock", "starter-p5en", "--out", str(tmp_path / "x.lock.yaml"), "--json")
    assert json.loads(done.stdout)["pins"] == PINS.model_dump(mode="json")
    assert done.stderr == "add-on [coredns]: v1\n"


def test_lock_goes_beside_the_file_and_an_old_lock_for_another_version_does_not_stop_it(
    play: Played, tmp_path: Path
) -> None:
    path, beside = tmp_path / "mine.yaml", tmp_path / "mine.lock.yaml"
    path.write_bytes((cli.ROOT / "environments/starter-p5en.yaml").read_bytes())
    beside.write_text("kubernetes_version: '1.34'\n", encoding="utf-8")
    assert moerl("validate", str(path)).exit_code == 2
    play(cli.locking, "resolve", PINS)
    assert moerl("lock", str(path)).exit_code == 0
    assert load_pins(beside) == PINS
    assert moerl("validate", str(path)).exit_code == 0


@pytest.mark.parametrize("error", [LockError("two releases"), DENIED], ids=["lock", "denied"])
def test_a_lock_that_cannot_be_resolved_leaves_the_old_one(error: Exception, play: Played, tmp_path: Path) -> None:
    target = tmp_path / "x.lock.yaml"
    target.write_text("old", encoding="utf-8")
    play(cli.locking, "resolve", error)
    done = moerl("lock", "starter-p5en", "--out", str(target))
    assert (done.exit_code, done.stderr) == (1, f"failed {error}\n")
    assert target.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize(
    ("endpoint", "embedded"),
    [
        ("http://127.0.0.1:4566", True),
        ("http://localhost:4566", True),
        ("http://[::1]:4566", True),
        ("https://127.0.0.1.example.com", False),
        ("https://example.com/127.0.0.1", False),
    ],
)
def test_only_a_loopback_endpoint_makes_pins_fixtures(
    endpoint: str, embedded: bool, play: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    call = play(cli.locking, "resolve", PINS)
    moerl("lock", "starter-p5en", "--out", str(tmp_path / "x.lock.yaml"))
    assert call[0]["embedded"] is embedded


# --- apply


def test_a_folder_without_manifests_is_wrong_input(play: Played, tmp_path: Path) -> None:
    call = play(cli, "apply_folder", None)
    done = moerl("apply", "starter-p5en", "--folder", str(tmp_path), "--json")
    assert (done.exit_code, json.loads(done.stdout)["outcome"]) == (2, "wrong input")
    assert call == []


def test_a_build_that_failed_is_a_failure_and_not_the_files_fault(play: Played, tmp_path: Path) -> None:
    (tmp_path / "0010-x.yaml").write_text("kind: List\n", encoding="utf-8")
    play(cli, "apply_folder", ApplyFault("build x ended as FAILED"))
    done = moerl("apply", "starter-p5en", "--folder", str(tmp_path))
    assert (done.exit_code, done.stderr) == (1, "failed build x ended as FAILED\n")


def test_an_apply_that_would_run_nothing_says_so_with_a_code_of_its_own(
    play: Played, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "0010-x.yaml").write_text("kind: List\n", encoding="utf-8")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:4566")
    call = play(cli, "apply_folder", None)
    command = ("apply", "starter-p5en", "--folder", str(tmp_path))
    done = moerl(*command)
    assert (done.exit_code, done.stdout) == (4, "")
    assert done.stderr.startswith(
        "not built here the embedded AWS has no container engine, so its builds apply nothing"
    )
    as_json = moerl(*command, "--json")
    assert (as_json.exit_code, json.loads(as_json.stdout)["outcome"]) == (4, "not built here")
    assert call == []


# --- local


@pytest.mark.parametrize("option", [("--account", "abc"), ("--region", "nowhere")], ids=["account", "region"])
def test_an_account_or_region_that_cannot_be_is_wrong_input(option: tuple[str, str], tmp_path: Path) -> None:
    done = moerl("local", "up", "--dir", str(tmp_path / "state"), *option)
    assert done.exit_code == 2
    assert f"'{option[1]}' is no" in done.stderr
    assert not (tmp_path / "state").exists()


def test_up_waits_for_no_other_up_and_names_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(server, "start", lambda *_, **__: pytest.fail("it was started"))
    with held(tmp_path):
        for kind in ((), ("--kubernetes",)):
            done = moerl("local", "up", "--dir", str(tmp_path), *kind)
            assert (done.exit_code, done.stderr) == (1, f"not started process {os.getpid()} works in {tmp_path}\n")


@pytest.mark.parametrize("verb", ["up", "status", "down"])
def test_a_folder_that_is_a_file_is_said_in_one_line(verb: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = moerl("local", verb, "--dir", str(tmp_path / "file"))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"Not a directory: '{tmp_path / 'file'}" in done.stderr


@pytest.mark.parametrize("text", ["{", "[]", "{}", "[" * 100_000], ids=["cut", "list", "empty", "deep"])
@pytest.mark.parametrize("verb", ["up", "status", "down"])
def test_a_damaged_state_file_is_named_in_one_line(verb: str, text: str, tmp_path: Path) -> None:
    (tmp_path / server.STATE_FILE).write_text(text, encoding="utf-8")
    done = moerl("local", verb, "--dir", str(tmp_path))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (1, "", 1)
    assert f"{tmp_path / server.STATE_FILE} is damaged" in done.stderr
    assert (tmp_path / server.STATE_FILE).read_text(encoding="utf-8") == text


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"url": 1}'], ids=["cut", "list", "empty", "of another release"])
@pytest.mark.parametrize("words", [("up", "--kubernetes"), ("status",), ("down",)], ids=" ".join)
def test_a_damaged_state_file_of_a_control_plane_is_named_in_one_line(
    words: tuple[str, ...], text: str, tmp_path: Path
) -> None:
    path = tmp_path / "kubernetes" / "kubernetes.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")
    done = moerl("local", *words, "--dir", str(tmp_path))
    assert done.exit_code == 1
    assert f"{path} is damaged" in done.stderr.splitlines()[-1]
    assert path.read_text(encoding="utf-8") == text


def test_status_of_nothing_fails_and_down_has_nothing_to_stop(tmp_path: Path) -> None:
    done = moerl("local", "status", "--dir", str(tmp_path), "--json")
    assert (done.exit_code, json.loads(done.stdout)) == (
        1,
        {"running": False, "url": None, "environment": {}, "kubernetes_url": None},
    )
    assert moerl("local", "status", "--dir", str(tmp_path), "--export").stdout == ""
    down = moerl("local", "down", "--dir", str(tmp_path))
    assert (down.exit_code, down.stdout) == (0, "nothing was running\n")


def test_exports_survive_a_shell_whatever_the_checkout_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    running = server.Server(
        port=1,
        pid=1,
        process_start=1,
        url="http://127.0.0.1:1",
        account="123456789012",
        region="us-west-2",
        log=tmp_path / "log",
        state_file=tmp_path / "state",
    )
    node = Path("/home/a b/$(touch x)/'node'")
    monkeypatch.setattr(server, "status", lambda _: running)
    monkeypatch.setattr(cli, "pinned_node", lambda: node)
    done = moerl("local", "status", "--export")
    assert done.exit_code == 0
    read = dict(word.split("=", 1) for line in done.stdout.splitlines() for word in shlex.split(line)[1:])
    assert read == server.client_environment(running, node=node)
