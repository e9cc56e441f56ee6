"""The rewards of a recipe, run on three made-up completions of its first row."""

from __future__ import annotations

from typing import Any

from transformers import TrainerState

from grpo_ext.evaluation.generate import Completion
from grpo_ext.evaluation.score import score_completions
from grpo_ext.preflight.report import Report, quiet
from grpo_ext.rewards.guard import guard_rewards

# Columns in which data sets keep what is right, the first that a row has.
ANSWERS = ("solution", "answer", "last_line", "target", "ground_truth", "label")
PATIENCE = 2.0  # seconds that a reward may take for a completion


def three_completions(row: dict[str, Any], prefilled: bool) -> dict[str, str]:
    """An empty completion, one in prose, and one in the shape of tags with the row's own answer.

    Args:
        prefilled: whether the prompt opens the think tag, so that a completion begins inside it.
    """
    answer = next((row[key] for key in ANSWERS if row.get(key) not in (None, "")), 42)
    answer = str(answer).rpartition("####")[2].strip()  # GSM8K's answers end so
    opening = "" if prefilled else "<think>\n"
    return {
        "empty": "",
        "prose": "I have thought about it, and I am not sure.",
        "in tags": f"{opening}I work it out.\n</think>\n<answer>\n{answer}\n</answer>",
    }


def try_rewards(rewards: list[Any], row: dict[str, Any], prefilled: bool, report: Report) -> dict[str, Any]:
    """What each reward gives three made-up completions; one that fails on all of them is a problem.

    Returns:
        `{"completions": {"empty": "", ...}, "scores": {"format": [0.0, 0.0, 1.0], ...}}`, `None` a row it declined.
    """
    texts = three_completions(row, prefilled)
    whole = f"<think>\n{texts['in tags']}" if prefilled else None  # what the format rewards would like to see
    asked = [*texts.values(), *([whole] if whole else [])]
    guards = [guard for guard in guard_rewards(rewards, timeout=PATIENCE, max_failure_rate=1.0) if callable(guard)]
    scores: dict[str, list[float | None]] = {}
    with quiet("grpo_ext.rewards.guard"):  # what it finds is told once, in the report
        for guard in guards:
            name = guard.__name__
            samples = score_completions([row], [[Completion(text, []) for text in asked]], {name: guard}, _extras())
            found = [sample.rewards[name] for sample in samples]
            scores[name] = found[: len(texts)]
            last_line = guard.last_error.strip().splitlines()[-1] if guard.failed else ""
            if guard.failed == len(asked):
                report.problem(f"reward {name!r} fails on every completion: {last_line}", "reward_funcs")
            elif guard.failed:
                report.note(f"reward {name!r} fails on some completions: {last_line}", "reward_funcs")
            if whole and (found[-1] or 0) > (found[-2] or 0):
                report.problem(
                    f"the prompt already opens <think>, and reward {name!r} wants to see it in the completion: write "
                    f'{{name: {name}, prefix: "<think>"}} if it takes a prefix.',
                    "reward_funcs",
                )
    models = [reward for reward in rewards if isinstance(reward, str)]
    if models:
        report.note(f"reward models were not loaded: {', '.join(models)}.", "reward_funcs")
    return {"completions": texts, "scores": scores}


def _extras() -> dict[str, Any]:
    """What the trainer passes to every reward besides columns."""
    return {"trainer_state": TrainerState(), "log_extra": lambda *_: None, "log_metric": lambda *_: None}
