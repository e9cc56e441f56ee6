"""Accuracy: which text is the answer, which answers are equal, and what never reaches sympy."""

import json
import random
import re
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import pytest

from grpo_ext.rewards import build
from grpo_ext.rewards.accuracy import explain_accuracy, find_answer, gold_answer
from grpo_ext.rewards.answers import first_answer, last_answer, last_boxed
from grpo_ext.rewards.asides import without_breakdown
from grpo_ext.rewards.formula_limits import is_within_limits


def score(completion, gold):
    return build("accuracy")(completions=[completion], solution=[gold])[0]


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("<answer>72</answer>", "#### 72"),
        ("<answer>72</answer>", "48/2=<<48/2=24>>24\n#### 72"),
        ("<answer>72</answer>", r"thus \boxed{72}."),
        ("<answer>72</answer>", "72"),
        ("<answer>72</answer>", 72),
        ("<answer>\n72.0\n</answer>", "72"),
        ("<answer>$72</answer>", "72"),
        ("<answer>**72**</answer>", "72"),
        ("<answer>72 dollars</answer>", "72"),
        ("<answer>The answer is 72.</answer>", "72"),
        ("<answer>48/2+48=72</answer>", "72"),
        (r"<answer>3 \times 24</answer>", "72"),
        (r"<answer>\boxed{72}</answer>", "72"),
        ("<answer>1</answer> no, <answer>72</answer>", "72"),
        (r"\boxed{1} no, \boxed{72}", "72"),
        ("it is 72", "72"),
        ("it is 72.", "72"),
        ("1,234,567", "1234567"),
        (r"\boxed{\$1,234.50}", "1234.5"),
        ("7.2e1", "72"),
        ("-5", "-5"),
        ("from 5-7", "-2"),
        ("<answer>1/2</answer>", "0.5"),
        (r"<answer>\frac{1}{2}</answer>", "0.5"),
        (r"\boxed{\frac12}", r"\frac{1}{2}"),
        (r"so $\frac{3}{4}$ cups", "0.75"),
        ("<answer>50%</answer>", "0.5"),
        ("<answer>x = 5</answer>", "5"),
        (r"\boxed{10 \text{ apples}}", "10 apples"),
        ("We get $x^2+1$", "$1 + x^2$"),
        (r"\[ 2\sqrt{2} \]", r"\sqrt{8}"),
        (r"\( \frac{\pi}{2} \)", r"$\pi/2$"),
        (r"\boxed{(1,2)}", "(1, 2)"),
        (r"\boxed{x \in [1,2]}", "[1,2]"),
        (
            r"<answer>\begin{pmatrix}1&2\\3&4\end{pmatrix}</answer>",
            r"\boxed{\begin{pmatrix}1&2\\3&4\end{pmatrix}}",
        ),
        ("<answer>A</answer>", "A"),
        (r"\boxed{\text{A}}", "(A)"),
        ("<answer>5!</answer>", "120"),
        (r"<answer>\binom{5}{2}</answer>", "10"),
        (r"<answer>2^{10}</answer>", "1024"),
        (r"<answer>e^{-x^2}</answer>", r"e^{-x^{2}}"),
    ],
)
def test_equal_answers(completion, gold):
    assert score(completion, gold) == 1.0


@pytest.mark.parametrize(
    ("completion", "gold"),
    [
        ("", "72"),
        ("no number", "72"),
        ("<answer></answer>", "72"),
        ("72, so <answer>71</answer>", "72"),
        (r"72, so \boxed{71}", "72"),
        (r"<answer>71</answer> \boxed{72}", "72"),
        ("<answer>72 or 70</answer>", "72"),
        ("<answer>70, 72</answer>", "72"),
        (r"\boxed{70, 72}", "72"),
        (r"\boxed{\{70, 72\}}", "72"),
        ("<answer>-72</answer>", "72"),
        ("<answer>72.001</answer>", "72"),
        ("<answer>0.33</answer>", "1/3"),
        ("<answer>B</answer>", "A"),
        ("<answer>x^2</answer>", "$x^2+1$"),
        (r"\boxed{72", "72.5"),
        ("<answer>" + "7" * 10_000 + "</answer>", "72"),
    ],
)
def test_unequal_answers(completion, gold):
    assert score(completion, gold) == 0.0


@pytest.mark.parametrize(
    "gold",
    ["", "####", "#### ?", "hello world", None, r"\boxed{}", "####\n", r"\boxed{9^{9^{9^9}}}", "{"],
)
@pytest.mark.parametrize(
    "completion", ["72", "", "hello world", r"\boxed{}", r"\boxed{8^{9^{9^9}}}"]
)
def test_unreadable_gold_is_none(completion, gold):
    assert score(completion, gold) is None


@pytest.mark.parametrize(
    "gold",
    [r"9^{9^{9^9}}", r"\int_0^1 x dx", r"\sum_{k=1}^{n} k^{2}", "x^{99999}", r"\det A"],
)
def test_a_gold_answer_beyond_the_limits_equals_itself_alone(gold):
    """Texts are compared before any limit; blanks do not count, nor do braces around one sign."""
    spaced = gold.replace("+", " + ").replace("^{2}", "^2").replace("_", " _")
    assert score(rf"\boxed{{{spaced}}}", rf"\boxed{{{gold}}}") == 1.0
    assert score(r"\boxed{\int_0^7 x dx}", rf"\boxed{{{gold}}}") is None


def test_it_works_in_a_thread():
    """math-verify's own time limits are signals, which only the main thread may set."""
    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(score, r"\boxed{\frac{4}{6}}", r"\frac{2}{3}").result() == 1.0


def test_gold_of_real_rows(shared_data):
    """Every GSM8K row's gold answer is the number behind ####, and is told from another."""
    files = [shared_data / f"gsm8k_{name}.jsonl" for name in ("train", "test")]
    rows = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    solutions = [row["answer"] for row in rows]
    numbers = [s.rpartition("####")[2].strip() for s in solutions]
    assert [gold_answer(s) for s in solutions] == numbers
    reward = build("accuracy")
    for form in ("{}", "<think>1</think><answer>{}</answer>", "so \\boxed{{{}}}"):
        assert reward(completions=[form.format(n) for n in numbers], solution=solutions) == [
            1.0
        ] * len(rows)
    for form in ("${}.", "It is {} dollars"):  # wrong where the solution counts in cents
        expected = [
            float(re.search(rf"(?<![0-9]){n} cents", solution) is None)
            for n, solution in zip(numbers, solutions, strict=True)
        ]
        scores = reward(completions=[form.format(n) for n in numbers], solution=solutions)
        assert scores == expected and sum(expected) > 0.99 * len(rows)
    others = [str(Fraction(n.replace(",", "")) + 1) for n in numbers]
    assert reward(completions=others, solution=solutions) == [0.0] * len(rows)


def test_random_rationals_in_many_writings():
    rng = random.Random(0)
    reward = build("accuracy")
    for _ in range(150):
        a = rng.randint(-50, 50)
        b = rng.choice([2, 4, 5, 8, 10, 20])
        value = Fraction(a, b)
        sign = "-" if value < 0 else ""
        n = abs(value.numerator)
        d = value.denominator
        writings = [
            rf"\boxed{{{sign}\frac{{{n}}}{{{d}}}}}",
            f"<answer>{sign}{n}/{d}</answer>",
            f"{float(value)}",
        ]
        solutions = [f"#### {float(value)}"] * 3
        assert reward(completions=writings, solution=solutions) == [1.0] * 3
        assert (
            reward(completions=writings, solution=[f"#### {float(value) + 0.5}"] * 3) == [0.0] * 3
        )


@pytest.mark.parametrize(
    "formula",
    [
        r"\frac{1}{2}",
        r"2\sqrt{2}+3\pi",
        r"x^{2}+3x-1",
        r"2^{100}",
        r"10^{-6}",
        r"e^{-x^2}",
        r"\frac{-b\pm\sqrt{b^2-4ac}}{2a}",
        r"(-\infty, 3] \cup [5, \infty)",
        r"\begin{pmatrix} 1 & 0 \\ 0 & 1 \end{pmatrix}",
        r"\log_2 8",
        "12!",
        r"\binom{52}{5}",
        r"3^{3^3}",
        r"\cos 30^\circ",
        r"\frac{1}{1+\frac{1}{1+\frac{1}{2}}}",
        r"\sqrt[3]{7}",
        "6.02e23",
        r"9^{1000}",
    ],
)
def test_formulas_of_answers_are_tame(formula):
    assert is_within_limits(formula)


@pytest.mark.parametrize(
    "formula",
    [
        "9^{9^{9}}",
        "9^9^9",
        "9**9**9",
        "9^{99999}",
        "(9^{99})^{999}",
        "((2^{99})^{99})^{99}",
        "(x+y)^{999}",
        "1000!",
        "(9!)!",
        "9!!",
        "9!^{9}",
        r"\binom{99999}{500}",
        r"\int_0^1 x dx",
        r"\sum_{k=1}^{9} k",
        r"\prod_k k",
        r"\lim_{x\to 0} x",
        "(" * 20 + "1" + ")" * 20,
        r"\sqrt{" * 20 + "2" + "}" * 20,
        "9" * 100,
        "x" * 400,
        "}{",
        "{",
        "1\0",
        "\ud800",
        r"\begin{pmatrix}1&2\\3&4\end{pmatrix}^{50}",
        "2^{",
        "^",
        "9^{9^{9",
        r"\sin " * 50,
    ],
)
def test_towers_are_not_tame(formula):
    assert not is_within_limits(formula) or formula in ("^",)


def test_pieces_of_text():
    assert first_answer("a<answer>1</answer><answer>2</answer>") == "1"
    assert last_answer("a<answer>1</answer><answer>2</answer>") == "2"
    assert last_answer("<answer>1</answer><answer>2") == "1"
    assert last_answer("<answer>1</answer> I close it: </answer>") == "1"
    assert first_answer("</answer><answer>") is None and last_answer("</answer><answer>") is None
    assert first_answer("<answer>1") is None and first_answer("") is None
    assert last_boxed(r"\boxed{a{b}c} \boxed{\frac{1}{2}}") == r"\frac{1}{2}"
    assert last_boxed(r"\boxed{1") is None and last_boxed("") is None
    assert last_boxed(r"\boxed{" + "x" * 10**6) is None


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("costs $5 and then $10 in all", "$10"),
        ("x $a+b$ and 3", "3"),
        ("3 and $a+b$", "a+b"),
        ("of 3/4 cups", "3/4"),
        ("by 25%", "25%"),
        ("in 2024-05", "2024-05"),
        ("by 72_8", "72_8"),
        ("at 7'2", "7'2"),
        ("on May 5", "May 5"),
        ("it is 5 or $x^2$", "5, or x^2"),
        ("it is not 5 or $x^2$", None),
        ("v2 and a1b", None),
        ("", None),
    ],
)
def test_last_expression_of_a_text(text, answer):
    assert find_answer(text) == answer


def test_the_mark_stands_on_the_answer_that_was_read():
    text = "<answer>1</answer> no: <answer> 2 </answer>"
    [(start, end, _, _)] = explain_accuracy(text, solution="2").marks
    assert (
        build("accuracy")(completions=[text], solution=["2"]) == [1.0]
        and text[start:end] == "2"
        and start > 20
    )


def test_an_explanation_states_the_gold_answer_of_a_worked_solution():
    worked = "Ann has 3 + 4 = <<3+4=7>>7 apples.\n#### 7"
    assert explain_accuracy("7", solution=worked).text == "The gold answer was: 7"
    assert explain_accuracy("7", solution=7).text == "The gold answer was: 7"
    for solution in ("?!", None):
        assert explain_accuracy("7", solution=solution).text == "The solution has no clear answer."


def test_the_parts_of_a_total_are_dropped_unless_the_sentence_is_long():
    """Each comma of a sentence may begin the parts, so a long one would take quadratic time."""
    assert without_breakdown("They patrol 20 streets: 9 by Ann and 11 by Bob.") == (
        "They patrol 20 streets"
    )
    apart = "They patrol 20 streets: 9 by Ann and 12 by Bob."
    assert without_breakdown(apart) == apart
    long = "100 bags" + ", 1 a" * 100
    assert without_breakdown(long) == long
