"""Completions as the page holds them: an index of short columns, read at once, and texts in chunks,
read when shown.
"""

from collections.abc import Iterable
from itertools import islice
from typing import Any

from grpo_ext.environments.transcript import transcript
from grpo_ext.observe.read_run import RunData, mappings
from grpo_ext.rewards.deadline import TooLate, deadline
from grpo_ext.rewards.explanation import Mark
from grpo_ext.rewards.registry import build
from grpo_ext.rewards.reward import Reward

CHUNK = 250  # completions whose texts are unpacked together
MOST_MESSAGES, MOST_MARKS = (
    200,
    1000,
)  # of a completion in the page, so that none holds the browser up
# Shipped explanations take time in proportion to the text, so a limit of its length bounds them in
# every thread. The deadline is for explanations of the user's own, and works in the main thread.
MOST_EXPLAINED = 100_000  # characters of a completion with the columns that a reward reads
EXPLAIN_SECONDS = 2.0  # for one completion; a reward that takes longer explains no more
MOST_SAID = 10_000  # characters of an explanation
TOO_LONG = f"Not explained: completion and columns have more than {MOST_EXPLAINED:,} characters."
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


class Explainer:
    """Explains completions by the rewards of a run, whose folder is untrusted.

    Options have the types that the reward declares, as in a recipe. A reward that is unknown here,
    that has no explanation, or whose options are wrong is left out.

    Args:
        rewards: those of `run.json`.
        faults: gets a sentence for each reward whose explanation took too long.
    """

    def __init__(self, rewards: list[dict[str, Any]], faults: list[str] | None = None):
        self.faults: list[str] = [] if faults is None else faults
        self.rewards: dict[str, tuple[Reward, dict[str, Any]]] = {}  # with the options of the run
        for entry in rewards:
            options = entry.get("options") or {}
            try:
                reward = build(entry.get("reward", entry["name"]), **options)
            except Exception:  # unknown here, or options of wrong types
                continue
            if reward.registration.explain is not None:
                self.rewards[entry["name"]] = (reward, options)

    def explain(self, row: dict[str, Any]) -> tuple[dict[str, str], list[Mark]]:
        """Return what each reward says of a line of `samples.jsonl`, and all marks on its text.

        A reward whose columns were not logged is left out.
        """
        text, turns = conversation(row)
        spoken = [(start, end) for start, end, wrote, *_ in turns if wrote] or [(0, len(text))]
        start, end = spoken[-1]  # of an episode rewards read the last turn
        columns = row.get("columns") or {}
        sizes = {column: len(repr(content)) for column, content in columns.items()}
        said: dict[str, str] = {}
        marks: list[Mark] = []
        for name in list(self.rewards):
            try:
                said[name], more = self.explanation(name, text[start:end], columns, sizes)
            except Exception:  # columns may be missing, and `explain` may be a user's
                continue
            except TooLate:
                del self.rewards[name]
                self.faults.append(
                    f"{name} explains no further completions: one took more than "
                    f"{EXPLAIN_SECONDS:g} s."
                )
                continue
            marks += [(first + start, last + start, kind, told) for first, last, kind, told in more]
        return said, sorted(set(marks))

    def explanation(
        self, name: str, text: str, columns: dict[str, Any], sizes: dict[str, int]
    ) -> tuple[str, list[Mark]]:
        """Return what one reward says of a text, and its marks; `TooLate` if that takes too long.

        `sizes` are the characters of each column.
        """
        reward, options = self.rewards[name]
        entry = reward.registration
        read = {column: columns[column] for column in entry.columns}
        read |= {column: columns[column] for column in entry.optional if column in columns}
        if len(text) + sum(sizes[column] for column in read) > MOST_EXPLAINED:
            return TOO_LONG, []
        assert entry.explain is not None
        with deadline(EXPLAIN_SECONDS):
            words, marks = entry.explain(text, **(read | options))
            plain = [
                (int(start), int(end), str(kind), str(told)[:MOST_SAID])
                for start, end, kind, told in islice(marks, MOST_MARKS)
            ]
            return ("" if words is None else str(words)[:MOST_SAID]), plain


def sample_texts(rows: list[dict[str, Any]], explainer: Explainer) -> list[Any]:
    """Return for each completion its text, what the rewards said, the marks on it, the turns of an
    episode, and its tokens.
    """
    texts = []
    for row in rows:
        said, marks = explainer.explain(row)
        text, turns = conversation(row)
        texts.append([text, said, marks[:MOST_MARKS], turns[:MOST_MESSAGES], row.get("tokens")])
    return texts


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


def rounded(value: float | None) -> float | None:
    return value if value is None else float(f"{value:.4g}")
