"""The GSM8K demo: its demonstrations show slips and nothing held out, its parts fit each other, and
it runs, in small, with real processes."""

from __future__ import annotations

import json
import operator
import re
from collections import Counter
from dataclasses import replace

import pytest

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.demo.demos import DEMOS
from grpo_ext.demo.pipeline import run_demo
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from grpo_ext.rewards import build
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tiny.word_problems import word_problem_demonstrations
from tests.support.logs import json_rows
from tests.support.places import REPO
from tests.support.small_demo import launched, shortened

NO_SLIPS = {"stop_early": 0.0, "wrong_operation": 0.0, "untidy": 0.0, "bare": 0.0}
EQUATION = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)")
STEP = re.compile(r"\d+([-+*/])\d+=(\d+)")


def demonstrate(**slips: float) -> list[tuple[str, str, str]]:
    """1,500 questions, their reference answers, and what the demonstrations say."""
    task = GSM8K(max_number=12)
    answers = {row["question"]: row["answer"] for row in task.generate("train")}
    rows = word_problem_demonstrations(task, 1_500, **{**NO_SLIPS, **slips})
    shown = [(row["prompt"][-1]["content"], row["completion"][0]["content"]) for row in rows]
    return [(question, answers[question], text) for question, text in shown]


def test_no_held_out_problem_is_shown():
    held_out = {row["question"] for row in GSM8K(max_number=12).generate("test")}
    shown = {question for question, _, _ in demonstrate()}
    assert len(held_out) == 256 and len(shown) > 800
    assert not held_out & shown


def test_every_equation_is_right():
    task = GSM8K(max_number=12)
    equations = []
    for row in word_problem_demonstrations(task, 1_500, wrong_operation=0.5, bare=0.5):
        found = EQUATION.findall(row["completion"][0]["content"])
        assert (
            len(found) == 8
            if row["prompt"][-1]["content"] == "Calculate."
            else 1 <= len(found) <= 2
        )
        equations += found
    values = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}
    for x, sign, y, result in equations:
        assert values[sign](int(x), int(y)) == int(result) > 0
    assert {sign for _, sign, _, _ in equations} == set("+-*/")


def test_without_slips_every_problem_is_solved_in_the_strict_form():
    _, answers, texts = map(list, zip(*demonstrate(), strict=True))
    assert set(build("accuracy")(completions=texts, solution=answers)) == {1.0}
    assert set(build("format", mode="strict")(completions=texts)) == {1.0}


def test_slips_are_as_frequent_as_asked_for():
    # at least 700 draws each: four standard errors are at most 7.5 points
    two_steps = [text for _, answer, text in demonstrate(stop_early=0.6) if answer.count("<<") == 2]
    assert len(two_steps) > 700
    assert sum(text.count("=") == 1 for text in two_steps) / len(two_steps) == pytest.approx(
        0.6, abs=0.075
    )
    tidy = build("format")(completions=[text for _, _, text in demonstrate(untidy=0.25)])
    assert sum(tidy) / len(tidy) == pytest.approx(0.75, abs=0.06)
    rows = list(word_problem_demonstrations(GSM8K(max_number=12), 1_500, bare=0.25))
    bare = sum(row["prompt"][-1]["content"] == "Calculate." for row in rows)
    assert bare / len(rows) == pytest.approx(0.25, abs=0.06)


def test_the_seed_fixes_everything():
    first, again, other = (
        list(word_problem_demonstrations(GSM8K(), 50, seed=seed)) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_a_wrong_operation_is_carried_on_to_the_answer():
    wrong = []
    for _, answer, text in demonstrate(wrong_operation=0.5):
        made = STEP.findall(text)
        reference = STEP.findall(re.sub("<<.*?>>", "", answer))
        assert len(made) == len(reference)
        wrong.append([sign for sign, _ in made] != [sign for sign, _ in reference])
        assert text.endswith(f"</think>\n<answer>\n{made[-1][1]}\n</answer>")
    # half of one step, three quarters of two, less where no other operation is possible
    assert 0.4 < sum(wrong) / len(wrong) < 0.7


def test_tags_are_missing_doubled_or_swapped():
    texts = [text for _, _, text in demonstrate(untidy=1.0)]
    assert set(build("format")(completions=texts)) == {0.0}
    shares = Counter(build("tag_count")(completions=texts))
    assert set(shares) == {0.75, 1.0}  # swapped tags are all there, once each
    assert shares[0.75] / len(texts) == pytest.approx(2 / 3, abs=0.05)  # four standard errors


def test_what_is_prepared_fits_the_recipes(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    demo = DEMOS["gsm8k"]
    recipe = load_recipe(REPO / "recipes" / demo.recipe)
    sft = load_sft_recipe(REPO / "recipes" / demo.sft_recipe)
    demo.prepare(recipe.task, tmp_path, 0)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.vocab_size == len(tokenizer)

    rows = json_rows(tmp_path / "demonstrations.jsonl")
    assert (
        len(rows) == sft.training.max_steps * sft.training.per_device_train_batch_size
    )  # each is seen once
    for row in rows[:500]:
        (completion,) = row["completion"]
        ids = tokenizer(completion["content"]).input_ids
        assert tokenizer.decode(ids) == completion["content"]
        (prompt,) = encode_prompts([row["prompt"]], tokenizer)
        assert len(prompt) + len(ids) + 2 <= sft.training.max_length  # nothing is cut
        if "<answer>" in completion["content"]:
            assert len(ids) < recipe.training.max_completion_length
    # one token a digit, the same one behind a space, a sign or a digit
    assert [tokenizer.decode(i) for i in tokenizer("8 18+8=26").input_ids] == list("8 18+8=26")
    assert len({i for i in tokenizer("8 8+8").input_ids if "8" in tokenizer.decode(i)}) == 1


SMALL = {
    "max_steps": 2,
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "max_completion_length": 24,
    "eval_steps": 2,
    "num_problems": 64,
    "num_test_problems": 8,
    "save_steps": 2,
}


@pytest.mark.slow
def test_the_demo_in_small_runs_from_nothing_to_its_report(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("grpo_ext.demo.pipeline.launch", launched)
    demo = DEMOS["gsm8k"]
    small = replace(
        demo,
        recipe=shortened(demo.recipe, tmp_path, SMALL),
        sft_recipe=shortened(demo.sft_recipe, tmp_path, {"max_steps": 2}),
    )
    run_demo(small, tmp_path / "run")
    for when in ("before", "after"):
        summary = json.loads((tmp_path / "run" / f"eval_{when}.json").read_text())
        assert summary["n"] == 8
        assert set(summary["greedy"]) >= {
            "accuracy",
            "accuracy_se",
            "format",
            "tag_count",
            "length",
        }
    assert (tmp_path / "run" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    said, _ = capfd.readouterr()
    assert "rewards: format x 0.5, tag_count x 0.5, accuracy x 1" in said
