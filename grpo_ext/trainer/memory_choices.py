"""Decide whether to use gradient checkpointing, and choose the evaluation batch size.

Both decisions are based on estimates of memory use. What the user has set is left unchanged.
"""

from statistics import mean

from datasets import Dataset
from peft import PeftModel
from transformers import ProcessorMixin

from grpo_ext.preflight.checkpointing import Checkpointing
from grpo_ext.preflight.forecast import MEASURED_PROMPTS, size_of
from grpo_ext.recipe.arguments import argument_values
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.memory import ModelSize, eval_batch_size
from grpo_ext.seams import trl as seam
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.settings import set_checkpointing


def choose_eval_batch_size(trainer: Trainer) -> None:
    """Set `per_device_eval_batch_size`, unless the user has set it.

    The chosen size is the largest, within fixed bounds, at which an evaluation is estimated to need
    no more memory than training. If the layer sizes of the model are unknown, the smallest size is
    chosen. The batches of all ranks together consist of whole groups (see `eval_batch_size`).
    """
    args = trainer.args
    if args.per_device_eval_batch_size != args.chosen_eval_batch_size:
        return
    v = argument_values(args, set()).replaced(per_device_eval_batch_size=None)
    batch = batch_of(v, trainer.accelerator.num_processes)
    args.chosen_eval_batch_size = eval_batch_size(v, batch, model_size_of(trainer))
    args.per_device_eval_batch_size = args.chosen_eval_batch_size


def choose_checkpointing(trainer: Trainer) -> Checkpointing | None:
    """Turn gradient checkpointing off if the run does not need it, and return the decision.

    If the user has set gradient checkpointing, change nothing and return `None`.
    """
    if not trainer.args.chooses_checkpointing:
        return None
    choice = checkpointing_of(trainer)
    if not choice.on:
        set_checkpointing(trainer.args, False)
        if isinstance(trainer.model, PeftModel):
            trainer.model.disable_input_require_grads()  # TRL's constructor has enabled it
    return choice


def checkpointing_of(trainer: Trainer) -> Checkpointing:
    """Return whether a run needs gradient checkpointing, and why."""
    size = model_size_of(trainer)
    if size is None:
        return Checkpointing(True, "as in TRL, because the layer sizes are unknown")
    model = trainer.model
    values = argument_values(trainer.args, set()).replaced(
        use_peft=isinstance(model, PeftModel), dtype=str(model.dtype).removeprefix("torch.")
    )
    return Checkpointing.choose(
        size,
        values,
        batch_of(values, trainer.accelerator.num_processes),
        sharding=int(trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled),
        prompt=mean_prompt_tokens(trainer),
    )


def model_size_of(trainer: Trainer) -> ModelSize | None:
    """Return the dimensions of a trainer's model; `None` if its config lacks the layer sizes."""
    parameters = 0
    trainable = 0
    for weight in trainer.model.parameters():
        parameters += weight.numel()
        trainable += weight.numel() * weight.requires_grad
    try:
        return size_of(trainer.model.config, parameters, trainable)
    except AttributeError:
        return None


def mean_prompt_tokens(trainer: Trainer) -> int | None:
    """Return the mean length of the first `MEASURED_PROMPTS` prompts, in tokens.

    The result is `None` if the dataset is a stream, is empty or has no column `prompt`, if the
    processor is multimodal, or if an `environment_factory` or a `rollout_func` may change the
    prompts.
    """
    rows = trainer.train_dataset
    if not isinstance(rows, Dataset) or len(rows) == 0 or "prompt" not in rows.column_names:
        return None
    has_images = isinstance(trainer.processing_class, ProcessorMixin)
    by_user = trainer.environment_factories is not None or trainer.rollout_func is not None
    if has_images or by_user:
        return None
    ids = seam.prompt_tokens(trainer, rows[:MEASURED_PROMPTS]["prompt"])
    return round(mean(len(prompt) for prompt in ids))
