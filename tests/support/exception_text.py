"""Find the places of a module where the text of an exception decides something."""

import ast
import re
from collections.abc import Iterator

# Methods of a text that look for other text in it. `split()` without a separator is none of them.
SEARCHES = re.compile(
    "count|endswith|r?find|r?index|r?partition|removeprefix|removesuffix|replace|r?split|startswith"
)
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def decisions_by_text(source: str) -> Iterator[tuple[str, int]]:
    """Yield function and line of each decision by the text of an exception.

    An exception is what an `except` clause names, or a parameter annotated as one. Its text is
    `str(error)`, `error.args`, an f-string that contains it, and a name assigned from those.
    """
    tree = ast.parse(source)
    for function in [tree, *(node for node in ast.walk(tree) if isinstance(node, FUNCTIONS))]:
        errors = set(_caught(function))
        texts = _assigned_texts(function, errors)
        for node in own_nodes(function):
            if _decides(node, errors, texts):
                yield getattr(function, "name", "<module>"), node.lineno


def own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a function without those of the functions inside it."""
    for child in ast.iter_child_nodes(function):
        if not isinstance(child, FUNCTIONS):
            yield child
            yield from own_nodes(child)


def _caught(function: ast.AST) -> Iterator[str]:
    for node in own_nodes(function):
        if isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name
        annotation = getattr(node, "annotation", None) if isinstance(node, ast.arg) else None
        if annotation is not None and re.search(r"(Error|Exception)\b", ast.unparse(annotation)):
            yield node.arg


def _assigned_texts(function: ast.AST, errors: set[str]) -> set[str]:
    texts: set[str] = set()
    for node in own_nodes(function):
        if isinstance(node, ast.Assign | ast.NamedExpr) and _is_text(node.value, errors, texts):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            texts |= {target.id for target in targets if isinstance(target, ast.Name)}
    return texts


def _is_text(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    if isinstance(node, ast.Name):
        return node.id in texts
    if isinstance(node, ast.JoinedStr):
        values = [part.value for part in node.values if isinstance(part, ast.FormattedValue)]
        return any(_is_error(value, errors) or _is_text(value, errors, texts) for value in values)
    if isinstance(node, ast.BoolOp):
        return any(_is_text(value, errors, texts) for value in node.values)
    if isinstance(node, ast.Subscript):
        return _is_text(node.value, errors, texts)
    if isinstance(node, ast.Attribute):
        return node.attr in ("args", "msg", "message") and _is_error(node.value, errors)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):  # a method of a text returns a text
            return _is_text(node.func.value, errors, texts)
        return ast.unparse(node.func) in ("str", "repr") and any(
            _is_error(part, errors) or _is_text(part, errors, texts) for part in node.args
        )
    return False


def _is_error(node: ast.AST, errors: set[str]) -> bool:
    return isinstance(node, ast.Name) and node.id in errors


def _decides(node: ast.AST, errors: set[str], texts: set[str]) -> bool:
    if isinstance(node, ast.Compare):
        return any(_is_text(part, errors, texts) for part in (node.left, *node.comparators))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if ast.unparse(node.func.value) in ("re", "regex"):
            return any(_is_text(part, errors, texts) for part in node.args)
        searches = SEARCHES.fullmatch(node.func.attr) is not None and (
            node.func.attr != "split" or bool(node.args)
        )
        return searches and _is_text(node.func.value, errors, texts)
    return False
