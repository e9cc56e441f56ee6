"""The private part of TRL's `GRPOTrainer`: its state, generation, batches and logs; scoring is in `scoring.py`."""

import copy
import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby
from typing import Any

import torch
from accelerate.utils import gather_object, send_to_device
from torch import Tensor
from transformers import PreTrainedModel
from trl import GRPOTrainer
from trl.data_utils import is_conversational
from trl.models import unwrap_model_for_generation
from trl.trainer.utils import (
    shuffle_sequence_dict,
    split_pixel_values_by_grid,
    split_tensor_dict,
    unsplit_pixel_values_by_grid,
)

from grpo_ext.seams.chat import can_parse, parse
from grpo_ext.seams.replace import replaced

Row = dict[str, Any]


def metrics_of(trainer: Any) -> dict[str, list[float]]:
    """Return the figures that TRL averages at its next log, of training or of evaluation."""
    return trainer._metrics["train" if trainer.model.training else "eval"]


def log_figures(trainer: Any, figures: Mapping[str, float]) -> None:
    """Add figures to those that TRL averages at its next log.

    The mean of n independent figures has the standard error sqrt(sum of squares) / n. TRL divides
    the sum by n, so the figures under a name that ends in `_se` are kept such that their sum is the
    root of the sum of squares.
    """
    metrics = metrics_of(trainer)
    for name, value in figures.items():
        if name.endswith("_se"):
            root = sum(metrics[name])
            value = math.hypot(root, value) - root
        metrics[name].append(value)


def entropy_state(trainer: Any) -> tuple[float, float]:
    """Return the coefficient of the entropy bonus, and the mean entropy of the last step (infinite before the first)."""
    return trainer.entropy_coef, trainer._last_world_entropy


def set_entropy_state(trainer: Any, coef: float, last_entropy: float) -> None:
    """Set what `entropy_state` returns; TRL's own code and its checkpoints read it, too."""
    trainer.entropy_coef = coef
    trainer._last_world_entropy = last_entropy


# ---- generation


def prompt_tokens(trainer: Any, prompts: list[Any]) -> list[list[int]]:
    """Return the prompts as lists of tokens, by the chat template if they are conversations; adjacent copies are read once."""
    copies = [(prompt, len(list(same))) for prompt, same in groupby(prompts)]
    found = trainer._tokenize_prompts([prompt for prompt, _ in copies])[0]
    return [list(ids) for (_, count), ids in zip(copies, found, strict=True) for _ in range(count)]


def completions_of(
    trainer: Any, prompts: list[Any], prompt_ids: list[list[int]], ids: list[list[int]]
) -> list[Any]:
    """Return completions as rewards get them: texts, or messages if the prompts are conversations."""
    conversational = is_conversational({"prompt": prompts[0]})
    if conversational and can_parse(trainer._tokenizer):
        return [
            [parse(trainer._tokenizer, row, prompt, trainer.tools)]
            for prompt, row in zip(prompt_ids, ids, strict=True)
        ]
    texts = trainer.processing_class.batch_decode(ids, skip_special_tokens=True)
    return [[{"role": "assistant", "content": text}] for text in texts] if conversational else texts


def complete(trainer: Any, prompt_ids: list[list[int]], num_generations: int) -> list[list[int]]:
    """Complete each list of tokens once, by transformers."""
    training = trainer.model.training
    try:
        return trainer._generate_single_turn(prompt_ids, None, {}, num_generations)[0]
    finally:
        trainer.model.train(
            training
        )  # continuous batching leaves the model in training mode, also in evaluation


@contextmanager
def whole_model(trainer: Any) -> Iterator[Any]:
    """Yield the policy without wrappers and with all of its weights, for generation."""
    args = trainer.args
    options = {
        "gather_deepspeed3_params": args.ds3_gather_for_generation,
        "gradient_checkpointing_kwargs": args.gradient_checkpointing_kwargs,
    }
    with (
        unwrap_model_for_generation(trainer.model_wrapped, trainer.accelerator, **options) as model,
        trainer._dist.summon_full_params(trainer.model_wrapped, recurse=False),
    ):
        yield model


def pad_token(trainer: Any) -> int:
    """Return the id of the padding token."""
    return int(trainer._tokenizer.pad_token_id)


def count_tokens(trainer: Any, tokens: int) -> None:
    """Add the tokens of a generation on all ranks to those that the run has seen."""
    if trainer.model.training:
        trainer.state.num_input_tokens_seen += tokens
    metrics_of(trainer)["num_tokens"] = [trainer.state.num_input_tokens_seen]


# ---- rewards and TRL's own table of completions


def calculate_rewards(
    trainer: Any,
    rows: list[Row],
    prompts: list[Any],
    completions: list[Any],
    ids: list[list[int]],
    environments: list[Any],
) -> Tensor:
    """Return the rewards (B of all ranks, R); NaN if a reward did not score a completion.

    `environments`: those of TRL's kind, one per completion.
    """
    trainer.environments = environments or None  # where TRL's generation also leaves them
    return trainer._calculate_rewards(rows, prompts, completions, ids)


def tools_of(trainer: Any) -> tuple[list[Any], dict[str | None, Any] | None]:
    """Return the functions that a trainer was given as tools, and the factories of its environments by name."""
    return list(trainer._standalone_tools), trainer.environment_factories


def drop_reward_logs(trainer: Any) -> None:
    """Delete what rewards have logged since the last generation."""
    trainer._pending_extra_logs.clear()
    trainer._pending_metrics.clear()


def keep_completions(
    trainer: Any, prompts: list[Any], completions: list[Any], rewards: Tensor, advantages: Tensor
) -> None:
    """Add a generation to the table that TRL prints and saves, and the figures that rewards logged to TRL's metrics."""
    logs = trainer._logs
    logs["prompt"].extend(gather_object(prompts))
    logs["completion"].extend(gather_object(completions))
    for i, name in enumerate(trainer.reward_func_names):
        logs["rewards"][name].extend(rewards[:, i].tolist())
    logs["advantages"].extend(advantages.tolist())
    for column in sorted(set(gather_object(list(trainer._pending_extra_logs)))):
        values = trainer._pending_extra_logs.get(column, [None] * len(prompts))
        logs["extra"][column].extend(gather_object(values))
    for name in sorted(set(gather_object(list(trainer._pending_metrics)))):
        noted = gather_object(trainer._pending_metrics.get(name, []))
        metrics_of(trainer)[name].append(float(torch.tensor(noted, dtype=torch.float32).mean()))
    drop_reward_logs(trainer)


@contextmanager
def whole_table(trainer: Any, rows: int) -> Iterator[None]:
    """Within the context, TRL's table of completions holds `rows` rows; else it keeps at most a training generation."""
    logs = trainer._logs
    before = logs["prompt"].maxlen
    for name in trainer.reward_func_names:
        logs["rewards"][name]  # the defaultdict creates it
    _resize(logs, max(before, rows))
    try:
        yield
    finally:
        _resize(logs, before)


def _resize(logs: dict[str, Any], most: int) -> None:
    for name, value in logs.items():
        if isinstance(value, deque):
            logs[name] = deque(value, maxlen=most)
        else:
            _resize(value, most)


def last_completions(trainer: Any, rows: int) -> tuple[list[Any], list[Any], Tensor, Tensor]:
    """Return prompts, completions, rewards (rows, R) and advantages (rows,) of TRL's last generation on all ranks."""
    logs = trainer._logs
    rewards = [list(logs["rewards"][name])[-rows:] for name in trainer.reward_func_names]
    return (
        list(logs["prompt"])[-rows:],
        list(logs["completion"])[-rows:],
        torch.tensor(rewards, device=trainer.accelerator.device).T,
        torch.tensor(list(logs["advantages"])[-rows:], device=trainer.accelerator.device),
    )


def generate_and_score(trainer: Any, rows: list[Row]) -> Any:
    """Call the trainer's generation, which a subclass may have changed."""
    return trainer._generate_and_score_completions(rows)


def trl_generation(trainer: Any, rows: list[Row]) -> dict[str, Any]:
    """Let TRL generate and judge, for images.

    TRL does not score old and reference log-probs, as if the generation were used once: our scoring does.
    """
    args = copy.copy(trainer.args)
    args.steps_per_generation = 1
    with replaced(
        trainer, args=args, num_iterations=1, vllm_importance_sampling_correction=False, beta=0.0
    ):
        return GRPOTrainer._generate_and_score_completions(trainer, rows)


def split_with_images(table: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Shuffle a generation and split it into slices, each with its images."""
    by_image: Any = split_pixel_values_by_grid(table)
    shuffled: Any = shuffle_sequence_dict(by_image)
    parts: list[Any] = split_tensor_dict(shuffled, number)
    return [dict(unsplit_pixel_values_by_grid(part)) for part in parts]


# ---- the state of transformers and TRL


def expect_tied_weights(model: Any) -> None:
    """Tell transformers which weights its checkpoints leave out because they are tied to others.

    Otherwise each resume warns of missing keys, such as `lm_head.weight`, which are not missing. Only weights that are really
    one parameter with their source are named.
    """
    tied = getattr(model, "all_tied_weights_keys", None)
    if not isinstance(model, PreTrainedModel) or not tied:
        return
    parameters = dict(model.named_parameters(remove_duplicate=False))
    same = {name for name, source in tied.items() if parameters.get(name) is parameters.get(source)}
    model._keys_to_ignore_on_save = {*(model._keys_to_ignore_on_save or ()), *same}


def state_of(trainer: Any) -> dict[str, Any]:
    """Return the state that the checkpoints of transformers and TRL leave out."""
    return {
        "step": trainer._step,
        "buffer": trainer._buffered_inputs,
        "loss": trainer._tr_loss,
        "total_loss": trainer._total_loss_scalar,
        "last_logged": trainer._globalstep_last_logged,
        "metrics": {name: list(values) for name, values in trainer._metrics["train"].items()},
        "entropy": entropy_state(trainer),
    }


def load_state(trainer: Any, state: dict[str, Any]) -> None:
    """Restore `state_of`, after transformers' loop has set the sums of losses to 0 at its start."""
    trainer._step = state["step"]
    trainer._buffered_inputs = send_to_device(state["buffer"], trainer.accelerator.device)
    trainer._metrics["train"].clear()
    trainer._metrics["train"].update(state["metrics"])
    trainer._tr_loss = state["loss"].to(trainer.args.device)
    trainer._total_loss_scalar = state["total_loss"]
    trainer._globalstep_last_logged = state["last_logged"]
    set_entropy_state(trainer, *state["entropy"])


def mean_loss(trainer: Any) -> float:
    """Return the mean loss of all steps of a run that has ended; transformers divides by the steps since the last resume."""
    return trainer._total_loss_scalar / max(trainer.state.global_step, 1)


def keeping_all(args: Any) -> AbstractContextManager[None]:
    """Within the context, transformers deletes no checkpoint."""
    return replaced(args, save_total_limit=None)
