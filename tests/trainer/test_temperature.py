"""Sampling and scoring follow a temperature that moves, together, on real generations."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.watch import Recorder
from grpo_ext.samplers.base import Sampler
from grpo_ext.seams.generate import watching
from grpo_ext.seams.trl import complete, sample_at
from grpo_ext.step.records import Generation

LINEAR = {"temperature": 1.4, "temperature_schedule": "linear", "temperature_end": 0.5}


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) for text in completions]


class Seen(GRPOExtTrainer):
    """Keeps, for each loss, the step, the temperature and how far scores are from what the sampler drew with."""

    def __init__(self, *args, **kwargs):
        self.seen = []
        super().__init__(*args, **kwargs)

    def _compute_loss(self, model, inputs):
        with torch.no_grad():
            scored = self.parts.scorer.score(self.model, inputs.rows).logps
        mask = inputs.rows.completion_mask.bool()
        apart = (scored - inputs.rows.sampling_per_token_logps)[mask].abs().max()
        self.seen.append((self.state.global_step, float(inputs.rows.temperature[0]), float(apart)))
        return super()._compute_loss(model, inputs)


def make(folder, out, trainer_class=Seen, sampler=None, **settings):
    args = GRPOExtConfig(
        sampler_check_share=1.0,
        **{
            "output_dir": str(out),
            "max_steps": 8,
            "per_device_train_batch_size": 4,
            "num_generations": 4,
            "max_completion_length": 12,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "use_cpu": True,
            "bf16": False,
            "disable_tqdm": True,
            "loss_type": "grpo",
            **settings,
        },
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.model.norm.weight.data.mul_(6)  # an untrained model is too even for temperature to matter
    return trainer_class(
        model=model,
        reward_funcs=[digits],
        args=args,
        train_dataset=Dataset.from_list([{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 65)]),
        processing_class=AutoTokenizer.from_pretrained(folder, padding_side="left"),
        sampler=sampler,
    )


@pytest.mark.parametrize(
    "settings",
    [
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "beta": 0.1},
        {"gradient_accumulation_steps": 2, "num_iterations": 2, "top_k": 8, "top_p": 0.9, "beta": 0.1},
        {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "logprob_policy": "trl"},
    ],
    ids=["two_steps_a_generation", "truncated_two_iterations", "trl"],
)
def test_completions_are_scored_at_the_temperature_they_were_sampled_with(tiny_folder, tmp_path, settings):
    trainer = make(tiny_folder, tmp_path, learning_rate=0.0, **LINEAR, **settings)
    trainer.parts.sampler.watched = True  # `logprob_policy: trl` does not watch by itself
    trainer.train()
    wanted = [1.4 - 0.9 * step / 7 for step in (0, 0, 2, 2, 4, 4, 6, 6)]  # each generation serves two steps
    for step, temperature, apart in trainer.seen:
        assert temperature == pytest.approx(wanted[step])
        assert apart < 1e-4
    assert len(trainer.seen) == 16
    logged = [entry["sampling/temperature"] for entry in trainer.state.log_history if "sampling/temperature" in entry]
    assert logged == pytest.approx(wanted[::2])


def test_at_the_temperature_of_now_they_would_be_scored_wrong(tiny_folder, tmp_path):
    """The control: a later step's temperature is far off."""
    trainer = make(tiny_folder, tmp_path, learning_rate=0.0, **LINEAR, gradient_accumulation_steps=2, steps_per_generation=4)
    schedule, score = trainer.parts.generations.schedule, trainer.parts.scorer.score

    def score_as_of_now(model, table, *args, **kwargs):
        now = torch.full_like(table.temperature, schedule.at(trainer.state.global_step, 8))
        return score(model, replace(table, temperature=now), *args, **kwargs)

    trainer.parts.scorer.score = score_as_of_now
    trainer.train()
    assert max(apart for step, _, apart in trainer.seen if step % 2 == 0) < 1e-4
    assert max(apart for step, _, apart in trainer.seen if step % 2 == 1) > 0.1


def test_a_resumed_run_finds_its_temperature_again(tiny_folder, tmp_path):
    settings = {**LINEAR, "save_strategy": "steps", "save_steps": 3, "learning_rate": 1e-3}
    whole = make(tiny_folder, tmp_path, **settings)
    whole.train()
    resumed = make(tiny_folder, tmp_path, **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert [seen for seen in whole.seen if seen[0] >= 3] == resumed.seen
    weights = dict(resumed.model.named_parameters())
    assert all(torch.equal(p, weights[name]) for name, p in whole.model.named_parameters())


class OtherEngine(Sampler):
    """Draws as vLLM is used: another engine, which is told its temperature at each call."""

    name, separate = "other", True

    def sample(self, request):
        sample_at(self.trainer, request.temperature)
        recorder = Recorder(SamplingParams(request.temperature))
        with watching(self.trainer.model, recorder):
            ids = complete(self.trainer, request.prompt_ids, request.num_generations)
        return Generation(request.prompt_ids, ids, request.policy_step, request.temperature, recorder.rows(ids)[1])


def test_another_engine_follows_too(tiny_folder, tmp_path):
    sampler = OtherEngine()
    trainer = make(tiny_folder, tmp_path, GRPOExtTrainer, learning_rate=0.0, sampler=sampler, **LINEAR)
    sampler.trainer = trainer
    trainer.train()
    for step, logged in enumerate(trainer.state.log_history[:-1]):
        assert logged["sampling/temperature"] == pytest.approx(1.4 - 0.9 * step / 7)
        assert logged["sampling/logp_difference/max"] < 1e-4


def test_a_schedule_that_cannot_be_followed_is_refused(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="mix completions of two temperatures"):
        make(tiny_folder, tmp_path, **LINEAR, gradient_accumulation_steps=2, steps_per_generation=3)


def test_log_probs_are_noted_of_a_share_of_the_rows():
    g = torch.Generator().manual_seed(0)
    scores, tokens = torch.randn(3, 6, 11, generator=g), torch.randint(11, (6, 3), generator=g)
    recorder = Recorder(SamplingParams(), every=4)
    for step in range(3):
        recorder(tokens[:, max(step - 1, 0)].unsqueeze(1), scores[step])
    _, rows = recorder.rows(tokens.tolist())
    for row, values in enumerate(rows):
        if row % 4:
            assert values.isnan().all()
        else:
            wanted = [scores[step, row].log_softmax(-1)[tokens[row, step]] for step in range(3)]
            assert torch.allclose(values, torch.stack(wanted))
