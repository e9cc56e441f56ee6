"""Programs like those that models write, with tests: functions, classes and contest programs.

A contest program reads its input and prints its output. Half of each kind do what the tests ask
for; each of the others is a different program of the same kind that fails them. The expected values
and outputs come from running the correct programs here.
"""

from __future__ import annotations

import random
from importlib import resources
from typing import Any, NamedTuple

import yaml

NUMBERS = [
    "x + 1",
    "2 * x",
    "x * x",
    "-x",
    "abs(x) - 3",
    "x // 3",
    "x % 7",
    "divmod(x, 5)",
    "bin(x)",
    "str(x)[::-1]",
    "x > 4",
    "x == 3",
    "[x] * 3",
    "list(range(x % 6))",
    "{x: x * x}",
    "{x, x + 1}",
    "(x, -x)",
    "max(x, 10)",
    "x ** 3 - x",
    "hex(x * 77)",
    "float(x)",
    "x / 4",
    "round(x / 3, 2)",
    "sum(range(x % 50))",
    "None if x % 2 else x",
]
TEXTS = [
    "x.upper()",
    "x[::-1]",
    "len(x)",
    "x.split()",
    "x.title()",
    "sorted(x)",
    "set(x)",
    "x.replace('a', 'b')",
    "x + x",
    "x.count('a')",
    "x[:2]",
    "x[1:]",
    "x.isalpha()",
    "'-'.join(x)",
    "{c: x.count(c) for c in x}",
    "ord(x[0])",
    "x.find('e')",
    "[c for c in x if c > 'f']",
    "x.center(12, '*')",
    "tuple(x)",
    "x.startswith('a')",
    "max(x)",
    "x.encode()",
    "x.partition(' ')",
    "x.swapcase()",
]
INPUTS: dict[bool, list[Any]] = {
    True: [0, 1, 3, 4, 11, 28, 97],
    False: ["a", "anna", "be nice", "Hello Eve", "zebra fish"],
}

PARTS: dict[str, list[Any]] = yaml.safe_load(
    resources.files("benchmarks").joinpath("honest_programs.yaml").read_text(encoding="utf-8")
)
CONTEST_INPUTS = [
    "3\n3 1 2\n10 -4 7\n5 5 5\n",
    "1\n42 -17 0 8\n",
    "4\n1 2\n3 4\n5 6\n-7 8",
]


class HonestProgram(NamedTuple):
    """A completion with its tests and the score that it must get."""

    kind: str  # "function", "class" or "contest"
    completion: str
    tests: list[Any]
    score: float


def honest_programs(seed: int = 0) -> list[HonestProgram]:
    """Return 150 functions, 100 classes and 250 contest programs, in random order."""
    draw = random.Random(seed)
    programs = [of_values(draw, i, "function", PARTS["functions"]) for i in range(150)]
    programs += [of_values(draw, i, "class", PARTS["classes"]) for i in range(100)]
    programs += [of_contest(draw, i) for i in range(250)]
    draw.shuffle(programs)
    return programs


def of_values(
    draw: random.Random, number: int, kind: str, shapes: list[dict[str, str]]
) -> HonestProgram:
    """Return a function or a class, with asserts."""
    on_numbers = number % 2 == 0
    family = NUMBERS if on_numbers else TEXTS
    wanted = family[number // 2 % len(family)]
    values = {repr(x): eval(wanted, {"x": x}) for x in INPUTS[on_numbers]}
    right = number % 4 < 2
    body = wanted
    if not right:
        others = [b for b in family if any(eval(b, {"x": eval(x)}) != values[x] for x in values)]
        body = draw.choice(others)
    shape = shapes[number % len(shapes)]
    tests = [f"assert {shape['value'].replace('X', x)} == {y!r}" for x, y in values.items()]
    program = shape["program"].replace("BODY", body)
    return HonestProgram(kind, in_block(program), tests, float(right))


def of_contest(draw: random.Random, number: int) -> HonestProgram:
    """Return a contest program, with inputs and outputs."""
    problems, readers, printers, places = (
        PARTS[name] for name in ("problems", "readers", "printers", "places")
    )
    wanted = problems[number % len(problems)]
    outputs = [lines_of_output(wanted, text) for text in CONTEST_INPUTS]
    right = number % 2 == 0
    problem = wanted
    if not right:
        others = [
            p for p in problems if [lines_of_output(p, text) for text in CONTEST_INPUTS] != outputs
        ]
        problem = draw.choice(others)
    place = places[number % len(places)]
    printer = printers[number // 2 % len(printers)]
    endings = PARTS["endings"]
    if "thread" in place:  # exit() there ends only the thread
        endings = [""]
    elif "atexit" in printer:
        endings = [ending for ending in endings if "os._exit" not in ending]
    reader = readers[number % len(readers)]
    steps = "\n".join([reader, problem, printer, draw.choice(endings)])
    indent = place.split("STEPS")[0].rpartition("\n")[2]
    program = place.replace("STEPS", steps.replace("\n", f"\n{indent}"))
    tests = [
        {"input": text, "output": "\n".join(lines)}
        for text, lines in zip(CONTEST_INPUTS, outputs, strict=True)
    ]
    return HonestProgram("contest", in_block(program), tests, float(right))


def lines_of_output(problem: str, text: str) -> list[str]:
    """Return the lines that a problem's own program prints, run in this process."""
    names: dict[str, Any] = {"rows": text.splitlines()[1:]}
    exec(problem, names)
    return names["out"]


def in_block(program: str) -> str:
    return f"So:\n```python\n{program}\n```"
