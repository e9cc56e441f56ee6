"""The settings of each stage, read once from the training arguments, the model and the ranks."""

import logging
from collections import defaultdict
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import ProcessorMixin
from trl import GRPOConfig

from grpo_ext.common.adapters import adapter_fault
from grpo_ext.environments.begin import Begin, beginning, beginning_with_tools
from grpo_ext.environments.rules import episode_rules
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.objective.policy import LossOptions, get_loss
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.recipe.episode_options import TURN_ENDS
from grpo_ext.recipe.rules import argument_notes, check_arguments, with_our_defaults
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.reward import Reward
from grpo_ext.samplers.base import Sampler
from grpo_ext.scoring.layout import Layout, choose_layout
from grpo_ext.scoring.probe import Probe
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.scoring import run_model, score_images
from grpo_ext.step.cut import CutRule
from grpo_ext.step.judge import EndRule
from grpo_ext.step.loss import LossSettings

logger = logging.getLogger(__name__)


def checked_arguments(
    args: GRPOConfig | None,
    model: Any,
    sampler: Sampler | None = None,
    from_python: bool = True,
) -> GRPOExtConfig:
    """Return the arguments of a trainer; fields that a plain `GRPOConfig` lacks get our defaults.

    Odd arguments `from_python` are warned of; the notes on a recipe are printed where it is read. `RecipeError` names every
    error in them, before a model is loaded; `ValueError`, if `model` is the folder of an adapter.
    """
    if isinstance(model, str) and (fault := adapter_fault(Path(model).expanduser())):
        raise ValueError(fault)
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        args = GRPOExtConfig(f"{name.split('/')[-1]}-GRPO")
    found = with_our_defaults(args)
    separate_sampler = sampler is not None and sampler.separate
    check_arguments(found, found.world_size, separate_sampler)
    if from_python and found.process_index == 0:
        for note in argument_notes(found, found.world_size):
            logger.warning("%s", note)
    return found


def loss_settings(trainer: Any) -> LossSettings:
    """Return the settings of the loss; `ValueError` for a `loss_type` that is not registered."""
    args = trainer.args

    def named(kind: Any) -> dict[str, Any]:
        return {f.name: getattr(args, f.name) for f in fields(kind) if hasattr(args, f.name)}

    options = {
        **named(LossOptions),
        "epsilon_low": trainer.epsilon_low,
        "epsilon_high": trainer.epsilon_high,
    }
    given = {**named(LossSettings), "router_aux_loss_coef": trainer.router_aux_loss_coef}
    ranks = trainer.accelerator.num_processes
    return LossSettings(
        **given, loss=get_loss(args.loss_type), options=LossOptions(**options), ranks=ranks
    )


def end_rule(trainer: Any) -> EndRule:
    """Return how to tell whether a completion has ended."""
    args, given = trainer.args, trainer.args.generation_kwargs or {}
    colocated = trainer.use_vllm and trainer.vllm_mode == "colocate"
    stops = any(given.get(name) for name in ("stop", "stop_strings", "stop_token_ids"))
    return EndRule(
        frozenset((*trainer.eos_token_ids, seam.pad_token(trainer))),
        given.get("max_new_tokens") or given.get("max_tokens") or trainer.max_completion_length,
        args.vllm_max_model_length if colocated else None,
        bool(stops),
    )


def calls_tools(trainer: Any) -> bool:
    """Whether `tools` or `environment_factory` were given; an environment without tools may still write the prompts."""
    return bool(trainer.tools or trainer.environment_factories)


def trl_generates(trainer: Any) -> bool:
    """Whether TRL generates: for images, and for tools if the sampler or the chat template allows no episodes of ours.

    A warning says what is wrong with such a chat template.
    """
    if isinstance(trainer.processing_class, ProcessorMixin):
        return True
    if not calls_tools(trainer):
        return False
    if (
        trainer.as_trl
        or trainer.use_transformers_continuous_batching
        or trainer.rollout_func is not None
    ):
        return True
    try:
        TurnTokens(
            trainer.processing_class,
            trainer.eos_token_ids,
            trainer.args.chat_template_kwargs,
            trainer.tools,
            False,
        )
    except ValueError as error:
        logger.warning(
            "TRL generates and calls the tools, one rank at a time: %s",
            str(error).removeprefix("environment: "),
        )
        return True
    return False


def episodes_of(trainer: Any, sampler: Sampler, by_trl: bool) -> Begin | None:
    """Return the function that makes the episodes of rows, by `environment` or with tools; `None` without either.

    `ValueError` if the sampler plays no episodes, or the chat template does not keep turns as they were sampled.
    """
    args = trainer.args
    if args.environment is None and (by_trl or not calls_tools(trainer)):
        return None
    if args.environment is not None and calls_tools(trainer):
        raise ValueError(
            "environment in the arguments does not go with tools or environment_factory: take one of the two out."
        )
    if not sampler.plays or by_trl or trainer.as_trl:
        raise ValueError(
            f"{sampler.name} does not play episodes of several turns, as environment and tools need them."
        )
    tokenizer, ends = trainer.processing_class, trainer.eos_token_ids
    if given := sorted(TURN_ENDS & {*(args.generation_kwargs or {})}):
        raise ValueError(
            f"A turn ends with an end token or at the limit: take {given[0]} out of generation_kwargs."
        )
    if args.environment is not None:
        return beginning(args.environment, tokenizer, ends, args)
    return beginning_with_tools(*seam.tools_of(trainer), tokenizer, ends, args)


def turn_weights(trainer: Any) -> dict[str, float] | None:
    """Return for `credit: turn` the entries of the state that rewards `environment` read, with their weights; else `None`."""
    if (
        trainer.args.environment is None
        or episode_rules(trainer.args.environment).credit == "episode"
    ):
        return None
    found: dict[str, float] = defaultdict(float)
    for guard, weight in zip(trainer.reward_funcs, trainer.reward_weights.tolist(), strict=True):
        reward = guard.reward if isinstance(guard, Guard) else None
        if isinstance(reward, Reward) and reward.registration.name == "environment":
            found[reward.options["key"]] += weight
    return dict(found)


def align_reference(trainer: Any) -> None:
    """Give the reference the weights of the policy that was passed in.

    TRL loads the reference from the policy's path, which is another model if the policy was changed in memory.
    """
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if trainer.ref_model is None or sharded or getattr(trainer.model, "is_quantized", False):
        return
    unwrap = trainer.accelerator.unwrap_model
    unwrap(trainer.ref_model).load_state_dict(unwrap(trainer.model).state_dict())


def layout_of(trainer: Any) -> Layout:
    """Return how completions are laid out for a pass; `ValueError` for `layout: packed` if rows cannot be packed."""
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    # sharded ranks gather each layer together, so all must call the model the same number of times
    one_call = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    # each chunk of a reentrant checkpoint runs a separate backward pass, which data parallel ranks take for the last one
    reentrant = (args.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
    one_call |= bool(
        args.gradient_checkpointing and reentrant and trainer.accelerator.num_processes > 1
    )
    return choose_layout(
        args.layout,
        model,
        one_call=one_call,
        aux_loss=trainer.aux_loss_enabled,
        recomputes=args.gradient_checkpointing,
        max_tokens=args.max_tokens_per_micro_batch,
    )


def cut_rule(trainer: Any, layout: Layout, settings: LossSettings) -> CutRule:
    """Return how a step may be cut; `ValueError` if `max_tokens_per_micro_batch` is set and micro-batches cannot be cut."""
    args = trainer.args
    by_batch = (
        trainer.top_entropy_quantile < 1.0 or trainer.aux_loss_enabled
    )  # the loss depends on which rows run together
    deals = layout.trimmed and not by_batch
    if args.max_tokens_per_micro_batch and (not deals or trainer.is_deepspeed_enabled):
        reason = "a model whose positions count padding"
        if trainer.aux_loss_enabled:
            reason = "the balance of experts, which is taken over a micro-batch"
        if trainer.is_deepspeed_enabled:
            reason = "DeepSpeed, which counts backward passes"
        raise ValueError(f"max_tokens_per_micro_batch does not go with {reason}. Take it out.")
    bonus = args.entropy_coef != 0.0 or args.use_adaptive_entropy
    skips = (
        args.skip_dead_rows and settings.loss.needs_advantage and not settings.beta and not bonus
    )
    keeps_right = args.positive_nll_coef > 0
    return CutRule(deals, skips, args.max_tokens_per_micro_batch, keeps_right)


def make_scorer(trainer: Any, params: SamplingParams, layout: Layout) -> Scorer:
    """Make the scorer of a trainer; `ValueError` for `layout: packed` if packed sequences see each other in the model."""
    probe, model = probe_of(trainer), trainer.accelerator.unwrap_model(trainer.model)
    check = (
        partial(probe.refuse_unless_separate, shares=layout.in_row)
        if layout.kind == "packed"
        else None
    )
    if check is not None and not (
        trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    ):  # else the model is not ready yet
        try:
            check = check(model)
        except ValueError as error:
            if trainer.args.layout == "packed":
                raise
            layout, check = (
                replace(layout, kind="chunks", by_cost=False, why=str(error).partition(": ")[2]),
                None,
            )
    if layout.shares and not layout.in_row:
        layout = replace(layout, shares=probe.shares_prompts(model))
    return Scorer(probe.run, params, layout, partial(score_images, trainer), check)


def probe_of(trainer: Any) -> Probe:
    """Return the probe of layouts for a trainer's model."""
    exact = trainer.model.dtype == torch.float32 and trainer.accelerator.mixed_precision == "no"
    vocabulary = trainer.model.config.get_text_config().vocab_size
    run = partial(run_model, trainer.accelerator)
    return Probe(run, vocabulary, trainer.accelerator.device, 1e-4 if exact else 0.1)


def how_it_trains(layout: Layout, rule: CutRule, on_cpu: bool) -> str:
    """Describe in one line how training is sped up without a change of the gradient."""
    why = f" ({layout.why})" if layout.why else ""
    if layout.kind == "padded":
        return f"one rectangle per micro-batch{why}"
    rows = {"chunks": "completions of similar length together", "packed": "rows without padding"}[
        layout.kind
    ]
    done = [
        f"micro-batches by tokens, {rows}{' or chunks, by their tokens' if layout.by_cost else ''}{why}"
    ]
    if layout.shares:
        once = layout.kind == "chunks" and layout.recomputes
        done.append("a group's prompt once" + (" (not in the backward pass)" if once else ""))
    elif layout.kind == "chunks":
        done.append(
            "each prompt with its completions (the model cannot continue from a shared one)"
        )
    if layout.compact_head and on_cpu:
        done.append("logits of completions only")
    if rule.skips:
        done.append("no completion without gradient")
    return ", ".join(done)
