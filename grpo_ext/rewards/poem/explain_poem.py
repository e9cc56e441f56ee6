"""Explains the score of a completion: the line that was read, its tones beside the pattern's, and the rhyme."""

from collections.abc import Sequence

from grpo_ext.rewards.answers import first_span
from grpo_ext.rewards.explanation import Explanation, Mark
from grpo_ext.rewards.poem.characters import EITHER, RhymeBook, Tones, tones_of
from grpo_ext.rewards.poem.forms import counted_places
from grpo_ext.rewards.poem.judge import NOTHING, RHYME, Fault, Verdict, judge, rhymes_of
from grpo_ext.rewards.poem.text import OTHER, last_line, verse_lines

WANTED = {"平": "a level tone (平)", "仄": "an oblique tone (仄)", RHYME: "a level tone, since the line rhymes (平韵)"}
SPOKEN = {"平": "level (平)", "仄": "oblique (仄)", EITHER: "level or oblique", "": "of unknown tone"}
MARKS = {EITHER: "平/仄", "": "?"}


def explain_format(
    completion: str | None = None,
    *,
    lines: Sequence[str],
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> Explanation:
    """Explain `poem_format` and `poem_yun`, with marks on the characters of the last line whose tone is wrong.

    `completion` is what the model wrote, or the bare last line, and `lines` are the other lines. Without a completion, `lines`
    are the whole poem. The options and the `ValueError` are those of `judge`.
    """
    poem, places = verse(completion, lines)
    verdict = judge(poem, tones=tones, rhyme_book=rhyme_book, strict=strict)
    words = [
        f"Last line read: {poem[-1]}" if poem[-1] else "No last line was found in the completion.",
        f"Form: {verdict.form}, the pattern that fits the whole poem best:",
        *explain_pattern(poem, verdict, tones, strict),
        *explain_tones(verdict, tones),
        *explain_rhyme(poem, verdict, rhyme_book),
    ]
    start = (len(poem) - 1) * len(verdict.pattern[0])
    faults = [fault for fault in verdict.line_faults[-1] if fault.position - start < len(places)]
    marks = [mark(places[fault.position - start], explain_fault(fault, tones)) for fault in faults]
    return Explanation("\n".join(words), tuple(marks))


def explain_yun(
    completion: str | None = None,
    *,
    lines: Sequence[str],
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> Explanation:
    """Explain `poem_yun`, with a mark on the last character if it does not rhyme; arguments as for `explain_format`."""
    poem, places = verse(completion, lines)
    verdict = judge(poem, tones=tones, rhyme_book=rhyme_book, strict=strict)
    words = "\n".join(line.strip() for line in explain_rhyme(poem, verdict, rhyme_book))
    wrong = [] if verdict.rhyme_score else places[-1:]
    return Explanation(words, tuple(mark(place, "The last character does not rhyme.") for place in wrong))


def mark(place: int, words: str) -> Mark:
    return place, place + 1, "fault", words


def verse(completion: str | None, lines: Sequence[str] | str) -> tuple[list[str], list[int]]:
    """Return the lines of the poem, and the places of the last line's characters in the completion."""
    given = verse_lines(lines)
    if completion is None:
        *given, completion = given
    line = last_line(completion, given)
    start, stop = first_span(completion) or (0, len(completion))
    places = [i for i in range(start, stop) if not OTHER.match(completion[i])]
    at = "".join(completion[i] for i in places).rfind(line) if line else -1
    return [*given, line], places[at : at + len(line)] if at >= 0 else []


def explain_pattern(poem: Sequence[str], verdict: Verdict, tones: Tones, strict: bool) -> list[str]:
    """Put each line beside its pattern, with free places in parentheses, the tones of each character, and ✗ at faults."""
    length, out = len(verdict.pattern[0]), []
    counted = counted_places(length, strict)
    for number, (line, pattern, faults) in enumerate(zip(poem, verdict.pattern, verdict.line_faults, strict=True)):
        wrong = {fault.position - number * length for fault in faults}
        wanted = "".join(tone if place in counted else f"（{tone}）" for place, tone in enumerate(pattern))
        spoken = [(c, tones_of(c, tones)) for c in line[:length]]
        marked = [f"{c}{MARKS.get(t, t)}{'✗' * (place in wrong)}" for place, (c, t) in enumerate(spoken)]
        out.append(f"  {wanted}  {' '.join(marked)}")
    return out


def explain_tones(verdict: Verdict, tones: Tones) -> list[str]:
    """List the faults of the last line and its score, then the number of faults that cost nothing."""
    *given, last = verdict.line_faults
    out = [f"  {explain_fault(fault, tones)}" for fault in last if fault.wanted != NOTHING]
    if extra := len(last) - len(out):
        out.append(f"  Characters too many: {extra}.")
    out.append(f"poem_format {verdict.last_line_score:.3f}: faults in the last line: {len(last)}.")
    if any(given):
        out.append(f"Faults in the given lines, which cost nothing: {sum(map(len, given))}.")
    return out


def explain_fault(fault: Fault, tones: Tones) -> str:
    if fault.wanted == NOTHING:
        return f"Position {fault.position}: {fault.character} is too much."
    character = fault.character
    found = f"{character} is {SPOKEN[tones_of(character, tones)]}" if character else "the character is missing"
    return f"Position {fault.position}: {found}; wanted is {WANTED[fault.wanted]}."


def explain_rhyme(poem: Sequence[str], verdict: Verdict, rhyme_book: RhymeBook) -> list[str]:
    """List the groups in which each rhyming line can rhyme, the group that they share, and the score."""
    length = len(verdict.pattern[0])
    out = []
    for number in sorted(verdict.rhyming):
        line = poem[number]
        if groups := rhymes_of(line, length, rhyme_book):
            out.append(f"  Line {number + 1} ends on {line[-1]}: {', '.join(groups)}.")
        elif len(line) != length:
            out.append(f"  Line {number + 1} has {len(line)} characters instead of {length}: it rhymes with nothing.")
        else:
            out.append(f"  Line {number + 1} ends on {line[-1]}, which has no level tone in the rhyme book.")
    why = "the last line is in it" if verdict.rhyme_score else "the last line is not in it"
    group = f"most rhyming lines share {verdict.rhyme_group}, and {why}" if verdict.rhyme_group else "no line rhymes"
    return [*out, f"poem_yun {verdict.rhyme_score:.0f}: {group}."]
