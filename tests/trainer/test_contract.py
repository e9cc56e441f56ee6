"""The contract with TRL holds for the installed version, and says what moved where it does not."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import trl
import trl.trainer.utils
from transformers import PreTrainedModel

from grpo_ext.objective.policy import LossOptions
from grpo_ext.seams import contract
from grpo_ext.seams.port import TransformersTrainer, TRLTrainer
from grpo_ext.step.loss import LossSettings

PACKAGE = Path(contract.__file__).parents[1]
# How the package calls the arguments of a trainer.
ARGUMENTS = ("args", "trainer.args", "self.trainer.args", "recipe.training")


@pytest.fixture
def fresh():
    contract.check_contract.cache_clear()
    yield contract.check_contract
    contract.check_contract.cache_clear()


def test_the_installed_trl_fits(fresh):
    fresh()


def test_a_renamed_method_is_named(fresh, monkeypatch):
    monkeypatch.delattr(trl.GRPOTrainer, "_calculate_rewards")
    with pytest.raises(RuntimeError, match="_calculate_rewards"):
        fresh()


def test_a_name_that_is_gone_is_named(fresh, monkeypatch):
    monkeypatch.delattr(trl.trainer.utils, "use_adapter")
    monkeypatch.delattr(PreTrainedModel, "_keys_to_ignore_on_save")
    with pytest.raises(RuntimeError) as error:
        fresh()
    for path in ("trl.trainer.utils.use_adapter", "PreTrainedModel._keys_to_ignore_on_save"):
        assert f"{path} no longer exists" in str(error.value)


def test_an_import_that_fails_since_a_name_is_gone_says_which_versions_to_install():
    program = (
        "import trl.trainer.grpo_trainer\n"
        "del trl.trainer.utils.use_adapter\n"
        "trl.__version__ = '1.17.0'\n"
        "from grpo_ext import GRPOExtTrainer\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    last = done.stderr.strip().rpartition("\n")[2]
    assert done.returncode == 1
    assert last.startswith("RuntimeError: grpo_ext is not compatible with the installed TRL 1.17.0")
    assert "Install trl==1.16.*" in last
    assert last.endswith("trl.trainer.utils.use_adapter no longer exists.")


def test_a_changed_parameter_is_named(fresh, monkeypatch):
    monkeypatch.setattr(trl.GRPOTrainer, "log", lambda self, metrics: None)
    with pytest.raises(
        RuntimeError, match=r"GRPOTrainer.log: expected .*'logs'.* found .*'metrics'"
    ):
        fresh()


def test_another_version_is_refused(fresh, monkeypatch):
    monkeypatch.setattr(trl, "__version__", "1.17.0")
    with pytest.raises(RuntimeError, match=r"TRL is 1\.17\.0"):
        fresh()


def test_another_way_of_scoring_is_named(fresh, monkeypatch):
    monkeypatch.setattr("trl.trainer.utils.add_fused_lm_head", lambda model: None)
    with pytest.raises(RuntimeError, match="add_fused_lm_head no longer has"):
        fresh()


def test_another_way_to_the_engine_is_named(fresh, monkeypatch):
    path = "trl.generation.vllm_generation.VLLMGeneration.generate"
    monkeypatch.setattr(path, lambda self, prompts, images, num_generations, profiler=None: ())
    with pytest.raises(
        RuntimeError, match=r"VLLMGeneration.generate no longer has `self\.llm\.generate"
    ):
        fresh()


def test_a_renamed_field_is_named(fresh, monkeypatch):
    fields = [
        ("truncation_delta" if field.name == "delta" else field.name, field.type)
        for field in dataclasses.fields(trl.GRPOConfig)
    ]
    monkeypatch.setattr(trl, "GRPOConfig", dataclasses.make_dataclass("Renamed", fields))
    with pytest.raises(RuntimeError, match=r"GRPOConfig no longer has the field `delta`\.$"):
        fresh()


def test_a_renamed_attribute_is_named(fresh, monkeypatch):
    """Of TRL's class, which sets it when it is made, and of transformers'."""
    read_source = inspect.getsource

    def renamed(part):
        source = read_source(part)
        return source.replace("self.epsilon_low", "self.eps_low").replace(
            "self.callback_handler", "self.callbacks"
        )

    monkeypatch.setattr(inspect, "getsource", renamed)
    with pytest.raises(RuntimeError) as error:
        fresh()
    assert "GRPOTrainer.__init__ no longer sets `self.epsilon_low`" in str(error.value)
    assert "Trainer no longer sets `self.callback_handler`" in str(error.value)


def test_every_field_that_the_package_reads_is_in_the_contract():
    """A field missing there would be read with our default, or fail during a run."""
    fields = {field.name for field in dataclasses.fields(trl.GRPOConfig)}
    read = {
        field.name
        for options in (LossOptions, LossSettings)
        for field in dataclasses.fields(options)
    }
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "cli":  # its args are argparse's
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) in ARGUMENTS:
                read.add(node.attr)
    assert sorted(read & fields - {*contract.CONTRACT["config_fields"]}) == []


def test_the_ports_name_only_what_is_read():
    source = "".join(path.read_text() for path in PACKAGE.rglob("*.py"))
    for port in (TransformersTrainer, TRLTrainer):
        for name in [*port.__annotations__, *contract.methods_of(port)]:
            assert re.search(rf"\b(trainer|self)\.{name}\b", source), name
