"""Completions as the page keeps them: an index of short columns, read at once; texts in chunks, read when they are shown."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import accumulate
from typing import Any

from grpo_ext.observe.read_run import RunData
from grpo_ext.rewards.explanation import Mark
from grpo_ext.rewards.registry import explaining

CHUNK = 250  # completions whose texts are unpacked together


def sample_columns(run: RunData) -> tuple[dict[str, Any], list[Any]]:
    """The index, and the prompts that its column `prompt` counts.

    Every column has an entry a completion. `dataset` counts `datasets`; `cut` is 1 where the completion ran into the limit.
    """
    rows = run.samples
    datasets = numbered((row["mode"], row["dataset"]) for row in rows)
    numbers = numbered(row["prompt_id"] for row in rows)
    prompts = {row["prompt_id"]: row["prompt"] for row in reversed(rows)}  # as each was first
    index = {
        **{name: [row[name] for row in rows] for name in ("step", "group", "length")},
        **{name: [rounded(row[name]) for row in rows] for name in ("reward", "advantage")},
        "dataset": [datasets[row["mode"], row["dataset"]] for row in rows],
        "prompt": [numbers[row["prompt_id"]] for row in rows],
        "cut": [int(row["finish_reason"] == "length") for row in rows],
        "rewards": {reward["name"]: [rounded(row["rewards"].get(reward["name"])) for row in rows] for reward in run.rewards},
        "datasets": list(datasets),
    }
    return index, [[key, messages(prompts[key])] for key in numbers]


def numbered(keys: Iterable[Any]) -> dict[Any, int]:
    """The keys in order, each once, with their numbers."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def sample_texts(rows: list[dict[str, Any]], rewards: list[dict[str, Any]]) -> list[Any]:
    """Of each completion its text, what the rewards said, and the marks on it."""
    explained = [(row["text"], *explain(row, rewards)) for row in rows]
    return [[text, said, in_utf16(text, marks)] for text, said, marks in explained]


def explain(row: dict[str, Any], rewards: list[dict[str, Any]]) -> tuple[dict[str, str], list[Mark]]:
    """By reward, as `run.json` has them, what it says of a line of `samples.jsonl`; and all marks on its characters.

    A reward that has nothing to say, or whose columns were not kept, says nothing.
    """
    said: dict[str, str] = {}
    marks: list[Mark] = []
    columns = row.get("columns") or {}
    for reward in rewards:
        try:
            entry = explaining(reward.get("reward", reward["name"]))
            if entry is None or entry.explain is None:
                continue
            read = {name: columns[name] for name in entry.columns}
            words, more = entry.explain(row["text"], **read, **(reward.get("options") or {}))
        except Exception:  # columns of another shape than the reward reads, and `explain` may be anybody's
            continue
        said[reward["name"]] = words
        marks += [mark for mark in more if mark not in marks]
    return said, sorted(marks)


def messages(prompt: Any) -> list[list[str]]:
    """A prompt as roles and texts; plain text has no role."""
    if not isinstance(prompt, list):
        return [["", str(prompt)]]
    parts = [part if isinstance(part, dict) else {"content": part} for part in prompt]
    return [[str(part.get("role", "")), str(part.get("content", ""))] for part in parts]


def in_utf16(text: str, marks: list[Mark]) -> list[Mark]:
    """Marks counted as a browser counts characters, in which those beyond U+FFFF are two."""
    if text.isascii() or not marks or max(text) <= "\uffff":
        return marks
    wide = [0, *accumulate(2 if character > "\uffff" else 1 for character in text)]
    return [(wide[start], wide[end], kind, words) for start, end, kind, words in marks]


def rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.4g}")
