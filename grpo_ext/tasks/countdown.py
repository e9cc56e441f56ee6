"""Countdown: combine the given numbers into an expression that equals the target.

Rows have the schema of `Jiayi-Pan/Countdown-Tasks-3to4`: `nums` (list of int) and `target` (int).
Every generated problem has a solution. The split of a problem is decided by a hash of its sorted
numbers and its target. With the same `test_fraction`, a training set therefore shares no problem
with a test set, even if their seeds differ.
"""

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, islice, product
from math import comb
from typing import ClassVar

from grpo_ext.common.files import data_yaml
from grpo_ext.common.hashes import in_share
from grpo_ext.tasks.base import Messages, Row, Task, chat, check_template, held_out

PROMPTS = data_yaml("grpo_ext.tasks", "prompts.yaml")["countdown"]

# For each count of numbers, the maximum number of sets that are enumerated in full. If there are
# more, problems are drawn at random. A set of four takes a hundred times as long as a set of three.
LISTABLE_SETS = {2: 20_000, 3: 20_000, 4: 300}
PATIENCE = 50_000  # stop after this many consecutive draws without a new problem


@dataclass
class Countdown(Task):
    """Task with Countdown problems, from a dataset or generated from a seed.

    Raises:
        ValueError: if a field other than `num_problems` and `num_test_problems` is out of range, or
            `user_prompt` lacks a required field, has an unknown one, or is not a valid format
            string.
    """

    name: ClassVar[str] = "countdown"
    default_rewards: ClassVar[dict[str, float]] = {"countdown": 1.0, "format": 1.0}

    num_problems: int = 50_000  # training problems to generate; fewer if there are not enough
    num_test_problems: int = 512  # held-out problems to generate; fewer if there are not enough
    min_numbers: int = 3  # minimum count of numbers in a problem, at least 2
    max_numbers: int = 4  # maximum count of numbers in a problem, at most 6
    min_number: int = 1  # the smallest possible number
    max_number: int = 99  # the largest possible number
    # operators of the hidden solution, whose intermediate results are whole and never negative
    operators: str = "+-*/"
    max_target: int = 100  # targets range from 1 to `max_target`
    test_fraction: float = 0.15  # share of all problems that are held out
    # chooses the problems and their order; it does not move a problem to another split
    task_seed: int = 0
    system_prompt: str = PROMPTS["system"]  # an empty string omits the message
    # must contain {nums} and {target}; may contain {operators} and {example}
    user_prompt: str = PROMPTS["user"]

    def __post_init__(self) -> None:
        if not 2 <= self.min_numbers <= self.max_numbers <= 6:
            raise ValueError(
                f"min_numbers={self.min_numbers}, max_numbers={self.max_numbers}: choose values "
                "with 2 <= min_numbers <= max_numbers <= 6."
            )
        if not 1 <= self.min_number <= self.max_number:
            raise ValueError(
                f"min_number={self.min_number}, max_number={self.max_number}: choose values with "
                "1 <= min_number <= max_number."
            )
        if not self.operators or set(self.operators) - set("+-*/"):
            raise ValueError(
                "operators must be one or more of + - * / (for example, '+-'); got "
                f"{self.operators!r}."
            )
        if self.max_target < 1:
            raise ValueError(f"max_target must be at least 1, but is {self.max_target}.")
        if not 0 < self.test_fraction < 1:
            raise ValueError(
                "test_fraction must be greater than 0 and less than 1 (for example, 0.15); got "
                f"{self.test_fraction}."
            )
        check_template(
            self.user_prompt, {"nums", "target"}, {"nums", "target", "operators", "example"}
        )

    def generate(self, split: str) -> Iterator[Row]:
        """Yield distinct problems of `split`; `task_seed` determines them and their order.

        Raises:
            ValueError: if `split` is neither "train" nor "test".
        """
        test = held_out(split)
        count = self.num_test_problems if test else self.num_problems
        problems = self._every_problem() if self._is_listable() else self._drawn_problems()
        of_split = (row for row in problems if self.is_held_out(row) == test)
        yield from islice(of_split, count)

    def is_held_out(self, row: Row) -> bool:
        """Return whether a problem, from any source, belongs to the test split."""
        return in_share(self.held_out_key(row), self.test_fraction)

    def held_out_key(self, row: Row) -> str:
        """Return the sorted numbers and the target as a string, such as "[3, 8, 11]=16"."""
        problem = self.columns(row)
        return f"{sorted(problem['nums'])}={problem['target']}"

    def columns(self, row: Row) -> Row:
        """Return `nums` as a list of int and `target` as an int, even if they are strings."""
        nums = row["nums"]
        if isinstance(nums, str):
            nums = re.findall(r"\d+", nums)
        return {
            "nums": list(map(int, nums)),
            "target": int(row["target"]),
        }

    def prompt(self, row: Row) -> Messages:
        user = self.user_prompt.format(
            nums=", ".join(map(str, row["nums"])),
            target=row["target"],
            operators=", ".join(self.operators),
            example=f"(1 {self.operators[0]} 2) {self.operators[-1]} 3",
        )
        return chat(self.system_prompt, user)

    @property
    def _counts(self) -> range:
        """The possible counts of numbers in a problem, in ascending order."""
        return range(self.min_numbers, self.max_numbers + 1)

    def _is_listable(self) -> bool:
        span = self.max_number - self.min_number + 1
        for k in self._counts:
            num_sets = comb(span + k - 1, k)
            if num_sets > LISTABLE_SETS.get(k, 0):
                return False
        return True

    def _every_problem(self) -> Iterator[Row]:
        rng = random.Random(self.task_seed)
        numbers = range(self.min_number, self.max_number + 1)
        problems = []
        for count in self._counts:
            for nums in combinations_with_replacement(numbers, count):
                for target in sorted(reachable(nums, self.operators)):
                    if 1 <= target <= self.max_target:
                        problems.append((nums, target))
        rng.shuffle(problems)
        for nums, target in problems:
            yield {"nums": rng.sample(nums, len(nums)), "target": target}

    def _drawn_problems(self) -> Iterator[Row]:
        rng = random.Random(self.task_seed)
        seen: set[tuple[int, ...]] = set()
        misses = 0
        while misses < PATIENCE:
            misses += 1
            count = rng.randint(self.min_numbers, self.max_numbers)
            nums = [rng.randint(self.min_number, self.max_number) for _ in range(count)]
            target = random_value(nums, self.operators, rng)
            if target is None or not 1 <= target <= self.max_target:
                continue
            problem = (*sorted(nums), target)
            if problem not in seen:
                seen.add(problem)
                misses = 0
                yield {"nums": nums, "target": target}


def apply(operator: str, a: int, b: int) -> int | None:
    """Return the result of `a operator b`; `None` if that is negative, fractional or undefined."""
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b if a >= b else None
    if operator == "*":
        return a * b
    return a // b if b and a % b == 0 else None


def random_value(nums: list[int], operators: str, rng: random.Random) -> int | None:
    """Return the value of a random expression that uses each number once.

    Return `None` if an operation in the expression has a negative or fractional result, or divides
    by 0.

    Args:
        nums: the numbers, at least one.
        operators: the possible operators, such as "+-*/".
        rng: the random number generator, whose state advances.
    """
    values = list(nums)
    while len(values) > 1:
        left = values.pop(random_index(values, rng))
        right = values.pop(random_index(values, rng))
        operator = operators[random_index(operators, rng)]
        value = apply(operator, left, right)
        if value is None:
            return None
        values.append(value)
    return values[0]


def random_index(sequence: Sequence[object], rng: random.Random) -> int:
    """Return a random index into `sequence`; this is faster than `rng.randrange`."""
    return int(rng.random() * len(sequence))


def reachable(nums: tuple[int, ...], operators: str) -> set[int]:
    """Return the values of all expressions that use each number once.

    An expression is left out if one of its operations has a negative or fractional result, or
    divides by 0.

    Args:
        nums: the numbers, at least one.
        operators: the possible operators, such as "+-*/".
    """
    if len(nums) == 1:
        return {nums[0]}
    values: set[int | None] = set()
    # The first number is always on the left side, so each way to split the numbers occurs once.
    first, *others = nums
    for size in range(len(others)):
        for chosen in combinations(range(len(others)), size):
            left = [first]
            right: list[int] = []
            for i, number in enumerate(others):
                (left if i in chosen else right).append(number)
            left_values = reachable(tuple(left), operators)
            right_values = reachable(tuple(right), operators)
            for x, y in product(left_values, right_values):
                for operator in operators:
                    values.add(apply(operator, x, y))
                    values.add(apply(operator, y, x))
    return {value for value in values if value is not None}
