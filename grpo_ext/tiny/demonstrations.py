"""Synthetic demonstrations of Countdown for a warm start: honest attempts, not good ones.

A demonstration tries equations and says after each whether it hits the target:

    <think>
    3 + 5 → 8 - 1 → 7 no; 5 + 1 → 6 - 3 → 3 yes
    </think>
    <answer>
    5 + 1 - 3
    </answer>

The labels are always right, the choice of attempts is mostly chance, and after a "no" it often gives up and answers with the
attempt it has just refused. What is left for reinforcement learning: to go on looking, and to look in better places.
"""

import random
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product
from typing import Any

from grpo_ext.tasks.countdown import Countdown, apply

Demonstration = dict[str, list[dict[str, Any]]]


def countdown_demonstrations(
    task: Countdown,
    count: int,
    *,
    chosen: float = 0.1,  # share of attempts that are a solution on purpose; all others are drawn blindly
    give_up: float = 0.6,  # chance to stop after a failed attempt
    max_attempts: int = 4,  # no value is tried twice
    seed: int = 0,
) -> Iterator[Demonstration]:
    """Yield `count` demonstrations on training problems of `task`, as `prompt` and `completion` messages."""
    rng = random.Random(seed)
    problems = list(task.generate("train"))
    for _ in range(count):
        problem = rng.choice(problems)
        nums = rng.sample(problem["nums"], len(problem["nums"]))
        target, by_value = problem["target"], chains(tuple(sorted(nums)), task.operators)
        untried, written, done = sorted(by_value), [], False
        while not done:
            value = target if target in untried and rng.random() < chosen else rng.choice(untried)
            untried.remove(value)
            steps, equation = rng.choice(by_value[value])
            written.append(f"{steps} {'yes' if value == target else 'no'}")
            done = value == target or not untried or len(written) == max_attempts or rng.random() < give_up
        text = f"<think>\n{'; '.join(written)}\n</think>\n<answer>\n{equation}\n</answer>"
        prompt = task.prompt({"nums": nums, "target": target})
        yield {"prompt": prompt, "completion": [{"role": "assistant", "content": text}]}


@lru_cache(maxsize=100_000)
def chains(nums: tuple[int, ...], operators: str) -> dict[int, list[tuple[str, str]]]:
    """Equations that use each number once from left to right, as (steps, equation) pairs by their value.

    Every step is whole and not negative, as in `5 + 11 → 16 - 8 → 8` for the equation `5 + 11 - 8`.
    """
    found: dict[int, list[tuple[str, str]]] = {}
    for order in sorted(set(permutations(nums))):
        for signs in product(operators, repeat=len(nums) - 1):
            value = order[0]
            steps = equation = str(order[0])
            is_sum = False
            for sign, n in zip(signs, order[1:], strict=True):
                if (result := apply(sign, value, n)) is None:
                    break
                value = result
                if is_sum and sign in "*/":
                    equation = f"({equation})"
                is_sum = sign in "+-"
                steps, equation = f"{steps} {sign} {n} → {value}", f"{equation} {sign} {n}"
            else:
                found.setdefault(value, []).append((steps, equation))
    return found
