"""Countdown: make an equation out of the given numbers that equals the target.

Rows have the schema of `zouxuhong/Countdown-Tasks-3to4`: `nums` (list of int) and `target` (int). The task makes its own
rows, and every one can be solved: a problem is born from a solution. Which split a problem belongs to is a hash of its sorted
numbers and its target, without the seed, so that no training set, whatever its seed, holds a problem of any test set.
"""

import logging
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, islice
from math import comb
from typing import ClassVar

from grpo_ext.common.share import in_share
from grpo_ext.tasks.base import Messages, Row, Task, chat
from grpo_ext.tasks.template import check_template

logger = logging.getLogger(__name__)

SYSTEM_PROMPT = "You are a careful assistant. You first reason about the task, and then give the user your answer."
USER_PROMPT = (
    "Make an equation that equals {target} out of the numbers {nums}. You may use basic operations ({operators}), and you "
    "must use each number exactly once. Put your reasoning between <think> and </think>, then the final equation between "
    "<answer> and </answer>, each tag on a line of its own, for example:\n<answer>\n{example}\n</answer>"
)

# Spaces of at most so many number sets are listed completely; larger ones are drawn from. Four numbers take a hundred
# times the work of three, hence a limit for each.
LISTABLE_SETS = {2: 20_000, 3: 20_000, 4: 300}
# Drawing gives up after so many draws in a row without a new problem: then there are hardly any left.
PATIENCE = 50_000


@dataclass
class Countdown(Task):
    """Countdown problems with a seed, and their prompts.

    `ValueError` if a field is out of range, or `user_prompt` has a field that does not exist or lacks one.
    """

    name: ClassVar[str] = "countdown"
    default_rewards: ClassVar[dict[str, float]] = {"countdown": 1.0, "format": 1.0}
    outcome_reward: ClassVar[str] = "countdown"

    num_problems: int = 50_000  # training problems to make; a space that holds fewer yields all it has
    num_test_problems: int = 512  # held-out problems to make; likewise
    min_numbers: int = 3  # how many numbers a problem has, 2 to 6
    max_numbers: int = 4
    min_number: int = 1  # the range of each number, both ends included
    max_number: int = 99
    operators: str = "+-*/"  # that a solution may need; steps of the hidden one are whole and never negative
    max_target: int = 100  # targets lie in 1 to `max_target`
    test_fraction: float = 0.15  # share of all problems that is held out
    task_seed: int = 0  # of which problems are made, and their order; it moves none from split to split
    system_prompt: str = SYSTEM_PROMPT  # an empty string leaves the message out
    user_prompt: str = USER_PROMPT  # with {nums} and {target}, and if wanted {operators} and {example}

    def __post_init__(self) -> None:
        if not 2 <= self.min_numbers <= self.max_numbers <= 6:
            given = f"min_numbers={self.min_numbers}, max_numbers={self.max_numbers}"
            raise ValueError(f"{given}: write 2 <= min_numbers <= max_numbers <= 6.")
        if not 1 <= self.min_number <= self.max_number:
            given = f"min_number={self.min_number}, max_number={self.max_number}"
            raise ValueError(f"{given}: write 1 <= min_number <= max_number.")
        if not self.operators or set(self.operators) - set("+-*/"):
            raise ValueError(f"operators={self.operators!r}: write one or more of + - * /, as in '+-'.")
        if self.max_target < 1:
            raise ValueError(f"max_target={self.max_target}: write a number of at least 1.")
        if not 0 < self.test_fraction < 1:
            raise ValueError(f"test_fraction={self.test_fraction}: write a share between 0 and 1, as in 0.15.")
        required = {"nums", "target"}
        check_template(self.user_prompt, required, required | {"operators", "example"})

    def generate(self, split: str) -> Iterator[Row]:
        """Problems of `split`, each once, in an order that the seed fixes; fewer than asked for if there are no more."""
        if split not in ("train", "test"):
            raise ValueError(f"Task 'countdown' makes the splits 'train' and 'test', not {split!r}.")
        wanted = self.num_problems if split == "train" else self.num_test_problems
        source = self._every_problem() if self._is_listable() else self._drawn_problems()
        rows = (row for row in source if self.is_held_out(row) == (split == "test"))
        made = 0
        for row in islice(rows, wanted):
            made += 1
            yield row
        if made < wanted:
            words = "Countdown: these settings hold %d %s problems, fewer than the %d asked for."
            logger.info(words, made, split, wanted)

    def is_held_out(self, row: Row) -> bool:
        """Whether a problem belongs to the test split; works on rows from any source."""
        return in_share(f"{sorted(row['nums'])}={row['target']}", self.test_fraction)

    def columns(self, row: Row) -> Row:
        """`nums` and `target` as numbers, also from files that can only write them as text (csv)."""
        if missing := {"nums", "target"} - row.keys():
            raise ValueError(
                f"A countdown row needs the columns nums and target; {sorted(missing)} not found among {sorted(row)}. "
                "Rows with prompts of their own: `task: prompts`."
            )
        nums = row["nums"]
        if isinstance(nums, str):
            nums = re.findall(r"\d+", nums)
        return {"nums": [int(n) for n in nums], "target": int(row["target"])}

    def prompt(self, row: Row) -> Messages:
        user = self.user_prompt.format(
            nums=", ".join(map(str, row["nums"])),
            target=row["target"],
            operators=", ".join(self.operators),
            example=f"(1 {self.operators[0]} 2) {self.operators[-1]} 3",
        )
        return chat(self.system_prompt, user)

    def _is_listable(self) -> bool:
        span = self.max_number - self.min_number + 1
        counts = range(self.min_numbers, self.max_numbers + 1)
        return all(comb(span + k - 1, k) <= LISTABLE_SETS.get(k, 0) for k in counts)

    def _every_problem(self) -> Iterator[Row]:
        rng = random.Random(self.task_seed)
        problems = [
            (nums, target)
            for k in range(self.min_numbers, self.max_numbers + 1)
            for nums in combinations_with_replacement(range(self.min_number, self.max_number + 1), k)
            for target in sorted(reachable(nums, self.operators))
            if 1 <= target <= self.max_target
        ]
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
            if target is not None and 1 <= target <= self.max_target and (key := (*sorted(nums), target)) not in seen:
                seen.add(key)
                misses = 0
                yield {"nums": nums, "target": target}


def apply(operator: str, a: int, b: int) -> int | None:
    """`a operator b` where it is a whole number of at least 0, else None."""
    if operator == "+":
        return a + b
    if operator == "-":
        return a - b if a >= b else None
    if operator == "*":
        return a * b
    return a // b if b and a % b == 0 else None


def random_value(nums: list[int], operators: str, rng: random.Random) -> int | None:
    """Value of a random equation that uses every number once, or None if a step is negative or not whole."""
    values = list(nums)
    while len(values) > 1:
        a = values.pop(int(rng.random() * len(values)))
        b = values.pop(int(rng.random() * len(values)))
        value = apply(operators[int(rng.random() * len(operators))], a, b)
        if value is None:
            return None
        values.append(value)
    return values[0]


def reachable(nums: tuple[int, ...], operators: str) -> set[int]:
    """Every value of an equation that uses each number once and whose steps are whole and not negative."""
    if len(nums) == 1:
        return {nums[0]}
    values: set[int] = set()
    # The first number is always on the left side: each way to cut the numbers in two is met once.
    for size in range(len(nums) - 1):
        for chosen in combinations(range(1, len(nums)), size):
            left = reachable((nums[0], *(nums[i] for i in chosen)), operators)
            right = reachable(tuple(nums[i] for i in range(1, len(nums)) if i not in chosen), operators)
            pairs = [pair for x in left for y in right for pair in ((x, y), (y, x))]
            results = (apply(operator, x, y) for operator in operators for x, y in pairs)
            values.update(value for value in results if value is not None)
    return values
