"""Explains the scores of a last line: the line that was read, its faults against the pattern, and its rhyme."""

from collections.abc import Sequence
from typing import Any

from grpo_ext.rewards.answers import first_span
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.poem.characters import EITHER, Tones, level_groups, tones_of
from grpo_ext.rewards.poem.judge import NOTHING, RHYME, Fault, judge
from grpo_ext.rewards.poem.text import OTHER, last_line, verse_lines

WANTED = {"平": "a level tone (平)", "仄": "an oblique tone (仄)", RHYME: "a level tone, since the line rhymes (平韵)"}
SPOKEN = {"平": "level (平)", "仄": "oblique (仄)", EITHER: "level or oblique", "": "of unknown tone"}


def explain_format(completion: str, *, lines: Sequence[str], **options: Any) -> Explanation:
    """Explain `poem_format`, with marks on the characters whose tone is wrong; `options` are those of `judge`."""
    poem, places = verse(completion, lines)
    verdict = judge(poem, **options)
    faults, start = verdict.line_faults[-1], (len(poem) - 1) * len(verdict.pattern[0])
    told = [(fault.position - start, in_words(fault, options.get("tones", "modern"))) for fault in faults]
    words = [
        f"Last line read: {poem[-1]}" if poem[-1] else "No last line was found in the completion.",
        f"Form: {verdict.form}, the pattern that fits the whole poem best: {' '.join(verdict.pattern)}",
        *(why for (_, why), fault in zip(told, faults, strict=True) if fault.wanted != NOTHING),
        f"poem_format {verdict.last_line_score:.3f}: faults in the last line: {len(faults)}.",
    ]
    marks = ((places[place], places[place] + 1, "fault", why) for place, why in told if place < len(places))
    return Explanation("\n".join(words), tuple(marks))


def explain_yun(completion: str, *, lines: Sequence[str], **options: Any) -> Explanation:
    """Explain `poem_yun`, with a mark on the last character if it does not rhyme; `options` are those of `judge`."""
    poem, places = verse(completion, lines)
    verdict = judge(poem, **options)
    ends = [poem[number][-1:] for number in sorted(verdict.rhyming)]
    book = options.get("rhyme_book", "pingshui")
    words = [f"{end}: {', '.join(level_groups(end, book)) or 'no level tone in the rhyme book'}." for end in ends if end]
    why = "the last line is in it" if verdict.rhyme_score else "the last line is not in it"
    group = f"most rhyming lines share {verdict.rhyme_group}, and {why}" if verdict.rhyme_group else "no line rhymes"
    words.append(f"poem_yun {verdict.rhyme_score:.0f}: {group}.")
    wrong = [] if verdict.rhyme_score else places[-1:]
    return Explanation(
        "\n".join(words), tuple((place, place + 1, "fault", "The last character does not rhyme.") for place in wrong)
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
    found = f"{character} is {SPOKEN[tones_of(character, tones)]}" if character else "the character is missing"
    return f"Position {fault.position}: {found}; wanted is {WANTED[fault.wanted]}."
