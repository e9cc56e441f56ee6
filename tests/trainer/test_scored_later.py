"""Groups carried over are scored once, under the policy that sampled them.

Others by the step alone.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from trl import GRPOTrainer

from grpo_ext import GRPOExtTrainer
from grpo_ext.objective.recorder import Recorder
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams.generate import watching
from grpo_ext.step.records import Generation
from grpo_ext.trainer.policy import OldAndReference
from tests.support.logs import entries_with, metric_values
from tests.support.scripted_groups import GROUP, train
from tests.support.tiny_run import tiny_arguments

pytestmark = pytest.mark.slow


def test_only_what_is_carried_is_scored_beforehand(tiny_folder, tmp_path, monkeypatch):
    plain = Scorer.score
    scored = []

    def counted(self, model, table, *args, **kwargs):
        if not torch.is_grad_enabled():
            scored.append(len(table))
        return plain(self, model, table, *args, **kwargs)

    monkeypatch.setattr(Scorer, "score", counted)
    trainer, _ = train(tiny_folder, tmp_path, ga=2, steps=3, group_filter="refill")
    carried = metric_values(trainer, "groups/carried")
    assert sum(scored) == sum(carried) * GROUP > 0
    assert (
        sum(scored)
        < sum(row.get("groups/generated", 0) for row in trainer.state.log_history) * GROUP / 4
    )


def even(prompts, completion_ids, **kwargs):
    """Nothing to learn from every third prompt, so that others are sampled in its place."""
    return [
        float(sum(ids) % 2) * (len(prompt) % 3 > 0)
        for prompt, ids in zip(prompts, completion_ids, strict=True)
    ]


class TellsNothing(Sampler):
    """transformers' sampling on the policy itself; which tokens truncation kept is unknown."""

    name = "tells nothing"
    abilities = SamplerAbilities()

    def sample(self, request):
        recorder = Recorder(self.trainer.parts.scorer.params)
        with watching(self.trainer.model, recorder):
            ids, _ = GRPOTrainer._generate_single_turn(
                self.trainer, request.prompt_ids, None, {}, request.num_generations
            )
        return Generation(request.prompt_ids, ids, request.policy_step, recorder.rows(ids)[1])


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    "settings", [{}, {"top_k": 20, "min_p": 0.001}, {"gradient_checkpointing": True}]
)
def test_carried_groups_have_the_log_probs_of_the_policy_that_sampled_them(
    tiny_folder, tmp_path, settings, told
):
    settings = settings if told else {"top_k": 20, "beta": 0.0, **settings}
    args = tiny_arguments(
        tmp_path,
        gradient_accumulation_steps=2,
        max_completion_length=6,
        max_steps=4,
        learning_rate=0.02,
        lr_scheduler_type="constant",
        group_filter="refill",
        sampler_check_share=1.0,
        **{"beta": 0.04, "gradient_checkpointing": False, **settings},
    )
    rows = Dataset.from_list(
        [{"prompt": f"Use {n}, 3 to make {n + 3}" + "." * (1 + n % 3)} for n in range(10, 49)]
    )
    sampler = None if told else TellsNothing()
    trainer = GRPOExtTrainer(
        model=str(tiny_folder), reward_funcs=[even], args=args, train_dataset=rows, sampler=sampler
    )
    if sampler is not None:
        sampler.trainer = trainer
    feed = trainer.parts.feed
    used = []
    cut, feed.cut = feed.cut, lambda slices: (used.extend(slices), cut(slices))[1]
    trainer.train()
    carried = [part for part in used if part.old_per_token_logps is not None]
    truncated = trainer.parts.scorer.params.truncated
    assert carried and all((part.kept is not None) == truncated for part in carried)
    logs = entries_with(trainer, "groups/reused")
    assert sum(row["groups/reused"] for row in logs) > 0
    assert max(row["sampling/logp_difference/max"] for row in logs) < 2e-5
    ratios = [row["clip_ratio/region_mean"] for row in logs]
    assert max(ratios) > 0, "the policy moved, so that ratios of what it carried are clipped"


class BeforeTheStep(OldAndReference):
    """Scores every completion beforehand."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.outlives = True


def test_generations_of_one_step_with_and_without_groups_carried_over(
    tiny_folder, tmp_path, monkeypatch
):
    """A step of two generations has the gradient that it has where every completion is scored
    beforehand.
    """
    settings = {"ga": 4, "steps": 3, "steps_per_generation": 2, "group_filter": "refill"}
    trainer, steps = train(tiny_folder, tmp_path, **settings)
    reused = metric_values(trainer, "groups/reused")
    assert sum(reused) > 0
    assert any(part.old_per_token_logps is None for part in trainer.parts.feed.generation)
    monkeypatch.setattr("grpo_ext.trainer.generations.OldAndReference", BeforeTheStep)
    early, before = train(tiny_folder, tmp_path / "before", **settings)
    assert not any(part.old_per_token_logps.isnan().any() for part in early.parts.feed.generation)
    for (ours, _), (theirs, _) in zip(steps, before, strict=True):
        largest = max(g.abs().max() for g in theirs.values())
        assert all((ours[name] - g).abs().max() <= 1e-5 * largest for name, g in theirs.items())


def test_what_is_already_scored_stays_as_it_is(tiny_folder, tmp_path):
    """`scored_everywhere` gives old log-probs to those rows alone that have none."""
    trainer, _ = train(tiny_folder, tmp_path, group_filter="refill")
    table = trainer.parts.rollout.carried.table
    mark = torch.full_like(table.old_per_token_logps, torch.nan)
    mark[0] = 7.0
    found = trainer.parts.generations.old_and_reference.scored_everywhere(
        replace(table, old_per_token_logps=mark)
    )
    assert found.old_per_token_logps[0].eq(7.0).all()
    assert (
        not found.old_per_token_logps.isnan().any() and (found.old_per_token_logps[1:] <= 0).all()
    )
