"""Find an answer in words, such as a name or "yes", in the last sentence of a completion."""

import re
from collections.abc import Collection, Sequence

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
_VERDICT_FIRST = re.compile(
    rf"(?:^|, ){_THEREFORE}((?i:yes|no|true|false))\b(?:[,.;:!-]|$)"
    r"|\b(?:statement|claim) is (true|false)$"
)
# Words that may contradict a verdict before them: `Yes, but ...`, `Yes, it is not ...`
_RESERVATION = re.compile(
    r"\b(?:but|however|although|though|unless|except|actually|wait|maybe|perhaps|depends|only"
    r"|yes|no|true|false)\b",
    re.IGNORECASE,
)
_DENIAL = re.compile(r"\b(?:not|never|cannot|wrong|incorrect)\b|n't\b", re.IGNORECASE)
_WHOLE_NAME = r"([A-Z][a-z]+(?:\s(?:(?:of|the|da|de|van|von)\s)?[A-Z][a-z]+){0,3})"
_SUBJECT = re.compile(rf"(?:^|, ){_THEREFORE}{_WHOLE_NAME} (?!and\b|of\b)[a-z]")
_PREDICATE = re.compile(rf"\b(?:is|was|by) {_WHOLE_NAME}$")
# `This process is called evaporation`
_TERM = re.compile(
    r"\b(?:is|are|was|were) (?:also )?(?:called|named|known as|termed|referred to as) "
    r"(?:an? |the )?([a-z][a-z-]*(?: [a-z][a-z-]*){0,2})$"
)
# `in the second quadrant`, `in Quadrant II`
_ORDERED = re.compile(
    r"\b(?:(?:first|second|third|[a-z]{3,8}th|[0-9]{1,2}(?:st|nd|rd|th)) ([a-z]{3,})"
    r"|([A-Za-z][a-z]{2,}) (?:[IVX]{1,5}|[0-9]{1,2}))$"
)
_CONCESSION = re.compile(
    r"^.{1,300}, but (?:actually |in fact )?|^(?:Although|Though|While) [^,]{1,300}, "
)
_CONTRAST = re.compile(r",? (?:not|rather than|instead of) (?:[a-z]+ ){0,2}[A-Za-z]+$")
_DATE_BEHIND = re.compile(r",? (?:in|on) (?:[A-Z][a-z]+ )?(?:[0-9]{1,2}, )?[0-9]{4}$")
_WORDS = re.compile(r"[A-Za-z][A-Za-z' -]+[A-Za-z]")
_BOLD_IN_LATEX = re.compile(r"(?<!\$)\\textbf\{([A-Za-z][A-Za-z' -]*)\}")
_REMARK_AT_END = re.compile(r"\s\((?:from|since|because|which|short for)\b([^()]{1,200})\)[.\s]*\Z")
MOST_REMARKS = 2  # sentences that may follow the answer if they only add a remark
_PRONOUN = re.compile(r"(?:It|This|That|These|They|He|She|Its|His|Her|Their)\b")
# capitalized words that begin a sentence and are not names by themselves
_NO_NAME = re.compile(
    rf"{_PRONOUN.pattern}|(?:The|There|Those|We|You|Our|Your|My|In|On|At|For|From|With|After|Before"
    r"|When|Since|Because|If|As|By|To|So|And|But|Each|Every|All|Both|One|Here|Now|Then|Thus)\b"
)
_TAKEN_BACK = re.compile(
    r"\b(?:but|however|actually|wait|no|not|wrong|incorrect|instead|rather|maybe|perhaps|possibly"
    r"|might|may|could|although|though|answer|correct|correction|unless|except)\b|n't\b|\?",
    re.IGNORECASE,
)
_LONE_WORD = re.compile(r"[\s*().]*([A-Za-z]{1,30})[\s*().]*")


def with_plain_bold(text: str) -> str:
    r"""Convert words in `\textbf{}` to `**words**`, and remove an explanation from the end.

    For example, convert `So it is \textbf{Na} (from the Latin natrium).` to `So it is **Na**.` The
    explanation must be in parentheses, begin with "from", "since", "because", "which" or
    "short for", and contain no word of denial, doubt or comparison.
    """
    text = _BOLD_IN_LATEX.sub(r"**\1**", text)
    remark = _REMARK_AT_END.search(text)
    if remark is None or _UNCERTAIN.search(remark[1]):
        return text
    return f"{text[: remark.start()]}."


def words_at_end(text: str, request: Request, choices: Sequence[str]) -> str | None:
    """Return the answer in words from the last sentence, or `None` if there is none.

    Up to `MOST_REMARKS` sentences at the end are skipped if they only add a remark (see
    `is_remark`). If no answer is found and the question expects yes or no, return the verdict in
    the very last sentence, or else in the whole last line (see `verdict`).

    Args:
        text: the completion, without its thoughts.
        request: the parsed request of the question.
        choices: the contents of the question's choices.
    """
    sentences = _SENTENCE_END.split(text.strip().removesuffix("."))
    *earlier, last = sentences[-MOST_REMARKS - 1 :]
    words = words_in(last, request, choices)
    while words is None and earlier and is_remark(last, request):
        last = earlier.pop()
        words = words_in(last, request, choices)
    if words is not None or not request.is_yes_or_no:
        return words
    last_line = text.strip().rpartition("\n")[2].replace("**", "")
    return verdict(sentences[-1].replace("**", "")) or verdict(last_line)


def words_in(sentence: str, request: Request, choices: Sequence[str]) -> str | None:
    """Return the words with which a sentence answers the question, or `None` if it does not.

    Args:
        sentence: the sentence to search.
        request: the parsed request of the question.
        choices: the contents of the question's choices.
    """
    question_words = words_of(request.text)
    words = bold_words(sentence, question_words)
    claim = main_claim(sentence.replace("**", ""))
    return (
        words
        or named_choice(claim, choices, request.words)
        or term(claim, request.words)
        or ordered(claim, question_words)
        or named(claim, request.names, request.words)
        or named_choice(claim, request.alternatives, question_words)
    )


def is_remark(sentence: str, request: Request) -> bool:
    """Return whether a sentence only adds a remark, as in `It is a gas giant, larger than Saturn.`

    A remark begins with a pronoun or shares no word with the question, and contains no word such as
    "but", "not" or "may", which might withdraw the answer.
    """
    if _TAKEN_BACK.search(sentence):
        return False
    is_about_it = _PRONOUN.match(sentence) is not None
    return is_about_it or words_of(request.text).isdisjoint(words_of(sentence))


def main_claim(sentence: str) -> str:
    """Remove a concession before the main claim of a sentence, and a contrast or a date after it.

    For example, return `the capital is Bern` for `Many think it is Zurich, but the capital is Bern`
    and for `Although Zurich is larger, the capital is Bern, not Zurich`.
    """
    claim = _CONCESSION.sub("", sentence)
    return _CONTRAST.sub("", _DATE_BEHIND.sub("", claim))


def bold_words(sentence: str, question_words: frozenset[str]) -> str | None:
    """Return the bold words in a sentence, or `None` if they do not answer the question.

    The sentence must contain exactly one bold phrase and no word of denial, doubt or comparison.
    The phrase must begin or end the sentence, precede a reason, as in
    `It is **green**, since two of five sections are`, or precede a last word that is also in the
    question, as in `It is a **right** triangle`.

    Args:
        sentence: the sentence to search.
        question_words: the word stems of the question.
    """
    bold = _BOLD_WORDS.findall(sentence)
    if len(bold) != 1 or sentence.count("**") != 2 or _UNCERTAIN.search(sentence):
        return None
    before, _, after = sentence.partition(f"**{bold[0]}**")
    repeats_noun = len(after.split()) < 2 and words_of(after) <= question_words
    if before.strip() and not _REASON.match(after) and not repeats_noun:
        return None
    return bold[0]


def may_answer(sentence: str, words: frozenset[str]) -> bool:
    """Return whether a sentence may answer the question.

    It must contain a word stem in `words` and no word of denial, doubt or comparison.
    """
    return _UNCERTAIN.search(sentence) is None and not words.isdisjoint(words_of(sentence))


def named(sentence: str, names: Collection[str], words: frozenset[str]) -> str | None:
    """Return the name that answers the question: Chloe in `Therefore, Chloe is the shortest`.

    The name is the subject of the sentence or ends the sentence, as in
    `The capital of Australia is Canberra`. Return `None` if there is no such name, or if the
    sentence shares no word with the question, contains a word of denial, doubt or comparison, or
    contains several names from the question, one of which is the name found. A word such as "The"
    at the beginning of a sentence is not a name by itself.

    Args:
        sentence: the sentence to search.
        names: the capitalized words in the question.
        words: the word stems of the question's request.
    """
    if not may_answer(sentence, words):
        return None
    match = _PREDICATE.search(sentence)
    if match is None:
        match = _SUBJECT.search(sentence)
        if match is None or _NO_NAME.fullmatch(match[1]):
            return None
    name = match[1]
    known = {word for word in CAPITALIZED.findall(sentence) if word in names}
    if name in known and len(known) > 1:
        return None
    return name


def named_choice(sentence: str, choices: Sequence[str], words: frozenset[str]) -> str | None:
    """Return the only choice that a sentence names, as in `The capital of Canada is Ottawa`.

    Return `None` if the sentence names no choice or several, if it neither begins nor ends with the
    choice, if it shares no word with the question, or if it contains a word of denial, doubt or
    comparison.

    Args:
        sentence: the sentence to search.
        choices: the contents of the question's choices; choices other than words and names are
            ignored.
        words: the word stems of the question's request.
    """
    if not may_answer(sentence, words):
        return None
    named = []
    for choice in choices:
        phrase = rf"(?<![\w-]){re.escape(choice)}(?![\w-])"
        if _WORDS.fullmatch(choice) and re.search(phrase, sentence, re.IGNORECASE):
            named.append(choice)
    if len(named) != 1:
        return None
    name = re.escape(named[0])
    is_subject = re.match(rf"{_THEREFORE}(?:the )?{name} [a-z]", sentence, re.IGNORECASE)
    is_predicate = re.search(rf"{name}\Z", sentence, re.IGNORECASE)
    if is_subject is None and is_predicate is None:
        return None
    return named[0]


def term(sentence: str, words: frozenset[str]) -> str | None:
    """Return the term at the end of a sentence, as in `This process is called evaporation`.

    A term follows a phrase such as "is called" or "is known as". Return `None` if there is no term,
    if the sentence contains a word of denial, doubt or comparison, or if it shares no word stem
    with `words`, which are the stems of the question's request.
    """
    match = _TERM.search(sentence)
    if match is None or not may_answer(sentence, words):
        return None
    return match[1]


def ordered(sentence: str, question_words: frozenset[str]) -> str | None:
    """Return the numbered thing at the end of a sentence: `second quadrant` or `Quadrant II`.

    Return `None` if there is no such thing, if the question does not contain its name ("quadrant"),
    or if the sentence contains a word of denial, doubt or comparison. `question_words` are the word
    stems of the question.
    """
    match = _ORDERED.search(sentence)
    if match is None or not may_answer(sentence, question_words):
        return None
    thing = match[1] or match[2].lower()
    return match[0] if words_of(thing) <= question_words else None


def verdict(passage: str) -> str | None:
    """Return the "yes", "no", "true" or "false" that a passage states, as in `Yes, it is.`

    Return `None` if the passage states none of these, or if the rest of it might contradict the
    verdict.
    """
    match = _VERDICT_FIRST.search(passage)
    if match is None or _RESERVATION.search(passage, match.end()):
        return None
    word = match[1] or match[2]
    affirms = word.lower() in ("yes", "true")
    if affirms and _DENIAL.search(passage, match.end()):
        return None
    return word


def lone_word(text: str) -> str | None:
    match = _LONE_WORD.fullmatch(text)
    if match is None:
        return None
    return match[1]
