"""Find an answer in words in the last sentence: words in bold, yes or no, a name."""

import re
from collections.abc import Collection

from grpo_ext.rewards.request import CAPITALIZED, Request, words_of

_SENTENCE_END = re.compile(r"[.!?]\s|\n")
_BOLD_WORDS = re.compile(r"\*\*([A-Za-z][A-Za-z '.-]*[A-Za-z])\*\*")
_REASON = re.compile(r",? (?:since|because|as|for)\b")
_UNCERTAIN = re.compile(
    r"\b(?:not|never|no|nor|neither|or|than|but|however|if|maybe|perhaps|possibly|might|could"
    r"|instead|rather"
    r"|unlike|except|wrong|incorrect|false|impossible|seems?|while|although|cannot)\b|n't\b|\?",
    re.IGNORECASE,
)
_THEREFORE = r"(?:(?i:so|thus|hence|therefore|finally),? )?"
_VERDICT_FIRST = re.compile(rf"{_THEREFORE}\**((?i:yes|no|true|false))\b\**(?:[,.;:!-]|$)")
# What may contradict a verdict before it: `Yes, but ...`, `Yes, it is not ...`
_RESERVATION = re.compile(
    r"\b(?:but|however|although|though|unless|except|actually|wait|maybe|perhaps|depends|only"
    r"|yes|no|true|false)\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:not|never|cannot|wrong|incorrect)\b|n't\b", re.IGNORECASE)
_SUBJECT = re.compile(rf"{_THEREFORE}([A-Z][a-z]+) (?:is|was|has|had|did|will|can|[a-z]+s)\b")
_PREDICATE = re.compile(r"\b(?:is|was) ([A-Z][a-z]+)$")
_LONE_WORD = re.compile(r"[\s*().]*([A-Za-z]{1,30})[\s*().]*")


def words_at_end(text: str, request: Request) -> str | None:
    """Return the words with which the last sentence answers a question, or `None`."""
    sentence = last_sentence(text)
    words = bold_words(sentence) or named_subject(sentence, request.names, request.words)
    if words is not None or not request.is_yes_or_no:
        return words
    last_line = text.strip().rpartition("\n")[2]
    return verdict(sentence) or verdict(last_line)


def last_sentence(text: str) -> str:
    return _SENTENCE_END.split(text.strip().removesuffix("."))[-1]


def bold_words(sentence: str) -> str | None:
    """Return the only bold words of a sentence.

    They must begin the sentence, or a reason must follow, as in `It is **green**, since two of five
    sections are.` Otherwise, return `None`, and also if the sentence has a word of denial, doubt or
    comparison.
    """
    bold = _BOLD_WORDS.findall(sentence)
    if len(bold) != 1 or sentence.count("**") != 2 or _UNCERTAIN.search(sentence):
        return None
    before, _, after = sentence.partition(f"**{bold[0]}**")
    if before.strip() and not _REASON.match(after):
        return None
    return bold[0]


def named_subject(sentence: str, names: Collection[str], words: frozenset[str]) -> str | None:
    """Return the name of whom a sentence is about: Chloe in `Therefore, Chloe is the shortest.`

    The sentence must have exactly one of the question's names, and a word of what the question
    asks. `None` otherwise, and if the sentence has a word of denial, doubt or comparison.
    """
    if _UNCERTAIN.search(sentence) or not words & words_of(sentence):
        return None
    named = {name for name in CAPITALIZED.findall(sentence) if name in names}
    subject = _SUBJECT.match(sentence) or _PREDICATE.search(sentence)
    if subject is None or named != {subject[1]}:
        return None
    return subject[1]


def verdict(passage: str) -> str | None:
    """Return the yes, no, true or false that begins a passage, unless the rest contradicts it."""
    match = _VERDICT_FIRST.match(passage)
    if match is None or _RESERVATION.search(passage, match.end()):
        return None
    affirms = match[1].lower() in ("yes", "true")
    if affirms and _DENIAL.search(passage, match.end()):
        return None
    return match[1]


def lone_word(text: str) -> str | None:
    match = _LONE_WORD.fullmatch(text)
    if match is None:
        return None
    return match[1]
