"""Problems of the package `reasoning_gym`. The generator that made a problem scores its answers."""

import ast
import re
from contextlib import redirect_stdout
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import last_answer, without_thoughts
from grpo_ext.rewards.deadline import paused
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import shipped_examples

# Some scorers pass the answer to `eval`. They get no calls, and nothing that expands.
_LIST = re.compile(r"[\w\s\[\],'\"-]*")
# Others pass it to sympy's parser, which calls `eval`: no texts, which sympy evaluates again, no attributes, few calls.
_FUNCTION = r"(?<![A-Za-z_])(?:[A-Za-z]|a?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt)(?![A-Za-z_])"
_FORMULA = re.compile(rf"(?:[-+/(), 0-9]|\*(?!\*[ (]*(?:[0-9]{{3}}|[^-+*/,]*\*\*))|\.(?=[0-9])|{_FUNCTION})*")
_LISTS = "binary_matrix n_queens spiral_matrix string_insertion"
_FORMULAS = "countdown intermediate_integration polynomial_multiplication puzzle24 simple_integration"
EVALUATED = {**dict.fromkeys(_LISTS.split(), _LIST), **dict.fromkeys(_FORMULAS.split(), _FORMULA)}


@register("reasoning_gym", needs_cpu=True, examples=shipped_examples("reasoning_gym"))
def reasoning_gym(completions: list[str], entry: list[str]) -> list[float]:
    """The score, 0 to 1, that the problem's generator gives to the last <answer> after the thoughts; 0 without an answer.

    Args:
        entry: the problem, as the task `reasoning_gym` writes it. Scorers evaluate parts of it: use only trusted entries.
    """
    return [score(text, ast.literal_eval(problem)) for text, problem in zip(completions, entry, strict=True)]


def score(completion: str, entry: dict[str, Any]) -> float:
    """Return the score of one completion."""
    dataset = scorer(entry["generator"], repr(entry["options"]))
    answer = (last_answer(without_thoughts(completion)) or "").strip()
    allowed = EVALUATED.get(entry["generator"])
    if not answer or (allowed and not allowed.fullmatch(answer)):
        return 0.0
    try:
        with redirect_stdout(None):  # some scorers print
            return min(max(0.0, float(dataset.score_answer(answer, entry))), 1.0)
    except Exception:  # an answer that its scorer does not expect
        return 0.0


@lru_cache(maxsize=256)
def scorer(generator: str, options: str) -> Any:
    """Return the data set that scores a generator's problems; `options` is the `repr` of a mapping."""
    with paused():
        import reasoning_gym

        return reasoning_gym.create_dataset(generator, seed=0, size=1, **ast.literal_eval(options))
