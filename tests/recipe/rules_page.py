"""Write `docs/rules.md`: every rule that refuses or notes a setting, by recipe key.

`make rules` runs it. Rules are read from `GRPO_RULES` and its siblings; the checks of rows,
prompts, rewards and machine are the functions of `grpo_ext/preflight` that add findings.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from trl import ModelConfig, SFTConfig

from grpo_ext.recipe.notes import GRPO_NOTES, SFT_NOTES
from grpo_ext.recipe.rule_kinds import Dependency, Idle, Refusal, Rule
from grpo_ext.recipe.rules import GRPO_RULES, SFT_RULES
from grpo_ext.recipe.schema import GRPOExtConfig, LaunchConfig, RunConfig
from grpo_ext.tasks.prompts import Prompts
from tests.support.places import REPO

PAGE = REPO / "docs" / "rules.md"
CLASSES = (GRPOExtConfig, RunConfig, ModelConfig, SFTConfig, LaunchConfig, Prompts)
FIELDS = {field.name for cls in CLASSES for field in dataclasses.fields(cls)}
REFUSED = "refused"
BY_SFT = "refused by sft"
CHECKED = "checked"
NOTED = "noted"
ORDER = (REFUSED, BY_SFT, CHECKED, NOTED)
KINDS = {"problem": CHECKED, "note": NOTED, "absent": CHECKED}  # the methods of `Findings`
ANY = "any training argument"
INTRODUCTION = """# Rules by key

This page lists every rule that refuses a setting or notes it. Look for the key that your message \
is about; a heading such as `vllm_*` is for all keys that begin like it. `make rules` writes the \
page from the code.

| | |
|---|---|
| **refused** | `grpo-ext check`, `plan` and `train` refuse the recipe, and `GRPOExtTrainer` its \
arguments, before a model is loaded |
| **refused by sft** | `grpo-ext sft` refuses the recipe |
| **checked** | `grpo-ext check`, and `train` before it starts, refuse the recipe after a look at \
its rows, prompts, rewards or this machine |
| **noted** | the recipe is used, and the note says what has no effect or is unusual |

Each entry ends with its file in `grpo_ext/` and its function. In a message, `…` stands for a \
value. Before these rules, every value is checked against the type, choices and bounds of its \
field; after them, the trainer refuses what only the model, the sampler or the data can show, with \
the key at the beginning of the message.
"""


@dataclass(frozen=True)
class Entry:
    """What one rule says about one key."""

    key: str
    kind: str
    summary: str
    place: str  #: file and function
    messages: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Return the lines of the page."""
        first = f"- **{self.kind}** {self.summary} (`{self.place}`)"
        return [first, *(f"  - “{message}”" for message in self.messages)]


@dataclass
class Source:
    """The source of a module, to find the keys and messages of its functions."""

    module: ModuleType

    def __post_init__(self) -> None:
        tree = ast.parse(inspect.getsource(self.module))
        self.functions = {n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)}

    def place(self, function: str | None = None) -> str:
        file = Path(inspect.getsourcefile(self.module) or "").relative_to(REPO / "grpo_ext")
        return f"{file.as_posix()}: {function}" if function else file.as_posix()

    def keys(self, node: ast.expr, function: ast.FunctionDef) -> set[str]:
        """Return the fields that an expression in a function may evaluate to."""
        found: set[str] = set()
        for part in ast.walk(node):
            if isinstance(part, ast.Constant) and part.value in FIELDS:
                found.add(part.value)
            if isinstance(part, ast.Call) and isinstance(part.func, ast.Name):
                found |= self.keys_of_call(part.func.id)
            if isinstance(part, ast.Name):
                found |= self.keys_of_name(part.id, function)
        return found

    def keys_of_call(self, name: str) -> set[str]:
        """Return the fields that a function of this module, or of one of its room, returns."""
        called = getattr(self.module, name, None)
        room = self.module.__name__.rpartition(".")[0]
        if not inspect.isfunction(called) or called.__module__.rpartition(".")[0] != room:
            return set()
        owner = Source(importlib.import_module(called.__module__))
        return owner.keys_returned(owner.functions[name])

    def keys_returned(self, function: ast.FunctionDef) -> set[str]:
        returns = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
        found: set[str] = set()
        for returned in filter(None, returns):
            found |= {ast.unparse(part).strip("'") for part in ast.walk(returned)} & FIELDS
            if isinstance(returned, ast.Name):
                found |= self.keys_of_name(returned.id, function)
        return found or {ANY}

    def keys_of_name(self, name: str, function: ast.FunctionDef) -> set[str]:
        """Return the fields that a variable may hold: a constant, a loop's item or a parameter."""
        constant = getattr(self.module, name, None)
        if isinstance(constant, str):
            return {constant} & FIELDS
        found: set[str] = set()
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                found |= self.keys(node.value, function)
            if isinstance(node, ast.For):
                targets = node.target.elts if isinstance(node.target, ast.Tuple) else [node.target]
                names = [ast.unparse(target) for target in targets]
                if name in names:
                    found |= self.keys_of_items(node.iter, names.index(name))
        parameters = [parameter.arg for parameter in function.args.args]
        if name in parameters and name != "findings":
            found |= self.keys_given(function.name, parameters.index(name))
        return found

    def keys_of_items(self, iterated: ast.expr, index: int) -> set[str]:
        try:
            code = compile(ast.Expression(iterated), "<loop>", "eval")
            items = list(eval(code, vars(self.module)))
        except Exception:  # it depends on the values of a recipe
            return set()
        return {item if isinstance(item, str) else item[index] for item in items} & FIELDS

    def keys_given(self, called: str, index: int) -> set[str]:
        """Return the fields that callers in the room give as an argument."""
        found: set[str] = set()
        for source in sources(self.module.__name__.rpartition(".")[0]):
            for function in source.functions.values():
                for node in ast.walk(function):
                    if isinstance(node, ast.Call) and ast.unparse(node.func) == called:
                        found |= source.keys(node.args[index], function)
        return found


def sources(room: str) -> Iterator[Source]:
    """Yield the modules of a room."""
    folder = REPO / room.replace(".", "/")
    for path in sorted(folder.glob("*.py")):
        if path.stem != "__init__":
            yield Source(importlib.import_module(f"{room}.{path.stem}"))


def written(call: ast.Call, key: str, scope: ast.FunctionDef, module: ModuleType) -> list[str]:
    """Return the messages that a call about `key` may give, with `…` for other values.

    Args:
        call: a call of `Problem`, or of a method of `Findings`.
        key: the key that it is about.
        scope: the function that calls, which may assign the message to a variable.
        module: its module, which may have the message, or a function that returns it.
    """
    message, name = call.args[:2]
    found: list[str] = []
    for literal in literals(message, scope, module):
        text = ""
        for part in literal.values if isinstance(literal, ast.JoinedStr) else [literal]:
            if isinstance(part, ast.FormattedValue):
                text += key if ast.unparse(part.value) == ast.unparse(name) else "…"
            elif isinstance(part, ast.Constant):
                text += str(part.value)
        if len(re.findall(r"\w+", text)) > 2:
            found.append(text)
    return found


def literals(node: ast.AST, scope: ast.FunctionDef, module: ModuleType) -> Iterator[ast.expr]:
    """Yield the texts that an expression may evaluate to."""
    if isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    ):
        yield node
    elif isinstance(node, ast.Name) and isinstance(getattr(module, node.id, None), str):
        yield ast.Constant(getattr(module, node.id))
    elif isinstance(node, ast.Name):
        for part in ast.walk(scope):
            if isinstance(part, ast.Assign | ast.NamedExpr):
                target = part.target if isinstance(part, ast.NamedExpr) else part.targets[0]
                if ast.unparse(target) == node.id:
                    yield from literals(part.value, scope, module)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        called = getattr(module, node.func.id, None)
        if inspect.isfunction(called):
            function = ast.parse(inspect.getsource(called)).body[0]
            for part in ast.walk(function):
                if isinstance(part, ast.Return) and part.value is not None:
                    yield from literals(part.value, function, inspect.getmodule(called))


def summary_of(function: ast.FunctionDef) -> str:
    """Return the first line of a rule without "Yield a problem": "if ..." or "for each ..."."""
    summary = (ast.get_docstring(function) or "").partition("\n")[0]
    return re.sub(r"^Yield (a )?(problem|note)s? ", "", summary)


def of_function(source: Source, name: str, kind: str, called: str = "") -> Iterator[Entry]:
    """Yield the entries of a rule, with those of the functions of its module that it calls."""
    rule = source.functions[name]
    function = source.functions[called or name]
    messages: dict[str, list[str]] = {}
    for node in ast.walk(function):
        if not isinstance(node, ast.Call):
            continue
        callee = ast.unparse(node.func)
        if callee in source.functions and callee != function.name:
            yield from of_function(source, name, kind, callee)
        if callee != "Problem":
            continue
        for key in source.keys(node.args[1], function):
            messages.setdefault(key, []).extend(written(node, key, function, source.module))
    place = source.place(name)
    for key, texts in messages.items():
        yield Entry(key, kind, summary_of(rule), place, tuple(dict.fromkeys(texts)))


def value(option: Any) -> str:
    """Return a value as a recipe has it."""
    if option is None or isinstance(option, bool):
        return {None: "null", True: "true", False: "false"}[option]
    return str(option)


def of_rule(rule: Rule, kind: str, by_id: dict[int, Source]) -> Iterator[Entry]:
    """Yield the entries of one rule."""
    if isinstance(rule, Refusal):
        source = Source(importlib.import_module(rule.holds.__module__))
        message = re.sub(r"\{[^}]*\}", "…", rule.message)
        yield Entry(rule.key, kind, message, source.place(rule.holds.__name__))
    elif isinstance(rule, Dependency):
        needs = []
        for key, fitting in rule.needed.items():
            first, *others = map(value, fitting)
            needs.append(" or ".join([f"`{key}: {first}`", *(f"`{other}`" for other in others)]))
        free = ", ".join(f"`{value(option)}`" for option in dict.fromkeys(rule.free))
        text = f"Any value but {free} needs {', '.join(needs)}."
        yield Entry(rule.key, kind, text, by_id[id(rule)].place())
    elif isinstance(rule, Idle):
        for pattern in rule.patterns:
            text = f"Does nothing without {rule.remedy}."
            yield Entry(pattern, kind, text, by_id[id(rule)].place())
    else:
        source = Source(importlib.import_module(rule.__module__))
        yield from of_function(source, rule.__name__, kind)


def of_checks(source: Source) -> Iterator[Entry]:
    """Yield the findings of the functions of a module of preflight."""
    for name, function in source.functions.items():
        messages: dict[tuple[str, str], list[str]] = {}
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
                continue
            kind = KINDS.get(node.func.attr)
            if ast.unparse(node.func.value) != "findings" or kind is None or len(node.args) < 2:
                continue
            keys = source.keys(node.args[1], function)
            assert keys, f"{source.place(name)}: line {node.lineno}: which key is this about?"
            for key in keys:
                messages.setdefault((key, kind), []).extend(
                    written(node, key, function, source.module)
                )
        for (key, kind), texts in messages.items():
            summary = summary_of(function)
            yield Entry(key, kind, summary, source.place(name), tuple(dict.fromkeys(texts)))


def entries() -> list[Entry]:
    """Return all entries, each once."""
    by_id: dict[int, Source] = {}
    for source in sources("grpo_ext.recipe"):
        for table in ("RULES", "NOTES"):
            by_id |= {id(rule): source for rule in getattr(source.module, table, ())}
    found: list[Entry] = []
    kinds = [(rule, REFUSED) for rule in GRPO_RULES]
    kinds += [(rule, BY_SFT) for rule in SFT_RULES if rule not in GRPO_RULES]
    kinds += [(rule, NOTED) for rule in dict.fromkeys((*GRPO_NOTES, *SFT_NOTES))]
    for rule, kind in kinds:
        found += of_rule(rule, kind, by_id)
    for source in sources("grpo_ext.preflight"):
        found += of_checks(source)
    return list(dict.fromkeys(found))


def page() -> str:
    """Return the page."""
    by_key: dict[str, list[Entry]] = {}
    for entry in entries():
        by_key.setdefault(entry.key, []).append(entry)
    lines = [INTRODUCTION]
    for key in sorted(by_key, key=lambda name: (name == ANY, name)):
        lines.append(f"## {key}\n")
        for entry in sorted(by_key[key], key=lambda entry: ORDER.index(entry.kind)):
            lines += entry.lines()
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"{PAGE.relative_to(REPO)} is written.")
