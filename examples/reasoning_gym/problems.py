"""Problems of the package `reasoning_gym`: a hundred generators, which also score the answers.

A recipe names this file twice: `task: FILE:ReasoningGym`, and `reward_plugins: [FILE]` for the
reward `reasoning_gym`.

A row's `entry` has everything that its scorer reads, as a Python literal: JSON would turn tuples
into lists, which some scorers judge differently. Some generators iterate over sets of texts, whose
order differs between processes. So a child process with a fixed `PYTHONHASHSEED` runs this file and
makes the rows, and all ranks get the same rows.
"""

import ast
import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, field, fields
from functools import lru_cache
from importlib.metadata import version
from itertools import count, islice
from types import ModuleType
from typing import Any, ClassVar

from grpo_ext.common.hashes import in_share
from grpo_ext.common.suggestions import unknown
from grpo_ext.rewards import Example, register
from grpo_ext.rewards.answers import last_answer, without_thoughts
from grpo_ext.rewards.deadline import paused
from grpo_ext.tasks import Task
from grpo_ext.tasks.base import Messages, Row, chat, held_out

VERSION = "0.1.25"  # which of its scorers evaluate an answer is known of this version
SYSTEM = (
    "Reason between <think> and </think>, then write the answer alone between <answer> and "
    "</answer>."
)
TEST_FRACTION = 0.15  # of all questions
CHUNK = 500  # draws from one seed; a generator that finds nothing new among them is exhausted


@dataclass
class ReasoningGym(Task):
    """Problems that the generators of `reasoning_gym` make and score.

    `generators` are names, or a mapping from each name to its options and its `weight`, its share
    of the rows (1 by default): `{chain_sum: {weight: 2, max_terms: 4}, gcd: {}}`.
    """

    name: ClassVar[str] = "reasoning_gym"
    default_rewards: ClassVar[dict[str, float]] = {"reasoning_gym": 1.0, "format": 0.2}

    generators: list[str] | dict[str, dict[str, Any] | None] = field(
        default_factory=lambda: ["chain_sum"]
    )
    num_problems: int = 10_000  # training rows to make, or fewer if the generators have no more
    num_test_problems: int = 256  # held-out rows to make, or fewer
    task_seed: int = 0  # chooses the problems; it does not change the split of a question
    system_prompt: str = SYSTEM  # an empty string omits the message

    def __post_init__(self) -> None:
        given = (
            self.generators if isinstance(self.generators, dict) else dict.fromkeys(self.generators)
        )
        self._mix = {name: checked(name, dict(options or {})) for name, options in given.items()}

    def generate(self, split: str) -> Iterator[Row]:
        """Yield rows of `split` with distinct questions, the same in every process."""
        test = held_out(split)
        wanted = self.num_test_problems if test else self.num_problems
        spec = json.dumps([self._mix, self.task_seed, test, wanted])
        command = [sys.executable, "-P", "-W", "ignore", __file__, spec]
        settings = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
        }
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=settings) as child:
            try:
                yield from map(json.loads, child.stdout or ())
                if code := child.wait():
                    raise ValueError(
                        f"generators: they failed (exit code {code}); their messages are above."
                    )
            finally:
                child.kill()

    def prompt(self, row: Row) -> Messages:
        return chat(self.system_prompt, row["question"])


def gym() -> ModuleType:
    """Return the package; `ImportError` if it is not there, or not in `VERSION`."""
    if (found := version("reasoning-gym")) != VERSION:
        raise ImportError(f"version {found} is there")
    import reasoning_gym.factory

    return reasoning_gym


def checked(name: str, options: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Split a generator's options into its weight and the others.

    `ValueError` if it does not take them.
    """
    try:
        datasets = gym().factory.DATASETS
    except ImportError as error:
        raise ValueError(
            f"task: it needs `pip install reasoning-gym=={VERSION}` ({error})."
        ) from error

    if name not in (known := datasets.keys() - {"composite"}):
        raise ValueError(unknown("generator", name, known))
    config = datasets[name][1]
    takes = {"weight", *(part.name for part in fields(config))} - {"seed", "size"}
    for option in options.keys() - takes:
        raise ValueError(f"generators: {name}: {unknown('option', option, takes)}")
    weight = options.pop("weight", 1)
    try:
        assert weight > 0, "weight must be above 0"
        config(**options).validate()
    except (AssertionError, TypeError, ValueError) as error:  # what their configs raise
        raise ValueError(f"generators: {name}: {error}") from error
    return weight, options


def rows(mix: dict[str, Any], seed: int, test: bool) -> Iterator[Row]:
    """Yield rows of all generators by their weights, until all are exhausted."""
    rng = random.Random(seed)
    going = {name: problems(name, options, seed, test) for name, (_, options) in mix.items()}
    while going:
        [name] = rng.choices(list(going), [mix[name][0] for name in going])
        if row := next(going[name], None):
            yield row
        else:
            del going[name]


def problems(name: str, options: dict[str, Any], seed: int, test: bool) -> Iterator[Row]:
    """Yield a generator's rows with distinct questions.

    Training seeds are below 2**31, test seeds above.
    """
    package = gym()
    questions: set[str] = set()
    for start in count(random.Random(f"{seed} {name}").randrange(2**30) + test * 2**31, CHUNK):
        before = len(questions)
        dataset = package.create_dataset(name, seed=start, size=CHUNK, **options)
        for made in map(dataset.__getitem__, range(CHUNK)):
            question, answer = str(made["question"]), made["answer"]
            if answer == "" or question in questions or in_share(question, TEST_FRACTION) != test:
                continue
            questions.add(question)
            metadata = {}
            for key, value in made["metadata"].items():
                with suppress(
                    ValueError, SyntaxError
                ):  # no scorer reads what is not a literal, such as numpy's numbers
                    metadata[key] = ast.literal_eval(repr(value))
            row = {"generator": name, "question": question, "answer": answer}
            entry = repr({**row, "options": options, "metadata": metadata})
            yield {**row, "answer": str(answer or ""), "entry": entry}
        if len(questions) == before:
            return


# Some scorers pass the answer to `eval`. They get no calls, and nothing that expands.
_LIST = re.compile(r"[\w\s\[\],'\"-]*")
# Others pass it to sympy's parser, which calls `eval`: no texts, which sympy evaluates again, no
# attributes, few calls.
_FUNCTION = r"(?<![A-Za-z_])(?:[A-Za-z]|a?(?:sin|cos|tan)h?|cot|sec|csc|log|exp|sqrt)(?![A-Za-z_])"
_FORMULA = re.compile(
    rf"(?:[-+/(), 0-9]|\*(?!\*[ (]*(?:[0-9]{{3}}|[^-+*/,]*\*\*))|\.(?=[0-9])|{_FUNCTION})*"
)
_LISTS = "binary_matrix n_queens spiral_matrix string_insertion"
_FORMULAS = (
    "countdown intermediate_integration polynomial_multiplication puzzle24 simple_integration"
)
EVALUATED = {**dict.fromkeys(_LISTS.split(), _LIST), **dict.fromkeys(_FORMULAS.split(), _FORMULA)}

ENTRY = {"entry": "{'generator': 'chain_sum', 'options': {}, 'answer': '7', 'metadata': {}}"}
EXAMPLES = (
    Example("<think>5, 6, 7</think>\n<answer>\n7\n</answer>", 1, ENTRY),
    Example("<think><answer>7</answer></think> 7", 0, ENTRY),
    Example("<answer>8</answer>", 0, ENTRY),
)


@register("reasoning_gym", needs_cpu=True, examples=EXAMPLES)
def reasoning_gym(completions: list[str], entry: list[str]) -> list[float]:
    """The score, 0 to 1, that the problem's generator gives to the last <answer>.

    An <answer> in the thoughts does not count; without one the score is 0.

    Args:
        entry: the problem, as the task writes it. Scorers evaluate parts of it: use only trusted
            entries.
    """
    return [
        score(text, ast.literal_eval(problem))
        for text, problem in zip(completions, entry, strict=True)
    ]


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
    """Return the data set that scores a generator's problems.

    `options` is the `repr` of a mapping.
    """
    with paused():
        return gym().create_dataset(generator, seed=0, size=1, **ast.literal_eval(options))


if __name__ == "__main__":
    out, (*given, wanted) = sys.stdout, json.loads(sys.argv[1])
    with (
        redirect_stdout(None),
        suppress(BrokenPipeError),
    ):  # some generators print; the parent may stop reading
        out.writelines(json.dumps(row) + "\n" for row in islice(rows(*given), wanted))
