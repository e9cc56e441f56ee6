"""The parts of a trainer that the samplers read."""

from typing import Any, Protocol

from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.seams.port import TRLTrainer


class CheckedArguments(GRPOExtConfig):
    """Tells type checkers the types that some arguments have after `checked_arguments`."""

    output_dir: str
    num_generations: int
    steps_per_generation: int
    generation_batch_size: int
    max_completion_length: int
    per_device_eval_batch_size: int  # chosen once the model is loaded, if it was `None`
    generation_kwargs: dict[str, Any] | None
    gradient_checkpointing_kwargs: dict[str, Any] | None
    chat_template_kwargs: dict[str, Any] | None
    model_init_kwargs: dict[str, Any] | None
    left_to_trainer: list[str]  # keys that the user did not set; the trainer chooses them


class SampledTrainer(TRLTrainer, Protocol):
    """A trainer whose completions our samplers generate."""

    @property
    def args(self) -> CheckedArguments: ...
