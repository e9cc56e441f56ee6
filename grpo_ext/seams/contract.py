"""The seams of TRL that the trainer stands on, and a check that says which one moved.

TRL rewrites its GRPO trainer often and promises nothing about these names. A run on a TRL whose seams differ would be wrong in
silence, so it is refused: by `check_contract()`, called when a trainer is made, and by a test.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache

import trl
import trl.trainer.utils
from transformers import GenerationMixin
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from grpo_ext.seams.version import CURRENT, FILES, installed

# Methods of `GRPOTrainer` that we override or call, with the parameters that we count on, in order.
METHODS: dict[str, tuple[str, ...]] = {
    "_calculate_rewards": ("self", "inputs", "prompts", "completions", "completion_ids_list"),
    "_get_per_token_logps_and_entropies": (
        "self",
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "batch_size",
    ),
    "_get_train_sampler": ("self", "dataset"),
    "_compute_loss": ("self", "model", "inputs"),
    "_prepare_inputs": ("self", "generation_batch"),
    "_tokenize_prompts": ("self", "prompts"),
    "_generate_single_turn": (
        "self",
        "prompt_ids",
        "images",
        "multimodal_fields",
        "num_generations",
        "has_tool_images",
    ),
    "_generate_and_score_completions": ("self", "inputs"),
    "get_batch_samples": ("self", "epoch_iterator", "num_batches", "device"),
    "get_high_entropy_mask": ("self", "entropies", "mask", "threshold"),
    "evaluate": ("self", "eval_dataset", "ignore_keys", "metric_key_prefix"),
    "log": ("self", "logs", "start_time"),
    "training_step": ("self", "model", "inputs", "num_items_in_batch"),
    "train": ("self", "resume_from_checkpoint", "trial", "ignore_keys_for_eval"),
    "_save_checkpoint": ("self", "model", "trial"),
    "create_model_card": ("self", "model_name", "dataset_name", "tags"),
    "_run_epoch": ("self", "model", "epoch"),
    "_get_grad_norm": ("self", "model", "grad_norm"),
}

# The same of what talks to vLLM.
VLLM_METHODS: dict[type, dict[str, tuple[str, ...]]] = {
    VLLMGeneration: {
        "_init_vllm": ("self",),
        "sync_weights": ("self",),
        "_iter_named_params": ("self",),
        "generate": ("self", "prompts", "images", "num_generations", "profiler"),
    },
    VLLMClient: {
        "__init__": ("self", "base_url", "host", "server_port", "group_port", "connection_timeout"),
        "check_server": ("self", "total_timeout", "retry_interval"),
        "get_world_size": ("self",),
        "generate": ("self", "prompts"),
        "init_communicator": ("self", "device"),
        "update_named_params": ("self", "metadata", "named_params"),
        "_start_weight_update": ("self",),
        "_finish_weight_update": ("self",),
        "reset_prefix_cache": ("self",),
        "close_communicator": ("self",),
        "_get": ("self", "url"),
        "_post": ("self", "url"),
    },
}

# Attributes that `GRPOTrainer.__init__` sets and that we read, as they are written there.
ATTRIBUTES = (
    "self.reward_funcs = ",
    "self.reward_func_names = ",
    "self.num_generations = ",
    "self.num_generations_eval = ",
    "self.chat_template_kwargs = ",
    "self._metrics = ",
    "self._dist = ",
    "self._step = ",
    "self._buffered_inputs = ",
    "self.temperature = ",
    "self.generation_config = ",
    "self.generation_kwargs = ",
    "self.beta = ",
    "self.mask_truncated_completions = ",
    "self.max_completion_length = ",
    "self.epsilon_low = ",
    "self.epsilon_high = ",
    "self.router_aux_loss_coef = ",
    "self.aux_loss_enabled = ",
    "self.eos_token_ids = ",
    "self.top_entropy_quantile = ",
    "self.ref_model = ",
    "self._logs = ",
    "self._pending_extra_logs = ",
    "self._pending_metrics = ",
    "self.num_iterations = ",
    "self.shuffle_dataset = ",
    "self.generation_config = ",
    "self.use_vllm = ",
    "self.use_transformers_continuous_batching = ",
)

LOSS_STATE = ("_tr_loss", "_globalstep_last_logged")  # of transformers' loop; a resumed run gives them back


def in_order(method: Callable, first: str, second: str) -> bool:
    """Whether a method's source has both, in this order."""
    source = inspect.getsource(method)
    return -1 < source.find(first) < source.find(second)


@cache
def check_contract() -> None:
    """Check the installed TRL against the seams above.

    Raises:
        RuntimeError: naming each seam that moved.
    """
    moved = []
    if installed() not in FILES:
        moved.append(f"TRL is {trl.__version__}, and this package is written for {' and '.join(FILES)}")
    for owner, methods in {trl.GRPOTrainer: METHODS, **VLLM_METHODS}.items():
        for name, expected in methods.items():
            method = getattr(owner, name, None)
            found = tuple(inspect.signature(method).parameters)[: len(expected)] if method else None
            if found != expected:
                moved.append(f"{owner.__name__}.{name}: expected parameters {expected}, found {found}")
    head = inspect.getsource(trl.trainer.utils.add_fused_lm_head)
    moved += [f"add_fused_lm_head no longer scores with `{text}`" for text in CURRENT.FUSED_HEAD if text not in head]
    if "temperature = self.temperature" not in inspect.getsource(VLLMGeneration.generate):
        moved.append("VLLMGeneration.generate no longer reads its temperature at each call")
    places = (trl.GRPOTrainer.__init__, "VLLMGeneration("), (VLLMGeneration._init_vllm, " LLM(")
    for place, text in (*places, (VLLMGeneration._init_vllm, " VLLMClient(")):
        if text not in inspect.getsource(place):
            moved.append(f"{place.__qualname__} no longer calls `{text.strip()}...)`")
    if "self.llm.generate(" not in inspect.getsource(VLLMGeneration.generate):
        moved.append("VLLMGeneration.generate no longer calls self.llm.generate")
    if '"model": self.model' not in inspect.getsource(VLLMClient.generate):
        moved.append("VLLMClient.generate no longer asks for the model that the client names")
    for name in ("_get_logits_processor", "_get_stopping_criteria"):
        if not hasattr(GenerationMixin, name):
            moved.append(f"transformers' GenerationMixin has no {name}")
    if not in_order(VLLMGeneration._iter_named_params, "model.merge_adapter()", "model.unmerge_adapter()"):
        moved.append("VLLMGeneration._iter_named_params no longer merges an adapter and takes it out again")
    if "unwrapped_model.generate(" not in inspect.getsource(trl.GRPOTrainer._generate_single_turn):
        moved.append("GRPOTrainer._generate_single_turn no longer calls unwrapped_model.generate")
    if "custom_generate" not in inspect.signature(GenerationMixin.generate).parameters:
        moved.append("transformers' generate takes no custom_generate")
    loop = inspect.getsource(trl.GRPOTrainer._inner_training_loop).partition("on_train_begin")[0]
    moved += [f"Trainer no longer sets `{n}` before on_train_begin" for n in LOSS_STATE if f"self.{n} = " not in loop]
    source = inspect.getsource(trl.GRPOTrainer.__init__)
    moved += [f"GRPOTrainer.__init__ no longer sets `{text.strip(' =')}`" for text in ATTRIBUTES if text not in source]
    if moved:
        raise RuntimeError(
            f"grpo_ext does not fit the installed TRL. Install one that it fits: pip install 'trl=={list(FILES)[-1]}.*'. "
            "What moved: " + "; ".join(moved) + "."
        )
