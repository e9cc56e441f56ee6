"""The reward `relevance` in a run.

It gets the run's first model and prompts of its data, and `check` loads nothing.
"""

import json

import pytest
from datasets import Dataset, IterableDataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtTrainer
from grpo_ext.preflight.try_rewards import try_rewards
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards import build
from grpo_ext.rewards.reward_specs import resolve_rewards
from grpo_ext.run.from_recipe import named_rewards_and_weights
from tests.support.tiny_run import tiny_arguments

PROMPTS = [[{"role": "user", "content": f"Write about {n}."}] for n in range(8)]


def made(folder, out, rewards, model=None, data=None):
    args = tiny_arguments(out, per_device_train_batch_size=4, max_completion_length=6, max_steps=2)
    tokenizer = AutoTokenizer.from_pretrained(folder, padding_side="left")
    data = data or Dataset.from_list([{"prompt": prompt} for prompt in PROMPTS])
    return GRPOExtTrainer(model or str(folder), rewards, args, data, processing_class=tokenizer)


def test_a_step_has_one_prompt_and_is_compared_with_others_of_the_data(tiny_folder, tmp_path):
    reward = build("relevance", num_unrelated=3, part="all")
    trainer = made(tiny_folder, tmp_path / "run", [reward])
    assert reward.options["model"] == str(tiny_folder)
    assert reward.options["unrelated"] == PROMPTS[:4]
    trainer.train()
    samples = (tmp_path / "run" / "samples.jsonl").read_text(encoding="utf-8").splitlines()
    scores = [json.loads(line)["rewards"]["relevance"] for line in samples]
    assert len(scores) == 8
    assert len(set(scores)) > 1
    assert None not in scores


def test_a_stream_gives_its_first_prompts(tiny_folder, tmp_path):
    reward = build("relevance", num_unrelated=2)
    stream = IterableDataset.from_generator(lambda: ({"prompt": prompt} for prompt in PROMPTS))
    made(tiny_folder, tmp_path / "run", [reward], data=stream)
    assert reward.options["unrelated"] == PROMPTS[:3]


def test_a_model_in_memory_is_no_frozen_model(tiny_folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    with pytest.raises(ValueError, match="the trainer was given a loaded one"):
        made(tiny_folder, tmp_path / "run", ["relevance"], model=model)
    named = build("relevance", model=str(tiny_folder))
    made(tiny_folder, tmp_path / "run", [named], model=model)


def test_a_recipe_names_its_model_and_revision():
    settings = {
        "model_name_or_path": "some/model",
        "model_revision": "v2",
        "reward_funcs": ["relevance", {"name": "relevance", "label": "other", "model": "an/other"}],
    }
    rewards, _ = named_rewards_and_weights(load_recipe(None, settings))
    named = [(reward.options["model"], reward.options["revision"]) for reward in rewards]
    assert named == [("some/model", "v2"), ("an/other", None)]


def test_check_says_what_is_loaded_and_loads_nothing():
    rewards, _ = resolve_rewards([{"name": "relevance", "model": "no/such-model"}, "format"])
    findings = Findings()
    figures = try_rewards(rewards, {"prompt": "p"}, False, findings)
    assert set(figures["scores"]) == {"format"}
    assert not findings.problems
    [note] = [note.message for note in findings.notes if "relevance" in note.message]
    assert "loads the frozen model no/such-model in float32" in note
