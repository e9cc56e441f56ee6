"""Checks when training begins, before the first generation, for recipes and for trainers made in
Python alike.

What can be known before a model is loaded is checked earlier: arguments in `recipe/rules.py`,
rewards in `rewards/reward_checks.py`.
"""

import logging
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers import EarlyStoppingCallback
from transformers.training_args import OptimizerNames

from grpo_ext.common.near import did_you_mean
from grpo_ext.recipe.best_model import LOSS_METRICS, chooses_by_metric, needs_a_metric

logger = logging.getLogger(__name__)


class CannotLearn(ValueError):
    """The run would train nothing, or choose its best model by a figure that means nothing."""


def check_start(trainer: Any, optimizer: Any) -> None:
    """Refuse a run that would learn nothing or choose its model by nothing.

    Raises:
        CannotLearn: if no weight that the policy uses is trainable, none of the trainable ones is
            in the optimizer, or the metric for the best model or for early stopping does not exist,
            is noise, or is a reward to be kept low.
    """
    check_parameters(trainer, optimizer)
    check_best_metric(trainer)


# ---- parameters


def check_parameters(trainer: Any, optimizer: Any) -> None:
    """Compare the parameters that the policy uses with those that the optimizer has."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    trainable = [(name, p) for name, p in used_parameters(model) if p.requires_grad]
    if not trainable:
        raise CannotLearn(why_frozen(model))
    if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled or steps_in_backward(trainer.args):
        return  # their optimizers have other tensors than the model
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    missing = [name for name, p in trainable if id(p) not in held]
    if len(missing) == len(trainable):
        raise CannotLearn(
            f"None of the {len(trainable)} trainable tensors of the policy is in the optimizer, "
            "which has others. Make the optimizer of `optimizers` from model.parameters() of this "
            "model, after its adapter was added."
        )
    if missing:
        logger.warning(
            f"{len(missing)} of the {len(trainable)} trainable tensors of the policy are not in "
            f"the optimizer and will not change, such as {missing[0]}."
        )


def steps_in_backward(args: Any) -> bool:
    """Whether each weight changes within the backward pass (layerwise GaLore and APOLLO), which
    leaves no gradients.
    """
    return OptimizerNames(args.optim).value.endswith("_layerwise")


def used_parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield names and parameters that a forward pass of the policy uses: all but those of adapters
    that are not active.
    """
    idle = idle_adapters(model)
    for name, parameter in model.named_parameters():
        if not idle & set(name.split(".")):
            yield name, parameter


def idle_adapters(model: nn.Module) -> set[str]:
    """Return the names of the adapters of a model that are not active; all of them if adapters are
    disabled.
    """
    names = set(getattr(model, "peft_config", None) or ())
    if not names or any(
        getattr(module, "disable_adapters", False) is True for module in model.modules()
    ):
        return names
    return names - set(active_adapters(model))


def active_adapters(model: Any) -> list[str]:
    """Return the names of the active adapters: a property in peft, a method in transformers."""
    active = model.active_adapters
    return list(active() if callable(active) else active)


def why_frozen(model: nn.Module) -> str:
    """Say why no parameter of the policy is trainable, and what to do about it."""
    names = set(getattr(model, "peft_config", None) or ())
    idle = idle_adapters(model)
    nothing = "Training would change no weight of the policy: "
    trainable = [
        adapter
        for adapter in sorted(idle)
        if any(
            p.requires_grad and adapter in name.split(".") for name, p in model.named_parameters()
        )
    ]
    if names and names == idle:
        return f"{nothing}all adapters are disabled. Call model.enable_adapter_layers()."
    if names:
        active = ", ".join(sorted(names - idle))
        other_trainable = [
            adapter for adapter in trainable if adapter != "ref"
        ]  # TRL's copy, for the reference
        if other_trainable:
            return (
                f"{nothing}the active adapter is {active!r}, and only {other_trainable[0]!r} is "
                f"trainable. Call model.set_adapter({other_trainable[0]!r})."
            )
        return (
            f"{nothing}the adapter {active!r} is frozen. Load it with "
            "PeftModel.from_pretrained(..., is_trainable=True)."
        )
    return (
        f"{nothing}requires_grad is False for all of its parameters. Call "
        "model.requires_grad_(True)."
    )


# ---- the metric for the best model


def check_best_metric(trainer: Any) -> None:
    """Check the metric that chooses the best model, stops early or lowers the learning rate."""
    args = trainer.args
    stops = any(isinstance(c, EarlyStoppingCallback) for c in trainer.callback_handler.callbacks)
    option = "EarlyStoppingCallback" if stops else chooses_by_metric(vars(args))
    if option is None or trainer.eval_dataset is None:
        return
    metric = (args.metric_for_best_model or "loss").removeprefix("eval_")
    by_advantages = trainer.as_trl or trainer.parts.update.settings.loss.needs_advantage
    if metric in LOSS_METRICS:
        if by_advantages:
            raise CannotLearn(needs_a_metric(option, trainer.eval_decoding is not None))
        return
    rewards = reward_metrics(trainer)
    metrics = [*rewards, *other_metrics(trainer)]
    name = metric.removesuffix("_se")
    wrong = name not in metrics and (
        name in (*trainer.reward_func_names, "reward")
        or name.startswith("rewards/")
        or bool(did_you_mean(name, metrics))
    )
    if wrong and not isinstance(trainer.eval_dataset, dict):
        near = f"rewards/{name}/mean" if f"rewards/{name}/mean" in metrics else None
        hint = f" Did you mean {near!r}?" if near else did_you_mean(name, metrics)
        raise CannotLearn(
            f"metric_for_best_model: evaluations log no {metric!r}.{hint} They log "
            f"{', '.join(metrics)}."
        )
    if metric in rewards and args.greater_is_better is False and not is_a_cost(trainer, metric):
        raise CannotLearn(
            f"greater_is_better: false with metric_for_best_model: {metric} keeps the model with "
            "the lowest reward. Write greater_is_better: true, or take it out."
        )


def is_a_cost(trainer: Any, metric: str) -> bool:
    """Whether a metric is the mean of a reward whose weight is not above 0, which training does not
    raise.
    """
    weights = trainer.reward_weights.tolist()
    return any(
        weight <= 0 and metric in (name, f"rewards/{name}/mean")
        for name, weight in zip(trainer.reward_func_names, weights, strict=True)
    )


def reward_metrics(trainer: Any) -> list[str]:
    """Return the metrics of an evaluation, without `eval_`, that grow with the rewards."""
    names = trainer.reward_func_names
    if trainer.eval_decoding is None:
        return ["reward", *(f"rewards/{name}/mean" for name in names)]
    samples = trainer.eval_decoding.num_samples
    several = [f"mean@{samples}", f"pass@{samples}"] if samples > 1 else []
    return [*names, "pass@1", *several]


def other_metrics(trainer: Any) -> list[str]:
    """Return further metrics of an evaluation, without `eval_`, that a name may be meant to be."""
    if trainer.eval_decoding is not None:
        return ["length"]
    endings = ("std", *(("constant",) if trainer.args.eval_constant else ()))
    of_rewards = [f"rewards/{name}/{end}" for name in trainer.reward_func_names for end in endings]
    return ["reward_std", *of_rewards]
