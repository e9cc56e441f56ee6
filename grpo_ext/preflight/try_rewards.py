"""Try a recipe's rewards on three made-up completions."""

import time
from typing import Any

from transformers import TrainerState

from grpo_ext.common.columns import ENVIRONMENT, TASK, answer_column
from grpo_ext.common.quiet import quiet
from grpo_ext.environments.start_episodes import Begin
from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.score import score_completions
from grpo_ext.preflight.first_rows import Row
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.example_checks import constant_warning
from grpo_ext.rewards.guard import Guard, guard_rewards
from grpo_ext.rewards.reward import Reward, Score
from grpo_ext.rewards.run_defaults import rewards_with_models
from grpo_ext.tasks.prompts import value_at

PATIENCE = 1.0  # time limit of a reward for a completion, in seconds
BUDGET = 4.0  # seconds after which no further completion is scored
KEY = "reward_funcs"


def three_completions(row: Row, prefilled: bool) -> dict[str, str]:
    """Return three completions by name: empty, in prose, and in tags with the row's answer.

    If the row has no answer, 42 is used instead. If `prefilled` is true, the prompt already opens
    the think tag, so the completion in tags does not open it.
    """
    answer = "42"
    column = answer_column(row)
    if column is not None:
        # In GSM8K, the answer follows "####".
        answer = str(value_at(row, column)).rpartition("####")[2].strip()
    opening = "" if prefilled else "<think>\n"
    return {
        "empty": "",
        "prose": "I have thought about it, and I am not sure.",
        "in tags": f"{opening}I work it out.\n</think>\n<answer>\n{answer}\n</answer>",
    }


def try_rewards_of_tasks(
    rewards: list[Any],
    rows: list[Row],
    prefilled: bool,
    findings: Findings,
    begin: Begin | None = None,
    max_failure_rate: float = Guard.max_failure_rate,
) -> dict[str, Any]:
    """Try all rewards on the first row, or the rewards of each task on the first row of the task.

    The tasks are tried separately only if the rows name both tasks and environments, or if a reward
    scores only some of the tasks.

    Args:
        rewards: the rewards of all tasks.
        rows: the first rows, with their prompts and columns.
        prefilled: whether the prompt opens the think tag.
        findings: receives the problems and notes.
        begin: the function that starts an episode for each completion; `None` if the recipe has no
            environment.
        max_failure_rate: the recipe's `reward_max_failure_rate`, to be quoted in notes on failures.

    Returns:
        The figures `{"rewards": trial}`, where `trial` is the result of `try_rewards`. If several
        tasks are tried separately, the figures are `{"rewards_by_task": {"math": trial, ...}}`.
    """
    several_environments = TASK in rows[0] and ENVIRONMENT in rows[0]
    if not several_environments and not any(tasks_of(reward) for reward in rewards):
        trial = try_rewards(rewards, rows[0], prefilled, findings, begin, max_failure_rate)
        return {"rewards": trial}
    first_rows: dict[str, Row] = {}
    for row in rows:
        first_rows.setdefault(str(row[TASK]), row)
    trials = {}
    for task, row in first_rows.items():
        of_task = [reward for reward in rewards if task in (tasks_of(reward) or (task,))]
        trials[task] = try_rewards(of_task, row, prefilled, findings, begin, max_failure_rate)
    if len(trials) == 1:
        return {"rewards": trials[task]}
    return {"rewards_by_task": trials}


def tasks_of(reward: object) -> tuple[str, ...] | None:
    """Return the names of the tasks whose rows a reward scores, or `None` if it scores all rows."""
    return getattr(reward, "tasks", None)


def try_rewards(
    rewards: list[Any],
    row: Row,
    prefilled: bool,
    findings: Findings,
    begin: Begin | None = None,
    max_failure_rate: float = Guard.max_failure_rate,
) -> dict[str, Any]:
    """Score three made-up completions of a row with each reward.

    It is a problem if a reward fails on all of them, or expects a think tag that the prompt already
    opens. If a reward is slow, that is only a note, because this machine may be busy. Equal scores
    are noted unless the completions are turns of episodes.

    Args:
        rewards: the rewards; those that are or load a model are noted but not tried.
        row: a row with its prompt and columns.
        prefilled: whether the prompt opens the think tag.
        findings: receives the problems and notes.
        begin: the function that starts an episode for each completion, which becomes the episode's
            first turn; `None` if the recipe has no environment.
        max_failure_rate: the recipe's `reward_max_failure_rate`, to be quoted in notes on failures.

    Returns:
        A dict such as `{"completions": {"empty": "", ...}, "scores": {"format": [0.0, 0.0, 1.0],
        ...}}`. The score of a completion that was not scored is `None`.
    """
    texts = three_completions(row, prefilled)
    completions = [made_up(text, row, begin) for text in texts.values()]
    if prefilled:  # a format reward may expect the completion to open the think tag
        completions.append(made_up(f"<think>\n{texts['in tags']}", row, begin))
    with_model = rewards_with_models(rewards)
    for reward in with_model:
        findings.note(
            f"reward {reward.name!r} loads the frozen model {reward.options.get('model')} in "
            f"{reward.options.get('dtype')} when it first scores, in each training process. The "
            "model was not loaded here, so the reward was not tried. `grpo-ext plan` does not "
            "count the memory of this model.",
            KEY,
        )
    until = time.monotonic() + BUDGET
    all_scores: dict[str, list[Score]] = {}
    tried = [reward for reward in rewards if reward not in with_model]
    for guard in guard_rewards(tried, timeout=PATIENCE, max_failure_rate=1.0):
        if not isinstance(guard, Guard):  # a reward model
            continue
        scores = score_until(guard, completions, row, until, findings, max_failure_rate)
        all_scores[guard.name] = [*scores, None, None, None][: len(texts)]
        if begin is None:
            warning = constant_warning(guard, scores)
            if warning:
                findings.note(warning, KEY)
        if len(scores) > len(texts) and (scores[-1] or 0) > (scores[-2] or 0):
            findings.problem(
                f"the prompt already opens <think>, but reward {guard.name!r} expects this tag in "
                f"the completion. {prefix_advice(guard.reward)}",
                KEY,
            )
    model_ids = [reward for reward in rewards if isinstance(reward, str)]
    if model_ids:
        findings.note(f"reward models are not loaded by this check: {', '.join(model_ids)}.", KEY)
    return {"completions": texts, "scores": all_scores}


def prefix_advice(reward: object) -> str:
    """Return advice for a reward that expects `<think>`, although the prompt already opens it."""
    if isinstance(reward, Reward):
        info = reward.registration
        if "prefix" in {*info.options, *info.optional}:
            return f'Use {{name: {info.name}, prefix: "<think>"}}.'
    return (
        "Let the reward accept completions that begin inside the tag, or remove <think> from the "
        "end of the prompt."
    )


def made_up(text: str, row: Row, begin: Begin | None) -> Completion:
    """Return a completion with the given text, and without token ids.

    Args:
        text: the text of the completion.
        row: the row with the prompt.
        begin: the function that starts episodes; the completion contains an episode whose first
            turn is `text`. If `None`, the completion contains no episode.
    """
    if begin is None:
        return Completion(text, [])
    [episode] = begin([row])
    episode.take_turn({"role": "assistant", "content": text}, text)
    episode.hear()
    return Completion(text, [], episode=episode)


def score_until(
    guard: Guard,
    completions: list[Completion],
    row: Row,
    until: float,
    findings: Findings,
    max_failure_rate: float,
) -> list[Score]:
    """Score completions one after another until the time is up, and report failures.

    It is a problem if the reward fails on all completions, and a note if it fails on some or is too
    slow. Completions that are not reached in time have no score, so the result may be shorter than
    `completions`.

    Args:
        guard: the reward, in its guard.
        completions: completions of `row`.
        row: the row, with its prompt and columns.
        until: the value of `time.monotonic()` at which to stop.
        findings: receives the problem or note.
        max_failure_rate: the share of failures above which training ends, to be quoted in the note.
    """
    # The trainer passes these to every reward in addition to the columns.
    extras = {
        "trainer_state": TrainerState(),
        "log_extra": lambda *_: None,
        "log_metric": lambda *_: None,
    }
    scores: list[Score] = []
    timed_out = False
    with quiet("grpo_ext.rewards.guard"):  # its warnings become findings
        for completion in completions:
            start = time.monotonic()
            if start > until:
                break
            [sample] = score_completions([row], [[completion]], {guard.name: guard}, extras)
            scores.append(sample.rewards[guard.name])
            timed_out |= bool(guard.last_failed) and time.monotonic() - start >= PATIENCE
    *_, reason = ["", *guard.last_error.strip().splitlines()]
    if timed_out or len(scores) < len(completions):
        last = f" The last failure: {reason}" if reason else ""
        findings.note(
            f"the check ran out of time before reward {guard.name!r} had scored all made-up "
            f"completions.{last}",
            KEY,
        )
    elif guard.failed == len(scores):
        findings.problem(f"reward {guard.name!r} fails on every completion: {reason}", KEY)
    elif guard.failed:
        findings.note(
            f"reward {guard.name!r} fails on {guard.failed} of {len(scores)} "
            "made-up completions, which get no score (- in the table). Training saves a "
            f"checkpoint and ends if the reward fails on more than {100 * max_failure_rate:g}% of "
            f"completions (`reward_max_failure_rate`). The last failure: {reason}",
            KEY,
        )
    return scores
