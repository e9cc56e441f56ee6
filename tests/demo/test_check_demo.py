"""The demo of Countdown with a tool.

What it prepares fits its recipes, and the warm start learns the model's turns alone.
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

from grpo_ext.demo.demos import DEMOS
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from grpo_ext.sft import make_trainer
from tests.support.places import REPO

CALL = (
    r"<tool_call>\n"
    r'{"name": "check", "arguments": {"expression": "[-+\d ]+"}}'
    r"\n</tool_call><\|im_end\|>"
)


def test_what_is_prepared_fits_the_recipes_and_the_tool_is_not_learned_by_heart(tmp_path):
    demo = DEMOS["check"]
    recipe = load_recipe(REPO / "recipes" / demo.recipe)
    given = {
        "model_name_or_path": str(tmp_path / "model"),
        "dataset_name": str(tmp_path / "demonstrations.jsonl"),
        "output_dir": str(tmp_path / "out"),
    }
    sft = load_sft_recipe(REPO / "recipes" / demo.sft_recipe, given)
    assert (
        demo.count == sft.training.max_steps * sft.training.per_device_train_batch_size
    )  # each is seen once
    replace(demo, count=400).prepare(recipe.task, tmp_path, 0)
    trainer = make_trainer(sft)
    tokenizer = trainer.processing_class

    assert trainer.model.config.vocab_size == len(tokenizer)
    batch = trainer.data_collator([trainer.train_dataset[i] for i in range(400)])
    assert batch["input_ids"].shape[1] <= sft.training.max_length  # nothing is cut
    longest = 0
    for ids, labels in zip(batch["input_ids"].tolist(), batch["labels"].tolist(), strict=True):
        turns = []
        for (_, before), (token, label) in pairwise([(0, -100), *zip(ids, labels, strict=True)]):
            if label == -100:
                continue
            assert label == token
            if before == -100:
                turns.append([])
            turns[-1].append(token)
        *calls, answer = (
            tokenizer.decode(turn).strip() for turn in turns
        )  # the template sets newlines around
        assert calls and all(re.fullmatch(CALL, call) for call in calls)
        assert re.fullmatch(r"<answer>[-+\d ]+</answer><\|im_end\|>", answer)
        longest = max(longest, *map(len, turns))
    assert 7 < longest <= recipe.training.environment["turn_tokens"]
