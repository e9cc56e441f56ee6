"""Completions as the page holds them: an index of short columns, read at once, and texts in chunks,
read when shown.
"""

from collections.abc import Iterable
from typing import Any

from grpo_ext.environments.transcript import transcript
from grpo_ext.observe.read_run import RunData, mappings
from grpo_ext.rewards.explanation import Mark
from grpo_ext.rewards.registry import lookup

CHUNK = 250  # completions whose texts are unpacked together
MOST_MESSAGES, MOST_MARKS = (
    200,
    1000,
)  # of a completion in the page, so that none holds the browser up
# start, end, the model's, tokens that count, earned
Turn = tuple[int, int, bool, float | None, float | None]


def sample_columns(run: RunData) -> tuple[dict[str, Any], list[Any]]:
    """Return the index and the list of prompts.

    A column of the index has one entry per completion. `prompt` and `dataset` are positions in the
    list of prompts and in `datasets`; `cut` is 1 for a completion that reached the limit; `task` is
    "" where the row names none; `outcome` is the score of the reward that judged the completion's
    group, `None` if none did.
    """
    rows = run.samples
    datasets = numbered((row["mode"], row["dataset"]) for row in rows)
    numbers = numbered(row["prompt_id"] for row in rows)
    prompts = {
        row["prompt_id"]: row["prompt"] for row in reversed(rows)
    }  # each as it was first logged
    index = {
        **{name: [row[name] for row in rows] for name in ("step", "group", "length")},
        **{name: [rounded(row[name]) for row in rows] for name in ("reward", "advantage")},
        "dataset": [datasets[row["mode"], row["dataset"]] for row in rows],
        "prompt": [numbers[row["prompt_id"]] for row in rows],
        "cut": [int(row["finish_reason"] == "length") for row in rows],
        "task": [row["task"] if isinstance(row.get("task"), str) else "" for row in rows],
        "outcome": [rounded(score) for score in outcome_scores(run)],
        "rewards": {
            reward["name"]: [rounded(row["rewards"].get(reward["name"])) for row in rows]
            for reward in run.rewards
        },
        "datasets": list(datasets),
    }
    return index, [[key, prompts[key]] for key in numbers]


def outcome_scores(run: RunData) -> list[float | None]:
    """Return the outcome reward of each completion: the first of the run's outcome rewards that
    scored any of its group.
    """
    outcomes = run.about.get("outcomes")
    outcomes = outcomes if isinstance(outcomes, list) else [run.about.get("outcome")]
    names = [name for name in outcomes if isinstance(name, str)]
    if not names and run.rewards:
        names = [run.rewards[0]["name"]]
    groups = [(row["step"], row["mode"], row["dataset"], row["group"]) for row in run.samples]
    judges: dict[Any, str] = {}
    for name in reversed(names):  # so that the first one stays
        for group, row in zip(groups, run.samples, strict=True):
            if row["rewards"].get(name) is not None:
                judges[group] = name
    return [
        row["rewards"].get(judges.get(group, ""))
        for group, row in zip(groups, run.samples, strict=True)
    ]


def numbered(keys: Iterable[Any]) -> dict[Any, int]:
    """Return each distinct key with its number, in order of appearance."""
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def sample_texts(rows: list[dict[str, Any]], rewards: list[dict[str, Any]]) -> list[Any]:
    """Return for each completion its text, what the rewards said, the marks on it, the turns of an
    episode, and its tokens.
    """
    found = []
    for row in rows:
        said, marks = explain(row, rewards)
        text, turns = conversation(row)
        found.append([text, said, marks[:MOST_MARKS], turns[:MOST_MESSAGES], row.get("tokens")])
    return found


def conversation(row: dict[str, Any]) -> tuple[str, list[Turn]]:
    """Return the text that the page shows of a completion, and where the messages of an episode are
    in it.

    The text of an episode is made of its messages as they are, without the backslashes of
    `transcript`, so that rewards explain what they have judged. If messages are missing or differ
    from the text of the log, that text is returned, without turns.
    """
    logged = row["text"]
    messages = mappings(row.get("messages"))
    contents = [
        (message.get("role") == "assistant", content)
        for message in messages
        if isinstance(content := message.get("content"), str)
    ]
    if len(contents) < len(messages):
        return logged, []
    text = "\n".join(content if wrote else f"> {content}" for wrote, content in contents)
    if logged not in (text, transcript(contents)):  # earlier logs have the first form
        return logged, []
    found: list[Turn] = []
    at = 0
    for message, (wrote, content) in zip(messages, contents, strict=True):
        at += 0 if wrote else 2  # "> "
        counted, earned = (
            x if isinstance(x := message.get(key), int | float) else None
            for key in ("counted_tokens", "earned")
        )
        found.append((at, at + len(content), wrote, counted, rounded(earned)))
        at += len(content) + 1  # the line's end
    return text, found


def explain(
    row: dict[str, Any], rewards: list[dict[str, Any]]
) -> tuple[dict[str, str], list[Mark]]:
    """Return what each reward says of a line of `samples.jsonl`, and all marks on its text.

    `rewards` are those of `run.json`. A reward without an explanation, or whose columns were not
    logged, is left out.
    """
    said: dict[str, str] = {}
    marks: list[Mark] = []
    text, turns = conversation(row)
    spoken = [(start, end) for start, end, wrote, *_ in turns if wrote] or [(0, len(text))]
    first, end = spoken[-1]  # of an episode rewards read the last turn
    columns = row.get("columns") or {}
    for reward in rewards:
        try:
            entry = lookup(reward.get("reward", reward["name"]))
            if entry.explain is None:
                continue
            options = reward.get("options") or {}
            read = {name: columns[name] for name in entry.columns}
            read |= {name: columns[name] for name in entry.optional if name in columns}
            words, more = entry.explain(text[first:end], **(read | options))
            found = [
                (int(start) + first, int(end) + first, str(kind), str(told))
                for start, end, kind, told in more
            ]
        except (
            Exception
        ):  # the reward or its columns may be unknown here, and `explain` may be a user's
            continue
        said[reward["name"]] = "" if words is None else str(words)
        marks += found
    return said, sorted(set(marks))


def rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.4g}")
