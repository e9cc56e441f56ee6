"""`grpo-ext init` with a pretrained model's folder, on rows in the shapes of published data."""

from __future__ import annotations

import json

import psutil
import pytest
import yaml

from grpo_ext.cli.main import main
from grpo_ext.tasks.instructions import Instructions
from tests.support.logs import write_json_rows


def word_problems() -> list[dict[str, str]]:
    """Rows in the shape of GSM8K."""
    rows = []
    for boxes in range(2, 42):
        each = boxes % 7 + 3
        total = boxes * each
        rows.append(
            {
                "question": f"Maria packs {boxes} boxes with {each} apples each. She then sells "
                f"{boxes} apples. How many apples does she have left?",
                "answer": f"Maria packs {boxes} * {each} = <<{boxes}*{each}={total}>>{total} "
                f"apples.\nShe has {total} - {boxes} = <<{total}-{boxes}={total - boxes}>>"
                f"{total - boxes} apples left.\n#### {total - boxes}",
            }
        )
    return rows


def requests() -> list[dict[str, object]]:
    """Rows that the task `instructions` generates."""
    return [dict(row) for row in Instructions(num_problems=40).dataset("train", prompts=False)]


@pytest.mark.parametrize(
    "rows, reward, lora",
    [(word_problems, "accuracy", []), (requests, "instructions", ["--lora"])],
    ids=["word problems", "requests"],
)
def test_the_first_recipe_passes_the_check(
    smollm2, tmp_path, monkeypatch, capsys, rows, reward, lora
):
    monkeypatch.chdir(tmp_path)
    write_json_rows(tmp_path / "rows.jsonl", rows())
    assert main(["init", "rows.jsonl", str(smollm2), "--yes", *lora]) == 0, capsys.readouterr().out
    recipe = yaml.safe_load((tmp_path / "mine" / "recipe.yaml").read_text())
    assert recipe["reward_funcs"] == [reward]
    assert float(recipe["learning_rate"]) == (5e-4 if lora else 1e-6)
    capsys.readouterr()
    assert main(["check", "--config", "mine/recipe.yaml"]) == 0, capsys.readouterr().out
    capsys.readouterr()
    assert main(["plan", "--config", "mine/recipe.yaml", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    trainable = 4_884_480 if lora else 134_515_008
    assert plan["model"] == {"parameters": 134_515_008, "trainable": trainable}
    # 32 where a step of 64 would make the run longer than an evening, by the speed of this machine
    assert plan["batch"]["completions_per_step"] in (32, 64)
    assert 30 < plan["prompt_tokens"] < 80
    assert plan["memory_bytes"]["total"] < psutil.virtual_memory().total
