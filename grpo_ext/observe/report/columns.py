"""Completions for the page: an index of short columns, and texts in chunks, read when shown."""

from itertools import islice
from typing import Any

from grpo_ext.common.deadline import TooLate, deadline
from grpo_ext.environments.transcript import transcript
from grpo_ext.observe.read_run import Row, RunData, mappings
from grpo_ext.rewards.explanation import Mark
from grpo_ext.rewards.registry import build
from grpo_ext.rewards.reward import Reward

CHUNK = 250  # completions whose texts are unpacked together
# of a completion in the page, so that none holds the browser up
MOST_MESSAGES = 200
MOST_MARKS = 1000
# Shipped explanations take time in proportion to the text, so a limit of its length bounds them in
# every thread. The deadline is for explanations of the user's own, and works in the main thread.
MOST_EXPLAINED = 100_000  # characters of a completion with the columns that a reward reads
EXPLAIN_SECONDS = 2.0  # for one completion; a reward that takes longer explains no more
MOST_SAID = 10_000  # characters of an explanation
TOO_LONG = f"Not explained: completion and columns have more than {MOST_EXPLAINED:,} characters."
COLUMNS = (
    "step", "group", "length", "reward", "advantage", "dataset", "prompt", "cut", "task", "outcome",
)  # fmt: skip
# start, end, the model's, tokens that count, earned
Turn = tuple[int, int, bool, float | None, float | None]


def sample_columns(run: RunData) -> tuple[dict[str, Any], list[Any]]:
    """Return the index and the list of prompts.

    A column of the index has one entry per completion. `prompt` and `dataset` are positions in the
    list of prompts and in `datasets`; `cut` is 1 for a completion that reached the limit; `task` is
    "" where the row names none; `outcome` is the score of the reward that judged the completion's
    group, `None` if none did.
    """
    datasets: dict[tuple[str, str], int] = {}
    prompts: dict[str, object] = {}  # each as it was first logged
    prompt_numbers: dict[str, int] = {}
    columns: dict[str, list[Any]] = {name: [] for name in COLUMNS}
    reward_columns: dict[str, list[float | None]] = {reward["name"]: [] for reward in run.rewards}
    for row in run.samples:
        prompt_id = row["prompt_id"]
        prompts.setdefault(prompt_id, row["prompt"])
        task = row.get("task")
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
        }
        for column, cell in entry.items():
            columns[column].append(cell)
        for name, scores in reward_columns.items():
            scores.append(rounded(row["rewards"].get(name)))
    columns["outcome"] = list(map(rounded, outcome_scores(run)))
    index = {**columns, "rewards": reward_columns, "datasets": list(datasets)}
    return index, list(map(list, prompts.items()))


def outcome_scores(run: RunData) -> list[float | None]:
    """Return each completion's outcome reward: the first one that scored any of its group."""
    judges: dict[tuple[object, ...], str] = {}  # of each group
    for name in reversed(outcome_names(run)):  # so that the first one stays
        for row in run.samples:
            if row["rewards"].get(name) is not None:
                judges[group_of(row)] = name
    scores = []
    for row in run.samples:
        judge = judges.get(group_of(row), "")
        scores.append(row["rewards"].get(judge))
    return scores


def outcome_names(run: RunData) -> list[str]:
    """Return the outcome rewards of a run; the first reward if the run names none."""
    outcomes = run.about.get("outcomes")
    if not isinstance(outcomes, list):
        outcomes = [run.about.get("outcome")]
    names = [name for name in outcomes if isinstance(name, str)]
    if not names and run.rewards:
        names = [run.rewards[0]["name"]]
    return names


def group_of(row: Row) -> tuple[object, ...]:
    """Return what identifies the group of a completion in a run."""
    return row["step"], row["mode"], row["dataset"], row["group"]


class Explainer:
    """Explains completions by the rewards of a run, whose folder is untrusted.

    Options have the types that the reward declares, as in a recipe. A reward that is unknown here,
    that has no explanation, or whose options are wrong is left out.

    Args:
        rewards: those of `run.json`.
        faults: gets a sentence for each reward whose explanation took too long.
    """

    def __init__(self, rewards: list[Row], faults: list[str] | None = None):
        self.faults: list[str] = [] if faults is None else faults
        self.rewards: dict[str, tuple[Reward, dict[str, Any]]] = {}  # with the options of the run
        for entry in rewards:
            name = entry["name"]
            options = entry.get("options") or {}
            try:
                reward = build(entry.get("reward") or name, **options)
            except Exception:  # unknown here, or options of wrong types
                continue
            if reward.registration.explain is not None:
                self.rewards[name] = (reward, options)

    def explain(self, row: Row) -> tuple[dict[str, str], list[Mark]]:
        """Return what each reward says of a line of `samples.jsonl`, and all marks on its text.

        A reward whose columns were not logged is left out.
        """
        text, turns = conversation(row)
        start = 0
        end = len(text)
        for turn_start, turn_end, by_model, *_ in turns:
            if by_model:  # of an episode rewards read the last turn
                start = turn_start
                end = turn_end
        columns = row.get("columns")
        if not isinstance(columns, dict):
            columns = {}
        sizes = {column: len(repr(content)) for column, content in columns.items()}
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
                    f"{name} explains no further completions: one took more than "
                    f"{EXPLAIN_SECONDS:g} s."
                )
                continue
            explanations[name] = explanation
            for first, last, kind, remark in new_marks:
                marks.add((first + start, last + start, kind, remark))
        return explanations, sorted(marks)

    def explanation(
        self, name: str, text: str, columns: dict[str, Any], sizes: dict[str, int]
    ) -> tuple[str, list[Mark]]:
        """Return what one reward says of a text, and its marks; `TooLate` if that takes too long.

        `sizes` are the characters of each column.
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
                mark = (int(start), int(end), str(kind), str(remark)[:MOST_SAID])
                plain_marks.append(mark)
            text = "" if explanation is None else str(explanation)
            return text[:MOST_SAID], plain_marks


def sample_texts(rows: list[Row], explainer: Explainer) -> list[Any]:
    """Return each completion's text, reward remarks, marks, episode turns and tokens."""
    texts = []
    for row in rows:
        explanations, marks = explainer.explain(row)
        text, turns = conversation(row)
        shown_marks = marks[:MOST_MARKS]
        shown_turns = turns[:MOST_MESSAGES]
        texts.append([text, explanations, shown_marks, shown_turns, row.get("tokens")])
    return texts


def conversation(row: Row) -> tuple[str, list[Turn]]:
    """Return a completion's text on the page, and where an episode's messages are in it.

    The text of an episode is made of its messages as they are, without the backslashes of
    `transcript`, so that rewards explain what they have judged. If messages are missing or differ
    from the text of the log, that text is returned, without turns.
    """
    logged_text = row["text"]
    messages = mappings(row.get("messages"))
    contents: list[tuple[bool, str]] = []  # whether the model wrote it, and its text
    for message in messages:
        content = message.get("content")
        if not isinstance(content, str):
            return logged_text, []
        contents.append((message.get("role") == "assistant", content))
    lines = [content if by_model else f"> {content}" for by_model, content in contents]
    text = "\n".join(lines)
    if logged_text not in (text, transcript(contents)):  # earlier logs have the first form
        return logged_text, []
    turns: list[Turn] = []
    line_start = 0
    for message, line, (by_model, content) in zip(messages, lines, contents, strict=True):
        end = line_start + len(line)
        counted_tokens = number_or_none(message.get("counted_tokens"))
        earned = rounded(number_or_none(message.get("earned")))
        turns.append((end - len(content), end, by_model, counted_tokens, earned))
        line_start = end + 1  # the line's end
    return text, turns


def number_or_none(entry: object) -> float | None:
    return entry if isinstance(entry, int | float) else None


def rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
