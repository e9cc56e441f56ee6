"""Choose by memory what nobody has set: gradient checkpointing, and the size of evaluations."""

from contextlib import suppress
from statistics import mean

from datasets import Dataset
from peft import PeftModel
from transformers import ProcessorMixin

from grpo_ext.preflight.checkpointing import Checkpointing
from grpo_ext.preflight.forecast import MEASURED_PROMPTS, size_of
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.memory import eval_batch_size
from grpo_ext.recipe.rules import argument_values
from grpo_ext.seams import trl as seam
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.settings import set_checkpointing


def choose_eval_batch_size(trainer: Trainer) -> None:
    """Set `per_device_eval_batch_size` if the arguments do not; see `recipe.memory`."""
    args = trainer.args
    v = argument_values(args, set())
    if v.per_device_eval_batch_size is not None:
        return
    size = None
    with suppress(AttributeError):  # a model without attention layers
        size = size_of(trainer.accelerator.unwrap_model(trainer.model).config, 0, 0)
    batch = batch_of(v, trainer.accelerator.num_processes)
    args.per_device_eval_batch_size = eval_batch_size(v, batch, size)


def choose_checkpointing(trainer: Trainer) -> Checkpointing | None:
    """Turn gradient checkpointing on or off by memory; `None` if it is already set."""
    args = trainer.args
    if args.gradient_checkpointing is not None:
        return None
    choice = checkpointing_of(trainer)
    set_checkpointing(args, choice.on)
    if choice.on and isinstance(trainer.model, PeftModel):
        trainer.model.enable_input_require_grads()  # as in TRL's constructor
    return choice


def checkpointing_of(trainer: Trainer) -> Checkpointing:
    """Return whether a run needs gradient checkpointing, and why."""
    if trainer.is_fsdp_enabled and trainer.accelerator.state.fsdp_plugin.activation_checkpointing:
        return Checkpointing(False, "FSDP recomputes activations itself")
    model = trainer.model
    parameters = 0
    trainable = 0
    for weight in model.parameters():
        parameters += weight.numel()
        trainable += weight.numel() * weight.requires_grad
    try:
        size = size_of(model.config, parameters, trainable)
    except AttributeError:  # a model without attention
        return Checkpointing(True, "as in TRL, because the sizes of the layers are not known")
    values = argument_values(trainer.args, set()).replaced(
        use_peft=isinstance(model, PeftModel), dtype=str(model.dtype).removeprefix("torch.")
    )
    return Checkpointing.choose(
        size,
        values,
        batch_of(values, trainer.accelerator.num_processes),
        sharding=int(trainer.is_fsdp_enabled),
        prompt=mean_prompt_tokens(trainer),
    )


def mean_prompt_tokens(trainer: Trainer) -> int:
    """Return the mean length of the first prompts in tokens.

    It is 0 for streams, for images, and for `environment_factory`, whose prompts are complete only
    after `reset`.
    """
    rows = trainer.train_dataset
    has_images = isinstance(trainer.processing_class, ProcessorMixin)
    if not isinstance(rows, Dataset) or has_images or "prompt" not in rows.column_names:
        return 0
    if trainer.environment_factories is not None:
        return 0
    ids = seam.prompt_tokens(trainer, rows[:MEASURED_PROMPTS]["prompt"])
    return round(mean(len(prompt) for prompt in ids))
