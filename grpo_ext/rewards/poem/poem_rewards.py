"""The two rewards for a poem's last line, `poem_format` for its tones and `poem_yun` for its rhyme, with their explanations."""

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from grpo_ext.rewards.answers import first_span
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.poem.characters import EITHER, RhymeBook, Tones, level_groups, tones_of
from grpo_ext.rewards.poem.forms import COUNTS
from grpo_ext.rewards.poem.judge import NOTHING, RHYME, Fault, Verdict, judge, judge_lines
from grpo_ext.rewards.poem.text import OTHER, last_line, verse_lines
from grpo_ext.rewards.registry import register

logger = logging.getLogger(__name__)

WANTED = {
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


def explain_format(completion: str, *, lines: Sequence[str], **options: Any) -> Explanation:
    """Explain `poem_format`, with marks on the characters whose tone is wrong; `options` are those of `judge`."""
    poem, places = verse(completion, lines)
    verdict = judge(poem, **options)
    faults, start = verdict.line_faults[-1], (len(poem) - 1) * len(verdict.pattern[0])
    told = [
        (fault.position - start, in_words(fault, options.get("tones", "modern")))
        for fault in faults
    ]
    words = [
        f"Last line read: {poem[-1]}" if poem[-1] else "No last line was found in the completion.",
        f"Form: {verdict.form}, the pattern that fits the whole poem best: {' '.join(verdict.pattern)}",
        *(why for (_, why), fault in zip(told, faults, strict=True) if fault.wanted != NOTHING),
        f"poem_format {verdict.last_line_score:.3f}: faults in the last line: {len(faults)}.",
    ]
    marks = (
        (places[place], places[place] + 1, "fault", why)
        for place, why in told
        if place < len(places)
    )
    return Explanation("\n".join(words), tuple(marks))


def explain_yun(completion: str, *, lines: Sequence[str], **options: Any) -> Explanation:
    """Explain `poem_yun`, with a mark on the last character if it does not rhyme; `options` are those of `judge`."""
    poem, places = verse(completion, lines)
    verdict = judge(poem, **options)
    ends = [poem[number][-1:] for number in sorted(verdict.rhyming)]
    book = options.get("rhyme_book", "pingshui")
    words = [
        f"{end}: {', '.join(level_groups(end, book)) or 'no level tone in the rhyme book'}."
        for end in ends
        if end
    ]
    why = "the last line is in it" if verdict.rhyme_score else "the last line is not in it"
    group = (
        f"most rhyming lines share {verdict.rhyme_group}, and {why}"
        if verdict.rhyme_group
        else "no line rhymes"
    )
    words.append(f"poem_yun {verdict.rhyme_score:.0f}: {group}.")
    wrong = [] if verdict.rhyme_score else places[-1:]
    return Explanation(
        "\n".join(words),
        tuple((place, place + 1, "fault", "The last character does not rhyme.") for place in wrong),
    )


def verse(completion: str, lines: Sequence[str] | str) -> tuple[list[str], list[int]]:
    """Return the lines of the poem, and the places of the last line's characters in the completion."""
    given = verse_lines(lines)
    line = last_line(completion, given)
    start, stop = first_span(completion) or (0, len(completion))
    places = [i for i in range(start, stop) if not OTHER.match(completion[i])]
    at = "".join(completion[i] for i in places).rfind(line) if line else -1
    return [*given, line], places[at : at + len(line)] if at >= 0 else []


def in_words(fault: Fault, tones: Tones) -> str:
    if fault.wanted == NOTHING:
        return f"Position {fault.position}: {fault.character} is too much."
    character = fault.character
    found = (
        f"{character} is {SPOKEN[tones_of(character, tones)]}"
        if character
        else "the character is missing"
    )
    return f"Position {fault.position}: {found}; wanted is {WANTED[fault.wanted]}."


@register("poem_format", explain=explain_format)
def poem_format(
    completions: list[str],
    lines: list,
    *,
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> list[float | None]:
    """The share of the last line's places whose tone fits the pattern of Chinese regulated verse, 0 to 1.

    The pattern is the one that fits the whole poem best. The line is the last run of Chinese characters, in the first
    `<answer>` if there is one. Each missing or extra character is a fault. A copy of a given line earns 0.

    Args:
        lines: the given lines of each row, all but the last, in a list. Rows without 3 or 7 of them are not scored.
        tones: "modern" (Mandarin, by pypinyin) or "pingshui" (the rhyme book 平水韵). Every reading is allowed.
        rhyme_book: has no effect here; it lets both rewards have the same options.
        strict: whether the places 1, 3 and 5 must fit.
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
    """1 where the last line ends on a level-tone character of the poem's rhyme group, else 0.

    The group is the one that most rhyming lines share: the even ones, and the first if it rhymes in the best pattern.

    Args:
        lines: the given lines of each row, all but the last, in a list. Rows without 3 or 7 of them are not scored.
        tones: as in `poem_format`; they decide the pattern, and so whether the first line rhymes.
        rhyme_book: "pingshui" (平水韵, 106 groups) or "xinyun" (中华新韵, 14 groups, by modern finals).
        strict: as in `poem_format`.
    """
    verdicts = judge_completions(completions, lines, tones, rhyme_book, strict)
    return [verdict.rhyme_score if verdict else None for verdict in verdicts]


def judge_completions(
    completions: list[str], lines: list, tones: Tones, rhyme_book: RhymeBook, strict: bool
) -> list[Verdict | None]:
    """Return a verdict for each completion; None for rows without a poem."""
    rows = [
        given_lines(tuple(map(str, row)) if isinstance(row, list | tuple) else str(row))
        for row in lines
    ]
    return [
        judge_lines((*given, last_line(completion, given)), tones, rhyme_book, strict)
        if given
        else None
        for completion, given in zip(completions, rows, strict=True)
    ]


@lru_cache(maxsize=4096)
def given_lines(row: str | tuple[str, ...]) -> tuple[str, ...] | None:
    """Return the given lines of a row, in a list or in one text, or None with a warning if there are not 3 or 7."""
    lines = tuple(verse_lines(row))
    if len(lines) + 1 in COUNTS:
        return lines
    logger.warning(
        f"A row has {len(lines)} lines in its column `lines`, which must have all lines of a poem but the last: 3 for a "
        f"quatrain, 7 for eight-line verse. The row is not scored. The row: {repr(row)[:100]}"
    )
    return None
