"""What `accuracy` reads from the question: its choices, the unit and the value that it asks for,
and formulas that an answer only repeats.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.rewards import build
from grpo_ext.rewards.normal_form import sides_of
from grpo_ext.rewards.question import question_of
from tests.support.accuracy import score

CHOICES = """Which is it?
A) 5
B) 12
C) train station
D) $\\frac{1}{2}$"""

GASES = """Which gas do plants absorb?
(A) oxygen
(B) carbon dioxide
(C) nitrogen
(D) helium"""


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (CHOICES, "B", "\\boxed{12}", 1),
        (CHOICES, "B", "\\boxed{5}", 0),
        (CHOICES, "B", "The answer is 12.", 1),
        (CHOICES, "C", "It is the train station.", 0),
        (CHOICES, "C", "So the answer is a train station.", 1),
        (CHOICES, "12", "\\boxed{B}", 1),
        (CHOICES, "12", "\\boxed{A}", 0),
        (CHOICES, "D", "\\boxed{1/2}", 1),
        (CHOICES, "D", "\\boxed{0.5}", 1),
        (CHOICES, "(D)", "\\boxed{\\textbf{(D)}\\ \\frac12}", 1),
        (CHOICES, "D", "\\boxed{\\text{D) } \\frac{1}{2}}", 1),
        (CHOICES, "B", "Option A is 5. I choose option B.", 1),
        (CHOICES, "B", "(A) is wrong, so (B).", 1),
        (CHOICES, "B", "**B**", 1),
        (CHOICES, "B", "B", 1),
        (CHOICES, "B", "b", 0),
        (CHOICES, "B", "The correct option is **B) 12**", 1),
        (CHOICES, "B", "The answer is either A or B", 0),
        (CHOICES, "B", "\\boxed{A, B}", 0),
        (CHOICES, "B", "\\boxed{A \\text{ or } B}", 0),
        ("Compute $3 \\times 24$.", "72", "\\boxed{3 \\times 24}", 0),
        ("Compute $3 \\times 24$.", "72", "\\boxed{24 \\cdot 3}", 0),
        ("Compute $3 \\times 24$.", "72", "\\boxed{72}", 1),
        ("What is 48/2 + 48?", "72", "\\boxed{48 + 48/2}", 0),
        ("Simplify $\\frac{6}{8}$.", "\\frac{3}{4}", "\\boxed{\\frac{6}{8}}", 0),
        ("Simplify $\\frac{6}{8}$.", "\\frac{3}{4}", "\\boxed{6/8}", 0),
        ("Simplify $\\frac{6}{8}$.", "\\frac{3}{4}", "\\boxed{0.75}", 1),
        ("He ate 1/2 of it. How much is left?", "0.5", "\\boxed{1/2}", 1),
        ("Express 0.5 as a fraction.", "1/2", "\\boxed{0.5}", 0),
        ("Factor $x^2-5x+6$.", "(x-2)(x-3)", "\\boxed{x^2-5x+6}", 0),
        ("Factor $x^2-5x+6$.", "(x-2)(x-3)", "\\boxed{(x-3)(x-2)}", 1),
        ("Factor $x^2-5x+6$.", "(x-2)(x-3)", "\\boxed{6-5x+x^2+0}", 0),
        ("Find $a+b$.", "7", "\\boxed{a+b=7}", 1),
        ("Find $a+b$ if $a^2+b^2=25$ and ...", "7", "\\boxed{a^2+b^2=25}", 0),
        ("Find the value of $x^2+y^2$.", "2", "\\boxed{x^2+y^2=2}", 1),
        ("If $x^2+y^2=2$, find $xy$.", "2", "\\boxed{x^2+y^2=2}", 0),
        ("How many weeks?", "4", "\\boxed{28 days}", 1),
        ("He adds a gallon in hour three. How much is left?", "4", "\\boxed{4 gallons}", 1),
        ("How many pounds is £4 plus £3?", "7", "\\boxed{£7}", 1),
        ("How many weeks?", "4", "\\boxed{4 weeks}", 1),
        ("How many weeks?", "4", "\\boxed{4 days}", 0),
        ("How many hours?", "1.5", "\\boxed{90 minutes}", 1),
        ("How many cents?", "50", "\\boxed{\\$0.50}", 1),
        ("How many miles per hour?", "60", "\\boxed{60 mph}", 1),
        ("How many apples?", "4", "\\boxed{4 apples}", 1),
        ("How fast in miles per hour?", "60", "\\boxed{60 miles per hour}", 1),
        ("How much in dollars?", "5", "\\boxed{\\$5}", 1),
        ("What is the length, in feet?", "5", "\\boxed{5 ft}", 1),
        ("How many square feet?", "20", "\\boxed{20 square feet}", 1),
        ("How many square feet?", "20", "\\boxed{20 ft^2}", 1),
        ("Find the area of it in square meters.", "20", "\\boxed{20 m}", 0),
        ("Find the area", "20", "\\boxed{20 m^2}", 1),
        ("What is the volume in liters?", "3", "\\boxed{3 L}", 1),
        (
            "What is the area of the field? How long is its fence in meters?",
            "40",
            "\\boxed{40 m}",
            0,
        ),
        ("Find the number of seconds.", "30", "\\boxed{half a minute}", 0),
        ("Find the roots", "1,2,3", "\\boxed{x \\in \\{1,2,3\\}}", 1),
        ("Evaluate it.", "13", "\\boxed{\\sqrt{100}+3}", 0),
        ("Evaluate", "1/2", "\\boxed{\\frac{1}{4}+\\frac14}", 0),
        ("Evaluate", "1+\\sqrt{2}", "\\boxed{\\sqrt{2}+1}", 1),
        ("Simplify", "-2", "\\boxed{-2+0i}", 1),
        ("Order from least to greatest: 3, 1, 2", "1,2,3", "\\boxed{1<2<3}", 1),
        ("Order from least to greatest: 3, 1, 2", "1,2,3", "\\boxed{3,2,1}", 0),
        ("Order from least to greatest", "1,2,3", "\\boxed{1, 2, 3}", 1),
        ("Order from greatest to least", "3,2,1", "\\boxed{3>2>1}", 1),
        ("Find the ordered pair (x,y)", "(1,2)", "\\boxed{(1,2)}", 1),
        ("Find the ordered pair (x,y)", "(1,2)", "\\boxed{x=1, y=2}", 1),
        ("What is 15% of 240?", "36", "\\boxed{36\\%}", 0),
        ("What is 15% of 240?", "0.36", "\\boxed{36\\%}", 1),
        ("What percent of 50 is 18?", "36", "\\boxed{36\\%}", 1),
        ("What percent of 50 is 18?", "36\\%", "\\boxed{36}", 1),
        ("What percent?", "36\\%", "\\boxed{0.36}", 1),
        ("What is the chance of rain?", "60", "\\boxed{60\\%}", 1),
        (GASES, "B", "Plants take in carbon dioxide. The answer is (B).", 1),
        (GASES, "B", "The correct answer is carbon dioxide.", 1),
        (GASES, "B", "\\boxed{\\text{B. carbon dioxide}}", 1),
        (GASES, "B", "\\boxed{\\text{carbon dioxide}}", 1),
        (GASES, "B", "Answer: B", 1),
        (GASES, "B", "B) carbon dioxide", 1),
        (GASES, "B", "Plants absorb **carbon dioxide**.", 1),
        (GASES, "B", "<answer>B</answer>", 1),
        (GASES, "B", "<answer>carbon dioxide (B)</answer>", 1),
        (GASES, "B", "The answer is B: carbon dioxide", 1),
        (GASES, "B", "It's option (B), carbon dioxide, not oxygen (A).", 1),
        ("Solve $x^2=9$.", "\\pm 3", "\\boxed{x=3, x=-3}", 1),
        ("Solve $x^2=9$.", "3,-3", "\\boxed{\\{-3,3\\}}", 1),
        ("How far in km?", "5", "\\boxed{5 m}", 0),
        ("How far in km?", "5", "\\boxed{5000 m}", 1),
        (GASES, "B", "\\boxed{\\text{oxygen}}", 0),
        (GASES, "B", "It's carbon. Answer: (C)", 0),
        (GASES, "B", "Answer: A. carbon dioxide", 0),
        (GASES, "B", "All of them: A, B, C, D", 0),
        (GASES, "B", "\\boxed{A B C D}", 0),
        (GASES, "B", "\\boxed{\\text{not carbon dioxide}}", 0),
        (GASES, "B", "The answer is (A) or (B).", 0),
        ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}", "\\boxed{\\sqrt{12}}", 0),
        ("Simplify $\\log_3 2$.", "\\log_3 2", "\\boxed{\\frac{\\ln 2}{\\ln 3}}", 1),
        ("Simplify $\\tan x$.", "\\tan x", "\\boxed{\\frac{\\sin x}{\\cos x}}", 1),
        ("Simplify $2x^2 / x$.", "2x", "\\boxed{\\frac{2x^2}{x}}", 0),
        ("Simplify $2X^2 / X$.", "2X", "\\boxed{\\frac{2X^2}{X}}", 0),
        ("Simplify $2xy / y$.", "2x", "\\boxed{\\frac{2xy}{y}}", 0),
        ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}", "\\boxed{\\sqrt{4\\cdot 3}}", 0),
        (
            "Evaluate $\\frac{3}{4}+\\frac{1}{8}$.",
            "\\frac{7}{8}",
            "\\boxed{\\frac{1}{8}+\\frac{3}{4}}",
            0,
        ),
        ("Differentiate $x^2$. Find $f'(x)$", "2x", "\\boxed{\\frac{d}{dx}x^2}", 0),
        (
            "What is $\\lim_{x\\to 0}\\frac{\\sin x}{x}$?",
            "1",
            "\\boxed{\\lim_{x\\to 0}\\frac{\\sin x}{x}}",
            0,
        ),
        ("Compute $\\sum_{k=1}^3 k$.", "6", "\\boxed{\\sum_{k=1}^3 k}", 0),
        ("Compute $7 \\cdot 8$", "56", "7 · 8", 0),
        ("Find $f(2)$ if $f(x)=x+3$.", "5", "\\boxed{f(2)}", 0),
        ("Find $f(2)$ if $f(x)=x+3$.", "5", "\\boxed{2+3}", 1),
        ("Convert $1010_2$ to decimal", "10", "\\boxed{1010_2}", 0),
        ("Find $\\sqrt{50}\\cdot\\sqrt2$", "10", "\\boxed{\\sqrt{2}\\sqrt{50}}", 0),
        ("What is 20% of 50?", "10", "\\boxed{0.2 \\times 50}", 1),
        ("What is 20% of 50?", "10", "\\boxed{20\\% \\text{ of } 50}", 0),
    ],
)
def test_the_question_tells_what_is_right(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


SQUARE = "A square has sides of 6 cm. What is its area, in square centimeters?"
CIRCLE = "A circle has a radius of 6 cm. What is its area in terms of $\\pi$?"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (SQUARE, "36", "The area is $36$ cm².", 1),
        (SQUARE, "36", "The area is $36$ cm$^2$.", 1),
        (SQUARE, "36", "The area is \\(36\\) cm\\(^2\\).", 1),
        (SQUARE, "2", "The area is $36$ cm².", 0),
        (SQUARE, "36", "The area is $36$ cm.", 0),
        (SQUARE, "36", "The area is $36$ m².", 0),
        (SQUARE, "36", "The area is not $36$ cm².", 0),
        (SQUARE, "36", "$36$ cm² is wrong.", 0),
        (CIRCLE, "36\\pi", "It is $\\pi r^2 = \\pi \\cdot 6^2 = 36\\pi$ cm².", 1),
        (CIRCLE, "36\\pi", "It is πr² = π(6)² = 36π cm².", 1),
        (CIRCLE, "36\\pi", "It is $\\pi r^2 = \\pi \\cdot 6^2 = 12\\pi$ cm².", 0),
        (CIRCLE, "36\\pi", "It is $2\\pi r = 2\\pi \\cdot 6 = 36\\pi$ cm².", 0),
        ("What is its volume?", "36\\pi", "It is $36\\pi$ in³.", 1),
        ("How many weeks?", "4", "It takes $4$ weeks.", 1),
        ("How many weeks?", "4", "It takes $28$ days.", 1),
        ("How many weeks?", "4", "It takes $4$ days.", 0),
    ],
)
def test_the_unit_behind_a_formula_belongs_to_it(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


def test_a_size_in_a_question_is_not_what_how_many_asks_for():
    question = (
        "How many hours does it take to mow a field whose area, in square meters, is 600, at 50 "
        "square meters per hour?"
    )
    assert score(question, "12", "\\boxed{12 \\text{ hours}}") == 1
    assert score(question, "12", "It takes 12 hours.") == 1


@pytest.mark.parametrize(
    ("question", "completion", "verdict"),
    [
        (SQUARE, "\\boxed{36 \\text{ square centimeters}}", 1),
        (SQUARE, "\\boxed{3600 \\text{ mm}^2}", 1),
        (SQUARE, "\\boxed{36 \\text{ square meters}}", 0),
        ("Measured in feet. What is its area, in square feet?", "36 ft²", 1),
        ("Measured in feet. What is its area, in square feet?", "4 square yards", 1),
        ("Measured in feet. What is its area, in square feet?", "36 square yards", 0),
        ("Its area in square feet is 81. How many feet is its perimeter?", "36 ft", 1),
        ("Its area in square feet is 81. How many feet is its perimeter?", "36 yards", 0),
    ],
)
def test_the_question_tells_the_unit_of_an_area(question, completion, verdict):
    assert score(question, "36", completion) == verdict


@pytest.mark.parametrize(
    ("gold", "completion", "verdict"),
    [
        ("\\frac{x^2}{6}", "x^2/6", 1),
        ("\\frac{x^2}{6}", "\\frac{1}{6}x^2", 1),
        ("\\frac{x^2}{6}", "\\frac{2x^2}{12}", 0),
        ("\\frac{x^2}{6}", "2x^2/12", 0),
        ("\\frac{(x+1)^2}{4}", "(x+1)^2/4", 1),
        ("\\frac{2\\sqrt{6}}{3}", "\\frac{4\\sqrt{6}}{6}", 0),
        ("\\frac{2\\sqrt{6}}{3}", "\\frac{2}{3}\\sqrt{6}", 1),
        ("\\frac{\\sqrt{2}}{4}", "√2/4", 1),
    ],
)
def test_a_simplified_term_has_a_reduced_coefficient(gold, completion, verdict):
    assert score("Simplify the term.", gold, f"\\boxed{{{completion}}}") == verdict


def test_the_solution_tells_the_unit_of_an_answer_in_two_units():
    solution = "In total it took 2 + 10 = 12 years.\n#### 12"
    question = "How much time did it take?"
    assert score(question, solution, "It took 144 months, or 12 years.") == 1.0
    assert score(question, solution, "It took 144 months, or 13 years.") == 0.0
    assert score(question, solution, "It took 12 months, or 1 year.") == 0.0


def test_the_solution_tells_the_unit_if_the_question_does_not():
    solution = "It takes 40 + 100 + 20 = 160 minutes.\n#### 160"
    assert score("How long does it take?", solution, r"\boxed{2 hours and 40 minutes}") == 1.0
    assert score("How long does it take?", solution, r"\boxed{160 hours}") == 0.0
    assert score("How long does it take?", solution, r"\boxed{160 pages}") == 1.0


@pytest.mark.parametrize("prompts", [None, ["Compute $\\binom{8}{4}$."]])
def test_rewards_that_judge_as_accuracy_read_the_question_too(prompts):
    given = {"completions": [r"</think> \boxed{\binom{8}{4}}"], "solution": ["70"]}
    if prompts is not None:
        given["prompts"] = prompts
    right = prompts is None  # without a question no formula is known to be restated
    assert build("reasoning_accuracy")(**given) == [float(right)]
    [scaled] = build("cosine_scaled", max_len=10)(completion_ids=[[1]], **given)
    assert (scaled > 0) == right


def test_the_last_message_of_the_user_is_the_question():
    messages = [
        {"role": "system", "content": "Compute $5 \\cdot 7$."},
        {"role": "user", "content": "Compute $3 \\cdot 24$."},
        {"role": "assistant", "content": "Compute $3 \\cdot 24$."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Find $2 + 3$."}]},
    ]
    assert question_of(messages) == question_of("Find $2 + 3$.")
    assert (
        question_of(None) == question_of([]) == question_of([{"role": "user"}]) == question_of("")
    )


@pytest.mark.parametrize(
    ("text", "choices"),
    [
        ("(A) 1 (B) 2 (C) 3", (("A", "1"), ("B", "2"), ("C", "3"))),
        ("A. cat\nB. dog\n\nThink.", (("A", "cat"), ("B", "dog"))),
        (r"$\textbf{(A)}\ 1\qquad\textbf{(B)}\ \frac12$", (("A", "1"), ("B", r"\frac12"))),
        ("Points A and B: find AB", ()),
        ("Vitamin A. It is good.", ()),
    ],
)
def test_choices(text, choices):
    assert question_of(text).choices == choices


@pytest.mark.parametrize(
    ("formula", "other", "same"),
    [
        (r"(x+5)\cdot(x-7)", "(x-7)(5+x)", True),
        (r"\dbinom{8}{4}", r"1\binom84+0", True),
        (r"\frac{12}{18}", "12/18", True),
        (r"\frac{3x-2}{x+4}", r"\frac{4x+2}{3-x}", False),
        (r"2\sqrt{3}", r"3\sqrt{2}", False),
        ("x^2", "2^x", False),
        ("a-b", "b-a", False),
    ],
)
def test_a_normal_form_knows_no_order_and_no_neutral_elements(formula, other, same):
    assert (
        list(sides_of(formula, in_words=False)) == list(sides_of(other, in_words=False))
    ) == same


FRAGMENTS = r"""1 2 0 x y ( ) [ ] { } \{ \} + - / ^ _ ! = < , . $ \frac \binom \sqrt \sin sqrt
    pi \left how many weeks in A) (B) C. area find $a+b$ dozen evaluate \boxed{ \text{ \\"""
TEXTS = st.lists(st.sampled_from([*FRAGMENTS.split(), " "]), max_size=60).map("".join)


@pytest.mark.parametrize("answer", ["$x$", "So it is $x$.", "$x = y$", r"{$\binom$"])
def test_an_unmarked_answer_that_is_only_a_name_is_wrong(answer):
    assert score("What is $3 + 2$?", "5", answer) == 0.0


@given(TEXTS, st.integers(1, 300))
def test_reading_any_question_ends_without_an_error(text, times):
    question_of(text * times)
    assert score(text, "5", rf"\boxed{{{text}}}") in (0.0, 1.0)


@pytest.mark.parametrize("opening", ["(", r"\sqrt", r"\binom", r"\frac", r"\sin", "x^", "-"])
def test_deep_formulas_in_a_question_raise_nothing(opening):
    question_of("$" + opening * 5000 + "$")


LINE = "Find all real $x$ such that $|x| + |x - 2| = 2$."
POINT = "Find the ordered pair $(x, y)$ with $x < y$."


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (LINE, "[0,2]", "\\boxed{x=0 \\text{ and } x=2}", 0),
        (LINE, "[0,2]", "\\boxed{0 \\text{ or } 2}", 0),
        (LINE, "[0,2]", "\\boxed{0 \\le x \\le 2}", 1),
        (LINE, "[0,2]", "\\boxed{0 \\le x \\le 2, \\text{ or } [0,2]}", 1),
        (LINE, "0, 2", "\\boxed{(0,2)}", 0),
        (LINE, "\\{0, 2\\}", "\\boxed{[0,2]}", 0),
        ("Solve $x^2 - 3x + 2 < 0$.", "(1,2)", "\\boxed{1, 2}", 0),
        ("What is the domain of $f$?", "(1,2)", "\\boxed{1, 2}", 0),
        (POINT, "(1,2)", "\\boxed{1, 2}", 1),
        (POINT, "(1,2)", "\\boxed{x = 1, y = 2}", 1),
        (POINT, "(1,2)", "\\boxed{x = 1, x = 2}", 0),
        ("Return the sorted list.", "[1,2]", "\\boxed{1, 2}", 1),
        ("Find the eigenvector.", "[1,2]", "\\boxed{1, 2}", 1),
    ],
)
def test_an_interval_is_not_the_list_of_its_ends(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


SPEED = "Convert 72 km/h to m/s."


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (SPEED, "20 m/s", "\\boxed{72\\text{ km/h}}", 0),
        (SPEED, "20 m/s", "\\boxed{72.0 km/h}", 0),
        (SPEED, "20 m/s", "\\boxed{72000 m/h}", 0),
        (SPEED, "20 m/s", "\\boxed{20}", 1),
        (SPEED, "20 m/s", "\\boxed{72 km/h = 20 m/s}", 1),
        ("How many meters are 3 km?", "3000", "\\boxed{3 km}", 0),
        ("How many meters are 3 km?", "3000", "\\boxed{3000 m}", 1),
        ("How many minutes are two hours?", "120", "\\boxed{2 hours}", 0),
        ("What is $3\\text{ km}$ in meters?", "3000 m", "\\boxed{3 km}", 0),
        ("How many cents is \\$5?", "500", "\\boxed{\\$5}", 0),
        ("Convert $180^\\circ$ to radians.", "\\pi", "\\boxed{180^\\circ}", 0),
        ("Convert 2 hours 30 minutes to minutes.", "150", "\\boxed{2 hours 30 minutes}", 0),
        ("Convert 150 minutes to hours.", "2.5 hours", "\\boxed{2 hours 30 minutes}", 1),
        ("Compute $AB$, which is 5 cm.", "5 cm", "\\boxed{5 cm}", 1),
        ("Tom ran 0.5 hours, as long as Jim. How long did Jim run?", "30 min", "0.5 hours", 1),
        ("Express 0.75 as a common fraction.", "\\frac{3}{4}", "\\boxed{0.750}", 0),
        ("What is 0.75 as a fraction?", "\\frac{3}{4}", "\\boxed{0.75}", 0),
        ("What is 3/4 as a decimal?", "0.75", "\\boxed{3/4}", 0),
        ("Write $0.\\overline{36}$ as a fraction.", "4/11", "\\boxed{0.\\overline{36}}", 0),
        ("Write $0.\\overline{36}$ as a fraction.", "4/11", "\\boxed{4/11}", 1),
        ("Convert 30\\% to a decimal.", "0.3", "\\boxed{30\\%}", 0),
        ("Write 157 in base 4.", "2131_4", "\\boxed{157}", 0),
        ("Write 45000 in scientific notation.", "4.5 \\times 10^4", "\\boxed{45,000.0}", 0),
        ("Find the prime factorization of 60.", "2^2 \\cdot 3 \\cdot 5", "\\boxed{60}", 0),
        ("Write 1,024 as a power of 2.", "2^{10}", "\\boxed{1024}", 0),
        ("What is the area of 5 tiles of $1 cm^2$?", "5 cm^2", "\\boxed{5}", 1),
    ],
)
def test_what_is_to_be_converted_is_not_the_answer(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


ROOTS = "Arrange $\\sqrt{3}$, $1.7$, $\\frac{7}{4}$ in increasing order. Separate with commas."
ROOTS_IN_ORDER = "1.7, \\sqrt{3}, \\frac{7}{4}"


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        (ROOTS, ROOTS_IN_ORDER, "\\boxed{\\sqrt3, 1.7, \\frac74}", 0),
        (ROOTS, ROOTS_IN_ORDER, "\\boxed{\\{\\sqrt3, 1.7, \\frac74\\}}", 0),
        (ROOTS, ROOTS_IN_ORDER, "\\boxed{1.7, \\sqrt3, \\frac74}", 1),
        (ROOTS, ROOTS_IN_ORDER, "\\boxed{1.7 \\le \\sqrt3 \\le \\frac74}", 1),
        ("Sort 3, 1, 2.", "1, 2, 3", "\\boxed{3, 1, 2}", 0),
        ("Rank 3, 1, 2 by size.", "1, 2, 3", "\\boxed{3, 1, 2}", 0),
        ("List the primes below 6 in descending order.", "5, 3, 2", "\\boxed{2, 3, 5}", 0),
        ("Write 0.5, 0.2, 0.9 in order, smallest first.", "0.2, 0.5, 0.9", "0.9, 0.5, 0.2", 0),
        ("Find the primes. List the answers in any order.", "2, 3", "\\boxed{3, 2}", 1),
        ("In order to get the values from $x$, factor.", "2, 3", "\\boxed{3, 2}", 1),
        ("Write the sum with $n$ in place of the value.", "2, 3", "\\boxed{3, 2}", 1),
    ],
)
def test_a_question_that_asks_to_sort_values_is_answered_in_order(
    question, gold, completion, verdict
):
    assert score(question, gold, completion) == verdict


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        ("Find the eigenvalues.", "1, 3", "\\boxed{\\lambda_1 = 3,\\ \\lambda_2 = 1}", 1),
        ("Find the roots.", "\\{1, 3\\}", "So $x_1 = 3$ and $x_{2} = 1$.", 1),
        ("Find $x$.", "x = 1, x = 3", "\\boxed{x_1 = 3, x_2 = 1}", 1),
        ("Find the eigenvalues.", "1, 3", "\\boxed{\\lambda_1 = 3, \\lambda_2 = 2}", 0),
        ("Find the roots.", "1, 3", "\\boxed{x_1 = 3, y_2 = 1}", 0),
        ("Find the roots.", "1, 3", "\\boxed{x = 3, y = 1}", 0),
        ("Find $a_1$ and $a_2$.", "1, 3", "\\boxed{a_1 = 3, a_2 = 1}", 0),
        ("Find the pair.", "(1, 3)", "\\boxed{x_1 = 3, x_2 = 1}", 0),
        ("Find them.", "x_1 = 1, x_2 = 3", "\\boxed{x_1 = 3, x_2 = 1}", 0),
        (None, "1, 3", "\\boxed{x_1 = 3, x_2 = 1}", 0),
    ],
)
def test_indices_that_only_the_answer_has_give_no_order(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict


PRIMITIVE = "Find the general antiderivative of $6x^2 - 4$."


@pytest.mark.parametrize(
    ("question", "gold", "completion", "verdict"),
    [
        ("How much did it cost, in dollars?", "3000000", "It cost $3 million.", 1),
        ("How much did it cost, in dollars?", "3", "It cost $3 million.", 0),
        ("How much is it?", "3000000", "It is $2.4 million + $0.6 million = $3 million.", 1),
        ("How far does it travel?", "3000000", "It travels 3 million km in 2 years.", 1),
        ("When is it at rest?", "1, 3", "It is at rest at $t = 1$ s and $t = 3$ s.", 1),
        ("When is it at rest?", "1, 3", "It is at rest at $t = 3$ s and $t = 3$ s.", 0),
        ("What is its time of flight?", "3", "Here $v = 5$ m/s and $t = 3$ s.", 1),
        (PRIMITIVE, "2x^3 - 4x + C", "So $\\int (6x^2-4)\\,dx = 2x^3 - 4x + C$.", 1),
        (PRIMITIVE, "2x^3 - 4x + C", "So $\\int (6x^2-4)\\,dx = 2x^3 + C$.", 0),
        (PRIMITIVE, "2x^3 - 4x + C", "\\boxed{\\int (6x^2-4)\\,dx}", 0),
    ],
)
def test_multiples_units_in_lists_and_integrals_are_read(question, gold, completion, verdict):
    assert score(question, gold, completion) == verdict
