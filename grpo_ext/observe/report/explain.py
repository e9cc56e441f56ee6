"""What each reward said about a completion, in words, and the characters that it said it about."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Row = dict[str, Any]
Mark = tuple[int, int, str, str]  # first character, end, kind (`answer`, `fault`), what is said of it


def explain(row: Row, rewards: list[Row]) -> tuple[dict[str, str], list[Mark]]:
    """By reward, what it would say to the model; and marks on the completion's characters.

    Args:
        row: a line of `samples.jsonl`.
        rewards: name, registered name (`reward`) and `options` of each, as in `run.json`.

    A reward that has nothing to say, or whose columns were not kept, says nothing.
    """
    said: dict[str, str] = {}
    marks: list[Mark] = []
    for reward in rewards:
        explainer = EXPLAINERS.get(reward.get("reward") or reward["name"])
        if explainer is None:
            continue
        try:
            words, more = explainer(row["text"], row.get("columns") or {}, reward.get("options") or {})
        except (KeyError, TypeError, ValueError):  # columns of another shape than the reward reads
            continue
        said[reward["name"]] = words
        marks += [mark for mark in more if mark not in marks]
    return said, sorted(marks)


def explain_countdown(text: str, columns: Row, options: Mapping[str, Any]) -> tuple[str, list[Mark]]:
    from grpo_ext.rewards.countdown import explain_countdown

    return explain_countdown(text, columns["nums"], columns["target"], **options), answer_mark(text)


def explain_accuracy(text: str, columns: Row, options: Mapping[str, Any]) -> tuple[str, list[Mark]]:
    return f"The solution was: {columns['solution']}", answer_mark(text)


def explain_tones(text: str, columns: Row, options: Mapping[str, Any]) -> tuple[str, list[Mark]]:
    """`poem_format`: the whole verdict, and the characters of the last line whose tone is wrong."""
    from grpo_ext.rewards.poem.explain import explain_fault, explain_poem
    from grpo_ext.rewards.poem.judge import judge

    given, line, places = verse(text, columns)
    verdict = judge([*given, line], **options)
    start = len(given) * len(verdict.pattern[0])
    tones = options.get("tones", "modern")
    marks = [
        (places[at], places[at] + 1, "fault", explain_fault(fault, tones))
        for fault in verdict.line_faults[-1]
        if (at := fault.position - start) < len(places)
    ]
    return explain_poem(given, text, **options), marks


def explain_rhyme(text: str, columns: Row, options: Mapping[str, Any]) -> tuple[str, list[Mark]]:
    """`poem_yun`: the rhyme group, and the last character where it does not rhyme."""
    from grpo_ext.rewards.poem.explain import explain_rhyme
    from grpo_ext.rewards.poem.judge import judge

    given, line, places = verse(text, columns)
    verdict = judge([*given, line], **options)
    words = explain_rhyme([*given, line], verdict, options.get("rhyme_book", "pingshui"))
    rhymes = verdict.rhyme_score or not places
    marks = [] if rhymes else [(places[-1], places[-1] + 1, "fault", "The last character does not rhyme.")]
    return "\n".join(line.strip() for line in words), marks


def verse(text: str, columns: Row) -> tuple[list[str], str, list[int]]:
    """The given lines, the last line that was read, and where its characters stand in the completion."""
    from grpo_ext.rewards.poem.text import OTHER, han, last_line, verse_lines

    lines = columns["lines"]
    given = verse_lines(lines) if isinstance(lines, str) else [han(str(line)) for line in lines]
    line = last_line(text, given)
    start, stop = answer_span(text) or (0, len(text))
    places = [i for i in range(start, stop) if not OTHER.match(text[i])]
    at = "".join(text[i] for i in places).rfind(line) if line else -1
    return given, line, places[at : at + len(line)] if at >= 0 else []


def answer_mark(text: str) -> list[Mark]:
    """The answer that was read, without the blanks around it."""
    start, stop = answer_span(text) or (0, 0)
    answer = text[start:stop]
    if not answer.strip():
        return []
    start += len(answer) - len(answer.lstrip())
    return [(start, start + len(answer.strip()), "answer", "The answer that was read.")]


def answer_span(text: str) -> tuple[int, int] | None:
    """Where the first `<answer>` block's inside stands."""
    from grpo_ext.rewards.answers import ANSWER, first_answer

    answer = first_answer(text)
    if answer is None:
        return None
    start = text.find(ANSWER) + len(ANSWER)
    return start, start + len(answer)


EXPLAINERS: dict[str, Callable[[str, Row, Mapping[str, Any]], tuple[str, list[Mark]]]] = {
    "countdown": explain_countdown,
    "accuracy": explain_accuracy,
    "poem_format": explain_tones,
    "poem_yun": explain_rhyme,
}
