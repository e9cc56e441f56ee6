"""Write short texts that follow verifiable instructions, as in IFEval (arXiv 2311.07911).

A row has a topic and one or more instructions that the reward `instructions` can check. Held-out
rows have topics that no training row has, and, where possible, parameters that no training row has.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from grpo_ext.common.files import data_yaml
from grpo_ext.common.hashes import in_share
from grpo_ext.common.suggestions import unknown
from grpo_ext.tasks.base import Messages, Row, Task, chat, held_out

DATA = data_yaml("grpo_ext.tasks", "instructions.yaml")
TOPICS: list[tuple[str, str]] = [tuple(line.split(" | ")) for line in DATA["topics"]]
REQUESTS: list[str] = DATA["requests"]
Instruction = dict[str, Any]  # an entry of instructions.yaml
INSTRUCTIONS: list[Instruction] = DATA["instructions"]
KINDS = sorted({instruction["kind"] for instruction in INSTRUCTIONS})
# If a parameter has fewer values than this, both splits have all of them.
SPLIT_FROM = 4


@dataclass
class Instructions(Task):
    """Task that asks for short texts that follow instructions; rows are generated from a seed.

    Raises:
        ValueError: if `min_instructions` and `max_instructions` are not in order from 1 to 3,
            `held_out_topics` is not between 0 and 1, or a kind is unknown.
    """

    name: ClassVar[str] = "instructions"
    default_rewards: ClassVar[dict[str, float]] = {"instructions": 1.0}

    num_problems: int = 4096  # training rows
    num_test_problems: int = 256  # held-out rows
    min_instructions: int = 1  # minimum number of instructions in a row, at least 1
    max_instructions: int = 2  # maximum number of instructions in a row, at most 3
    instruction_kinds: list[str] | None = None  # some of `KINDS`; `None` means all of them
    held_out_topics: float = 0.2  # share of topics, and of parameter values, that are held out
    task_seed: int = 0  # chooses the rows; it does not change what is held out
    system_prompt: str = ""  # an empty string omits the message

    def __post_init__(self) -> None:
        if not 1 <= self.min_instructions <= self.max_instructions <= 3:
            raise ValueError(
                f"min_instructions={self.min_instructions}, "
                f"max_instructions={self.max_instructions}: both must be from 1 to 3, and "
                "min_instructions must not exceed max_instructions."
            )
        for kind in self.instruction_kinds or ():
            if kind not in KINDS:
                raise ValueError(f"instruction_kinds: {unknown('kind', kind, KINDS)}")
        if not 0 < self.held_out_topics < 1:
            raise ValueError(
                "held_out_topics must be greater than 0 and less than 1 (for example, 0.2); got "
                f"{self.held_out_topics}."
            )

    def generate(self, split: str) -> Iterator[Row]:
        """Yield the rows of a split; they depend only on `task_seed` and the task's other options.

        Raises:
            ValueError: if `split` is neither "train" nor "test", or if `held_out_topics` leaves the
                split without a topic.
        """
        test = held_out(split)
        rng = random.Random(f"{self.task_seed} {split}")
        topics = [topic for topic in TOPICS if self._is_held_out(topic[0]) == test]
        if not topics:
            raise ValueError(
                f"held_out_topics={self.held_out_topics} leaves the split {split} without a topic. "
                "Set it to a share such as 0.2."
            )
        for _ in range(self.num_test_problems if test else self.num_problems):
            text, word = rng.choice(topics)
            sentences = [rng.choice(REQUESTS).format(topic=text)]
            kinds = []
            kwargs = []
            for instruction in self._choose(rng):
                parameters = self._draw(instruction, rng, test)
                sentences.append(wording(instruction["text"], parameters))
                kinds.append(instruction["kind"])
                kwargs.append(parameters)
            yield {
                "request": " ".join(sentences),
                "topic": word,
                "instruction_id_list": kinds,
                "kwargs": kwargs,
            }

    def prompt(self, row: Row) -> Messages:
        return chat(self.system_prompt, row["request"])

    def held_out_key(self, row: Row) -> str:
        """Return the request."""
        return row["request"]

    def _is_held_out(self, key: str) -> bool:
        return in_share(key, self.held_out_topics)

    def _choose(self, rng: random.Random) -> list[Instruction]:
        """Choose instructions that can be followed together, in a random order.

        Fewer than `min_instructions` are chosen if no other instruction fits those chosen so far.
        """
        count = rng.randint(self.min_instructions, self.max_instructions)
        chosen: list[Instruction] = []
        taken: set[str] = set()
        instructions = INSTRUCTIONS
        if self.instruction_kinds:
            instructions = [one for one in instructions if one["kind"] in self.instruction_kinds]
        for instruction in rng.sample(instructions, len(instructions)):
            slots = set(instruction["slots"])
            if len(chosen) < count and not taken & slots:
                chosen.append(instruction)
                taken |= slots
        return chosen

    def _draw(self, instruction: Instruction, rng: random.Random, test: bool) -> Row:
        """Draw the parameters of an instruction, from the values that belong to the split.

        Args:
            instruction: an entry of `INSTRUCTIONS`.
            rng: the random number generator, whose state advances.
            test: whether the split is the held-out one.
        """
        choices: dict[str, list[Any]] = {}
        for name, (first, last) in instruction.get("numbers", {}).items():
            choices[name] = list(range(first, last + 1))
        choices |= instruction.get("choices", {})
        parameters = dict(instruction.get("fixed", {}))
        for name, values in choices.items():
            split_values = self._of_split(instruction["text"], values, test)
            parameters[name] = rng.choice(split_values)
        return parameters

    def _of_split(self, text: str, values: list[Any], test: bool) -> list[Any]:
        """Return those of `values` that belong to a split; there is at least one.

        A hash of the instruction's text and the value decides whether a value is held out. If the
        hashes leave the held-out split without values, it gets the last value; if they leave the
        training split without values, it gets the first one. If there are fewer than `SPLIT_FROM`
        values, both splits have all of them.

        Args:
            text: the text of the instruction.
            values: all values of a parameter.
            test: whether the split is the held-out one.
        """
        if len(values) < SPLIT_FROM:
            return values
        test_values = [value for value in values if self._is_held_out(f"{text} {value}")]
        test_values = test_values or values[-1:]
        if test:
            return test_values
        return [value for value in values if value not in test_values] or values[:1]


def wording(text: str, parameters: Mapping[str, Any]) -> str:
    """Fill the parameters into the text of an instruction; lists are written as `"a", "b"`."""
    written = {}
    for name, value in parameters.items():
        written[name] = value
        if isinstance(value, list):
            written[name] = ", ".join(f'"{part}"' for part in value)
    return text.format(**written)
