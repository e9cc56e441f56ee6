"""Synthetic demonstrations of Countdown for a warm start: honest attempts, but not good ones.

A demonstration tries equations and says after each whether it reaches the target:

    <think>
    3 + 5 → 8 - 1 → 7 no; 5 + 1 → 6 - 3 → 3 yes
    </think>
    <answer>
    5 + 1 - 3
    </answer>

The labels are always right, but most attempts are random, and after a "no" it often gives up and answers with the failed
attempt. Reinforcement learning can teach the model to try longer and to choose better attempts.
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
    chosen: float = 0.1,  # share of attempts that are chosen as a solution; all others are random
    give_up: float = 0.6,  # probability of stopping after a failed attempt
    max_attempts: int = 4,  # each with another value
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
    """Return the equations that use each number once from left to right, as (steps, equation) pairs by their value.

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
