"""Check whether a string follows verifiable instructions, such as a required number of words.

The names and parameters of the instructions are those in the columns `instruction_id_list` and
`kwargs` of IFEval (arXiv 2311.07911). `startend:start_checker`, `detectable_format:json_keys` and
`length_constraints:number_lines` are additions. IFEval's `language:response_language` is left out
because it needs a language detector. As in IFEval, words are runs of letters, digits and
underscores. Sentences end with `.`, `!` or `?`, whereas IFEval finds them with a trained model.
"""

import inspect
import json
import re
import string
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, validate_call

from grpo_ext.common.suggestions import did_you_mean

MAX_LENGTH = 100_000  # characters; a longer text follows no instruction
Count = Annotated[int, Field(ge=0)]
Text = Annotated[str, Field(min_length=1, max_length=10_000)]
Texts = Annotated[list[Text], Field(min_length=1, max_length=100)]
Relation = Literal["less than", "at least"]
Check = Callable[..., bool]

_checks: dict[str, Check] = {}

WORD = re.compile(r"\w+")
# Possessive, and only from the first mark of a run, so that each run is scanned only once.
SENTENCE_END = re.compile(r"(?<![.!?])[.!?]++[\"'”’)\]]*+(?=\s|$)")
BULLET = re.compile(r"^[ \t]*(?:\*(?!\*)|-)", re.MULTILINE)
PLACEHOLDER = re.compile(r"\[[^\n\[\]]*\]")
HIGHLIGHT = re.compile(r"\*\*([^\n*]+)\*\*|\*([^\n*]+)\*")
TITLE = re.compile(r"<<([^\n<>]+)>>")
POSTSCRIPTS = {
    "P.P.S": re.compile(r"p\.[ ]?p\.[ ]?s", re.IGNORECASE),
    "P.S.": re.compile(r"p\.[ ]?s\.", re.IGNORECASE),
}
ANSWERS = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def instruction(name: str) -> Callable[[Check], Check]:
    """Return a decorator that registers `check(text, *, ...)` for the instruction `name`.

    The keyword parameters of `check` are the instruction's parameters. `follows` validates their
    values against the annotations at each call. The decorator returns `check` unchanged.
    """

    def decorate(check: Check) -> Check:
        _checks[name] = validate_call(check)
        return check

    return decorate


def instruction_names() -> list[str]:
    """Return the names of all instructions."""
    return sorted(_checks)


def follows(text: str, name: str, parameters: Mapping[str, Any]) -> bool:
    """Return whether `text` follows an instruction; `False` if it is longer than `MAX_LENGTH`.

    Args:
        text: the text to check.
        name: the name of the instruction, such as `length_constraints:number_words`.
        parameters: the parameters of the instruction. `None` counts as missing, because datasets
            fill in `None` for parameters that only other rows have. Unknown parameters are ignored.

    Raises:
        ValueError: if the instruction is unknown, or a parameter is missing or invalid. Parameters
            are not checked for a text that is too long.
    """
    if name not in _checks:
        known = instruction_names()
        raise ValueError(
            f"No instruction is named {name!r}.{did_you_mean(name, known)} "
            f"Known: {', '.join(known)}."
        )
    check = _checks[name]
    takes = set(inspect.signature(check).parameters) - {"text"}
    known_parameters = {
        key: parameter
        for key, parameter in parameters.items()
        if key in takes and parameter is not None
    }
    if len(text) > MAX_LENGTH:
        return False
    try:
        return check(text, **known_parameters)
    except ValidationError as error:
        fault = error.errors()[0]
        parameter = ".".join(map(str, fault["loc"]))
        raise ValueError(
            f"The parameter {parameter} of the instruction {name} is missing or invalid "
            f"({fault['msg']}). Correct it in the column `kwargs`."
        ) from None


def compare(number: int, relation: Relation, bound: int) -> bool:
    if relation == "less than":
        return number < bound
    return number >= bound


def words_of(text: str) -> list[str]:
    """Return the words in `text`, which are runs of letters, digits and underscores."""
    return WORD.findall(text)


def count_sentences(text: str) -> int:
    """Return the number of sentences; the last one needs no punctuation mark at its end."""
    num_sentences = 0
    end = 0
    for mark in SENTENCE_END.finditer(text):
        num_sentences += 1
        end = mark.end()
    if words_of(text[end:]):
        num_sentences += 1
    return num_sentences


def parts_between(text: str, separator: str) -> list[str]:
    """Split `text` at `separator` and strip the parts; drop an empty first or last part."""
    parts = [part.strip() for part in text.split(separator)]
    if not parts[0]:
        parts.pop(0)
    if parts and not parts[-1]:
        parts.pop()
    return parts


def without_fence(text: str) -> str:
    """Strip whitespace and any code fence (``` or ```json) from both ends of `text`."""
    text = text.strip()
    for opening in ("```json", "```Json", "```JSON", "```"):
        if text.startswith(opening):
            text = text.removeprefix(opening)
            break
    return text.removesuffix("```").strip()


def read_json(text: str) -> object:
    """Parse a string as JSON, ignoring a code fence around it.

    Raises:
        ValueError: if the string is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(without_fence(text))
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None


@instruction("keywords:existence")
def has_keywords(text: str, *, keywords: Texts) -> bool:
    lowered = text.lower()
    return all(keyword.lower() in lowered for keyword in keywords)


@instruction("keywords:frequency")
def keyword_frequency(text: str, *, keyword: Text, frequency: Count, relation: Relation) -> bool:
    return compare(text.lower().count(keyword.lower()), relation, frequency)


@instruction("keywords:forbidden_words")
def avoids_words(text: str, *, forbidden_words: Texts) -> bool:
    pattern = "|".join(map(re.escape, forbidden_words))
    return re.search(rf"\b(?:{pattern})\b", text, re.IGNORECASE) is None


@instruction("keywords:letter_frequency")
def letter_frequency(
    text: str,
    *,
    letter: Annotated[str, Field(min_length=1, max_length=1)],
    let_frequency: Count,
    let_relation: Relation,
) -> bool:
    return compare(text.lower().count(letter.lower()), let_relation, let_frequency)


@instruction("length_constraints:number_words")
def number_of_words(text: str, *, num_words: Count, relation: Relation) -> bool:
    return compare(len(words_of(text)), relation, num_words)


@instruction("length_constraints:number_sentences")
def number_of_sentences(text: str, *, num_sentences: Count, relation: Relation) -> bool:
    return compare(count_sentences(text), relation, num_sentences)


@instruction("length_constraints:number_lines")
def number_of_lines(text: str, *, num_lines: Count) -> bool:
    """Return whether `text` has exactly `num_lines` lines that are not blank."""
    return sum(bool(line.strip()) for line in text.splitlines()) == num_lines


@instruction("length_constraints:number_paragraphs")
def number_of_paragraphs(text: str, *, num_paragraphs: Count) -> bool:
    """Return whether `text` has exactly `num_paragraphs` paragraphs, separated by `***`.

    Empty text before the first or after the last `***` is ignored. If any other paragraph is empty,
    return `False`.
    """
    paragraphs = parts_between(text, "***")
    return all(paragraphs) and len(paragraphs) == num_paragraphs


@instruction("length_constraints:nth_paragraph_first_word")
def first_word_of_paragraph(
    text: str, *, num_paragraphs: Count, nth_paragraph: Count, first_word: Text
) -> bool:
    """Return whether paragraph `nth_paragraph` of `num_paragraphs` begins with `first_word`.

    `nth_paragraph` counts from 1. Paragraphs are separated by empty lines, and there must be
    exactly `num_paragraphs` of them. Case and the punctuation around the word in `text` are
    ignored.
    """
    paragraphs = [part.strip() for part in text.split("\n\n") if part.strip()]
    if len(paragraphs) != num_paragraphs or not 1 <= nth_paragraph <= num_paragraphs:
        return False
    words = paragraphs[nth_paragraph - 1].split()
    word = words[0].strip(string.punctuation + "“”‘’")
    return word.lower() == first_word.lower()


@instruction("detectable_content:number_placeholders")
def number_of_placeholders(text: str, *, num_placeholders: Count) -> bool:
    """Return whether `text` has at least `num_placeholders` placeholders such as `[name]`."""
    return len(PLACEHOLDER.findall(text)) >= num_placeholders


@instruction("detectable_content:postscript")
def has_postscript(text: str, *, postscript_marker: Text) -> bool:
    pattern = POSTSCRIPTS.get(postscript_marker)
    if pattern is None:
        return postscript_marker.lower() in text.lower()
    return pattern.search(text) is not None


@instruction("detectable_format:number_bullet_lists")
def number_of_bullets(text: str, *, num_bullets: Count) -> bool:
    """Return whether exactly `num_bullets` lines of `text` begin with `-` or a single `*`.

    Spaces and tabs before the sign are ignored.
    """
    return len(BULLET.findall(text)) == num_bullets


@instruction("detectable_format:constrained_response")
def is_an_offered_answer(text: str) -> bool:
    return any(answer in text for answer in ANSWERS)


@instruction("detectable_format:number_highlighted_sections")
def number_of_highlights(text: str, *, num_highlights: Count) -> bool:
    """Return whether `text` has at least `num_highlights` parts in single or double asterisks.

    Blank parts, and parts with a line break, do not count.
    """
    highlights = HIGHLIGHT.findall(text)
    return sum(bool((bold or plain).strip()) for bold, plain in highlights) >= num_highlights


@instruction("detectable_format:multiple_sections")
def number_of_sections(text: str, *, section_spliter: Text, num_sections: Count) -> bool:
    """Return whether `text` has at least `num_sections` headings such as "Section 1".

    `section_spliter` is the word before the number.
    """
    heading = rf"{re.escape(section_spliter)}\s?\d+"
    return len(re.findall(heading, text)) >= num_sections


@instruction("detectable_format:json_format")
def is_json(text: str) -> bool:
    try:
        read_json(text)
    except ValueError:
        return False
    return True


@instruction("detectable_format:json_keys")
def is_json_with_keys(text: str, *, keys: Texts) -> bool:
    """Return whether `text` is a JSON object with exactly the given keys and no empty values."""
    try:
        written = read_json(text)
    except ValueError:
        return False
    if not isinstance(written, dict) or set(written) != set(keys):
        return False
    return all(part not in ("", None, [], {}) for part in written.values())


@instruction("detectable_format:title")
def has_title(text: str) -> bool:
    """Return whether `text` has a title in double angle brackets, such as `<<poem of joy>>`."""
    return any(title.strip() for title in TITLE.findall(text))


@instruction("combination:two_responses")
def gives_two_responses(text: str) -> bool:
    """Return whether `text` consists of two different responses, separated by six asterisks."""
    responses = parts_between(text, "******")
    return len(responses) == 2 and all(responses) and responses[0] != responses[1]


@instruction("combination:repeat_prompt")
def repeats_prompt(text: str, *, prompt_to_repeat: Text) -> bool:
    return text.strip().lower().startswith(prompt_to_repeat.strip().lower())


@instruction("startend:start_checker")
def starts_with(text: str, *, start_phrase: Text) -> bool:
    return text.strip().lower().startswith(start_phrase.strip().lower())


@instruction("startend:end_checker")
def ends_with(text: str, *, end_phrase: Text) -> bool:
    return text.strip().strip('"').lower().endswith(end_phrase.strip().lower())


@instruction("startend:quotation")
def is_quoted(text: str) -> bool:
    stripped = text.strip()
    return len(stripped) > 1 and stripped[0] == '"' and stripped[-1] == '"'


@instruction("change_case:capital_word_frequency")
def number_of_capital_words(
    text: str, *, capital_frequency: Count, capital_relation: Relation
) -> bool:
    capital_words = sum(word.isupper() for word in words_of(text))
    return compare(capital_words, capital_relation, capital_frequency)


@instruction("change_case:english_capital")
def is_uppercase(text: str) -> bool:
    return text.isupper()


@instruction("change_case:english_lowercase")
def is_lowercase(text: str) -> bool:
    return text.islower()


@instruction("punctuation:no_comma")
def has_no_comma(text: str) -> bool:
    return "," not in text
