"""The known word that somebody meant."""

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """` Did you mean 'x'?` for the known word most like `word`, or nothing where none is like it by `cutoff`, 0 to 1.

    A word that says more or less than a known one (`generations` for `num_generations`) counts as like it, too.
    """
    known = list(known)
    containing = sorted((k for k in known if len(word) > 3 and word in k), key=len)
    guesses = difflib.get_close_matches(word, known, n=1, cutoff=cutoff) or containing
    return f" Did you mean {guesses[0]!r}?" if guesses else ""


def unknown(kind: str, word: str, known: Iterable[str]) -> str:
    """The sentence for a word that is not among the known ones."""
    known = sorted(known)
    if guess := did_you_mean(word, known):
        return f"unknown {kind} {word!r}.{guess}"
    listed = f" Known: {', '.join(known)}." if len(known) <= 30 else ""
    return f"unknown {kind} {word!r}.{listed}"
