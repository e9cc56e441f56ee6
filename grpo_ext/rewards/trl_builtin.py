"""TRL's rewards, registered by name, with TRL's arguments as options.

`cosine_scaled` and `reasoning_accuracy` compare answers in the same way as the reward `accuracy`.
TRL's own versions would pass arbitrary text from completions to math-verify, whose alarms would
cancel the deadline of a guard.
"""

import math
from typing import Any

from pydantic import PositiveInt

from grpo_ext.rewards.accuracy import accuracy, score
from grpo_ext.rewards.registry import register


@register("think_format")
def think_format(completions: list[str]) -> list[float]:
    """1 if the completion begins with one <think> .. </think> block, else 0 (from TRL).

    A completion with a second <think> scores 0.
    """
    from trl.rewards import think_format_reward

    return think_format_reward([[{"role": "assistant", "content": text}] for text in completions])


@register("soft_overlong_punishment")
def soft_overlong_punishment(
    completions: list[str],
    completion_ids: list[list[int]],
    *,
    max_completion_len: int,
    soft_punish_cache: int,
) -> list[float]:
    """0 for short completions, falling linearly to -1 over the last tokens before the limit.

    Computed by TRL, following equation 13 of the DAPO paper.

    Args:
        max_completion_len: the limit in tokens.
        soft_punish_cache: the number of tokens before the limit over which the reward falls.
    """
    from trl.rewards import get_soft_overlong_punishment

    return get_soft_overlong_punishment(max_completion_len, soft_punish_cache)(completion_ids)


@register("repetition_penalty")
def repetition_penalty(
    completions: list[str],
    completion_ids: list[list[int]],
    *,
    ngram_size: PositiveInt = 3,
    max_penalty: float = -1.0,
) -> list[float]:
    """The share of repeated token n-grams, times `max_penalty`.

    The score is 0 for a completion with fewer than `ngram_size` tokens. Computed by TRL, following
    appendix C.2 of arXiv 2502.03373.

    Args:
        ngram_size: the number of tokens in an n-gram.
        max_penalty: the reward that pure repetition approaches; at most 0.

    Raises:
        ValueError: if `max_penalty` is positive.
    """
    from trl.rewards import get_repetition_penalty_reward

    return get_repetition_penalty_reward(ngram_size, max_penalty)(completion_ids)


@register("cosine_scaled", needs_cpu="formulas")
def cosine_scaled(
    completions: list[str],
    solution: list[str],
    completion_ids: list[list[int]],
    prompts: list[Any] | None = None,
    *,
    max_len: PositiveInt,
    min_value_wrong: float = -1.0,
    max_value_wrong: float = -0.5,
    min_value_correct: float = 0.5,
    max_value_correct: float = 1.0,
) -> list[float | None]:
    """Correctness scaled by length: correct answers earn more if short, wrong ones if long.

    The score is `None` if the answers cannot be compared, for example because the gold answer
    cannot be parsed. The formula is the one in appendix C.1 of arXiv 2502.03373, which TRL's
    reward also uses.

    Args:
        solution: the gold answer.
        prompts: the prompts, used if the comparison depends on the question.
        max_len: the length, in tokens, beyond which the score no longer changes.
        min_value_wrong, max_value_wrong: the scores of a wrong answer, at length 0 and at
            `max_len`.
        min_value_correct, max_value_correct: the scores of a correct answer, at `max_len` and at
            length 0.
    """
    scores: list[float | None] = []
    accuracies = accuracy(completions, solution, prompts)
    for correctness, ids in zip(accuracies, completion_ids, strict=True):
        if correctness is None:
            scores.append(None)
            continue
        if correctness:
            begin = max_value_correct
            end = min_value_correct
        else:
            begin = min_value_wrong
            end = max_value_wrong
        progress = min(len(ids) / max_len, 1.0)
        scores.append(end + 0.5 * (begin - end) * (1.0 + math.cos(math.pi * progress)))
    return scores


@register("reasoning_accuracy", needs_cpu="formulas")
def reasoning_accuracy(
    completions: list[str],
    solution: list[str],
    prompts: list[Any] | None = None,
    *,
    reasoning_delimiters: list[str] | None = None,
) -> list[float | None]:
    """1 if the answer after the reasoning equals the gold answer, else 0 (from TRL).

    The score is 0 if the completion contains none of the delimiters, and `None` if the two answers
    cannot be compared, for example because the gold answer cannot be parsed.

    Args:
        solution: the gold answer.
        prompts: the prompts, used if the comparison depends on the question.
        reasoning_delimiters: strings that end the reasoning; `None` means `</think>`. The first one
            in the list that occurs in the completion is used, and the answer is the text after its
            last occurrence.
    """
    scores: list[float | None] = []
    questions = prompts if prompts is not None else [None] * len(completions)
    for text, gold, prompt in zip(completions, solution, questions, strict=True):
        ends = [end for end in reasoning_delimiters or ["</think>"] if end in text]
        if ends:
            _, _, answer = text.rpartition(ends[0])
            scores.append(score(answer, gold, prompt))
        else:
            scores.append(0.0)
    return scores
