"""The rewards for a poem's last line: `poem_format` for its tones and `poem_yun` for its rhyme."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import first_span
from grpo_ext.rewards.explanation import Explanation, Mark
from grpo_ext.rewards.poem.characters import EITHER, RhymeBook, Tones, level_groups, tones_of
from grpo_ext.rewards.poem.forms import COUNTS
from grpo_ext.rewards.poem.judge import NOTHING, RHYME, Fault, Verdict, judge, judge_lines
from grpo_ext.rewards.poem.text import OTHER, last_line, verse_lines
from grpo_ext.rewards.registry import register

logger = logging.getLogger(__name__)

EXPECTED = {
    "平": "a level tone (平)",
    "仄": "an oblique tone (仄)",
    RHYME: "a level tone, since the line rhymes (平韵)",
}
SPOKEN = {
    "平": "level (平)",
    "仄": "oblique (仄)",
    EITHER: "level or oblique",
    "": "of unknown tone",
}


def explain_format(
    completion: str, *, lines: Sequence[str], tones: Tones = "modern", **options: Any
) -> Explanation:
    """Explain a score of `poem_format`, and mark extra characters and wrong tones.

    Args:
        completion: the text of the completion.
        lines: the poem's given lines, all but the last.
        tones: "modern" (Mandarin) or "pingshui" (the rhyme book).
        options: the options `rhyme_book` and `strict` of `poem_format`.
    """
    poem, places, verdict = judged_verse(completion, lines, tones=tones, **options)
    faults = verdict.line_faults[-1]
    start = (len(poem) - 1) * len(verdict.pattern[0])  # position of the last line in the poem
    text = []
    marks: list[Mark] = []
    for fault in faults:
        remark = describe(fault, tones)
        if fault.expected != NOTHING:
            text.append(remark)
        place = fault.position - start
        if place < len(places):
            marks.append((places[place], places[place] + 1, "fault", remark))
    header = [
        f"Last line read: {poem[-1]}"
        if poem[-1]
        else "No last line was found in the completion, or the line repeats a given one.",
        f"Form: {verdict.form}, the pattern that fits the whole poem best: "
        f"{' '.join(verdict.pattern)}",
    ]
    footer = f"poem_format {verdict.last_line_score:.3f}: faults in the last line: {len(faults)}."
    return Explanation("\n".join([*header, *text, footer]), tuple(marks))


def explain_yun(
    completion: str,
    *,
    lines: Sequence[str],
    rhyme_book: RhymeBook = "pingshui",
    **options: Any,
) -> Explanation:
    """Explain a score of `poem_yun`, and mark the last character if the score is 0.

    Args:
        completion: the text of the completion.
        lines: the poem's given lines, all but the last.
        rhyme_book: "pingshui" (平水韵) or "xinyun" (中华新韵).
        options: the options `tones` and `strict` of `poem_yun`.
    """
    poem, places, verdict = judged_verse(completion, lines, rhyme_book=rhyme_book, **options)
    text = []
    for number in sorted(verdict.rhyming):
        end = poem[number][-1:]
        if end:
            groups = ", ".join(level_groups(end, rhyme_book))
            text.append(f"{end}: {groups or 'no level tone in the rhyme book'}.")
    if verdict.rhyme_group is None:
        reason = "no line rhymes"
    elif verdict.rhyme_score:
        reason = f"{verdict.rhyme_group} has the most rhyming lines, and the last line is in it"
    else:
        reason = (
            f"{verdict.rhyme_group} has the most rhyming lines, but the last line does not end in "
            "it or has the wrong length"
        )
    text.append(f"poem_yun {verdict.rhyme_score:.0f}: {reason}.")
    marks: list[Mark] = []
    if places and not verdict.rhyme_score:
        last = places[-1]
        marks.append(
            (last, last + 1, "fault", "It does not rhyme, or the line has the wrong length.")
        )
    return Explanation("\n".join(text), tuple(marks))


def judged_verse(
    completion: str, lines: Sequence[str], **options: Any
) -> tuple[list[str], list[int], Verdict]:
    """Judge the poem to which a completion adds the last line.

    Args:
        completion: the text of the completion.
        lines: the poem's given lines, all but the last.
        options: the options of `judge`.

    Returns:
        The lines of the poem; the character offset, in the completion, of each character of the
        last line (see `locate_verse`); and the verdict.
    """
    poem, places = locate_verse(completion, lines)
    return poem, places, judge(poem, **options)


def locate_verse(completion: str, lines: Sequence[str] | str) -> tuple[list[str], list[int]]:
    """Return the lines of a poem, and where the characters of its last line are in the completion.

    The second list holds a character offset for each character of the last line. It is empty if the
    last line is missing or cannot be located.

    Args:
        completion: the text of the completion.
        lines: the poem's given lines, all but the last, as a list or one string.
    """
    given = verse_lines(lines)
    line = last_line(completion, given)
    poem = [*given, line]
    if not line:
        return poem, []
    start, stop = first_span(completion) or (0, len(completion))
    places = [i for i in range(start, stop) if not OTHER.match(completion[i])]
    first = "".join(completion[i] for i in places).rfind(line)
    if first < 0:
        return poem, []
    return poem, places[first : first + len(line)]


def describe(fault: Fault, tones: Tones) -> str:
    """Describe a fault in a sentence; `tones` is the option that the poem was judged with."""
    place = f"Position {fault.position}"
    if fault.expected == NOTHING:
        return f"{place}: {fault.character} is one character too many."
    expected = EXPECTED[fault.expected]
    if not fault.character:
        return f"{place}: the character is missing; expected {expected}."
    spoken = SPOKEN[tones_of(fault.character, tones)]
    return f"{place}: {fault.character} is {spoken}; expected {expected}."


@register("poem_format", explain=explain_format)
def poem_format(
    completions: list[str],
    lines: list,
    *,
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> list[float | None]:
    """The share of positions in the last line that fit the tone pattern of Chinese regulated verse.

    The pattern is the one that fits the whole poem best. The last line is the last run of Chinese
    characters in the first `<answer>` or, if there is none, after the thoughts. Each missing or
    extra character is a fault. A copy of a given line earns 0.

    Args:
        lines: the poem's given lines, all but the last, as a list or one string for each row. Rows
            without 3 or 7 given lines are not scored.
        tones: "modern" (Mandarin, by pypinyin) or "pingshui" (the rhyme book 平水韵). Every reading
            of a character is allowed.
        rhyme_book: has no effect here; it is accepted so that both poem rewards have the same
            options.
        strict: whether the tones of characters 1 and 3, and of character 5 in a line of seven, must
            fit; by default they are free.
    """
    verdicts = judge_completions(completions, lines, tones, rhyme_book, strict)
    return [verdict.last_line_score if verdict else None for verdict in verdicts]


@register("poem_yun", explain=explain_yun)
def poem_yun(
    completions: list[str],
    lines: list,
    *,
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> list[float | None]:
    """1 if the last line has the right length and ends in the poem's rhyme group, else 0.

    The rhyme group is the group with the most rhyming lines; only level-tone readings rhyme. The
    rhyming lines are the even lines, and the first line if it rhymes in the best pattern.

    Args:
        lines: the poem's given lines, all but the last, as a list or one string for each row. Rows
            without 3 or 7 given lines are not scored.
        tones: "modern" (Mandarin, by pypinyin) or "pingshui" (the rhyme book 平水韵). They determine
            the best pattern, and thus whether the first line rhymes.
        rhyme_book: "pingshui" (平水韵, 106 groups) or "xinyun" (中华新韵, 14 groups, by modern finals).
        strict: whether all tones count when the best pattern is chosen; by default, those of
            characters 1 and 3, and of character 5 in a line of seven, do not.
    """
    verdicts = judge_completions(completions, lines, tones, rhyme_book, strict)
    return [verdict.rhyme_score if verdict else None for verdict in verdicts]


def judge_completions(
    completions: list[str], lines: list, tones: Tones, rhyme_book: RhymeBook, strict: bool
) -> list[Verdict | None]:
    """Return a verdict for each completion; `None` for rows that do not have 3 or 7 given lines.

    Args:
        completions: the texts of the completions.
        lines: for each row, the poem's given lines as a list or one string.
        tones: "modern" (Mandarin) or "pingshui" (the rhyme book).
        rhyme_book: "pingshui" (平水韵) or "xinyun" (中华新韵).
        strict: whether the tones must fit even at the positions that 一三五不论 leaves free.
    """
    verdicts: list[Verdict | None] = []
    for completion, row in zip(completions, lines, strict=True):
        if isinstance(row, list | tuple):
            given = given_lines(tuple(map(str, row)))
        else:
            given = given_lines(str(row))
        if given is None:
            verdicts.append(None)
        else:
            poem = (*given, last_line(completion, given))
            verdicts.append(judge_lines(poem, tones, rhyme_book, strict))
    return verdicts


@lru_cache(maxsize=4096)
def given_lines(row: str | tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the given lines from a row's entry in the column `lines`.

    The entry is a tuple of lines, or one string with all of them. If it does not have 3 or 7 lines,
    return `None`, and log a warning the first time. Results are cached.
    """
    lines = tuple(verse_lines(row))
    if len(lines) + 1 in COUNTS:
        return lines
    logger.warning(
        "The column `lines` must hold 3 lines (quatrain) or 7 (eight-line verse), that is, all "
        f"but the last line of the poem; this row has {len(lines)}. The row is not scored: "
        f"{repr(row)[:100]}"
    )
    return None
