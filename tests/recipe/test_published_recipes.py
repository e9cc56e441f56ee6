"""The GPU recipes against what was published of their experiments."""

from __future__ import annotations

import re

import pytest
import yaml

from grpo_ext import load_recipe
from grpo_ext.recipe.load import load_sft_recipe
from grpo_ext.reproduce.published import experiments, with_tables
from tests.support.places import REPO

EXPERIMENTS = experiments()

# The command of the published Countdown run, typed again: a change of the table must not pass
# unseen.
COUNTDOWN_COMMAND = {
    "model_name_or_path": "Qwen/Qwen2.5-3B-Instruct",
    "use_vllm": True,
    "vllm_mode": "server",
    "vllm_server_host": "127.0.0.1",
    "vllm_server_port": 8000,
    "dtype": "bfloat16",
    "dataset_name": "zouxuhong/Countdown-Tasks-3to4",
    "max_train_samples": 50_000,
    "max_completion_length": 1024,
    "num_train_epochs": 1,
    "per_device_train_batch_size": 8,
    "learning_rate": 5e-7,
    "gradient_accumulation_steps": 8,
    "eval_steps": 500,
    "per_device_eval_batch_size": 8,
    "save_steps": 100,
    "save_total_limit": 20,
    "logging_steps": 1,
    "warmup_steps": 0.01,
    "num_generations": 8,
    "temperature": 1.0,
    "accelerate_config": "zero3",
    "report_to": "wandb",
    "beta": 0.001,
    "num_iterations": 1,
}
# What the two articles state about their runs.
GSM8K_STATED = {
    "dataset_name": "openai/gsm8k",
    "dataset_config": "main",
    "max_prompt_tokens": 300,
    "max_answer_tokens": 200,
    "max_train_samples": 1024,
    "reward_weights": [0.5, 0.5, 1.0],
    "beta": 0.04,
    "epsilon": 0.2,
    "temperature": 1.0,
    "top_p": 0.9,
    "top_k": 50,
}
POEM_STATED = {
    "loss_type": "bnpo",
    "beta": 0.03,
    "num_generations": 4,
    "num_iterations": 1,
    "reward_funcs": ["poem_format", "poem_yun"],
    "reward_weights": [1.0, 1.0],
    "use_vllm": False,
}


def path_of(name):
    return REPO / "recipes" / f"{EXPERIMENTS[name].recipe}.yaml"


def as_listed(value):
    """A resolved value as YAML holds it: TRL makes lists of single values of some keys."""
    return value[0] if isinstance(value, list) and len(value) == 1 else value


@pytest.mark.parametrize(
    ("name", "stated"),
    [("countdown", COUNTDOWN_COMMAND), ("gsm8k", GSM8K_STATED), ("poem", POEM_STATED)],
)
def test_the_table_has_what_the_publications_state(name, stated):
    values = EXPERIMENTS[name].values
    for key, value in stated.items():
        assert (key, values[key].status, values[key].published) == (key, "stated", value)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_entries_are_whole(name):
    for key, value in EXPERIMENTS[name].values.items():
        assert value.status in ("stated", "tool_default", "not_published"), key
        assert (value.tool is not None) == (value.status == "tool_default"), key
        assert (value.published is None) == (value.status == "not_published"), key
        assert value.differs or value.status != "not_published", key
        assert value.differs == (value.reason is not None), key
        assert not value.differs or value.in_recipe != value.published, key


def keys_that_differ(recipe, experiment):
    """The keys of the table whose value in the recipe is another one."""
    return [
        key
        for key, value in experiment.values.items()
        if as_listed(recipe.get(key)) != as_listed(value.in_recipe)
    ]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_recipe_has_the_values_of_the_table(name):
    assert keys_that_differ(load_recipe(path_of(name)), EXPERIMENTS[name]) == []


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_recipe_has_no_key_that_the_table_lacks(name):
    keys = yaml.safe_load(path_of(name).read_text(encoding="utf-8"))
    assert not set(keys) - set(EXPERIMENTS[name].values)


def remark(value):
    """The first word of the remark of a recipe's line, if its value is not simply as published."""
    if value.differs:
        return "ours"
    return "default" if value.status == "tool_default" else None


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_each_line_says_whether_its_value_was_published(name):
    lines = path_of(name).read_text(encoding="utf-8").splitlines()
    remarks = {}
    for line in lines:
        if match := re.fullmatch(r"(?P<key>\w+): [^#]*(?:# (?P<remark>\w+).*)?", line):
            remarks[match["key"]] = match["remark"]
    assert len(remarks) > 30
    for key, word in remarks.items():
        expected = remark(EXPERIMENTS[name].values[key])
        assert (word if word in ("ours", "default") else None) == expected, key


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("beta: 0.001", "beta"),
        ("top_k: 50", "top_k"),
        ("save_total_limit: 20", "save_total_limit"),
        ("use_bias_correction_kl: false", "use_bias_correction_kl"),
    ],
)
def test_a_line_that_is_edited_or_removed_is_noticed(line, key, tmp_path):
    text = path_of("countdown").read_text(encoding="utf-8")
    other = {"use_bias_correction_kl": "true"}.get(key, "3")
    recipe = tmp_path / "countdown-qwen2.5-3b.yaml"
    for edited in (text.replace(line, f"{key}: {other}", 1), text.replace(line, "", 1)):
        assert edited != text
        recipe.write_text(edited, encoding="utf-8")
        assert key in keys_that_differ(load_recipe(recipe), EXPERIMENTS["countdown"])


def test_the_page_has_the_tables():
    page = (REPO / "docs" / "experiments.md").read_text(encoding="utf-8")
    assert page.count("<!-- end -->") == 8
    assert with_tables(page) == page, "run `python -m grpo_ext.reproduce.published`"


def test_the_page_of_experiments_has_only_the_four_outcomes():
    page = (REPO / "docs" / "experiments.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| [^|]+ \| (same|better|differs|open) \| [^|]+ \|$", page, re.MULTILINE)
    assert len(rows) > 80


def test_the_supervised_stage_ends_where_the_poem_recipe_begins():
    stage = load_sft_recipe(REPO / "recipes" / "poem" / "qwen2.5-7b-lora-sft.yaml")
    merged = f"{stage.get('output_dir')}/merged"
    assert load_recipe(path_of("poem")).get("model_name_or_path") == merged
    example = (REPO / "examples" / "poem_demonstrations.py").read_text(encoding="utf-8")
    assert f'Path("{stage.get("dataset_name")}")' in example
