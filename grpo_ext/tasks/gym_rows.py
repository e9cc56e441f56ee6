"""Make the rows of the task `reasoning_gym`: `python -m grpo_ext.tasks.gym_rows JSON`.

The task runs this module in a separate process, which writes one row per line, as JSON.
"""

import ast
import io
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from itertools import count, islice
from typing import Any

from grpo_ext.common.gym_package import make_dataset
from grpo_ext.common.hashes import in_share

TEST_FRACTION = 0.15  # share of all questions that are held out
CHUNK = 500  # problems of one dataset; a generator that finds nothing new among them is exhausted
TEST_SEEDS = 2**31  # seeds of held-out problems start here; seeds of training problems are below


def rows(generators: Sequence[Mapping[str, Any]], seed: int, test: bool) -> Iterator[dict]:
    """Yield rows, each from a generator drawn by weight, until all generators are exhausted.

    Args:
        generators: the name, weight and options of each generator.
        seed: chooses the problems and their order.
        test: whether to yield held-out problems.
    """
    rng = random.Random(seed)
    weights = {}
    sources = {}
    for generator in generators:
        name = generator["name"]
        weights[name] = generator["weight"]
        sources[name] = problems(name, generator["options"], seed, test)
    while sources:
        names = list(sources)
        [name] = rng.choices(names, [weights[name] for name in names])
        try:
            row = next(sources[name], None)
        except Exception as error:
            error.add_note(f"The generator {name} failed.")
            raise
        if row is None:
            del sources[name]
        else:
            yield row


def problems(name: str, options: dict[str, Any], seed: int, test: bool) -> Iterator[dict]:
    """Yield the rows of one generator with distinct questions, until it finds no new ones.

    Problems whose answer is an empty string are skipped. A generator that states no answer returns
    `None` instead; its problems are kept.

    Args:
        name: the name of the generator.
        options: its options.
        seed: chooses the problems.
        test: whether to yield held-out problems.
    """
    questions: set[str] = set()
    start = random.Random(f"{seed} {name}").randrange(2**30)
    if test:
        start += TEST_SEEDS
    for chunk_seed in count(start, CHUNK):
        num_known = len(questions)
        dataset = make_dataset(name, options, seed=chunk_seed, size=CHUNK)
        for index in range(CHUNK):
            with redirect_stdout(io.StringIO()):  # some generators print
                problem = dataset[index]
            question = str(problem["question"])
            is_usable = problem["answer"] != "" and question not in questions
            if is_usable and in_share(question, TEST_FRACTION) == test:
                questions.add(question)
                yield row_of(name, options, problem)
        if len(questions) == num_known:
            return


def row_of(name: str, options: dict[str, Any], problem: Mapping[str, Any]) -> dict:
    """Return the row of a problem.

    The `entry` contains everything that the problem's scorer reads, as a Python literal. JSON would
    turn tuples into lists, which some scorers judge differently.
    """
    metadata = {}
    for key, value in problem["metadata"].items():
        # No scorer reads a value that is not a literal, such as a number of numpy.
        with suppress(ValueError, SyntaxError):
            metadata[key] = ast.literal_eval(repr(value))
    entry = {
        "generator": name,
        "options": options,
        "question": str(problem["question"]),
        "answer": problem["answer"],
        "metadata": metadata,
    }
    return {
        "task": name,
        "question": entry["question"],
        "answer": str(problem["answer"] or ""),
        "entry": repr(entry),
    }


def main() -> None:
    wanted = json.loads(sys.argv[1])
    made = rows(wanted["generators"], wanted["seed"], wanted["test"])
    with suppress(BrokenPipeError):  # the parent may stop reading
        for row in islice(made, wanted["count"]):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
