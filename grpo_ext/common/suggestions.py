"""Suggestions for misspelled names."""

import re
from collections.abc import Iterable
from difflib import SequenceMatcher

WORD_SIMILARITY = 0.75  # minimum similarity of two words that count as the same, 0 to 1
NAME_SIMILARITY = 0.9  # the same for whole names without separators, if words were joined or split
SHORTEST_STEM = 3  # minimum letters of an abbreviation, such as `len` for `length`
MOST_MISSING = 2  # maximum words of the known name that may be missing


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` Did you mean 'x'?` for the known name closest to `name`, or `""` if none is close.

    Names are compared word by word, so that a shared ending such as `_name_or_path` does not make
    two names similar. Words may be misspelled, abbreviated, joined or split, and up to
    `MOST_MISSING` words of the known name may be missing: `generations` suggests `num_generations`.
    """
    candidates = [candidate for candidate in known if _is_near(name, candidate)]
    if not candidates:
        return ""
    nearest = max(candidates, key=lambda candidate: _similarity(name, candidate))
    return f" Did you mean {nearest!r}?"


def unknown(kind: str, name: str, known: Iterable[str]) -> str:
    """Return an error message for an unknown name, with a suggestion if a known name is close.

    If none is close, the message lists the known names, unless there are more than 30.

    Args:
        kind: the kind of thing that has the name, such as "reward".
        name: the unknown name.
        known: the known names.
    """
    names = sorted(known)
    hint = did_you_mean(name, names)
    if not hint and len(names) <= 30:
        hint = f" Known: {', '.join(names)}."
    return f"unknown {kind} {name!r}.{hint}"


def _is_near(name: str, candidate: str) -> bool:
    written = _words(name)
    meant = _words(candidate)
    if not written:
        return False
    if _similarity("".join(written), "".join(meant)) >= NAME_SIMILARITY:
        return True
    if len(meant) - len(written) > MOST_MISSING:
        return False
    remaining = iter(meant)  # shared by all words, so they must occur in the same order
    return all(any(_same_word(word, other) for other in remaining) for word in written)


def _words(name: str) -> list[str]:
    return re.findall(r"[^\W_]+", name.lower())


def _same_word(word: str, other: str) -> bool:
    shorter = min(len(word), len(other))
    if shorter >= SHORTEST_STEM and other.startswith(word):
        return True
    return _similarity(word, other) >= WORD_SIMILARITY


def _similarity(left: str, right: str) -> float:
    """Return the similarity of two strings, from 0 to 1."""
    return SequenceMatcher(None, left, right).ratio()
