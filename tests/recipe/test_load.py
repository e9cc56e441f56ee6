"""Recipes: values arrive with their types; every fault is named with place and remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest

from grpo_ext import RecipeError, load_recipe
from grpo_ext.recipe.folder import accelerate_settings, sharding
from grpo_ext.recipe.load import load_sft_recipe
from grpo_ext.recipe.read import parse_words, split_config
from grpo_ext.recipe.rule_kinds import in_yaml
from tests.support.places import REPO

MODEL = {"model_name_or_path": "somewhere"}


def write(tmp_path, text):
    path = tmp_path / "recipe.yaml"
    path.write_text(text)
    return path


def faults(tmp_path, text, overrides=None):
    with pytest.raises(RecipeError) as error:
        load_recipe(write(tmp_path, text), overrides)
    return str(error.value)


def test_numbers_that_yaml_reads_as_text_become_numbers(tmp_path):
    recipe = load_recipe(
        write(
            tmp_path,
            "model_name_or_path: m\nlearning_rate: 5e-7\nbeta: 1e-3\nuse_cpu: true\nbf16: false\n",
        )
    )
    assert recipe.training.learning_rate == 5e-7
    assert recipe.training.beta == 0.001


def test_the_command_line_replaces_the_file(tmp_path):
    path = write(tmp_path, "model_name_or_path: m\nlearning_rate: 1.0\nnum_generations: 4\n")
    recipe = load_recipe(
        path, ["--learning_rate", "2e-5", "--use_vllm", "--num_generations=2", "--top-k", "7"]
    )
    assert recipe.get("learning_rate") == 2e-5
    assert recipe.get("use_vllm") is True
    assert recipe.get("num_generations") == 2
    assert recipe.get("top_k") == 7
    assert recipe.get("beta") == 0.0  # TRL's default


def test_a_bare_no_is_the_choice_no_and_not_false(tmp_path):
    recipe = load_recipe(
        write(tmp_path, "model_name_or_path: m\neval_strategy: no\n"), ["--save_strategy", "no"]
    )
    assert recipe.get("eval_strategy") == "no"
    assert recipe.get("save_strategy") == "no"


def test_a_choice_of_words_and_switches_takes_both_on_the_command_line():
    for word, value in (("false", False), ("batch", "batch"), ("true", True)):
        assert (
            load_recipe(None, ["--model_name_or_path", "m", "--scale_rewards", word]).get(
                "scale_rewards"
            )
            == value
        )


def test_a_mapping_in_braces_is_one_on_the_command_line_where_one_fits():
    recipe = load_recipe(
        None,
        [
            "--model_name_or_path",
            "m",
            "--environment",
            "{name: guess, turns: 3}",
            "--task",
            "guess",
        ],
    )
    assert recipe.get("environment") == {"name": "guess", "turns": 3}
    more = ["--use_vllm", "--generation_kwargs", '{"min_p": 0.1}', "--system_prompt", "{a: 1}"]
    recipe = load_recipe(None, ["--model_name_or_path", "m", *more])
    assert (
        recipe.get("generation_kwargs") == {"min_p": 0.1}
        and recipe.get("system_prompt") == "{a: 1}"
    )
    kwargs = [
        "--lr_scheduler_type",
        "cosine_with_min_lr",
        "--lr_scheduler_kwargs",
        '{"min_lr": 1e-7}',
    ]
    recipe = load_recipe(
        None,
        [
            "--model_name_or_path",
            "m",
            *kwargs,
            "--gradient_checkpointing_kwargs",
            "{use_reentrant: no}",
        ],
    )
    assert recipe.get("lr_scheduler_kwargs") == {"min_lr": 1e-7}
    assert recipe.get("gradient_checkpointing_kwargs") == {"use_reentrant": False}


def test_keyword_arguments_as_text_in_a_file_load_as_in_trl(tmp_path):
    assert load_recipe(
        write(tmp_path, "model_name_or_path: m\ngeneration_kwargs: '{\"min_p\": 0.1}'\n")
    )


def test_negative_numbers_are_values():
    assert parse_words(["--delta", "-1.5", "--flag", "--x=--y"]) == {
        "delta": "-1.5",
        "flag": "true",
        "x": "--y",
    }


def test_text_on_the_command_line_stays_text(tmp_path):
    path = write(tmp_path, "model_name_or_path: m\nmax_numbers: 3\n")
    words = [
        "--user_prompt",
        "Use {nums}: make {target}",
        "--system_prompt",
        "",
        "--operators",
        "-",
        "--run_name",
        "2026-01-02",
    ]
    recipe = load_recipe(
        path,
        [
            *words,
            "--delta",
            "1.5",
            "--min_p",
            "null",
            "--reward_funcs",
            "[countdown, {name: format}]",
        ],
    )
    assert recipe.task.user_prompt == "Use {nums}: make {target}"
    assert recipe.task.system_prompt == ""
    assert recipe.task.operators == "-"
    assert recipe.get("run_name") == "2026-01-02"
    assert recipe.get("delta") == 1.5
    assert recipe.get("min_p") is None
    assert recipe.run.reward_funcs == ["countdown", {"name": "format"}]


def test_output_dir_is_named_after_the_recipe(tmp_path):
    recipe = load_recipe(write(tmp_path, "model_name_or_path: m\n"))
    assert recipe.get("output_dir") == f"runs/{tmp_path.name}-recipe"


def test_an_unknown_key_names_its_line_and_the_nearest_key(tmp_path):
    message = faults(tmp_path, "model_name_or_path: m\nlearning_rte: 1.0\n")
    assert "recipe.yaml:2" in message
    assert "'learning_rate'" in message


def test_all_faults_are_told_at_once(tmp_path):
    message = faults(
        tmp_path, "loss_type: drgrpo\ntemperature: -1\nnum_generations: many\nscale_rewards: grp\n"
    )
    for expected in (
        "dr_grpo",
        "temperature must be",
        "num_generations must be a whole number",
        "'group'",
        "model_name_or_path",
    ):
        assert expected in message


@pytest.mark.parametrize(
    "text, expected",
    [
        ("num_generations: 6\n", "not a multiple of num_generations (6)"),
        ("learning_rate: .nan\n", "finite"),
        (
            "generation_kwargs: {min_p: .nan}\n",
            "generation_kwargs must contain only finite numbers",
        ),
        (
            "reward_funcs: [{name: format, weight: 1, name: countdown}]\n",
            "recipe.yaml:2: name is set twice",
        ),
        (
            "use_vllm: true\ntop_p: 0.9\nbeta: 0.1\nvllm_importance_sampling_correction: false\n",
            "set `beta: 0`",
        ),
        (
            "curriculum: adaptiv\n",
            "none, adaptive, easy_to_hard; got 'adaptiv'. Did you mean 'adaptive'?",
        ),
        (
            "vllm_server_port: 70000\n",
            "vllm_server_port must be less than or equal to 65535; got 70000",
        ),
        (
            "kl_estimator: k1\nloss_normalization: micro_batch\n",
            "`kl_estimator: k1` needs `loss_normalization: step`",
        ),
        (
            "beta: 0.1\nkl_estimator: k2\n",
            "recipe.yaml:3: kl_estimator: k2 times the importance ratio",
        ),
        (
            "preset: grpo_paper\nkl_estimator: k1\n",
            "Set `use_bias_correction_kl: true`, or `kl_estimator: k2` or `k3`",
        ),
        (
            "std_estimator: population\nmulti_objective_aggregation: normalize_then_sum\n",
            "needs `multi_objective_aggregation",
        ),
        ("reward_weights: [1.0]\n", "needs reward_funcs"),
        ("sync_ref_model: true\n", "beta above 0"),
        (
            "layout: padded\nmax_tokens_per_micro_batch: 64\n",
            "`max_tokens_per_micro_batch: 64` needs `layout: auto`",
        ),
        (
            "max_tokens_per_micro_batch: 9\nloss_normalization: micro_batch\n",
            "needs `loss_normalization: step`",
        ),
        ("task: countdwon\n", "'countdown'"),
        ("task: [a]\n", "unknown task"),
        ("dataset_streaming: true\n", "Set max_steps"),
        (
            "load_best_model_at_end: true\neval_strategy: steps\neval_temperature: 0\n",
            "metric_for_best_model: countdown",
        ),
        ("task: no.such.module:Task\n", "cannot load the task"),
        ("max_story_steps: 1\n", "belongs to the task 'gsm8k'"),
        ("top_p: 1.5\n", "less than or equal to 1"),
        ("temperature: 0\n", "greater than 0"),
        (
            "curriculum: easy_to_hard\n",
            "recipe.yaml:2: `curriculum: easy_to_hard` needs difficulty_column",
        ),
        (
            "curriculum: easy_to_hard\ndifficulty_column: x\ngroup_filter: refill\n",
            "`curriculum: easy_to_hard` needs `group_filter: drop` or `'off'`.",
        ),
        (
            (
                "curriculum: easy_to_hard\n"
                "difficulty_column: x\n"
                "dataset_streaming: true\n"
                "max_steps: 3\n"
            ),
            "`curriculum: easy_to_hard` needs all rows before training begins. "
            "Remove dataset_streaming.",
        ),
        ("generation_batch_size: 16\nsteps_per_generation: 2\n", "both set. Remove one of them"),
        ("max_target: 0\n", "max_target must be at least 1, but is 0"),
        ("beta: 0.1\nbeta: 0.2\n", "set twice"),
        ("- a\n- b\n", "lines of `key: value`"),
        ("a: 1\nb: [\n", "recipe.yaml:3: not a recipe: while parsing a flow node, expected"),
        ("<<: {beta: 0.1}\n", "`<<` merges keys"),
        ("[a, b]: 1\n", "recipe.yaml:2: a key of a recipe must be a plain word"),
        ("0: 1\n", "unknown key '0'"),
        ("generation_batch_size: 12\n", "not a multiple of the micro-batch of 8"),
        (
            "eval_strategy: steps\nper_device_eval_batch_size: 8\nnum_generations_eval: 6\n",
            "per_device_eval_batch_size: 6` or",
        ),
        ("fp16: true\nbf16: true\n", "Remove fp16, or set `bf16: false`"),
        (
            "temperature: 0.7\ngeneration_kwargs: {temperature: 0.9}\n",
            "Remove temperature from generation_kwargs",
        ),
        (
            "use_vllm: true\ngeneration_kwargs: {logprobs: 5}\n",
            "Remove logprobs from generation_kwargs",
        ),
        ("repetition_penalty: 1.1\n", "cannot be scored exactly"),
        ("num_generations: null\n", "num_generations must be a whole number; got None"),
        ("max_completion_length: null\n", "after 20 tokens"),
        ("use_vllm: true\nvllm_max_model_length: 512\n", "leaves no room for a prompt"),
        ("use_transformers_continuous_batching: true\n", "permanently rounds"),
        (
            "use_transformers_continuous_batching: true\nbf16: false\nfp16: true\n",
            "permanently rounds the trained weights to float16",
        ),
        (
            "use_transformers_continuous_batching: true\nbf16: false\n"
            "generation_kwargs: {stop_strings: [END]}\n",
            "stop_strings in generation_kwargs do not work",
        ),
        ("max_steps: 0\n", "trains nothing"),
        (
            "generation_kwargs: {stop: ['</answer>']}\n",
            "transformers has no option stop, and would ignore it. Set stop_strings instead",
        ),
        ("generation_kwargs: {stop_token_ids: [5]}\n", "Set stop_strings instead"),
        ("generation_kwargs: {max_tokens: 5}\n", "Set max_new_tokens instead"),
        ("generation_kwargs: {max_new_token: 5}\n", "Did you mean 'max_new_tokens'?"),
        ("generation_kwargs: {seed: 5}\n", "would ignore it. Remove seed"),
        ("generation_kwargs: {eos_token_id: 5}\n", "would train on the padding"),
        (
            "use_vllm: true\ngeneration_kwargs: {stop_strings: ['</answer>']}\n",
            "vLLM has no option stop_strings. Set stop instead",
        ),
        ("use_vllm: true\ngeneration_kwargs: {stop: [3]}\n", "stop must be a string or a list"),
        ("generation_kwargs: {max_time: 5}\n", "max_time cannot be set, because it cuts"),
        ("generation_kwargs: {max_length: 50}\n", "Remove max_length from generation_kwargs"),
        ("generation_kwargs: {num_return_sequences: 2}\n", "num_generations sets the number"),
        ("generation_kwargs: {return_dict_in_generate: true}\n", "expects a tensor of token ids"),
        ("generation_kwargs: {disable_compile: true}\n", "because TRL sets it"),
        ("generation_kwargs: {max_new_tokens: null}\n", "above 0; got None"),
        ("generation_kwargs: {max_new_tokens: 0}\n", "above 0; got 0"),
        ("generation_kwargs: {do_sample: null}\n", "`do_sample: null` selects greedy decoding"),
        ("generation_kwargs: {use_mtp: true}\n", "`use_mtp: True` cannot be scored exactly"),
        ("use_vllm: true\ngeneration_kwargs: {seed: 5}\n", "with the same random numbers"),
        (
            "use_transformers_continuous_batching: true\nbf16: false\n"
            "generation_kwargs: {min_new_tokens: 2}\n",
            "because continuous batching ignores it",
        ),
        ("use_vllm: true\ngeneration_kwargs: {ignore_eos: true}\n", "after their end token"),
        ("use_vllm: true\ngeneration_kwargs: {flat_logprobs: true}\n", "one log-prob per token"),
        ("use_vllm: true\ngeneration_kwargs: {max_tokens: null}\n", "above 0; got None"),
        ("use_vllm: true\ngeneration_kwargs: {stop_token_ids: 5}\n", "a list of token ids; got 5"),
        (
            "loss_normalization: micro_batch\ngeneration_kwargs: {stop_strings: x}\n",
            "with which TRL generates the completions itself",
        ),
        (
            "use_transformers_continuous_batching: true\nbf16: false\nrepetition_penalty: 1.1\n"
            "logprob_policy: trl\n",
            "continuous batching ignores `repetition_penalty: 1.1`",
        ),
    ],
)
def test_faults(tmp_path, text, expected):
    assert expected in faults(
        tmp_path, "model_name_or_path: m\n" * (not text.startswith(("-", "a:"))) + text
    )


@pytest.mark.parametrize(
    "text",
    [
        "use_vllm: true\ngeneration_kwargs: {stop: ['</answer>'], max_tokens: 9}\n",
        "use_vllm: true\nvllm_mode: server\ngeneration_kwargs: {seed: 5}\n",
        "use_vllm: true\ngeneration_kwargs: {seed: null, ignore_eos: false}\n",
        "generation_kwargs: {num_return_sequences: 1, output_scores: false, max_time: null}\n",
        "generation_kwargs: {num_beams: 2, length_penalty: 0.8}\nlogprob_policy: trl\n",
        "generation_kwargs: {stop_strings: ['END'], min_new_tokens: 1, suppress_tokens: [5]}\n",
    ],
)
def test_options_of_the_engine_that_samples_are_accepted(tmp_path, text):
    load_recipe(write(tmp_path, f"model_name_or_path: m\n{text}"))


def test_a_bad_value_is_one_problem_and_not_two(tmp_path):
    text = (
        "model_name_or_path: m\n"
        "per_device_train_batch_size: many\n"
        "num_generations: 7\n"
        "eval_strategy: step\n"
    )
    with pytest.raises(RecipeError) as error:
        load_recipe(write(tmp_path, text))
    assert [problem.key for problem in error.value.problems] == [
        "per_device_train_batch_size",
        "eval_strategy",
    ]


@pytest.mark.parametrize("text", ["0\n", "false\n", '""\n', "[]\n", "text\n"])
def test_a_file_that_is_no_mapping_is_said_so(tmp_path, text):
    assert "lines of `key: value`" in faults(tmp_path, text)


def test_one_item_needs_no_brackets(tmp_path):
    path = write(tmp_path, "model_name_or_path: m\nreward_funcs: countdown\nreward_weights: 2\n")
    assert load_recipe(path).run.reward_funcs == ["countdown"]
    assert load_recipe(path).get("reward_weights") == [2.0]
    assert load_recipe(path, ["--reward_funcs", "{name: format}"]).run.reward_funcs == [
        {"name": "format"}
    ]
    assert "got 'much'" in faults(tmp_path, "model_name_or_path: m\nreward_weights: much\n")


def test_keys_that_do_nothing_are_noted(tmp_path):
    text = (
        "model_name_or_path: m\nvllm_mode: server\nlora_r: 8\neval_temperature: 0.5\nmax_steps: 3\n"
    )
    notes = load_recipe(write(tmp_path, text + "num_train_epochs: 2\npreset: trl\n")).notes
    assert [note.key for note in notes] == [
        "vllm_mode",
        "lora_r",
        "eval_temperature",
        "num_train_epochs",
    ]
    assert str(notes[1]).endswith("recipe.yaml:3: lora_r does nothing without `use_peft: true`.")


@pytest.mark.parametrize(
    "values, words",
    [
        ({"loss_type": "cispo"}, "`loss_type: cispo` caps ratios at 0.2 (epsilon_high"),
        (
            {"loss_type": "sapo", "delta": 2.0},
            "delta does nothing without a loss_type that uses it",
        ),
        ({"max_staleness": 2}, "max_staleness does nothing without `group_filter: refill`"),
        ({"pass_rate_decay": 0.1}, "pass_rate_decay does nothing without `curriculum: adaptive`"),
        ({"pad_to_multiple_of": 8}, "pad_to_multiple_of does nothing without `loss_normalization"),
        ({"ignore_bias_buffers": True}, "ignore_bias_buffers does nothing"),
        (
            {"eval_num_samples": 4, "eval_strategy": "steps"},
            "eval_num_samples does nothing without eval_temperature above 0",
        ),
    ],
    ids=str,
)
def test_what_is_odd_is_noted_and_trains(values, words):
    (note,) = load_recipe(None, {**MODEL, **values}).notes
    assert words in note.message and note.key in values


def test_a_clip_range_that_no_ratio_leaves_is_noted(tmp_path):
    text = (
        "model_name_or_path: m\n"
        "preset: dapo_paper\n"
        "gradient_accumulation_steps: 4\n"
        "num_generations: 8\n"
    )
    (note,) = load_recipe(write(tmp_path, text)).notes
    assert "recipe.yaml:2: epsilon_high clips nothing" in str(
        note
    ) and "set `steps_per_generation: 64`" in str(note)
    assert not load_recipe(write(tmp_path, text + "steps_per_generation: 64\n")).notes
    (note,) = load_recipe(None, {**MODEL, "epsilon_high": 0.3}).notes
    assert "set `steps_per_generation: 16`" in str(note)
    assert not load_recipe(None, {**MODEL, "epsilon_high": 0.3, "num_iterations": 2}).notes


def test_supervised_training_refuses_what_it_would_not_read(tmp_path):
    path = write(
        tmp_path,
        "model_name_or_path: m\ndataset_name: d\ndataset_test_split: x\neval_strategy: steps\n",
    )
    with pytest.raises(RecipeError) as error:
        load_sft_recipe(path)
    assert [problem.key for problem in error.value.problems] == ["eval_strategy"]


def test_what_supervised_training_does_not_read_is_noted(tmp_path):
    text = "model_name_or_path: m\ndataset_name: d\ndataset_test_split: x\n"
    notes = load_sft_recipe(write(tmp_path, text + "ignore_bias_buffers: true\n")).notes
    assert [note.key for note in notes] == ["dataset_test_split", "ignore_bias_buffers"]
    assert str(notes[0]).partition(": ")[0].endswith("recipe.yaml:3")
    assert not load_sft_recipe(write(tmp_path, text.rsplit("dataset_test", 1)[0])).notes


def test_supervised_training_is_not_advised_to_name_a_task():
    with pytest.raises(
        RecipeError, match=r"max_number belongs to the task 'countdown' or 'gsm8k'\. Remove it"
    ):
        load_sft_recipe(None, {**MODEL, "max_number": 12})


def test_a_generation_below_a_micro_batch_is_refused_like_other_sizes(tmp_path):
    assert "generation_batch_size" in faults(
        tmp_path, "model_name_or_path: m\ngeneration_batch_size: 4\n"
    )


def test_truncation_in_generation_kwargs_is_truncation():
    given = {
        **MODEL,
        "use_vllm": True,
        "vllm_mode": "server",
        "overlap": "one_step",
        "steps_per_generation": 8,
    }
    assert load_recipe(
        None, {**given, "gradient_accumulation_steps": 8, "generation_kwargs": {"top_p": 1.0}}
    )
    with pytest.raises(RecipeError, match="tokens that top_p and min_p keep"):
        load_recipe(
            None, {**given, "gradient_accumulation_steps": 8, "generation_kwargs": {"top_p": 0.9}}
        )


def test_a_length_without_limit_is_refused_where_transformers_evaluates(tmp_path):
    text = "model_name_or_path: m\nuse_vllm: true\nmax_completion_length: null\n"
    assert load_recipe(write(tmp_path, text))
    assert "ends completions in evaluations after 20 tokens" in faults(
        tmp_path, text + "eval_strategy: steps\neval_temperature: 0\n"
    )


LIMITLESS = "use_vllm: true\nvllm_mode: server\nmax_completion_length: null\n"


def test_a_loss_that_divides_by_the_longest_length_needs_one(tmp_path):
    text = "model_name_or_path: m\nloss_type: dr_grpo\n"
    told = faults(tmp_path, text + LIMITLESS)
    expected = "`loss_type: dr_grpo` divides the loss by max_completion_length, which is null"
    assert f"recipe.yaml:5: {expected}. Set max_completion_length to a number." in told
    load_recipe(write(tmp_path, "model_name_or_path: m\n" + LIMITLESS))


def test_a_loss_of_a_plugin_that_divides_by_the_longest_length_needs_one(tmp_path):
    plugin = tmp_path / "constant_loss.py"
    plugin.write_text(
        "from grpo_ext.objective.policy import register_loss\n\n\n"
        "@register_loss('mine_constant', aggregation='constant')\n"
        "def term(x):\n"
        "    return -x.advantages * x.ratio\n"
    )
    text = f"model_name_or_path: m\nreward_plugins: [{plugin}]\nloss_type: mine_constant\n"
    assert "`loss_type: mine_constant` divides the loss" in faults(tmp_path, text + LIMITLESS)


@pytest.mark.parametrize(
    "key", ["ref_model_sync_steps", "sapo_temperature_pos", "sapo_temperature_neg"]
)
def test_a_number_that_divides_is_not_0(tmp_path, key):
    told = faults(tmp_path, f"model_name_or_path: m\n{key}: 0\n")
    assert f"recipe.yaml:2: {key} must be greater than" in told


def test_a_recipe_of_the_other_kind_is_told_its_command(tmp_path):
    told = faults(tmp_path, "model_name_or_path: m\ncompletion_only_loss: true\n")
    assert "is a key of supervised training. Remove it, or train with `grpo-ext sft`" in told
    with pytest.raises(RecipeError, match="num_generations is a key of GRPO training"):
        load_sft_recipe(None, {**MODEL, "dataset_name": "d", "num_generations": 4})


def test_a_folder_is_no_recipe(tmp_path):
    with pytest.raises(FileNotFoundError, match="is a folder"):
        load_recipe(tmp_path)


def test_the_number_of_processes_counts(tmp_path, monkeypatch):
    path = write(
        tmp_path, "model_name_or_path: m\nper_device_train_batch_size: 3\nnum_generations: 6\n"
    )
    with pytest.raises(RecipeError):
        load_recipe(path)
    monkeypatch.setenv("WORLD_SIZE", "2")
    load_recipe(path)


def test_an_accelerate_config_that_is_no_mapping_is_said_so(tmp_path):
    (tmp_path / "odd.yaml").write_text("- a\n")
    with pytest.raises(ValueError, match=r"odd\.yaml is not a mapping. It must consist of"):
        accelerate_settings(str(tmp_path / "odd.yaml"))
    load_recipe(None, {**MODEL, "accelerate_config": str(tmp_path / "odd.yaml")})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("num_processes: 0\n", "num_processes must be a whole number above 0; got 0"),
        ("deepspeed_config: 3\n", "deepspeed_config must be a mapping; got 3"),
        ("deepspeed_config: {zero_stage: auto}\n", "must be 0, 1, 2 or 3; got 'auto'"),
        ("deepspeed_config: {zero_stage: 4}\n", "must be 0, 1, 2 or 3; got 4"),
    ],
)
def test_values_of_an_accelerate_config_that_cannot_be_used_are_named(tmp_path, text, words):
    (tmp_path / "odd.yaml").write_text(text)
    with pytest.raises(ValueError, match=re.escape(words)):
        accelerate_settings(str(tmp_path / "odd.yaml"))
    load_recipe(None, {**MODEL, "accelerate_config": str(tmp_path / "odd.yaml")})


def test_values_that_accelerate_accepts_are_accepted(tmp_path):
    (tmp_path / "odd.yaml").write_text(
        "num_processes:\ndeepspeed_config: {zero_stage: '3'}\ndistributed_type: DEEPSPEED\n"
    )
    recipe = load_recipe(None, {**MODEL, "accelerate_config": str(tmp_path / "odd.yaml")})
    assert sharding(recipe.flat) == 3


@pytest.mark.parametrize(
    ("content", "stage"),
    [
        ('{"zero_optimization": {"stage": 3}}', 3),
        ('{"zero_optimization": {"stage": 7}}', 0),
        ("[]", 0),
        ("{", 0),
        (None, 0),
    ],
)
def test_the_stage_of_a_deepspeed_file_counts(tmp_path, content, stage):
    if content is not None:
        (tmp_path / "ds.json").write_text(content)
    (tmp_path / "zero.yaml").write_text(
        "distributed_type: DEEPSPEED\n"
        f"deepspeed_config: {{deepspeed_config_file: {tmp_path / 'ds.json'}}}\n"
    )
    recipe = load_recipe(None, {**MODEL, "accelerate_config": str(tmp_path / "zero.yaml")})
    assert sharding(recipe.flat) == stage


def test_a_missing_file_is_said_so(tmp_path):
    with pytest.raises(FileNotFoundError, match="no recipe at"):
        load_recipe(tmp_path / "none.yaml")


def test_overrides_can_be_a_mapping():
    recipe = load_recipe(
        None, {**MODEL, "max_number": 12, "reward_funcs": [{"name": "format", "weight": 0.5}]}
    )
    assert recipe.task.max_number == 12
    assert recipe.run.reward_funcs == [{"name": "format", "weight": 0.5}]


def test_a_preset_gives_way_to_the_recipe(tmp_path):
    recipe = load_recipe(
        write(
            tmp_path, "model_name_or_path: m\npreset: grpo_paper\nbeta: 0.01\nnum_generations: 8\n"
        )
    )
    assert recipe.get("std_estimator") == "population"
    assert recipe.get("learning_rate") == 1e-6
    assert recipe.get("beta") == 0.01
    assert "'grpo_paper'" in faults(tmp_path, "model_name_or_path: m\npreset: grpo_papr\n")


@pytest.mark.parametrize(
    "words, expected",
    [
        (["--reward_funcs", "a", "b"], "--reward_funcs '[a, b]'."),
        (["--reward_funcs=a", "b", "c", "--beta", "0.1"], "--reward_funcs '[a, b, c]'."),
        (
            ["--lora_target_modules", "q_proj", "v_proj"],
            "--lora_target_modules '[q_proj, v_proj]'.",
        ),
    ],
)
def test_a_list_of_several_words_is_told_to_be_one_word(words, expected):
    with pytest.raises(RecipeError) as error:
        parse_words(words)
    told = str(error.value)
    assert "expected `--key value`, got 'b'" in told or "got 'v_proj'" in told
    assert told.endswith(f" to a list, use one argument: {expected}")
    key, corrected = expected.rstrip(".").split(" ", 1)
    assert parse_words([key, corrected.strip("'")])


def test_a_word_without_a_key_before_it_is_told_as_such():
    with pytest.raises(RecipeError, match=r"expected `--key value`, got 'fast'\.$"):
        parse_words(["fast"])


@pytest.mark.parametrize("stray", ["-x", "-"])
def test_what_looks_like_an_option_is_not_taken_for_the_entry_of_a_list(stray):
    with pytest.raises(RecipeError, match=rf"got '{stray}'\.$"):
        parse_words(["--beta", "0.1", stray, "3"])
    with pytest.raises(RecipeError, match=r"'\[0\.1, 2\]'\.$"):
        parse_words(["--beta", "0.1", "2", stray])
    with pytest.raises(RecipeError, match=r"'\[0\.1, -2\]'\.$"):
        parse_words(["--beta", "0.1", "-2"])


def test_config_is_found_among_the_words():
    assert split_config(["--a", "1", "--config", "x.yaml", "--b"]) == (
        "x.yaml",
        ["--a", "1", "--b"],
    )
    assert split_config(["--config=x.yaml"]) == ("x.yaml", [])
    assert split_config(["--a"]) == (None, ["--a"])


@pytest.mark.parametrize(
    "path",
    sorted((REPO / "recipes").rglob("*-sft.yaml")),
    ids=lambda p: f"{p.parent.name}/{p.name}",
)
def test_every_recipe_of_a_warm_start_is_sound(path):
    load_sft_recipe(path)
    assert (
        f"--config recipes/{path.parent.name}/{path.name}"
        in path.read_text(encoding="utf-8").split("\n\n")[0]
    )


def test_the_accelerate_config_says_how_many_processes_there_are():
    batch = {**MODEL, "per_device_train_batch_size": 4, "num_generations": 8}
    load_recipe(None, {**batch, "accelerate_config": "zero3"})
    with pytest.raises(RecipeError, match="4 completions"):
        load_recipe(None, {**batch, "accelerate_config": "cpu"})


RECIPES = sorted(
    p
    for p in (REPO / "recipes").rglob("*.yaml")
    if p.parent.name != "accelerate" and "sft" not in p.stem
)
OF_OTHERS = {"frozen_lake.yaml": "gymnasium", "verifiers.yaml": "sophistry_bench_sprint"}
RECIPES += [REPO / "examples" / "environments" / name for name in OF_OTHERS]


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_every_recipe_is_sound_and_begins_with_its_command(path):
    if path.parent.name == "reasoning_gym":
        pytest.importorskip("reasoning_gym")
    if path.name in OF_OTHERS:
        pytest.importorskip(OF_OTHERS[path.name])
    load_recipe(path)
    head = path.read_text(encoding="utf-8").split("\n\n")[0]
    assert head.startswith("#")
    assert f"--config {path.relative_to(REPO)}" in head


def test_a_machine_without_accelerator_trains_on_the_cpu_unless_the_recipe_says(monkeypatch):
    import torch

    given = {"model_name_or_path": "m", "report_to": "none"}
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: False)
    training = load_recipe(None, given).training
    assert (training.use_cpu, training.bf16) == (True, False)
    assert load_recipe(None, {**given, "bf16": True}).training.bf16
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    assert not load_recipe(None, {**given, "bf16": False}).training.use_cpu


def test_the_metric_of_groups_is_named_as_it_is_logged(tmp_path):
    rewards = (
        "reward_funcs: [{name: environment, label: guess}, 'mine.py:short', org/judge, format]\n"
    )
    text = "model_name_or_path: m\nnum_generations: 2\n" + rewards
    for name in ("guess", "short", "judge", "format"):
        load_recipe(write(tmp_path, f"{text}group_filter_metric: {name}\n"))
    slashed = text.replace("label: guess", "label: a/guess")
    load_recipe(write(tmp_path, f"{slashed}group_filter_metric: a/guess\n"))
    for name in ("environment", "org/judge"):
        assert "Its rewards are guess, short, judge, format." in faults(
            tmp_path, f"{text}group_filter_metric: {name}\n"
        )


@pytest.mark.parametrize(
    "given, words",
    [
        ({"min_p": 2}, "min_p is 2, but must lie in [0, 1]. Set `min_p: 0.0`"),
        ({"temperature": "hot"}, "temperature is 'hot', but must be a number"),
        ({"top_k": [1]}, "top_k is [1], but must be a number"),
        ({"suppress_tokens": 5}, "suppress_tokens is 5, but must be a list of token ids"),
        ({"num_beams": 4}, "beam search does not sample token by token"),
    ],
)
def test_a_sampling_option_in_generation_kwargs_is_reported_there(given, words):
    with pytest.raises(RecipeError) as error:
        load_recipe(None, {**MODEL, "top_p": 0.9, "generation_kwargs": given})
    [problem] = error.value.problems
    assert problem.key == "generation_kwargs" and words in problem.message


@pytest.mark.parametrize(
    "key, values",
    [
        ("partial_rollouts", {"partial_rollouts": 64, "overlap": "one_step", "sampler": "process"}),
        ("use_vllm", {"use_vllm": True}),
    ],
)
def test_generation_kwargs_as_text_are_read_as_a_mapping(tmp_path, key, values):
    given = {**MODEL, **values, "generation_kwargs": '{"min_p": null}'}
    assert load_recipe(None, given).get("generation_kwargs") == {"min_p": None}
    path = write(tmp_path, "model_name_or_path: m\ngeneration_kwargs: min_p\n")
    with pytest.raises(
        RecipeError, match="generation_kwargs must be a mapping or null; got 'min_p'"
    ):
        load_recipe(path, values)


def test_a_sampler_process_plays_an_environment_without_overlap_and_needs_our_loss():
    given = {**MODEL, "sampler": "process"}
    load_recipe(None, {**given, "environment": "guess"})
    with pytest.raises(RecipeError, match="`overlap: one_step` does not support environments yet"):
        load_recipe(None, {**given, "environment": "guess", "overlap": "one_step"})
    with pytest.raises(RecipeError, match="`sampler: process` needs `loss_normalization: step`"):
        load_recipe(None, {**given, "loss_normalization": "micro_batch"})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "null"),
        (True, "true"),
        ("off", "'off'"),
        ("é", "é"),
        ({"name": "guess", "turns": 3}, "{name: guess, turns: 3}"),
        (np.float64(0.5), "0.5"),
    ],
)
def test_values_in_messages_are_yaml_on_one_line(value, text):
    assert in_yaml(value) == text
    assert len(in_yaml({"a": "x\ny", "b": value}).splitlines()) == 1
