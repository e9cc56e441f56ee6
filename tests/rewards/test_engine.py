"""The engine runs where and when it may: in workers, for formulas, outside of deadlines."""

import signal
import subprocess
import sys
import textwrap
import time

import pytest

from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.rewards import accuracy, build
from grpo_ext.rewards.accuracy import score
from grpo_ext.rewards.deadline import paused
from grpo_ext.rewards.engine import NeedsEngine, same_formula, without_engine
from grpo_ext.rewards.formula_limits import is_within_limits
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.pool import RewardPool

FORMULA = (r"\boxed{\sqrt{8}}", r"2\sqrt{2}")


def run(code: str) -> str:
    """What a fresh interpreter prints."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def test_numbers_and_texts_load_no_engine_and_start_no_worker():
    assert (
        run(r"""
        import sys
        from grpo_ext.rewards import build
        from grpo_ext.rewards.pool import RewardPool
        with RewardPool(1) as pool:
            reward = build("accuracy")
            texts = ["<answer>72</answer>", r"\boxed{1 1/2}", "<answer>Evelyn</answer>"]
            texts += ["it is 10%", r"\boxed{10 m}", ""]
            golds = ["#### 72", "1.5", r"\text{Evelyn}", "0.1", "10 cm", r"\sqrt{2}"]
            given = {"completions": texts, "solution": golds}
            pool.begin(reward, given)
            print(*pool.score(reward, given), pool._worker_pool, "sympy" in sys.modules)
    """)
        == "[1.0, 1.0, 1.0, 1.0, 0.0, 0.0] {} None False"
    )


def test_formulas_are_judged_in_a_worker_and_put_back_in_their_rows():
    assert (
        run(r"""
        import sys
        from grpo_ext.rewards import build
        from grpo_ext.rewards.pool import RewardPool
        with RewardPool(1, timeout=60.0) as pool:
            texts = ["<answer>72</answer>", r"\boxed{\sqrt{8}}", r"\boxed{\sqrt{7}}", "71"]
            given = {"completions": texts, "solution": ["72", r"2\sqrt{2}", r"2\sqrt{2}", "72"]}
            for begin in (True, False):
                pool.begin(build("accuracy"), given) if begin else None
                print(*pool.score(build("accuracy"), given), end=" ")
        print("sympy" in sys.modules)
    """)
        == "[1.0, 1.0, 0.0, 0.0] {} " * 2 + "False"
    )


def test_what_was_begun_is_not_taken_for_other_rows():
    reward = build("accuracy")
    with RewardPool(1) as pool:
        pool.begin(reward, {"completions": ["72"], "solution": ["72"]})
        assert pool.score(reward, {"completions": ["71"], "solution": ["72"]}) == ([0.0], {})
        pool.begin(reward, {"completions": ["72"], "solution": ["72"]})
        assert pool.score(reward, {"completions": ["72"], "solution": ["71"]}) == ([0.0], {})


def test_rows_begun_early_are_judged_once(monkeypatch):
    judged = []
    monkeypatch.setattr(accuracy, "score", lambda *row: judged.append(row) or score(*row))
    given = {"completions": ["72", "<answer>71</answer>", "71"], "solution": ["72"] * 3}
    with RewardPool(1) as pool:
        pool.begin(build("accuracy"), given)
        assert pool.score(build("accuracy"), dict(given)) == ([1.0, 0.0, 0.0], {})
    assert len(judged) == 3


def test_a_bad_row_in_the_trainer_costs_only_itself():
    with RewardPool(1, timeout=60.0) as pool:
        scores, errors = pool.score(
            build("accuracy"), {"completions": ["72", 5, "71"], "solution": ["72"] * 3}
        )
    assert scores == [1.0, None, 0.0] and set(errors) == {1} and "TypeError" in errors[1]


def test_inside_without_engine_a_formula_raises():
    with without_engine(), pytest.raises(NeedsEngine):
        same_formula("x^2+1", "1+x^2")
    assert same_formula("x^2+1", "1+x^2")


def test_a_pause_stops_the_clock_and_no_more():
    with deadline(100.0):
        with paused():
            assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left <= 100.0
    with pytest.raises(TooLate), deadline(0.2):
        with paused():
            pass
        time.sleep(5)


def test_a_deadline_during_the_first_import_breaks_nothing():
    """However short the limit, the import is whole, and the next row is judged."""
    assert (
        run(r"""
        from grpo_ext.rewards import build
        from grpo_ext.rewards.guard import Guard
        row = {"completions": [r"\boxed{\sqrt{8}}"], "solution": [r"2\sqrt{2}"]}
        Guard(build("accuracy"), timeout=0.02, max_failure_rate=1.0)(**row)
        print(Guard(build("accuracy"), timeout=60.0)(**row))
    """)
        == "[1.0]"
    )


@pytest.mark.parametrize(
    ("name", "options"), [("cosine_scaled", {"max_len": 100}), ("reasoning_accuracy", {})]
)
def test_no_alarm_of_another_ends_the_deadline(name, options):
    """math-verify's own alarm would take the timer of the guard's deadline away."""
    text = f"</think> {FORMULA[0]}"
    given = {"completions": [text], "solution": [FORMULA[1]], "completion_ids": [[1] * 50]}
    build(name, **options)(**given)
    with deadline(100.0):
        build(name, **options)(**given)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
    assert 0 < left <= 100.0


def test_the_first_example_loads_the_engine():
    """A worker scores it when it meets a reward, so that no row's deadline pays for the import."""
    for name in ("accuracy", "cosine_scaled", "reasoning_accuracy"):
        example = build(name, **({"max_len": 100} if name == "cosine_scaled" else {})).examples[0]
        columns = {key: [value] for key, value in example.columns.items()}
        with without_engine(), pytest.raises(NeedsEngine):
            build(name, **example.options)(completions=[example.completion], **columns)


@pytest.mark.parametrize(
    "formula",
    [
        r"\cos(2^{0.5}\exp(20000000000))",
        r"\exp{(20000000000)}",
        r"\sinh 99999999",
        r"\cosh(10^{10})",
        r"e^{\exp(99)}",
        "99^99^9",
        r"3^\frac{99999}{1}",
        r"2^\sqrt{99999999}",
        r"2^{{{99999}}}",
        r"\det A",
        r"\begin{vmatrix}1&2\\3&4\end{vmatrix}",
        "1/0",
        r"|\begin{pmatrix}1&2\\3&4\end{pmatrix}|",
        r"\lfloor x \rfloor",
        r"\gcd(4,6)",
        r"\neq 72",
        r"\sin(e^{e^{e^{e^{4}}}})",
    ],
)
def test_what_grows_or_is_not_known_is_not_tame(formula):
    assert not is_within_limits(formula)
    guard = Guard(build("accuracy"), timeout=60.0)
    assert guard(completions=[rf"\boxed{{{formula}}}"], solution=["72"]) == [0.0]


@pytest.mark.parametrize(
    "formula",
    ["x^2y^5", r"e^{\frac{-x^2}{2\sigma^2}}", r"3^\frac12", "10^{-34}", r"2^{\frac{1}{2}}x^{3}"],
)
def test_powers_of_answers_are_tame(formula):
    assert is_within_limits(formula)


@pytest.mark.parametrize("degrees", [r"30.5^\circ", r"30.5^{\circ}", r"30.5 ^ {\circ}"])
def test_degrees_are_radians_also_with_decimals_and_braces(degrees):
    assert same_formula(r"\frac{61\pi}{360}", degrees)
    assert same_formula(r"\sin \frac{61\pi}{360}", rf"\sin {degrees}")
    assert not same_formula(r"\frac{61}{2}", degrees)
