"""Grade-school word problems in GSM8K's format: `question`, and `answer` with the steps.

The last line of `answer` is `#### n`. Rows come from a dataset (the real GSM8K, as a file or hub
id), or from built-in story templates, which need no network. Generated stories have the same
format, with calculator annotations such as `<<2*3=6>>`, one or two steps, and small numbers.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import ClassVar, NamedTuple

from grpo_ext.common.files import data_lines, data_yaml
from grpo_ext.common.hashes import in_share
from grpo_ext.tasks.base import Messages, Row, Task, chat, held_out
from grpo_ext.tasks.countdown import apply

PROMPTS = data_yaml("grpo_ext.tasks", "prompts.yaml")["gsm8k"]
TEST_FRACTION = 0.15  # share of the stories that are held out
PATIENCE = 20_000  # stop after this many consecutive draws without a new story

NAMES = [
    "Ana",
    "Ben",
    "Carla",
    "Dev",
    "Elif",
    "Farid",
    "Grace",
    "Hugo",
    "Ines",
    "Jun",
    "Kofi",
    "Lena",
    "Mei",
    "Nils",
    "Olga",
    "Pia",
]
THINGS = [
    "apples",
    "books",
    "coins",
    "cups",
    "eggs",
    "flowers",
    "kites",
    "lemons",
    "marbles",
    "pens",
    "shells",
    "stamps",
]


class Story(NamedTuple):
    """A template for word problems.

    Attributes:
        question: the question, with fields for the names ({name}, {other}, {things}) and for the
            numbers ({a}, {b}, {c}) that it uses.
        steps: for each step of the solution, an equation, as `left operator right`, and a sentence
            with the field {equation}. Each side of the operator is a number, one of the letters a,
            b and c, or x for the result of the previous step.
    """

    question: str
    steps: list[tuple[str, str]]


STORIES = [Story(**json.loads(line)) for line in data_lines("grpo_ext.tasks", "stories.jsonl")]


@dataclass
class GSM8K(Task):
    """Task with word problems from GSM8K, or with generated stories in the same format.

    Raises:
        ValueError: if `max_number` is less than 3, or `max_story_steps` is neither 1 nor 2.
    """

    name: ClassVar[str] = "gsm8k"
    default_rewards: ClassVar[dict[str, float]] = {"format": 0.5, "tag_count": 0.5, "accuracy": 1.0}

    num_problems: int = 2_000  # training stories to generate if there is no `dataset_name`
    num_test_problems: int = 256  # held-out stories to generate if there is no `dataset_name`
    max_number: int = 20  # numbers in a story are from 2 to `max_number`; results may be larger
    max_story_steps: int = 2  # maximum number of steps in a story, 1 or 2
    task_seed: int = 0  # chooses the stories; it does not move a story to another split
    system_prompt: str = PROMPTS["system"]  # an empty string omits the message

    def __post_init__(self) -> None:
        if self.max_number < 3:
            raise ValueError(f"max_number must be at least 3, but is {self.max_number}.")
        if self.max_story_steps not in (1, 2):
            raise ValueError(f"max_story_steps must be 1 or 2, but is {self.max_story_steps}.")

    def generate(self, split: str) -> Iterator[Row]:
        """Yield distinct stories of `split`; `task_seed` determines them and their order.

        A training story and a held-out story differ in their template or their numbers. There are
        fewer stories than requested if `PATIENCE` draws in a row yield no new one.

        Raises:
            ValueError: if `split` is neither "train" nor "test".
        """
        test = held_out(split)
        count = self.num_test_problems if test else self.num_problems
        yield from islice(self._stories(test), count)

    def columns(self, row: Row) -> Row:
        """Return the column `solution`: the worked answer, with the result in its `####` line."""
        return {"solution": row["answer"]}

    def held_out_key(self, row: Row) -> str:
        """Return the question."""
        return row["question"]

    def reference_answer(self, row: Row) -> str:
        """Return the worked answer, including its `####` line."""
        return row["answer"]

    def prompt(self, row: Row) -> Messages:
        return chat(self.system_prompt, row["question"])

    def _stories(self, test: bool) -> Iterator[Row]:
        rng = random.Random(self.task_seed)
        stories = [story for story in STORIES if len(story.steps) <= self.max_story_steps]
        seen: set[str] = set()
        misses = 0
        while misses < PATIENCE:
            misses += 1
            story = rng.choice(stories)
            letters = [letter for letter in "abc" if f"{{{letter}}}" in story.question]
            numbers = {letter: rng.randint(2, self.max_number) for letter in letters}
            if in_share(f"{STORIES.index(story)}:{sorted(numbers.items())}", TEST_FRACTION) != test:
                continue
            name, other = rng.sample(NAMES, 2)
            names = {"name": name, "other": other, "things": rng.choice(THINGS)}
            row = write_story(story, numbers, names)
            if row is not None and row["question"] not in seen:
                seen.add(row["question"])
                misses = 0
                yield row


def write_story(story: Story, numbers: dict[str, int], names: dict[str, str]) -> Row | None:
    """Fill in a story template.

    Args:
        story: the template to fill in.
        numbers: the value of each letter (a, b, c) in the template.
        names: the values of `name`, `other` and `things`.

    Returns:
        A row with `question` and `answer`; `None` if a step's result is not a positive integer.
    """
    values = dict(numbers)
    lines = []
    for equation, sentence in story.steps:
        left, operator, right = equation.split()
        left_value = values.get(left) or int(left)
        right_value = values.get(right) or int(right)
        result = apply(operator, left_value, right_value)
        if not result:
            return None
        values["x"] = result
        sum_text = f"{left_value}{operator}{right_value}"
        lines.append(
            sentence.format(equation=f"{sum_text}=<<{sum_text}={result}>>{result}", **names)
        )
    lines.append(f"#### {values['x']}")
    return {"question": story.question.format(**numbers, **names), "answer": "\n".join(lines)}
