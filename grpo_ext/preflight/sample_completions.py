"""Try a recipe's rewards on groups of completions that its model samples as in training."""

import random
from collections import Counter
from collections.abc import Iterable
from operator import itemgetter
from statistics import fmean
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerState,
)
from trl import get_quantization_config

from grpo_ext.common.columns import TASK
from grpo_ext.common.quiet import quiet
from grpo_ext.common.stop_strings import KEY, stop_strings_of
from grpo_ext.common.untrusted import first_line
from grpo_ext.environments.start_episodes import Begin
from grpo_ext.evaluation.completions import Decoding, generate_completions
from grpo_ext.evaluation.run_precision import precision_of
from grpo_ext.evaluation.score import Sample, by_row, mixed_rows, score_completions
from grpo_ext.preflight.first_rows import Row
from grpo_ext.recipe.group_options import reward_weights_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values
from grpo_ext.rewards.guard import Guard, guard_rewards
from grpo_ext.rewards.run_defaults import rewards_with_models
from grpo_ext.run.from_recipe import model_init_kwargs

MODEL = "model_name_or_path"
REWARDS = "reward_funcs"
LARGEST_GROUP = 4  # maximum completions per prompt, so that 8 completions come from two prompts
# What rewards receive in training in addition to the columns.
EXTRAS = {
    "trainer_state": TrainerState(),
    "log_extra": lambda *_: None,
    "log_metric": lambda *_: None,
}


def try_rewards_on_samples(
    recipe: Recipe,
    rewards: list[Any],
    rows: list[Row],
    tokenizer: PreTrainedTokenizerBase,
    count: int,
    findings: Findings,
    begin: Begin | None = None,
) -> None:
    """Sample groups of completions for some rows, and score them with the rewards.

    A group has as many completions as in training, but at most `LARGEST_GROUP` and at most `count`.
    The figure "samples" has the form `{"temperature": 1.0, "completions": [{"row",
    "text", "length", "finish_reason", "rewards"}], "rewards": {"format": {"mean": 0.25, "std":
    0.43}}, "groups": {"count": 2, "size": 4, "differ": 1}}`. Rows are counted from 0, and a reward
    without any score has no entry in "rewards". "std" is the mean standard deviation within a
    group. "differ" is the number of groups in which a reward with a nonzero weight did not give all
    completions the same score, or `None` if groups have one completion or a reward was not tried.
    If the model is not on this machine or fails, the figure is `None`, and a note says why.

    Args:
        recipe: the recipe, which sets the model, the sampling, and the time limit of rewards.
        rewards: the rewards; those that are or load a model are not tried.
        rows: the first rows, with their prompts and columns.
        tokenizer: the model's tokenizer.
        count: the minimum number of completions, which is rounded up to whole groups.
        findings: receives the figure, the problems and the notes.
        begin: the function that starts episodes, if the recipe has an environment.
    """
    v = recipe.flat
    size = min(count, v.num_generations, LARGEST_GROUP)
    numbers = rows_of_groups(rows, -(-count // size))
    sampled_rows = [rows[number] for number in numbers]
    try:
        model = load_model(recipe)
        template_options: Any = recipe.training.chat_template_kwargs  # already parsed as a mapping
        decoding = training_decoding(v, size)
        completions = generate_completions(
            model,
            tokenizer,
            sampled_rows,
            decoding,
            fast=v.fast_generate,
            chat_template_kwargs=template_options,
            progress=f"sample {size * len(numbers)}",
            begin=begin,
            precision=precision_of(recipe, model),
        )
    except Exception as error:  # a model's own code may raise anything
        findings.note(f"no completions were sampled: {first_line(error)}", MODEL)
        findings.figures["samples"] = None
        return
    tried = [reward for reward in rewards if reward not in rewards_with_models(rewards)]
    guards = {}
    for guard in guard_rewards(tried, timeout=v.reward_timeout, max_failure_rate=1.0):
        if isinstance(guard, Guard):  # not a reward model
            guards[guard.name] = guard
    with quiet("grpo_ext.rewards.guard"):  # its warnings become findings
        samples = score_completions(sampled_rows, completions, guards, EXTRAS)
    report_failures(guards, findings, v.reward_max_failure_rate)
    reward_spreads = spreads(list(guards), samples, findings)
    differing = None
    if size > 1 and len(guards) == len(rewards):
        weights = reward_weights_of(v)
        names = [name for name in guards if weights.get(name, 1.0) != 0]
        differing = count_differing(names, samples)
    findings.figures["samples"] = {
        "temperature": decoding.temperature,
        "completions": [
            {
                "row": numbers[sample.row],
                "text": sample.text,
                "length": sample.length,
                "finish_reason": sample.finish_reason,
                "rewards": sample.rewards,
            }
            for sample in samples
        ],
        "rewards": reward_spreads,
        "groups": {"count": len(numbers), "size": size, "differ": differing},
    }


def rows_of_groups(rows: list[Row], count: int) -> list[int]:
    """Choose a row for each group at random, with a fixed seed, and return the rows' indices.

    With several tasks, one row of each task is chosen before a second row of any task. Rows are
    repeated if there are more groups than rows.

    Args:
        rows: the first rows.
        count: the number of groups.
    """
    seen: Counter[str] = Counter()
    order = []
    for number in random.Random(0).sample(range(len(rows)), len(rows)):
        task = str(rows[number].get(TASK))
        order.append((seen[task], number))
        seen[task] += 1
    order.sort(key=itemgetter(0))
    return [order[i % len(order)][1] for i in range(count)]


def count_differing(names: Iterable[str], samples: list[Sample]) -> int:
    """Return the number of groups in which a reward gave completions different scores.

    In the other groups, no completion is better than another, so the model learns nothing from
    them.

    Args:
        names: the names of the rewards with a nonzero weight.
        samples: the scored completions; those with the same `row` are a group.
    """
    differing: set[int] = set()
    for name in names:
        is_mixed = mixed_rows(samples, name)
        differing.update(is_mixed.index[is_mixed])
    return len(differing)


def load_model(recipe: Recipe) -> PreTrainedModel:
    """Load the recipe's model from this machine; nothing is downloaded.

    The model is put on a GPU if one is available and `use_cpu` is not set. A quantized model stays
    where transformers has put it.

    Raises:
        OSError: if the model is not on this machine, or its files cannot be read.
    """
    v = recipe.flat
    name = v[MODEL]
    options = model_init_kwargs(recipe)
    quantization = get_quantization_config(recipe.model)
    if quantization is not None:
        options["quantization_config"] = quantization
    options.setdefault("trust_remote_code", bool(v.trust_remote_code))
    try:
        model: Any = AutoModelForCausalLM.from_pretrained(name, local_files_only=True, **options)
    except OSError as error:
        raise OSError(
            f"the model {name} cannot be loaded from this machine ({first_line(error)}). If it is "
            f"a model on the hub, run `hf download {name}`."
        ) from error
    if quantization is None:  # a quantized model stays where it was loaded
        has_gpu = torch.cuda.is_available() and not recipe.training.use_cpu
        model.to("cuda" if has_gpu else "cpu")
    return model


def training_decoding(v: Values, num_samples: int = 1) -> Decoding:
    """Return the sampling settings of training as a `Decoding` for transformers.

    If the recipe uses vLLM, only the stop strings of its `generation_kwargs` are kept, because
    vLLM's other options have different names.

    Args:
        v: the values of the recipe.
        num_samples: the number of completions for each prompt.

    Raises:
        ValueError: if `max_completion_length` is null, if the stop strings are invalid, or if
            `temperature` is 0 and `num_samples` is above 1.
    """
    if v.max_completion_length is None:
        raise ValueError(
            "max_completion_length is null. Set it, for example with --max_completion_length 256."
        )
    options: dict[str, Any] = {
        "repetition_penalty": v.repetition_penalty,
        "cache_implementation": v.cache_implementation,
    }
    if not v.use_vllm:  # vLLM's options have other names
        options |= v.generation_kwargs or {}
        options.pop(KEY, None)
    return Decoding(
        v.max_completion_length,
        temperature=v.temperature,
        top_p=v.top_p,
        top_k=v.top_k,
        min_p=v.min_p,
        num_samples=num_samples,
        seed=v.seed,
        stop_strings=stop_strings_of(v.generation_kwargs),
        options=options,
    )


def report_failures(guards: dict[str, Guard], findings: Findings, max_rate: float) -> None:
    """Report rewards that failed on sampled completions.

    It is a problem if a reward failed on all completions or on a larger share than training allows;
    otherwise it is a note.

    Args:
        guards: the rewards by name, which have scored the completions.
        findings: receives the problems and notes.
        max_rate: the share of failures above which training ends, `reward_max_failure_rate`.
    """
    for name, guard in guards.items():
        if not guard.failed:
            continue
        reason = first_line(guard.last_error.strip().splitlines()[-1])
        if guard.failed == guard.asked:
            findings.problem(
                f"reward {name!r} fails on every sampled completion: {reason}", REWARDS
            )
        elif guard.failed / guard.asked > max_rate:
            findings.problem(
                f"reward {name!r} fails more often than training allows: on {guard.failed} of "
                f"{guard.asked} sampled completions. Training saves a checkpoint and ends if the "
                f"reward fails on more than {100 * max_rate:g}% of completions "
                "(`reward_max_failure_rate`). Correct the reward, or raise "
                f"reward_max_failure_rate. The last failure: {reason}",
                REWARDS,
            )
        else:
            findings.note(
                f"reward {name!r} fails on {guard.failed} of {guard.asked} "
                "sampled completions, which get no score (- in the list). Training saves a "
                f"checkpoint and ends if the reward fails on more than {100 * max_rate:g}% of "
                f"completions (`reward_max_failure_rate`). The last failure: {reason}",
                REWARDS,
            )


def spreads(
    names: list[str], samples: list[Sample], findings: Findings
) -> dict[str, dict[str, float]]:
    """Return `{"mean": ..., "std": ...}` for each reward, by its name.

    These are the mean of the reward's scores, and the mean of their standard deviations within the
    groups. A reward without scores has no entry. A note is added for each reward that gave the same
    score to all completions that it scored, if it scored at least two.

    Args:
        names: the names of the rewards.
        samples: the scored completions; those with the same `row` are a group.
        findings: receives the notes.
    """
    figures = {}
    for name in names:
        scores = by_row(samples, name).dropna()
        if scores.empty:
            continue
        stds = scores.groupby(level=0).std(ddof=0)
        figures[name] = {"mean": fmean(scores), "std": fmean(stds)}
        if len(scores) > 1 and scores.nunique() == 1:
            findings.note(
                f"reward {name!r} gave the same score, {scores.iloc[0]:g}, to all {len(scores)} "
                "sampled completions that it scored. The model learns nothing from a reward that "
                "scores all completions of a prompt alike. Check the reward and the prompts, or "
                "sample more completions.",
                REWARDS,
            )
    return figures
