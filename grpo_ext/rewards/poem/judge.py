"""Compares a poem with the pattern that fits it best, and lists its faults."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from grpo_ext.rewards.poem.characters import LEVEL, RhymeBook, Tones, level_groups, tones_of
from grpo_ext.rewards.poem.forms import COUNTS, Form, counted_places, forms
from grpo_ext.rewards.poem.text import han

RHYME = "平韵"  # wanted at the end of a rhyming line: a level tone
NOTHING = "无字"  # wanted after the end of a line: no character


class Fault(NamedTuple):
    """A place that does not fit the pattern.

    Positions count from 0 over the whole poem: the last line of a seven-character quatrain has the positions 21 to 27, and a
    line that is too long goes on counting from its end.
    """

    position: int
    character: str | None  # None if the character is missing
    wanted: str  # 平, 仄, `RHYME` or `NOTHING`


@dataclass(frozen=True)
class Verdict:
    """The result of `judge`."""

    form: str  # the pattern that fits best, such as 七言绝句(仄起平收式)
    rhyme_group: (
        str | None
    )  # the group that most rhyming lines share, such as 八齐; None if no line ends on a level tone
    last_line_score: float  # share of the last line's places without fault, 0 to 1
    rhyme_score: float  # 1 if the last character has a level tone and is in the rhyme group, else 0
    line_faults: tuple[tuple[Fault, ...], ...]  # for each line
    pattern: tuple[str, ...]  # the tones of each line in `form`
    rhyming: tuple[
        int, ...
    ]  # the rhyming lines of `form`, from 0, in the order in which they settle the rhyme

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All faults, from the first line to the last."""
        return tuple(fault for faults in self.line_faults for fault in faults)


def judge(
    lines: Sequence[str],
    *,
    tones: Tones = "modern",
    rhyme_book: RhymeBook = "pingshui",
    strict: bool = False,
) -> Verdict:
    """Judge a poem of 4 or 8 lines. The last line may have any length; each missing character is a fault.

    Args:
        lines: the poem; only the Chinese characters count. `ValueError` if there are not 4 or 8 lines.
        tones: "modern" (Mandarin) or "pingshui" (the rhyme book). Every reading of a character is allowed.
        rhyme_book: "pingshui" (平水韵, 106 groups) or "xinyun" (中华新韵, 14 groups).
        strict: whether the places 1, 3 and 5 of a line must fit. They are free by default (一三五不论).
    """
    if isinstance(lines, str) or len(lines) not in COUNTS:
        given = "one string" if isinstance(lines, str) else f"{len(lines)} lines"
        raise ValueError(
            f"Regulated verse has 4 or 8 lines, given were {given}. Pass a list with one string for each line."
        )
    return judge_lines(tuple(map(han, lines)), tones, rhyme_book, strict)


@lru_cache(maxsize=4096)
def judge_lines(
    lines: tuple[str, ...], tones: Tones, rhyme_book: RhymeBook, strict: bool
) -> Verdict:
    """Judge lines that have only Chinese characters. Cached, since several rewards judge the same poem."""
    # the length of most given lines, so that a completion cannot choose it
    length = max((7, 5), key=[len(line) for line in lines[:-1]].count)
    spoken = [[tones_of(character, tones) for character in line] for line in lines]
    best = best_form(spoken, forms(length, len(lines)), strict)
    faults = []
    for number, (line, read, pattern) in enumerate(zip(lines, spoken, best.lines, strict=True)):
        places = places_at_fault(read, pattern, strict)
        faults.append(tuple(fault_at(place, line, pattern, number * length) for place in places))
    wide = max(len(lines[-1]), length)
    score = (wide - len(faults[-1])) / wide
    group = shared_group([rhymes_of(lines[number], length, rhyme_book) for number in best.rhyming])
    rhyme_score = float(group in rhymes_of(lines[-1], length, rhyme_book))
    return Verdict(best.name, group, score, rhyme_score, tuple(faults), best.lines, best.rhyming)


def best_form(spoken: list[list[str]], candidates: Sequence[Form], strict: bool) -> Form:
    """Return the form with the fewest faults. A tie goes to a form whose first line rhymes, then to the best strict fit."""

    def misfits(form: Form, strict: bool) -> int:
        return sum(
            len(places_at_fault(read, pattern, strict))
            for read, pattern in zip(spoken, form.lines, strict=True)
        )

    ranks = [(misfits(form, strict), 0 not in form.rhyming) for form in candidates]
    equals = [form for form, rank in zip(candidates, ranks, strict=True) if rank == min(ranks)]
    return equals[0] if len(equals) == 1 else min(equals, key=lambda form: misfits(form, True))


def places_at_fault(spoken: list[str], pattern: str, strict: bool) -> list[int]:
    """Return the places of a line where no reading fits. A missing or extra character is a fault at free places as well."""
    shorter, longer = sorted((len(spoken), len(pattern)))
    counted = counted_places(len(pattern), strict)
    return [
        *(n for n in counted if n < shorter and pattern[n] not in spoken[n]),
        *range(shorter, longer),
    ]


def fault_at(place: int, line: str, pattern: str, start: int) -> Fault:
    """Return the fault at a place of a line whose first character has the position `start` in the poem."""
    if place >= len(pattern):
        return Fault(start + place, line[place], NOTHING)
    rhyming = place == len(pattern) - 1 and pattern[place] == LEVEL
    return Fault(
        start + place,
        line[place] if place < len(line) else None,
        RHYME if rhyming else pattern[place],
    )


def rhymes_of(line: str, length: int, rhyme_book: RhymeBook) -> tuple[str, ...]:
    """Return the groups in which a line can rhyme; none if its length is wrong or it ends on an oblique tone."""
    return level_groups(line[-1], rhyme_book) if len(line) == length else ()


def shared_group(rhymes: Sequence[tuple[str, ...]]) -> str | None:
    """Return the group of most lines. A tie goes to the line that comes first."""

    def support(group: str) -> tuple[int, list[bool]]:
        lines = [group in groups for groups in rhymes]
        return sum(lines), lines

    return max((group for groups in rhymes for group in groups), key=support, default=None)
