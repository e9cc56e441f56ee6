"""`max_prompt_tokens` and `max_answer_tokens`.

Which rows of a dataset stay, and what is refused.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from datasets import load_dataset
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from grpo_ext.cli.main import main
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.run.from_recipe import eval_rows, train_rows
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tasks.row_lengths import LengthFilter
from tests.support.logs import write_json_rows

STORIES = {"task": "gsm8k", "num_problems": 300, "num_test_problems": 80, "use_cpu": True}


def recipe(folder: Path, **values):
    return load_recipe(None, {"model_name_or_path": str(folder), **STORIES, **values})


@pytest.fixture(scope="module")
def tokenizer(tiny_folder):
    return AutoTokenizer.from_pretrained(tiny_folder)


def prompt_tokens(tokenizer, prompt, **kwargs) -> int:
    """The oracle: the prompt as text, one row at a time."""
    text = tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **kwargs
    )
    return len(tokenizer(text, add_special_tokens=False).input_ids)


def answer_tokens(tokenizer, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("rows_of", [train_rows, eval_rows])
def test_exactly_the_short_rows_stay_in_their_order(tiny_folder, tokenizer, rows_of, streaming):
    everything = list(rows_of(recipe(tiny_folder)))
    prompts = [prompt_tokens(tokenizer, row["prompt"]) for row in everything]
    answers = [answer_tokens(tokenizer, row["answer"]) for row in everything]
    longest_prompt = sorted(prompts)[len(prompts) // 2]
    longest_answer = sorted(answers)[len(answers) // 2]
    short = [
        row["question"]
        for row, prompt, answer in zip(everything, prompts, answers, strict=True)
        if prompt <= longest_prompt and answer <= longest_answer
    ]
    assert 10 < len(short) < len(everything) - 10
    limits = {"max_prompt_tokens": longest_prompt, "max_answer_tokens": longest_answer}
    limited = recipe(tiny_folder, **limits)
    assert [row["question"] for row in rows_of(limited, streaming=streaming)] == short
    few = recipe(tiny_folder, **limits, max_train_samples=7, max_eval_samples=7)
    assert [row["question"] for row in rows_of(few, streaming=streaming)] == short[:7]


def test_the_prompt_is_counted_with_the_options_of_the_template(tiny_folder, tmp_path, tokenizer):
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    template = "{{ 'x ' * (extra or 0) }}" + tokenizer.chat_template
    other = AutoTokenizer.from_pretrained(folder)
    other.chat_template = template
    other.save_pretrained(folder)
    counts = [prompt_tokens(other, row["prompt"]) for row in train_rows(recipe(folder))]
    limit = max(counts)
    longer = prompt_tokens(other, train_rows(recipe(folder))[0]["prompt"], extra=500)
    assert longer > limit
    assert len(train_rows(recipe(folder, max_prompt_tokens=limit))) == len(counts)
    for extra in ({"extra": 500}, '{"extra": 500}'):
        padded = recipe(folder, max_prompt_tokens=limit, chat_template_kwargs=extra)
        with pytest.raises(ValueError, match="none of the 300 rows remains"):
            train_rows(padded)


@pytest.mark.parametrize(
    ("prompts", "answers", "remedy"),
    [
        (1, None, "Raise max_prompt_tokens."),
        (None, 1, "Raise max_answer_tokens."),
        (1, 1, "Raise max_prompt_tokens and max_answer_tokens."),
        (99, 1, "Raise max_answer_tokens."),
        (3, 3, "Raise max_prompt_tokens or max_answer_tokens."),
    ],
)
def test_the_limit_to_raise_is_named(tokenizer, prompts, answers, remedy):
    lengths = LengthFilter(tokenizer, max_prompt_tokens=prompts, max_answer_tokens=answers)
    lengths.shortest_prompt = None if prompts is None else 2
    lengths.shortest_answer = None if answers is None else 2
    assert lengths.nothing_left(5).endswith(remedy)


@given(
    st.lists(st.text("ab 12\n", min_size=1, max_size=12), min_size=1, max_size=9),
    st.integers(1, 30),
)
def test_text_prompts_stay_by_their_own_length(tokenizer, texts, limit):
    from grpo_ext.tasks.prompts import Prompts

    lengths = LengthFilter(tokenizer, max_prompt_tokens=limit)
    stays = lengths.keeps(Prompts(), [{"prompt": text} for text in texts])
    assert stays == [len(tokenizer(text).input_ids) <= limit for text in texts]
    assert (lengths.read, lengths.kept) == (len(texts), sum(stays))


def test_real_rows_under_the_published_limits(tiny_folder, tokenizer, shared_data):
    file = str(shared_data / "gsm8k_train.jsonl")
    rows = load_dataset("json", data_files=file, split="train")
    task = GSM8K()
    short = sum(
        prompt_tokens(tokenizer, task.prompt(row)) <= 300
        and answer_tokens(tokenizer, row["answer"]) <= 200
        for row in rows
    )
    limits = {"max_prompt_tokens": 300, "max_answer_tokens": 200}
    found = train_rows(recipe(tiny_folder, dataset_name=file, **limits))
    assert len(found) == short and 0 < short < len(rows)


def test_reference_answers_of_own_data(tiny_folder, tokenizer, tmp_path):
    file = tmp_path / "rows.jsonl"
    rows = [
        {"question": f"{n}?", "worked": "1 + 1 = 2 " * n, "label": "short"} for n in range(1, 9)
    ]
    write_json_rows(file, rows)
    values = {"task": "prompts", "dataset_name": str(file), "user_prompt": "{question}"}
    values["rename_columns"] = {"solution": "worked"}
    limit = answer_tokens(tokenizer, rows[3]["worked"])
    own = load_recipe(
        None, {"model_name_or_path": str(tiny_folder), **values, "max_answer_tokens": limit}
    )
    assert [row["question"] for row in train_rows(own)] == ["1?", "2?", "3?", "4?"]


@pytest.mark.parametrize(
    ("row", "values", "message"),
    [
        ({"question": "1?"}, {}, "such as answer or solution, has a reference answer"),
        ({"question": "1?", "answer": 5}, {}, "reference answer in 'answer' is not a string: 5"),
        ({"nums": [1, 2, 3], "target": 6}, {"task": "countdown"}, "the task 'countdown' have no"),
    ],
)
def test_a_task_without_an_answer_refuses_the_limit(tiny_folder, tmp_path, row, values, message):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row) + "\n")
    base = values or {"task": "prompts", "user_prompt": "{question}"}
    settings = {"model_name_or_path": str(tiny_folder), "dataset_name": str(file), **base}
    with pytest.raises(ValueError, match=f"max_answer_tokens.*{message}"):
        train_rows(load_recipe(None, {**settings, "max_answer_tokens": 9}))
    settings |= {"max_answer_tokens": 9, "use_cpu": True, "output_dir": str(tmp_path / "run")}
    findings = check_recipe(None, settings)
    assert any(message in problem.message for problem in findings.problems)


def test_images_and_environments_are_refused(tiny_folder, tokenizer):
    from grpo_ext.tasks.prompts import Prompts

    with pytest.raises(ValueError, match="max_prompt_tokens counts the tokens of text"):
        LengthFilter(tokenizer, 9).keeps(Prompts(), [{"prompt": "a", "image": b"..."}])
    episodes = {"task": "guess", "environment": "guess", "max_prompt_tokens": 50}
    with pytest.raises(RecipeError, match="max_prompt_tokens cannot be combined with environment"):
        load_recipe(None, {"model_name_or_path": str(tiny_folder), **episodes})
    tasks = {"guess": {"max_prompt_tokens": 50}}
    with pytest.raises(RecipeError, match="tasks: guess: max_prompt_tokens cannot be combined"):
        load_recipe(None, {"model_name_or_path": "m", "tasks": tasks, "environment": "guess"})


def test_each_task_of_several_has_its_own_limit(tiny_folder, tokenizer):
    stories = {"task": "gsm8k", "num_problems": 90, "num_test_problems": 20}
    countdown = {"num_problems": 30, "min_numbers": 3, "max_numbers": 3, "max_number": 9}
    tasks = {"stories": stories, "countdown": countdown}
    everything = train_rows(
        load_recipe(None, {"model_name_or_path": str(tiny_folder), "tasks": tasks})
    )
    asked = [row["prompt"] for row in everything if row["task"] == "stories"]
    limit = sorted(prompt_tokens(tokenizer, prompt) for prompt in asked)[40]
    short = sum(prompt_tokens(tokenizer, prompt) <= limit for prompt in asked)
    tasks = {"stories": {**stories, "max_prompt_tokens": limit}, "countdown": countdown}
    values = {"model_name_or_path": str(tiny_folder), "tasks": tasks}
    names = train_rows(load_recipe(None, values))["task"]
    assert (names.count("stories"), names.count("countdown")) == (short, 30)
    with pytest.raises(RecipeError, match="max_prompt_tokens cannot be set together with tasks"):
        load_recipe(None, {**values, "max_prompt_tokens": limit})


def test_check_says_how_many_stay_before_a_model_is_loaded(
    tiny_folder, tmp_path, tokenizer, capsys
):
    folder = tmp_path / "tokenizer"
    tokenizer.save_pretrained(folder)  # without a model
    rows = train_rows(recipe(tiny_folder))
    limit = sorted(prompt_tokens(tokenizer, row["prompt"]) for row in rows)[100]
    stay = len(train_rows(recipe(tiny_folder, max_prompt_tokens=limit)))
    assert (
        f"Rows for training: max_prompt_tokens {limit}: {stay} of 300 rows remain."
        in capsys.readouterr().err
    )
    words = ["--model_name_or_path", str(folder), "--max_prompt_tokens", str(limit), "--elsewhere"]
    words += ["--task", "gsm8k", "--num_problems", "300"]
    path = tmp_path / "recipe.yaml"
    path.write_text("{}")
    main(["check", "--config", str(path), *words])
    assert (
        f"rows     max_prompt_tokens {limit}: {stay} of 300 rows remain\n"
        in capsys.readouterr().out
    )


def test_no_row_left_is_one_problem_with_the_shortest_length(tiny_folder, tmp_path, tokenizer):
    rows = train_rows(recipe(tiny_folder))
    shortest = min(prompt_tokens(tokenizer, row["prompt"]) for row in rows)
    values = {"model_name_or_path": str(tiny_folder), **STORIES, "max_prompt_tokens": shortest - 1}
    values["output_dir"] = str(tmp_path / "run")
    findings = check_recipe(None, values)
    [problem] = [p.message for p in findings.problems if "max_prompt_tokens" in p.message]
    assert f"none of the 300 rows remains; the shortest prompt has {shortest} tokens" in problem
    assert not any("the data has no row" in p.message for p in findings.problems)
    with pytest.raises(ValueError, match=f"the shortest prompt has {shortest} tokens"):
        train_rows(load_recipe(None, values))
