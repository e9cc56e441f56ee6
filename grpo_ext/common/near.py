"""Suggestions for misspelt words."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """Return ` Did you mean 'x'?` for the known word most similar to `word`, or an empty text.

    `cutoff`, 0 to 1, is the least similarity. A part of a known word (`generations` of `num_generations`) is also similar.
    """
    known = list(known)
    containing = sorted((k for k in known if len(word) > 3 and word in k), key=len)
    guesses = difflib.get_close_matches(word, known, n=1, cutoff=cutoff) or containing
    return f" Did you mean {guesses[0]!r}?" if guesses else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """Return the message for a word that is not a known one."""
    known = sorted(known)
    if guess := did_you_mean(word, known):
        return f"unknown {kind} {word!r}.{guess}"
    listed = f" Known: {', '.join(known)}." if len(known) <= 30 else ""
    return f"unknown {kind} {word!r}.{listed}"
