"""How much of the signal each importance sampling mode keeps, where two engines differ by rounding
noise.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from trl import GRPOConfig

from grpo_ext import GRPOExtConfig, RecipeError
from grpo_ext.objective.presets import PRESETS
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.step.records import Generation
from tests.support.tiny_run import tiny_trainer

ROWS = 64


class NoisySampler(Sampler):
    """Another engine: its log-probs are the model's but for noise, a ratio of mean 1 a token."""

    name = "noisy"
    abilities = SamplerAbilities(separate_engine=True)

    def __init__(self, noise, length):
        super().__init__()
        self.noise, self.length = noise, length

    def sample(self, request):
        g = torch.Generator().manual_seed(2)
        size = len(self.trainer.processing_class)
        ids = torch.randint(5, size - 1, (len(request.prompt_ids), self.length), generator=g)
        whole = torch.cat([torch.tensor(request.prompt_ids), ids], dim=1)
        with torch.no_grad():
            logits = self.trainer.model(input_ids=whole).logits[:, -self.length - 1 : -1]
        logps = logits.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
        # log ratio (model over sampler) of mean - noise^2 / 2 and deviation noise, so that the mean
        # ratio is 1
        log_ratio = self.noise * torch.randn(ids.shape, generator=g) - self.noise**2 / 2
        logps = list((logps - log_ratio).unbind())
        return Generation(request.prompt_ids, ids.tolist(), request.policy_step, logps)


def weights(folder, out, noise, length, **settings):
    """The weight that each token's loss is multiplied by, (B, T)."""
    trainer = make(folder, out, noise, length, **settings)
    batch = trainer.parts.rollout(list(map(dict, trainer.train_dataset)))
    return batch.importance_sampling_ratio.expand(ROWS, length)


def make(folder, out, noise, length, sampler_class=NoisySampler, **settings):
    args = GRPOExtConfig(
        output_dir=str(out),
        per_device_train_batch_size=ROWS,
        num_generations=8,
        report_to="none",
        use_cpu=True,
        bf16=False,
        **{"max_completion_length": length, **settings},
    )
    sampler = sampler_class(noise, length)
    trainer = tiny_trainer(
        folder,
        [lambda completions, **kwargs: [float(len(c) % 3) for c in completions]],
        args,
        Dataset.from_list([{"prompt": "Use 1, 2, 3 to make 4."}] * ROWS),
        sampler=sampler,
    )
    trainer.model.train()
    sampler.trainer = trainer
    return trainer


# deviation of a token's log ratio, tokens a completion: float32, then bfloat16 at two lengths
NOISE = [(0.001, 128), (0.05, 128), (0.05, 768)]


@pytest.mark.parametrize("noise, length", NOISE)
def test_the_default_keeps_every_token_at_about_its_weight(tiny_folder, tmp_path, noise, length):
    kept = weights(tiny_folder, tmp_path, noise, length)
    assert (kept > 0).float().mean() == 1.0
    assert (kept > 0.5).float().mean() >= 0.999
    assert kept.mean() == pytest.approx(1.0, abs=0.005)


def test_a_product_over_the_sequence_fades_with_its_length(tiny_folder, tmp_path):
    """TRL's default: at 768 tokens the typical completion counts a third, and half of the signal
    comes from a few.
    """
    shares = []
    middles = []
    for noise, length in NOISE:
        kept = weights(
            tiny_folder, tmp_path, noise, length, vllm_importance_sampling_mode="sequence_mask"
        )
        shares.append(float(((kept > 0.5) & (kept < 2)).float().mean()))
        middles.append(float(kept[:, 0].median()))
    print(
        "sequence_mask: tokens within a factor of 2 of their weight",
        shares,
        "median weight",
        middles,
    )
    assert shares[0] == 1.0 and shares[1] > 0.6
    assert shares[2] < 0.5
    assert middles[2] < 0.6


@pytest.mark.parametrize(
    "mode", ["token_truncate", "token_mask", "sequence_truncate", "sequence_mask"]
)
def test_a_mode_that_is_named_is_kept(tiny_folder, tmp_path, mode):
    """A difference of 1.2 a token, above the cap of 3: what each mode is meant to do with it."""
    kept = weights(tiny_folder, tmp_path, 1.2, 8, vllm_importance_sampling_mode=mode, seed=1)
    assert kept.max() <= 3.0
    assert bool((kept == 0).any()) == mode.endswith("mask")
    assert bool((kept == kept[:, :1]).all()) == mode.startswith("sequence")


@pytest.mark.parametrize("limit, cut_off", [(24, 0.0), (12, 1.0)])
def test_a_completion_that_ended_with_a_stop_string_is_not_called_cut_off(
    tiny_folder, tmp_path, limit, cut_off
):
    """Twelve tokens without an end token: ended where more were allowed, cut off where not."""
    stops = {"generation_kwargs": {"stop_strings": ["."]}}
    trainer = make(
        tiny_folder,
        tmp_path,
        0.001,
        12,
        max_completion_length=limit,
        mask_truncated_completions=True,
        **stops,
    )
    batch = trainer.parts.rollout(list(map(dict, trainer.train_dataset)))
    logged = trainer._metrics["train"]
    assert logged["completions/clipped_ratio"] == [cut_off]
    assert logged["completions/mean_terminated_length"] == [12 * (1 - cut_off)]
    assert batch.counted.mean() == 1 - cut_off


def test_scoring_another_policy_is_said_once_and_measured(tiny_folder, tmp_path, caplog):
    trainer = make(
        tiny_folder,
        tmp_path,
        0.001,
        8,
        logprob_policy="model",
        temperature=0.5,
        top_k=9,
        max_steps=1,
    )
    [said] = [
        record.message for record in caplog.records if "logprob_policy: model" in record.message
    ]
    assert "temperature 0.5, top_k 9" in said and "logprob_policy: sampling" in said
    caplog.clear()
    make(
        tiny_folder, tmp_path, 0.001, 8, logprob_policy="model"
    )  # sampled from the bare model: nothing to say
    assert not [record for record in caplog.records if "logprob_policy" in record.message]
    trainer.train()
    assert (
        trainer.state.log_history[0]["sampling/logp_difference/max"] < 0.1
    )  # the stand-in's noise alone


def test_a_ratio_to_the_sampler_still_shows_how_far_the_sampler_is(tiny_folder, tmp_path):
    """With `behaviour_policy: sampler` the old log-probs are the sampler's.

    They say nothing about its errors.
    """
    trainer = make(tiny_folder, tmp_path, 0.05, 64, max_steps=1, behaviour_policy="sampler")
    trainer.train()
    logged = trainer.state.log_history[0]
    assert 0.03 < logged["sampling/logp_difference/mean"] < 0.05
    assert logged["sampling/ratio/max"] > 1.1


def test_vespo_needs_the_ratios_of_tokens_of_a_sampler_that_is_given(tiny_folder, tmp_path):
    settings = {"loss_type": "vespo", "vllm_importance_sampling_mode": "geometric_mask"}
    with pytest.raises(RecipeError, match="vespo` multiplies the ratios of a sequence"):
        make(tiny_folder, tmp_path, 0.05, 8, **settings)


def test_rewards_reach_the_advantage_as_they_were_returned(tiny_folder, tmp_path):
    """1e8 and 1e8 + 1 are one number in float32; .3 and .1 + .2 differ only in the last place."""
    trainer = make(tiny_folder, tmp_path, 0.001, 8)

    def large(completions, **kwargs):
        return [1e8 + i % 2 for i in range(len(completions))]

    def equal(completions, **kwargs):
        return [[0.3, 0.1 + 0.2][i % 2] for i in range(len(completions))]

    for reward, size in ((large, 0.93), (equal, 0.0)):
        trainer.reward_funcs[0].reward = reward
        batch = trainer.parts.rollout(list(map(dict, trainer.train_dataset)))
        assert batch.advantages.abs().tolist() == pytest.approx([size] * ROWS, abs=0.01)
        assert batch.advantages.dtype == torch.float32
        assert batch.signal.bool().all() == (size > 0)


def test_the_default_is_ours_and_a_plain_config_keeps_trls(tmp_path):
    ours, theirs = (
        cls(str(tmp_path), use_cpu=True, bf16=False) for cls in (GRPOExtConfig, GRPOConfig)
    )
    assert ours.vllm_importance_sampling_mode == "token_truncate"
    assert theirs.vllm_importance_sampling_mode == "sequence_mask"


class SilentSampler(NoisySampler):
    """Gives no log-probs."""

    def sample(self, request):
        return replace(super().sample(request), sampling_logps=None)


def test_another_engine_without_log_probs_is_told(tiny_folder, tmp_path):
    trainer = make(tiny_folder, tmp_path, 0.05, 8, sampler_class=SilentSampler)
    with pytest.raises(
        ValueError,
        match=r"\(noisy\) returned no log-probs.*vllm_importance_sampling_correction: false",
    ):
        trainer.parts.rollout(list(map(dict, trainer.train_dataset)))


def test_a_sampler_that_would_not_be_asked_is_refused(tiny_folder, tmp_path):
    with pytest.raises(ValueError, match="would ignore the sampler argument"):
        make(
            tiny_folder,
            tmp_path,
            0.05,
            8,
            **{key: value for key, (value, _) in PRESETS["trl"].items()},
        )
