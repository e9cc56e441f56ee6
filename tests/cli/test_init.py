"""`grpo-ext init`: recipes for data of five shapes, which the check accepts, and which train without an edit."""

import csv
import json

import pytest
import yaml
from bad_servers import routes, serving

from grpo_ext.cli.main import main
from grpo_ext.preflight.first_recipe import look
from grpo_ext.recipe.batch import batch_of
from grpo_ext.recipe.load import load_recipe

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
    "solutions.jsonl": "accuracy", "countdown.jsonl": "countdown", "problems.jsonl": "countdown", "choices.csv": "choice",
    "code.jsonl": "code", "free.jsonl": "like_reference",
}  # fmt: skip


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


@pytest.mark.parametrize("name", ROWS)
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
        "grpo-ext train --config mine/recipe.yaml" in printed
        and f"reward {WANTED[name]}, since" in printed
    )
    assert main(["init", name, str(tiny_folder), "--yes"]) == 2  # nothing is overwritten
    assert "is there already" in capsys.readouterr().err


@pytest.mark.slow
def test_what_it_writes_trains_without_an_edit(tiny_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["init", write(tmp_path, "free.jsonl"), str(tiny_folder), "--yes", "--lora"]) == 0
    assert (
        main(
            [
                "train",
                "--config",
                "mine/recipe.yaml",
                "--max_steps",
                "1",
                "--per_device_train_batch_size",
                "8",
            ]
        )
        == 0
    )
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
        return {
            "choices": [
                {"message": {"content": f"Score: {len(body['messages'][1]['content']) % 11}"}}
            ]
        }

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
    said = iter(["nonsense", "", "number"])
    monkeypatch.setattr("builtins.input", lambda question: next(said))
    assert main(["init", write(tmp_path, "solutions.jsonl"), str(tiny_folder)]) == 0
    assert "Write one of question, answer" in capsys.readouterr().out
    assert yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())["reward_funcs"] == [
        "number"
    ]


@pytest.mark.parametrize(
    ("row", "reward", "columns"),
    [
        ({"question": "a", "answer": "7"}, "number", {"solution": "answer"}),
        ({"question": "a", "solution": "Paris"}, "exact", {"solution": "solution"}),
        ({"question": "a", "answer": "(B)"}, "choice", {"solution": "answer"}),
        ({"prompt": "a", "answer": r"$\frac{1}{2}$"}, "accuracy", {"solution": "answer"}),
        ({"prompt": "a", "json_schema": "{}"}, "json_schema", {"json_schema": "json_schema"}),
        ({"prompt": "a", "answer": ""}, "like_reference", {}),
        ({"words of a title": "a", "body": "a b c d"}, "like_reference", {}),
    ],
)  # fmt: skip
def test_the_reward_that_fits(row, reward, columns):
    found = look([row] * 3)
    assert (found.reward, found.columns) == (reward, columns)


def test_rows_without_a_text_are_refused():
    with pytest.raises(ValueError, match="No column can be a prompt: a, b"):
        look([{"a": 1, "b": 2}])
