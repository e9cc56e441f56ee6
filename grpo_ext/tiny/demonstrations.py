"""Synthetic demonstrations of Countdown and of games for a warm start: honest attempts, but not good ones.

A demonstration of Countdown tries value after value, downwards from a random one, and says after each if it is the target:

    <think>
    5 + 3 → 8 - 1 → 7 vs 3 no; 5 - 3 → 2 + 1 → 3 vs 3 yes
    </think>
    <answer>
    5 - 3 + 1
    </answer>

The labels are always right, but most demonstrations give up and answer with their first attempt. Reinforcement learning can
teach the model to try longer and to choose better attempts.

A demonstration of a game has legal moves with hardly any strategy.
"""

import random
import re
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


def countdown_demonstrations(
    task: Countdown,
    count: int,
    *,
    give_up: float = 0.7,  # share that stops after one attempt; the others stop at a hit, or after the last value
    operators: str | None = None,  # of the attempts; default: the task's
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations on training problems of `task`, as `prompt` and `completion` messages."""
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    for _ in range(count):
        problem = rng.choice(problems)
        nums, target = rng.sample(problem["nums"], len(problem["nums"])), problem["target"]
        attempts = attempts_downwards(
            tuple(sorted(nums)), operators or task.operators, task.max_target
        )
        start = rng.randrange(len(attempts))
        attempts = attempts[start:] + attempts[:start]
        hit = next(
            (place for place, (value, *_) in enumerate(attempts, 1) if value == target), None
        )
        attempts = attempts[: 1 if rng.random() < give_up else hit]
        written = "; ".join(
            f"{steps} vs {target} {'yes' if value == target else 'no'}"
            for value, steps, _ in attempts
        )
        text = f"<think>\n{written}\n</think>\n<answer>\n{attempts[-1][2]}\n</answer>"
        yield {
            "prompt": task.prompt({**problem, "nums": nums}),
            "completion": [{"role": "assistant", "content": text}],
        }


@lru_cache(maxsize=100_000)
def attempts_downwards(
    nums: tuple[int, ...], operators: str, largest: int
) -> list[tuple[int, str, str]]:
    """Return (value, steps, equation) for each value of 1 to `largest`, or else for any, the largest value first.

    Of the equations of `chains` for a value without a step above `largest`, it is the one whose numbers come from the largest.
    """
    found = chains(nums, operators, largest)
    found = found if any(found) else chains(nums, operators)
    values = [value for value in found if 1 <= value <= largest] or list(found)
    return [
        (value, *max(found[value], key=lambda chain: numbers_in(chain[1])))
        for value in sorted(values, reverse=True)
    ]


@lru_cache(maxsize=100_000)
def chains(
    nums: tuple[int, ...], operators: str, largest: int | None = None
) -> dict[int, list[tuple[str, str]]]:
    """Return the equations that use each number once from left to right, as (steps, equation) pairs by their value.

    Every step is whole, not negative and at most `largest`, as in `5 + 11 → 16 - 8 → 8` for the equation `5 + 11 - 8`.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    for order in sorted(set(permutations(nums))):
        for signs in product(operators, repeat=len(nums) - 1):
            value = order[0]
            steps = equation = str(order[0])
            is_sum = False
            for sign, n in zip(signs, order[1:], strict=True):
                if (result := apply(sign, value, n)) is None or (
                    largest is not None and result > largest
                ):
                    break
                value = result
                if is_sum and sign in "*/":
                    equation = f"({equation})"
                is_sum = sign in "+-"
                steps, equation = f"{steps} {sign} {n} → {value}", f"{equation} {sign} {n}"
            else:
                found.setdefault(value, []).append((steps, equation))
    return found


def numbers_in(equation: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", equation)]


def guess_demonstrations(
    task: GuessTask, count: int, *, turns: int = 5, listens: float = 0.5, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` guesses in the course of games: `prompt` is the conversation so far, `completion` the next guess.

    A game has at most `turns` guesses. A share `listens` of the guesses agrees with the answers so far; the others are random
    numbers of the whole range.
    """
    rng = random.Random(seed)
    for _ in range(count):
        game = Guess()
        *system, asked = task.prompt({})
        opening = game.reset({"seed": rng.randrange(1000)})
        messages = [*system, {**asked, "content": f"{asked['content']}\n{opening}"}]
        for turn in range(turns):
            guess = rng.choice(
                game.left if rng.random() < listens else range(game.low, game.high + 1)
            )
            if guess == game.target or rng.random() < 1 / (turns - turn):
                break
            answer, _ = game.step(str(guess))
            messages += [
                {"role": "assistant", "content": str(guess)},
                {"role": "user", "content": answer},
            ]
        yield {"prompt": messages, "completion": [{"role": "assistant", "content": str(guess)}]}


def check_demonstrations(
    task: Countdown, count: int, *, give_up: float = 0.6, seed: int = 0
) -> Iterator[Demonstration]:
    """Yield `count` episodes of Countdown with the tool `check`: calls, results, and the answer.

    An episode checks expressions of random values, each value once, whose numbers are a rotation of those in the prompt. Its
    answer is the last expression, which is often wrong: a share `give_up` of the episodes checks only once, and the others
    until the tool says yes.
    """
    rng = random.Random(seed)
    problems, tools = list(task.generate("train")), [get_json_schema(Check().check)]
    for _ in range(count):
        row, world = rng.choice(problems), Check()
        nums = rng.sample(row["nums"], len(row["nums"]))
        world.reset(row)
        by_value = expressions_around(nums, task.operators)
        untried, messages, done = sorted(by_value), [], False
        gives_up = rng.random() < give_up
        while not done:
            untried.remove(value := rng.choice(untried))
            expression = rng.choice(by_value[value])
            call = {
                "type": "function",
                "function": {"name": "check", "arguments": {"expression": expression}},
            }
            told = world.check(expression)
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
            messages.append({"role": "tool", "name": "check", "content": told})
            done = told == "yes" or not untried or gives_up
        messages.append({"role": "assistant", "content": f"<answer>{expression}</answer>"})
        yield {"prompt": task.prompt({**row, "nums": nums}), "completion": messages, "tools": tools}


def expressions_around(nums: list[int], operators: str) -> dict[int, list[str]]:
    """Return the equations of `chains`, by value, whose numbers are a rotation of `nums`."""
    orders = [nums[place:] + nums[:place] for place in range(len(nums))]
    pairs = chains(tuple(sorted(nums)), operators).items()
    found = {
        value: [text for _, text in equations if numbers_in(text) in orders]
        for value, equations in pairs
    }
    return {value: texts for value, texts in found.items() if texts}
