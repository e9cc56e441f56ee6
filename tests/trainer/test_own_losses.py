"""The term that is read is the one that trains, and a loss of one's own is named in a recipe."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from grpo_ext import load_recipe
from grpo_ext.objective import policy
from grpo_ext.train import make_trainer
from tests.support.fixed_completions import LOSSES, apart, train
from tests.support.logs import metric_values
from tests.support.registry_state import registry_as_before
from tests.support.short_countdown import RECIPE, plugin_settings

PLUGIN = '''
from grpo_ext.objective.policy import register_loss
from grpo_ext.rewards import register


@register("sparse_digits")
def sparse_digits(completions):
    """Digits among the characters."""
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) for text in completions]


@register_loss("tempered", aggregation="token_mean")
def tempered(x):
    """A term of one's own, with a constant of the arguments."""
    return -(x.ratio ** x.options.sapo_temperature_pos) * x.advantages
'''


@pytest.mark.parametrize("loss_type", LOSSES)
def test_a_changed_term_changes_the_gradient_that_trains(
    tiny_folder, tmp_path, monkeypatch, loss_type
):
    settings = {"loss_type": loss_type, "beta": 0.0, "mask_truncated_completions": True}
    settings |= {"epsilon_high": 5.0} if loss_type == "cispo" else {}
    plain = train(tiny_folder, tmp_path, 2, 2, **settings)[1][0][0]
    loss = policy.get_loss(loss_type)
    monkeypatch.setitem(policy._LOSSES, loss_type, replace(loss, term=lambda x: 1.5 * loss.term(x)))
    changed = train(tiny_folder, tmp_path, 2, 2, **settings)[1][0][0]
    assert apart(changed, {name: 1.5 * g for name, g in plain.items()}) < 1e-5


@pytest.mark.slow
def test_a_loss_of_a_plugin_file_trains_evaluates_and_resumes(tiny_folder, tmp_path):
    settings = plugin_settings(
        tiny_folder,
        tmp_path / "run",
        PLUGIN,
        "sparse_digits",
        loss_type="tempered",
        sapo_temperature_pos=2.0,
        max_steps=4,
        save_strategy="steps",
        save_steps=2,
        save_total_limit=9,
    )
    weights = []
    losses = []
    try:
        with registry_as_before():
            for resume in (None, str(tmp_path / "run" / "checkpoint-2")):
                out = tmp_path / ("run" if resume is None else "again")
                read = load_recipe(RECIPE, {**settings, "output_dir": str(out)})
                trainer = make_trainer(read)
                assert trainer.parts.update.settings.options.sapo_temperature_pos == 2.0
                trainer.train(resume_from_checkpoint=resume)
                weights.append(
                    {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
                )
                losses.append(metric_values(trainer, "loss"))
            trainer.eval_decoding = None  # TRL's evaluation, whose loss is ours
            rows = trainer.train_dataset.select(range(4))
            assert torch.isfinite(torch.tensor(trainer.evaluate(rows)["eval_loss"]))
    finally:
        policy._LOSSES.pop("tempered", None)
    assert len(losses[0]) == 4 and losses[0] == losses[1]
    assert all(torch.equal(weights[0][name], p) for name, p in weights[1].items())
    with pytest.raises(ValueError, match=r"loss_type must be one of grpo.*got 'temperd'"):
        load_recipe(
            RECIPE,
            {
                **settings,
                "loss_type": "temperd",
                "reward_plugins": None,
                "reward_funcs": ["format"],
            },
        )
