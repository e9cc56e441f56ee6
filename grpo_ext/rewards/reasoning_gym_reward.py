"""The reward `reasoning_gym`: scores an answer with the generator that made the problem.

The reward is registered only if the package `reasoning_gym` is installed. For how to install it,
see the task `reasoning_gym`.
"""

import ast
import io
from contextlib import redirect_stdout
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from grpo_ext.common.gym_package import make_dataset
from grpo_ext.rewards.answers import last_answer, without_thoughts
from grpo_ext.rewards.deadline import paused
from grpo_ext.rewards.gym_patterns import check_problem, may_score
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import Example

_ENTRY = {"entry": "{'generator': 'chain_sum', 'options': {}, 'answer': '7', 'metadata': {}}"}
EXAMPLES = (
    Example("<think>5, 6, 7</think>\n<answer>\n7\n</answer>", 1, _ENTRY),
    Example("<think><answer>7</answer></think> 7", 0, _ENTRY),
    Example("<answer>8</answer>", 0, _ENTRY),
)


def reasoning_gym(completions: list[str], entry: list[str]) -> list[float]:
    """The score (0 to 1) of the last <answer>, computed by the generator that made the problem.

    An <answer> in the thoughts does not count. The score is 0 if there is no other <answer>, if the
    generator's scorer fails on the answer, or if the answer is not safe to evaluate.

    Args:
        entry: the problem, in the format of the task `reasoning_gym`.

    Raises:
        ImportError: if the package is missing or has an unsupported version.
        ValueError: if a problem names an unknown generator, or if the string that its scorer
            evaluates is missing or not safe to evaluate.
        Exception: any error of a scorer that fails even on the problem's own answer.
    """
    scores = []
    for completion, row_entry in zip(completions, entry, strict=True):
        scores.append(score(completion, ast.literal_eval(row_entry)))
    return scores


def score(completion: str, entry: dict[str, Any]) -> float:
    """Return the score of one completion, from 0 to 1.

    The score is 0 if there is no <answer> outside the thoughts, if the generator's scorer fails on
    the answer, or if the answer is not safe to evaluate.

    Args:
        completion: the text of the completion.
        entry: the problem: a mapping with `generator`, `options`, `answer` and `metadata`.

    Raises:
        ImportError: if the package is missing or has an unsupported version.
        ValueError: if the problem names an unknown generator, or if the string that its scorer
            evaluates is missing or not safe to evaluate.
        Exception: any error of the scorer, if it fails even on the problem's own answer.
    """
    answer = (last_answer(without_thoughts(completion)) or "").strip()
    scorer = scorer_of(entry["generator"], repr(entry["options"]))
    check_problem(entry)
    if not answer or not may_score(entry["generator"], answer):
        return 0.0
    with redirect_stdout(io.StringIO()):  # some scorers print
        try:
            value = float(scorer.score_answer(answer, entry))
        except Exception:  # an answer in a form that the scorer does not expect
            scorer.score_answer(entry["answer"], entry)
            value = 0.0
    return min(max(0.0, value), 1.0)


@lru_cache(maxsize=256)
def scorer_of(generator: str, options: str) -> Any:
    """Return a Reasoning Gym dataset whose `score_answer` scores a generator's problems.

    Args:
        generator: the name of the generator.
        options: the `repr` of the generator's options, which unlike a mapping can be hashed for the
            cache.
    """
    with paused():
        return make_dataset(generator, ast.literal_eval(options), seed=0, size=1)


if find_spec("reasoning_gym") is not None:
    register("reasoning_gym", needs_cpu=True, examples=EXAMPLES)(reasoning_gym)
