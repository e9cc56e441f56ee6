"""One optimizer step has one gradient, however it is cut, and it is that of the formula."""

from __future__ import annotations

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOTrainer

from benchmarks import logprobs
from grpo_ext import GRPOExtTrainer
from grpo_ext.objective.policy import clipped, register_loss
from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.recipe.objective_options import TRL_LOSSES
from grpo_ext.samplers.base import Sampler, SamplerAbilities
from grpo_ext.seams.generate import watching
from grpo_ext.step import feed
from grpo_ext.step.records import Generation
from tests.support.fixed_completions import (
    CUTS,
    GROUP,
    LOSSES,
    Exact,
    Plain,
    apart,
    keep_order,
    train,
)
from tests.support.logs import entries_with
from tests.support.oracle import oracle_gradients


def most_slow(names):
    return [
        name if name in ("grpo", "dapo") else pytest.param(name, marks=pytest.mark.slow)
        for name in names
    ]


def capped(loss_type):
    """For cispo the cap that it needs, as TRL and ScaleRL set it."""
    return {"epsilon_high": 5.0} if loss_type == "cispo" else {}


@pytest.fixture(autouse=True)
def rows_in_order(monkeypatch):
    import trl.trainer.grpo_trainer as module

    monkeypatch.setattr(
        module, "shuffle_sequence_dict", module.shuffle_sequence_dict
    )  # put back afterwards
    monkeypatch.setattr(feed, "random_order", feed.random_order)
    keep_order()


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss_type", most_slow(LOSSES))
def test_the_gradient_is_that_of_the_formula_and_of_every_cut(
    tiny_folder, tmp_path, loss_type, beta
):
    high = capped(loss_type)
    settings = {"loss_type": loss_type, "beta": beta, "mask_truncated_completions": True, **high}
    trainer, [(first, weights)] = train(tiny_folder, tmp_path, 1, 1, **settings)
    lengths = torch.cat([part.completion_mask.sum(1) for part in trainer.used])
    counted = torch.cat([part.counted for part in trainer.used])
    assert (lengths[counted.bool()] == 0).any() and (
        counted == 0
    ).any()  # an empty one, and a truncated one
    options = {"high": high.get("epsilon_high", 0.2), "beta": beta, "loss_type": loss_type}
    wanted = oracle_gradients(trainer.used, tiny_folder, weights, trainer.ref_model, **options)
    assert apart(first, wanted) < 1e-5
    for ga, spg in () if beta else ((2, 1), (4, 4), (8, 16)):  # with KL: below
        _, [(grads, _)] = train(tiny_folder, tmp_path, ga, spg, **settings)
        assert apart(grads, first) < 1e-5, (ga, spg)


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES)
def test_every_cut(tiny_folder, tmp_path, loss_type):
    settings = {
        "loss_type": loss_type,
        "beta": 0.1,
        "mask_truncated_completions": True,
        **capped(loss_type),
    }
    _, [(first, _)] = train(tiny_folder, tmp_path, 1, 1, **settings)
    for ga, spg in CUTS:
        _, [(grads, _)] = train(tiny_folder, tmp_path, ga, spg, **settings)
        assert apart(grads, first) < 1e-5, (ga, spg)


@pytest.mark.parametrize("loss_type", most_slow(LOSSES))
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_a_second_step_on_the_same_generation(tiny_folder, tmp_path, loss_type, level):
    """The policy has moved: ratios are not 1, and some are clipped."""
    settings = {
        "loss_type": loss_type,
        "importance_sampling_level": level,
        "learning_rate": 3.0,
        "epsilon": 0.02,
        "beta": 0.1,
        **capped(loss_type),
    }
    trainer, steps = train(tiny_folder, tmp_path, 2, 4, steps=2, **settings)
    used, (grads, weights) = trainer.used[2:], steps[1]
    ratios = torch.cat(
        [(part.old_per_token_logps * part.completion_mask).flatten() for part in used]
    )
    assert ratios.abs().sum() > 0
    wanted = oracle_gradients(
        used,
        tiny_folder,
        weights,
        trainer.ref_model,
        steps[0][1],
        loss_type,
        level=level,
        beta=0.1,
        low=0.02,
        high=capped(loss_type).get("epsilon_high", 0.02),
    )
    assert apart(grads, wanted) < 2e-5


def test_trl_differs_where_the_step_is_cut(tiny_folder, tmp_path):
    """The control: the same settings without our normalization are not invariant."""
    grads = []
    for ga in (1, 8):
        settings = {"loss_type": "bnpo", "beta": 0.0, "loss_normalization": "micro_batch"}
        grads.append(train(tiny_folder, tmp_path, ga, ga, trainer_class=Whole, **settings)[1][0][0])
    assert apart(grads[1], grads[0]) > 0.01


class Whole(Exact):
    """Completions that TRL accepts, too: none empty."""

    def _generate_single_turn(self, prompt_ids, *args, **kwargs):
        ids, logprobs = super()._generate_single_turn(prompt_ids, *args, **kwargs)
        return [x or [self._tokenizer.eos_token_id] for x in ids], logprobs


@pytest.mark.parametrize("loss_type", most_slow(TRL_LOSSES))
def test_micro_batch_is_trl_bit_for_bit(tiny_folder, tmp_path, loss_type):
    settings = {
        "loss_type": loss_type,
        "beta": 0.1,
        "logprob_policy": "trl",
        "loss_normalization": "micro_batch",
    }
    settings |= {"mask_truncated_completions": True, "ref_noise": 0.0, **capped(loss_type)}
    ours, theirs = (
        train(tiny_folder, tmp_path, 2, 4, steps=3, trainer_class=c, **settings)[1]
        for c in (Whole, Plain)
    )
    for (a, _), (b, _) in zip(ours, theirs, strict=True):
        assert all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("kl", "corrected"), [("k1", True), ("k2", False), ("k3", True), ("k3", False)]
)
def test_kl_estimators_and_useful_groups(tiny_folder, tmp_path, kl, corrected):
    settings = {
        "loss_type": "grpo",
        "beta": 0.1,
        "kl_estimator": kl,
        "use_bias_correction_kl": corrected,
    }
    settings |= {"advantage_normalizer": "useful"}
    trainer, [(grads, weights)] = train(
        tiny_folder, tmp_path, 2, 1, trainer_class=HalfUseful, **settings
    )
    assert [bool(x) for part in trainer.used for x in part.signal].count(False) == 8
    wanted = oracle_gradients(
        trainer.used,
        tiny_folder,
        weights,
        trainer.ref_model,
        beta=0.1,
        kl=kl,
        corrected=corrected,
        useful_only=True,
    )
    assert apart(grads, wanted) < 1e-5
    assert "kl" in trainer.state.log_history[0]


class HalfUseful(Exact):
    """Every second group gets the same reward throughout: one that has no exact mean."""

    def _calculate_rewards(self, *args):
        rewards = super()._calculate_rewards(*args)
        rewards.view(-1, GROUP)[::2] = 0.1
        return rewards


def test_equal_rewards_have_advantage_exactly_zero(tiny_folder, tmp_path):
    trainer, _ = train(
        tiny_folder, tmp_path, 1, 1, trainer_class=HalfUseful, beta=0.0, std_estimator="population"
    )
    advantages = trainer.used[0].advantages.view(-1, GROUP)
    assert torch.equal(advantages[::2], torch.zeros(2, GROUP))
    odd = advantages[1]
    assert odd.pow(2).mean().sqrt() == pytest.approx(1.0, abs=1e-3)  # the population's std is 1
    assert trainer.state.log_history[0]["frac_reward_zero_std"] == 0.5


@pytest.mark.parametrize(
    "settings", [{"entropy_coef": 0.1}, {"entropy_coef": 0.1, "top_entropy_quantile": 0.5}]
)
def test_entropy_bonus(tiny_folder, tmp_path, settings):
    grads = [
        train(tiny_folder, tmp_path, ga, ga, loss_type="grpo", beta=0.0, **settings)[1][0][0]
        for ga in (1, 4)
    ]
    without = train(tiny_folder, tmp_path, 4, 4, loss_type="grpo", beta=0.0)[1][0][0]
    assert apart(grads[1], without) > 1e-3
    if "top_entropy_quantile" not in settings:  # a quantile is that of a micro-batch
        assert apart(grads[1], grads[0]) < 1e-5


def test_a_registered_loss_is_trained_like_the_rest(tiny_folder, tmp_path):
    register_loss("unclipped", aggregation="sequence_mean")(lambda x: -x.ratio * x.advantages)
    settings = {"beta": 0.1, "mask_truncated_completions": True}
    ours = train(tiny_folder, tmp_path, 4, 2, loss_type="unclipped", **settings)[1][0][0]
    grpo = train(tiny_folder, tmp_path, 1, 1, loss_type="grpo", **settings)[1][0][0]
    assert apart(ours, grpo) < 1e-5  # the first step clips nothing
    with pytest.raises(ValueError, match="already registered"):
        register_loss("grpo", aggregation="token_mean")(clipped)


def test_a_policy_changed_in_memory_is_its_own_reference(tiny_folder, tmp_path, monkeypatch):
    load = AutoModelForCausalLM.from_pretrained

    def changed(folder, **kwargs):
        model = load(folder, **kwargs)
        for p in model.parameters():
            p.data.add_(0.01)
        return model

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", changed)
    trainer, _ = train(tiny_folder, tmp_path, 1, 1, beta=0.1, ref_noise=0.0, learning_rate=0.0)
    assert trainer.state.log_history[0]["kl"] == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize(
    "settings, words",
    [
        (
            {"loss_normalization": "micro_batch", "kl_estimator": "k1"},
            "`kl_estimator: k1` needs `loss_normalization: step`",
        ),
        (
            {"advantage_normalizer": "useful", "multi_objective_aggregation": "normalize_then_sum"},
            "sum_then_normalize",
        ),
        (
            {"loss_type": "drgrpo"},
            "loss_type must be one of grpo.*got 'drgrpo'. Did you mean 'dr_grpo'",
        ),
        (
            {"temperature": 0.7, "generation_kwargs": {"temperature": 0.5}},
            "temperature is 0.7, but generation_kwargs",
        ),
        ({"repetition_penalty": 1.1}, "rescales the scores"),
    ],
)
def test_refusals_say_what_to_change(tiny_folder, tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        train(tiny_folder, tmp_path, 1, 1, **settings)


@pytest.mark.parametrize("settings", [logprobs.GRID[i] for i in (25, 50, 95)])
def test_scores_with_what_the_sampler_drew_with(tiny_folder, tmp_path, settings):
    trainer = logprobs.make_trainer(tiny_folder, str(tmp_path), **settings)
    found = logprobs.differences(trainer, 1500)
    assert found["ours"].abs().max() <= 1e-4
    assert found["TRL"].abs().max() > 0.05
    assert found["ours"].exp().mean() == pytest.approx(1.0, abs=1e-6)


def test_options_that_only_take_tokens_away_are_exact_too(tiny_folder, tmp_path):
    given = {"typical_p": 0.6, "min_new_tokens": 5, "no_repeat_ngram_size": 2}
    trainer = logprobs.make_trainer(tiny_folder, str(tmp_path), generation_kwargs=given)
    assert logprobs.differences(trainer, 1500)["ours"].abs().max() <= 1e-4


def test_the_kept_set_outlives_the_policy_that_sampled(tiny_folder, tmp_path):
    """Old, new and reference log-probs are over one set, although the policy has moved far."""
    trainer = logprobs.make_trainer(
        tiny_folder, str(tmp_path), length=12, top_k=3, top_p=0.9, temperature=0.8
    )
    inputs = [trainer.train_dataset[i // 8] for i in range(32)]
    batch = trainer._generate_and_score_completions(list(map(dict, inputs)))
    g = torch.Generator().manual_seed(1)
    for p in trainer.model.parameters():
        p.data.add_(0.3 * torch.randn(p.shape, generator=g))
    scored = logprobs.score(trainer, batch)
    for i in range(4):
        prompt = batch.prompt_ids[i][batch.prompt_mask[i].bool()]
        completion = batch.completion_ids[i][batch.completion_mask[i].bool()]
        with torch.no_grad():
            logits = (
                trainer.model(input_ids=torch.cat([prompt, completion]).unsqueeze(0)).logits[0]
                / 0.8
            )
        for t, token in enumerate(completion):
            kept = batch.kept[i].mask()[t]
            assert 1 <= kept.sum() <= 3 and kept[token]
            wanted = (
                logits[len(prompt) + t - 1].masked_fill(~kept, -torch.inf).log_softmax(-1)[token]
            )
            assert scored[i, t].item() == pytest.approx(wanted.item(), abs=1e-4)


def test_the_temperature_that_sampled_is_the_one_that_scores(tiny_folder, tmp_path):
    trainer = logprobs.make_trainer(
        tiny_folder, str(tmp_path), generation_kwargs={"temperature": 0.5}
    )
    assert logprobs.differences(trainer, 500)["ours"].abs().max() <= 1e-4  # TRL scores these at 1.0
    trainer = logprobs.make_trainer(
        tiny_folder, str(tmp_path), temperature=0.5, logprob_policy="model"
    )
    assert logprobs.differences(trainer, 500)["ours"].abs().max() > 0.05


def test_training_with_truncation_logs_no_difference(tiny_folder, tmp_path):
    settings = {"beta": 0.1, "top_k": 5, "top_p": 0.9, "num_iterations": 2, "learning_rate": 1.0}
    trainer, steps = train(
        tiny_folder, tmp_path, 2, 2, trainer_class=Sampled, steps=4, logging_steps=1, **settings
    )
    logged = trainer.state.log_history[0]
    assert logged["sampling/logp_difference/max"] < 1e-4
    assert logged["sampling/ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert all(g.isfinite().all() for grads, _ in steps for g in grads.values())


class Sampled(GRPOExtTrainer):
    used: list


class SeparateSampler(GRPOTrainer):
    """Samples as vLLM is used: another engine, which returns the log-probs that it drew with."""

    def _generate_single_turn(self, *args, **kwargs):
        recorder = Recorder(SamplingParams(top_k=5))
        self.use_vllm = False
        with watching(self.model, recorder):
            ids, _ = GRPOTrainer._generate_single_turn(self, *args, **kwargs)
        self.use_vllm = True
        return ids, [row.tolist() for row in recorder.rows(ids)[1]]


class WatchedSampler(Sampler):
    """The same as a sampler of ours.

    Another engine, which tells its log-probs and not what it kept.
    """

    name = "separate"
    abilities = SamplerAbilities(separate_engine=True)

    def sample(self, request):
        recorder = Recorder(SamplingParams(top_k=5))
        with watching(self.trainer.model, recorder):
            ids, _ = GRPOTrainer._generate_single_turn(
                self.trainer, request.prompt_ids, None, {}, request.num_generations
            )
        return Generation(request.prompt_ids, ids, request.policy_step, recorder.rows(ids)[1])


class Separate(GRPOExtTrainer):
    def __init__(self, *args, **kwargs):
        sampler = WatchedSampler()
        super().__init__(*args, sampler=sampler, **kwargs)
        sampler.trainer = self


def digits(completions, **kwargs):
    return [sum(ch.isdigit() for ch in text) / (1 + len(text)) for text in completions]


@pytest.mark.slow
def test_truncation_silences_trl_and_not_us(tiny_folder, tmp_path):
    """A bandit: more digits, more reward.

    Top_k 5 of about 60 tokens, TRL's default sequence_mask.
    """
    learned = {}
    for trainer_class, steps in ((SeparateSampler, 8), (Separate, 30)):
        args = logprobs.Config(
            output_dir=str(tmp_path),
            max_steps=steps,
            per_device_train_batch_size=32,
            num_generations=32,
            max_completion_length=24,
            top_k=5,
            learning_rate=3e-3,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            loss_type="grpo",
        )
        trainer = trainer_class(
            model=AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32),
            reward_funcs=[digits],
            args=args,
            train_dataset=Dataset.from_list([{"prompt": "Use 1, 2, 3 to make 4."}] * 4),
            processing_class=AutoTokenizer.from_pretrained(tiny_folder, padding_side="left"),
        )
        trainer.use_vllm = trainer_class is SeparateSampler
        trainer.train()
        history = entries_with(trainer, "reward")
        rewards = [entry["reward"] for entry in history]
        norms = [entry["grad_norm"] for entry in history]
        learned[trainer_class] = (sum(rewards[-5:]) / 5 - rewards[0], max(norms))
    assert learned[SeparateSampler][1] < 1e-4  # plain TRL: no gradient at all
    assert learned[Separate][0] > 0.2
