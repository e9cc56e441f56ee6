"""Steps of arithmetic in a text, and the reward for their right share."""

import json
import random
import re
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_ext.observe.report.columns import Explainer
from grpo_ext.rewards import build
from grpo_ext.rewards.arithmetic_steps import MAX_TEXT, steps_in
from grpo_ext.rewards.registry import lookup
from grpo_ext.rewards.right_steps import share_of_right
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import countdown_demonstrations
from tests.support.places import REPO
from tests.support.runaway import no_runaway

RIGHT = [
    ["3 + 4 = 7"],
    ["(55 + 36 = 91)"],
    ["1. 55+36=91", "91-7=84."],
    ["- 55 + 36 = 91"],
    ["* 55 + 36 = 91"],
    ["-3 + 4 = 1"],
    ["3 × 4 = 12", "8 ÷ 2 = 4", "5 − 7 = −2"],
    ["3 * -2 = -6"],
    ["3 x 4 = 12", "3 X (1 + 1) = 6"],
    ["1/2 + 1/3 = 5/6"],
    ["0.1 + 0.2 = 0.3"],
    ["x = 3 + 4 = 7"],
    ["7 = 3 + 4"],
    ["**3 + 4** = **7**"],
    [r"$3 \times 4 = 12$", r"\(12 \div 4 = \boxed{3}\)", r"\[ 2 \cdot 3 &= 6 \]"],
    ["48/2 = <<48/2=24>>24"],
    ["1,234 + 1 = 1,235"],
    ["55 - 7 = 48 - too low"],
    ["3 + 4 = 7 (seven)", "2 * (3 + 4 = 7)"],
    ["所以3+4=7。", "３＋４＝７"],
    ["2 + 3 - 4 = 1", "(2 + 3) * 4 = 20"],
    ["3 + 4 == 7"],
    ["3 + 4 -> 7"],
    [r"3 + 4 \rightarrow 7"],
]


@pytest.mark.parametrize("texts", RIGHT, ids=str)
def test_right_steps_are_read(texts):
    steps = steps_in("so ".join(f"{text}\n" for text in texts))
    assert [step.is_right for step in steps] == [True] * len(texts)


@pytest.mark.parametrize(
    ("text", "verdicts"),
    [
        ("3 + 4 = 8", [False]),
        ("10 / 3 = 3.33", [False]),
        ("1/0 = 5", [False]),
        ("2 * 3 = 6; 2 * 3 = 7", [True, False]),
        # each equals sign of a chain is a step
        ("(1 + 2) * 3 = 3 * 3 = 9", [True, True]),
        ("48 / 2 = 24 + 48 = 72", [False, True]),
        ("3 + 4 = 7 = 14 / 2", [True, True]),
        # after an arrow, the first number is the result
        ("5 + 3 → 8 - 1 → 7 vs 3 no; 5 - 3 → 3 + 1 → 4 vs 3 no", [True, True, False, True]),
    ],
)
def test_verdicts(text, verdicts):
    assert [step.is_right for step in steps_in(text)] == verdicts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7 = 7",
        "3 + 4 = 4 + 3",
        "(3 + 4) = 3 + 4",
        "3 + 4",
        "3 + 4 is 7",
        "Is 3 + 4\n= 7",
        "3 + 4 != 8",
        "3 + 4 ≠ 8",
        "3 + 4 >= 6",
        "10 / 3 ≈ 3.33",
        "2^3 + 1 = 9",
        "2**3 + 1 = 9",
        "7 ** 2 + 1 = 50",
        "7 // 2 + 1 = 4",
        "4 + 2² = 8",
        "½ + 1 = 1.5",
        "3½ + 1 = 4.5",
        "20% * 50 + 3 = 13",
        "1/2 = 50%",
        "2x + 3 = 7",
        "x3 + 4 = 9",
        "f(2) + 1 = 5",
        "2(3 + 1) + 1 = 9",
        "14 = 2(3 + 4)",
        "5 apples * 3 + 2 = 17",
        "7:30 - 2 = 28",
        "007 + 1 = 8",
        "3 + = 7",
        r"\frac{1}{2} + 1 = 1.5",
    ],
)
def test_what_cannot_be_read_is_no_step(text):
    assert steps_in(text) == []


NUMBERS = st.integers(0, 99).map(str) | st.sampled_from(["0.5", "12.25", "1,234"])
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: (
        st.builds("{}{}{}".format, inner, st.sampled_from([" + ", "-", " * ", "/"]), inner)
        | inner.map("({})".format)
    ),
    max_leaves=8,
)
FILLERS = st.sampled_from(["so ", "\n", ", ", "; then ", "(", "**", ". ", "→", "1. ", "- "])


def python_value(expression: str) -> Fraction | None:
    """The value as Python computes it, with a Fraction for each number."""
    plain = re.sub(r"[0-9.]+", lambda n: f"Fraction('{n[0]}')", expression.replace(",", ""))
    try:
        return eval(plain, {"Fraction": Fraction})
    except ZeroDivisionError:
        return None


@settings(max_examples=400)
@given(EXPRESSIONS, st.integers(-50, 50), st.booleans())
def test_values_are_those_of_python(expression, offset, is_right):
    value = python_value(expression)
    result = Fraction(offset) if value is None or not is_right else value
    steps = steps_in(f"We get {expression} = {result}.")
    if not re.search(r"[-+*/]", expression) and result.denominator == 1:
        assert steps == []
    elif steps:  # a fraction may repeat the left side
        [step] = steps
        assert step.is_right == (value == result)
    else:
        assert value == result
        assert "/" in expression


@settings(max_examples=300)
@given(st.lists(st.one_of(EXPRESSIONS, FILLERS, st.just(" = "), st.text(max_size=4))))
def test_any_text_is_read(pieces):
    text = "".join(pieces)
    for step in steps_in(text):
        assert 0 <= step.begin < step.end <= len(text)
        assert "=" in text[step.begin : step.end].translate({ord("＝"): "="}) or any(
            arrow in text[step.begin : step.end] for arrow in "→>⟶⇒"
        )
    for part in ("all", "thoughts", "answer"):
        [score] = build("right_steps", part=part)(completions=[text])
        assert 0.0 <= score <= 1.0
    lookup("right_steps").explain(text, part="all")


LONG = [
    "(" * 200_000,
    "1+" * 100_000,
    "1+1=" * 60_000,
    "(1+1=" * 60_000,
    "1+1=2 " * 40_000,
    "=".join(["*".join(["99999"] * 160)] * 200),
    "=".join(["/".join(map(str, range(100, 300)))] * 200),
    "".join(f"{n}+1={n} " for n in range(30_000)),
    "1,111" * 50_000,
    "-1" * 100_000,
    "** " * 70_000,
    " // " * 50_000,
    "3 x" * 60_000,
    "x" + " " * 200_000,
    r"\boxed{" * 30_000,
    "<think>" * 30_000,
    "9" * 10**6 + "+1=2",
]


@pytest.mark.parametrize("bait", LONG, ids=lambda text: text[:12])
def test_no_text_takes_long(bait):
    with no_runaway():
        build("right_steps", part="all")(completions=[bait])
        lookup("right_steps").explain(bait, part="all")


def test_only_the_beginning_of_a_long_text_is_read():
    assert steps_in(" " * MAX_TEXT + "3 + 4 = 7") == []
    assert len(steps_in("3 + 4 = 7" + " " * MAX_TEXT + "3 + 4 = 7")) == 1


def thought(text, **options):
    columns = {"nums": [options.pop("nums")]} if "nums" in options else {}
    return build("right_steps", **options)(completions=[f"<think>{text}</think>"], **columns)[0]


def test_score():
    assert thought("3 + 4 = 7, 4 * 5 = 20, 6 - 1 = 5") == 1.0
    assert thought("3 + 4 = 7, 4 * 5 = 20, 6 - 1 = 6") == pytest.approx(2 / 3)
    assert thought("3 + 4 = 7, 4 * 5 = 20") == pytest.approx(2 / 3)
    assert thought("3 + 4 = 7, 4 * 5 = 21", min_steps=1) == 0.5
    assert thought("3 + 4 = 7", min_steps=1) == 1.0
    assert thought("no steps", min_steps=1) == 0.0


def test_steps_stand_in_the_wanted_part():
    completion = "<think>3 + 4 = 7</think><answer>3 + 4 = 8</answer>"
    shares = {
        part: build("right_steps", part=part, min_steps=1)(completions=[completion])[0]
        for part in ("all", "thoughts", "answer")
    }
    assert shares == {"all": 0.5, "thoughts": 1.0, "answer": 0.0}


@pytest.mark.parametrize(
    "attack",
    [
        "1 + 1 = 2. " * 500,
        "1 + 1 = 2, (1 + 1) = 2, 1 + 1 = 2.0, 01 + 1 = 2, 2 = 1 + 1, １ + 1 = 2",
        "1 + 2 = 3, 2 + 1 = 3, 3 = 2 + 1, (2) + (1) = 3",
        "2 = 2, 3 = 3, 4 = 4, 1 + 1 = 1 + 1, 1 + 2 = 2 + 1, 1 + 1 = 2",
    ],
)
def test_a_trivial_step_written_again_earns_one_step(attack):
    assert thought(attack) == pytest.approx(1 / 3)


def test_repeating_right_steps_does_not_outweigh_wrong_ones():
    wrong = "5 * 5 = 24, 6 * 6 = 35, 7 * 7 = 48, "
    assert thought(wrong + "1 + 1 = 2, " * 100) == 0.25


def test_steps_from_the_given_numbers():
    options = {"numbers": "nums", "nums": [55, 36, 7, 7]}
    assert thought("55 + 36 = 91, 91 - 7 = 84, 84 - 7 = 77", **options) == 1.0
    assert thought("55 - 7 - 7 = 41, 41 + 36 = 77", **options, min_steps=2) == 1.0
    # a number that is not given, a given one used too often, a result that nothing has given
    assert thought("1 + 1 = 2, 36 + 36 = 72, 8 * 8 = 64", **options) == 0.0
    # they earn nothing, but hide no wrong step
    assert thought("55 + 36 = 91, 1 + 1 = 3", **options, min_steps=1) == 0.5
    assert thought("55 + 36 = 92, 92 + 7 = 99", **options, min_steps=1) == 0.0


def test_a_repeated_step_gives_its_result_from_the_first_time_on():
    text = "3 + 4 = 7, 7 * 2 = 14, 3 + 4 = 7"
    assert thought(text, numbers="nums", nums=[3, 4, 2], min_steps=1) == 1.0


def test_numbers_of_any_kind_are_given_exactly():
    assert thought("0.5 + 1 = 1.5", numbers="nums", nums=[0.5, 1.0], min_steps=1) == 1.0


def test_rows_without_the_column():
    reward = build("right_steps", numbers="nums")
    assert reward(completions=["", "x"], nums=[None, [1]]) == [None, 0.0]
    with pytest.raises(ValueError, match="needs the column `nums`"):
        reward(completions=[""])
    assert build("right_steps")(completions=[""], nums=[None]) == [0.0]


def test_a_policy_that_calculates_better_earns_more():
    """The mean reward grows with the share of sums that a simulated policy gets right."""
    generator = random.Random(0)
    means = []
    for accuracy in (0.2, 0.5, 0.8, 1.0):
        completions = []
        for _ in range(200):
            steps = []
            for _ in range(4):
                a = generator.randrange(100)
                b = generator.randrange(100)
                result = a + b + (generator.random() > accuracy)
                steps.append(f"{a} + {b} = {result}")
            completions.append(f"<think>{', '.join(steps)}</think>")
        means.append(sum(build("right_steps")(completions=completions)) / 200)
    assert means == [pytest.approx(accuracy, abs=0.06) for accuracy in (0.2, 0.5, 0.8, 1.0)]


def test_share_of_right_counts_every_step():
    assert share_of_right(steps_in("1 + 1 = 2, 1 + 1 = 2, 1 + 1 = 3")) == pytest.approx(2 / 3)
    assert share_of_right([]) is None


def test_tiny_countdown_writes_steps_that_are_read():
    """The demonstrations of the demo have right steps only, all of which are found."""
    task = Countdown(num_problems=20, max_numbers=3, max_number=9, max_target=20)
    demonstrations = countdown_demonstrations(task, 30, give_up=0.3)
    for demonstration in demonstrations:
        text = demonstration["completion"][0]["content"]
        steps = steps_in(text)
        assert len(steps) == text.count("→") > 0
        assert share_of_right(steps) == 1.0


def test_the_explanation_marks_wrong_steps():
    completion = "<think>3 + 4 = 7, then 7 * 2 = 15.</think>"
    explanation = lookup("right_steps").explain(completion)
    assert [completion[begin:end] for begin, end, *_ in explanation.marks] == ["7 * 2 = 15"]
    assert explanation.marks[0][2:] == ("fault", "It is 14.")
    assert "2 distinct steps, 1 right" in explanation.text


@pytest.mark.parametrize(
    ("completion", "marked"),
    [
        ("2 * (3 + 4 = 8", "3 + 4 = 8"),
        ("-2 * (3 + 4 = 8", "3 + 4 = 8"),
        ("2 * (-3 + 4 = 8", "-3 + 4 = 8"),
        ("2 * (5 - ( 3 + 4 = 8", "3 + 4 = 8"),
        ("(1 + 2 = 4", "1 + 2 = 4"),
        ("2 * 3 - (4 + 1) = 2 - ", "2 * 3 - (4 + 1) = 2"),
    ],
)
def test_a_mark_begins_at_the_step_also_after_an_open_parenthesis(completion, marked):
    explanation = lookup("right_steps").explain(completion, part="all")
    assert [completion[begin:end] for begin, end, *_ in explanation.marks] == [marked]


def test_the_report_explains_with_the_given_numbers():
    """`nums` is an optional column, which samples.jsonl has if another reward needs it."""
    text = "<think>3 + 4 = 7, 1 + 1 = 2</think>"
    rewards = [{"name": "right_steps", "options": build("right_steps", numbers="nums").options}]
    words, _ = Explainer(rewards).explain({"text": text, "columns": {"nums": [3, 4]}})
    assert "1 distinct step, 1 right" in words["right_steps"]
    words, _ = Explainer(rewards).explain({"text": text, "columns": {}})
    assert "were not logged" in words["right_steps"]


def test_the_page_of_the_demos_counts_steps(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (REPO / "docs" / "demos.md").read_text(encoding="utf-8")
    [code] = [c for c in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "steps_in" in c]
    folder = tmp_path / "runs" / "countdown-tiny"
    folder.mkdir(parents=True)
    rows = [{"text": "<think>\n5 + 3 → 8 - 1 → 7"}, {"text": "2 * 2 → 5"}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "eval_after_completions.jsonl").write_text(lines)
    namespace: dict = {}
    exec(code, namespace)
    assert [step.is_right for step in namespace["steps"]] == [True, True, False]
