"""`held_out_share`: which rows are held out, whatever surrounds them, and what is refused."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from datasets import Dataset, DatasetDict
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.cli.main import main
from grpo_ext.evaluation.evaluate_recipe import rows_and_rewards
from grpo_ext.preflight.check_recipe import check_recipe
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import RecipeError
from grpo_ext.run.from_recipe import eval_rows, has_eval_rows, train_rows
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tasks.gsm8k import GSM8K
from grpo_ext.tasks.held_out import HeldOutFilter
from grpo_ext.tasks.prompts import Prompts
from tests.support.logs import write_json_rows

SHARE = 0.2
QUESTIONS = [f"What is {a} + {b}?" for a in range(20) for b in range(15)]


def write(path: Path, questions: list[str], **more) -> str:
    rows = [{"question": text, "solution": str(n), **more} for n, text in enumerate(questions)]
    write_json_rows(path, rows)
    return str(path)


def recipe(name: str, **values):
    base = {"model_name_or_path": "m", "dataset_name": name, "held_out_share": SHARE}
    if values.get("task") is None:
        base |= {"task": "prompts", "user_prompt": "{question}"}
    return load_recipe(None, base | values)


def sides(*args, **values) -> tuple[list[str], list[str]]:
    loaded = recipe(*args, **values)
    return (
        [row["question"] for row in train_rows(loaded)],
        [row["question"] for row in eval_rows(loaded)],
    )


texts = st.lists(st.text("abc é\n", max_size=4), min_size=1, max_size=12)


@given(texts, st.data(), st.floats(0.05, 0.95))
def test_other_rows_and_their_order_never_move_a_row(some, data, share):
    def held_out(questions: list[str]) -> dict[str, bool]:
        rows = [{"question": text} for text in questions]
        stays = HeldOutFilter(share, True).keeps(Prompts(user_prompt="{question}"), rows)
        found: dict[str, bool] = {}
        for text, stay in zip(questions, stays, strict=True):
            assert found.setdefault(text, stay) == stay  # duplicates are on one side
        return found

    before = held_out(some)
    after = held_out(data.draw(st.permutations([*some, *data.draw(texts)])))
    assert {text: after[text] for text in before} == before


@given(st.text(max_size=9), st.floats(0.01, 0.98), st.floats(0.001, 0.019))
def test_the_sides_are_complements_and_a_larger_share_contains_a_smaller(text, share, more):
    task = Prompts()
    row = {"prompt": text}
    held_out = HeldOutFilter(share, True).keeps(task, [row])[0]
    assert HeldOutFilter(share, False).keeps(task, [row])[0] != held_out
    assert not held_out or HeldOutFilter(min(share + more, 0.999), True).keeps(task, [row])[0]


@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
def test_the_share_is_within_binomial_bounds(share):
    count = 20_000
    rows = [{"prompt": f"question number {n}"} for n in range(count)]
    held_out = sum(HeldOutFilter(share, True).keeps(Prompts(), rows))
    assert abs(held_out - share * count) < 4 * math.sqrt(count * share * (1 - share))


def test_wording_other_columns_and_the_kind_of_file_do_not_move_rows(tmp_path):
    file = write(tmp_path / "rows.jsonl", QUESTIONS)
    train, held_out = sides(file)
    assert sorted(train + held_out) == sorted(QUESTIONS)
    assert 30 < len(held_out) < 90
    assert not set(train) & set(held_out)
    assert sides(file, user_prompt="Q: {question} A:", system_prompt="Be brief.") == (
        train,
        held_out,
    )
    assert sides(file, seed=7) == (train, held_out)
    assert sides(write(tmp_path / "more.jsonl", QUESTIONS, source="x")) == (train, held_out)
    rows = Dataset.from_list([{"question": text, "solution": "1"} for text in QUESTIONS])
    rows.to_csv(str(tmp_path / "rows.csv"))
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    rows.save_to_disk(str(tmp_path / "saved"))
    DatasetDict(train=rows).save_to_disk(str(tmp_path / "splits"))
    (tmp_path / "hub").mkdir()
    rows.to_json(str(tmp_path / "hub" / "train.jsonl"))
    for name in ("rows.csv", "rows.parquet", "saved", "splits", "hub"):
        assert sides(str(tmp_path / name)) == (train, held_out), name
    gsm8k = sides(write(tmp_path / "gsm8k.jsonl", QUESTIONS, answer="#### 1"), task="gsm8k")
    assert gsm8k == (train, held_out)


def test_a_column_changed_by_another_row_does_not_move_rows(tmp_path):
    messages = [[{"role": "user", "content": text}] for text in QUESTIONS]
    extra = [[{"role": "user", "content": "Other?", "name": "Ann"}]]
    values = {"user_prompt": None, "prompt_column": "messages"}
    numbers = {"user_prompt": "{a} + {b}"}

    def held_out(name: str, rows: list[dict], settings: dict) -> list:
        path = tmp_path / name
        write_json_rows(path, rows)
        return list(map(dict, eval_rows(recipe(str(path), **settings))))

    plain = held_out("plain.jsonl", [{"messages": m} for m in messages], values)
    named = held_out("named.jsonl", [{"messages": m} for m in [*messages, *extra]], values)
    asked = [row["messages"][0]["content"] for row in named]
    assert [row["messages"][0]["content"] for row in plain] == [q for q in asked if q != "Other?"]
    sums = [{"a": a, "b": b} for a in range(12) for b in range(12)]
    whole = held_out("whole.jsonl", sums, numbers)
    mixed = held_out("mixed.jsonl", [*sums, {"a": 0.5, "b": 1}], numbers)
    assert whole
    pairs = [(row["a"], row["b"]) for row in mixed if row["a"] != 0.5]
    assert pairs == [(row["a"], row["b"]) for row in whole]


def test_the_same_question_with_another_answer_is_on_the_same_side(tmp_path):
    train, held_out = sides(write(tmp_path / "twice.jsonl", QUESTIONS * 2))
    assert len(train) + len(held_out) == 2 * len(QUESTIONS)
    assert not set(train) & set(held_out)
    rows = [{"nums": nums, "target": 6} for nums in ([1, 2, 3], [3, 1, 2], "[2, 3, 1]")]
    for share in (0.1, 0.3, 0.5, 0.7, 0.9):
        assert len(set(HeldOutFilter(share, True).keeps(Countdown(), rows))) == 1
    chats = [
        {"messages": [{"role": "user", "content": "1?"}, {"role": "assistant", "content": text}]}
        for text in "abcdefgh"
    ]
    task = Prompts(prompt_column="messages", answer_column="solution")
    assert len(set(HeldOutFilter(0.5, True).keeps(task, chats))) == 1


def test_rows_that_a_task_has_not_held_out_itself_are_still_divided():
    rows = list(Countdown(num_problems=2_000, test_fraction=0.3).generate("train"))
    held_out = sum(HeldOutFilter(0.1, True).keeps(Countdown(), rows))
    assert 140 < held_out < 260


def test_limits_apply_after_holding_out(tiny_folder, tmp_path):
    file = write(
        tmp_path / "rows.jsonl", [*QUESTIONS, *(text + " 1 + 1 + 1" for text in QUESTIONS)]
    )
    train, held_out = sides(file)
    short = [text for text in train if text in QUESTIONS]
    limits = {
        "model_name_or_path": str(tiny_folder),
        "max_train_samples": 20,
        "max_eval_samples": 9,
    }
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    rows = train_rows(recipe(file))
    longest = max(
        len(tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True)["input_ids"])
        for row in rows
        if row["question"] in QUESTIONS
    )
    limited = sides(file, max_prompt_tokens=longest, **limits)
    assert limited == (short[:20], [text for text in held_out if text in QUESTIONS][:9])


def test_slices_and_streams(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    write(folder / "train.jsonl", QUESTIONS)
    train, held_out = sides(str(folder))
    first = set(QUESTIONS[:100])
    for split, chosen in (
        ("train[:100]", first),
        ("train[50:120]", set(QUESTIONS[50:120])),
        ("train[250:]", set(QUESTIONS[250:])),
        ("train[:10%]+train[-10:]", {*QUESTIONS[:30], *QUESTIONS[-10:]}),
    ):
        expected = tuple([text for text in part if text in chosen] for part in (train, held_out))
        assert sides(str(folder), dataset_train_split=split) == expected
        loaded = recipe(str(folder), dataset_train_split=split)
        streams = (train_rows(loaded, streaming=True), eval_rows(loaded, streaming=True))
        assert tuple([row["question"] for row in rows] for rows in streams) == expected
    streamed = recipe(str(folder), dataset_streaming=True, max_steps=5, max_eval_samples=7)
    rows = eval_rows(streamed)
    assert isinstance(rows, Dataset) and rows["question"] == held_out[:7]
    assert [row["question"] for row in train_rows(streamed)] == train
    with pytest.raises(
        ValueError, match=r"has no split 'test'\. Its splits: train\..*held_out_share"
    ):
        eval_rows(recipe(str(folder), held_out_share=None))


def test_a_slice_of_data_without_splits_is_refused(tmp_path):
    file = write(tmp_path / "rows.jsonl", QUESTIONS)
    Dataset.from_list([{"question": "?"}]).save_to_disk(str(tmp_path / "saved"))
    for name in (file, str(tmp_path / "saved")):
        for streaming in (False, True):
            with pytest.raises(
                ValueError, match=r"has no splits, so 'train\[:9\]' cannot select rows"
            ):
                train_rows(recipe(name, dataset_train_split="train[:9]"), streaming=streaming)


def test_each_task_of_several_holds_out_its_own_rows(tmp_path):
    own = {
        "task": "prompts",
        "user_prompt": "{question}",
        "dataset_name": write(tmp_path / "rows.jsonl", QUESTIONS),
        "reward_funcs": ["accuracy"],
    }
    made = {"num_problems": 30, "num_test_problems": 5, "min_numbers": 3, "max_numbers": 3}
    tasks = {"sums": {**own, "held_out_share": SHARE}, "countdown": {**made, "max_number": 9}}
    loaded = load_recipe(None, {"model_name_or_path": "m", "tasks": tasks})
    train, held_out = sides(own["dataset_name"])
    assert [row["question"] for row in train_rows(loaded) if row["task"] == "sums"] == train
    assert [row["question"] for row in eval_rows(loaded) if row["task"] == "sums"] == held_out
    assert eval_rows(loaded)["task"].count("countdown") == 5
    assert has_eval_rows(loaded)
    without = {**tasks, "sums": own}
    assert not has_eval_rows(load_recipe(None, {"model_name_or_path": "m", "tasks": without}))
    with pytest.raises(RecipeError, match="held_out_share cannot be set together with tasks"):
        load_recipe(None, {"model_name_or_path": "m", "tasks": tasks, "held_out_share": 0.1})
    for share in ({}, {"held_out_share": 0.1}):
        twice = {**tasks, "again": {**own, **share}}
        with pytest.raises(RecipeError, match="need the same held_out_share"):
            load_recipe(None, {"model_name_or_path": "m", "tasks": twice})
    load_recipe(None, {"model_name_or_path": "m", "tasks": {**tasks, "again": tasks["sums"]}})
    other_split = {**tasks, "again": {**own, "dataset_train_split": "extra"}}
    load_recipe(None, {"model_name_or_path": "m", "tasks": other_split})
    wrong = {"countdown": {**made, "held_out_share": 0.1}}
    with pytest.raises(RecipeError, match="tasks: countdown: held_out_share needs dataset_name"):
        load_recipe(None, {"model_name_or_path": "m", "tasks": wrong})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"dataset_name": None}, "needs dataset_name"),
        ({"eval_dataset_name": "test.jsonl"}, "eval_dataset_name both say"),
        ({"dataset_test_split": "validation"}, "dataset_test_split both say"),
        ({"held_out_share": 0}, "greater than 0"),
        ({"held_out_share": 1}, "less than 1"),
        ({"held_out_share": None, "held_out_shear": 0.1}, "held_out_share"),
        (
            {"dataset_streaming": True, "max_steps": 3, "eval_strategy": "steps", "eval_steps": 1},
            "Set max_eval_samples",
        ),
        ({"random_train_samples": True}, "needs max_train_samples"),
        (
            {
                "random_train_samples": True,
                "max_train_samples": 3,
                "dataset_streaming": True,
                "max_steps": 3,
            },
            "random_train_samples draws from all rows",
        ),
    ],
)
def test_contradictions_are_refused_by_name(tmp_path, values, message):
    with pytest.raises(RecipeError, match=message):
        recipe(write(tmp_path / "rows.jsonl", QUESTIONS), **values)


def test_a_random_sample_is_drawn_from_the_rows_that_are_left(tmp_path):
    file = write(tmp_path / "rows.jsonl", QUESTIONS)
    train, held_out = sides(file)
    drawn = {"max_train_samples": 40, "random_train_samples": True}
    some, evaluated = sides(file, **drawn)
    assert evaluated == held_out
    assert len(set(some)) == 40 and set(some) <= set(train)
    assert some == [text for text in train if text in set(some)]  # in their order
    assert some != train[:40]
    assert sides(file, **drawn)[0] == some != sides(file, **drawn, seed=1)[0]
    assert sides(file, max_train_samples=10_000, random_train_samples=True)[0] == train
    # each row is drawn equally often: 60 draws of 40 rows
    counts = dict.fromkeys(train, 0)
    for seed in range(60):
        for text in sides(file, **drawn, seed=seed)[0]:
            counts[text] += 1
    p = 40 / len(train)
    chi_square = sum((n - 60 * p) ** 2 for n in counts.values()) / (60 * p * (1 - p))
    assert abs(chi_square - len(train)) < 5 * math.sqrt(2 * len(train))


def test_real_rows(shared_data):
    file = str(shared_data / "gsm8k_train.jsonl")
    loaded = recipe(file, task="gsm8k", held_out_share=0.05)
    train = list(train_rows(loaded)["question"])
    held_out = list(eval_rows(loaded)["question"])
    count = len(train) + len(held_out)
    assert count == 2048
    assert abs(len(held_out) - 0.05 * count) < 4 * math.sqrt(count * 0.05 * 0.95)
    assert not set(train) & set(held_out)
    reverse = [{"question": text} for text in reversed(train + held_out)]
    stays = HeldOutFilter(0.05, True).keeps(GSM8K(), reverse)
    assert {row["question"] for row, stay in zip(reverse, stays, strict=True) if stay} == set(
        held_out
    )


def test_check_says_which_rows_an_evaluation_uses(tiny_folder, tmp_path, capsys):
    file = write(tmp_path / "rows.jsonl", QUESTIONS)
    train, held_out = sides(file)
    path = tmp_path / "recipe.yaml"
    path.write_text(
        f"model_name_or_path: {tiny_folder}\n"
        f"task: prompts\n"
        f"user_prompt: '{{question}}'\n"
        f"use_cpu: true\n"
        f"dataset_name: {file}\nreward_funcs: [accuracy]\noutput_dir: {tmp_path / 'run'}\n"
        "per_device_train_batch_size: 8\nmax_completion_length: 8\n"
    )

    def shown(*words: str) -> tuple[int, str]:
        code = main(["check", "--config", str(path), *words])
        return code, capsys.readouterr().out

    share = ["--held_out_share", str(SHARE)]
    code, text = shown(*share)
    assert code == 0, text
    assert f"rows     held_out_share 0.2: {len(train)} of 300 rows are for training\n" in text
    assert f"eval     held-out rows of {file}: {len(held_out)}\n" in text
    assert f"held-out rows of {file}: the first 5\n" in shown(*share, "--max_eval_samples", "5")[1]
    code, text = shown()
    assert code == 0 and "eval     none: " in text and "set held_out_share" in text
    code, text = shown("--eval_strategy", "steps", "--eval_steps", "2")
    assert code == 1 and "PROBLEM" in text and "set held_out_share" in text
    code, text = shown("--held_out_share", "1e-9", "--eval_strategy", "steps", "--eval_steps", "2")
    assert code == 1 and "PROBLEM" in text
    made = {"model_name_or_path": str(tiny_folder), "output_dir": str(tmp_path / "run")}
    figures = check_recipe(None, {**made, "task": "gsm8k", "num_test_problems": 17}).figures
    assert figures["evaluation"] == ["held-out rows that the task generates: 17"]
    (tmp_path / "hub").mkdir()
    write(tmp_path / "hub" / "train.jsonl", QUESTIONS)
    [sentence] = check_recipe(
        path, {"dataset_name": str(tmp_path / "hub"), "dataset_train_split": "train[:90]"}
    ).figures["evaluation"]
    assert sentence.startswith("none: ") and "no split 'test'. Its splits: train." in sentence


def test_too_small_a_share_is_an_error_that_names_it(tmp_path):
    with pytest.raises(ValueError, match="held_out_share 1e-09 holds out none of the 300 rows"):
        eval_rows(recipe(write(tmp_path / "rows.jsonl", QUESTIONS), held_out_share=1e-9))
    with pytest.raises(ValueError, match=r"held_out_share 0\.999999 holds out all 300 rows"):
        train_rows(recipe(write(tmp_path / "rows.jsonl", QUESTIONS), held_out_share=0.999999))


@pytest.mark.parametrize(
    ("share", "read", "words"),
    [
        (0.02, eval_rows, "holds out none of the 16 rows. A hash .* 0.32 of 16 .* a larger share"),
        (0.99, train_rows, "holds out all 16 rows. A hash .* 15.8 of 16 .* a smaller share"),
    ],
)
def test_of_few_rows_the_error_names_a_share_that_leaves_rows_on_both_sides(
    share, read, words, tmp_path
):
    file = write(tmp_path / "rows.jsonl", QUESTIONS[:16])
    with pytest.raises(ValueError, match=words) as error:
        read(recipe(file, held_out_share=share))
    named = float(re.search(r"such as ([\d.]+),", str(error.value))[1])
    train, held_out = sides(file, held_out_share=named)
    assert len(train) + len(held_out) == 16 and train and held_out


def test_rows_that_ask_the_same_cannot_be_divided(tmp_path):
    file = write(tmp_path / "rows.jsonl", ["Why?"] * 16)
    with pytest.raises(ValueError, match="none of the 16 rows, because all have the same question"):
        eval_rows(recipe(file, held_out_share=0.01))
    with pytest.raises(ValueError, match="all 16 rows, because all have the same question"):
        train_rows(recipe(file, held_out_share=0.99))


def test_a_single_row_cannot_be_divided(tmp_path):
    file = write(tmp_path / "rows.jsonl", ["Why?"])
    with pytest.raises(ValueError, match=r"a single row\. Use more rows, or remove held_out"):
        eval_rows(recipe(file, held_out_share=0.01))


def test_the_error_of_an_empty_stream_names_the_filter_that_emptied_it(tmp_path, tiny_folder):
    file = write(tmp_path / "rows.jsonl", QUESTIONS)
    streamed = {"dataset_streaming": True, "max_steps": 5, "model_name_or_path": str(tiny_folder)}
    with pytest.raises(ValueError, match="max_prompt_tokens 1: none of the"):
        eval_rows(recipe(file, max_prompt_tokens=1, **streamed))


def test_eval_and_train_rows_of_data_that_has_only_train(tmp_path):
    file = write(tmp_path / "rows.jsonl", QUESTIONS)
    train, held_out = sides(file)
    loaded = recipe(file, reward_funcs=["accuracy"])
    assert [row["question"] for row in rows_and_rewards(loaded)[0]] == held_out
    asked = [row["question"] for row in rows_and_rewards(loaded, 50)[0]]
    assert len(asked) == 50 and set(asked) <= set(train)


def test_a_share_of_few_rows_that_differs_is_explained():
    for count, is_explained in ((10, True), (3000, False)):
        rows = [{"question": str(number)} for number in range(count)]
        for held_out in (True, False):
            row_filter = HeldOutFilter(SHARE, held_out)
            stays = row_filter.keeps(Prompts(user_prompt="{question}"), rows)
            held_out_share = (sum(stays) if held_out else count - sum(stays)) / count
            summary = row_filter.summary()
            assert (abs(held_out_share - SHARE) > SHARE / 4) == is_explained
            assert ("a hash of each question decides" in summary) == is_explained
            assert (f"{held_out_share:.0%} are held out" in summary) == is_explained
