"""Ways to learn nothing, from Python and from a recipe: each is refused at the start, or named in
the last lines.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    EarlyStoppingCallback,
    TrainerCallback,
)
from transformers.trainer_pt_utils import LayerWiseDummyOptimizer
from transformers.training_args import OptimizerNames

from grpo_ext import GRPOExtConfig, GRPOExtTrainer
from grpo_ext.objective.policy import StepCounts, get_loss
from grpo_ext.observe.read_run import learned_nothing, read_run
from grpo_ext.step.loss import LossSettings, step_loss
from grpo_ext.step.records import MicroBatch, Scored, Scores
from grpo_ext.train import main
from grpo_ext.trainer.learning import Learning
from grpo_ext.trainer.start_checks import (
    CannotLearn,
    check_parameters,
    idle_adapters,
    used_parameters,
)
from grpo_ext.trainer.verdict import Progress, failure_lines, why_nothing_was_learned
from grpo_ext.trainer.weight_sample import WeightSample, checksum
from tests.support.runs_without_learning import (
    EVALUATED,
    REWARDS,
    SETTINGS,
    rows,
    run_python,
    run_recipe,
)


@pytest.fixture(scope="module")
def reward():
    """The functions of `REWARDS` by name, as a script has them."""
    names: dict = {}
    exec(REWARDS, names)
    return names


AT_THE_END = {
    "the reward is always 0": (["zero"], {}, "all rewards were equal"),
    "the reward is always 1": (["one"], {}, "all rewards were equal"),
    "a constant reward, with a KL": (["one"], {"beta": 0.1}, "all rewards were equal"),
    "a constant reward, with an entropy bonus": (
        ["one"],
        {"entropy_coef": 0.01},
        "all rewards were equal",
    ),
    "a constant reward, by TRL's loss": (["one"], {"preset": "trl"}, "all rewards were equal"),
    "a learning rate of 0": (["varied"], {"learning_rate": 0.0}, "no step changed a weight"),
    "one step, in a warm-up from 0": (
        ["varied"],
        {"max_steps": 1, "warmup_steps": 1},
        "no step changed a weight",
    ),
    "gradients that are clipped away": (
        ["varied"],
        {"max_grad_norm": 1e-12},
        "of their size, less than float32 can resolve",
    ),
    "a KL that outweighs the rewards": (
        ["varied"],
        {"beta": 1e6, "max_steps": 12},
        "from the rewards: in 11 of 12 steps the KL to the reference made up more than 99%",
    ),
    "no group has two outcomes, and the filter leaves all out": (
        ["one", "varied"],
        {"group_filter": "drop", "reward_weights": [1.0, 0.5]},
        "group_filter left out every group, because the reward 'one' was the same for all comp",
    ),
    "the same, and none is found instead": (
        ["one", "varied"],
        {"group_filter": "refill", "reward_weights": [1.0, 0.5], "group_filter_max_rounds": 1},
        "group_filter left out every group, because the reward 'one' was the same for all comp",
    ),
    "the only reward that differs has no weight": (
        ["one", "varied"],
        {"reward_weights": [1.0, 0.0]},
        "the weighted sums of the rewards were equal within every group, so none of the 16 compl",
    ),
    "no reward scores anything": (["silent"], {}, "no reward scored any of the 16 completions"),
    "all completions are truncated and masked": (
        ["varied"],
        {"mask_truncated_completions": True, "max_completion_length": 1},
        "because they were truncated",
    ),
}


def python_settings(settings):
    """Return the settings of a recipe as a script writes them: a preset is a key of recipes."""
    if settings.get("preset") == "trl":
        return {"loss_normalization": "micro_batch", "logprob_policy": "trl"}
    return settings


@pytest.mark.parametrize("way", AT_THE_END)
def test_a_run_from_python_says_at_its_end_that_it_learned_nothing(
    way, tiny_folder, tmp_path, reward, capsys
):
    names, settings, words = AT_THE_END[way]
    random.seed(0)
    rewards = [reward[name] for name in names]
    trainer = run_python(tiny_folder, tmp_path / "run", rewards, **python_settings(settings))
    assert trainer.learned_nothing.startswith("Nothing was learned")
    assert words in trainer.learned_nothing
    last = capsys.readouterr().out.splitlines()[-3:]
    assert trainer.learned_nothing in last
    assert "Nothing was learned" in (tmp_path / "run" / "README.md").read_text()
    assert learned_nothing(tmp_path / "run")


@pytest.mark.parametrize("way", AT_THE_END)
def test_a_run_from_a_recipe_says_so_and_exits_with_1(way, tiny_folder, tmp_path, capsys):
    names, settings, words = AT_THE_END[way]
    assert run_recipe(tiny_folder, tmp_path / "run", names, **settings) == 1
    said = capsys.readouterr().out
    assert "Nothing was learned" in said and words in said and "Saved to" in said
    assert "The folder also has samples.jsonl (completions with their rewards)" in said


@pytest.mark.parametrize("settings", [{"beta": 1e6}, {"beta": 1e6, "loss_type": "dapo"}])
def test_a_short_run_that_the_kl_outweighs_has_a_remark(
    settings, tiny_folder, tmp_path, reward, capsys
):
    """Its first step has no KL, because the policy is still the reference: it may have learned."""
    trainer = run_python(tiny_folder, tmp_path / "run", [reward["varied"]], **settings)
    assert trainer.learned_nothing is None
    remark = "In 1 of 2 steps the KL to the reference made up more than 99% of the gradient"
    assert remark in capsys.readouterr().out
    assert remark in (tmp_path / "run" / "README.md").read_text()


def test_the_share_of_the_policy_is_that_of_the_formulas():
    """With G = d loss / d log p.

    Policy -A / N, KL (k3, no ratio) beta (1 - exp(ref - p)) / N, over N tokens.
    """
    logps = torch.tensor([[-1.0, -2.0], [-0.5, -3.0]], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([[-1.5, -1.0], [-0.5, -3.5]], dtype=torch.float64)
    advantages = torch.tensor([1.0, -0.5], dtype=torch.float64)
    ones = torch.ones(2, 2)
    rows = Scored(
        prompt_ids=torch.ones(2, 1, dtype=torch.long),
        prompt_mask=torch.ones(2, 1),
        completion_ids=torch.ones(2, 2, dtype=torch.long),
        completion_mask=ones,
        advantages=advantages,
        counted=torch.ones(2),
        signal=torch.ones(2),
        policy_step=torch.zeros(2, 2),
        ref_per_token_logps=reference,
    )
    counts = StepCounts(tokens=4.0, sequences=2.0)
    settings = LossSettings(get_loss("dapo"), beta=0.3, use_bias_correction_kl=False)
    output = step_loss(Scores(logps), MicroBatch(rows, counts, counts), settings)
    of_policy = 2 * (1.0 + 0.5) / 4
    of_kl = (
        0.3
        * sum(
            abs(1 - math.exp(r - p))
            for r, p in zip(reference.flatten().tolist(), logps.flatten().tolist(), strict=True)
        )
        / 4
    )
    stat = output.stats["kl/policy_share"]
    assert float(stat.value) == pytest.approx(of_policy)
    assert float(stat.weight) == pytest.approx(of_policy + of_kl)
    output.loss.backward()  # the graph is still there
    assert logps.grad is not None


def test_steps_without_advantages_are_no_steps_of_the_kl():
    learning = Learning(None)
    for share in (0.0, 0.005, 0.5, 0.009):
        learning.settled({"kl/policy_share": share})
    learning.settled({"loss": 1.0})
    assert (learning.progress.kl_steps, learning.progress.kl_alone) == (3, 2)


def test_a_run_that_learns_says_nothing_of_the_kind(tiny_folder, tmp_path, reward, capsys):
    trainer = run_python(tiny_folder, tmp_path / "python", [reward["varied"]])
    assert trainer.learned_nothing is None
    assert run_recipe(tiny_folder, tmp_path / "recipe", ["varied"]) == 0
    assert "Nothing was learned" not in capsys.readouterr().out
    alarms = [row for row in read_run(tmp_path / "python").metrics if "alarm" in row]
    assert not alarms


def test_a_reward_that_fails_on_some_rows_is_counted_in_the_last_lines(
    tiny_folder, tmp_path, capsys
):
    settings = {"reward_max_failure_rate": 1.0, "shuffle_dataset": False}
    code = run_recipe(tiny_folder, tmp_path / "run", ["fails_mostly"], **settings)
    said = capsys.readouterr().out
    assert code == 0
    assert "Reward 'fails_mostly' failed on 12 of 16 completions (75%), which it did not" in said
    assert "Reward 'fails" in (tmp_path / "run" / "run" / "README.md").read_text().replace("\\", "")


def test_a_finished_run_that_is_started_again_says_so_and_ends_alike(tiny_folder, tmp_path, capsys):
    out = tmp_path / "run"
    assert run_recipe(tiny_folder, out, ["one"], save_strategy="steps", save_steps=1) == 1
    capsys.readouterr()
    assert main(["--config", str(out / "recipe.yaml")]) == 1
    said = capsys.readouterr().out
    assert "This run has already finished (2 of 2 steps)" in said
    assert "none of the 16 completions had an advantage" in said


# ---- the start: parameters


def adapter(tiny_folder, *names, trainable=True):
    """The tiny model with adapters of these names, the first active, saved and loaded."""
    model = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    config = LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM")
    made = get_peft_model(model, config, adapter_name=names[0])
    for name in names[1:]:
        made.add_adapter(name, config)
    made.set_adapter(names[0])
    for parameter in made.parameters():
        parameter.requires_grad_(parameter.requires_grad and trainable)
    return made


def frozen_adapter(tiny_folder, out):
    """An adapter as `PeftModel.from_pretrained` loads it without `is_trainable`."""
    adapter(tiny_folder, "default").save_pretrained(out / "adapter")
    base = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    return PeftModel.from_pretrained(base, out / "adapter")


def other_adapter(tiny_folder, out):
    """The second adapter is trainable, and the first one active."""
    model = adapter(tiny_folder, "default", "second")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(".second." in name)
    return model


def disabled_adapter(tiny_folder, out):
    model = adapter(tiny_folder, "default")
    model.base_model.disable_adapter_layers()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


def frozen_model(tiny_folder, out):
    return AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32).requires_grad_(
        False
    )


FROZEN = {
    "an adapter without is_trainable": (frozen_adapter, "is frozen. Load it with PeftModel"),
    "another adapter": (other_adapter, "adapter 'second' is not active. Call model.set_adapter"),
    "a disabled adapter": (disabled_adapter, "all adapters are disabled"),
    "a frozen model": (frozen_model, "requires_grad is False for all of its parameters"),
}


@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("kind", FROZEN)
def test_a_policy_without_a_trainable_weight_is_refused(
    kind, beta, tiny_folder, tmp_path, reward, capsys
):
    make, words = FROZEN[kind]
    model = make(tiny_folder, tmp_path)
    with pytest.raises(CannotLearn, match=r"would change no weight of the policy") as refused:
        run_python(tiny_folder, tmp_path / "run", [reward["varied"]], model, beta=beta)
    assert words in str(refused.value)


def test_an_optimizer_of_another_model_is_refused(tiny_folder, tmp_path, reward):
    other = AutoModelForCausalLM.from_pretrained(tiny_folder)
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1)
    more = {"optimizers": (optimizer, None)}
    with pytest.raises(CannotLearn, match=r"none of the policy's .* trainable tensors"):
        run_python(tiny_folder, tmp_path, [reward["varied"]], more=more)


class Thaw(TrainerCallback):
    """Trains one tensor in the first step, and all from the second on."""

    def on_train_begin(self, args, state, control, model, **kwargs):
        for number, parameter in enumerate(model.parameters()):
            parameter.requires_grad_(number == 0)

    def on_step_end(self, args, state, control, model, **kwargs):
        model.requires_grad_(True)


def test_weights_that_a_callback_unfreezes_are_watched_from_then_on(tiny_folder, tmp_path, reward):
    """No step before has changed a weight: the warm-up begins at 0."""
    more = {"callbacks": [Thaw()]}
    settings = {"warmup_steps": 1, "max_steps": 3}
    trainer = run_python(tiny_folder, tmp_path, [reward["varied"]], more=more, **settings)
    assert trainer.parts.learning.progress.moved and trainer.learned_nothing is None


def test_an_optimizer_that_steps_in_the_backward_pass_has_other_tensors(
    tiny_folder, tmp_path, reward
):
    args = GRPOExtConfig(output_dir=str(tmp_path), **SETTINGS)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder, padding_side="left")
    data = Dataset.from_list(rows())
    trainer = GRPOExtTrainer(
        str(tiny_folder), [reward["varied"]], args, data, processing_class=tokenizer
    )
    dummy = LayerWiseDummyOptimizer(optimizer_dict={}, lr=1e-3)
    with pytest.raises(CannotLearn):
        check_parameters(trainer, dummy)
    for optim in ("galore_adamw_layerwise", OptimizerNames.APOLLO_ADAMW_LAYERWISE):
        trainer.args.optim = optim
        check_parameters(trainer, dummy)
        assert not trainer.parts.learning.watches_weights


def test_a_trainable_adapter_is_the_policy_and_its_frozen_neighbors_are_not(tiny_folder):
    model = adapter(tiny_folder, "default", "second")
    assert idle_adapters(model) == {"second"}
    trained = [name for name, p in used_parameters(model) if p.requires_grad]
    assert trained and all(".default." in name for name in trained)


def test_a_loaded_adapter_that_is_trainable_trains(tiny_folder, tmp_path, reward):
    adapter(tiny_folder, "default").save_pretrained(tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(tiny_folder, dtype=torch.float32)
    model = PeftModel.from_pretrained(base, tmp_path / "adapter", is_trainable=True)
    trainer = run_python(tiny_folder, tmp_path / "run", [reward["varied"]], model, beta=0.1)
    assert trainer.learned_nothing is None


# ---- the start: the metric for the best model

BY_LOSS = {
    "load_best_model_at_end": {"load_best_model_at_end": True},
    "eval_loss by name": {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss"},
    "save_strategy: best": {"save_strategy": "best"},
    "reduce_lr_on_plateau": {"lr_scheduler_type": "reduce_lr_on_plateau"},
    "with eval_temperature": {"load_best_model_at_end": True, "eval_temperature": 0.0},
}


@pytest.mark.parametrize("kind", BY_LOSS)
def test_a_best_model_by_eval_loss_is_refused_at_both_doors(
    kind, tiny_folder, tmp_path, reward, capsys
):
    settings = {**EVALUATED, **BY_LOSS[kind]}
    with pytest.raises(ValueError, match="uses eval_loss, which does not measure a policy"):
        run_python(tiny_folder, tmp_path / "a", [reward["varied"]], "no/model", **settings)
    assert run_recipe(tiny_folder, tmp_path / "recipe", ["varied"], **settings) == 2
    assert "uses eval_loss, which does not measure a policy" in capsys.readouterr().err


def test_early_stopping_by_eval_loss_is_refused(tiny_folder, tmp_path, reward):
    more = {
        "callbacks": [EarlyStoppingCallback(2)],
        "eval_dataset": Dataset.from_list(rows()),
    }
    settings = {**EVALUATED, "metric_for_best_model": "loss"}
    with pytest.raises(CannotLearn, match="`EarlyStoppingCallback` uses eval_loss"):
        run_python(tiny_folder, tmp_path, [reward["varied"]], more=more, **settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"metric_for_best_model": "varied"}, "Did you mean 'rewards/varied/mean'"),
        ({"metric_for_best_model": "rewards/other/mean"}, "not log 'rewards/other/mean'"),
        (
            {"metric_for_best_model": "reward", "greater_is_better": False},
            "selects the model with the lowest reward",
        ),
        ({"metric_for_best_model": "vared", "eval_temperature": 0.0}, "Did you mean 'varied'"),
        ({"metric_for_best_model": "reward", "eval_temperature": 0.0}, "They log varied, pass@1"),
    ],
)
def test_a_metric_that_no_evaluation_logs_is_refused_before_the_first_step(
    settings, words, tiny_folder, tmp_path, reward
):
    more = {"eval_dataset": Dataset.from_list(rows())}
    settings = {**EVALUATED, "load_best_model_at_end": True, **settings}
    with pytest.raises(CannotLearn) as refused:
        run_python(tiny_folder, tmp_path, [reward["varied"]], more=more, **settings)
    assert words in str(refused.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"metric_for_best_model": "rewards/varied/std"},
        {"metric_for_best_model": "eval_rewards/varied/constant"},
        {
            "metric_for_best_model": "rewards/lengths/mean",
            "greater_is_better": False,
            "reward_weights": [1.0, -0.01],
        },
        {
            "metric_for_best_model": "lengths",
            "greater_is_better": False,
            "reward_weights": [1.0, 0.0],
            "eval_temperature": 0.0,
        },
    ],
)
def test_a_metric_that_evaluations_log_chooses_the_best_model(
    settings, tiny_folder, tmp_path, reward
):
    more = {"eval_dataset": Dataset.from_list(rows())}
    settings = {**EVALUATED, "load_best_model_at_end": True, **settings}
    rewards = [reward["varied"], reward["lengths"]]
    trainer = run_python(tiny_folder, tmp_path, rewards, more=more, **settings)
    assert trainer.state.best_metric is not None


# ---- what the end says


def test_why_nothing_was_learned():
    learned = Progress(2, 16, 8, 8, True, True)
    assert why_nothing_was_learned(learned) is None
    assert why_nothing_was_learned(Progress()) is None  # a run without a step
    no_signal = Progress(2, 16, 0, 0, True, True)
    assert "all rewards were equal" in why_nothing_was_learned(no_signal)
    assert why_nothing_was_learned(no_signal, needs_advantage=False) is None
    assert "no step had a gradient" in why_nothing_was_learned(Progress(2, 16, 8, 8, False, True))
    unmoved = Progress(2, 16, 8, 8, True, False)
    assert "no step changed a weight" in why_nothing_was_learned(unmoved)
    assert why_nothing_was_learned(unmoved, watches_weights=False) is None


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_a_checksum_sees_the_smallest_change(dtype):
    tensor = torch.randn(4, 5, dtype=torch.float64).to(dtype)
    for strided in (tensor, tensor.T):
        changed = strided.clone()
        changed[2, 3] = torch.nextafter(changed[2, 3].float(), torch.tensor(9.0)).to(dtype)
        if torch.equal(changed, strided):  # a half type rounds that change away
            changed[2, 3] *= 1.01
        assert not torch.equal(changed, strided)
        assert checksum(changed) != checksum(strided) == checksum(strided.clone())


def test_small_changes_and_the_kl_are_verdicts():
    small = Progress(12, 16, 8, 8, True, True, shift=1e-9)
    assert "changed the weights by 1e-09 of their size" in why_nothing_was_learned(small)
    assert why_nothing_was_learned(small, watches_weights=False) is None
    assert why_nothing_was_learned(replace(small, shift=1e-6)) is None
    assert why_nothing_was_learned(replace(small, shift=0.0)) is None  # no element of the sample
    held = Progress(12, 16, 8, 8, True, True, kl_steps=12, kl_alone=11)
    assert "in 11 of 12 steps the KL" in why_nothing_was_learned(held)
    assert why_nothing_was_learned(replace(held, kl_alone=10)) is None
    assert why_nothing_was_learned(replace(held, kl_steps=9, kl_alone=9)) is None


def test_the_shift_of_a_sample_is_that_of_the_elements():
    before = {"a": torch.full((4,), 2.0), "b": torch.zeros(3, 5), "c": torch.ones(2)}
    sample = WeightSample(before)
    after = {"a": torch.full((4,), 2.5), "b": torch.zeros(3, 5), "d": torch.ones(7)}
    assert sample.shift(after) == pytest.approx(0.5 / 2.5)
    large = torch.zeros(5000, 3)
    sample = WeightSample({"large": large})
    large += 1.0  # in place, as optimizers do
    assert sample.shift({"large": large}) == pytest.approx(1.0)
    assert sample.shift({}) is None


def test_ranks_add_up():
    total = sum([Progress(3, 4, 2, 1, False, True), Progress(3, 4, 0, 0, True, False)], Progress())
    assert total == Progress(3, 8, 2, 1, True, True)


def test_failed_rewards_and_environments_are_counted():
    progress = Progress(episodes=48, failed_episodes=12)
    assert failure_lines({"a": 32, "b": 0}, {"a": 48, "b": 48}, progress) == [
        "Reward 'a' failed on 32 of 48 completions (67%), which it did not score.",
        "The environment failed in 12 of 48 episodes (25%).",
    ]
    assert failure_lines({}, {}, Progress()) == []
