"""Arguments built in Python are held to the rules of recipes, and every field of ours says what it
is.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re

import pytest
from transformers import HfArgumentParser
from trl import GRPOConfig

from grpo_ext import GRPOExtConfig, RecipeError
from grpo_ext.objective.policy import _LOSSES, register_loss
from grpo_ext.recipe.arguments import argument_notes, check_arguments, with_our_defaults
from grpo_ext.recipe.row_options import RowOptions
from grpo_ext.recipe.schema import LaunchConfig, RunConfig

OWN = {f.name: f for f in dataclasses.fields(GRPOExtConfig) if not hasattr(GRPOConfig, f.name)}


def config(cls=GRPOExtConfig, **values):
    return cls("runs/x", use_cpu=True, bf16=False, report_to="none", **values)


@pytest.mark.parametrize(
    "values, words",
    [
        (
            {"loss_normalization": "stp"},
            "loss_normalization must be one of step, micro_batch; got 'stp'. Did you mean 'step'?",
        ),
        (
            {"eval_strategy": "stps"},
            "eval_strategy must be one of no, steps, epoch; got 'stps'. Did you mean 'steps'?",
        ),
        ({"top_p": 1.5}, "top_p must be less than or equal to 1; got 1.5."),
        ({"reward_workers": "many"}, "reward_workers must be a whole number; got 'many'."),
        ({"temperature": float("nan")}, "temperature must be a finite number; got nan."),
    ],
)
def test_a_single_wrong_value_is_refused_when_the_dataclass_is_built(values, words):
    with pytest.raises(ValueError) as error:
        config(**values)
    assert str(error.value) == words


def test_all_wrong_values_are_told_at_once():
    with pytest.raises(RecipeError) as error:
        config(kl_estimator="k4", log_samples=2)
    assert {problem.key for problem in error.value.problems} == {"kl_estimator", "log_samples"}


def test_text_becomes_the_number_that_it_stands_for():
    assert config(reward_timeout="5").reward_timeout == 5.0
    assert config(scale_rewards=False).scale_rewards == "none"


@pytest.mark.parametrize(
    "values, words",
    [
        ({"loss_type": "drgrpo"}, "Did you mean 'dr_grpo'?"),
        (
            {"group_filter": "drop", "loss_normalization": "micro_batch"},
            "`group_filter: drop` needs `loss_normalization: step`",
        ),
        ({"neftune_noise_alpha": 5.0}, "neftune_noise_alpha adds noise"),
        (
            {"group_filter": "drop", "multi_objective_aggregation": "normalize_then_sum"},
            "`group_filter: drop` needs `multi",
        ),
        (
            {"advantage_normalizer": "useful", "loss_normalization": "micro_batch"},
            "needs `loss_normalization: step`",
        ),
        ({"generation_kwargs": {"num_beams": 4}}, "num_beams: 4` cannot be scored exactly"),
        (
            {
                "use_vllm": True,
                "top_k": 5,
                "beta": 0.1,
                "vllm_importance_sampling_correction": False,
            },
            "set `beta: 0`",
        ),
        ({"eval_temperature": 0, "eval_num_samples": 8}, "the same completion 8 times"),
        (
            {"layout": "padded", "max_tokens_per_micro_batch": 64},
            "`max_tokens_per_micro_batch: 64` needs `layout: auto`",
        ),
        (
            {"max_tokens_per_micro_batch": 64, "top_entropy_quantile": 0.5},
            "computed over a whole micro-batch",
        ),
        ({"health_rules": {"kll": 3}}, "health_rules: unknown rule 'kll'"),
        ({"sync_ref_model": True}, "Set beta above 0"),
        ({"optim_args": "group"}, "is not a list of names with values"),
        ({"optim_args": "eps=1e-6,"}, "is not a list of names with values"),
        ({"delta": 1.2}, "delta must be above 1 + epsilon_high"),
        ({"delta": 1.25, "epsilon_high": 0.28}, "delta must be above 1 + epsilon_high"),
        ({"delta": 0.5, "loss_type": "luspo"}, "delta must be above 1 + epsilon_high"),
        (
            {"beta": 0.1, "kl_estimator": "k1", "use_bias_correction_kl": False},
            "has an expected gradient of 0",
        ),
        (
            {"beta": 0.1, "kl_estimator": "k2"},
            "Set `use_bias_correction_kl: false`, or `kl_estimator: k3`",
        ),
        (
            {"use_vllm": True, "vllm_sync_adapter": "adapter", "vllm_enable_sleep_mode": True},
            "a sleeping engine loses its base",
        ),
    ],
)
def test_what_contradicts_itself_is_refused_by_the_rules_of_recipes(values, words):
    with pytest.raises(RecipeError) as error:
        check_arguments(config(**values), 1)
    assert words in str(error.value)


def test_what_is_changed_later_is_checked_too():
    args = config()
    args.num_generations, args.logprob_policy = 3, "modl"
    with pytest.raises(RecipeError) as error:
        check_arguments(args, 1)
    assert [problem.key for problem in error.value.problems] == [
        "logprob_policy",
        "num_generations",
    ]
    assert "Set one of the nearest sizes that fit" in str(error.value)


def test_what_only_a_recipe_says_is_left_out():
    for values in (
        {"use_vllm": True, "vllm_sync_adapter": "adapter"},
        {"beta": 0.1, "sync_ref_model": True},
        {"curriculum": "adaptive"},
        {"group_filter": "refill", "group_filter_metric": "mine"},
        {"generation_batch_size": 32},
        {"eval_strategy": "epoch", "num_generations_eval": 4},
    ):
        check_arguments(config(**values), 1)


def test_a_sampler_from_python_that_is_another_engine_counts_as_separate():
    by_sequence = {"loss_type": "vespo", "vllm_importance_sampling_mode": "sequence_mask"}
    check_arguments(config(**by_sequence), 1)
    with pytest.raises(
        RecipeError, match="vespo` multiplies the ratios of a sequence's tokens itself"
    ):
        check_arguments(config(**by_sequence), 1, separate_sampler=True)
    check_arguments(config(behaviour_policy="sampler"), 1, separate_sampler=True)
    with pytest.raises(RecipeError, match="`behaviour_policy: sampler` needs a separate sampler"):
        check_arguments(config(behaviour_policy="sampler"), 1)


def test_a_registered_loss_is_a_loss():
    register_loss("mine", aggregation="token_mean")(lambda x: x.logps)
    try:
        check_arguments(config(loss_type="mine"), 1)
        with pytest.raises(RecipeError, match="`loss_type: mine` needs `loss_normalization: step`"):
            check_arguments(config(loss_type="mine", loss_normalization="micro_batch"), 1)
    finally:
        del _LOSSES["mine"]


def test_a_plain_config_of_trl_gets_our_defaults_and_keeps_its_own_values():
    @dataclasses.dataclass
    class Mine(GRPOConfig):
        layout: str = "packed"

    for cls in (GRPOConfig, Mine):
        given = config(cls, beta=0.1)
        args = with_our_defaults(given)
        assert args is given and (args.beta, args.group_filter, args.loss_normalization) == (
            0.1,
            "off",
            "step",
        )
        assert args.vllm_importance_sampling_mode == "sequence_mask"  # a field of TRL's
        assert args.layout == ("packed" if cls is Mine else "auto")
        check_arguments(args, 1)


def test_an_argument_parser_takes_each_type():
    parser = HfArgumentParser((GRPOExtConfig,))
    words = [
        "--output_dir",
        "x",
        "--use_cpu",
        "--bf16",
        "false",
        "--layout",
        "packed",
        "--eval_temperature",
        "0.5",
    ]
    (args,) = parser.parse_args_into_dataclasses([*words, "--max_tokens_per_micro_batch", "64"])
    assert (args.layout, args.eval_temperature, args.max_tokens_per_micro_batch) == (
        "packed",
        0.5,
        64,
    )


OWN_CLASSES = GRPOExtConfig.__mro__[: GRPOExtConfig.__mro__.index(GRPOConfig)]


@pytest.mark.parametrize("cls", [*OWN_CLASSES, LaunchConfig, RowOptions, RunConfig])
def test_the_sentence_states_the_default_that_the_field_has(cls):
    stated = re.findall(
        r"^ {4}(\w+) \([^)]*?defaults to `?([^`)]*)`?\):",
        inspect.cleandoc(cls.__doc__),
        re.MULTILINE,
    )
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for name, default in stated:
        assert ast.literal_eval(default) == fields[name].default, name
    entries = re.findall(
        r"^ {4}(\w+(?:, \w+)*) \([^)]*\): \S", inspect.cleandoc(cls.__doc__), re.MULTILINE
    )
    assert {*vars(cls).get("__annotations__", ())} <= {
        name for names in entries for name in names.split(", ")
    }


@pytest.mark.parametrize(
    "values",
    [
        {"num_generations_eval": 1, "eval_strategy": "steps"},
        {"delta": 1.3},
        {"delta": 1.0, "loss_type": "sapo"},
        {"pad_to_multiple_of": 8},
        {"max_staleness": 0},
    ],
    ids=str,
)
def test_what_is_odd_or_does_nothing_is_taken(values):
    check_arguments(config(**values), 1)


def test_arguments_from_python_get_a_note_on_a_cap_of_cispo_below_1():
    [note] = argument_notes(config(loss_type="cispo"), 1)
    assert note.key == "loss_type" and "epsilon_high: 5.0" in note.message
    [note] = argument_notes(config(loss_type="cispo", epsilon_high=0.3), 1)
    assert note.key == "epsilon_high" and "about 0.3 times" in note.message
    assert not argument_notes(config(loss_type="cispo", epsilon_high=5.0), 1)
    assert not argument_notes(config(max_staleness=0), 1)
