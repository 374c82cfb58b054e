"""A file is loaded whole or refused with every fault, each on its line."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.config.faults import EnvironmentFault, Finding
from infra.config.loader import load, load_text, locate
from infra.config.plan import build_plan

ROOT = Path(__file__).parents[3]
SHIPPED = ("p5", "p6-b200", "reference-p5en", "starter-p5en")
S = "starter-p5en"
STARTER = (ROOT / "environments" / f"{S}.yaml").read_text(encoding="utf-8")


def refusal(text: str) -> tuple[Finding, ...]:
    with pytest.raises(EnvironmentFault) as refused:
        load_text(text, "environment.yaml")
    return tuple(found for found in refused.value.findings if found.severity == "fault")


def only(text: str) -> Finding:
    (found,) = refusal(text)
    return found


def line_of(text: str, words: str) -> int:
    (number,) = (number for number, line in enumerate(text.splitlines(), 1) if words in line)
    return number


def test_shipped_environments_are_the_four_that_the_tests_know() -> None:
    files = {path.stem for path in (ROOT / "environments").glob("*.yaml") if not path.stem.endswith(".lock")}
    assert files == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_environment_loads_without_a_fault(name: str) -> None:
    loaded = load(ROOT / "environments" / f"{name}.yaml")
    assert loaded.environment.name == name
    assert all(found.severity == "warning" for found in loaded.warnings)


def test_unknown_key_is_refused_with_its_line_and_the_known_keys() -> None:
    text = STARTER.replace("    nodes: 2\n", "    nodes: 2\n    node_count: 3\n")
    found = only(text)
    assert (found.key, found.value, found.line) == ("pools.trainer.node_count", 3, line_of(text, "node_count"))
    assert "is not a key" in found.why
    assert "nodes, placement_group" in found.fix


@pytest.mark.parametrize("indented", ["surprise:\n", "surprise: null\n"])
def test_unknown_key_without_a_value_is_refused_under_its_own_name(indented: str) -> None:
    assert only(STARTER + indented).key == "surprise"
    nested = STARTER.replace("egress: nat}", "egress: nat, surprise: }")
    found = only(nested)
    assert (found.key, found.line) == ("network.surprise", line_of(nested, "surprise"))
    assert "accelerator_zone, cidr, egress, zones" in found.fix


def test_key_of_another_kind_of_capacity_is_refused_without_being_offered_again() -> None:
    found = only(STARTER.replace("{type: spot}", "{type: spot, id: cr-0123456789abcdef0}"))
    assert found.key == "pools.rollout.capacity.id"
    assert "kind of capacity" in found.why
    assert found.fix == "Remove it, or choose another kind."


def test_duplicate_key_is_refused_with_both_lines() -> None:
    text = STARTER + "region: us-west-2\n"
    first, second = (number for number, line in enumerate(text.splitlines(), 1) if line.startswith("region:"))
    found = only(text)
    assert (found.key, found.value, found.line) == ("region", f"written on lines {first} and {second}", second)
    nested = STARTER.replace("    nodes: 2\n", "    nodes: 2\n    nodes: 4\n")
    assert only(nested).key == "pools.trainer.nodes"


@pytest.mark.parametrize(
    ("old", "new", "key", "value", "fix"),
    [
        ("steps: 200", "steps: many", "workload.steps", "many", "`steps: "),
        ("nodes: 2\n", "nodes: x\n", "pools.trainer.nodes", "x", "`nodes: 16`"),
        ("nodes: 2\n", "nodes: 0\n", "pools.trainer.nodes", "0", "`nodes: 16`"),
        ("nodes: 2\n", "nodes: 2.5\n", "pools.trainer.nodes", "2.5", "`nodes: 16`"),
        ("{min: 0, max: 2}", "{min: -1, max: 2}", "pools.rollout.nodes.min", "-1", "`min: 0`"),
        ("endpoint: private", "endpoint: public", "kubernetes.endpoint", "public", "`endpoint: private`"),
        ("{type: spot}", "{type: sport}", "pools.rollout.capacity.type", "sport", "`capacity: {type: "),
        ("{type: spot}", "spot", "pools.rollout.capacity", "spot", "`capacity: {type: "),
        (
            "[p5en.48xlarge]\n    nodes: 2",
            "p5en\n    nodes: 2",
            "pools.trainer.instance_types",
            "p5en",
            "[p5en.48xlarge]",
        ),
        ('"123456789012"', "123456789012", "account", "123456789012", "`account: '123456789012'`"),
        ('"1.35"', "1.35", "kubernetes.version", "1.35", "`version: '1.35'`"),
        (
            "zone: us-west-2b",
            "zone: [us-west-2a, us-west-2b]",
            "network.accelerator_zone",
            "[us-west-2a, us-",
            "us-west-2b",
        ),
        ("arn:aws:iam::123456789012:role/platform-admin", "me", "kubernetes.admins.0", "me", "."),
        ("egress: nat", "egress: lots", "network.egress", "lots", "`egress: nat`"),
    ],
)
def test_wrong_type_gives_one_finding_on_its_line(old, new, key, value, fix) -> None:
    text = STARTER.replace(old, new, 1)
    found = only(text)
    assert found.key == key
    assert value in found.document()["value"]
    assert fix in found.fix
    assert found.line is not None
    assert key.split(".")[-1 if not key.endswith(".0") else -2] in text.splitlines()[found.line - 1]


def test_a_wrong_tag_of_capacity_names_the_right_ones() -> None:
    assert "'on_demand', 'spot', 'reservation', 'capacity_block'" in only(STARTER.replace("type: spot", "type: sp")).why


@pytest.mark.parametrize(
    ("drop", "key", "fix", "where"),
    [
        ("name: starter-p5en\n", "name", ".", 'account: "'),
        ('account: "123456789012"\n', "account", "`account: '123456789012'`", "name: "),
        ('  version: "1.35"\n', "kubernetes.version", "`version: '1.35'`", "kubernetes:"),
        (", accelerator_zone: us-west-2b", "network.accelerator_zone", "`accelerator_zone: us-west-2b`", "network: {"),
        ("    capacity: {type: spot}\n", "pools.rollout.capacity", "`capacity: {type: ", "rollout:"),
        ("  save_interval: 20\n", "workload.save_interval", "`save_interval: ", "workload:"),
        ("max: 2}", "pools.rollout.nodes.max", "`max: 32`", "nodes: {min: 0, }"),
    ],
)
def test_missing_key_is_refused_on_the_line_of_what_lacks_it(drop, key, fix, where) -> None:
    assert drop in STARTER
    text = STARTER.replace(drop, "}" if drop.endswith("}") else "", 1)
    found = only(text)
    assert (found.key, found.value, found.why) == (key, None, "is required")
    assert fix in found.fix
    assert text.splitlines()[found.line - 1].strip().startswith(where)
    assert "nothing, is required" in found.text("environment.yaml")


@pytest.mark.parametrize(
    "tag",
    ["!!python/object/apply:os.system ['true']", "!!python/name:os.system", "!!python/tuple [1]", "!surprise 1"],
)
def test_no_yaml_tag_is_ever_loaded(tag: str) -> None:
    text = STARTER + f"tags2: {tag}\n"
    found = only(text)
    assert (found.rule, found.key) == ("file.yaml", "file")
    assert found.line == line_of(text, "tags2")
    assert "never loaded" in found.fix


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing but a comment\n",
        "- a\n- b\n",
        "just words\n",
        "a: [1\n",
        "a: 1\n---\nb: 2\n",
        "a: &a [*a]\n",
        "a: &a {b: {c: *a}}\n",
        "? [a]\n: b\n",
        "a: \x07\n",
    ],
)
def test_what_is_not_one_mapping_is_refused_without_a_traceback(text: str) -> None:
    found = only(text)
    assert found.key == "file"
    assert found.rule.startswith("file.")
    assert found.fix.endswith(".")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.yaml"
    path.write_bytes(STARTER.encode() + "# Köln\n".encode("latin-1"))
    with pytest.raises(EnvironmentFault, match="not UTF-8"):
        load(path)


def test_anchors_and_merge_keys_are_plain_yaml_and_load() -> None:
    merged = STARTER.replace("  trainer:\n", "  trainer: &gpu\n", 1).replace(
        "    role: rollout\n    instance_types: [p5en.48xlarge]\n", "    <<: *gpu\n    role: rollout\n"
    )
    assert "&gpu" in merged
    assert "<<: *gpu" in merged
    loaded = load_text(merged, "environment.yaml")
    assert loaded.environment == load_text(STARTER, "environment.yaml").environment


def test_all_faults_of_a_file_come_at_once_each_on_its_line(text) -> None:
    changed = text(
        S,
        {
            "account": 123456789012,
            "pools.rollout.surprise": 1,
            "workload.save_interval": 201,
            "checkpoints.removal": "destroy",
            "pools.trainer.zone": "us-west-2d",
        },
    )
    findings = refusal(changed)
    assert {found.key: found.rule for found in findings} == {
        "account": "file.string-type",
        "pools.rollout.surprise": "file.extra-forbidden",
        "workload.save_interval": "storage.save-interval",
        "checkpoints.removal": "storage.removal",
        "pools.trainer.zone": "network.zone-listed",
    }
    lines = changed.splitlines()
    for found in findings:
        assert found.line is not None
        assert lines[found.line - 1].strip().startswith(f"{found.key.split('.')[-1]}:")


def test_the_message_of_a_refusal_is_one_line_a_fault_and_leaves_warnings_out() -> None:
    with pytest.raises(EnvironmentFault) as refused:
        load_text(
            STARTER.replace("role/platform-admin]", "role/platform-admin]\n  surprise: 1") + "other: 1\n", "e.yaml"
        )
    lines = str(refused.value).splitlines()
    assert len(lines) == 2
    assert all(re.match(r"e\.yaml:\d+: [\w.]+: 1, is not a key of this file\. ", line) for line in lines)
    assert len(refused.value.findings) > 2


ELSEWHERE = {
    "region": "eu-north-1",
    "network.zones": ["eu-north-1a", "eu-north-1b", "eu-north-1c"],
    "network.accelerator_zone": "eu-north-1b",
    "kubernetes.version": "1.34",
    "kubernetes.node_release": "1.34.2-20261012",
}


@pytest.mark.parametrize("value", [{"a": 1}, ...])
@pytest.mark.parametrize(
    "key",
    [
        "account",
        "region",
        "kubernetes.version",
        "network.zones",
        "network.accelerator_zone",
        "pools.trainer.role",
        "pools.trainer.instance_types",
        "pools.trainer.capacity",
        "pools.environments.role",
        "workload.model",
        "workload.steps",
        "workload.save_interval",
    ],
)
def test_a_value_that_is_missing_or_wrong_draws_no_rule_about_what_stands_in_for_it(key, value, text) -> None:
    named = f"{key}.type" if key.endswith("capacity") and value is not ... else key
    assert only(text(S, ELSEWHERE | {key: value})).key == named


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("workload.trainer.pipeline_parallel", "four"),
        ("workload.rollout.gpus_per_engine", "all"),
        ("workload.rollout.precision", "fp4"),
        ("pools.rollout.transport", "fast"),
        ("software", "newest"),
        ("kubernetes.admins", ["me"]),
        ("network.zones", ["us-west-2a", "us-west-2b", "west"]),
        ("pools.trainer.nodes", "many"),
    ],
)
def test_a_wrong_value_draws_no_rule_about_the_default_or_its_neighbours(key, value, text) -> None:
    found = only(text("reference-p5en", {key: value}))
    assert found.key.startswith(key)


@pytest.mark.parametrize(
    ("key", "value"),
    [("kubernetes.admins", ["me"]), ("network.zones", ["us-west-2b", "west"]), ("pools.trainer.taints", [{"k": "v"}])],
)
def test_a_wrong_item_of_a_list_hides_no_rule_about_other_keys(key, value, text) -> None:
    found = refusal(text(S, {key: value, "checkpoints.removal": "destroy"}))
    assert {item.key for item in found if item.key.startswith(key)}
    assert {item.key for item in found if not item.key.startswith(key)} == {"checkpoints.removal"}


def test_a_pool_of_an_impossible_name_is_not_said_to_be_missing_as_well() -> None:
    assert only(STARTER.replace("  trainer:\n    role", "  Trainer:\n    role")).key == "pools.Trainer"


def test_an_unknown_key_hides_no_rule_about_its_neighbours(text) -> None:
    changed = text(S, {"workload.trainer.surprise": 1, "workload.trainer.context_parallel": 3})
    assert {found.key for found in refusal(changed)} == {"workload.trainer.surprise", "workload.trainer"}


def test_a_finding_without_a_line_of_its_own_points_to_the_nearest_parent(edited, text) -> None:
    (found,) = (item for item in edited(S, {"alerts": ...}) if item.key == "alerts.emails")
    assert found.line == 1
    (found,) = (
        item for item in edited(S, {"pools.trainer.capacity": {"type": "reservation"}}) if item.key[-2:] == "id"
    )
    lines = text(S, {"pools.trainer.capacity": {"type": "reservation"}}).splitlines()
    assert lines[found.line - 1].strip() == "capacity:"


def test_a_value_never_breaks_out_of_its_line() -> None:
    found = only(STARTER.replace("name: starter-p5en", 'name: "a\\nb\\e[2J"'))
    shown = found.text("environment.yaml")
    assert shown.isprintable()
    assert r"a\nb\x1b[2J" in shown


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("account", "12345678901\u0662"),
        ("region", "us-west-\u0662"),
        ("kubernetes.version", "1.3\u0662"),
        ("kubernetes.node_release", "1.35.\u0662-20261012"),
        ("bootstrap.permissions_boundary", "gr\u00fcn"),
    ],
)
def test_only_ascii_digits_and_letters_count_as_such(key, value, text) -> None:
    assert only(text(S, {key: value})).key == key


def test_a_release_with_an_impossible_date_is_a_fault_and_not_a_traceback(edited) -> None:
    (found,) = (item for item in edited(S, {"kubernetes.node_release": "1.35.2-20261399"}) if item.severity == "fault")
    assert found.key == "kubernetes.node_release"


def test_c8_a_name_of_80_characters_is_refused(text) -> None:
    found = only(text(S, {"name": "a" * 80}))
    assert found.key == "name"
    assert "24" in found.why


@pytest.mark.parametrize(
    ("changes", "key", "value", "why"),
    [
        ({"pools.trainer.nodes": "2"}, "pools.trainer.nodes", "'2'", "is not a whole number or a mapping of keys"),
        ({"pools.trainer.nodes": 10**24}, "pools.trainer.nodes", str(10**24), "is above 5000"),
        ({"workload.steps": 10**24}, "workload.steps", str(10**24), "is above 100000000"),
        ({"budget.monthly_usd": float("inf")}, "budget.monthly_usd", "inf", "is not a finite number"),
        ({"workload.trainer.flags.lr": float("nan")}, "workload.trainer.flags.lr", "nan", "is not a finite number"),
        (
            {"workload.trainer.flags.lr": [1]},
            "workload.trainer.flags.lr",
            "[1]",
            "is not true or false, a whole number, a number or text",
        ),
        (
            {"workload.rollout.variables": {"1A B=": "x"}},
            "workload.rollout.variables.1A B=",
            "1A B=",
            "an environment variable's name",
        ),
        ({"pools.trainer.ami": {"id": "ami-1"}}, "pools.trainer.ami.id", "ami-1", "is not an AMI's id"),
        ({"pools.trainer.instance_types": []}, "pools.trainer.instance_types", "[]", "is an empty list"),
        ({"kubernetes": 3}, "kubernetes", "3", "is not a mapping of keys"),
        ({"account": 123456789012}, "account", "123456789012", "quotes"),
        ({"tags": {1: "x"}}, "tags.1", "1", "is not text"),
        ({"protected": "maybe"}, "protected", "maybe", "is not true or false"),
    ],
)
def test_what_does_not_fit_is_said_in_words(changes, key, value, why, text) -> None:
    found = only(text(S, changes))
    assert (found.key, found.document()["value"]) == (key, value)
    assert why in found.why
    assert not re.search(r"tuple|dict|instance|pattern|\^|None|null", found.why)


def test_an_empty_file_is_told_what_it_must_hold() -> None:
    found = only("")
    assert (found.rule, found.value) == ("file.mapping", None)
    assert "name, account, region, kubernetes, network, pools, workload" in found.fix


def test_a_wrong_shape_hides_nothing_beside_it(text) -> None:
    taints = [{"key": "bad key!", "effect": "WRONG"}, {"key": "-"}]
    found = refusal(text(S, {"pools.rollout.taints": taints}))
    assert {item.key.removeprefix("pools.rollout.taints.") for item in found} == {"0.effect", "0", "1"}
    found = refusal(text(S, {"pools.trainer.capacity": "x", "pools.rollout.nodes": 3}))
    assert {item.key for item in found} == {"pools.trainer.capacity", "pools.rollout.nodes"}
    found = refusal(text(S, {"workload.trainer.variables": {"1A": "x", "NCCL_DEBUG": "INFO"}}))
    assert {item.key.rpartition(".")[2] for item in found} == {"1A", "NCCL_DEBUG"}


def test_what_passed_every_rule_is_judged_further_and_located(text) -> None:
    changed = text(S, {"workload.trainer.flags": {"save": "/x"}})
    said = Finding(rule="x.y", key="workload.trainer.flags.save", value="/x", why="is ours", fix="Remove it.")
    with pytest.raises(EnvironmentFault) as refused:
        load_text(changed, "e.yaml", further=lambda *_: [said])
    assert refused.value.findings[-1].line == line_of(changed, "save: /x")
    wrong_key = text(S, {"workload.trainer.flags": {"save": "/x", "--lr": 1}})
    with pytest.raises(EnvironmentFault) as refused:
        load_text(wrong_key, "e.yaml", further=lambda *_: [said])
    faults = [found.key for found in refused.value.findings if found.severity == "fault"]
    assert faults == ["workload.trainer.flags.--lr", "workload.trainer.flags.save"]


@pytest.mark.parametrize("change", [{"account": 1}, {"checkpoints.removal": "destroy"}, {"kubernetes.version": ...}])
def test_what_did_not_pass_is_not_judged_further(change, text) -> None:
    with pytest.raises(EnvironmentFault):
        load_text(text(S, change), "e.yaml", further=lambda *_: pytest.fail("judged further"))


def paths(value: object, at: str = "") -> list[str]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    below = [path for step, item in items for path in paths(item, f"{at}{step}.")]
    return [*([at[:-1]] if at else []), *below]


JUNK = st.sampled_from(
    [
        None,
        True,
        0,
        -1,
        2.5,
        10**30,
        "",
        "x",
        "a\nb",
        "\u0662",
        [],
        {},
        [1],
        [None],
        ["x"],
        {"a": 1},
        {1: 2},
        [{}],
        [[]],
        ...,
    ]
) | st.recursive(st.none() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=2), max_leaves=3)


@pytest.mark.parametrize("name", SHIPPED)
@settings(max_examples=25)
@given(data=st.data())
def test_no_content_of_a_file_ends_in_anything_but_a_plan_or_a_refusal(name, data, text) -> None:
    document = yaml.safe_load(text(name, {}))
    changes: dict[str, object] = {}
    for path in data.draw(st.lists(st.sampled_from(paths(document)), min_size=1, max_size=3, unique=True)):
        if not any(path.startswith(f"{other}.") or other.startswith(f"{path}.") for other in changes):
            changes[path] = data.draw(JUNK)
    try:
        loaded = load_text(text(name, changes), "environment.yaml")
    except EnvironmentFault as refused:
        assert all(found.text("environment.yaml").isprintable() for found in refused.findings)  # noqa: PT017
        assert any(found.severity == "fault" for found in refused.findings)  # noqa: PT017
    else:
        build_plan(loaded.environment, loaded.pins, loaded.warnings).document()


def test_a_name_or_a_path_finds_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "environments"
    folder.mkdir()
    (folder / "mine.yaml").write_text("name: mine\n", encoding="utf-8")
    (folder / "mine.lock.yaml").write_text("{}\n", encoding="utf-8")
    assert locate("mine", tmp_path) == folder / "mine.yaml"
    assert locate(str(folder / "mine.yaml"), tmp_path) == folder / "mine.yaml"
    with pytest.raises(EnvironmentFault) as refused:
        locate("yours", tmp_path)
    with pytest.raises(EnvironmentFault, match=r"5000 characters"):
        locate("x" * 5000, tmp_path)
    (found,) = refused.value.findings
    assert (found.value, found.fix) == ("yours", "Write one of mine or a path to a YAML file.")


def test_the_lock_beside_a_file_is_read_with_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(STARTER, encoding="utf-8")
    assert load(path).pins.node_release is None
    (tmp_path / "mine.lock.yaml").write_text("node_release: 1.35.2-20261012\n", encoding="utf-8")
    assert load(path).pins.node_release == "1.35.2-20261012"


def test_yaml_of_a_shipped_file_survives_a_round_trip(text) -> None:
    for name in SHIPPED:
        original = yaml.safe_load((ROOT / "environments" / f"{name}.yaml").read_text(encoding="utf-8"))
        assert yaml.safe_load(text(name, {})) == original
