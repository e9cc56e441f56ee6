"""The reward `reasoning_gym` scores as the generators do, and runs no text as Python."""

from __future__ import annotations

import ast
import inspect
import re
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("reasoning_gym")

from grpo_ext.common.gym_package import import_gym
from grpo_ext.rewards import build
from grpo_ext.rewards.example_checks import check_reward
from grpo_ext.rewards.gym_patterns import ANSWERS, PROBLEMS, check_problem, may_score
from grpo_ext.rewards.pool import RewardPool
from grpo_ext.rewards.reasoning_gym_reward import score
from grpo_ext.tasks.gym_rows import problems
from tests.support.hostile_texts import hostile_completions

GENERATORS = (
    "arc_1d",
    "base_conversion",
    "basic_arithmetic",
    "binary_matrix",
    "bitwise_arithmetic",
    "caesar_cipher",
    "chain_sum",
    "codeio",
    "countdown",
    "gcd",
    "gsm_symbolic",
    "intermediate_integration",
    "isomorphic_strings",
    "knights_knaves",
    "n_queens",
    "number_sorting",
    "polynomial_multiplication",
    "ransom_note",
    "rearc",
    "simple_integration",
    "spiral_matrix",
    "string_insertion",
    "syllogism",
    "tower_of_hanoi",
    "word_sorting",
)


def completion(answer: str) -> str:
    return f"<think>\nwork\n</think>\n<answer>\n{answer}\n</answer>"


def made(name: str, count: int = 1) -> list[dict]:
    return list(islice(problems(name, {}, 0, test=False), count))


def scores(answers: list[str], entries: list[str]) -> list[float]:
    return build("reasoning_gym")(completions=answers, entry=entries)


@pytest.mark.parametrize("name", GENERATORS)
def test_the_own_answer_scores_one_and_another_less(name):
    rows = made(name, 12)
    entries = [row["entry"] for row in rows]
    assert scores([completion(row["answer"]) for row in rows], entries) == [1.0] * len(rows)
    for other in ("", "no idea", "-987654321"):
        assert max(scores([completion(other)] * len(rows), entries)) < 1.0
    assert scores([row["answer"] for row in rows], entries) == [0.0] * len(rows)


def test_an_entry_scores_as_the_one_that_was_made():
    """Also where JSON would not do: arc_agi compares tuples."""
    import reasoning_gym

    for name in ("arc_agi", "rearc", "codeio", "knights_knaves"):
        dataset = reasoning_gym.create_dataset(name, seed=5, size=6)
        [row] = made(name)
        entry_of_row = ast.literal_eval(row["entry"])
        for problem in map(dataset.__getitem__, range(6)):
            metadata = {
                key: value
                for key, value in problem["metadata"].items()
                if key in entry_of_row["metadata"]
            }
            entry = {
                "generator": name,
                "options": entry_of_row["options"],
                **problem,
                "metadata": metadata,
            }
            for answer in (problem["answer"], problem["answer"][::-1], problem["answer"][:-1]):
                assert score(completion(answer), entry) == pytest.approx(
                    dataset.score_answer(answer.strip(), problem)
                )


def test_an_answer_that_a_scorer_cannot_read_earns_0():
    [row] = made("prime_factorization")
    entry = ast.literal_eval(row["entry"])
    dataset = import_gym().create_dataset("prime_factorization", seed=0, size=1)
    with pytest.raises(ValueError, match="invalid literal"):
        dataset.score_answer("no idea", entry)
    assert score(completion("no idea"), entry) == 0.0
    assert score(completion(row["answer"]), entry) == 1.0


def test_a_problem_that_its_scorer_cannot_score_is_a_failure_of_the_reward():
    [row] = made("prime_factorization")
    entry = ast.literal_eval(row["entry"])
    with pytest.raises(ValueError, match="invalid literal"):
        score(completion("2"), {**entry, "answer": "no numbers"})
    with pytest.raises(ValueError, match="unknown generator 'composite'"):
        score(completion("7"), {**entry, "generator": "composite"})


def test_every_scorer_that_evaluates_a_text_is_known():
    """Read from the source of the scorers, and of the function that one of them calls."""
    from reasoning_gym.factory import DATASETS

    found = set()
    for name, (dataset, _) in DATASETS.items():
        source = inspect.getsource(dataset.score_answer)
        if "verify_solution(" in source:
            source += inspect.getsource(inspect.getmodule(dataset).verify_solution)
        if re.search(r"\b(?:eval|exec|sympify|parse_expr)\(", source):
            found.add(name)
    assert found == {*ANSWERS, *PROBLEMS}


ATTACKS = (
    "__import__('pathlib').Path({path!r}).touch()",
    "[__import__('pathlib').Path({path!r}).touch()]",
    "'__import__(\"pathlib\").Path({path!r}).touch()'",
    "S('__import__(\"pathlib\").Path({path!r}).touch()')",
    "(lambda: open({path!r}, 'w'))()",
    "x.__class__.__init__.__globals__['__builtins__']['open']({path!r}, 'w')",
    "eval(chr(111)+'pen({path!r}, chr(119))')",
    "ｅｖａｌ('open({path!r}, \"w\")')",
    "f\"{{open({path!r}, 'w')}}\"",
)


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_runs_no_code(name, tmp_path):
    """Each attack touches a file where it is evaluated: by the scorer itself at least one does."""
    [row] = made(name)
    path = tmp_path / "touched"
    attacks = [attack.format(path=str(path)) for attack in ATTACKS]
    paid = scores([completion(attack) for attack in attacks], [row["entry"]] * len(attacks))
    assert max(paid) < 1
    assert not path.exists()

    dataset = import_gym().create_dataset(name, seed=0, size=1)
    for attack in attacks:
        try:
            dataset.score_answer(attack, ast.literal_eval(row["entry"]))
        except Exception:
            continue
    assert Path(path).exists()


@pytest.mark.parametrize("name", PROBLEMS)
def test_a_row_runs_no_code(name, tmp_path):
    """Rows may come from a file; by the scorer itself at least one attack touches the file."""
    [row] = made(name)
    path = tmp_path / "touched"
    key, _ = PROBLEMS[name]
    dataset = import_gym().create_dataset(name, seed=0, size=1)
    attacked = []
    for attack in ATTACKS:
        entry = ast.literal_eval(row["entry"])
        part = entry if key == "answer" else entry["metadata"]
        part[key] = attack.format(path=str(path))
        attacked.append(entry)
    for entry in attacked:
        with pytest.raises(ValueError, match=r"unsafe: .*\. The scorer would run it as Python"):
            score(completion("[1]"), entry)
    assert not path.exists()
    for entry in attacked:
        for answer in ("['1']", "x"):
            try:
                dataset.score_answer(answer, entry)
            except Exception:
                continue
    assert path.exists()


@pytest.mark.parametrize(
    "problem",
    ["9**9**9**9", "(2)**9", "1<<99999999999", "1 << 0x12", "1<<(9*9*9)", "0x1111 + " * 2000 + "z"],
)
def test_a_row_with_huge_numbers_is_refused_at_once(problem):
    entry = {"generator": "bitwise_arithmetic", "answer": "0x1", "metadata": {"problem": problem}}
    with pytest.raises(ValueError, match="`problem` is missing or unsafe"):
        check_problem(entry)


def test_bitwise_problems_of_all_depths_are_scored():
    for difficulty in range(1, 11):
        rows = problems("bitwise_arithmetic", {"difficulty": difficulty}, 0, test=False)
        for row in islice(rows, 5):
            check_problem(ast.literal_eval(row["entry"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["countdown", "n_queens", "prime_factorization", "simple_integration", "tower_of_hanoi"]
)
def test_hostile_completions_are_scored_within_the_deadline(name):
    [row] = made(name)
    plain = hostile_completions()[::12]
    answers = [
        "9**9**9**9",
        "9**99**99",
        "((((9**99)**99)**99)**99)**99",
        "x**99*" * 300 + "x",
        "[1]*10**10",
        "2 × 2 × x",
        "1e999",
    ]
    completions = [*plain, *map(completion, [*plain, *answers])]
    with RewardPool(1, timeout=30.0) as pool:
        paid, errors = pool.score(
            build("reasoning_gym"),
            {"completions": completions, "entry": [row["entry"]] * len(completions)},
        )
    assert all(value is None or 0 <= value < 1 for value in paid)
    assert all("TimeoutError" in error or "MemoryError" in error for error in errors.values()), (
        errors
    )
    assert len(errors) <= 4, errors


def test_the_reward_holds_to_its_examples():
    assert check_reward("reasoning_gym") == ([], 3)


@pytest.mark.parametrize(
    "formula",
    [
        "9**999",
        "9**9**9",
        "9**(9*99999999)",
        "9**(9*9**9)",
        "((((9**99)**99)**99)**99)**99",
        "9**x**99",
        "**" + "(" * 8000,
    ],
)
def test_formulas_with_large_powers_are_not_evaluated(formula):
    assert not may_score("simple_integration", formula)


@pytest.mark.parametrize(
    "formula", ["8*x**3 - x**(3/2)/2", "exp(-3*x)**2", "(2*x + 3)**4/8 + C", "sin(x)**2", "x**n"]
)
def test_formulas_of_answers_are_evaluated(formula):
    assert may_score("simple_integration", formula)
