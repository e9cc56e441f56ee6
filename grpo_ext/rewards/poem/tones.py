"""Level or oblique: what tones a character can have, in Mandarin or in 平水韵."""

from functools import lru_cache
from typing import Literal, get_args

from grpo_ext.rewards.poem.mandarin import syllables
from grpo_ext.rewards.poem.rhyme_book import entries

Tones = Literal["modern", "pingshui"]

LEVEL, OBLIQUE = "平", "仄"
EITHER, UNKNOWN = LEVEL + OBLIQUE, ""


@lru_cache(maxsize=1 << 16)
def tones_of(character: str, tones: Tones = "modern") -> str:
    """The tones that a character can be read with: "平", "仄", "平仄", or "" where it has none.

    Args:
        character: one character, simplified or traditional. One that stands for several has the readings of all.
        tones: "modern": Mandarin, where tones 1 and 2 are level, 3 and 4 oblique, and the neutral tone neither.
            "pingshui": the rhyme book, where the entering tone is oblique too; characters that it does not know have
            their modern tones.

    Raises:
        ValueError: if `tones` is neither.
    """
    if tones not in get_args(Tones):
        raise ValueError(
            f"tones = {tones!r}, but there are 'modern' (Mandarin) and 'pingshui' (the rhyme book 平水韵)."
        )
    found = (
        {LEVEL if entry.tone == "平" else OBLIQUE for entry in entries(character)} if tones == "pingshui" else set()
    )
    found = found or {LEVEL if tone <= 2 else OBLIQUE for tone, _ in syllables(character) if tone}
    return "".join(tone for tone in EITHER if tone in found)
