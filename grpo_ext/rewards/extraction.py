r"""Find the answer in a completion or gold solution.

docs/rewards.md says where the answer may be.
"""

import re
from collections.abc import Sequence

from grpo_ext.rewards.answers import last_answer, last_boxes, without_thoughts
from grpo_ext.rewards.answers_in_words import lone_word, with_plain_bold, words_at_end
from grpo_ext.rewards.asides import without_notes
from grpo_ext.rewards.conclusion import with_conclusion
from grpo_ext.rewards.last_expression import MAX_ANSWER, has_words, last_expression
from grpo_ext.rewards.notation import with_ascii_signs, with_short_units
from grpo_ext.rewards.quantity import UNIT_NAMES, WORDED, with_digits
from grpo_ext.rewards.request import Request

# A line that begins another question or turn: `Question: ...`, `**Problem 2:** ...`, `Human: ...`
_NEW_QUESTION = re.compile(
    r"\n[ *#]{0,8}(?i:(?:question|problem|exercise)(?: ([0-9]{1,3}))?|human|user)[ *]{0,3}:"
    r"|<\|(?:im_start|im_end|eot_id|endoftext)\|>"
)
_ANSWERED = re.compile(r"[0-9]|\\boxed|answer", re.IGNORECASE)
MAX_ITEM = 100  # characters of a line in a list of values
MAX_TAIL = 5_000  # characters at the end that are searched for an answer without tag or box
_STATED = re.compile(r"(?:####|\banswer\**\s*(?:is\b|:|=))[\s:*]*(.+)", re.IGNORECASE)
_BOLD_AT_END = re.compile(r"\*\*([^*]+)\*\*[\s.]*\Z")
_VALUE = re.compile(r"[0-9π∞\\$]")
_NUMERAL_IN_WORDS = re.compile(
    rf"((?i:negative|minus) )?({WORDED}|(?!(?i:one) ){WORDED} [a-z]{{3,}})"
)
_OPEN_BEFORE = re.compile(r"(?:\bor|\bnot|n't|\bthan|\bto|\bat (?:least|most)|\bmaybe)\s*$")
_SENTENCE = re.compile(r"[.!?](?:\s|$)|\b(?:because|since)\b|\n")
_WITHDRAWN = re.compile(
    r"\b(?:maybe|perhaps|possibly|might be|could be|wait|actually|hmm+|oops|alternatively|on second"
    r" thought)\b[^#]{0,200}(?:[0-9]|\b(?-i:[B-H])\b)"
    r"|(?:^|[.!?\n]\s*)(?:But|However|No,)\b[^#]{0,200}[0-9]",
    re.IGNORECASE,
)
_FORMULA = re.compile(r"\$\$?[^$]*\$\$?|\\\(.*?\\\)|\\\[.*?\\\]", re.DOTALL)
_UNIT_NAME = re.compile(rf"\b(?:{UNIT_NAMES}|(?i:[ap]\.?m\.?))(?![A-Za-z])")
_WORD_BETWEEN = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or)\b)[A-Za-z]{2,}")
_NAMED = re.compile(r"\\[A-Za-z]+\{[A-Za-z ]*\}")  # \text{apples}, \begin{pmatrix}
_VERDICT = re.compile(r"(yes|no|true|false)\b[,.;:-]", re.IGNORECASE)
_ANSWER_IS = r"(?<!wrong )\b(?i:answer|choice|option)\**\s*(?i:is\b|:)[\s:*($]*([A-H])\b(?!\s[a-z])"
_IS_CORRECT = r"(?<!that )\b([A-H])\b[*)]{0,3} is (?:the )?(?:correct|right)\b"
_IT_IS = r"\b(?i:it is|it's|choose|go with) [(*]{0,3}([A-H])\b(?!\s[a-z])"  # not `it is A car`
_SO = r"\b(?i:so|therefore|thus|hence),? [(*]{0,3}([A-H])[.)*!]{0,4}\s*\Z"
_STATED_CHOICE = re.compile("|".join((_ANSWER_IS, _IS_CORRECT, _IT_IS, _SO)))
_RECONSIDERED = re.compile(r"\b(?:wait|actually|hmm+|oops|on second thought)\b", re.IGNORECASE)
_CHOSEN = re.compile(r"\b(?i:answer|choice|option)\b(?i:\s+is)?[\s:*($]*([A-H])\b(?!\s[a-z])")
_LETTER = re.compile(r"\(([A-H])\)|(?:\*\*|^)\(?([A-H])(?:\)|[.:]|\*\*|\s*$)")
# `- $x = 7$`, `2. x = -7`
_LISTED_VALUE = re.compile(
    r"""
    [ ]* (?:[-*•] | [0-9][.)]) [ ]+                  # a bullet or number
    [*$]* (?:\\\()? [ ]?                             # bold, delimiters of a formula
    ([A-Za-z]) [ ]?=[ ]? ([^=,;$*]+?)                # the unknown and its value
    [ ]? (?:\\\))? [*$]* [.,;]? (?:[ ]and)? [ ]*
    """,
    re.VERBOSE,
)
_OPTION_FIRST = re.compile(r"(?:\\text[a-z]*\{|[*(])*[A-H][)}*]*\s?[.:)]\s*\S")


def find_answer(
    completion: str,
    *,
    has_choices: bool = False,
    in_words: bool = False,
    choices: Sequence[str] = (),
    request: Request | None = None,
) -> str | None:
    """Return the answer in a completion, or `None` if none is found.

    The answer has at most `MAX_ANSWER` characters. An `<answer>` block of more than `MAX_TAIL`
    characters counts as no answer.

    Args:
        completion: the text of the completion.
        has_choices: whether the question offers choices, so that the answer may be a letter.
        in_words: whether the gold answer is in words, so that the answer may be in words as well.
        choices: the contents of the question's choices.
        request: the parsed request of the question; `None` if the question is unknown.
    """
    text = own_text(completion)
    answer = last_answer(text)
    if answer is not None and len(answer) > MAX_TAIL:
        return None
    if answer is not None:
        if not in_words:
            answer = with_conclusion_of_tag(answer, request or Request())
        return boxed(answer) or piece_of(answer, in_words)
    in_box = boxed(text)
    if in_box is not None:
        return in_box
    tail = without_notes(text[-MAX_TAIL:])
    letter = chosen_letter(tail) if has_choices else None
    request = request or Request()
    words = None
    if in_words and not _STATED.search(tail):
        passage = with_plain_bold(tail)
        words = emphasised(passage, in_words=True) or words_at_end(passage, request, choices)
    if not in_words:
        words = listed_values(tail)
        tail = with_conclusion(tail, request)
    return letter or words or stated(tail, in_words) or lone_word(text)


def with_conclusion_of_tag(answer: str, request: Request) -> str:
    """Remove notes from an `<answer>` block, and cut it after the value that the question asks for.

    See `without_notes` and `with_conclusion`. The content of the block is returned unchanged if it
    contains a box or no words, or begins with the letter of a choice.
    """
    if boxed(answer) is not None or not is_sentence(answer) or _OPTION_FIRST.match(answer.strip()):
        return answer
    return with_conclusion(without_notes(answer), request)


def own_text(completion: str) -> str:
    """Return a completion without its thoughts and without a new question after the answer.

    A model that does not stop may go on with `Question: ...` or another turn of a conversation. The
    text is cut before the first such question or turn, except in three cases, in which it may be
    part of the solution:

    - the completion begins with a question,
    - the first question has the number 1, as in `Problem 1:`, or
    - no number, box or word "answer" precedes it.
    """
    text = without_thoughts(completion)
    begins_with_question = _NEW_QUESTION.match("\n" + text[:MAX_TAIL].lstrip()) is not None
    question = _NEW_QUESTION.search(text)
    if begins_with_question or question is None or question[1] == "1":
        return text
    if not _ANSWERED.search(text, 0, question.start()):
        return text
    return text[: question.start()]


def is_marked(completion: str) -> bool:
    """Return whether the answer in a completion is marked.

    The marks are an `<answer>` block, a box and, in the last `MAX_TAIL` characters, `####` or a
    phrase such as "answer is" or "answer:".
    """
    text = own_text(completion)
    has_answer = last_answer(text) is not None
    has_box = boxed(text) is not None
    is_stated = _STATED.search(text[-MAX_TAIL:]) is not None
    return has_answer or has_box or is_stated


def chosen_letter(text: str) -> str | None:
    """Return the letter of the option that a completion chooses, or `None` if there is none.

    The letter comes from the last statement such as "the answer is C". If there is no such
    statement, or if a word such as "wait" follows it, the letter comes from the last line, as in
    `Choice D) 10.`
    """
    statements = list(_STATED_CHOICE.finditer(text))
    if statements and not _RECONSIDERED.search(text, statements[-1].end()):
        return next(filter(None, statements[-1].groups()))
    lines = text.strip().splitlines()
    if not lines:
        return None
    chosen = [match[1] for match in _CHOSEN.finditer(lines[-1])]
    named = [match[1] or match[2] for match in _LETTER.finditer(lines[-1])]
    letters = chosen or named
    if not letters:
        return None
    return letters[-1]


def listed_values(text: str) -> str | None:
    """Return the values in a list at the end of `text`, joined as in `x = 7, x = -7`.

    Each line of the list assigns a value to the same unknown. Return `None` if there is no list of
    at least two lines, if the unknowns differ, or if the result is longer than `MAX_ANSWER`.
    """
    items = []
    for line in reversed(text.rstrip().splitlines()):
        item = None
        if len(line) <= MAX_ITEM:
            item = _LISTED_VALUE.fullmatch(line)
        if item is None or has_words(item[2]):
            break
        items.append(f"{item[1]} = {item[2]}")
    names = {item[0] for item in items}
    values = ", ".join(reversed(items))
    if len(items) < 2 or len(names) != 1 or len(values) > MAX_ANSWER:
        return None
    return values


def boxed(text: str) -> str | None:
    r"""Return the content of the last `\boxed{...}`, or of all boxes in the list that ends with it.

    Return `None` if there is no box, or if the result is empty or longer than `MAX_ANSWER`.
    """
    content = (last_boxes(text) or "").strip()
    if not 0 < len(content) <= MAX_ANSWER:
        return None
    return content


def stated(text: str, in_words: bool = False) -> str | None:
    """Return the answer after the last `####` or phrase such as "answer is" or "answer:".

    If words such as "wait" or "maybe" and another value follow this answer, it is withdrawn, and
    the answer that is stated after them is returned instead, or `None` if there is none. If `text`
    contains neither `####` nor such a phrase, return the bold text at the end, or else the last
    formula or number. With `in_words`, a stated answer that begins with "yes", "no", "true" or
    "false" and a punctuation mark is reduced to that word.
    """
    statements = list(_STATED.finditer(text))
    if not statements:
        return emphasised(text) or last_expression(text)
    last = statements[-1]
    sentence = _SENTENCE.split(last[1], maxsplit=1)[0]
    after = text[last.start(1) + len(sentence) :]
    if not _WITHDRAWN.search(after):
        return piece_of(sentence, in_words)
    if _STATED.search(after):
        return stated(after, in_words)
    return None


def emphasised(text: str, *, in_words: bool = False) -> str | None:
    """Return the bold answer at the end of `text`, as in `So **x = 2, y = 3**.`

    Bold text that ends with a colon does not count, and bold words without a number or formula
    count only with `in_words`. A number in words is converted to digits; it does not count after
    "or", "not" or a similar word. One other word may follow the number, as in `**three apples**`,
    but not after "one", because `**One moment**` is not an answer. Return `None` if there is no
    such answer.
    """
    match = _BOLD_AT_END.search(text[-MAX_ANSWER:])
    if match is None:
        return None
    bold = match[1]
    if bold.rstrip().endswith(":"):
        return None
    numeral = _NUMERAL_IN_WORDS.fullmatch(bold.strip(" ."))
    if numeral is None:
        if not in_words and not _VALUE.search(bold):
            return None
        return piece_of(bold, in_words)
    if _OPEN_BEFORE.search(text[: match.start()]):
        return None
    sign = "-" if numeral[1] else ""
    return sign + with_digits(numeral[2])


def piece_of(text: str, in_words: bool = False) -> str | None:
    """Return the last formula or number in an answer that is a sentence, or else the whole answer.

    Signs and units are normalized first, and outer asterisks and a final period are removed. If
    `text` contains `####` or a phrase such as "answer is" or "answer:", only the rest of that
    sentence is used. A sentence without a formula or number, or one that begins with an option
    letter such as `(B)`, is returned as a whole. Return `None` if the whole answer would be empty
    or longer than `MAX_ANSWER`. With `in_words`, an answer that begins with "yes", "no", "true" or
    "false" and a punctuation mark is reduced to that word.
    """
    text = with_short_units(with_ascii_signs(text.strip(" \t\r\n*"))).removesuffix(".")
    statement = _STATED.search(text)
    if statement is not None:
        text = _SENTENCE.split(statement[1])[0]
    verdict = _VERDICT.match(text) if in_words else None
    if verdict is not None:
        return verdict[1]
    if is_sentence(text) and not _OPTION_FIRST.match(text):
        expression = last_expression(text)
        if expression:
            return expression
    if not 0 < len(text) <= MAX_ANSWER:
        return None
    return text


def is_sentence(text: str) -> bool:
    """Return whether an answer contains words outside its formulas, except "and", "or" and units.

    An answer longer than `MAX_ANSWER` counts as a sentence.
    """
    if len(text) > MAX_ANSWER:
        return True
    outside, formulas = _FORMULA.subn(" ", text.replace(r"\$", ""))
    if not formulas:
        return has_words(text)
    unnamed = _NAMED.sub("", _UNIT_NAME.sub("", outside))
    return _WORD_BETWEEN.search(unnamed) is not None
