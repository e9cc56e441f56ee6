"""Gold answers that are empty, unreadable, in the prompt, or all the same."""

from __future__ import annotations

import pytest

from grpo_ext.preflight.gold_answers import judge_golds
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards import build

N = 24


def judged(rows, *rewards):
    findings = Findings()
    judge_golds(rows, rewards, findings)
    return findings


def sums(**columns):
    return [
        {"prompt": f"What is {n} + 100?", "solution": str(n + 100), **columns} for n in range(N)
    ]


def test_good_rows_have_no_finding():
    for reward in ("accuracy", "number", "exact"):
        findings = judged(sums(), build(reward))
        assert not findings.problems and not findings.notes


@pytest.mark.parametrize("empty", [None, "", " \n", []])
def test_empty_answers(empty):
    rows = sums()
    rows[4]["solution"] = empty
    findings = judged(rows, build("exact"))
    [note] = findings.notes
    assert findings.sound and "is empty in 1 of the first 24 rows, such as row 5" in note.message
    for row in rows[3:]:
        row["solution"] = empty
    findings = judged(rows, build("exact"))
    assert "is empty in 21 of the first 24 rows, such as row 4" in findings.problems[0].message


@pytest.mark.parametrize(
    ("reward", "gold", "options", "part"),
    [
        (
            "choice",
            "2",
            {},
            "This reward needs letters. If the answers are the numbers of options, use",
        ),
        (
            "choice",
            "Paris",
            {"first_index": 0},
            "Use another reward (`exact` for text, `choice` for letters)",
        ),
        ("number", "no number", {}, "cannot use the answers of 24 of the first 24 rows"),
        ("accuracy", "It depends on the case at hand, see above.", {}, "cannot use the answers"),
        ("exact", "3 + 4 = 7\n#### 7", {}, "gives 0 to a completion with the right answer in 24"),
    ],
)
def test_answers_that_the_reward_cannot_read_are_a_problem(reward, gold, options, part):
    rows = [{"prompt": f"{n}, or 1, 2, 3?", "solution": gold} for n in range(N)]
    findings = judged(rows, build(reward, **options))
    assert part in findings.problems[0].message and "row 1" in findings.problems[0].message


def test_a_few_of_them_are_a_note():
    rows = sums()
    rows[9]["solution"] = "not known"
    findings = judged(rows, build("number"))
    assert findings.sound
    assert (
        "1 of the first 24 rows with an answer, so these rows get no score. The first is row 10"
        in findings.notes[0].message
    )


@pytest.mark.parametrize(
    "gold", ["#### 7", "So \\boxed{7}.", "The answer is 7.", "<answer> 7 </answer>", "7"]
)
def test_solutions_in_all_forms_are_read_by_accuracy(gold):
    rows = [{"prompt": f"What is 7 + {n} - {n}?", "solution": gold} for n in range(N)]
    findings = judged(rows, build("accuracy"))
    assert findings.sound
    [note] = findings.notes
    assert "all have the answer" in note.message and "shuffle it" in note.message


@pytest.mark.parametrize(
    ("prompt", "is_problem"),
    [
        ("{question}\n{solution}", True),
        ("{question} The answer is: {number}. Explain.", True),
        ("{question}\n\\boxed{{{number}}}", True),
        ("{question}\n#### {number}", True),
        ("Guess the number after #### 5. {question}", False),
        ("{question}", False),
    ],
)
def test_a_solution_within_the_prompt_is_a_problem(prompt, is_problem):
    rows = []
    for n in range(N):
        question = f"How many are {n} and {n}?"
        solution = f"{n} + {n} = {2 * n}\n#### {2 * n}"
        text = prompt.format(question=question, solution=solution, number=2 * n)
        rows.append({"prompt": text, "solution": solution})
    findings = judged(rows, build("accuracy"))
    assert bool(findings.problems) == is_problem
    if is_problem:
        assert "the prompt contains the answer in" in str(findings.problems[0])


@pytest.mark.parametrize(
    ("ending", "golds"),
    [
        ("Answer: yes or no.", ["yes", "yes", "no"]),
        ("Answer: A) red B) blue", ["A", "A", "B"]),
        ("The answer is yes", ["yes", "yes", "no"]),
        ("Answer: yes", ["yes"]),
    ],
)
def test_an_answer_in_text_that_all_prompts_share_is_a_note(ending, golds):
    rows = [
        {"prompt": f"Is {n} a fair number? {ending}", "solution": golds[n % len(golds)]}
        for n in range(N)
    ]
    findings = judged(rows, build("exact"))
    assert findings.sound
    assert "the prompt contains the column 'solution'" in findings.notes[0].message


def test_words_of_few_answers_are_a_problem_where_they_are_the_rows_own():
    rows = []
    for n in range(N):
        answer = "no" if n % 3 == 0 else "yes"
        rows.append({"prompt": f"Is {n} fair? Answer: {answer}.", "solution": answer})
    assert "rows, such as row 1: the final answer" in str(judged(rows, build("exact")).problems)


@pytest.mark.parametrize(
    "prompt", ["Copy: the number is {n}. Now you:", "Write the number is {n}."]
)
def test_another_answer_within_the_prompt_is_a_note(prompt):
    rows = [
        {"prompt": prompt.format(n=f"{n:04}"), "solution": f"the number is {n:04}."}
        for n in range(N)
    ]
    findings = judged(rows, build("exact"))
    [note] = findings.notes
    assert findings.sound and "the prompt contains the column 'solution'" in note.message


def test_short_answers_at_the_end_of_every_prompt_are_a_note():
    rows = [{"prompt": f"{n} + {n}? {2 * n}", "solution": str(2 * n)} for n in range(N)]
    assert (
        "the prompt contains the column 'solution'"
        in judged(rows, build("number")).notes[0].message
    )


def test_an_answer_in_the_passage_of_a_question_is_a_note():
    rows = [
        {
            "prompt": f"Who wrote it? Ines Moreira {n} did.",
            "solution": [f"Ines Moreira {n}", "Ines"],
        }
        for n in range(N)
    ]
    findings = judged(rows, build("exact"))
    assert findings.sound and len(findings.notes) == 1


def test_letters_of_options_that_the_prompt_does_not_list_are_a_problem():
    rows = [{"prompt": f"Which is {n}?", "solution": "BCD"[n % 3]} for n in range(N)]
    findings = judged(rows, build("choice"))
    assert "right option, such as option B in row 1" in str(findings.problems[0])
    listed = [{**row, "prompt": f"{row['prompt']}\nA) 1\nB) 2\nC) 3\nD) 4"} for row in rows]
    assert not judged(listed, build("choice")).problems
    numbered = [{**row, "solution": 1 + n % 3} for n, row in enumerate(listed)]
    assert not judged(numbered, build("choice", first_index=0)).problems


def test_long_texts_for_exact_are_a_note():
    rows = [
        {"prompt": f"Describe {n}.", "solution": f"{n} is " + "one more " * 12} for n in range(N)
    ]
    findings = judged(rows, build("exact"))
    assert findings.sound and "longer than about 20 words" in findings.notes[0].message


def test_rewards_for_some_tasks_look_at_their_rows_alone():
    rows = [
        {"task": "sums", "prompt": "1 + 1?", "solution": "2"},
        {"task": "chat", "prompt": "Say hello.", "solution": None},
        {"task": "chat", "prompt": "Say goodbye.", "solution": None},
    ]
    reward = build("number")
    reward.tasks = ("sums",)
    findings = judged(rows, reward)
    assert not findings.problems and not findings.notes


def test_mappings_are_no_answers():
    rows = [
        {"prompt": f"Say {n}.", "solution": [{"role": "assistant", "content": f"{n}"}]}
        for n in range(N)
    ]
    findings = judged(rows, build("exact"))
    assert "cannot use the answers of 24 of the first 24 rows" in findings.problems[0].message
