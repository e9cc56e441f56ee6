"""Check a run when training begins, before the first generation.

The checks apply both to recipes and to trainers created in Python. What can be known before a model
is loaded is checked earlier: arguments in `recipe/arguments.py`, rewards in
`rewards/reward_checks.py`, and the metric for the best model in `check_metric_of_call`.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from inspect import signature
from typing import Any

from datasets import Dataset, IterableDataset
from peft import PeftMixedModel, PeftModel
from torch import nn
from torch.optim import Optimizer
from transformers import (
    EarlyStoppingCallback,
    PreTrainedModel,
    TrainerCallback,
    TrainingArguments,
)
from transformers.training_args import OptimizerNames
from trl import GRPOTrainer

from grpo_ext.objective.policy import get_loss
from grpo_ext.recipe.best_model import (
    EvaluationMetrics,
    chooses_by_metric,
    lowest_reward,
    needs_a_metric,
    plain_metric,
)
from grpo_ext.rewards.reward_checks import metric_name
from grpo_ext.samplers.port import CheckedArguments
from grpo_ext.trainer.port import Trainer

logger = logging.getLogger(__name__)


class CannotLearn(ValueError):
    """Raised if a run would change no weight, or its metric for the best model is unsuitable."""


def check_start(trainer: Trainer, optimizer: Optimizer) -> None:
    """Check that a run can learn, and that the metric for its best model fits the run.

    Raises:
        CannotLearn: if no parameter that the policy uses is trainable; if no trainable parameter is
            in the optimizer; or if the metric for the best model or for early stopping does not
            exist, says nothing about the policy, or is a reward that would be minimized.
    """
    check_parameters(trainer, optimizer)
    check_best_metric(trainer)


# ---- parameters


def check_parameters(trainer: Trainer, optimizer: Optimizer) -> None:
    """Raise `CannotLearn` unless some trainable parameter of the policy is in the optimizer.

    If the optimizer lacks only some of the trainable parameters, log a warning. With a sharded or
    layerwise optimizer, only check that some parameter is trainable.
    """
    model = trainer.accelerator.unwrap_model(trainer.model)
    trainable = [(name, p) for name, p in used_parameters(model) if p.requires_grad]
    if not trainable:
        raise CannotLearn(why_frozen(model))
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or steps_in_backward(trainer.args):
        return  # their optimizers do not have the model's own tensors
    optimized: set[int] = set()
    for group in optimizer.param_groups:
        optimized.update(map(id, group["params"]))
    missing = [name for name, parameter in trainable if id(parameter) not in optimized]
    if len(missing) == len(trainable):
        raise CannotLearn(
            f"The optimizer contains none of the policy's {len(trainable)} trainable tensors, only "
            "other tensors. Create it from the parameters of this model, after its adapter (if "
            "any) has been added."
        )
    if missing:
        logger.warning(
            f"The optimizer does not update {len(missing)} of the policy's {len(trainable)} "
            f"trainable tensors, such as {missing[0]}. Create the optimizer from all parameters of "
            "the model, after its adapter has been added, or set requires_grad to False for "
            "tensors that should stay as they are."
        )


def steps_in_backward(args: TrainingArguments) -> bool:
    """Return whether the optimizer updates weights within the backward pass.

    Layerwise GaLore and APOLLO do so, and leave no gradients after the backward pass.
    """
    return OptimizerNames(args.optim).value.endswith("_layerwise")


def used_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the name and value of each parameter that a forward pass of the policy uses.

    These are all parameters except those of inactive adapters.
    """
    idle = idle_adapters(model)
    for name, parameter in model.named_parameters():
        if not idle & set(name.split(".")):
            yield name, parameter


def idle_adapters(model: nn.Module) -> set[str]:
    """Return the names of a model's inactive adapters: all of them if adapters are disabled."""
    names = set(getattr(model, "peft_config", None) or ())
    if not names or any(
        getattr(module, "disable_adapters", False) is True for module in model.modules()
    ):
        return names
    return names - set(active_adapters(model))


def active_adapters(model: nn.Module) -> list[str]:
    """Return the names of a model's active adapters."""
    if isinstance(model, PreTrainedModel):
        return list(model.active_adapters())
    assert isinstance(model, PeftModel | PeftMixedModel)
    return list(model.active_adapters)


def why_frozen(model: nn.Module) -> str:
    """Return an error message that says why no parameter is trainable, and how to fix it."""
    names = set(getattr(model, "peft_config", None) or ())
    idle = idle_adapters(model)
    if not names:
        return (
            "Training would change no weight of the policy: requires_grad is False for all of its "
            "parameters. Call model.requires_grad_(True)."
        )
    if names == idle and isinstance(model, PreTrainedModel):
        return (
            "Training would change no weight of the policy: all adapters are disabled. Call "
            "model.enable_adapters()."
        )
    if names == idle:
        return (
            "Training would change no weight of the policy: all adapters are disabled. Call "
            "model.enable_adapter_layers()."
        )
    active = ", ".join(sorted(names - idle))
    words_of_trainable: set[str] = set()
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            words_of_trainable.update(name.split("."))
    trainable = sorted(idle & words_of_trainable - {"ref"})  # "ref": TRL's copy, for the reference
    if trainable:
        return (
            f"Training would change no weight of the policy: the active adapter {active!r} is "
            f"frozen, and the trainable adapter {trainable[0]!r} is not active. Call "
            f"model.set_adapter({trainable[0]!r})."
        )
    return (
        f"Training would change no weight of the policy: the adapter {active!r} is frozen. Load "
        "it with PeftModel.from_pretrained(..., is_trainable=True)."
    )


# ---- the metric for the best model


def check_metric_of_call(*args: Any, **kwargs: Any) -> None:
    """Check the metric for the best model before a model is loaded.

    With an `environment_factory`, which may add rewards of its own, nothing is checked here; the
    metric is checked when training begins.

    Args:
        *args: the positional arguments for `GRPOTrainer`.
        **kwargs: the keyword arguments for `GRPOTrainer`.

    Raises:
        CannotLearn: if no evaluation of the run logs the metric, or the metric cannot tell which
            model is best (see `check_metric`).
    """
    arguments = signature(GRPOTrainer).bind(*args, **kwargs).arguments
    if arguments.get("environment_factory") is None:
        training = arguments["args"]
        names = [metric_name(reward) for reward in arguments["reward_funcs"]]
        weights = training.reward_weights or [1.0] * len(names)
        callbacks = arguments.get("callbacks") or ()
        check_metric(training, names, weights, arguments.get("eval_dataset"), callbacks)


def check_best_metric(trainer: Trainer) -> None:
    """Raise `CannotLearn` if the trainer's `metric_for_best_model` does not fit the run.

    See `check_metric` for the cases.
    """
    check_metric(
        trainer.args,
        trainer.reward_func_names,
        trainer.reward_weights.tolist(),
        trainer.eval_dataset,
        trainer.callback_handler.callbacks,
    )


def check_metric(
    args: CheckedArguments,
    names: Sequence[str],
    weights: Sequence[float],
    eval_dataset: Dataset | IterableDataset | dict[str, Dataset] | None,
    callbacks: Iterable[TrainerCallback | type[TrainerCallback]],
) -> None:
    """Raise `CannotLearn` if the metric for the best model does not fit the run.

    It does not fit if no evaluation logs it, if it is `eval_loss`, which says nothing about a
    policy (except with a loss that needs no advantages), or if `greater_is_better: false` would
    choose the lowest reward. Nothing is checked if neither an option nor a callback uses the
    metric, or if there is no `eval_dataset`. A name that resembles no known metric passes, because
    a reward may log it.

    Args:
        args: the training arguments.
        names: the names of the rewards.
        weights: the weights of the rewards.
        eval_dataset: a dataset, a mapping of named datasets, or `None`.
        callbacks: the callbacks of the trainer; an `EarlyStoppingCallback` also uses the metric.
    """
    stops = any(
        isinstance(callback, EarlyStoppingCallback) or callback is EarlyStoppingCallback
        for callback in callbacks
    )
    option = "EarlyStoppingCallback" if stops else chooses_by_metric(args)
    if option is None or eval_dataset is None:
        return
    evaluation = EvaluationMetrics(
        names,
        args.eval_temperature is not None,
        args.eval_num_samples,
        args.eval_constant,
        list(eval_dataset) if isinstance(eval_dataset, dict) else [],
    )
    metric = plain_metric(args.metric_for_best_model)
    as_trl = args.loss_normalization == "micro_batch"
    if metric in ("loss", *evaluation.losses):
        if as_trl or get_loss(args.loss_type).needs_advantage:
            raise CannotLearn(needs_a_metric(option, evaluation))
        return
    fault = evaluation.fault(metric)
    if fault is not None:
        raise CannotLearn(fault)
    costs = [name for name, weight in zip(names, weights, strict=False) if weight <= 0]
    is_a_cost = evaluation.of_a_set(metric) in (*costs, *(f"rewards/{x}/mean" for x in costs))
    if metric in evaluation.growing and args.greater_is_better is False and not is_a_cost:
        raise CannotLearn(lowest_reward(metric))
