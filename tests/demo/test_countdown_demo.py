"""The parts of the Countdown demo fit each other.

Nothing is cut, and no held-out problem is shown.
"""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.demo.demos import DEMOS
from grpo_ext.demo.pipeline import grpo_words, warm_start_words
from grpo_ext.recipe.folder import accelerate_settings
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from tests.support.logs import json_rows
from tests.support.places import REPO


def test_a_short_demo_keeps_its_whole_warm_start(tmp_path):
    demo = DEMOS["countdown"]
    warm_start = warm_start_words(tmp_path, 0)
    assert load_sft_recipe(REPO / "recipes" / demo.sft_recipe, warm_start).get("max_steps") == 400
    short, whole = (grpo_words(demo, tmp_path, 0, steps) for steps in (3, None))
    assert load_recipe(REPO / "recipes" / demo.recipe, short).get("max_steps") == 3
    assert load_recipe(REPO / "recipes" / demo.recipe, whole).get("max_steps") == 100


@pytest.mark.parametrize(("name", "times"), [("countdown", 1), ("countdown-hard", 2)])
def test_what_is_prepared_fits_the_recipes(tmp_path, name, times):
    from transformers import AutoTokenizer

    demo = DEMOS[name]
    recipe = load_recipe(REPO / "recipes" / demo.recipe)
    sft = load_sft_recipe(REPO / "recipes" / demo.sft_recipe)
    ranks = accelerate_settings(sft.get("accelerate_config"))["num_processes"]
    assert (
        demo.count * times
        == sft.training.max_steps * sft.training.per_device_train_batch_size * ranks
    )  # seen so often
    replace(demo, count=500).prepare(recipe.task, tmp_path, 0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    rows = json_rows(tmp_path / "demonstrations.jsonl")
    for row in rows:
        (completion,) = row["completion"]
        ids = tokenizer(completion["content"]).input_ids
        assert len(ids) < recipe.training.max_completion_length
        (prompt,) = encode_prompts([row["prompt"]], tokenizer)
        assert len(prompt) + len(ids) + 2 <= sft.training.max_length  # nothing is cut
        *nums, target = map(int, re.findall(r"\d+", row["prompt"][-1]["content"]))
        assert not recipe.task.is_held_out({"nums": nums, "target": target})
    assert len(tokenizer(str(recipe.task.max_number)).input_ids) == 1
