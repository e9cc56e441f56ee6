"""The two rewards for a poem's last line: `poem_format` for its tones, `poem_yun` for its rhyme."""

import logging
from functools import lru_cache

from grpo_ext.rewards.poem.characters import RhymeBook, Tones
from grpo_ext.rewards.poem.explain_poem import explain_format, explain_yun
from grpo_ext.rewards.poem.forms import COUNTS
from grpo_ext.rewards.poem.judge import Verdict, judge_lines
from grpo_ext.rewards.poem.text import last_line, verse_lines
from grpo_ext.rewards.registry import register

logger = logging.getLogger(__name__)


@register("poem_format", explain=explain_format)
def poem_format(
    completions: list[str], lines: list, *, tones: Tones = "modern", rhyme_book: RhymeBook = "pingshui", strict: bool = False
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
    completions: list[str], lines: list, *, tones: Tones = "modern", rhyme_book: RhymeBook = "pingshui", strict: bool = False
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
    rows = [given_lines(tuple(map(str, row)) if isinstance(row, list | tuple) else str(row)) for row in lines]
    return [
        judge_lines((*given, last_line(completion, given)), tones, rhyme_book, strict) if given else None
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
