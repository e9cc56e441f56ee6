"""The order of prompts in real runs.

The same after a resume in a later epoch, and led by what was seen.
"""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset

from grpo_ext.common.hashes import prompt_id
from grpo_ext.curriculum.pass_rates import PassRates, read_pass_rates
from tests.support import scripted_groups
from tests.support.scripted_groups import DEAD
from tests.support.tiny_run import tiny_arguments, tiny_trainer


def test_adaptive_turns_away_from_prompts_without_signal(tiny_folder, tmp_path):
    settings = {
        "curriculum": "adaptive",
        "group_filter": "refill",
        "learning_rate": 0.0,
        "pass_rate_decay": 0.9,
    }
    settings["pass_threshold"] = 2.0  # the rewards are 0 to 4
    trainer, _ = scripted_groups.train(tiny_folder, tmp_path, steps=12, **settings)
    rates = trainer.parts.order.rates
    chance = rates.chance_of_signal(trainer.num_generations)
    seen = rates.samples > 0
    dead = [n - 1 for n in DEAD if seen[n - 1]]
    assert len(dead) >= 3
    live = [i for i in range(24) if seen[i] and i not in dead]
    assert max(chance[dead]) < sorted(chance[live])[len(live) // 2]
    again, _ = scripted_groups.train(tiny_folder, tmp_path, steps=12, **settings)
    assert again.calls == trainer.calls  # deterministic given the seed
    other, _ = scripted_groups.train(tiny_folder, tmp_path, steps=12, seed=5, **settings)
    assert other.calls != trainer.calls


def test_easy_to_hard_trains_on_the_sorted_rows_once_in_the_run(tiny_folder, tmp_path):
    settings = {
        "curriculum": "easy_to_hard",
        "difficulty_column": "number",
        "learning_rate": 0.0,
        "numbers": range(24, 0, -1),
    }
    trainer, _ = scripted_groups.train(tiny_folder, tmp_path, steps=6, **settings)
    assert trainer.calls == [[n, n + 1, n + 2, n + 3] for n in range(1, 25, 4)]
    with pytest.raises(ValueError, match=r"the data has no column 'numbr'\. Did you mean 'number'"):
        scripted_groups.train(tiny_folder, tmp_path, **{**settings, "difficulty_column": "numbr"})


def test_state_of_the_order_goes_on(tiny_folder, tmp_path):
    settings = {"curriculum": "adaptive", "learning_rate": 0.0}
    trainer, _ = scripted_groups.train(tiny_folder, tmp_path, steps=3, **settings)
    state = trainer.parts.rollout.state_dict()
    other, _ = scripted_groups.train(tiny_folder, tmp_path, steps=1, **settings)
    other.parts.rollout.load_state_dict(state)
    sampler = other._get_train_sampler()
    assert sampler.drawn == trainer.parts.order.sampler.drawn and len(sampler.drawn) >= 3
    known, wanted = (t.parts.order.rates.state_dict() for t in (other, trainer))
    assert known == wanted and sum(known["samples"]) > 0


def test_a_stream_has_no_curriculum(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="the dataset is a stream"):
        scripted_groups.train(
            tiny_folder,
            tmp_path,
            curriculum="adaptive",
            make=lambda rows: rows.to_iterable_dataset(),
        )


def test_the_samples_of_a_run_have_the_pass_rates_that_it_counted(tiny_folder, tmp_path):
    settings = {
        "curriculum": "adaptive",
        "learning_rate": 0.0,
        "pass_rate_decay": 1.0,
        "pass_threshold": 2.0,
    }
    first, _ = scripted_groups.train(tiny_folder, tmp_path / "first", steps=3, **settings)
    file = tmp_path / "first" / "samples.jsonl"
    counted = first.parts.order.rates.state_dict()
    assert 0 < sum(counted["right"]) < sum(counted["samples"]) == 3 * 16
    found = read_pass_rates(file, ["solved"], 2.0)
    rates = PassRates([prompt_id(scripted_groups.prompt_of(n)) for n in range(1, 25)], 1.0, found)
    assert rates.state_dict() == counted
    second, _ = scripted_groups.train(
        tiny_folder, tmp_path / "second", pass_rates_file=str(file), **settings
    )
    assert sum(second.parts.order.rates.state_dict()["samples"]) == 4 * 16  # goes on from those


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) for text in completions]


def run(folder, out, resume=None):
    args = tiny_arguments(
        out,
        logging_steps=10,
        save_strategy="steps",
        max_steps=5,
        learning_rate=1e-3,
        save_steps=1,
        seed=3,
    )
    trainer = tiny_trainer(
        folder,
        [digits],
        args,
        Dataset.from_list([{"prompt": f"Use {a}, 2, 3 to make {a + 4}."} for a in range(1, 5)]),
    )
    trainer.train(resume_from_checkpoint=resume)
    return trainer.model.state_dict()


@pytest.mark.slow
def test_a_resume_in_the_third_epoch_sees_the_prompts_of_the_third_epoch(tiny_folder, tmp_path):
    whole = run(tiny_folder, tmp_path)  # two steps an epoch
    for step in (3, 4):
        resumed = run(tiny_folder, tmp_path, str(tmp_path / f"checkpoint-{step}"))
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)
