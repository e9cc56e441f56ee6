"""Environments that fail, and prompts with their tools and the text of `reset`, before a model is
loaded.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import trl
from transformers import AutoModelForCausalLM, AutoTokenizer

from grpo_ext.cli.check import print_findings
from grpo_ext.common import stopwatch
from grpo_ext.environments.base import environment_class
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.preflight.forecast import prompt_tokens
from grpo_ext.preflight.loaded_recipe import check_start
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from tests.support.broken_environments import BROKEN, FINE, STEP, recipe_values, write

TEMPLATE = Path(trl.__file__).parent / "chat_templates" / "qwen2_5.jinja"


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_environment_is_named_with_file_and_line(name, tiny_folder, tmp_path):
    methods, words = BROKEN[name]
    file = write(tmp_path, methods)
    check_named(tmp_path, tiny_folder, file, words, name)


@pytest.mark.parametrize("name", ["raises", "another signature", "async", "reset", "a text"])
def test_so_is_one_whose_code_runs_in_threads(name, tiny_folder, tmp_path):
    methods, words = BROKEN[name]
    file = write(tmp_path, methods)
    check_named(tmp_path, tiny_folder, file, words, name, threads=2)


def check_named(tmp_path, tiny_folder, file, words, name, **rules):
    recipe = recipe_values(tmp_path, tiny_folder, {"name": f"{file}:World", **rules})
    findings = check_recipe(None, recipe)
    told = [problem for problem in (*findings.problems, *findings.notes) if words in str(problem)]
    assert told, (findings.problems, findings.notes)
    assert told[0].key == "environment"
    assert re.search(rf"\({re.escape(str(file))}:\d+, in \w+\)", told[0].message)
    assert findings.sound == (name == "from the second turn on")
    if not findings.sound:
        with pytest.raises(RecipeError, match=re.escape(words)):  # so does the start of a run
            loaded = load_recipe(None, recipe)
            check_start(loaded, loaded.task.dataset(dataset_name=recipe["dataset_name"]))


@pytest.mark.parametrize(
    ("methods", "words"),
    [
        ("", "has neither `step` nor tools, so nothing answers the model. Define"),
        ("    def steps(self, text):\n        return '', True", "Did you mean 'steps'?"),
    ],
)
def test_an_environment_that_cannot_answer_is_refused(methods, words, tiny_folder, tmp_path):
    file = write(tmp_path, methods)
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, f"{file}:World"))
    assert [words in str(problem) for problem in findings.problems] == [True]


def test_a_package_that_is_missing_is_one_problem(tiny_folder, tmp_path, monkeypatch):
    """Without it there are no rows for training or for evaluation either."""
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    world = {"name": "gymnasium:FrozenLake-v1"}
    recipe = recipe_values(
        tmp_path, tiny_folder, world, task="environment", dataset_name=None, eval_strategy="steps"
    )
    findings = check_recipe(None, recipe)
    [problem] = findings.problems
    assert problem.key == "environment" and "pip install 'gymnasium>=1.0,<2'" in problem.message
    assert "evaluation" not in findings.figures


RESET = f"{FINE}    def reset(self, row):\n        "
HAS = "the row has no column 'level'. Its columns: prompt, seed"


@pytest.mark.parametrize(
    ("methods", "reason", "advice"),
    [
        (f"{RESET}row['level']", HAS, "Add the column to the rows, or read one that they have."),
        (f"{RESET}{{}}['level']", "KeyError: 'level'", "Correct it there."),
        (f"{RESET}return {{}}", "dict instead of a string", "Define `reset(self, row)`, which"),
        (f"{FINE}    def reset(self):\n        pass", "2 were given", "Define `reset(self, row)`"),
        (f"{STEP}return text[10_000], True", "IndexError", "Correct it there."),
        (f"{STEP}return 'no'", "must return two values", "Define `step(self, text)`, which"),
    ],
)
def test_the_advice_fits_the_failure(methods, reason, advice, tiny_folder, tmp_path):
    file = write(tmp_path, methods)
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, f"{file}:World"))
    [problem] = findings.problems
    assert reason in problem.message and advice in problem.message
    assert ("Define" in problem.message) == advice.startswith("Define")


def test_a_class_of_another_kind_is_told_which_column_its_rows_lack(tiny_folder, tmp_path):
    file = tmp_path / "world.py"
    file.write_text("class World:\n    def reset(self, level, **row):\n        return ''\n")
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, f"{file}:World"))
    [problem] = findings.problems
    assert HAS in problem.message and "Add the column to the rows" in problem.message


def test_a_row_is_a_dict_whose_missing_columns_have_defaults(tiny_folder, tmp_path):
    asks = "assert row.get('level') is None and 'level' not in row and row['seed']"
    file = write(tmp_path, f"{RESET}{asks}")
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, f"{file}:World"))
    assert findings.sound


def test_a_failure_on_some_completions_is_a_note(tiny_folder, tmp_path):
    file = write(tmp_path, STEP + "return text[0], True")
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, f"{file}:World"))
    [note] = [note for note in findings.notes if note.key == "environment"]
    assert (
        findings.sound
        and "some calls of step fail in trial episodes with made-up turns (1 of 3 that were tried)"
        in note.message
    )
    assert f"({file}:9, in step)" in note.message and "IndexError" in note.message
    assert findings.figures["rewards"]["scores"]["environment"] == [None, 0.0, 0.0]


class Clock:
    """A clock that only an environment moves."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        return self.now

    def move(self, seconds):
        self.now += seconds


@pytest.mark.parametrize(
    ("step", "seconds", "threads", "noted"),
    [
        ("def step", 2.0, None, True),
        ("def step", 0.1, None, False),
        ("def step", 2.0, 4, False),
        ("async def step", 2.0, None, False),
    ],
    ids=["slow", "fast", "threads", "async"],
)
def test_slow_code_for_which_episodes_wait_is_noted(
    step, seconds, threads, noted, tiny_folder, tmp_path, monkeypatch
):
    monkeypatch.setattr(stopwatch, "time", Clock())
    file = write(
        tmp_path,
        f"    {step}(self, text):\n"
        "        from grpo_ext.common import stopwatch\n"
        f"        stopwatch.time.move({seconds})\n"
        "        return 'go on', False",
    )
    world = {"name": f"{file}:World", "threads": threads}
    if threads is None:
        del world["threads"]
    findings = check_recipe(None, recipe_values(tmp_path, tiny_folder, world))
    assert findings.sound, findings.problems
    told = [
        n.message for n in findings.notes if "wait for their replies one at a time" in n.message
    ]
    assert len(told) == noted
    assert not told or "reply to a turn takes 2 s" in told[0]


def test_a_class_of_another_kind_is_told_that_its_step_is_a_tool(tool_model, tmp_path):
    file = tmp_path / "world.py"
    file.write_text(
        "class World:\n"
        "    def reset(self, **row):\n        pass\n\n"
        "    def step(self, text: str) -> str:\n"
        '        """Take a step.\n\n        Args:\n            text: Which.\n        """\n'
        "        return 'done'\n"
    )
    recipe = recipe_values(tmp_path, tool_model[0], f"{file}:World", max_completion_length=500)
    findings = check_recipe(None, recipe)
    assert findings.sound, findings.problems
    assert [n for n in findings.notes if "its method `step` is a tool" in n.message]


TALKING = (
    "    def reset(self, row):\n        return 'The board is empty. ' * LENGTH\n"
    "    def tools(self):\n        return [self.place]\n"
    "    def place(self, column: int) -> str:\n"
    '        """Place a stone.\n\n        Args:\n            column: From the left.\n        """\n'
    "        return 'placed'"
)


@pytest.fixture
def tool_model(tiny_folder, tmp_path):
    """The tiny model with a chat template that describes tools."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    tokenizer.chat_template = TEMPLATE.read_text()
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(tiny_folder).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder, tokenizer


def test_the_prompt_is_the_one_that_the_model_reads(tool_model, tmp_path):
    folder, tokenizer = tool_model
    file = write(tmp_path, TALKING.replace("LENGTH", "2"))
    findings = check_recipe(
        None, recipe_values(tmp_path, folder, f"{file}:World", max_completion_length=1000)
    )
    assert findings.sound, findings.problems
    prompts = findings.figures["prompts"]
    assert "From the left." in prompts["first"] and prompts["first"].count("The board is") == 2
    world = environment_class(f"{file}:World")()
    said = "Play game 0.\n" + "The board is empty. " * 2
    wanted = tokenizer.apply_chat_template(
        [{"role": "user", "content": said}], tools=world.tools(), add_generation_prompt=True
    )["input_ids"]
    assert prompts["first"] == tokenizer.decode(wanted)
    assert prompts["tokens"]["min"] == len(wanted)


def test_a_prompt_that_only_reset_makes_too_long_is_a_problem(tool_model, tmp_path):
    folder, _ = tool_model
    file = write(tmp_path, TALKING.replace("LENGTH", "500"))
    findings = check_recipe(None, recipe_values(tmp_path, folder, f"{file}:World"))
    [problem] = findings.problems
    assert "None of the first 32 prompts leaves room" in problem.message
    assert "fills the whole context of 2048 tokens" in problem.message
    longest = findings.figures["prompts"]["tokens"]["max"]
    assert longest > 2048 and f"the longest prompt ({longest} tokens)" in problem.message


def test_a_plan_counts_the_same_prompt(tool_model, tmp_path):
    folder, _ = tool_model
    file = write(tmp_path, TALKING.replace("LENGTH", "2"))
    recipe = recipe_values(tmp_path, folder, f"{file}:World", max_completion_length=1000)
    mean = check_recipe(None, recipe).figures["prompts"]["tokens"]["mean"]
    assert prompt_tokens(load_recipe(None, recipe)) == pytest.approx(mean, rel=0.02)


LONG = {"max_completion_length": 1000}
TALKS = STEP + "return 'The board is still empty. ' * LENGTH, False"


def checked_lengths(folder, model, length, **values):
    """Check an environment that says `length` sentences after each turn."""
    file = write(folder, TALKS.replace("LENGTH", str(length)))
    world = {"name": f"{file}:World", **values.pop("rules", {})}
    return check_recipe(None, recipe_values(folder, model, world, **values))


def test_it_is_said_how_many_turns_fit(tiny_folder, tmp_path, capsys):
    findings = checked_lengths(tmp_path, tiny_folder, 1, rules={"turns": 5}, **LONG)
    assert findings.sound, findings.problems
    lengths = findings.figures["episodes"]
    shortest, longest = lengths["answers"]
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    said = "<|im_end|>\n<|im_start|>user\nThe board is still empty. "
    said += "<|im_end|>\n<|im_start|>assistant\n"
    assert shortest == longest == len(tokenizer(said)["input_ids"]) - 1  # the end of the turn
    assert (lengths["room"], lengths["turns"]) == (1000, 5)
    assert lengths["turn_tokens"] == (1000 - 4 * longest) // 5
    print_findings(findings, "mine.yaml")
    told = f"answers of {longest} to {longest} tokens with the chat template; max_completion_length"
    assert told in capsys.readouterr().out
    limited = checked_lengths(tmp_path, tiny_folder, 1, rules={"turn_tokens": 400}, **LONG)
    assert limited.figures["episodes"]["turns"] == 2 and not told_of_lengths(limited)


def told_of_lengths(findings) -> list[str]:
    told = [*findings.problems, *findings.notes]
    return [problem.message for problem in told if problem.key == "max_completion_length"]


@pytest.mark.parametrize(
    "length, room, rules, is_sound, words",
    [
        (1, 12, {}, False, "max_completion_length (12) leaves no room for a second turn "),
        (1, 12, {"turns": 1}, True, None),
        (1, 100, {}, True, None),
        (1, 60, {"turn_tokens": 50}, True, "after a first turn of 50 tokens (turn_tokens)"),
        (90, 60, {}, True, "and the longest are cut off, because max_completion_length (60)"),
    ],
    ids=["no turn", "one turn", "fits", "after a long turn", "cut off"],
)
def test_turns_and_answers_that_do_not_fit_are_told(
    length, room, rules, is_sound, words, tiny_folder, tmp_path
):
    found = checked_lengths(tmp_path, tiny_folder, length, rules=rules, max_completion_length=room)
    told = told_of_lengths(found)
    assert found.sound == is_sound and len(told) == (words is not None)
    assert words is None or words in told[0]


def test_the_smallest_length_that_is_named_is_enough(tiny_folder, tmp_path):
    [told] = told_of_lengths(
        checked_lengths(tmp_path, tiny_folder, 1, max_completion_length=3),
    )
    named = int(re.search(r"at least (\d+)\.$", told)[1])
    for room in (named - 1, named):
        found = checked_lengths(tmp_path, tiny_folder, 1, max_completion_length=room)
        assert found.sound == (room == named)


def test_tools_need_room_for_a_result(tool_model, tmp_path):
    folder, _ = tool_model
    file = write(tmp_path, TALKING.replace("LENGTH", "1"))
    recipe = recipe_values(tmp_path, folder, f"{file}:World", max_completion_length=20)
    findings = check_recipe(None, recipe)
    assert findings.sound and "leaves no room for a tool result" in told_of_lengths(findings)[0]
    enough = check_recipe(None, {**recipe, "max_completion_length": 400})
    assert enough.sound and enough.figures["episodes"]["answers"] is None
    assert enough.figures["episodes"]["turns"] == 8


def test_episodes_need_a_length(tiny_folder, tmp_path):
    for use_vllm in (False, True):
        found = checked_lengths(
            tmp_path, tiny_folder, 1, max_completion_length=None, use_vllm=use_vllm
        )
        assert "`max_completion_length: null`" in told_of_lengths(found)[0]
