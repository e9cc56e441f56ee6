"""The options that change the loss, the advantages, the groups or the sampler, and settings in
which they meet.

`VALUES` has them with values that the fuzzer draws; `NOT_DRAWN` those that it cannot draw, with the
reason; `IRRELEVANT` those that change none of the four. Of an option of this package in none of
them that is a choice or true or false, the fuzzer draws all values. `test_pairs` fails for any
other option in none of them.
"""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Iterable
from typing import Any

from hypothesis import strategies as st
from trl import GRPOConfig

from grpo_ext.objective.advantage import advantage_names, joint_advantage_names
from grpo_ext.recipe.arguments import argument_values
from grpo_ext.recipe.fields import hints_of
from grpo_ext.recipe.rules import GRPO_RULES, check_values
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.recipe.values import choices
from tests.support.scripted_run import DEVICE, REWARDS, WORLD, arguments, name_of, rewards_of

Settings = dict[str, Any]

# By option the values that differ from the default, the first one for the table of pairs.
VALUES: dict[str, tuple[Any, ...]] = {
    # the loss
    "loss_type": ("grpo", "bnpo", "dr_grpo", "luspo", "cispo", "sapo", "vespo", "dppo"),
    "importance_sampling_level": ("sequence",),
    "epsilon": (0.02, 0.1),
    "epsilon_high": (5.0, 0.05),
    "delta": (1.3, 2.0),
    "sapo_temperature_pos": (0.5,),
    "sapo_temperature_neg": (2.0,),
    "vespo_k_pos": (1.5,),
    "vespo_k_neg": (2.0,),
    "vespo_lambda_pos": (1.5,),
    "vespo_lambda_neg": (3.0,),
    "dppo_delta": (0.02,),
    "beta": (0.1, 1.0),
    "kl_estimator": ("k1", "k2"),
    "positive_nll_coef": (0.1, 1.0),
    "use_bias_correction_kl": (False,),
    "sync_ref_model": (True,),
    "ref_model_mixup_alpha": (0.3,),
    "ref_model_sync_steps": (1,),
    "entropy_coef": (0.05,),
    "use_adaptive_entropy": (True,),
    "entropy_target": (2.5,),
    "entropy_coef_delta": (0.1,),
    "entropy_coef_min": (0.02,),
    "entropy_coef_max": (0.05,),
    "top_entropy_quantile": (0.55, 0.2),
    "off_policy_mask_threshold": (0.01, -0.05),
    "mask_truncated_completions": (True,),
    "logprob_policy": ("model", "trl"),
    "max_completion_length": (4,),
    # the advantages
    "scale_rewards": tuple(name for name in advantage_names() if name != "group"),
    "std_estimator": ("population",),
    "advantage_normalizer": ("useful",),
    "multi_objective_aggregation": joint_advantage_names()[1:],  # the first is the default
    "reward_weights": ((0.25, 1.0, 0.5, 0.0), (1.0, 0.5, -0.25, 2.0)),
    # the groups and their prompts
    "num_generations": (4,),
    "group_filter": ("drop", "refill"),
    "group_filter_metric": ("last",),
    "group_filter_max_rounds": (1,),
    "tie_break_reward": ("last",),
    "tie_break_coef": (1.0, 0.5),
    "max_staleness": (0, 3),
    "pass_threshold": (0.5,),
    "curriculum": ("adaptive", "easy_to_hard"),
    "difficulty_column": ("hardness", "number"),
    "pass_rate_decay": (0.9,),
    "max_slots_per_prompt": (2, 4),
    "shuffle_dataset": (False,),
    # the sampler
    "temperature": (0.7, 1.5),
    "top_k": (5,),
    "top_p": (0.8,),
    "min_p": (0.1,),
    "repetition_penalty": (1.2,),
    "generation_kwargs": ({"suppress_tokens": [5, 6]}, {"typical_p": 0.9}, {"top_k": 7}),
    "use_vllm": (True,),
    "vllm_mode": ("server",),
    "sampler": ("process",),
    "use_transformers_continuous_batching": (True,),
    "environment": ({"name": WORLD}, {"name": WORLD, "credit": "turn"}),
    "overlap": ("one_step",),
    "behaviour_policy": ("sampler",),
    "partial_rollouts": (2, 3),
    "sampler_check_share": (1.0,),
    "fast_generate": (False,),
    "vllm_importance_sampling_correction": (False,),
    "vllm_importance_sampling_mode": (
        "token_mask",
        "sequence_truncate",
        "sequence_mask",
        "geometric_truncate",
        "geometric_mask",
    ),
    "vllm_importance_sampling_clip_max": (1.1, None),
    "vllm_importance_sampling_clip_min": (0.9, 0.5),
    # how the step is cut
    "gradient_accumulation_steps": (2,),
    "steps_per_generation": (2,),
    "num_iterations": (2,),
    "layout": ("padded", "chunks", "packed"),
    "max_tokens_per_micro_batch": (40,),
    "skip_dead_rows": (False,),
    "gradient_checkpointing": (False,),
}

# Options without effect by themselves: what is set along with them.
ALONG: dict[str, Settings] = {
    "advantage_normalizer": {"rewards": "two"},
    "behaviour_policy": {"sampler": "process"},
    "delta": {"num_iterations": 2},
    "difficulty_column": {"curriculum": "easy_to_hard"},
    "dppo_delta": {"loss_type": "dppo", "num_iterations": 2},
    "entropy_coef_delta": {"use_adaptive_entropy": True},
    "entropy_coef_max": {"use_adaptive_entropy": True},
    "entropy_coef_min": {"use_adaptive_entropy": True},
    "entropy_target": {"use_adaptive_entropy": True},
    "epsilon": {"num_iterations": 2},
    "group_filter_max_rounds": {"group_filter": "refill"},
    "kl_estimator": {"beta": 0.1},
    "max_slots_per_prompt": {"curriculum": "adaptive"},
    "max_staleness": {"group_filter": "refill"},
    "multi_objective_aggregation": {"rewards": "two"},
    "overlap": {"sampler": "process"},
    "partial_rollouts": {"overlap": "one_step", "sampler": "process"},
    "pass_rate_decay": {"curriculum": "adaptive"},
    "ref_model_mixup_alpha": {"sync_ref_model": True, "beta": 0.1},
    "repetition_penalty": {"logprob_policy": "model"},
    "ref_model_sync_steps": {"sync_ref_model": True, "beta": 0.1},
    "sapo_temperature_neg": {"loss_type": "sapo", "num_iterations": 2},
    "sapo_temperature_pos": {"loss_type": "sapo", "num_iterations": 2},
    "sync_ref_model": {"beta": 0.1, "ref_model_sync_steps": 1},
    "tie_break_coef": {"tie_break_reward": "last"},
    "tie_break_reward": {"rewards": "constant beside", "pass_threshold": 0.5},
    "use_adaptive_entropy": {"entropy_target": 2.5, "entropy_coef_delta": 0.1},
    "use_bias_correction_kl": {"beta": 0.1, "kl_estimator": "k2"},
    "vespo_k_neg": {"loss_type": "vespo"},
    "vespo_k_pos": {"loss_type": "vespo"},
    "vespo_lambda_neg": {"loss_type": "vespo"},
    "vespo_lambda_pos": {"loss_type": "vespo"},
    "vllm_importance_sampling_clip_max": {"sampler": "process"},
    "vllm_importance_sampling_clip_min": {"sampler": "process"},
    "vllm_importance_sampling_correction": {"sampler": "process"},
    "vllm_importance_sampling_mode": {"sampler": "process"},
    "vllm_mode": {"use_vllm": True},
}
# Likewise for single values, by option and value as text.
ALONG_VALUE: dict[tuple[str, str], Settings] = {
    ("curriculum", "easy_to_hard"): {"difficulty_column": "hardness"},
    ("kl_estimator", "k2"): {"use_bias_correction_kl": False},
    ("loss_type", "cispo"): {"epsilon_high": 5.0},
    ("loss_type", "luspo"): {"importance_sampling_level": "sequence"},
    ("vllm_importance_sampling_clip_max", "None"): {"vllm_importance_sampling_mode": "token_mask"},
}

# Those that no scripted run can draw, and where they are tested instead.
NOT_DRAWN: dict[str, tuple[Any, str]] = {
    "loss_normalization": (
        "micro_batch",
        "TRL itself generates and computes the loss, so the run equals plain TRL bit for bit: "
        "`tests/trainer/test_bit_for_bit.py`",
    ),
    "neftune_noise_alpha": (5.0, "refused unless TRL computes the loss"),
    "router_aux_loss_coef": (
        0.01,
        "a term that models with experts add to the loss: `tests/trainer/test_one_meaning.py`",
    ),
    "environments": (
        {"letters": {"name": WORLD}},
        "as `environment`, but each row names its own: "
        "`tests/trainer/test_several_environments.py`",
    ),
    "deterministic": (
        True,
        "a scripted sampler has log-probs of its own: `tests/trainer/test_deterministic.py`",
    ),
    "disable_dropout": (
        False,
        "dropout differs in each pass, so the run warns: `tests/trainer/test_dropout.py`",
    ),
}

# Those that change neither the loss, the advantages, the groups nor the sampler, by the reason.
IRRELEVANT: dict[str, str] = {
    "what an optimizer makes of the gradient": """
        adam_beta1 adam_beta2 adam_epsilon learning_rate lr_scheduler_kwargs lr_scheduler_type
        max_grad_norm max_skipped_steps optim optim_args optim_target_modules warmup_steps
        weight_decay""",
    "how long a run is, and with which seeds": """
        data_seed full_determinism max_steps num_train_epochs seed""",
    "number types, kernels and devices, which round": """
        activation_checkpointing activation_checkpointing_kwargs attention_in_fp32 bf16
        cast_lm_head_to_fp32 fp16 gradient_checkpointing_kwargs liger_kernel_config
        residual_in_fp32 sampler_device tf32 torch_compile torch_compile_backend
        torch_compile_mode torch_empty_cache_steps use_cache use_cpu use_liger_kernel""",
    "how ranks work together": """
        accelerator_config average_tokens_across_devices ddp_backend ddp_broadcast_buffers
        ddp_bucket_cap_mb ddp_find_unused_parameters ddp_static_graph ddp_timeout deepspeed
        ds3_gather_for_generation fsdp fsdp_config local_rank parallelism_config""",
    "how an engine is run, not what it draws from": """
        cache_implementation transformers_continuous_batching_config use_transformers_paged
        vllm_enable_sleep_mode vllm_gpu_memory_utilization vllm_group_port vllm_max_model_length
        vllm_model_impl vllm_server_base_url vllm_server_devices vllm_server_host
        vllm_server_port vllm_server_request_timeout vllm_server_retries vllm_server_timeout
        vllm_sync_adapter vllm_sync_check_limit vllm_sync_check_steps
        vllm_structured_outputs_regex vllm_tensor_parallel_size""",
    "another way to write one of the options": """
        auto_find_batch_size generation_batch_size pad_to_multiple_of
        per_device_train_batch_size vllm_importance_sampling_cap""",
    "the prompts and the model as they are read": """
        chat_template_kwargs dataloader_drop_last dataloader_in_order
        dataloader_multiprocessing_context dataloader_num_workers dataloader_persistent_workers
        dataloader_pin_memory dataloader_prefetch_factor ignore_data_skip label_names
        label_smoothing_factor length_column_name max_tool_calling_iterations model_init_kwargs
        pass_rates_file remove_unused_columns train_sampling_strategy trust_remote_code""",
    "when a reward counts as missing": """
        reward_max_failure_rate reward_timeout reward_workers""",
    "evaluation": """
        batch_eval_metrics bf16_full_eval do_eval do_predict do_train eval_accumulation_steps
        eval_constant eval_delay eval_do_concat_batches eval_min_p eval_num_samples
        eval_on_start eval_steps eval_strategy eval_temperature eval_top_k eval_top_p
        eval_use_gather_object fp16_full_eval greater_is_better include_for_metrics
        load_best_model_at_end metric_for_best_model num_generations_eval
        per_device_eval_batch_size prediction_loss_only""",
    "logs, alarms, checkpoints and the hub": """
        debug disable_tqdm enable_jit_checkpoint health_action health_rules hub_always_push
        hub_model_id hub_private_repo hub_revision hub_strategy hub_token
        include_num_input_tokens_seen log_completions log_completions_hub_repo log_level
        log_level_replica log_multimodal log_on_each_node log_samples log_tokens
        log_unique_prompts logging_first_step logging_nan_inf_filter logging_steps
        logging_strategy num_completions_to_print output_dir project push_to_hub report_to
        restore_callback_states_from_checkpoint resume_from_checkpoint run_name
        save_on_each_node save_only_model save_steps save_strategy save_total_limit
        skip_memory_metrics trackio_bucket_id trackio_space_id trackio_static_space_id""",
}


def values_by_type() -> dict[str, tuple[Any, ...]]:
    """Return all values but the default of the options of this package that are listed nowhere, if
    they are a choice or true or false.
    """
    listed = {*VALUES, *NOT_DRAWN, *" ".join(IRRELEVANT.values()).split()}
    hints = hints_of(GRPOExtConfig)
    values: dict[str, tuple[Any, ...]] = {}
    for option in dataclasses.fields(GRPOExtConfig):
        if option.name in listed or hasattr(GRPOConfig, option.name):
            continue
        hint = hints[option.name]
        every = [True, False] if hint is bool else choices(hint)
        if every:
            values[option.name] = tuple(value for value in every if value != option.default)
    return values


VALUES |= values_by_type()
CUT = ("gradient_accumulation_steps", "steps_per_generation", "num_iterations", "num_generations")


def cuts() -> list[Settings]:
    """Return batches of 4 to 16 completions, of which a quarter is for two ranks; on a GPU none.

    CUDA does not survive the fork that makes a second rank.
    """
    one = []
    two = []
    for size in (2, 4, 8):
        for accumulation in (1, 2):
            for slices in (1, 2, 4):
                for iterations in (1, 2):
                    for group in (2, 4):
                        for ranks in (1, 2):
                            completions = size * slices * ranks
                            if not 4 <= completions <= 16 or completions % group:
                                continue
                            cut = {
                                "ranks": ranks,
                                "per_device_train_batch_size": size,
                                "gradient_accumulation_steps": accumulation,
                                "steps_per_generation": slices,
                                "num_iterations": iterations,
                                "num_generations": group,
                            }
                            (one if ranks == 1 else two).append(cut)
    if DEVICE != "cpu":
        return one
    return [*one, *two[:: max(1, 3 * len(two) // len(one))]]


def with_option(settings: Settings, name: str, value: Any) -> Settings:
    """Return the settings with one more option, and with what it does nothing without."""
    fixed = {"rewards", *CUT} if "per_device_train_batch_size" in settings else set()
    more = {**ALONG.get(name, {}), **ALONG_VALUE.get((name, str(value)), {})}
    if more.get("sampler") == "process":
        more = by_the_engine(more, settings)
    settings = {**settings, name: value}
    for other, along in more.items():
        if other not in settings and other not in fixed:
            settings = with_option(settings, other, along)
    names = [name_of(reward) for reward in rewards_of({"rewards": "two", **settings})]
    if name == "reward_weights":
        settings[name] = list(value[: len(names)])
    if name == "group_filter_metric":
        settings[name] = names[-1]
    if name == "tie_break_reward":
        weights = settings.get("reward_weights") or [1.0] * len(names)
        settings |= {name: names[-1], "reward_weights": [*weights[:-1], 0.0]}
    if name == "environment" and "reward_weights" in settings:
        settings["reward_weights"] = [1.0, *settings["reward_weights"]]
    if "group_filter_metric" in settings and "tie_break_reward" in settings:
        settings["group_filter_metric"] = names[0]
    return settings


def by_the_engine(along: Settings, settings: Settings) -> Settings:
    """Return what is set along with an option about a separate sampler, beside the engine that is
    set already.
    """
    others = {name: value for name, value in along.items() if name != "sampler"}
    if settings.get("use_transformers_continuous_batching"):
        return others
    if settings.get("use_vllm"):
        return {**others, "vllm_mode": "server"}
    if settings.get("environment"):
        return {**others, "use_vllm": True, "vllm_mode": "server"}
    return along


def refusal(settings: Settings) -> str | None:
    """Return why settings are refused before a model is loaded; `None` if they are not."""
    ranks = settings.get("ranks", 1)
    names = [name_of(reward) for reward in rewards_of(settings)] if "rewards" in settings else []
    if names and settings.get("tie_break_reward") == names[0]:
        return "tie_break_reward judges groups"  # which only the trainer sees
    size = settings["per_device_train_batch_size"] * ranks
    whole = {**settings, "per_device_train_batch_size": size}  # this process is one rank
    try:
        args = arguments(whole, tempfile.gettempdir())
    except ValueError as error:
        return str(error)
    problems = check_values(argument_values(args, set()), GRPO_RULES, {}, 1)
    return "\n".join(map(str, problems)) or None


def met(cut: Settings, rewards: str, options: Iterable[tuple[str, Any]]) -> Settings:
    """Return settings with as many of the options, in this order, as are not refused beside those
    before.
    """
    settings = {**cut, "rewards": rewards, "seed": 1}
    for name, value in options:
        if name in settings:
            continue
        more = with_option(settings, name, value)
        if refusal(more) is None:
            settings = more
    return settings


@functools.cache
def drawn() -> st.SearchStrategy:
    """Settings of a run: a cut, rewards, and up to twelve options that go with each other."""
    options = [(name, value) for name in VALUES for value in VALUES[name] if name not in CUT]
    few = st.lists(st.sampled_from(options), max_size=12, unique_by=lambda option: option[0])
    seeds = st.integers(1, 1000)

    def settled(cut: Settings, rewards: str, chosen: list[tuple[str, Any]], seed: int) -> Settings:
        return {**met(cut, rewards, chosen), "seed": seed}

    return st.builds(settled, st.sampled_from(cuts()), st.sampled_from([*REWARDS]), few, seeds)
