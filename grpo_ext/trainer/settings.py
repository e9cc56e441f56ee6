"""Derive the settings of each stage from the training arguments, the model and the ranks."""

import logging
from collections.abc import Callable, Collection
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel, ProcessorMixin
from trl import GRPOConfig

from grpo_ext.common.adapters import adapter_fault
from grpo_ext.common.stop_strings import StopStrings, stop_strings_of
from grpo_ext.environments.start_episodes import Begin, beginning, beginning_with_tools
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.objective.policy import LossOptions, get_loss
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.recipe.arguments import argument_notes, check_arguments, with_our_defaults
from grpo_ext.recipe.episode_options import ends_that_turns_cannot_have, environments_of
from grpo_ext.recipe.schema import CHECKPOINTING_KEYS, GRPOExtConfig
from grpo_ext.samplers.base import Sampler
from grpo_ext.samplers.choose import precision_of
from grpo_ext.samplers.port import CheckedArguments
from grpo_ext.scoring.layout import Layout, choose_layout, refuse_packing
from grpo_ext.scoring.probe import Probe
from grpo_ext.scoring.scorer import Scorer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.scoring import run_invariantly, run_model, score_images
from grpo_ext.step.cut import CutRule
from grpo_ext.step.judge import EndRule
from grpo_ext.step.loss import LossSettings
from grpo_ext.trainer.port import Trainer

logger = logging.getLogger(__name__)


def checked_arguments(
    args: GRPOConfig | None,
    model: str | PreTrainedModel,
    sampler: Sampler | None = None,
    rollout_func: object = None,
    from_python: bool = True,
) -> CheckedArguments:
    """Check the arguments of a trainer and add missing fields, before a model is loaded.

    `args` is changed in place and returned. Fields that a plain `GRPOConfig` lacks get this
    package's defaults. If gradient checkpointing is not set, it is turned off if `deterministic` is
    true, and on otherwise; the trainer may turn it off later (see `choose_checkpointing`).

    Args:
        args: the user's arguments; `None` for the defaults, with an output folder named after the
            model.
        model: the user's model, or its id or path.
        sampler: the user's sampler, or `None`.
        rollout_func: the user's `rollout_func`, or `None`.
        from_python: whether the main process warns about questionable arguments; `False` for a
            recipe, because the notes about a recipe are printed when the recipe is loaded.

    Raises:
        RecipeError: if arguments are invalid or contradict each other; its message lists all
            faults.
        ValueError: if `model` is the folder of an adapter.
    """
    if isinstance(model, str):
        fault = adapter_fault(Path(model).expanduser())
        if fault:
            raise ValueError(fault)
    if args is None:
        name = model if isinstance(model, str) else model.config._name_or_path
        args = GRPOExtConfig(f"{name.split('/')[-1]}-GRPO")
    checked = with_our_defaults(args)
    # The arguments may be used for several trainers, each of which makes its own choices.
    known = vars(checked)
    chosen = known.setdefault("chosen_eval_batch_size", None)
    if known.setdefault("chooses_checkpointing", checked.gradient_checkpointing is None):
        # use TRL's default for now, because TRL's constructor acts on the value
        set_checkpointing(checked, not checked.deterministic)
    separate_sampler = sampler is not None and sampler.abilities.separate_engine
    own_generation = sampler is not None or rollout_func is not None
    check_arguments(checked, checked.world_size, separate_sampler, own_generation, chosen)
    if from_python and checked.process_index == 0:
        for note in argument_notes(checked, checked.world_size):
            logger.warning("%s", note)
    return cast(CheckedArguments, checked)


def loss_settings(trainer: Trainer) -> LossSettings:
    """Return the settings of the loss; raise `ValueError` if `loss_type` is not registered."""
    args = trainer.args
    # TRL derives these from several arguments
    epsilons = {"epsilon_low": trainer.epsilon_low, "epsilon_high": trainer.epsilon_high}
    derived = {
        "loss": get_loss(args.loss_type),
        "options": LossOptions(**arguments_named(args, LossOptions, set(epsilons)), **epsilons),
        "router_aux_loss_coef": trainer.router_aux_loss_coef,
        "ranks": trainer.accelerator.num_processes,
    }
    return LossSettings(**arguments_named(args, LossSettings, set(derived)), **derived)


def arguments_named(
    args: CheckedArguments, settings: type, excluded: Collection[str]
) -> dict[str, Any]:
    """Return the training arguments that a dataclass has fields for, by name.

    Args:
        args: the training arguments, which must have every field of the dataclass that is not
            excluded.
        settings: the dataclass.
        excluded: the names of fields to leave out.
    """
    names = [field.name for field in fields(settings) if field.name not in excluded]
    return {name: getattr(args, name) for name in names}


def end_rule(trainer: Trainer) -> EndRule:
    """Return the rule that decides whether a completion has ended or was truncated."""
    args = trainer.args
    options = args.generation_kwargs or {}
    max_tokens = options.get("max_new_tokens") or options.get("max_tokens")
    colocated = trainer.use_vllm and trainer.vllm_mode == "colocate"
    stop_tokens = options.get("stop_token_ids") or ()
    stop_strings = stop_strings_of(options)
    ends_with_string = None
    if stop_strings:
        ends_with_string = StopStrings(seam.tokenizer_of(trainer), stop_strings).end_with
    return EndRule(
        tokens=frozenset((*trainer.eos_token_ids, *stop_tokens, seam.pad_token(trainer))),
        limit=max_tokens or trainer.max_completion_length,
        context=args.vllm_max_model_length if colocated else None,
        ends_with_string=ends_with_string,
    )


def calls_tools(trainer: Trainer) -> bool:
    """Return whether the trainer was given `tools` or an `environment_factory`.

    An `environment_factory` counts even if its environments have no tools, because their `reset`
    may add text to the prompts.
    """
    return bool(trainer.tools or trainer.environment_factories)


def trl_generates(trainer: Trainer) -> bool:
    """Return whether TRL generates because of a multimodal processor or because of tools.

    Tools are the cause if this package cannot call them: with `loss_normalization: micro_batch`,
    continuous batching, a `rollout_func`, or a chat template that does not keep turns as they were
    sampled. In the last case, a warning says what is wrong with the template. With neither a
    multimodal processor nor tools, the result is `False`, even if TRL generates because of
    `loss_normalization: micro_batch`.
    """
    if isinstance(trainer.processing_class, ProcessorMixin):
        return True
    if not calls_tools(trainer):
        return False
    if trainer.as_trl or trainer.use_transformers_continuous_batching:
        return True
    if trainer.rollout_func is not None:
        return True
    try:
        TurnTokens(
            trainer.processing_class,
            trainer.eos_token_ids,
            trainer.args.chat_template_kwargs,
            trainer.tools,
            answers_texts=False,
        )
    except ValueError as error:
        logger.warning(
            "Falling back to TRL's own generation and tool calling, because grpo_ext cannot run "
            "these tool calls: %s",
            error,
        )
        return True
    return False


def episodes_of(trainer: Trainer, sampler: Sampler, by_trl: bool) -> Begin | None:
    """Return the function that starts episodes for rows, or `None` if the run has no episodes.

    Args:
        trainer: the trainer, with the option `environment` or `environments`, or with tools.
        sampler: the sampler that plays the episodes.
        by_trl: whether TRL generates because of a multimodal processor or because of tools.

    Raises:
        ValueError: if both an environment and tools are given, if an environment is given but TRL
            generates, if the sampler cannot play episodes, if `generation_kwargs` ends turns in a
            way that episodes do not support, if an environment's settings are invalid, or if the
            chat template does not keep turns as they were sampled.
    """
    args = trainer.args
    environments = environments_of(args)
    if not environments and (by_trl or not calls_tools(trainer)):
        return None
    if environments and calls_tools(trainer):
        raise ValueError(
            "The options `environment` and `environments` cannot be combined with the arguments "
            "`tools` and `environment_factory`. Remove the options or the arguments."
        )
    if by_trl or trainer.as_trl:
        raise ValueError(
            "The options `environment` and `environments` do not work with a multimodal processor "
            "or with `loss_normalization: micro_batch`, because TRL then generates the completions "
            "and cannot play these episodes. Remove the options, or pass a tokenizer as "
            "`processing_class` and set `loss_normalization: step`."
        )
    if not sampler.abilities.plays_episodes:
        raise ValueError(
            f"The sampler ({sampler.name}) cannot play the episodes of an environment or of tools. "
            "Remove the argument `sampler` or `rollout_func`, so that transformers or vLLM "
            "generates, or remove the environment or the tools."
        )
    for problem in ends_that_turns_cannot_have(args):
        raise ValueError(problem.message)
    tokenizer: Any = trainer.processing_class
    end_tokens = trainer.eos_token_ids
    if environments:
        return beginning(environments, tokenizer, end_tokens, args)
    return beginning_with_tools(*seam.tools_of(trainer), tokenizer, end_tokens, args)


def align_reference(trainer: Trainer) -> None:
    """Copy the policy's weights into the reference model, if there is one.

    TRL loads the reference from the policy's path. Without this copy, the reference would therefore
    differ from a policy that was changed in memory. Under DeepSpeed and FSDP, and for a quantized
    model, nothing is copied.
    """
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if trainer.ref_model is None or sharded or getattr(trainer.model, "is_quantized", False):
        return
    policy = trainer.accelerator.unwrap_model(trainer.model)
    trainer.accelerator.unwrap_model(trainer.ref_model).load_state_dict(policy.state_dict())


def set_checkpointing(args: GRPOExtConfig, on: bool) -> None:
    """Turn gradient checkpointing on or off in the arguments, in place."""
    for key in CHECKPOINTING_KEYS:
        setattr(args, key, on)


def layout_of(trainer: Trainer) -> Layout:
    """Return the layout of completions in a forward pass, for a trainer's model and arguments.

    Raises:
        ValueError: if `layout` is "packed", but the model does not support packed rows or the MoE
            load-balancing loss is on.
    """
    args = trainer.args
    # Sharded ranks gather each layer together, so all must call the model the same number of times.
    # With reentrant checkpointing, each chunk runs its own backward pass, which data parallel ranks
    # mistake for the last one.
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    reentrant = (args.gradient_checkpointing_kwargs or {}).get("use_reentrant", False)
    several_ranks = trainer.accelerator.num_processes > 1
    one_call = sharded or bool(args.gradient_checkpointing and reentrant and several_ranks)
    return choose_layout(
        args.layout,
        trainer.accelerator.unwrap_model(trainer.model),
        one_call=one_call,
        aux_loss=trainer.aux_loss_enabled,
        recomputes=args.gradient_checkpointing,
        max_tokens=args.max_tokens_per_micro_batch,
    )


def cut_rule(trainer: Trainer, layout: Layout, settings: LossSettings) -> CutRule:
    """Return the rules for cutting a step into micro-batches.

    Args:
        trainer: the trainer, with the options.
        layout: the layout of the completions.
        settings: the settings of the loss.

    Raises:
        ValueError: if `max_tokens_per_micro_batch` is set in a run that uses DeepSpeed or the MoE
            load-balancing loss, or in which rows may not move between micro-batches.
    """
    args = trainer.args
    # the loss depends on which rows run together
    by_batch = trainer.top_entropy_quantile < 1.0 or trainer.aux_loss_enabled
    deals = layout.trimmed and not by_batch
    if args.max_tokens_per_micro_batch and trainer.is_deepspeed_enabled:
        raise ValueError(
            "max_tokens_per_micro_batch does not work with DeepSpeed, which ends a step after a "
            "fixed number of backward passes. Remove max_tokens_per_micro_batch."
        )
    if args.max_tokens_per_micro_batch and trainer.aux_loss_enabled:
        raise ValueError(
            "max_tokens_per_micro_batch does not work with the MoE load-balancing loss, which is "
            "computed over whole micro-batches. Remove max_tokens_per_micro_batch."
        )
    if args.max_tokens_per_micro_batch and not deals:
        raise ValueError(
            "max_tokens_per_micro_batch works neither with `layout: padded` nor with a model whose "
            "positions count padding, such as one with learned position embeddings. Remove "
            "max_tokens_per_micro_batch or, if it is set, `layout: padded`."
        )
    has_bonus = args.entropy_coef != 0.0 or args.use_adaptive_entropy
    only_advantages = settings.loss.needs_advantage and not settings.beta and not has_bonus
    return CutRule(
        deals=deals,
        skips=args.skip_dead_rows and only_advantages,
        max_tokens=args.max_tokens_per_micro_batch,
        keeps_right=args.positive_nll_coef > 0,
    )


def make_scorer(trainer: Trainer, params: SamplingParams, layout: Layout) -> Scorer:
    """Return the scorer for a trainer's model.

    Args:
        trainer: the trainer, with the model.
        params: the sampling parameters that completions are scored with.
        layout: the layout of the completions. If a test pass shows that the model cannot be scored
            in this layout, the scorer uses chunks or does not share prompts.

    Raises:
        ValueError: if the training argument `layout` is "packed" and the test pass shows that the
            model cannot score packed rows. A sharded model is tested by the scorer itself, before
            its first packed pass.
    """
    if trainer.args.deterministic:
        # the sampler's log-probs are computed as in `Head`, which a compact layout always uses
        layout = replace(layout, compact_head=True)
    probe = probe_of(trainer)
    model = trainer.accelerator.unwrap_model(trainer.model)
    sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    check_packed: Callable[[torch.nn.Module], None] | None = None
    if layout.kind == "packed" and sharded:  # a sharded model is not ready yet
        check_packed = partial(probe.refuse_unless_separate, shares=layout.in_row)
    elif layout.kind == "packed":
        reason = probe.why_not_separate(model, layout.in_row)
        if reason and trainer.args.layout == "packed":
            refuse_packing(reason)
        if reason:
            layout = replace(layout, kind="chunks", by_cost=False, in_row=False, reason=reason)
    if layout.shares and (layout.by_cost or not layout.in_row):  # chunks may run
        layout = replace(layout, shares=probe.shares_prompts(model))
    return Scorer(probe.run, params, layout, partial(score_images, trainer), check_packed)


def probe_of(trainer: Trainer) -> Probe:
    """Return the probe that tests layouts on a trainer's model."""
    config: Any = trainer.model.config
    accelerator = trainer.accelerator
    run_pass = run_invariantly if trainer.args.deterministic else run_model
    exact = trainer.model.dtype == torch.float32 and accelerator.mixed_precision == "no"
    return Probe(
        run=partial(run_pass, accelerator, precision_of(trainer)),
        vocab_size=config.get_text_config().vocab_size,
        device=accelerator.device,
        limit=1e-4 if exact else 0.1,
    )


def how_it_trains(layout: Layout, rule: CutRule, on_cpu: bool) -> str:
    """Describe in one line how training is sped up without changing the gradient.

    Args:
        layout: the layout of the completions.
        rule: the rules for cutting a step into micro-batches.
        on_cpu: whether the model is on a CPU.
    """
    reason = f" ({layout.reason})" if layout.reason else ""
    if layout.kind == "padded":
        return f"one padded batch per micro-batch{reason}"
    rows = "rows packed without padding"
    if layout.by_cost:
        rows = "rows packed without padding, or grouped by length where that is less work"
    elif layout.kind == "chunks":
        rows = "rows grouped by length"
    measures = [f"micro-batches with similar numbers of tokens, {rows}{reason}"]
    if layout.shares and layout.kind == "chunks" and layout.recomputes:
        measures.append("each group's prompt computed once (only in passes without gradients)")
    elif layout.shares:
        measures.append("each group's prompt computed once")
    elif layout.kind == "chunks":
        measures.append(
            "each prompt with its completions (the model cannot continue from a shared one)"
        )
    if layout.compact_head and on_cpu:
        measures.append("logits of completions only")
    if rule.skips:
        measures.append("completions without gradient skipped")
    return f"the same gradient with less work: {'; '.join(measures)}"
