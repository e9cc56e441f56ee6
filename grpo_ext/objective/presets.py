"""Presets: values that make a run match a paper; each value names its source.

A preset sets only what its source states. The values of a recipe override it.
"""

from typing import Any

DEEPSEEKMATH = "DeepSeekMath, arXiv 2402.03300"
DR_GRPO = "Dr. GRPO, arXiv 2503.20783"
DAPO = "DAPO, arXiv 2503.14476"
TRL = "TRL 1.16"

# preset -> field -> (value, source)
PRESETS: dict[str, dict[str, tuple[Any, str]]] = {
    "grpo_paper": {
        "loss_type": ("grpo", f"{DEEPSEEKMATH}, eq. 3"),
        "scale_rewards": ("group", f"{DEEPSEEKMATH}, section 4.1.2"),
        "std_estimator": ("population", f"{DEEPSEEKMATH}, section 4.1.2: std of the group, not of a sample of it"),
        "beta": (0.04, f"{DEEPSEEKMATH}, section 4.2"),
        "kl_estimator": ("k3", f"{DEEPSEEKMATH}, eq. 4"),
        "use_bias_correction_kl": (False, f"{DEEPSEEKMATH}, eq. 3: KL outside the ratio"),
        "num_generations": (64, f"{DEEPSEEKMATH}, section 4.2"),
        "max_completion_length": (1024, f"{DEEPSEEKMATH}, section 4.2"),
        "learning_rate": (1e-6, f"{DEEPSEEKMATH}, section 4.2"),
        "num_iterations": (1, f"{DEEPSEEKMATH}, section 4.2: a single update following each exploration stage"),
        "importance_sampling_level": ("token", f"{DEEPSEEKMATH}, eq. 3"),
        "loss_normalization": ("step", f"{DEEPSEEKMATH}, eq. 3: the mean over all completions of the step"),
    },
    "dr_grpo_paper": {
        "loss_type": ("dr_grpo", f"{DR_GRPO}: length normalisation removed"),
        "scale_rewards": ("none", f"{DR_GRPO}: std normalisation removed"),
        "beta": (0.0, f"{DR_GRPO}: without KL"),
        "importance_sampling_level": ("token", f"{DR_GRPO}: a ratio a token"),
        "loss_normalization": ("step", f"{DR_GRPO}: one constant for all tokens"),
    },
    "dapo_paper": {
        "loss_type": ("dapo", f"{DAPO}: token-level loss"),
        "epsilon": (0.2, f"{DAPO}, section 4.1"),
        "epsilon_high": (0.28, f"{DAPO}, section 4.1"),
        "scale_rewards": ("group", f"{DAPO}: std of the group"),
        "std_estimator": ("population", f"{DAPO}: std of the group"),
        "beta": (0.0, f"{DAPO}, section 2.3: KL removed"),
        "mask_truncated_completions": (True, f"{DAPO}: overlong filtering"),
        "num_generations": (16, f"{DAPO}, section 4.1"),
        "group_filter": ("refill", f"{DAPO}, section 3.2: dynamic sampling"),
        "learning_rate": (1e-6, f"{DAPO}: training details"),
        "importance_sampling_level": ("token", f"{DAPO}: a ratio a token"),
        "loss_normalization": ("step", f"{DAPO}: over all tokens"),
    },
    "trl": {
        "loss_normalization": ("micro_batch", f"{TRL}: grpo_trainer.py, _compute_loss"),
        "logprob_policy": ("trl", f"{TRL}: temperature alone, truncation left out"),
        "std_estimator": ("sample", f"{TRL}: utils.py, nanstd"),
        "advantage_normalizer": ("all", f"{TRL}: grpo_trainer.py, _compute_loss"),
        "kl_estimator": ("k3", f"{TRL}: grpo_trainer.py, _compute_loss"),
        "group_filter": ("off", f"{TRL}: groups without signal are trained on"),
        "fast_generate": (False, f"{TRL}: grpo_trainer.py, _generate_single_turn"),
        "vllm_importance_sampling_mode": ("sequence_mask", f"{TRL}: grpo_config.py"),
        "disable_dropout": (False, f"{TRL}: grpo_config.py"),
    },
}
