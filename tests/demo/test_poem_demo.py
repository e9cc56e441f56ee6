"""The poem demo: its demonstrations are careless as stated and show nothing held out, its parts fit
each other, and it runs, in small, with real processes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.demo.demos import DEMOS
from grpo_ext.demo.pipeline import run_demo
from grpo_ext.recipe.load import load_recipe, load_sft_recipe
from grpo_ext.rewards import build
from grpo_ext.rewards.poem import judge
from grpo_ext.rewards.poem.characters import level_groups, tones_of
from grpo_ext.rewards.poem.text import han
from grpo_ext.tasks.poem import Poem
from grpo_ext.tiny.verse import ENDS, FAVORITES, verse_demonstrations
from tests.support.logs import json_rows
from tests.support.places import REPO
from tests.support.small_demo import launched, shortened

TASK = Poem(system_prompt="", user_prompt="{lines}\n{pattern}\n{rhyme_group}")


def demonstrate(count: int = 1_500, **shares: float) -> list[tuple[list[str], str]]:
    """Given lines, and the completions of the demonstrations."""
    rows = verse_demonstrations(TASK, count, entries=0.0, **shares)
    shown = [(row["prompt"][-1]["content"], row["completion"][0]["content"]) for row in rows]
    return [([han(line) for line in prompt.splitlines()[:3]], text) for prompt, text in shown]


def parts(text: str) -> tuple[str, str, str]:
    """The tones and the group that a completion says, and its line."""
    think, tones, group, think_end, answer, line, answer_end = text.splitlines()
    assert (think, think_end, answer, answer_end) == (
        "<think>",
        "</think>",
        "<answer>",
        "</answer>",
    )
    return tones, group, line


def test_only_characters_of_training_poems_are_shown_and_no_line_of_a_held_out_one():
    known = {
        character for row in TASK.generate("train") for line in row["lines"] for character in line
    }
    held_out = {line for row in TASK.generate("test") for line in row["lines"]}
    shown = {line for given, text in demonstrate() for line in (*given, parts(text)[2])}
    assert len(held_out) > 250 and len(shown) == 6_000
    assert not held_out & shown
    assert {character for line in shown for character in line} <= known


def test_every_line_has_the_tones_that_were_said_and_the_group_is_that_of_the_given_lines():
    for given, text in demonstrate():
        tones, group, line = parts(text)
        assert tones == "".join(map(tones_of, line))
        assert group == judge([*given, ""]).rhyme_group
        assert len(set("".join(given) + line)) >= 3 * len(line)  # few characters come twice


def test_the_pattern_is_right_and_the_line_rhymes_as_often_as_stated():
    # at least 1,200 draws each: four standard errors are at most 5.3 points
    right = []
    rhymes = []
    others = set()
    for given, text in demonstrate(3_000, right_pattern=0.3, rhyme=0.3):
        tones, group, line = parts(text)
        wanted = judge([*given, ""]).pattern[-1]
        favorite = {5: "平平仄仄平", 7: "平平仄仄仄平平"}[len(line)]
        assert tones in (wanted, favorite)
        right += [tones == wanted] if wanted != favorite else []
        rhymes.append(level_groups(line[-1]) == (group,))
        others |= set() if rhymes[-1] else {line[-1]}
    assert len(right) > 1_200
    assert sum(right) / len(right) == pytest.approx(0.3, abs=0.053)
    assert sum(rhymes) / len(rhymes) == pytest.approx(0.3, abs=0.034)
    assert len(others) == FAVORITES


def test_without_carelessness_both_rewards_are_full():
    given, texts = map(list, zip(*demonstrate(right_pattern=1.0, rhyme=1.0), strict=True))
    assert set(build("poem_format")(completions=texts, lines=given)) == {1.0}
    assert set(build("poem_yun")(completions=texts, lines=given)) == {1.0}


def test_entries_of_the_rhyme_book_are_right():
    entries = {}
    rows = list(verse_demonstrations(TASK, 1_500, entries=0.4))
    for row in rows:
        if "\n" not in row["prompt"][-1]["content"]:
            entries.setdefault(row["prompt"][-1]["content"], []).append(
                row["completion"][0]["content"]
            )
    assert sum(map(len, entries.values())) / len(rows) == pytest.approx(0.4, abs=0.05)
    assert (
        len(entries) > 25 and max(len(text) for texts in entries.values() for text in texts) == ENDS
    )
    for group, texts in entries.items():
        assert len(set(map(frozenset, texts))) == 1 and len(set(texts[0])) == len(texts[0])
        assert all(level_groups(c) == (group,) and tones_of(c) == "平" for c in texts[0])
    held_out = [judge([*row["lines"][:3], ""]).rhyme_group for row in TASK.generate("test")]
    assert set(held_out) <= set(entries)


def test_the_seed_fixes_everything():
    first, again, other = (list(verse_demonstrations(TASK, 50, seed=seed)) for seed in (1, 1, 2))
    assert first == again != other


def test_what_is_prepared_fits_the_recipes(tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    demo = DEMOS["poem"]
    recipe = load_recipe(REPO / "recipes" / demo.recipe)
    sft = load_sft_recipe(REPO / "recipes" / demo.sft_recipe)
    assert recipe.task == TASK
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
        assert len(ids) < recipe.training.max_completion_length
        if (
            "\n" in completion["content"]
        ):  # one token a character, a line break, a tag and the group's name
            tones, _, line = parts(completion["content"])
            assert len(ids) == 4 + 6 + 1 + len(tones) + len(line)


SMALL = {
    "max_steps": 2,
    "per_device_train_batch_size": 16,
    "num_generations": 4,
    "eval_steps": 2,
    "save_steps": 2,
}


@pytest.mark.slow
def test_the_demo_in_small_runs_from_nothing_to_its_report(tmp_path, monkeypatch, capfd):
    monkeypatch.setattr("grpo_ext.demo.pipeline.launch", launched)
    demo = DEMOS["poem"]
    small = replace(
        demo,
        recipe=shortened(demo.recipe, tmp_path, SMALL),
        sft_recipe=shortened(demo.sft_recipe, tmp_path, {"max_steps": 2}),
    )
    run_demo(small, tmp_path / "run")
    for when in ("before", "after"):
        summary = json.loads((tmp_path / "run" / f"eval_{when}.json").read_text())
        assert summary["n"] == len(list(TASK.generate("test")))
        assert set(summary["greedy"]) >= {"poem_format", "poem_format_se", "poem_yun", "length"}
    assert (tmp_path / "run" / "curves.png").read_bytes()[:4] == b"\x89PNG"
    said, _ = capfd.readouterr()
    assert "poem_format 0" in said and "poem_yun 0" in said  # what each reward said of a completion
