"""Groups carried over are scored once, under the policy that sampled them; others by the step alone."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from grpo_ext.trainer.refill import FilteredGroups
from grpo_ext.trainer.scored_later import OLD, unscored
from scripted_groups import GROUP, train
from trl import GRPOTrainer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer

pytestmark = pytest.mark.slow


def test_only_what_is_carried_is_scored_beforehand(tiny_folder, tmp_path, monkeypatch):
    plain, scored = GRPOTrainer._get_per_token_logps_and_entropies, []

    def counted(self, model, input_ids, *args, **kwargs):
        if not torch.is_grad_enabled():
            scored.append(len(input_ids))
        return plain(self, model, input_ids, *args, **kwargs)

    monkeypatch.setattr(GRPOTrainer, "_get_per_token_logps_and_entropies", counted)
    trainer, _ = train(tiny_folder, tmp_path, ga=2, steps=3, group_filter="refill")
    carried = [row["groups/carried"] for row in trainer.state.log_history if "groups/carried" in row]
    assert sum(scored) == sum(carried) * GROUP > 0
    assert sum(scored) < sum(row.get("groups/generated", 0) for row in trainer.state.log_history) * GROUP / 4


def even(completion_ids, **kwargs):
    return [float(sum(ids) % 2) for ids in completion_ids]


@pytest.mark.parametrize("settings", [{}, {"top_k": 20, "min_p": 0.001}, {"gradient_checkpointing": True}])
def test_carried_groups_have_the_log_probs_of_the_policy_that_sampled_them(tiny_folder, tmp_path, settings):
    args = GRPOExtConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        num_generations=4,
        max_completion_length=6,
        max_steps=4,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        beta=0.04,
        group_filter="refill",
        sampler_check_share=1.0,
        logging_steps=1,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        **{"gradient_checkpointing": False, **settings},
    )
    rows = Dataset.from_list([{"prompt": f"Use {n}, 3 to make {n + 3}."} for n in range(1, 40)])
    trainer = GRPOExtTrainer(model=str(tiny_folder), reward_funcs=[even], args=args, train_dataset=rows)
    trainer.train()
    logs = [row for row in trainer.state.log_history if "groups/reused" in row]
    assert sum(row["groups/reused"] for row in logs) > 0
    assert max(row["sampling/logp_difference/max"] for row in logs) < 2e-5
    ratios = [row["clip_ratio/region_mean"] for row in logs]
    assert max(ratios) > 0, "the policy moved, so that ratios of what it carried are clipped"


def test_generations_of_one_step_with_and_without_groups_carried_over(tiny_folder, tmp_path, monkeypatch):
    """A step of two generations has the gradient that it has where TRL scores every completion beforehand."""
    settings = {"ga": 4, "steps": 3, "steps_per_generation": 2, "group_filter": "refill"}
    trainer, steps = train(tiny_folder, tmp_path, **settings)
    reused = [row["groups/reused"] for row in trainer.state.log_history if "groups/reused" in row]
    assert sum(reused) > 0
    monkeypatch.setattr(FilteredGroups, "_may_score_later", False)
    _, before = train(tiny_folder, tmp_path / "before", **settings)
    for (ours, _), (theirs, _) in zip(steps, before, strict=True):
        largest = max(g.abs().max() for g in theirs.values())
        assert all((ours[name] - g).abs().max() <= 1e-5 * largest for name, g in theirs.items())


def test_a_generation_that_trl_has_scored_stays_as_it_is():
    table = {"completion_ids": torch.zeros(3, 4, dtype=torch.long)}
    assert unscored({**table, OLD: torch.ones(3, 4)})[OLD].eq(1).all()
    assert unscored(table)[OLD].isnan().all()
