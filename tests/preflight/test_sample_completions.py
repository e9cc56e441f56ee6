"""`grpo-ext check --sample N`: the rewards on completions that the model writes."""

from __future__ import annotations

import json
import statistics

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext import load_recipe
from grpo_ext.cli.main import main
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.sample_completions import rows_of_groups, training_decoding

PLUGIN = '''
from grpo_ext.rewards import register


@register("words")
def words(completions, **columns):
    """Counts characters."""
    return [float(len(str(text)) % 3) for text in completions]


@register("constant")
def constant(completions, **columns):
    """Gives all the same."""
    return [0.25] * len(completions)


@register("by_prompt")
def by_prompt(prompts, completions, **columns):
    """Scores the prompt alone."""
    return [float(len(str(prompt))) + 7 * str(prompt).count("6") for prompt in prompts]


@register("broken")
def broken(completions, **columns):
    """Fails on all but made-up completions."""
    if completions[0] and not completions[0].startswith(("I have thought", "<think>", "I work")):
        raise ValueError("no such word")
    return [float(len(str(text)) % 3) for text in completions]


@register("mostly_nan")
def mostly_nan(completions, **columns):
    """Fails on three of four completions."""
    failing = len(completions) // 4 * 3
    return [float("nan")] * failing + [1.0] * (len(completions) - failing)
'''
VALUES = {
    "use_cpu": True,
    "bf16": False,
    "num_problems": 40,
    "max_numbers": 3,
    "max_number": 9,
    "max_completion_length": 12,
    "per_device_train_batch_size": 8,
    "num_generations": 4,
    "max_steps": 2,
    "report_to": "none",
    "gradient_checkpointing": False,
}


@pytest.fixture
def path(tiny_folder, tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(PLUGIN)
    recipe = {
        **VALUES,
        "model_name_or_path": str(tiny_folder),
        "reward_plugins": [str(plugin)],
        "reward_funcs": ["words", "constant"],
        "output_dir": str(tmp_path / "out"),
    }
    file = tmp_path / "recipe.yaml"
    file.write_text(json.dumps(recipe))
    return str(file)


def test_completions_of_the_model_are_scored(path, capsys):
    assert main(["check", "--config", path, "--sample", "6"]) == 0
    out = capsys.readouterr().out
    assert "samples  8 completions, 4 of each prompt, at temperature 1:" in out
    assert out.count("tokens") >= 8 and out.count("words ") >= 8
    constant = "reward 'constant' gave the same score, 0.25, to all 8 sampled completions"
    assert constant in out
    assert "reward 'words' gave the same score" not in out
    assert "groups   2 of 2 have completions with different rewards" in out

    assert main(["check", "--config", path, "--sample", "6", "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert_groups([c["row"] for c in samples["completions"]], 2, 4)
    assert len({c["text"] for c in samples["completions"]}) == 8
    scores = [c["rewards"]["words"] for c in samples["completions"]]
    assert samples["rewards"]["words"]["mean"] == pytest.approx(statistics.fmean(scores))
    stds = [statistics.pstdev(scores[:4]), statistics.pstdev(scores[4:])]
    assert samples["rewards"]["words"]["std"] == pytest.approx(statistics.fmean(stds))
    assert samples["groups"] == {"count": 2, "size": 4, "differ": 2}
    assert all(0 < c["length"] <= 12 for c in samples["completions"])


@pytest.mark.parametrize(
    ("num_generations", "count", "groups", "size"),
    [(4, 1, 1, 1), (4, 3, 1, 3), (4, 4, 1, 4), (4, 5, 2, 4), (2, 5, 3, 2), (8, 8, 2, 4)],
)
def test_whole_groups_are_sampled(path, num_generations, count, groups, size):
    values = {"num_generations": num_generations}
    figures = check_recipe(path, values, num_samples=count).figures["samples"]
    assert (figures["groups"]["count"], figures["groups"]["size"]) == (groups, size)
    assert_groups([completion["row"] for completion in figures["completions"]], groups, size)


def assert_groups(rows, groups, size):
    """Whole groups, each of another row."""
    firsts = rows[::size]
    assert rows == [row for row in firsts for _ in range(size)]
    assert len({*firsts}) == groups


NOTHING_TO_LEARN = "sound, but nothing to learn from yet: no reward with a nonzero weight gave"


def test_the_verdict_says_that_equal_scores_teach_nothing(path, capsys):
    words = ["check", "--config", path, "--sample", "4", "--reward_funcs"]
    assert main([*words, "[constant]"]) == 0
    last_line = capsys.readouterr().out.splitlines()[-1]
    assert NOTHING_TO_LEARN in last_line and "warm start" in last_line

    assert main([*words, "[{name: words, weight: 0}, constant]"]) == 0  # weight 0: a metric only
    assert NOTHING_TO_LEARN in capsys.readouterr().out.splitlines()[-1]

    assert main([*words, "[words, constant]"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{path}: sound"


def test_scores_that_differ_only_between_prompts_teach_nothing(path, capsys):
    words = ["check", "--config", path, "--sample", "16", "--reward_funcs", "[by_prompt]"]
    assert main([*words, "--json"]) == 0
    samples = json.loads(capsys.readouterr().out)["samples"]
    assert len({c["rewards"]["by_prompt"] for c in samples["completions"]}) > 1
    assert samples["rewards"]["by_prompt"]["std"] == 0
    assert samples["groups"] == {"count": 4, "size": 4, "differ": 0}

    assert main(words) == 0
    out = capsys.readouterr().out
    assert "groups   0 of 4 have completions with different rewards" in out
    assert "std within a group 0\n" in out
    assert "same prompt (groups with different rewards: 0 of 4)" in out.splitlines()[-1]


@pytest.mark.parametrize(
    ("rewards", "count", "differ"),
    [("constant", 4, 0), ("constant", 1, None), ("words", 4, 1)],
)
def test_the_figures_say_in_how_many_groups_scores_differ(path, rewards, count, differ):
    findings = check_recipe(path, {"reward_funcs": [rewards]}, num_samples=count)
    assert findings.figures["samples"]["groups"]["differ"] == differ


def test_without_sample_the_verdict_says_less(path, capsys):
    assert main(["check", "--config", path]) == 0
    out = capsys.readouterr().out
    assert "'constant' gave 0.25 to each of 3 made-up completions" in out
    assert "say little about a reward that judges wording" in out and "check --sample 8" in out
    assert "samples  " not in out
    hint = "equal scores of made-up completions say little: try --sample 8"
    assert hint in out
    assert main(["check", "--config", path, "--reward_funcs", "[words]"]) == 0
    assert hint not in capsys.readouterr().out
    assert main(["check", "--config", path, "--sample", "2"]) == 0
    assert hint not in capsys.readouterr().out


def test_rows_are_repeated_if_there_are_too_few(path):
    recipe = {"num_problems": 8, "per_device_train_batch_size": 8}
    samples = check_recipe(path, recipe, num_samples=40).figures["samples"]
    rows = [c["row"] for c in samples["completions"]][::4]
    assert sorted(rows[:8]) == [*range(8)] and rows[8:] == rows[:2]


def test_each_task_is_sampled_before_any_is_sampled_twice():
    rows = [{"task": task} for task in ("a", "a", "a", "b", "c", "b")]
    numbers = rows_of_groups(rows, 8)
    assert sorted(rows[number]["task"] for number in numbers[:3]) == ["a", "b", "c"]
    assert sorted(numbers[:6]) == [*range(6)] and numbers[6:] == numbers[:2]
    assert rows_of_groups(rows, 8) == numbers


def test_sampled_rows_are_not_the_first_ones():
    numbers = rows_of_groups([{}] * 100, 8)
    assert len({*numbers}) == 8 and max(numbers) > 50


def test_a_reward_that_fails_on_the_models_completions_is_a_problem(path, capsys):
    words = ["--reward_funcs", "[words, broken]"]
    assert main(["check", "--config", path, *words]) == 0
    capsys.readouterr()
    assert main(["check", "--config", path, *words, "--sample", "4"]) == 1
    assert (
        "reward 'broken' fails on every sampled completion: ValueError: no such word"
        in capsys.readouterr().out
    )


def test_more_failures_than_training_allows_are_a_problem(path, capsys):
    words = ["check", "--config", path, "--reward_funcs", "[words, mostly_nan]", "--sample", "4"]
    assert main(words) == 1
    out = capsys.readouterr().out
    assert "reward 'mostly_nan' fails more often than training allows: on 3 of 4 sampled" in out
    assert "if the reward fails on more than 50% of completions (`reward_max_failure_rate`)" in out

    assert main([*words, "--reward_max_failure_rate", "0.8"]) == 0
    out = capsys.readouterr().out
    assert "reward 'mostly_nan' fails on 3 of 4 sampled completions, which get no score" in out
    assert "more than 80% of completions (`reward_max_failure_rate`)" in out


def test_completions_are_sampled_as_the_recipe_says(path):
    """`top_k: 1` leaves one token, so that the seed does not matter."""
    greedy = [
        check_recipe(path, {"top_k": 1, "seed": seed}, num_samples=3).figures["samples"]
        for seed in (1, 2)
    ]
    sampled = [
        check_recipe(path, {"seed": seed}, num_samples=3).figures["samples"] for seed in (1, 2)
    ]
    assert texts(greedy[0]) == texts(greedy[1])
    assert texts(sampled[0]) != texts(sampled[1])


def texts(samples):
    return [completion["text"] for completion in samples["completions"]]


def test_all_options_of_sampling_count(tiny_folder):
    values = {
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 7,
        "min_p": 0.1,
        "repetition_penalty": 1.1,
        "generation_kwargs": {"no_repeat_ngram_size": 3},
        "logprob_policy": "model",
    }
    recipe = load_recipe(None, {**VALUES, **values, "model_name_or_path": str(tiny_folder)})
    model = AutoModelForCausalLM.from_pretrained(tiny_folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    config = training_decoding(recipe.flat).generation_config(tokenizer, model)
    for name, value in {**values, **values["generation_kwargs"]}.items():
        if name not in ("generation_kwargs", "logprob_policy"):
            assert getattr(config, name) == value
    assert config.do_sample and config.max_new_tokens == 12


def test_what_a_model_writes_stays_in_its_lines(capsys):
    from grpo_ext.cli.check import print_samples

    hostile = "\x1b[2J[bold]x[/bold]\r\u202eend\nnote     all is well" + "y" * 1000
    completion = {
        "row": 0,
        "text": hostile,
        "length": 9,
        "finish_reason": "length",
        "rewards": {"a\x1b": 0.5, "b": None},
    }
    print_samples(
        {
            "temperature": 1.0,
            "completions": [completion],
            "rewards": {"a": {"mean": 0.5, "std": 0}},
            "groups": {"count": 1, "size": 1, "differ": None},
        }
    )
    out = capsys.readouterr().out
    assert "\x1b" not in out and "\r" not in out and "\u202e" not in out
    assert "[bold]x[/bold]" in out
    assert "         | note     all is well" in out
    assert "row 1, 9 tokens, cut off: a\\x1b 0.5, b -" in out
    assert len(out) < 700


def test_a_model_that_is_elsewhere_is_noted(path, capsys):
    words = ["--model_name_or_path", "nobody/nothing", "--elsewhere", "--sample", "4"]
    assert main(["check", "--config", path, *words]) == 0
    assert "samples  " not in capsys.readouterr().out
