"""Prepare completions for the report: an index of short columns, and texts unpacked on demand."""

import json
from itertools import islice
from typing import Any

from grpo_ext.common.user_code import TooLate, deadline
from grpo_ext.environments.transcript import transcript
from grpo_ext.observe.read_run import Row, RunData, mappings
from grpo_ext.rewards.explanation import Mark
from grpo_ext.rewards.registry import build
from grpo_ext.rewards.reward import Reward

CHUNK = 250  # number of completions whose texts are unpacked together
# Limits for each completion in the page, so that none blocks the browser.
MOST_MESSAGES = 200
MOST_MARKS = 1000
MOST_END = 32  # maximum characters of the reason why an episode ended
MOST_COLUMNS = 50
MOST_OF_COLUMN = 2000  # maximum characters of a column's name or value
# The time of a built-in explanation is proportional to the length of the text, so a limit on the
# length bounds it in every thread. The deadline is for user-defined explanations, and works only in
# the main thread.
MOST_EXPLAINED = 100_000  # maximum characters of a completion plus the columns that a reward reads
EXPLAIN_SECONDS = 2.0  # limit for one completion; a reward that exceeds it is not asked again
MOST_SAID = 10_000  # maximum characters of an explanation
TOO_LONG = f"Not explained: the text and its columns have more than {MOST_EXPLAINED:,} characters."
COLUMNS = (
    "step",
    "group",
    "length",
    "reward",
    "advantage",
    "dataset",
    "prompt",
    "cut",
    "task",
    "turns",
    "end",
    "environment_time",
    "outcome",
)
# start, end, whether the model wrote it, counted tokens, earned reward
Turn = tuple[int, int, bool, float | None, float | None]


def sample_columns(run: RunData) -> tuple[dict[str, Any], list[Any]]:
    """Return the index of a run's completions, and its prompts as a list of [prompt id, prompt].

    The index maps each name in `COLUMNS` to a list with one entry per completion:

    - `prompt` is an index into the returned list of prompts, and `dataset` one into `datasets`.
    - `cut` is 1 for a completion that reached the length limit, otherwise 0.
    - `task` is "" for a completion without a task.
    - `turns`, `end` and `environment_time` are `None` for a completion that is not an episode.
    - `outcome` is the score that the group's outcome reward gave, or `None` if it gave none.

    The index also has `rewards`, which maps each reward to a list of scores, and `datasets`, a list
    of (mode, name).
    """
    datasets: dict[tuple[str, str], int] = {}
    prompts: dict[str, object] = {}  # each as it was first logged
    prompt_numbers: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    reward_columns: dict[str, list[float | None]] = {}
    for reward in run.rewards:
        reward_columns[reward["name"]] = []
    for row in run.samples:
        prompt_id = row["prompt_id"]
        prompts.setdefault(prompt_id, row["prompt"])
        task = row.get("task")
        end = row.get("end")
        dataset = (row["mode"], row["dataset"])
        entry = {
            "step": row["step"],
            "group": row["group"],
            "length": row["length"],
            "reward": rounded(row["reward"]),
            "advantage": rounded(row["advantage"]),
            "dataset": datasets.setdefault(dataset, len(datasets)),
            "prompt": prompt_numbers.setdefault(prompt_id, len(prompt_numbers)),
            "cut": int(row["finish_reason"] == "length"),
            "task": task if isinstance(task, str) else "",
            "turns": number_or_none(row.get("turns")),
            "end": end[:MOST_END] if isinstance(end, str) else None,
            "environment_time": rounded(number_or_none(row.get("environment_time"))),
        }
        for column, cell in entry.items():
            columns[column].append(cell)
        for name, scores in reward_columns.items():
            scores.append(rounded(row["rewards"].get(name)))
    columns["outcome"] = list(map(rounded, outcome_scores(run)))
    index = {**columns, "rewards": reward_columns, "datasets": list(datasets)}
    return index, list(map(list, prompts.items()))


def outcome_scores(run: RunData) -> list[float | None]:
    """Return, for each completion, its score from the group's outcome reward.

    The outcome reward of a group is the first of `run.outcomes` that scored any of its completions.
    The score is `None` if there is no such reward, or if it did not score this completion.
    """
    judges: dict[tuple[object, ...], str] = {}  # by group
    for name in reversed(run.outcomes):  # reversed, so that the first one prevails
        for row in run.samples:
            if row["rewards"].get(name) is not None:
                judges[group_of(row)] = name
    scores = []
    for row in run.samples:
        judge = judges.get(group_of(row), "")
        scores.append(row["rewards"].get(judge))
    return scores


def group_of(row: Row) -> tuple[object, ...]:
    """Return a key that identifies the group of a completion within its run."""
    return row["step"], row["mode"], row["dataset"], row["group"]


class Explainer:
    """Explains the scores of completions, using the rewards of a run.

    Unknown rewards and rewards without an explanation are skipped. The folder of the run is
    untrusted, so a reward is also skipped if its options do not have the types that it declares.

    Args:
        rewards: the rewards of the run, from `run.json`.
        faults: receives a sentence for each reward whose explanation took too long.
    """

    def __init__(
        self,
        rewards: list[Row],
        faults: list[str] | None = None,
    ):
        self.faults: list[str] = [] if faults is None else faults
        self.rewards: dict[str, tuple[Reward, dict[str, Any]]] = {}  # each with the run's options
        for entry in rewards:
            name = entry["name"]
            options = entry.get("options") or {}
            try:
                reward = build(entry.get("reward") or name, **options)
            except Exception:  # an unknown reward, or options of wrong types
                continue
            if reward.registration.explain is not None:
                self.rewards[name] = (reward, options)

    def explain(self, row: Row) -> tuple[dict[str, str], list[Mark]]:
        """Explain a completion, given as a line of `samples.jsonl`.

        Rewards whose columns were not logged, or whose explanation fails, are left out. A reward
        whose explanation takes too long explains no further completions, and a sentence that says
        so is added to `faults`.

        Returns:
            The explanations by reward name, and the sorted marks of all rewards. The offsets of the
            marks refer to the text that `conversation` returns.
        """
        text, turns = conversation(row)
        start = 0
        end = len(text)
        for turn_start, turn_end, by_model, *_ in turns:
            if by_model:  # in an episode, rewards read the model's last turn
                start = turn_start
                end = turn_end
        columns = row.get("columns")
        if not isinstance(columns, dict):
            columns = {}
        sizes = {}
        for column, content in columns.items():
            sizes[column] = len(repr(content))
        explanations: dict[str, str] = {}
        marks: set[Mark] = set()
        for name in list(self.rewards):
            try:
                explanation, new_marks = self.explanation(name, text[start:end], columns, sizes)
            except Exception:  # columns may be missing, and `explain` may be a user's
                continue
            except TooLate:
                del self.rewards[name]
                self.faults.append(
                    f"the reward {name} took more than {EXPLAIN_SECONDS:g} s to explain a "
                    "completion, so its explanations of this and all later completions are left "
                    "out."
                )
                continue
            explanations[name] = explanation
            for mark_start, mark_end, kind, remark in new_marks:
                marks.add((start + mark_start, start + mark_end, kind, remark))
        return explanations, sorted(marks)

    def explanation(
        self,
        name: str,
        text: str,
        columns: dict[str, Any],
        sizes: dict[str, int],
    ) -> tuple[str, list[Mark]]:
        """Return one reward's explanation of `text`, and its marks on the text.

        If the text and its columns are too long, the explanation is `TOO_LONG`, without marks.
        Errors raised by the reward's `explain` are not caught.

        Args:
            name: the name of the reward.
            text: the completion or, for an episode, the model's last turn.
            columns: the logged columns of the completion.
            sizes: the number of characters of each column.

        Raises:
            KeyError: if a column that the reward needs was not logged.
            TooLate: if the explanation takes more than `EXPLAIN_SECONDS` in the main thread; in
                other threads, its time is not limited.
        """
        reward, options = self.rewards[name]
        entry = reward.registration
        arguments = {column: columns[column] for column in entry.columns}
        for column in entry.optional:
            if column in columns:
                arguments[column] = columns[column]
        num_characters = len(text) + sum(sizes[column] for column in arguments)
        if num_characters > MOST_EXPLAINED:
            return TOO_LONG, []
        assert entry.explain is not None
        with deadline(EXPLAIN_SECONDS):
            explanation, marks = entry.explain(text, **(arguments | options))
            plain_marks = []
            for start, end, kind, remark in islice(marks, MOST_MARKS):
                short_remark = str(remark)[:MOST_SAID]
                plain_marks.append((int(start), int(end), str(kind), short_remark))
            text = "" if explanation is None else str(explanation)
            return text[:MOST_SAID], plain_marks


def sample_texts(rows: list[Row], explainer: Explainer) -> list[Any]:
    """Return [text, explanations, marks, episode turns, tokens, columns] for each completion.

    At most `MOST_MARKS` marks and `MOST_MESSAGES` turns of a completion are returned. The columns
    are those of `shown_columns`.
    """
    texts = []
    for row in rows:
        explanations, marks = explainer.explain(row)
        text, turns = conversation(row)
        entry = [
            text,
            explanations,
            marks[:MOST_MARKS],
            turns[:MOST_MESSAGES],
            row.get("tokens"),
            shown_columns(row),
        ]
        texts.append(entry)
    return texts


def shown_columns(row: Row) -> list[tuple[str, str]]:
    """Return the logged columns of a completion as (name, value as text).

    At most `MOST_COLUMNS` columns are returned. Names and values are cut off after `MOST_OF_COLUMN`
    characters; a value that was cut off ends with the number of missing characters.
    """
    columns = row.get("columns")
    if not isinstance(columns, dict):
        return []
    shown = []
    for name, value in islice(columns.items(), MOST_COLUMNS):
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        if len(text) > MOST_OF_COLUMN:
            text = f"{text[:MOST_OF_COLUMN]} … {len(text) - MOST_OF_COLUMN} more characters"
        shown.append((name[:MOST_OF_COLUMN], text))
    return shown


def conversation(row: Row) -> tuple[str, list[Turn]]:
    """Return a completion's text for the page, and a `Turn` for each message of an episode.

    The text of an episode is built from its unchanged messages, without the backslashes that
    `transcript` adds, so that rewards explain exactly what they scored. If there are no messages,
    or they do not match the logged text, the logged text is returned without turns.
    """
    logged_text = row["text"]
    messages = mappings(row.get("messages"))
    contents: list[tuple[bool, str]] = []  # whether the model wrote the message, and its text
    for message in messages:
        content = message.get("content")
        if not isinstance(content, str):
            return logged_text, []
        contents.append((message.get("role") == "assistant", content))
    lines = [content if by_model else f"> {content}" for by_model, content in contents]
    text = "\n".join(lines)
    if logged_text not in (text, transcript(contents)):  # the first form is that of older logs
        return logged_text, []
    turns: list[Turn] = []
    line_start = 0
    for message, line, (by_model, content) in zip(messages, lines, contents, strict=True):
        end = line_start + len(line)
        start = end - len(content)
        counted_tokens = number_or_none(message.get("counted_tokens"))
        earned = rounded(number_or_none(message.get("earned")))
        turns.append((start, end, by_model, counted_tokens, earned))
        line_start = end + 1  # skips the line break
    return text, turns


def number_or_none(entry: object) -> float | None:
    return entry if isinstance(entry, int | float) else None


def rounded(value: float | None) -> float | None:
    if value is None:
        return None
    return float(f"{value:.4g}")
