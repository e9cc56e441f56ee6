"""The private parts of TRL and transformers that this package relies on, and a check that names those that have changed.

TRL changes its GRPO trainer often and guarantees none of these names. A run on a TRL whose private parts differ could be wrong
without an error, so `check_contract()` refuses it when a trainer is made.
"""

import inspect
from functools import cache
from typing import Any

import trl
import trl.trainer.utils
from transformers import GenerationMixin
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from grpo_ext.seams.version import CURRENT, FILES, installed

# Methods that we override or call, with the parameters after `self` that we rely on, in order.
METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    trl.GRPOTrainer: {
        "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
        "_get_per_token_logps_and_entropies": ("model", "input_ids", "attention_mask", "logits_to_keep", "batch_size"),
        "_get_train_sampler": ("dataset",),
        "_compute_loss": ("model", "inputs"),
        "_prepare_inputs": ("generation_batch",),
        "_tokenize_prompts": ("prompts",),
        "_generate_single_turn": ("prompt_ids", "images", "multimodal_fields", "num_generations", "has_tool_images"),
        "_generate_and_score_completions": ("inputs",),
        "get_batch_samples": ("epoch_iterator", "num_batches", "device"),
        "get_high_entropy_mask": ("entropies", "mask", "threshold"),
        "evaluate": ("eval_dataset", "ignore_keys", "metric_key_prefix"),
        "log": ("logs", "start_time"),
        "training_step": ("model", "inputs", "num_items_in_batch"),
        "train": ("resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
        "_save_checkpoint": ("model", "trial"),
        "create_model_card": ("model_name", "dataset_name", "tags"),
        "_run_epoch": ("model", "epoch"),
        "_get_grad_norm": ("model", "grad_norm"),
    },
    VLLMGeneration: {
        "_init_vllm": (),
        "sync_weights": (),
        "_iter_named_params": (),
        "generate": ("prompts", "images", "num_generations", "profiler"),
    },
    VLLMClient: {
        "__init__": ("base_url", "host", "server_port", "group_port", "connection_timeout"),
        "check_server": ("total_timeout", "retry_interval"),
        "get_world_size": (),
        "generate": ("prompts",),
        "init_communicator": ("device",),
        "update_named_params": ("metadata", "named_params"),
        "_start_weight_update": (),
        "_finish_weight_update": (),
        "reset_prefix_cache": (),
        "close_communicator": (),
        "_get": ("url",),
        "_post": ("url",),
    },
    GenerationMixin: {"_get_logits_processor": (), "_get_stopping_criteria": ()},
}

# Attributes that `GRPOTrainer.__init__` sets and that we read.
ATTRIBUTES = (
    "reward_funcs", "reward_func_names", "num_generations", "num_generations_eval", "chat_template_kwargs", "_metrics",
    "_dist", "_step", "_buffered_inputs", "temperature", "generation_config", "generation_kwargs", "beta",
    "mask_truncated_completions", "max_completion_length", "epsilon_low", "epsilon_high", "router_aux_loss_coef",
    "aux_loss_enabled", "eos_token_ids", "top_entropy_quantile", "ref_model", "_logs", "_pending_extra_logs",
    "_pending_metrics", "num_iterations", "shuffle_dataset", "use_vllm", "use_transformers_continuous_batching",
)  # fmt: skip

# Code that a function must contain, by the function's owner and name.
CODE: dict[tuple[Any, str], tuple[str, ...]] = {
    (trl.GRPOTrainer, "__init__"): (*(f"self.{name} = " for name in ATTRIBUTES), "VLLMGeneration("),
    (trl.GRPOTrainer, "_generate_single_turn"): ("unwrapped_model.generate(",),
    (trl.trainer.utils, "add_fused_lm_head"): CURRENT.FUSED_HEAD,
    (VLLMGeneration, "_init_vllm"): (" LLM(", " VLLMClient("),
    (VLLMGeneration, "generate"): (
        "temperature = self.temperature",
        "self.llm.generate(",
    ),  # reads its temperature at each call
    (VLLMGeneration, "_iter_named_params"): ("model.merge_adapter()", "model.unmerge_adapter()"),
    (VLLMClient, "generate"): ('"model": self.model',),
    (GenerationMixin, "generate"): ("custom_generate",),
}

LOSS_STATE = ("_tr_loss", "_globalstep_last_logged")  # of transformers' loop; a resumed run restores them


@cache
def check_contract() -> None:
    """Check the installed TRL against the seams above.

    Raises:
        RuntimeError: naming each seam that has changed.
    """
    moved = []
    if installed() not in FILES:
        moved.append(f"TRL is {trl.__version__}, and this package is written for {' and '.join(FILES)}")
    for owner, methods in METHODS.items():
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            found = tuple(inspect.signature(method).parameters)[1 : len(expected) + 1] if method else None
            if found != expected:
                moved.append(f"{owner.__name__}.{name}: expected parameters {expected}, found {found}")
    for (owner, name), texts in CODE.items():
        source = inspect.getsource(getattr(owner, name)) if hasattr(owner, name) else ""
        moved += [f"{owner.__name__}.{name} no longer has `{text.strip()}`" for text in texts if text not in source]
    loop = inspect.getsource(trl.GRPOTrainer._inner_training_loop).partition("on_train_begin")[0]
    moved += [f"Trainer no longer sets `{n}` before on_train_begin" for n in LOSS_STATE if f"self.{n} = " not in loop]
    if moved:
        raise RuntimeError(
            f"grpo_ext does not fit the installed TRL. Install one that it fits: pip install 'trl=={list(FILES)[-1]}.*'. "
            "What has changed: " + "; ".join(moved) + "."
        )
