"""Protocols for the trainer attributes and methods of TRL and transformers that this package uses.

Functions that need the whole trainer are annotated with a protocol instead of the trainer class, to
show what they rely on. `contract.check_contract` compares the names below with the installed
versions.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any, Protocol

import torch
from accelerate import Accelerator
from datasets import Dataset
from torch import Tensor
from transformers import (
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    ProcessorMixin,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
)
from transformers.trainer_callback import CallbackHandler
from trl import GRPOConfig

Row = dict[str, Any]  # a row of the dataset, by column


class TransformersTrainer(Protocol):
    """The attributes and methods of transformers' `Trainer` that this package uses."""

    @property
    def args(self) -> TrainingArguments: ...

    accelerator: Accelerator
    model: PreTrainedModel
    model_wrapped: torch.nn.Module
    processing_class: PreTrainedTokenizerBase | ProcessorMixin
    train_dataset: Dataset
    eval_dataset: Dataset | dict[str, Dataset] | None
    state: TrainerState
    callback_handler: CallbackHandler
    is_deepspeed_enabled: bool
    is_fsdp_enabled: bool
    # set by the training loop before `on_train_begin`
    _tr_loss: Tensor
    _total_loss_scalar: float
    _globalstep_last_logged: int

    def add_callback(self, callback: TrainerCallback) -> None: ...

    def is_world_process_zero(self) -> bool: ...

    def save_model(self) -> None: ...

    def save_state(self) -> None: ...


class TRLTrainer(TransformersTrainer, Protocol):
    """The attributes and methods of TRL's `GRPOTrainer` that this package uses."""

    @property
    def args(self) -> GRPOConfig: ...

    # the model and its tokens
    ref_model: PreTrainedModel | None
    eos_token_ids: list[int]
    aux_loss_enabled: bool
    router_aux_loss_coef: float
    # data and rewards
    shuffle_dataset: bool
    reward_funcs: list[Any]  # functions, or reward models
    reward_func_names: list[str]
    reward_weights: Tensor  # (R,)
    # generation
    num_generations: int
    num_generations_eval: int
    max_completion_length: int
    temperature: float
    generation_config: GenerationConfig
    generation_kwargs: dict[str, Any]
    chat_template_kwargs: dict[str, Any]
    use_transformers_continuous_batching: bool
    use_vllm: bool
    vllm_mode: str
    vllm_generation: Any  # a `VLLMGeneration`, or the class that `seams.vllm` puts in its place
    rollout_func: Callable[..., dict[str, Any]] | None  # called with the prompts and the trainer
    tools: list[Callable[..., Any]]
    environment_factories: Any  # functions by name, `None` without environments
    environments: Any  # one per completion of the last generation, or `None`
    # the loss
    beta: float
    epsilon_low: float
    epsilon_high: float
    importance_sampling_level: str
    off_policy_mask_threshold: float | None
    top_entropy_quantile: float
    entropy_coef: float
    mask_truncated_completions: bool
    multi_objective_aggregation: str
    num_iterations: int
    scale_rewards: str
    # private
    _tokenizer: PreTrainedTokenizerBase
    _standalone_tools: list[Callable[..., Any]]
    _dist: Any
    _step: int
    _current_train_step_time: float
    _buffered_inputs: Any
    _last_world_entropy: float
    _metrics: dict[str, defaultdict[str, list[float]]]
    _logs: Any  # for each column a deque, or a mapping of deques
    _pending_extra_logs: defaultdict[str, list[Any]]
    _pending_metrics: defaultdict[str, list[float]]

    def create_model_card(self, model_name: str | None = None) -> None: ...

    def get_high_entropy_mask(
        self,
        entropies: Tensor,
        mask: Tensor,
        threshold: float,
    ) -> Tensor: ...

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], Any, Any]: ...

    def _generate_single_turn(
        self,
        prompt_ids: list[list[int]],
        images: list[Any] | None,
        multimodal_fields: dict[str, Any],
        num_generations: int,
    ) -> tuple[list[list[int]], Any]: ...

    def _generate_and_score_completions(self, inputs: list[Row]) -> Any: ...

    def _calculate_rewards(
        self,
        inputs: list[Row],
        prompts: list[Any],
        completions: list[Any],
        completion_ids_list: list[list[int]],
    ) -> Tensor: ...

    def _get_per_token_logps_and_entropies(
        self,
        model: torch.nn.Module,
        input_ids: Tensor,
        attention_mask: Tensor,
        logits_to_keep: int,
        batch_size: int | None,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]: ...
