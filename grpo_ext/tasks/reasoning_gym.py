"""Problems from the package `reasoning_gym`: about a hundred generators that also score answers.

The package is an extra: `pip install 'grpo_ext[reasoning-gym]'`. Rows have the columns `question`,
`answer` (one correct answer; empty if the generator states none), `task` (the name of the
generator, by which logs and evaluations group their metrics) and `entry`, which the reward
`reasoning_gym` needs.
"""

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from grpo_ext.common.files import data_yaml
from grpo_ext.common.gym_package import RESERVED, generator_configs
from grpo_ext.common.suggestions import unknown
from grpo_ext.tasks.base import Messages, Row, Task, chat, held_out

PROMPTS = data_yaml("grpo_ext.tasks", "prompts.yaml")["reasoning_gym"]
ROWS = "grpo_ext.tasks.gym_rows"  # the module of the process that generates the rows


@dataclass(frozen=True)
class Generator:
    """A generator in the recipe, with its weight and its options."""

    name: str
    weight: float  # its share of the rows, relative to the other generators
    options: dict[str, Any]


@dataclass
class ReasoningGym(Task):
    """Task with problems from the generators of `reasoning_gym`, which also score the answers.

    An entry of `generators` is a name, or a mapping with `name`, `weight` (the relative share of
    the rows, 1 by default) and options of the generator, as in
    `[gcd, {name: chain_sum, weight: 2, max_terms: 4}]`.

    Raises:
        ValueError: if the package is missing or its version is not supported, `generators` is
            empty, a generator is unknown or repeated, or a weight or an option is invalid.
    """

    name: ClassVar[str] = "reasoning_gym"
    default_rewards: ClassVar[dict[str, float]] = {"reasoning_gym": 1.0, "format": 0.2}

    generators: list[str | dict[str, Any]] = field(default_factory=list)  # at least one
    num_problems: int = 10_000  # training problems to generate; fewer if there are not enough
    num_test_problems: int = 256  # held-out problems to generate; fewer if there are not enough
    task_seed: int = 0  # chooses the problems; it does not move a question to another split
    system_prompt: str = PROMPTS["system"]  # an empty string omits the message

    def __post_init__(self) -> None:
        self._generators = read_generators(self.generators)

    def generate(self, split: str) -> Iterator[Row]:
        """Yield the rows of `split`; every process gets the same rows.

        No generator repeats a question. The rows are generated in a child process with a fixed
        `PYTHONHASHSEED`, because some generators iterate over sets of strings, whose order differs
        between processes.

        Raises:
            ValueError: if `split` is neither "train" nor "test", or a generator fails.
        """
        test = held_out(split)
        wanted = {
            "generators": [asdict(generator) for generator in self._generators],
            "seed": self.task_seed,
            "test": test,
            "count": self.num_test_problems if test else self.num_problems,
        }
        command = [sys.executable, "-P", "-W", "ignore", "-m", ROWS, json.dumps(wanted)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as child:
            try:
                for line in child.stdout or ():
                    yield json.loads(line)
                exit_code = child.wait()
            finally:
                child.kill()
        if exit_code != 0:
            raise ValueError(
                "generators: a generator failed while generating problems (exit code "
                f"{exit_code}). The error above, if there is one, names the generator. Change the "
                "generator's options, or remove the generator."
            )

    def held_out_key(self, row: Row) -> str:
        """Return the question."""
        return row["question"]

    def prompt(self, row: Row) -> Messages:
        return chat(self.system_prompt, row["question"])


def read_generators(entries: Sequence[str | Mapping[str, Any]]) -> list[Generator]:
    """Return the generators for the entries of the recipe key `generators`, in order.

    Raises:
        ValueError: if `reasoning_gym` is missing or its version is not supported, if there are no
            entries, if an entry is invalid, or if two entries name the same generator.
    """
    try:
        configs = generator_configs()
    except ImportError as error:
        raise ValueError(f"task: {error}") from error
    if not entries:
        raise ValueError(
            "generators: no Reasoning Gym generator is set. Set one or more, such as "
            "`generators: [chain_sum, gcd]`."
        )
    generators: list[Generator] = []
    for entry in entries:
        values: dict[str, Any] = {"name": entry} if isinstance(entry, str) else dict(entry)
        generator = read_generator(values, configs)
        if any(generator.name == other.name for other in generators):
            raise ValueError(
                f"generators: {generator.name} is named more than once. Keep one of its entries."
            )
        generators.append(generator)
    return generators


def read_generator(values: dict[str, Any], configs: Mapping[str, type]) -> Generator:
    """Return the generator for one entry of the recipe key `generators`.

    Args:
        values: the entry, as a mapping with `name`, `weight` and options.
        configs: the configuration dataclass of each known generator, by name.

    Raises:
        ValueError: if the name is missing or unknown, an option is unknown, or a value is invalid.
    """
    if "name" not in values:
        raise ValueError(
            f"generators: the entry {str(values)[:80]} has no name. Add the name of a generator, "
            "as in {name: chain_sum, max_terms: 4}."
        )
    options = dict(values)
    name = str(options.pop("name"))
    weight = options.pop("weight", 1)
    if name not in configs:
        raise ValueError(f"generators: {unknown('generator', name, configs)}")
    known = {option.name for option in fields(configs[name])} - RESERVED
    for option in options:
        if option not in known:
            raise ValueError(f"generators: {name}: {unknown('option', option, known)}")
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not is_number or not 0 < weight < math.inf:
        raise ValueError(
            f"generators: {name}: weight must be a finite number above 0, but is {weight!r}."
        )
    try:
        configs[name](**options).validate()
    except (AssertionError, TypeError, ValueError) as error:  # raised by the package's configs
        reason = str(error) or type(error).__name__  # some checks have no message
        raise ValueError(
            f"generators: {name} does not accept its options: {reason}. Change the options."
        ) from error
    return Generator(name, weight, options)
