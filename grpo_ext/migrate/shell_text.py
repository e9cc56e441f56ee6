"""Prepare the text of a shell script for `shlex`, which does not expand variables.

Here-documents and comments are blanked out, and continued lines are joined. Because `shlex` removes
quotes and backslashes, quoted and escaped dollar signs are replaced by private Unicode characters
that record whether the shell would expand them.
"""

import re
from bisect import bisect_left

LITERAL_DOLLAR = "\ue000"  # in single quotes or after a backslash
QUOTED_DOLLAR = "\ue001"  # in double quotes, where an expansion stays one word
LITERAL_TICK = "\ue002"
SUM = "\ue003"  # begins `$((...))`, written with braces because parentheses would end a word
OPEN = "\ue004"  # an opening parenthesis within `$((...))`
CLOSE = "\ue005"
CONTINUED = "\ue006"  # the end of a continued line, which counts as whitespace
PRIVATE = re.compile("[\ue000-\ue00f]")

HERE_DOCUMENT = re.compile(r"(?<!<)<<-?[ \t]*(['\"]?)(\w+)\1")
ARITHMETIC = re.compile(r"\$\(\(([\w\s+*()/${}-]{1,200}?)\)\)(?!\))")
QUOTES = re.compile(
    r"""\\(?P<escaped>.)
      | '(?P<single>[^']*)'
      | "(?P<double>(?:[^"\\]|\\.)*)"
      | (?<![^\s;|&(])\#[^\n]*""",
    re.DOTALL | re.VERBOSE,
)


def prepared(text: str) -> str:
    """Return the text of a shell script in a form that `shlex` can split.

    Here-documents become blank lines, and comments are removed. Continued lines are joined with
    whitespace or, within double quotes, without it. The private characters of this module replace
    quoted and escaped dollar signs, literal backticks, and the dollar sign and parentheses of
    `$((...))`. Private characters in the script itself become U+FFFD.
    """
    text = PRIVATE.sub("\ufffd", text)
    text = without_here_documents(text)
    text = ARITHMETIC.sub(_sum, text)
    return QUOTES.sub(_quoted, text)


def without_here_documents(text: str) -> str:
    """Return `text` with blank lines in place of here-documents, except those without an end."""
    lines = text.split("\n")
    ends: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        ends.setdefault(line.strip(), []).append(number)
    kept = []
    number = 0
    while number < len(lines):
        line = lines[number]
        kept.append(line)
        number += 1
        found = HERE_DOCUMENT.search(line)
        if found is None:
            continue
        candidates = ends.get(found[2], [])
        place = bisect_left(candidates, number)
        if place < len(candidates):
            end = candidates[place]
            kept += [""] * (end + 1 - number)
            number = end + 1
    return "\n".join(kept)


def _sum(found: re.Match[str]) -> str:
    inner = re.sub(r"[\s${}]", "", found[1])
    return f"{SUM}{{{inner.replace('(', OPEN).replace(')', CLOSE)}}}"


def _quoted(found: re.Match[str]) -> str:
    escaped = found["escaped"]
    if escaped == "\n":
        return CONTINUED
    if escaped is not None:
        return {"$": LITERAL_DOLLAR, "`": LITERAL_TICK}.get(escaped, found[0])
    if found["single"] is not None:
        return found[0].replace("$", LITERAL_DOLLAR).replace("`", LITERAL_TICK)
    if found["double"] is not None:
        text = found[0].replace("\\$", LITERAL_DOLLAR).replace("\\`", LITERAL_TICK)
        return text.replace("\\\n", "").replace("$", QUOTED_DOLLAR)
    return ""  # a comment
