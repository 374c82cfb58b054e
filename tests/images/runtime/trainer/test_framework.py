"""What is asked of a framework is found where it stands, and nothing of it is imported before."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from argparse import Namespace
from pathlib import Path

import pytest

from moerl_runtime.plan import load
from moerl_runtime.trainer import framework, settings
from moerl_runtime.trainer.data_source import connect
from moerl_runtime.trainer.settings import Framework
from tests.images.runtime.trainer.fakes import Bed, arguments_of, plan_document

TYPES = "class Sample:\n    pass\n"
BASE_TYPES = "class RolloutFnTrainOutput:\n    pass\n"
PROCESSING = """
def load_tokenizer(path, **named):
    def tokenize(text, add_special_tokens):
        return {"input_ids": [1, 2, 3]}
    tokenize.asked = (path, named)
    return tokenize
"""
DISTRIBUTED = "def get_gloo_group():\n    return 'gloo'\n"


@pytest.fixture(params=["miles", "slime"])
def package(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Framework:
    """A framework's package, as far as it is asked for."""
    name: Framework = request.param
    files = {
        "__init__.py": "",
        "utils/__init__.py": "",
        "utils/types.py": TYPES,
        "utils/processing_utils.py": PROCESSING,
        "utils/distributed_utils.py": DISTRIBUTED,
        "rollout/__init__.py": "",
        "rollout/base_types.py": BASE_TYPES,
    }
    for path, text in files.items():
        target = tmp_path / name / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    return name


def test_classes_tokenizer_and_group_are_the_frameworks_own(package: Framework) -> None:
    assert framework.sample_class(package).__module__ == f"{package}.utils.types"
    assert framework.train_output(package).__module__ == f"{package}.rollout.base_types"
    assert framework.gloo_group(package) == "gloo"
    plain = Namespace(hf_checkpoint="/models/base", chat_template_path=None)
    assert framework.tokenizer(package, plain).asked == ("/models/base", {"trust_remote_code": True})
    own = Namespace(hf_checkpoint="/models/base", chat_template_path="/t.jinja")
    assert framework.tokenizer(package, own).asked[1]["chat_template_path"] == "/t.jinja"


def test_the_begin_of_a_save_is_asked_of_the_frameworks_timer(
    package: Framework, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert framework.save_began_unix_seconds(package) is None, "a release without it ends no run"
    timer = tmp_path / package / "utils" / "timer.py"
    timer.write_text("class Timer:\n    start_time = {'save_model': 5.0}\n")
    importlib.invalidate_caches()
    assert framework.save_began_unix_seconds(package) == 5.0
    monkeypatch.setattr(sys.modules[f"{package}.utils.timer"].Timer, "start_time", {})
    assert framework.save_began_unix_seconds(package) is None


def test_a_data_source_connects_to_what_its_arguments_name(package: Framework, aws: Bed, tmp_path: Path) -> None:
    args = arguments_of(tmp_path, plan_document(aws), framework=package, apply_chat_template=False)
    known = settings.of(args)
    parts = connect(args, known, load(known.plan_path))
    aws.s3.put_object(Bucket=aws.bucket, Key="k", Body=b"stored")
    assert parts.fetch(1, "k") == b"stored"
    assert parts.render("a text", None) == ("a text", (1, 2, 3))
    assert parts.sample_class.__module__ == f"{package}.utils.types"
    parts.reporter.close()


def test_importing_the_trainers_half_imports_no_framework_and_no_torch() -> None:
    """Miles imports a rollout class at parse time, in the driver on the head."""
    ask = (
        "import json, sys; "
        "from moerl_runtime.trainer import cli, data_source, hooks, rollout; "
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)  # noqa: S603
    assert not {"torch", "numpy", "miles", "slime", "transformers", "ray"} & set(json.loads(done.stdout))
