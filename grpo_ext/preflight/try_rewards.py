"""A trial of a recipe's rewards on three made-up completions of its first row."""

import time
from typing import Any

from transformers import TrainerState

from grpo_ext.common.columns import answer_column
from grpo_ext.environments.start_episodes import Begin
from grpo_ext.evaluation.completions import Completion
from grpo_ext.evaluation.score import score_completions
from grpo_ext.preflight.first_rows import quiet
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards.example_checks import constant_warning
from grpo_ext.rewards.guard import guard_rewards
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.run_defaults import rewards_with_models
from grpo_ext.tasks.prompts import value_at

PATIENCE = 1.0  # seconds that a reward may take for a completion
BUDGET = 4.0  # seconds that all of them may take


def three_completions(row: dict[str, Any], prefilled: bool) -> dict[str, str]:
    """Return an empty completion, one in prose, and one with tags and the row's answer.

    With `prefilled` the prompt opens the think tag, and the completion does not.
    """
    column = answer_column(row)
    # GSM8K's form
    answer = str(42 if column is None else value_at(row, column)).rpartition("####")[2].strip()
    opening = "" if prefilled else "<think>\n"
    return {
        "empty": "",
        "prose": "I have thought about it, and I am not sure.",
        "in tags": f"{opening}I work it out.\n</think>\n<answer>\n{answer}\n</answer>",
    }


def try_rewards(
    rewards: list[Any],
    row: dict[str, Any],
    prefilled: bool,
    findings: Findings,
    begin: Begin | None = None,
) -> dict[str, Any]:
    """Score three made-up completions with each reward; a reward that fails on all of them is a
    problem.

    With `begin` each completion is the first turn of an episode. A slow reward is only a note: this
    machine may be busy. Returns `{"completions": {"empty": "", ...}, "scores": {"format": [0.0,
    0.0, 1.0], ...}}`, with `None` for no score.
    """
    texts = three_completions(row, prefilled)
    # the form that rewards of format expect
    whole = [f"<think>\n{texts['in tags']}"] if prefilled else []
    loading = rewards_with_models(rewards)
    for reward in loading:
        model = reward.options.get("model")
        dtype = reward.options.get("dtype")
        findings.note(
            f"reward {reward.name!r} loads the model {model}, frozen and in {dtype}, in each "
            "training process when it first scores. It was not loaded here, and `plan` does not "
            "count its memory.",
            "reward_funcs",
        )
    tried = [reward for reward in rewards if reward not in loading]
    guards = [
        guard
        for guard in guard_rewards(tried, timeout=PATIENCE, max_failure_rate=1.0)
        if callable(guard)
    ]
    until = time.monotonic() + BUDGET
    scores: dict[str, list[float | None]] = {}
    completions = [made_up(text, row, begin) for text in (*texts.values(), *whole)]
    for guard in guards:
        found = ask(guard, completions, row, until)
        scores[guard.__name__] = [*found, None, None, None][: len(texts)]
        report_failures(guard, len(found), len(texts) + len(whole), findings)
        if not begin and (words := constant_warning(guard, found)):
            findings.note(words, "reward_funcs")
        if whole and len(found) > len(texts) and (found[-1] or 0) > (found[-2] or 0):
            words = f"reward {guard.__name__!r} wants to see it in the completion"
            findings.problem(
                f"the prompt already opens <think>, and {words}: {prefix_advice(guard)}",
                "reward_funcs",
            )
    if models := [reward for reward in rewards if isinstance(reward, str)]:
        findings.note(f"reward models were not loaded: {', '.join(models)}.", "reward_funcs")
    return {"completions": texts, "scores": scores}


def prefix_advice(guard: Any) -> str:
    """Return what to write for a reward that expects the tag that the prompt has opened."""
    reward = guard.reward
    if isinstance(reward, Reward) and "prefix" in {
        *reward.registration.options,
        *reward.registration.optional,
    }:
        return f'write {{name: {reward.registration.name}, prefix: "<think>"}}.'
    return (
        "let it accept completions that begin inside the tag, or take <think> out of the end "
        "of the prompt."
    )


def made_up(text: str, row: dict[str, Any], begin: Begin | None) -> Completion:
    """Return a completion with this text, the first turn of an episode if there is an
    environment.
    """
    episode = begin([row])[0] if begin else None
    if episode:
        episode.take_turn({"role": "assistant", "content": text}, text)
        episode.hear()
    return Completion(text, [], episode=episode)


def ask(
    guard: Any, completions: list[Completion], row: dict[str, Any], until: float
) -> list[float | None]:
    """Return the scores of the completions, one after another, until the time is up."""
    found = []
    # the arguments that the trainer passes to every reward beside columns
    extras = {
        "trainer_state": TrainerState(),
        "log_extra": lambda *_: None,
        "log_metric": lambda *_: None,
    }
    with quiet("grpo_ext.rewards.guard"):  # its warnings become findings
        for completion in completions:
            if time.monotonic() > until:
                break
            [sample] = score_completions([row], [[completion]], {guard.__name__: guard}, extras)
            found.append(sample.rewards[guard.__name__])
    return found


def report_failures(guard: Any, asked: int, wanted: int, findings: Findings) -> None:
    """Report the failures of a reward: a problem if it failed on all completions, a note if on some
    or if it was slow.
    """
    name = guard.__name__
    reason = (guard.last_error.strip().splitlines() or [""])[-1]
    if "it took more than" in reason or asked < wanted:
        findings.note(
            f"reward {name!r} was not tried to the end: {reason or 'the time was up'}.",
            "reward_funcs",
        )
    elif guard.failed == asked:
        findings.problem(f"reward {name!r} fails on every completion: {reason}", "reward_funcs")
    elif guard.failed:
        findings.note(f"reward {name!r} fails on some completions: {reason}", "reward_funcs")
