"""Real runs in which hard prompts take several slots: one group of all their completions."""

from __future__ import annotations

import numpy as np
import pytest

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.recipe.problems import RecipeError
from tests.support.logs import json_rows
from tests.support.scripted_groups import (
    FORMAT,
    GROUP,
    fixed_completion,
    prompt_of,
    shaped,
    solved,
    train,
    write_rates,
)

SLOTS = {"curriculum": "adaptive", "pass_threshold": 2.0, "learning_rate": 0.0}


def weighted_of(trainer, number, completions):
    """Return the weighted rewards of the first completions of a prompt."""
    words = trainer.processing_class
    prompt = words(prompt_of(number))["input_ids"]
    group = [
        fixed_completion(prompt, n, len(words), words.eos_token_id) for n in range(completions)
    ]
    outcomes = solved(group, group, [number] * completions)
    return np.array(outcomes) + FORMAT * np.array(shaped(group, group))


@pytest.mark.parametrize(("most", "sizes"), [(2, [8, 8]), (3, [12, 4]), (9, [16])])
def test_the_slots_of_a_prompt_are_one_group(tiny_folder, tmp_path, most, sizes):
    file = write_rates(tmp_path / "rates.jsonl")
    settings = {**SLOTS, "max_slots_per_prompt": most, "pass_rates_file": file}
    trainer, _ = train(tiny_folder, tmp_path, **settings)
    [slots] = trainer.calls
    numbers = list(dict.fromkeys(slots))
    assert [GROUP * slots.count(number) for number in numbers] == sizes
    lines = json_rows(tmp_path / "samples.jsonl")
    stds = []
    for group, (number, size) in enumerate(zip(numbers, sizes, strict=True)):
        rewards = weighted_of(trainer, number, size)
        stds.append(rewards.std(ddof=1))
        wanted = (rewards - rewards.mean()) / (stds[-1] + 1e-4)
        advantages = [line["advantage"] for line in lines if line["group"] == group]
        assert advantages == pytest.approx(wanted.tolist(), abs=1e-6)
    [logs, _] = trainer.state.log_history
    assert logs["groups/generated"] == len(sizes)
    assert logs["groups/reward_std"] == pytest.approx(np.mean(stds))
    rates = trainer.parts.order.rates
    counted = {i + 1: count for i, count in enumerate(rates.samples) if count != 17}
    assert counted == {n: 8.5 + size for n, size in zip(numbers, sizes, strict=True)}  # decay 0.5


def test_rows_of_one_prompt_with_different_answers_are_different_groups(tiny_folder, tmp_path):
    """Numbers differ, prompts do not."""
    file = write_rates(tmp_path / "rates.jsonl", [1])
    same = lambda rows: rows.map(lambda row: {"prompt": prompt_of(1)})  # noqa: E731
    settings = {**SLOTS, "max_slots_per_prompt": 2, "pass_rates_file": file, "make": same}
    trainer, _ = train(tiny_folder, tmp_path, **settings)
    [slots] = trainer.calls
    assert [slots.count(number) for number in dict.fromkeys(slots)] == [2, 2]
    assert trainer.state.log_history[0]["groups/generated"] == 2


RECIPE = {"model_name_or_path": "m", "curriculum": "adaptive", "max_slots_per_prompt": 2}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"curriculum": "none"}, "`max_slots_per_prompt: 2` needs `curriculum: adaptive`."),
        (
            {"group_filter": "refill"},
            "`max_slots_per_prompt: 2` needs `group_filter: drop` or `'off'`.",
        ),
        (
            {
                "tie_break_reward": "length",
                "reward_funcs": ["countdown", {"name": "length", "target": 1, "weight": 0}],
            },
            "`max_slots_per_prompt: 2` needs `tie_break_reward: null`.",
        ),
        ({"loss_normalization": "micro_batch"}, "needs `loss_normalization: step`."),
        ({"max_slots_per_prompt": 0}, "max_slots_per_prompt"),
    ],
)
def test_what_does_not_go_with_slots_is_refused_by_name(options, said):
    assert load_recipe(None, RECIPE)
    with pytest.raises(RecipeError) as caught:
        load_recipe(None, {**RECIPE, **options})
    assert any(said in problem.message for problem in caught.value.problems)


def test_the_plan_and_the_first_lines_count_slots(tiny_folder, tmp_path, capsys):
    words = ["--curriculum", "adaptive", "--max_slots_per_prompt", "4"]
    assert main(["plan", "--config", "recipes/countdown/tiny.yaml", *words]) == 0
    assert "slots (1 to 4 per prompt) x" in capsys.readouterr().out
    train(tiny_folder, tmp_path, **SLOTS, max_slots_per_prompt=4)
    assert "each generation: 4 slots (1 to 4 per prompt) x 4 completions" in capsys.readouterr().out
