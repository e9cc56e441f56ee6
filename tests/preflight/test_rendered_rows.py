"""Rows as people have them: what one look at the prompts and their answers refutes."""

from __future__ import annotations

import uuid

import pytest
import yaml

from grpo_ext.cli.main import main
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.propose import propose
from grpo_ext.preflight.rendered_rows import is_identifier, judge_rows
from grpo_ext.preflight.try_code import check_tests
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards import build
from tests.support.logs import write_json_rows

N = 24
ALPACA = [
    {
        "instruction": "Classify the animal as a bird or a fish.",
        "input": f"animal {n}",
        "output": "bird" if n % 2 else "fish",
    }
    for n in range(N)
]
SUPERVISED = [
    {
        "messages": [
            {"role": "user", "content": f"What is {n} + 100?"},
            {"role": "assistant", "content": f"{n + 100}"},
        ]
    }
    for n in range(N)
]
POEMS = [
    {
        "id": str(uuid.UUID(int=n * 7919)),
        "title": f"Night {n}",
        "paragraphs": ["The moon is out.", "The road is long."],
    }
    for n in range(N)
]
VERL = [
    {
        "data_source": "openai/gsm8k",
        "prompt": [{"role": "user", "content": f"Tom has {n} apples and buys 3. How many?"}],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": str(n + 3)},
        "extra_info": {"index": n, "split": "train"},
    }
    for n in range(N)
]
QUESTIONS = [
    {"question": f"How many are {n} and {n}?", "answer": f"#### {2 * n}"} for n in range(N)
]


def values(folder, tiny_folder, rows, **changes):
    path = folder / "rows.jsonl"
    write_json_rows(path, rows)
    return {
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "task": "prompts",
        "dataset_name": str(path),
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        **changes,
    }


def checked(folder, tiny_folder, rows, **changes):
    return check_recipe(None, values(folder, tiny_folder, rows, **changes))


def test_equal_prompts_with_different_answers_are_a_problem(tiny_folder, tmp_path):
    findings = checked(
        tmp_path,
        tiny_folder,
        ALPACA,
        user_prompt="{instruction}",
        rename_columns={"solution": "output"},
        reward_funcs=["exact"],
    )
    [problem] = findings.problems
    assert problem.key == "user_prompt"
    assert "100% of the first 24 rows have the same prompt" in problem.message
    assert "to the prompt, perhaps 'input', which is in no prompt" in problem.message
    [note] = [note for note in findings.notes if note.key == "user_prompt"]
    assert "write {input} into user_prompt" in note.message
    mended = checked(
        tmp_path,
        tiny_folder,
        ALPACA,
        user_prompt="{instruction}\n\n{input}",
        rename_columns={"solution": "output"},
        reward_funcs=["exact"],
    )
    assert mended.sound and not [note for note in mended.notes if note.key == "user_prompt"]


def test_few_of_them_are_a_note_and_equal_answers_nothing(tiny_folder, tmp_path):
    twice = [{"prompt": f"Say {n}.", "solution": str(n)} for n in range(N)]
    settings = {"reward_funcs": ["exact"]}
    assert not keyed(checked(tmp_path, tiny_folder, twice + twice, **settings))
    odd = [*twice, {"prompt": "Say 3.", "solution": "4"}]
    findings = checked(tmp_path, tiny_folder, odd, **settings)
    assert findings.sound
    [note] = keyed(findings)
    assert (
        "8% of the first 25 rows have the same prompt" in note.message
        and "'Say 3.'" in note.message
    )


@pytest.mark.parametrize(
    "solutions",
    [
        ("2 + 2 = 4\n#### 4", "Two pairs are four.\n#### 4"),
        ("It is \\boxed{4}.", "Adding gives \\boxed{4}"),
        ("So the answer is 4.", "2 + 2 = 4\n#### 4"),
    ],
)
def test_several_solutions_with_one_answer_are_no_finding(solutions):
    rows = [
        {"prompt": f"What is {n} - {n} + 4?", "solution": text}
        for n in range(N)
        for text in solutions
    ]
    findings = Findings()
    judge_rows(rows, [build("accuracy")], findings)
    assert not findings.problems and not findings.notes
    rows[1]["solution"] = "#### 5"
    judge_rows(rows, [build("accuracy")], findings)
    assert "have the same prompt" in findings.notes[0].message


def test_one_prompt_whose_rows_differ_in_an_id_or_a_limit_is_a_note():
    def short(completions, limit, uid, **kwargs):
        return [0.0] * len(completions)

    rows = [{"prompt": "Write a joke.", "limit": n, "uid": str(uuid.uuid4())} for n in range(N)]
    findings = Findings()
    judge_rows(rows, [short], findings)
    assert findings.sound and "with a different limit or uid" in findings.notes[0].message


def test_one_prompt_whose_rows_differ_in_a_column_of_a_registered_reward_is_a_problem():
    rows = [{"prompt": "Make 24.", "nums": [n, 2, 3], "target": 24} for n in range(N)]
    findings = Findings()
    judge_rows(rows, [build("countdown")], findings)
    assert "with a different nums or target" in findings.problems[0].message


def test_one_beginning_of_every_answer_is_told_as_such():
    rows = [
        {
            "prompt": [
                {"role": "user", "content": f"{n} + {n}?"},
                {"role": "assistant", "content": "Let me think.\n<think>"},
            ],
            "solution": str(2 * n),
        }
        for n in range(N)
    ]
    findings = Findings()
    judge_rows(rows, [build("number")], findings)
    assert "begins another message" in findings.problems[0].message


def keyed(findings):
    keys = ("user_prompt", "prompt_column", "task")
    return [f for f in (*findings.problems, *findings.notes) if f.key in keys]


def test_prompts_that_end_with_the_assistants_answer_are_a_problem(tiny_folder, tmp_path):
    settings = {"prompt_column": "messages", "reward_funcs": ["number"]}
    findings = checked(
        tmp_path, tiny_folder, SUPERVISED, **settings, rename_columns={"solution": "messages"}
    )
    [problem] = keyed(findings)
    assert problem in findings.problems and "set `answer_column: solution`" in problem.message
    mended = checked(tmp_path, tiny_folder, SUPERVISED, **settings, answer_column="solution")
    assert mended.sound and not keyed(mended)
    assert "100?" in mended.figures["prompts"]["first"]
    assert "assistant\n10" not in mended.figures["prompts"]["first"]


def test_identifiers_are_no_prompts(tiny_folder, tmp_path):
    findings = checked(
        tmp_path, tiny_folder, POEMS, user_prompt="{id}", reward_funcs=["language_consistency"]
    )
    assert "most prompts are identifiers, such as '00000000-" in str(findings.problems[0])


@pytest.mark.parametrize(
    ("text", "known"),
    [
        ("9f86d081-884c-4d63-a159-bf1a2c3d4e5f", True),
        ("9F86D081884C7D659A2FEAA0C55AD015", True),
        ("train-00012", True),
        ("gsm8k/test/123", True),
        ("deadbeefdeadbeefdeadbeef", False),  # letters alone
        ("12345678", False),
        ("8301928374650192", False),  # digits to sort or to add
        ("0110100110010110", False),
        ("What is 12 + 30?", False),
        ("12+30=", False),
        ("Catch-22 is a", False),
        ("床前明月光", False),
        ("", False),
    ],
)
def test_what_an_identifier_is(text, known):
    assert is_identifier(text) == known


def test_options_that_a_prompt_lists_are_used():
    rows = [
        {
            "prompt": f"{n}?\nA) one {n}\nB) two {n}",
            "choices": [f"one {n}", f"two {n}"],
            "solution": "A",
        }
        for n in range(N)
    ]
    findings = Findings()
    judge_rows(rows, [build("choice")], findings)
    assert not findings.notes and not findings.problems
    judge_rows(
        [{**row, "prompt": f"{i}?"} for i, row in enumerate(rows)], [build("choice")], findings
    )
    assert "the column 'choices' is in no prompt" in findings.notes[0].message


@pytest.mark.parametrize("text", ["https://example.org/a.jpg", "4711", "-3.5"])
def test_an_address_or_a_number_alone_says_nothing(text):
    user = [{"role": "user", "content": text}]
    message = "most prompts are only an address or a number"
    findings = Findings()
    judge_rows([{"prompt": user}] * N, [], findings)
    assert message in findings.problems[0].message and repr(text) in findings.problems[0].message
    system = {"role": "system", "content": "Describe the picture, or factor the number."}
    findings = Findings()
    judge_rows([{"prompt": [system, *user]}] * N, [], findings)
    assert findings.sound and not findings.notes
    findings = Findings()
    judge_rows([{"prompt": text}] * N, [], findings)  # a text that a model of its own may know
    assert findings.sound and message in findings.notes[0].message


def test_two_system_messages_are_a_problem(tiny_folder, tmp_path):
    rows = [
        {
            "messages": [
                {"role": "system", "content": "Be kind."},
                {"role": "user", "content": f"How many are {n} and {n}?"},
            ],
            "solution": str(2 * n),
        }
        for n in range(N)
    ]
    settings = {"prompt_column": "messages", "reward_funcs": ["number"]}
    findings = checked(tmp_path, tiny_folder, rows, **settings, system_prompt="Be brief.")
    [problem] = findings.problems
    assert (
        problem.key == "system_prompt"
        and "such as row 1, have more than one system" in problem.message
    )
    assert checked(tmp_path, tiny_folder, rows, **settings).sound


def test_a_system_prompt_with_a_column_in_braces_is_a_problem(tiny_folder, tmp_path):
    settings = {"user_prompt": "{question}", "rename_columns": {"solution": "answer"}}
    findings = checked(
        tmp_path,
        tiny_folder,
        QUESTIONS,
        **settings,
        system_prompt="Answer {question}",
        reward_funcs=["accuracy"],
    )
    assert "contains {question} literally" in findings.problems[0].message


@pytest.mark.parametrize(
    ("system", "is_noted"),
    [
        ("Put the final answer in \\boxed{answer}.", False),
        ("Write it as \\frac{question}{answer}.", False),
        ("End with: The answer is {answer}", True),
    ],
)
def test_a_system_prompt_that_shows_the_form_of_the_answer_is_no_problem(system, is_noted):
    rows = []
    for row in QUESTIONS:
        messages = [
            {"role": "system", "content": system},
            {"role": "user", "content": row["question"]},
        ]
        rows.append({**row, "prompt": messages, "solution": row["answer"]})

    def right(completions, answer, **kwargs):
        return [0.0] * len(completions)

    findings = Findings()
    judge_rows(rows, [right], findings)
    assert findings.sound and len(findings.notes) == is_noted


@pytest.mark.parametrize(
    ("prompt", "is_problem"),
    [
        ("Turn this TO DO: list into a plan. {question}", False),
        ("TO DO: buy milk. {question}", False),
        ("{question}\nTO DO: say what the numbers mean: 0, 1", True),
    ],
)
def test_only_what_init_leaves_to_write_is_a_problem(prompt, is_problem, tiny_folder, tmp_path):
    settings = {"reward_funcs": ["accuracy"], "rename_columns": {"solution": "answer"}}
    findings = checked(tmp_path, tiny_folder, QUESTIONS, user_prompt=prompt, **settings)
    assert findings.sound != is_problem


# ---- what `init` makes of them


def written(folder, tiny_folder, rows, monkeypatch, *words, code=0):
    monkeypatch.chdir(folder)
    write_json_rows(folder / "rows.jsonl", rows)
    assert main(["init", "rows.jsonl", str(tiny_folder), *(words or ["--yes"])]) == code
    return yaml.safe_load((folder / "mine" / "recipe.yaml").read_text())


def test_init_reads_the_input_beside_an_instruction(tiny_folder, tmp_path, monkeypatch):
    recipe = written(tmp_path, tiny_folder, ALPACA, monkeypatch)
    assert recipe["user_prompt"].startswith("{instruction}\n\n{input}\n\n")
    assert recipe["user_prompt"].endswith("Answer with one of: bird, fish.")
    assert recipe["rename_columns"] == {"solution": "output"}


def test_init_takes_the_answer_out_of_messages(tiny_folder, tmp_path, monkeypatch):
    recipe = written(tmp_path, tiny_folder, SUPERVISED, monkeypatch)
    assert recipe["prompt_column"] == "messages" and recipe["answer_column"] == "solution"
    assert recipe["reward_funcs"] == ["number"] and "rename_columns" not in recipe
    talk = [
        {"messages": [*row["messages"][:1], {"role": "assistant", "content": "Some words. " * 9}]}
        for row in SUPERVISED
    ]
    (tmp_path / "mine").rename(tmp_path / "numbers")
    recipe = written(tmp_path, tiny_folder, talk, monkeypatch, code=1)
    assert recipe["answer_column"] == "reference" and "rename_columns" not in recipe


def test_init_takes_no_identifier_for_a_prompt(tiny_folder, tmp_path, monkeypatch, capsys):
    recipe = written(tmp_path, tiny_folder, POEMS, monkeypatch, code=1)
    assert recipe["user_prompt"].startswith("TO DO:")
    assert recipe["user_prompt"].endswith("{title}")
    printed = capsys.readouterr().out
    assert "No usable column has the usual name of a question" in printed
    assert "Write into user_prompt what the model should do with title" in printed


def test_init_finds_the_answer_of_verls_rows(tiny_folder, tmp_path, monkeypatch, capsys):
    recipe = written(tmp_path, tiny_folder, VERL, monkeypatch)
    assert recipe["prompt_column"] == "prompt"
    assert recipe["rename_columns"] == {"solution": "reward_model.ground_truth"}
    assert recipe["reward_funcs"] == ["number"]
    rewards = check_recipe(tmp_path / "mine" / "recipe.yaml").figures["rewards"]
    assert rewards["scores"]["number"] == [0.0, 0.0, 1.0]


def test_a_missing_answer_names_the_column_that_has_it(tiny_folder, tmp_path):
    settings = {"user_prompt": "{question}", "reward_funcs": ["accuracy"]}
    findings = checked(tmp_path, tiny_folder, QUESTIONS, **settings)
    [problem] = findings.problems
    assert "set rename_columns: {solution: answer}" in problem.message
    assert "Did you mean" not in problem.message
    findings = checked(tmp_path, tiny_folder, VERL, reward_funcs=["accuracy"])
    assert "rename_columns: {solution: reward_model.ground_truth}" in str(findings.problems[0])


def test_init_takes_a_template_and_says_that_input_is_closed(
    tiny_folder, tmp_path, monkeypatch, capsys
):
    said = iter(["{qestion}", "{question} Be brief.", ""])
    monkeypatch.setattr("builtins.input", lambda question: next(said))
    monkeypatch.setattr("sys.argv", ["grpo-ext"])
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "rows.jsonl", QUESTIONS)
    assert main(["init", "rows.jsonl", str(tiny_folder)]) == 0
    assert "nor a template with such columns in braces" in capsys.readouterr().out
    recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())
    assert recipe["user_prompt"] == "{question} Be brief."
    assert recipe["reward_funcs"] == ["accuracy"]

    def closed(question):
        raise EOFError

    monkeypatch.setattr("builtins.input", closed)
    assert main(["init", "rows.jsonl", str(tiny_folder), "--output", "other"]) == 2
    assert "Standard input is closed" in capsys.readouterr().err
    assert not (tmp_path / "other").exists()


def test_a_known_column_of_identifiers_is_no_prompt():
    rows = [{"task": f"task-{n:03}", "words": f"Say {n} twice.", "answer": "yes"} for n in range(N)]
    found = propose(rows)
    assert found.prompt.startswith("TO DO:") and found.prompt.endswith("{words}")
    assert found.questions


def test_a_function_that_only_the_tests_name_is_noted():
    tests = [
        "from math import floor",
        "assert set(shared((1, 2))) == {1}",
        "assert shared(()) == []",
    ]
    rows = [{"prompt": f"Find the numbers in both lists, {n}.", "tests": tests} for n in range(N)]
    findings = Findings()
    check_tests(rows, False, findings)
    assert "such as row 1, do not name the function that their tests call" in str(findings.notes[0])
    for row in rows:
        row["prompt"] += f"\n{tests[1]}"
    findings = Findings()
    check_tests(rows, False, findings)
    assert not findings.notes
