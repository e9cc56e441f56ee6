"""One character, several writings: simplified and traditional, and those of old books."""

from functools import lru_cache
from importlib import resources


def data_lines(name: str) -> list[str]:
    """The lines of a file of the package data, without comments."""
    text = resources.files(__package__).joinpath("data", name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if not line.startswith("#")]


@lru_cache(maxsize=1)
def variants() -> dict[str, str]:
    """Character -> the characters of 平水韵 whose readings it has, for those that are not just themselves."""
    return {line[0]: line[1:] for line in data_lines("variants.txt")}


@lru_cache(maxsize=1)
def simplified() -> dict[str, str]:
    """Traditional character -> the simplified one, where that stands for it alone, and that one -> itself."""
    pairs = {line[0]: line[1] for line in data_lines("simplified.txt")}
    return pairs | {character: character for character in pairs.values()}


def in_book(character: str) -> str:
    """The characters of 平水韵 that a character stands for: 發 and 髮 for 发; most stand for themselves."""
    return variants().get(character, character)


def in_speech(character: str) -> str:
    """The characters whose Mandarin readings a character has: itself, and, if there are several, those it stands for.

    Dictionaries give a traditional character more of the old readings than its simplified form. Where the two stand
    for each other alone, both are read as the simplified one, so that a poem gets the same verdict in either writing.
    """
    return simplified().get(character) or character + in_book(character)
