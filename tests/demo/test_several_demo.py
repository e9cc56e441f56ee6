"""The demo of two tasks: its demonstrations are of both, fit the recipes, and show nothing that is
held out.
"""

from __future__ import annotations

import json

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.demo.demos import DEMOS
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from grpo_ext.run.from_recipe import eval_rows, named_rewards_and_weights
from tests.support.places import REPO


def test_what_is_prepared_fits_the_recipes(tmp_path):
    from transformers import AutoTokenizer

    demo = DEMOS["several"]
    recipe = load_recipe(REPO / "recipes" / demo.recipe)
    sft = load_sft_recipe(REPO / "recipes" / demo.sft_recipe)
    demo.prepare({name: entry.task for name, entry in recipe.tasks.items()}, tmp_path, 0)
    lines = (tmp_path / "demonstrations.jsonl").read_text().splitlines()
    rows = list(map(json.loads, lines))
    # each is seen once
    assert len(rows) == sft.training.max_steps * sft.training.per_device_train_batch_size
    asked = [row["prompt"][-1]["content"] for row in rows]
    assert sum(text.startswith("Use ") for text in asked) == len(rows) / 2
    held_out = {row["prompt"][-1]["content"] for row in eval_rows(recipe)}
    assert not held_out & set(asked)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    for row in rows[:400]:
        (completion,) = row["completion"]
        ids = tokenizer(completion["content"]).input_ids
        assert tokenizer.decode(ids) == completion["content"]
        (prompt,) = encode_prompts([row["prompt"]], tokenizer)
        assert len(prompt) + len(ids) + 2 <= sft.training.max_length  # nothing is cut


def test_each_task_has_its_outcome_reward():
    recipe = load_recipe(REPO / "recipes" / DEMOS["several"].recipe)
    rewards, weights = named_rewards_and_weights(recipe)
    assert {r.name: (r.tasks, w) for r, w in zip(rewards, weights, strict=True)} == {
        "countdown": (("countdown",), 1.0),
        "format": (("countdown", "stories"), 0.25),
        "accuracy": (("stories",), 1.0),
        "tag_count": (("stories",), 0.25),
    }
