"""Synthetic demonstrations of Countdown and games for a warm start: well-formed but poorly played.

A demonstration of Countdown tries one value after another, in descending order from a random one
(the largest value follows the smallest), and states after each whether it is the target:

    <think>
    5 + 3 → 8 - 1 → 7 vs 3 no; 5 - 3 → 2 + 1 → 3 vs 3 yes
    </think>
    <answer>
    5 - 3 + 1
    </answer>

The verdicts "yes" and "no" are always correct, but most demonstrations give up and answer with
their first attempt. Reinforcement learning can teach the model to try longer and to choose better
attempts.

Demonstrations of a game make legal moves with hardly any strategy.
"""

import random
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product
from typing import Any

from transformers.utils import get_json_schema

from grpo_ext.environments.check import Check
from grpo_ext.environments.guess import Guess
from grpo_ext.tasks.countdown import Countdown, apply
from grpo_ext.tasks.guess import GuessTask

Demonstration = dict[str, list[dict[str, Any]]]
Chain = tuple[str, str]  # an expression: its steps with their results, and its text


def countdown_demonstrations(
    task: Countdown,
    count: int,
    *,
    give_up: float = 0.7,
    operators: str | None = None,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield demonstrations on training problems, as dicts with `prompt` and `completion` messages.

    Args:
        task: the task that generates the problems.
        count: the number of demonstrations.
        give_up: the share of demonstrations that stop after one attempt. The others stop when an
            attempt reaches the target, or after the last value.
        operators: the operators of the attempts; if `None`, the task's own are used.
        seed: the seed of all random choices.
    """
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    for _ in range(count):
        problem = rng.choice(problems)
        target = problem["target"]
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        attempts = attempts_downwards(
            tuple(sorted(nums)),
            operators or task.operators,
            task.max_target,
        )
        start = rng.randrange(len(attempts))
        attempts = attempts[start:] + attempts[:start]
        gives_up = rng.random() < give_up
        thoughts = []
        answer = ""
        for value, steps, answer in attempts:  # noqa: B007
            verdict = "yes" if value == target else "no"
            thoughts.append(f"{steps} vs {target} {verdict}")
            if gives_up or value == target:
                break
        text = f"<think>\n{'; '.join(thoughts)}\n</think>\n<answer>\n{answer}\n</answer>"
        yield {
            "prompt": task.prompt({**problem, "nums": nums}),
            "completion": [{"role": "assistant", "content": text}],
        }


@lru_cache(maxsize=100_000)
def attempts_downwards(
    nums: tuple[int, ...],
    operators: str,
    largest: int,
) -> list[tuple[int, str, str]]:
    """Return one attempt (value, steps, expression) for each reachable value, the largest first.

    Expressions use each number once and are evaluated from left to right, as in `chains`. Of those
    with the same value, the one that starts with the largest numbers is chosen. Values outside the
    range from 1 to `largest` are left out, unless no value is in that range. The result is cached,
    so the caller must not modify it.

    Args:
        nums: the numbers.
        operators: the operators that may occur.
        largest: the maximum value, and the maximum result of each step. Steps may exceed it if no
            expression would otherwise have a value above 0.
    """
    by_value = chains(nums, operators, largest)
    if not any(by_value):
        by_value = chains(nums, operators)
    in_range = [value for value in by_value if 1 <= value <= largest]
    attempts = []
    for value in sorted(in_range or by_value, reverse=True):
        steps, equation = max(by_value[value], key=numbers_of)
        attempts.append((value, steps, equation))
    return attempts


@lru_cache(maxsize=100_000)
def chains(
    nums: tuple[int, ...],
    operators: str,
    largest: int | None = None,
) -> dict[int, list[Chain]]:
    """Return the expressions that use each number once and are evaluated from left to right.

    The result maps each value to the expressions with that value. An expression is a `Chain`, a
    pair such as `5 + 11 → 16 - 8 → 8` and `5 + 11 - 8`. The result is cached, so the caller must
    not modify it.

    Args:
        nums: the numbers.
        operators: the operators that may occur.
        largest: the maximum result of a step; if `None`, there is no maximum. Every result must
            also be whole and not negative.
    """
    by_value: dict[int, list[Chain]] = {}
    for order in sorted(set(permutations(nums))):
        for signs in product(operators, repeat=len(nums) - 1):
            value = order[0]
            steps = str(value)
            equation = str(value)
            is_sum = False
            for sign, number in zip(signs, order[1:], strict=True):
                step_value = apply(sign, value, number)
                if step_value is None or (largest is not None and step_value > largest):
                    break
                value = step_value
                if is_sum and sign in "*/":
                    equation = f"({equation})"
                is_sum = sign in "+-"
                steps += f" {sign} {number} → {value}"
                equation += f" {sign} {number}"
            else:
                by_value.setdefault(value, []).append((steps, equation))
    return by_value


def numbers_of(chain: Chain) -> list[int]:
    """Return the numbers in the expression of a `Chain`, in order."""
    _, equation = chain
    return list(map(int, re.findall(r"\d+", equation)))


def guess_demonstrations(
    task: GuessTask,
    count: int,
    *,
    turns: int = 5,
    listens: float = 0.5,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield demonstrations of a single guess each, taken from games in progress.

    Each is a dict: `prompt` is the conversation so far, and `completion` is the next guess.

    Args:
        task: the task that provides the prompt.
        count: the number of demonstrations.
        turns: the maximum number of guesses in a game.
        listens: the share of guesses that are drawn from the numbers that the answers so far allow.
            The others are drawn from the whole range.
        seed: the seed of all random choices.
    """
    rng = random.Random(seed)
    for _ in range(count):
        game = Guess()
        *system, user = task.prompt({})
        opening = game.reset({"seed": rng.randrange(1000)})
        messages = [*system, {**user, "content": f"{user['content']}\n{opening}"}]
        for turn in range(turns):
            candidates = range(game.low, game.high + 1)
            if rng.random() < listens:
                candidates = game.left
            guess = rng.choice(candidates)
            turns_left = turns - turn
            if guess == game.target or rng.random() < 1 / turns_left:
                break
            answer, _ = game.step(str(guess))
            messages += [
                {"role": "assistant", "content": str(guess)},
                {"role": "user", "content": answer},
            ]
        completion = [{"role": "assistant", "content": str(guess)}]
        yield {"prompt": messages, "completion": completion}


def check_demonstrations(
    task: Countdown,
    count: int,
    *,
    give_up: float = 0.6,
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield demonstration episodes of Countdown in which the model calls the tool `check`.

    Each is a dict with `prompt`, `completion` and `tools`. In an episode, the model checks
    expressions with distinct values, in random order. Each expression uses the numbers in the order
    of the prompt, or in a rotation of that order. The answer is the last expression checked, which
    is often wrong.

    Args:
        task: the task that generates the problems.
        count: the number of episodes.
        give_up: the share of episodes that check only once. The others check until the tool returns
            "yes", or until every value has been tried.
        seed: the seed of all random choices.
    """
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    tools = [get_json_schema(Check().check)]
    for _ in range(count):
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        environment = Check()
        environment.reset(problem)
        by_value = expressions_around(nums, task.operators)
        untried = sorted(by_value)
        messages: list[dict[str, Any]] = []
        gives_up = rng.random() < give_up
        verdict = "no"
        while untried and verdict != "yes":
            value = rng.choice(untried)
            untried.remove(value)
            expression = rng.choice(by_value[value])
            verdict = environment.check(expression)
            call = {
                "type": "function",
                "function": {"name": "check", "arguments": {"expression": expression}},
            }
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "check", "content": verdict})
            if gives_up:
                break
        messages.append({"role": "assistant", "content": f"<answer>{expression}</answer>"})
        yield {
            "prompt": task.prompt({**problem, "nums": nums}),
            "completion": messages,
            "tools": tools,
        }


def expressions_around(nums: list[int], operators: str) -> dict[int, list[str]]:
    """Return the expressions whose numbers are a rotation of `nums`, grouped by value.

    The expressions come from `chains`, without a limit on results.
    """
    rotations = []
    for start in range(len(nums)):
        rotations.append(nums[start:] + nums[:start])
    by_value = defaultdict(list)
    all_equations = chains(tuple(sorted(nums)), operators)
    for value, equations in all_equations.items():
        for chain in equations:
            if numbers_of(chain) in rotations:
                by_value[value].append(chain[1])
    return dict(by_value)
