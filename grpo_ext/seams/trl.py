"""Access to the private part of TRL's `GRPOTrainer`: its state, generation, batches and logs.

For scoring, see `scoring.py`. B is the number of completions in a batch, R the number of rewards.
"""

import copy
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Any

import torch
from accelerate.utils import gather_object, send_to_device
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments
from trl import GRPOTrainer
from trl.data_utils import is_conversational
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import (
    shuffle_sequence_dict,
    split_pixel_values_by_grid,
    split_tensor_dict,
    unsplit_pixel_values_by_grid,
)

from grpo_ext.objective.advantage import (
    SUM_THEN_NORMALIZE,
    TRL_ADVANTAGES,
    TRL_JOINT_ADVANTAGES,
)
from grpo_ext.seams.chat import can_parse, parse
from grpo_ext.seams.generate import replaced
from grpo_ext.seams.port import Row, TRLTrainer


def metrics_of(trainer: TRLTrainer) -> dict[str, list[float]]:
    """Return the metric lists that TRL averages at its next log, by metric name.

    The lists are those of training if the model is in training mode, otherwise those of evaluation.
    """
    return trainer._metrics["train" if trainer.model.training else "eval"]


def log_figures(trainer: TRLTrainer, figures: Mapping[str, float]) -> None:
    """Add values to the metrics that TRL averages at its next log.

    A name that ends in `_se` marks a standard error. The mean of n independent values has the
    standard error sqrt(sum of their squared errors) / n, but TRL divides the sum of the list's
    entries by n. The entry that is added to such a list is therefore an increment, so that the
    entries add up to the square root of the sum of the squared errors so far.

    Args:
        trainer: the trainer with the metrics.
        figures: the value to add to each metric, by name.
    """
    metrics = metrics_of(trainer)
    for name, figure in figures.items():
        if name.endswith("_se"):
            root = sum(metrics[name])
            figure = math.hypot(root, figure) - root
        metrics[name].append(figure)


def entropy_state(trainer: TRLTrainer) -> tuple[float, float]:
    """Return a tuple of the entropy bonus's coefficient and the mean entropy of the last step.

    The entropy is infinite before the first step.
    """
    return trainer.entropy_coef, trainer._last_world_entropy


def set_entropy_state(trainer: TRLTrainer, coef: float, last_entropy: float) -> None:
    """Set the values that `entropy_state` returns; TRL's own loss uses them.

    Args:
        trainer: the trainer to change.
        coef: the coefficient of the entropy bonus.
        last_entropy: the mean entropy of the last step.
    """
    trainer.entropy_coef = coef
    trainer._last_world_entropy = last_entropy


# ---- generation


def prompt_tokens(trainer: TRLTrainer, prompts: list[Any]) -> list[list[int]]:
    """Return the token ids of each prompt, using the chat template for conversations.

    Adjacent copies of a prompt are tokenized only once.
    """
    distinct_prompts = []
    copy_counts = []
    for prompt, copies in groupby(prompts):
        distinct_prompts.append(prompt)
        copy_counts.append(len(list(copies)))
    distinct_ids = trainer._tokenize_prompts(distinct_prompts)[0]
    prompt_ids = []
    for ids, copy_count in zip(distinct_ids, copy_counts, strict=True):
        prompt_ids += [list(ids) for _ in range(copy_count)]
    return prompt_ids


def completions_of(
    trainer: TRLTrainer,
    prompts: list[Any],
    prompt_ids: list[list[int]],
    completion_ids: list[list[int]],
) -> list[Any]:
    """Decode completions to strings or, if the prompts are conversational, to lists of messages.

    If the tokenizer supports it (`can_parse`), messages are parsed, including their tool calls.
    Otherwise, the text is decoded without special tokens.

    Args:
        trainer: the trainer, with the tokenizer and the tools.
        prompts: the prompts; at least one.
        prompt_ids: the token ids of each prompt.
        completion_ids: the token ids of each completion.
    """
    conversational = is_conversational({"prompt": prompts[0]})
    if conversational and can_parse(trainer._tokenizer):
        completions = []
        for prefix, ids in zip(prompt_ids, completion_ids, strict=True):
            completions.append([parse(trainer._tokenizer, ids, prefix, trainer.tools)])
        return completions
    texts = trainer.processing_class.batch_decode(completion_ids, skip_special_tokens=True)
    if not conversational:
        return texts
    return [[{"role": "assistant", "content": text}] for text in texts]


def complete(
    trainer: TRLTrainer,
    prompt_ids: list[list[int]],
    num_generations: int,
) -> list[list[int]]:
    """Generate a completion for each list of prompt tokens, and return the lists of token ids.

    TRL generates the completions with transformers.

    Args:
        trainer: the trainer with the model.
        prompt_ids: B lists of prompt token ids, in which the copies of a prompt are adjacent.
        num_generations: the number of copies of each prompt.
    """
    training = trainer.model.training
    try:
        return trainer._generate_single_turn(prompt_ids, None, {}, num_generations)[0]
    finally:
        # continuous batching leaves the model in training mode, even in evaluation
        trainer.model.train(training)


@contextmanager
def whole_model(trainer: TRLTrainer) -> Iterator[PreTrainedModel]:
    """Context manager that provides the policy without wrappers, ready to generate.

    Within the context, gradient checkpointing is off. Under ZeRO-3, all weights are gathered if
    `ds3_gather_for_generation` is set; under FSDP1, those of the root module are gathered.
    """
    args = trainer.args
    wrapped_model: Any = trainer.model_wrapped
    with (
        unwrap_model_for_generation(
            wrapped_model,
            trainer.accelerator,
            gather_deepspeed3_params=args.ds3_gather_for_generation,
            gradient_checkpointing_kwargs=checkpointing_options(args),
        ) as model,
        trainer._dist.summon_full_params(wrapped_model, recurse=False),
    ):
        yield model


def checkpointing_options(args: TrainingArguments) -> dict[str, Any] | None:
    """Return `gradient_checkpointing_kwargs`, as transformers parsed it; `None` if it is unset."""
    options: Any = args.gradient_checkpointing_kwargs
    return options


def tokenizer_of(trainer: TRLTrainer) -> PreTrainedTokenizerBase:
    """Return the trainer's tokenizer; for a multimodal model, the tokenizer of its processor."""
    return trainer._tokenizer


def pad_token(trainer: TRLTrainer) -> int:
    """Return the id of the padding token."""
    pad_token_id: Any = trainer._tokenizer.pad_token_id
    return int(pad_token_id)


def count_tokens(trainer: TRLTrainer, tokens: int) -> None:
    """Log the run's total number of tokens as `num_tokens`; in training, first add `tokens` to it.

    `tokens` is the number of tokens of a generation on all ranks.
    """
    if trainer.model.training:
        trainer.state.num_input_tokens_seen += tokens
    metrics_of(trainer)["num_tokens"] = [trainer.state.num_input_tokens_seen]


@contextmanager
def counted_step_time(trainer: TRLTrainer) -> Iterator[None]:
    """Context manager that adds its duration to TRL's metric `step_time`.

    TRL itself counts only the time in `training_step`.
    """
    start = time.perf_counter()
    yield
    trainer._current_train_step_time += time.perf_counter() - start


# ---- rewards and TRL's own table of completions


def calculate_rewards(
    trainer: TRLTrainer,
    rows: list[Row],
    prompts: list[Any],
    completions: list[Any],
    completion_ids: list[list[int]],
    environments: list[Any],
) -> Tensor:
    """Compute the rewards of this rank's completions with TRL, and gather those of all ranks.

    All ranks must call this function.

    Args:
        trainer: the trainer with the reward functions.
        rows: the rows of the dataset, one per completion.
        prompts: the prompts, one per completion.
        completions: the completions, as strings or lists of messages.
        completion_ids: the token ids of each completion.
        environments: TRL environments, one per completion; empty if there are none. They are stored
            as `trainer.environments`.

    Returns:
        The rewards (B of all ranks, R); NaN where a reward did not score a completion.
    """
    trainer.environments = environments or None  # TRL's own generation also stores them there
    return trainer._calculate_rewards(rows, prompts, completions, completion_ids)


@contextmanager
def without_unscored_warnings(is_reported: Callable[[], bool]) -> Iterator[None]:
    """Context manager that drops the log messages of TRL's trainer if `is_reported()` is true.

    Use it while TRL computes rewards: TRL's only message is then a warning about a row that no
    reward has scored.

    Args:
        is_reported: returns whether the reason for a missing score is reported elsewhere. It is
            called for each message, after the rewards have run.
    """

    def is_news(record: logging.LogRecord) -> bool:
        return not is_reported()

    trl_logger = logging.getLogger(GRPOTrainer.__module__)
    trl_logger.addFilter(is_news)
    try:
        yield
    finally:
        trl_logger.removeFilter(is_news)


def tools_of(trainer: TRLTrainer) -> tuple[list[Any], dict[str | None, Any] | None]:
    """Return the functions that were passed to the trainer as tools, and its environment factories.

    The factories are a dict by name, or `None` if the trainer has no environments.
    """
    return list(trainer._standalone_tools), trainer.environment_factories


def drop_reward_logs(trainer: TRLTrainer) -> None:
    """Discard the columns and metrics that rewards have logged since the last generation."""
    trainer._pending_extra_logs.clear()
    trainer._pending_metrics.clear()


def keep_completions(
    trainer: TRLTrainer,
    prompts: list[Any],
    completions: list[Any],
    rewards: Tensor,
    advantages: Tensor,
) -> None:
    """Add a generation, and the columns and metrics that its rewards have logged, to TRL's logs.

    All ranks must call this function. The pending columns and metrics of the rewards are cleared.

    Args:
        trainer: the trainer with the logs.
        prompts: the prompts of this rank, one per completion.
        completions: the completions of this rank.
        rewards: (B of all ranks, R), the rewards.
        advantages: (B of all ranks,), the advantages.
    """
    logs = trainer._logs
    logs["prompt"].extend(gather_object(prompts))
    logs["completion"].extend(gather_object(completions))
    for i, name in enumerate(trainer.reward_func_names):
        logs["rewards"][name].extend(rewards[:, i].tolist())
    logs["advantages"].extend(advantages.tolist())
    # a reward may have logged on some ranks only
    extra_columns = gather_object(list(trainer._pending_extra_logs))
    for column in sorted(set(extra_columns)):
        logged = trainer._pending_extra_logs.get(column, [None] * len(prompts))
        logs["extra"][column].extend(gather_object(logged))
    metric_names = gather_object(list(trainer._pending_metrics))
    for name in sorted(set(metric_names)):
        figures = gather_object(trainer._pending_metrics.get(name, []))
        mean = torch.tensor(figures, dtype=torch.float32).mean()
        metrics_of(trainer)[name].append(float(mean))
    drop_reward_logs(trainer)


@contextmanager
def whole_table(trainer: TRLTrainer, rows: int) -> Iterator[None]:
    """Context manager in which TRL's table of completions can hold at least `rows` rows.

    Outside the context, the table holds at most as many rows as a training generation. On exit,
    this limit is restored, and the oldest rows beyond it are dropped.
    """
    logs = trainer._logs
    capacity = logs["prompt"].maxlen
    for name in trainer.reward_func_names:
        logs["rewards"][name]  # the defaultdict creates it
    _resize(logs, max(capacity, rows))
    try:
        yield
    finally:
        _resize(logs, capacity)


def _resize(logs: dict[str, Any], capacity: int) -> None:
    for name, column in logs.items():
        if isinstance(column, deque):
            logs[name] = deque(column, maxlen=capacity)
        else:
            _resize(column, capacity)


def last_completions(
    trainer: TRLTrainer,
    rows: int,
) -> tuple[list[Any], list[Any], Tensor, Tensor]:
    """Return the last `rows` rows of TRL's table of completions, which come from all ranks.

    Returns:
        A tuple (prompts, completions, rewards, advantages), where rewards has the shape (rows, R)
        and advantages the shape (rows,).
    """
    logs = trainer._logs
    device = trainer.accelerator.device
    prompts = list(logs["prompt"])[-rows:]
    completions = list(logs["completion"])[-rows:]
    advantages = list(logs["advantages"])[-rows:]
    rewards = []
    for name in trainer.reward_func_names:
        column = list(logs["rewards"][name])
        rewards.append(column[-rows:])
    return (
        prompts,
        completions,
        torch.tensor(rewards, device=device).T,
        torch.tensor(advantages, device=device),
    )


def generate_and_score(trainer: TRLTrainer, rows: list[Row]) -> Any:
    """Call the trainer's `_generate_and_score_completions`, which a subclass may override."""
    return trainer._generate_and_score_completions(rows)


def trl_generation(trainer: TRLTrainer, rows: list[Row]) -> dict[str, Any]:
    """Have TRL generate completions and compute rewards and advantages; return its output dict.

    This is for images, and for tools that TRL calls. TRL does not compute the log-probs of the old
    policy and the reference here, because our own scoring does. An advantage estimator that TRL
    does not have is replaced with one of TRL's; our own advantages are computed later.
    """
    generate: Any = GRPOTrainer._generate_and_score_completions
    args = copy.copy(trainer.args)
    args.steps_per_generation = 1
    scale_rewards = trainer.scale_rewards
    aggregation = trainer.multi_objective_aggregation
    with replaced(
        trainer,
        args=args,
        num_iterations=1,
        vllm_importance_sampling_correction=False,
        beta=0.0,
        scale_rewards=scale_rewards if scale_rewards in TRL_ADVANTAGES else "group",
        multi_objective_aggregation=(
            aggregation if aggregation in TRL_JOINT_ADVANTAGES else SUM_THEN_NORMALIZE
        ),
    ):
        return generate(trainer, rows)


def split_with_images(table: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Shuffle the rows of a generation and split them into `number` slices, each with its images.

    `table` is TRL's dict of a generation; each slice has the same keys.
    """
    by_image: Any = split_pixel_values_by_grid(table)
    shuffled: Any = shuffle_sequence_dict(by_image)
    slices: Any = split_tensor_dict(shuffled, number)
    return [dict(unsplit_pixel_values_by_grid(columns)) for columns in slices]


# ---- the state of transformers and TRL


def expect_tied_weights(model: object) -> None:
    """Tell transformers which weights its checkpoints leave out because they are tied to others.

    Otherwise, every resume warns falsely about missing keys such as `lm_head.weight`. Only weights
    that really are the same parameter as their source are listed. The list is stored in the model.
    Does nothing if `model` is not a transformers model, or has no tied weights.
    """
    if not isinstance(model, PreTrainedModel):
        return
    sources = getattr(model, "all_tied_weights_keys", None)
    if not sources:
        return
    parameters = dict(model.named_parameters(remove_duplicate=False))
    ignored = set(model._keys_to_ignore_on_save or ())
    for name, source in sources.items():
        if name in parameters and parameters[name] is parameters.get(source):
            ignored.add(name)
    model._keys_to_ignore_on_save = ignored


def state_of(trainer: TRLTrainer) -> dict[str, Any]:
    """Return the trainer state that the checkpoints of transformers and TRL leave out.

    Restore it with `load_state`.
    """
    metrics = trainer._metrics["train"]
    return {
        "step": trainer._step,
        "buffer": trainer._buffered_inputs,
        "loss": trainer._tr_loss,
        "total_loss": trainer._total_loss_scalar,
        "last_logged": trainer._globalstep_last_logged,
        "metrics": {name: list(figures) for name, figures in metrics.items()},
        "entropy": entropy_state(trainer),
    }


def load_state(trainer: TRLTrainer, state: dict[str, Any]) -> None:
    """Restore a state from `state_of`; call this after transformers has reset its loss sums."""
    trainer._step = state["step"]
    trainer._buffered_inputs = send_to_device(state["buffer"], trainer.accelerator.device)
    trainer._metrics["train"].clear()
    trainer._metrics["train"].update(state["metrics"])
    trainer._tr_loss = state["loss"].to(trainer.args.device)
    trainer._total_loss_scalar = state["total_loss"]
    trainer._globalstep_last_logged = state["last_logged"]
    set_entropy_state(trainer, *state["entropy"])


def mean_loss(trainer: TRLTrainer) -> float:
    """Return the mean loss over all steps of a run that has ended.

    transformers itself divides by the number of steps since the run was last resumed.
    """
    return trainer._total_loss_scalar / max(trainer.state.global_step, 1)


def keeping_all(args: TrainingArguments) -> AbstractContextManager[None]:
    """Return a context in which transformers does not delete old checkpoints."""
    return replaced(args, save_total_limit=None)
