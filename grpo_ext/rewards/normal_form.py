r"""Normal forms of formulas in text: terms and factors are sorted, `\frac` becomes a quotient.

Formulas have the same normal form if they differ only in the order of terms and factors, in terms
of 0 and factors of 1, or in notation, such as `\dfrac` for `\frac`. Absolute-value bars and vector
marks are ignored. Nothing is computed.
"""

import re
from collections.abc import Iterator

MAX_DEPTH = 20  # nested brackets in a formula
_DELIMITED = re.compile(r"\$\$?([^$]+)\$\$?|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[0-9]*\.[0-9]+|[0-9]+|[A-Za-z]+|\S", re.DOTALL)
_FUNCTIONS = {"sin", "cos", "tan", "log", "ln", "sqrt", "exp", "pi"}
_IGNORED = {"*", "|", r"\cdot", r"\times", r"\left", r"\right", r"\{", r"\}", r"\ ", r"\,", r"\!"}
_IGNORED |= {r"\mathbf", r"\boldsymbol", r"\vec"}  # they mark vectors
_BREAKS = {*"=<>?:;$,", r"\le", r"\ge", r"\leq", r"\geq", r"\ne", r"\neq", r"\in", r"\approx"}
_FUNCTIONS_OF = {rf"\{name}" for name in _FUNCTIONS - {"sqrt", "pi"}}
_SAME = {
    r"\dfrac": r"\frac",
    r"\tfrac": r"\frac",
    r"\div": "/",
    r"\dbinom": r"\binom",
    r"\tbinom": r"\binom",
    "√": r"\sqrt",
    r"\%": "%",
    **{name: rf"\{name}" for name in _FUNCTIONS},
}


def formulas_of(text: str) -> Iterator[str]:
    """Yield the normal form of each formula in `text`; each side of an equation is a formula.

    Some of these forms may be empty strings.
    """
    position = 0
    for match in _DELIMITED.finditer(text):
        yield from sides_of(text[position : match.start()], in_words=True)
        yield from sides_of(match[1] or match[2] or match[3], in_words=False)
        position = match.end()
    yield from sides_of(text[position:], in_words=True)


def sides_of(text: str, *, in_words: bool) -> Iterator[str]:
    """Split `text` at relation signs and punctuation, and yield the normal form of each part.

    Some of these forms may be empty strings.

    Args:
        text: the text to split.
        in_words: whether words split the text as well. If `False`, a word is parsed as a product of
            its letters.
    """
    tokens: list[str] = []
    for match in _TOKEN.finditer(text):
        token = match[0]
        is_word = len(token) > 1 and token.isalpha() and token not in _FUNCTIONS
        is_period = token == "." and not text[match.end() : match.end() + 1].isdecimal()
        if token in _BREAKS or is_period or (is_word and in_words):
            yield normal_form(tokens)
            tokens = []
        elif is_word:
            tokens += token
        elif token not in _IGNORED:
            tokens.append(_SAME.get(token, without_zeros(token)))
    yield normal_form(tokens)


def without_zeros(token: str) -> str:
    """Normalize the zeros of a decimal (`.750` becomes `0.75`); return other tokens unchanged."""
    if "." not in token or not token.replace(".", "").isdecimal():
        return token
    integer, _, decimals = token.partition(".")
    decimals = decimals.rstrip("0")
    integer = integer.lstrip("0") or "0"
    if not decimals:
        return integer
    return f"{integer}.{decimals}"


def normal_form(tokens: list[str]) -> str:
    """Return the normal form of a formula, given its tokens.

    Terms and factors are sorted, and terms of 0 and factors of 1 are dropped. Nothing is computed:
    `(x + 1)(x + 2)` is not expanded.
    """
    pending = tokens[::-1]
    form = ""
    while pending:  # an unmatched closing bracket is skipped
        form += terms_of(pending, MAX_DEPTH)
    return form


def terms_of(pending: list[str], depth: int) -> str:
    """Pop tokens until the enclosing bracket closes or none are left; return their normal form.

    Args:
        pending: the remaining tokens in reverse order. The tokens and the closing bracket are
            removed from its end.
        depth: how many more levels of brackets may be nested.
    """
    terms: list[str] = []
    factors: list[str] = []
    sign = ""
    while pending:
        token = pending.pop()
        if token in (")", "]", "}"):
            break
        if token in ("+", "-"):
            if factors:
                terms.append(sign + product(factors))
                factors = []
            sign = "-" if token == "-" else ""
        elif token in ("/", "^", "_"):
            operand = operand_of(pending, depth)
            if token == "/" or not factors:
                factors.append(token + operand)
            elif (token, operand) != ("^", "1"):
                factors[-1] += token + operand
        elif token == "!" and factors:
            factors[-1] += token
        elif token == r"\frac":
            factors.append(argument_of(pending, depth))
            factors.append("/" + argument_of(pending, depth))
        else:
            pending.append(token)
            factors.append(operand_of(pending, depth))
    if factors:
        terms.append(sign + product(factors))
    counted = sorted(term for term in terms if term.lstrip("-") != "0") or terms[:1]
    if len(counted) > 1:
        return f"({'+'.join(counted)})"
    return "".join(counted)


def operand_of(pending: list[str], depth: int) -> str:
    """Pop one operand from the end of `pending` and return its normal form.

    An operand is an atom, a minus sign with the token after it, a group in brackets, or a function
    with its arguments. Return "" if no token is left. If `depth` is 0, pop a single token and
    return it unchanged.
    """
    if not pending:
        return ""
    token = pending.pop()
    if depth == 0:
        return token
    depth -= 1
    if token in ("(", "[", "{"):
        return terms_of(pending, depth)
    if token == r"\binom":
        return f"binom({argument_of(pending, depth)};{argument_of(pending, depth)})"
    if token == r"\sqrt":
        index = operand_of(pending, depth) if pending[-1:] == ["["] else ""
        return f"sqrt{index}({argument_of(pending, depth)})"
    if token in _FUNCTIONS_OF:
        return f"{token}({operand_of(pending, depth)})"
    if token == "-" and pending:
        return "-" + pending.pop()
    return token


def argument_of(pending: list[str], depth: int) -> str:
    r"""Pop the next argument of a LaTeX command from `pending` and return its normal form.

    A digit is an argument of its own, so the arguments of `\frac12` are 1 and 2.
    """
    if pending and pending[-1].isdecimal():
        digits = pending.pop()
        pending += list(digits[:0:-1])
        return digits[0]
    return operand_of(pending, depth)


def product(factors: list[str]) -> str:
    """Return the product of the sorted factors other than 1, or "1" if there are none."""
    counted = sorted(factor for factor in factors if factor not in ("1", "/1"))
    return "*".join(counted) or "1"
