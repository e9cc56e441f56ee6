"""Compare a poem with the pattern that fits it best, and list its faults."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from grpo_ext.rewards.poem.characters import LEVEL, RhymeBook, Tones, level_groups, tones_of
from grpo_ext.rewards.poem.forms import COUNTS, Form, counted_places, forms
from grpo_ext.rewards.poem.text import han

RHYME = "平韵"  # expected at the end of a rhyming line: a level tone
NOTHING = "无字"  # expected after the end of a line: no character


class Fault(NamedTuple):
    """A position in a poem that does not fit the pattern.

    Positions count from 0 over the whole poem: the last line of a seven-character quatrain has the
    positions 21 to 27. In a line that is too long, positions continue past the line's regular end,
    and overlap those of the next line.
    """

    position: int
    character: str | None  # None if the character is missing
    expected: str  # 平, 仄, `RHYME` or `NOTHING`


@dataclass(frozen=True)
class Verdict:
    """The result of `judge`.

    Attributes:
        form: the pattern that fits best, such as 七言绝句(仄起平收式).
        rhyme_group: the group with the most rhyming lines, such as 八齐; `None` if no rhyming line
            has a group.
        last_line_score: the share of positions in the last line without a fault, 0 to 1.
        rhyme_score: 1 if the last line has the right length and rhymes in the rhyme group, else 0.
        line_faults: the faults of each line.
        pattern: the tones of each line in `form`.
        rhyming: the rhyming lines of `form`, counted from 0, in order of precedence for
            `rhyme_group`.
    """

    form: str
    rhyme_group: str | None
    last_line_score: float
    rhyme_score: float
    line_faults: tuple[tuple[Fault, ...], ...]
    pattern: tuple[str, ...]
    rhyming: tuple[int, ...]

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, from the first line to the last."""
        return tuple(chain.from_iterable(self.line_faults))


def judge(
    lines: Sequence[str],
    *,
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> Verdict:
    """Compare a poem of 4 or 8 lines with the pattern that fits it best.

    Lines may have any length; each missing or extra character is a fault.

    Args:
        lines: the poem; only the Chinese characters count.
        tones: "modern" (Mandarin) or "pingshui" (the rhyme book). Every reading of a character is
            allowed.
        rhyme_book: "pingshui" (平水韵, 106 groups) or "xinyun" (中华新韵, 14 groups).
        strict: whether the tones of characters 1 and 3, and of character 5 in a line of seven, must
            fit. By default they are free (一三五不论).

    Raises:
        ValueError: if there are not 4 or 8 lines, or `tones` or `rhyme_book` is unknown.
    """
    if isinstance(lines, str):
        raise ValueError(
            "`lines` is a single string. Pass a list with one string for each of the 4 or 8 lines."
        )
    if len(lines) not in COUNTS:
        raise ValueError(
            f"Regulated verse has 4 or 8 lines, but `lines` has {len(lines)}. Pass a whole poem."
        )
    return judge_lines(tuple(map(han, lines)), tones, rhyme_book, strict)


@lru_cache(maxsize=4096)
def judge_lines(
    lines: tuple[str, ...], tones: Tones, rhyme_book: RhymeBook, strict: bool
) -> Verdict:
    """Compare the lines of a poem with the pattern that fits them best.

    Results are cached, because several rewards judge the same poem.

    Args:
        lines: the 4 or 8 lines, as returned by `han`. Any character that is not Chinese counts as a
            position without a known tone.
        tones: "modern" (Mandarin) or "pingshui" (the rhyme book).
        rhyme_book: "pingshui" (平水韵) or "xinyun" (中华新韵).
        strict: whether the tones must fit even at the positions that 一三五不论 leaves free.
    """
    length = line_length(lines)
    line_tones = [[tones_of(character, tones) for character in line] for line in lines]
    best = best_form(line_tones, forms(length, len(lines)), strict)
    line_faults = []
    for number, line in enumerate(lines):
        pattern = best.lines[number]
        faults = []
        for place in places_at_fault(line_tones[number], pattern, strict):
            faults.append(fault_at(place, line, pattern, number * length))
        line_faults.append(tuple(faults))
    last_line = lines[-1]
    num_places = max(len(last_line), length)
    last_line_score = (num_places - len(line_faults[-1])) / num_places
    group = shared_group([rhymes_of(lines[number], length, rhyme_book) for number in best.rhyming])
    return Verdict(
        form=best.name,
        rhyme_group=group,
        last_line_score=last_line_score,
        rhyme_score=float(group in rhymes_of(last_line, length, rhyme_book)),
        line_faults=tuple(line_faults),
        pattern=best.lines,
        rhyming=best.rhyming,
    )


def line_length(lines: Sequence[str]) -> int:
    """Return 5 or 7, whichever is the length of more lines; 7 if there is a tie.

    The last line does not count, so that a completion cannot choose the length.
    """
    lengths = [len(line) for line in lines[:-1]]
    return 5 if lengths.count(5) > lengths.count(7) else 7


def best_form(line_tones: list[list[str]], candidates: Sequence[Form], strict: bool) -> Form:
    """Return the form with the fewest faults.

    If there is a tie, a form with a rhyming first line is preferred. If there is still a tie, the
    form with the fewest faults at all positions, free or not, is returned.

    Args:
        line_tones: for each line, the possible tones of each character.
        candidates: the forms to choose from.
        strict: whether a wrong tone at a position that 一三五不论 leaves free counts as a fault.
    """

    def count_faults(form: Form, strict: bool) -> int:
        faults = 0
        for tones, pattern in zip(line_tones, form.lines, strict=True):
            faults += len(places_at_fault(tones, pattern, strict))
        return faults

    ranks = [(count_faults(form, strict), 0 not in form.rhyming) for form in candidates]
    best_rank = min(ranks)
    best = [form for form, rank in zip(candidates, ranks, strict=True) if rank == best_rank]
    if len(best) == 1:
        return best[0]
    return min(best, key=lambda form: count_faults(form, True))


def places_at_fault(tones: list[str], pattern: str, strict: bool) -> list[int]:
    """Return the positions in a line, counted from 0, at which no reading fits.

    A missing or extra character is a fault at any position.

    Args:
        tones: the possible tones of each character in the line.
        pattern: the tones that the form requires of the line.
        strict: whether the tones must fit even at the positions that 一三五不论 leaves free.
    """
    shorter, longer = sorted((len(tones), len(pattern)))
    faults = []
    for place in counted_places(len(pattern), strict):
        if place < shorter and pattern[place] not in tones[place]:
            faults.append(place)
    return [*faults, *range(shorter, longer)]


def fault_at(place: int, line: str, pattern: str, start: int) -> Fault:
    """Return the fault at a position in a line.

    Args:
        place: the position in the line, counted from 0. It must be at fault.
        line: the characters of the line.
        pattern: the tones that the form requires of the line.
        start: the position of the line's first character in the poem.
    """
    if place >= len(pattern):
        return Fault(start + place, line[place], NOTHING)
    character = line[place] if place < len(line) else None
    expected = pattern[place]
    if place == len(pattern) - 1 and expected == LEVEL:
        expected = RHYME
    return Fault(start + place, character, expected)


def rhymes_of(line: str, length: int, rhyme_book: RhymeBook) -> tuple[str, ...]:
    """Return the rhyme groups of the last character in a line.

    Return `()` if the line does not have `length` characters, or if no level-tone reading of its
    last character has a group in `rhyme_book`.
    """
    if len(line) != length:
        return ()
    return level_groups(line[-1], rhyme_book)


def shared_group(line_groups: Sequence[tuple[str, ...]]) -> str | None:
    """Return the rhyme group that most lines share; `None` if no line has a group.

    If there is a tie, the group with the earliest line wins.

    Args:
        line_groups: the rhyme groups of each rhyming line, in order of precedence.
    """

    def support(group: str) -> tuple[int, list[bool]]:
        has_group = [group in groups for groups in line_groups]
        return sum(has_group), has_group

    return max(chain.from_iterable(line_groups), key=support, default=None)
