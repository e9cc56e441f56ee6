"""Find messages that a search of the sources for their first eight words does not find."""

import ast
import re
from collections.abc import Iterator

from tests.support.exception_text import FUNCTIONS, own_nodes

FIRST = 8  # words of a message that a reader searches for
ENOUGH = 3  # of them that must stand together, between values
WORDED = 4  # words that make a value a part of the sentence
WORD = re.compile(r"\S*[A-Za-z]\S*")
TEXTS = ast.JoinedStr | ast.Constant


def unfindable(source: str) -> Iterator[tuple[str, int]]:
    """Yield function and line of each message of a module that a search does not find.

    A message is any text of eight words or more but a docstring, and any f-string with a value that
    is part of the sentence: a name which the function assigns from words. Of its first eight words,
    three must follow each other without a value between them, in one line of the source.
    """
    lines = source.replace("{{", "{").replace("}}", "}").replace("\\n", "\n")
    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, FUNCTIONS)]
    for scope in (tree, *functions):
        worded = _worded_names(tree) | _worded_names(scope)
        for text in _texts(scope):
            assembled = bool(_names(text) & worded)
            is_message = assembled or len(WORD.findall(" ".join(_literals(text)))) >= FIRST
            if is_message and not any(run in lines for run in runs_of_words(text)):
                yield getattr(scope, "name", "<module>"), text.lineno


def _texts(scope: ast.AST) -> Iterator[TEXTS]:
    """Yield the f-strings and plain strings of a scope, without docstrings."""
    nodes = list(own_nodes(scope))
    parts = {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, TEXTS) and id(node) not in parts | docstrings and _literals(node):
            yield node


def _literals(text: TEXTS) -> list[str]:
    parts = text.values if isinstance(text, ast.JoinedStr) else [text]
    values = [part.value for part in parts if isinstance(part, ast.Constant)]
    return [value for value in values if isinstance(value, str)]


def runs_of_words(text: TEXTS) -> list[str]:
    """Return the runs of three or more of the first eight words, between values and line breaks."""
    runs = []
    left = FIRST
    for run in re.sub(r"\{[^{}]*\}", "\n", "\n".join(_literals(text))).split("\n"):
        words = list(WORD.finditer(run))[:left]
        left -= len(words)
        if len(words) >= ENOUGH:
            runs.append(run[words[0].start() : words[-1].end()])
    return runs


def _names(text: TEXTS) -> set[str]:
    """Return the names of the values among the first eight words, but for those after a colon."""
    names = set()
    before = ""
    for part in text.values if isinstance(text, ast.JoinedStr) else []:
        if isinstance(part, ast.Constant):
            before += part.value
        elif before.endswith((": ", ":\n")) or len(WORD.findall(before)) >= FIRST:
            continue
        elif isinstance(part.value, ast.Name):
            names.add(part.value.id)
    return names


def _worded_names(scope: ast.AST) -> set[str]:
    """Return the names that a scope assigns from texts of four words or more."""
    names = set()
    for node in own_nodes(scope):
        if isinstance(node, ast.Assign | ast.NamedExpr):
            texts = [part for part in _choices(node.value) if isinstance(part, TEXTS)]
            if any(len(WORD.findall(" ".join(_literals(text)))) >= WORDED for text in texts):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                names |= {target.id for target in targets if isinstance(target, ast.Name)}
    return names


def _choices(node: ast.AST) -> list[ast.AST]:
    if isinstance(node, ast.IfExp):
        return [*_choices(node.body), *_choices(node.orelse)]
    if isinstance(node, ast.BoolOp):
        return [part for value in node.values for part in _choices(value)]
    return [node]
