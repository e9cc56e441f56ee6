"""A run started from Python is met at the same door as one started by a command.

Refused alike, told alike, recorded alike.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys

import pytest
import torch
import yaml
from datasets import Dataset, DatasetDict, IterableDatasetDict
from peft import LoraConfig
from transformers import AutoTokenizer
from trl import GRPOConfig

from grpo_ext import GRPOExtConfig, GRPOExtTrainer, load_recipe, register
from grpo_ext.common.devices import gpu_is_there
from grpo_ext.evaluation.table import Gain, gained
from grpo_ext.observe.read_run import read_run
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.rewards import build
from grpo_ext.trainer.run_output import first_lines, reward_entry
from tests.support.logs import metric_values
from tests.support.places import REPO
from tests.support.registry_state import registry_as_before

STEPS = 12
SECRET = "hf_not_for_the_card"


def rows(**columns):
    return Dataset.from_list(
        [{"prompt": [{"role": "user", "content": "Say hello."}], "limit": 20, **columns}] * 16
    )


def make(folder, out, rewards, data=None, kind=GRPOExtConfig, more=None, **settings):
    args = kind(
        output_dir=str(out),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=6,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **settings,
    )
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    return GRPOExtTrainer(
        str(folder), rewards, args, data or rows(), processing_class=tokenizer, **(more or {})
    )


def short(completions, limit, **kwargs):
    """1 where the completion is no longer than its row's limit."""
    return [float(len(text) <= n) for text, n in zip(completions, limit, strict=True)]


@pytest.fixture(scope="module")
def done(tiny_folder, tmp_path_factory):
    """A run from Python: its folder, its trainer, and what it printed."""
    from contextlib import redirect_stdout
    from io import StringIO

    out = tmp_path_factory.mktemp("door") / "run"
    said = StringIO()
    with registry_as_before(), redirect_stdout(said):
        register("short")(short)
        trainer = make(
            tiny_folder,
            out,
            ["short", build("format", mode="strict")],
            max_steps=STEPS,
            logging_steps=1,
            learning_rate=2e-4,
            reward_weights=[1.0, 0.5],
            gradient_accumulation_steps=2,
            hub_token=SECRET,
            eval_strategy="steps",
            eval_steps=STEPS // 2,
            eval_temperature=0.0,
            per_device_eval_batch_size=8,
            more={"eval_dataset": rows()},
        )
        trainer.train()
    return out, trainer, said.getvalue()


@pytest.mark.parametrize(
    "name, words",
    [
        ("countdwon", "Did you mean 'countdown'"),
        ("my/deep/model", "is neither a folder nor the hub id"),
        ("./nothing", "is neither a folder nor the hub id"),
        ("nowhere.rewards:f", "cannot load the reward"),
    ],
)
def test_a_reward_that_nothing_is_called_is_refused_before_the_model_is_loaded(name, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        GRPOExtTrainer("no/model", [name], GRPOExtConfig("x", use_cpu=True, bf16=False), rows())


@pytest.mark.parametrize("kind", [DatasetDict, IterableDatasetDict, dict])
def test_a_mapping_of_splits_is_told_to_be_one(kind):
    splits = {"test": rows(), "train": rows()}
    if kind is IterableDatasetDict:
        splits = {name: part.to_iterable_dataset() for name, part in splits.items()}
    arguments = GRPOExtConfig("x", use_cpu=True, bf16=False)
    with pytest.raises(ValueError) as error:
        GRPOExtTrainer("no/model", [short], arguments, kind(splits))
    assert str(error.value) == (
        f"train_dataset is of type {kind.__name__} and has the splits test, train: pass one of "
        f"them, such as dataset['train']."
    )


def test_rows_without_what_is_read_are_refused_with_their_columns(tiny_folder, tmp_path):
    bare = Dataset.from_list([{"promt": "Hello", "limit": 3}] * 8)
    with pytest.raises(
        ValueError, match=r"no column 'prompt'. Did you mean 'promt'\? Its columns: promt, limit"
    ):
        GRPOExtTrainer("no/model", [short], GRPOExtConfig("x", use_cpu=True, bf16=False), bare)
    with pytest.raises(ValueError, match="no column 'prompt'"):
        make(tiny_folder, tmp_path, [short], more={"eval_dataset": {"held_out": bare}})
    with pytest.raises(ValueError, match="reads the column 'limit', which the dataset lacks"):
        make(tiny_folder, tmp_path, [short], rows().remove_columns("limit"))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="for machines without an accelerator")
def test_arguments_that_do_not_say_are_those_of_this_machine():
    args = GRPOExtConfig("x")
    assert (args.use_cpu, args.bf16) == (True, False)
    recipe = load_recipe(None, {"model_name_or_path": "m"})
    assert (recipe.training.use_cpu, recipe.training.bf16) == (True, False)
    assert GRPOExtConfig("x", bf16=True).bf16 is True
    assert GRPOExtConfig("x", use_cpu=True).bf16 is True, "as in TRL where the user says it"


def test_the_example_of_the_page_runs(tiny_folder, tmp_path, monkeypatch, capsys):
    page = (REPO / "docs/how-to/more.md").read_text()
    [code] = re.findall(r"## Start from Python\n+```python\n(.*?)```", page, re.DOTALL)
    small = ", max_steps=1, max_completion_length=4, logging_steps=1, save_strategy='no')"
    code = code.replace('"Qwen/Qwen2.5-0.5B-Instruct"', repr(str(tiny_folder)))
    code = code.replace('output_dir="runs/brief")', f'output_dir="runs/brief"{small}')
    assert small in code
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "more.md", "exec"), {"__name__": "page"})
    assert "next: grpo-ext report runs/brief" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "runs/brief/recipe.yaml").read_text())["max_steps"] == 1


def test_it_says_what_runs_what_was_gained_and_what_comes_next(done):
    out, trainer, said = done
    lines = said.splitlines()
    threads = lines[0].partition(" with ")[2]
    assert (
        lines[0].startswith("1 rank, the whole model, on cpu with ") and int(threads.split()[0]) > 0
    )
    assert lines[1] == "rewards: short x 1, format x 0.5"
    assert f"step {STEPS}: " in said and "{'" not in said, "lines in place of raw dicts"
    assert lines[-1] == f"next: grpo-ext report {out}"
    assert any(line.startswith("eval_short: ") and " -> " in line for line in lines)
    reward = metric_values(trainer, "reward")
    # a third of 12
    first = statistics.mean(reward[:4])
    last = statistics.mean(reward[-4:])
    [line] = [line for line in lines if line.startswith("reward: ")]
    assert line.startswith(f"reward: {first:.3f}") and f" -> {last:.3f}" in line


def test_the_first_line_has_the_parameters_of_an_adapter(tiny_folder, tmp_path):
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    trainer = make(tiny_folder, tmp_path, ["format"], more={"peft_config": config})
    trained = 0
    total = 0
    for name, weight in trainer.model.named_parameters():
        total += weight.numel()
        trained += weight.numel() if "lora_" in name else 0
    line = first_lines(trainer).splitlines()[0]
    assert line.startswith(f"1 rank, LoRA: {trained:,} of {total:,} parameters trained, on cpu")
    assert 0 < trained < total / 10


def test_a_reward_of_some_tasks_keeps_them_in_the_recipe():
    reward = {"name": "exact", "reward": "exact", "options": {"ignore_case": True}, "tasks": ["a"]}
    entry = reward_entry(reward)
    assert entry == {"name": "exact", "label": "exact", "ignore_case": True, "tasks": ["a"]}


def test_the_recipe_holds_what_the_trainer_was_given(done, tiny_folder):
    out, _, _ = done
    saved = yaml.safe_load((out / "recipe.yaml").read_text())
    assert saved["model_name_or_path"] == str(tiny_folder)
    assert saved["reward_weights"] == [1.0, 0.5]
    assert (
        saved["learning_rate"],
        saved["per_device_train_batch_size"],
        saved["num_generations"],
    ) == (2e-4, 8, 4)
    assert not {"beta", "temperature", "generation_batch_size", "hub_token"} & saved.keys()
    assert read_run(out).recipe == saved
    assert read_run(out).about["data"] == {"rows": 16, "columns": ["prompt", "limit"]}
    register("short")(short)
    again = load_recipe(out / "recipe.yaml").training
    assert (again.learning_rate, again.gradient_accumulation_steps, again.eval_temperature) == (
        2e-4,
        2,
        0.0,
    )


def test_secrets_in_the_options_of_a_reward_are_used_and_not_saved(tiny_folder, tmp_path):
    used = set()
    with registry_as_before():

        @register("graded_elsewhere")
        def graded_elsewhere(completions, *, api_key: str, url: str, style: str):
            used.add((api_key, url))
            return [float(len(text)) for text in completions]

        url = f"http://user:{SECRET}@judge.example/v1"
        reward = build("graded_elsewhere", api_key=SECRET, url=url, style="plain-style")
        make(tiny_folder, tmp_path, [reward], max_steps=1, save_strategy="no").train()
    assert used == {(SECRET, url)}
    for name in ("README.md", "recipe.yaml", "run.json"):
        text = (tmp_path / name).read_text()
        assert "plain-style" in text and "http://judge.example/v1" in text, name
        assert SECRET not in text, name
    for path in tmp_path.rglob("*.*"):
        assert path.is_dir() or SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("kind", [GRPOConfig, GRPOExtConfig])
def test_a_recipe_from_python_can_be_read_again(tiny_folder, tmp_path, kind):
    trainer = make(
        tiny_folder,
        tmp_path,
        ["format"],
        kind=kind,
        steps_per_generation=4,
        gradient_accumulation_steps=2,
    )
    values = trainer.parts.output.recipe
    assert values["steps_per_generation"] == 4
    read = load_recipe(None, values)
    assert read.training.generation_batch_size == trainer.args.generation_batch_size == 32


def test_the_card_tells_rewards_result_and_recipe_and_no_secret(done, tiny_folder):
    out, trainer, _ = done
    card = (out / "README.md").read_text()
    assert '| format | 0.5 | "mode": "strict", "prefix": "" |' in card
    assert "![Curves of the run](curves.png)" in card and (out / "curves.png").stat().st_size > 1000
    assert "    learning_rate: 0.0002\n" in card and "| eval\\_short |" in card
    assert f"fine-tuned version of {tiny_folder.name}." in card and f'model="{out}"' in card
    assert "prompt = [{'role': 'user', 'content': 'Say hello.'}]\n" in card
    assert "generator(prompt, max_new_tokens" in card and "time machine" not in card
    assert "## Training procedure\n\nThis model was trained with GRPO" in card
    assert card.count("### Rewards") == 1 and "### Framework versions" in card
    assert all(
        SECRET not in (out / name).read_text() for name in ("README.md", "recipe.yaml", "run.json")
    )
    trainer.create_model_card(model_name=out.name)  # as pushing does
    assert (out / "README.md").read_text() == card


def test_gains_are_means_of_both_ends_with_a_verdict():
    rewards = [i / 20 + (0.01 if i % 2 else -0.01) for i in range(20)]
    history = [{"reward": value} for value in rewards]
    history += [
        {"eval_x": 0.1, "eval_x_se": 0.01, "eval_runtime": 3.0, "eval_problems": 50},
        {"eval_x": 0.3, "eval_x_se": 0.02, "eval_problems": 50},
    ]
    reward, evaluated = gained(history, ["x"])
    assert (reward.name, reward.verdict) == ("reward", "rose")
    assert reward.first.startswith("0.098 ± ") and reward.last.startswith("0.852 ± ")  # of five
    assert evaluated == Gain("eval_x", "0.100 ± 0.010", "0.300 ± 0.020", "rose")
    assert gained(history[:1], ["x"]) == []


def test_few_logs_have_neither_error_nor_verdict():
    assert gained([{"reward": 0.1 * i} for i in range(9)], ["x"]) == [
        Gain("reward", "0.000", "0.800", "")
    ]


@pytest.mark.skipif(gpu_is_there(), reason="for machines without a GPU")
@pytest.mark.parametrize(
    "first, given, waiting",
    [
        ("", {}, "PASSIVE 1000"),
        ("", {"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE None"),
        ("", {"GOMP_SPINCOUNT": "100"}, "None 100"),
        ("import torch", {}, "None None"),
    ],
)
def test_threads_wait_calmly_where_nobody_has_chosen(first, given, waiting):
    """Whatever loads torch first: the package from Python, or a command."""
    for then in (
        "import grpo_ext; grpo_ext.register",
        "from grpo_ext.cli.main import main; main(['rewards', 'list'])",
    ):
        code = (
            f"{first}\n"
            f"{then}\n"
            "import os, sys; print(os.environ.get('OMP_WAIT_POLICY'), "
            "os.environ.get('GOMP_SPINCOUNT'), file=sys.stderr)"
        )
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
        }
        out = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**kept, **given},
            cwd=REPO,
        )
        assert out.stderr.splitlines()[-1] == waiting, out.stderr


def test_arguments_for_two_trainers_let_each_choose_its_batch_of_evaluation(tiny_folder, tmp_path):
    first = make(tiny_folder, tmp_path, ["format"])
    args = first.args
    chosen = args.per_device_eval_batch_size
    assert chosen % 4 == 0
    args.num_generations_eval = 12
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")

    def again():
        return GRPOExtTrainer(
            str(tiny_folder), ["format"], args, rows(), processing_class=tokenizer
        )

    args.temperature = -1.0
    with pytest.raises(RecipeError, match="temperature"):
        again()
    assert args.per_device_eval_batch_size == chosen, "the first trainer still needs it"
    args.temperature = 1.0
    assert again().args.per_device_eval_batch_size % 12 == 0
    args.per_device_eval_batch_size = 24
    assert again().args.per_device_eval_batch_size == 24
