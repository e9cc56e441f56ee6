"""The judge: a poem against the pattern that fits it best, fault by fault."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from grpo_ext.rewards.poem.characters import LEVEL, OBLIQUE, RhymeBook, Tones, level_groups, tones_of
from grpo_ext.rewards.poem.forms import COUNTS, Form, counted_places, forms
from grpo_ext.rewards.poem.text import han

RHYME = "平韵"  # wanted at the end of a rhyming line
NOTHING = "无字"  # wanted behind the end of a line


class Fault(NamedTuple):
    """A place that the pattern does not allow.

    Positions count from 0 over the whole poem, so that the last line of a seven-character quatrain is 21 to 27; characters
    beyond the end of a line count on from it.
    """

    position: int
    character: str | None  # what stands there, None if nothing does
    wanted: str  # 平, 仄, 平韵 (a level tone at the end of a rhyming line), or 无字 (no character at all)

    def __str__(self) -> str:
        return f"第{self.position}字 [{self.character}] 不符合{self.wanted}"


class Flaw(NamedTuple):
    """What the free places allow and good verse avoids: 孤平 or 三平尾, in a line counted from 0. Costs nothing."""

    line: int
    name: str

    def __str__(self) -> str:
        return f"第{self.line + 1}句{self.name}"


@dataclass(frozen=True)
class Verdict:
    """What the judge found."""

    form: str  # the pattern that fits best, such as 七言绝句(仄起平收式)
    rhyme_group: str | None  # that most rhyming lines share, such as 八齐; None where none ends on a level tone
    line_scores: tuple[float, ...]  # for each line, the share of its places without fault, 0 to 1
    rhyme_score: float  # 1 if the last character is a level-tone character of the rhyme group, else 0
    line_faults: tuple[tuple[Fault, ...], ...]  # for each line, its places with a fault
    flaws: tuple[Flaw, ...]
    pattern: tuple[str, ...]  # the tones of each line that `form` stands for
    rhyming: tuple[int, ...]  # the lines that rhyme in it, from 0, in the order in which they settle the rhyme

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Every place with a fault, from the first line to the last."""
        return tuple(fault for faults in self.line_faults for fault in faults)

    @property
    def last_line_score(self) -> float:
        return self.line_scores[-1]

    def __str__(self) -> str:
        rhyme = f"{self.rhyme_group}韵" if self.rhyme_group else "无韵"
        return " ".join([self.form, rhyme, ",".join(map(str, self.faults))]).rstrip()


def judge(
    lines: Sequence[str], *, tones: Tones = "modern", rhyme_book: RhymeBook = "pingshui", strict: bool = False
) -> Verdict:
    """Judge a poem of 4 or 8 lines; the last may be of any length, even empty, what is missing being a fault.

    Args:
        lines: the poem; of each line only the Chinese characters count. `ValueError` if there are not 4 or 8.
        tones: "modern" (Mandarin) or "pingshui" (the rhyme book). Every reading of a character is allowed.
        rhyme_book: "pingshui" (平水韵, 106 groups) or "xinyun" (中华新韵, 14 groups).
        strict: whether the places 1, 3 and 5 of a line have to fit too, which are free by default (一三五不论).
    """
    if isinstance(lines, str) or len(lines) not in COUNTS:
        given = "one string" if isinstance(lines, str) else f"{len(lines)} lines"
        raise ValueError(f"Regulated verse has 4 or 8 lines, given were {given}. Pass a list with one string a line.")
    return judge_lines(tuple(map(han, lines)), tones, rhyme_book, strict)


@lru_cache(maxsize=4096)
def judge_lines(lines: tuple[str, ...], tones: Tones, rhyme_book: RhymeBook, strict: bool) -> Verdict:
    """`judge` for lines that are clean. Cached, since several rewards ask about the same poem."""
    # the length that more of the given lines have: a completion cannot choose it
    length = max((7, 5), key=[len(line) for line in lines[:-1]].count)
    spoken = [[tones_of(character, tones) for character in line] for line in lines]
    best = best_form(spoken, forms(length, len(lines)), strict)
    scores, faults, flaws = [], [], []
    for number, (line, read, pattern) in enumerate(zip(lines, spoken, best.lines, strict=True)):
        places = places_at_fault(read, pattern, strict)
        wide = max(len(line), length)
        scores.append((wide - len(places)) / wide)
        faults.append(tuple(fault_at(place, line, pattern, number * length) for place in places))
        flaws += [Flaw(number, name) for name in flaws_of(read, pattern)]
    group = shared_group([rhymes_of(lines[number], length, rhyme_book) for number in best.rhyming])
    rhyme_score = float(group in rhymes_of(lines[-1], length, rhyme_book))
    return Verdict(best.name, group, tuple(scores), rhyme_score, tuple(faults), tuple(flaws), best.lines, best.rhyming)


def best_form(spoken: list[list[str]], candidates: Sequence[Form], strict: bool) -> Form:
    """The form with the fewest faults; between equals one whose first line rhymes, then one that fits free places."""

    def misfits(form: Form, strict: bool) -> int:
        pairs = zip(spoken, form.lines, strict=True)
        return sum(len(places_at_fault(read, pattern, strict)) for read, pattern in pairs)

    ranks = [(misfits(form, strict), 0 not in form.rhyming) for form in candidates]
    equals = [form for form, rank in zip(candidates, ranks, strict=True) if rank == min(ranks)]
    return equals[0] if len(equals) == 1 else min(equals, key=lambda form: misfits(form, True))


def places_at_fault(spoken: list[str], pattern: str, strict: bool) -> list[int]:
    """Where in a line no reading fits; where a character is missing or too many, the place is never free."""
    shorter, longer = sorted((len(spoken), len(pattern)))
    counted = counted_places(len(pattern), strict)
    return [*(n for n in counted if n < shorter and pattern[n] not in spoken[n]), *range(shorter, longer)]


def fault_at(place: int, line: str, pattern: str, start: int) -> Fault:
    """The fault at a place of a line whose first character has the position `start` in the poem."""
    if place >= len(pattern):
        return Fault(start + place, line[place], NOTHING)
    rhyming = place == len(pattern) - 1 and pattern[place] == LEVEL
    return Fault(start + place, line[place] if place < len(line) else None, RHYME if rhyming else pattern[place])


def flaws_of(spoken: list[str], pattern: str) -> list[str]:
    """孤平: the one level tone left before the rhyme is between oblique ones. 三平尾: three level tones end the line.

    Only what no reading can avoid is reported.
    """
    if len(spoken) != len(pattern) or pattern[-1] != LEVEL:
        return []
    end = spoken[-5:]
    if pattern.endswith("平平仄仄平") and end[:3] == [OBLIQUE, LEVEL, OBLIQUE]:
        return ["孤平"]
    return ["三平尾"] if end[2:] == [LEVEL] * 3 else []


def rhymes_of(line: str, length: int, rhyme_book: RhymeBook) -> tuple[str, ...]:
    """The groups that a line can rhyme in; none if it is too short or too long, or ends on an oblique tone."""
    return level_groups(line[-1], rhyme_book) if len(line) == length else ()


def shared_group(rhymes: Sequence[tuple[str, ...]]) -> str | None:
    """The group of most lines; between equals, that of the line which comes first."""

    def support(group: str) -> tuple[int, list[bool]]:
        lines = [group in groups for groups in rhymes]
        return sum(lines), lines

    return max((group for groups in rhymes for group in groups), key=support, default=None)
