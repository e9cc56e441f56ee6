"""Choose the dtypes in which a training run would sample, for commands without a trainer."""

from transformers import PreTrainedModel

from grpo_ext.recipe.load import Recipe
from grpo_ext.seams.precision import MIXED, Precision, choose_precision


def precision_of(recipe: Recipe, model: PreTrainedModel) -> Precision:
    """Return the dtypes that a run of the recipe uses when it samples with transformers.

    They also apply with DeepSpeed, which converts the weights instead of using autocast, but
    multiplies in the same dtype. `fp16` is ignored on a CPU, where accelerate has no autocast to
    float16. With transformers' continuous batching, `attention_in_fp32` is ignored.

    Raises:
        ValueError: if `residual_in_fp32` or `attention_in_fp32` is true, but the model does not
            support it.
    """
    training = recipe.training
    mixed = None
    if training.bf16:
        mixed = MIXED["bf16"]
    elif training.fp16 and model.device.type != "cpu":
        mixed = MIXED["fp16"]
    continuous = training.use_transformers_continuous_batching
    return choose_precision(
        model,
        mixed,
        training.cast_lm_head_to_fp32,
        training.residual_in_fp32,
        False if continuous else training.attention_in_fp32,
    )
