"""Rendering: all files or none, and the text of plan.json."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from infra.config.faults import EnvironmentFault, Finding
from infra.config.outputs import Outputs
from infra.config.plan import Plan
from infra.node import use_pinned_node

use_pinned_node(os.environ)

import infra.render as rendering  # noqa: E402 - jsii must find its Node first
from k8s.render import Rendered  # noqa: E402
from tests.shipped import plan_of  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
NOTE, LEFT_OUT = {"README.md": "how to apply\n"}, ("the run: no image",)
OUTPUTS = Outputs(
    cluster_endpoint="https://example.invalid",
    data_key_arn="arn:aws:kms:us-west-2:123456789012:key/1",
    repository_uri="registry/moerl",
    file_system_id=None,
    file_system_mount_name=None,
    node_groups={"rollout": "rollout-1"},
)


FILES = (".rendered", "cloudformation/starter-p5en-queue.template.json", "k8s/README.md", "plan.json")
"""What the cut-down platform of `queue_alone` renders to."""


@pytest.fixture(scope="module")
def plan() -> Plan:
    return plan_of("starter-p5en")


@pytest.fixture
def queue_alone(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Any, Plan], None] | None], None]:
    """`queue_alone(AND_THEN)`: a platform of the queue stack and manifests of one text, so that a render takes no time.

    AND_THEN may break it.
    """
    from infra.stacks.queue import QueueStack

    def shrink(and_then: Callable[[Any, Plan], None] | None = None) -> None:
        def build(app: Any, plan: Plan) -> None:
            QueueStack(app, plan)
            if and_then is not None:
                and_then(app, plan)

        monkeypatch.setattr(rendering, "build_platform", build)
        monkeypatch.setattr(rendering, "check", lambda *_: ())
        monkeypatch.setattr(rendering, "manifests", lambda *_, **__: Rendered(files=(), texts=NOTE, left_out=LEFT_OUT))
        monkeypatch.setattr(rendering, "stack_names", lambda plan: (f"{plan.name}-queue",))

    return shrink


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def broken(*_: Any) -> None:
    raise RuntimeError("a stack that does not build")


def another_stack(app: Any, _: Plan) -> None:
    import aws_cdk as cdk

    cdk.CfnResource(cdk.Stack(app, "Unplanned"), "A", type="AWS::CloudFormation::WaitConditionHandle")


@pytest.mark.parametrize("fault", [broken, another_stack], ids=["does not build", "a stack that no plan names"])
@pytest.mark.parametrize("existing", [False, True])
def test_a_render_that_fails_leaves_the_folder_as_it_was(
    fault: Callable[[Any, Plan], None], existing: bool, plan: Plan, queue_alone: Callable[..., None], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    if existing:
        (out / "cloudformation").mkdir(parents=True)
        (out / "cloudformation/starter-p5en-queue.template.json").write_text("old", encoding="utf-8")
        (out / "plan.json").write_text("old", encoding="utf-8")
    before = content(tmp_path)
    queue_alone(fault)
    with pytest.raises(RuntimeError):
        rendering.render(plan, out)
    assert content(tmp_path) == before
    assert [path.name for path in tmp_path.iterdir()] == (["out"] if existing else [])


def test_manifests_that_fail_a_check_are_a_fault_and_nothing_is_written(
    plan: Plan, queue_alone: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_alone()
    found = Finding(rule="k8s.x", key="Pod/rl/x", value="y", why="cannot work", fix="Tell us.")
    monkeypatch.setattr(rendering, "check", lambda *_: (found,))
    with pytest.raises(EnvironmentFault) as refusal:
        rendering.render(plan, tmp_path / "out")
    assert refusal.value.findings == (found,)
    assert list(tmp_path.iterdir()) == []


def test_files_are_returned_sorted_with_what_was_left_out_and_nothing_else_is_left_behind(
    plan: Plan, queue_alone: Callable[..., None], tmp_path: Path
) -> None:
    queue_alone()
    out = tmp_path / "out"
    written = rendering.render(plan, out)
    assert [str(file.relative_to(out)) for file in written.files] == sorted(FILES)
    assert set(content(tmp_path)) == {f"out/{file}" for file in FILES}
    assert written.left_out == LEFT_OUT


STALE = (
    "cloudformation/starter-p5en-pool-gone.template.json",
    "k8s/0999-gone.yaml",
    "k8s/jobs/gone.yaml",
    "k8s/helm/gone.values.yaml",
)


def test_what_an_older_plan_left_goes_and_whatever_else_lies_there_stays(
    plan: Plan, queue_alone: Callable[..., None], tmp_path: Path
) -> None:
    queue_alone()
    theirs = {"k8s/9999-mine.yaml", "k8s/jobs/mine.yaml"}
    kept = {"mine.yaml", "cloudformation/mine.yaml", "k8s/mine.yaml", "mine/0100-mine.yaml", *theirs}
    for file in (*kept, *STALE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("x", encoding="utf-8")
    (tmp_path / rendering.RENDERED).write_text("".join(f"{file}\n" for file in STALE), encoding="utf-8")
    written = rendering.render(plan, tmp_path)
    assert set(content(tmp_path)) == {*kept, *FILES}
    assert written.kept == tuple(sorted(tmp_path / file for file in theirs))
    assert rendering.render(plan, tmp_path) == written


def test_a_list_never_takes_away_what_no_render_writes(
    plan: Plan, queue_alone: Callable[..., None], tmp_path: Path
) -> None:
    queue_alone()
    out = tmp_path / "out"
    out.mkdir()
    others = ("../mine.yaml", "notes.md", "k8s/../../mine.yaml")
    for file in ("mine.yaml", "out/notes.md"):
        (tmp_path / file).write_text("x", encoding="utf-8")
    (out / rendering.RENDERED).write_text("".join(f"{file}\n" for file in others), encoding="utf-8")
    rendering.render(plan, out)
    assert (tmp_path / "mine.yaml").is_file()
    assert (out / "notes.md").is_file()


def test_the_list_names_every_other_file(plan: Plan, queue_alone: Callable[..., None], tmp_path: Path) -> None:
    queue_alone()
    rendering.render(plan, tmp_path)
    assert (tmp_path / ".rendered").read_text(encoding="utf-8").splitlines() == list(FILES[1:])


def test_a_template_is_readable_json_of_the_stack(plan: Plan, queue_alone: Callable[..., None], tmp_path: Path) -> None:
    queue_alone()
    rendering.render(plan, tmp_path / "out")
    text = (tmp_path / "out/cloudformation/starter-p5en-queue.template.json").read_text(encoding="utf-8")
    assert "AWS::SQS::Queue" in text
    assert text == json.dumps(json.loads(text), indent=1) + "\n"


def test_the_current_folder_may_be_the_target(
    plan: Plan, queue_alone: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue_alone()
    monkeypatch.chdir(tmp_path)
    rendering.render(plan, Path())
    assert set(content(tmp_path)) == set(FILES)


def test_plan_json_is_the_plan_with_sorted_keys_and_a_last_newline(plan: Plan) -> None:
    text = rendering.plan_text(plan)
    assert text == json.dumps(plan.document(), indent=2, sort_keys=True) + "\n"
    assert json.loads(text)["pools"][1]["efa_per_node"] == plan.pools[1].efa_per_node == 16


def test_outputs_stand_beside_the_plan_and_change_nothing_in_it(plan: Plan) -> None:
    with_outputs = json.loads(rendering.plan_text(plan, OUTPUTS))
    assert with_outputs.pop("outputs") == asdict(OUTPUTS)
    assert with_outputs == json.loads(rendering.plan_text(plan))


def test_a_changed_plan_is_a_changed_text(plan: Plan) -> None:
    assert rendering.plan_text(replace(plan, region="us-east-1")) != rendering.plan_text(plan)
