"""The trainer's house: few and short overrides, and one place for what is private to TRL."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path

import pytest
import transformers
import trl

from grpo_ext import GRPOExtTrainer
from tests.support.exception_text import decisions_by_text
from tests.support.findable import unfindable
from tests.support.places import REPO

PACKAGE = REPO / "grpo_ext"
OUTSIDE = [path for path in PACKAGE.rglob("*.py") if path.parent.name != "seams"]


def overridden() -> list[str]:
    return [
        name
        for name, value in vars(GRPOExtTrainer).items()
        if callable(value) and hasattr(trl.GRPOTrainer, name)
    ]


def private_names() -> set[str]:
    """Private methods and attributes of TRL's trainer and of transformers'."""
    classes = trl.GRPOTrainer.__mro__[:-1]
    found = {name for cls in classes for name in vars(cls)}
    for cls in classes:
        found |= set(re.findall(r"self\.(_\w+)\b", inspect.getsource(cls)))
    return {name for name in found if name.startswith("_") and not name.startswith("__")}


def nodes(path, kind):
    return [
        node
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, kind)
    ]


def is_trainer(node) -> bool:
    return (
        isinstance(node, ast.Name | ast.Attribute) and ast.unparse(node).split(".")[-1] == "trainer"
    )


def test_no_class_stands_between_ours_and_trls():
    assert GRPOExtTrainer.__bases__ == (trl.GRPOTrainer,)


def test_few_methods_are_overridden_and_each_hands_over():
    names = overridden()
    assert len(names) <= 14, names
    for name in names:
        method = ast.parse(textwrap.dedent(inspect.getsource(vars(GRPOExtTrainer)[name]))).body[0]
        statements = sum(isinstance(node, ast.stmt) for node in ast.walk(method)) - 1
        assert statements <= 15, name


def test_private_names_of_trl_are_used_in_the_seams_alone():
    """But for the overrides themselves, which call the method that they override."""
    private = private_names()
    for path in OUTSIDE:
        allowed = (
            set(overridden())
            if path.name == "trainer.py" and path.parent.name == "trainer"
            else set()
        )
        for node in nodes(path, ast.Attribute):
            of_trainer = is_trainer(node.value) or (
                path.parent.name == "trainer" and path.name == "trainer.py"
            )
            if of_trainer and node.attr in private:
                assert node.attr in allowed, f"{path.name}:{node.lineno} {node.attr}"


def test_nothing_sets_an_attribute_of_the_trainer_from_outside():
    for path in OUTSIDE:
        for node in nodes(path, ast.Assign | ast.AugAssign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in (part for found in targets for part in ast.walk(found)):
                if isinstance(target, ast.Attribute) and isinstance(target.ctx, ast.Store):
                    assert not is_trainer(target.value), f"{path.name}:{node.lineno}"


def test_options_have_one_default():
    for path in (
        path for path in PACKAGE.rglob("*.py") if path.parent.name != "cli"
    ):  # its args are argparse's
        for node in nodes(path, ast.Call):
            name = ast.unparse(node.func)
            if name == "getattr" and len(node.args) == 3:
                assert not re.search(r"\bargs$", ast.unparse(node.args[0])), (
                    f"{path.name}:{node.lineno}"
                )


def test_nothing_is_patched_outside_of_the_seams():
    for path in OUTSIDE:
        text = path.read_text(encoding="utf-8")
        assert "seams.replace" not in text and "monkeypatch" not in text, path.name
        for node in nodes(path, ast.Assign):
            for target in node.targets:  # a function in place of another object's method
                assert not (
                    isinstance(target, ast.Attribute) and isinstance(node.value, ast.Lambda)
                ), path.name


def test_few_patches():
    used = [
        f"{path.name}:{node.lineno}"
        for path in (PACKAGE / "seams").glob("*.py")
        for node in nodes(path, ast.Call)
        if ast.unparse(node.func) == "replaced"
    ]
    assert 0 < len(used) <= 7, used


def test_the_installed_versions_are_those_that_the_seams_know():
    from grpo_ext.seams.contract import KNOWN

    assert (
        trl.__version__.startswith(f"{KNOWN}.") and int(transformers.__version__.split(".")[0]) >= 5
    )


# Rooms that open files of run folders, data folders and checkpoints, with files that open none of
# these by themselves.
READERS = {
    "observe": {"page.py: data_text"},  # a file of the package
    "trainer": {
        "manifest.py: flush"
    },  # opens what this process has just written, to force it to the disk
    "curriculum": set(),
    "recipe": set(),
    "migrate": set(),
    "tasks": set(),
    "evaluation": set(),
    "preflight": set(),
    "demo": {"pipeline.py: run_demo", "pipeline.py: run_warm_start"},  # read recipes of the package
    "run": {"launch.py: wait"},  # a temporary folder of the launcher
    "reproduce": {
        "published.py: <module>",
        "runs.py: run",
        "execute.py: work",
    },  # of the package, or written
    "cli": {"main.py: has_no_reader", "recipes.py: run"},  # /dev/null, and of the package
    "common": {
        "files.py: data_lines",
        "files.py: replacing",
        "foreign_files.py: open_plain",
        "foreign_files.py: _descriptor",
    },
}


def opened_directly(path) -> set[str]:
    """Functions of a file that open files by Python's own means, as `file.py: function`."""
    found = set()
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        name = ast.unparse(call.func)
        method = name.rpartition(".")[2] if isinstance(call.func, ast.Attribute) else ""
        if not (
            name in ("open", "os.open", "io.open") or method in ("open", "read_text", "read_bytes")
        ):
            continue
        around = [f for f in functions if f.lineno <= call.lineno <= (f.end_lineno or 0)]
        inner = max(around, key=lambda f: f.lineno).name if around else "<module>"
        found.add(f"{path.name}: {inner}")
    return found


def test_files_of_others_are_opened_by_one_function():
    for room, allowed in READERS.items():
        found = set()
        for path in (PACKAGE / room).rglob("*.py"):
            found |= opened_directly(path)
        assert found <= allowed, (room, found - allowed)
        assert allowed <= found, (room, "no longer opened", allowed - found)


def test_a_new_direct_read_is_noticed(tmp_path):
    path = tmp_path / "new.py"
    path.write_text(
        "def look(p):\n    return p.read_text()\n\ndef see(p):\n    with open(p) as f: ...\n"
    )
    assert opened_directly(path) == {"new.py: look", "new.py: see"}


def test_no_test_module_imports_another():
    """What two of them need is in `tests/support`.

    Another folder's module is found only by chance.
    """
    for path in Path(__file__).parent.rglob("*.py"):
        for node in nodes(path, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{name}" for name in names]
            for name in names:
                assert not re.search(r"(^|\.)test_", name), f"{path.name}:{node.lineno} {name}"


def test_files_of_tests_have_names_of_their_own():
    """pytest imports them by their file names, and refuses a second one of the same name."""
    names = [path.name for path in (REPO / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted({*names})


def test_the_text_of_an_exception_decides_nothing():
    places = {
        f"{path.relative_to(PACKAGE).as_posix()}: {function}"
        for path in PACKAGE.rglob("*.py")
        for function, _ in decisions_by_text(path.read_text(encoding="utf-8"))
    }
    assert not places, places


@pytest.mark.parametrize(
    "decision",
    [
        "if str(error) == 'gone': ...",
        "if 'gone' in f'{error}': ...",
        "if error.args[0].lower().startswith('gone'): ...",
        "text = str(error)\n        where = text.split(': ')",
        "re.search('gone', str(error))",
    ],
)
def test_a_new_decision_by_text_is_noticed(decision):
    head = "def work():\n    try: ...\n    except OSError as error:\n        "
    assert [name for name, _ in decisions_by_text(head + decision)] == ["work"]


def test_a_text_that_is_shown_decides_nothing():
    body = "show(' '.join(str(error).split())); kind = error.errno == 2 or f'{error}'"
    assert not list(decisions_by_text(f"def work(error: OSError):\n    {body}"))


# Functions whose longer texts are no messages: regular expressions, HTML, templates, lists of keys,
# tables of figures, explanations of a score, and what one program writes for another.
NO_MESSAGES = {
    "cli/plan.py: gpu_lines",
    "cli/plan.py: plan_lines",
    "environments/turn_tokens.py: _after_a_turn",
    "environments/turn_tokens.py: _of_shape",
    "recipe/fields.py: <module>",
    "reproduce/page.py: section",
    "reproduce/page.py: write_page",
    "rewards/answers_in_words.py: <module>",
    "rewards/arithmetic_steps.py: <module>",
    "rewards/arrangement.py: <module>",
    "rewards/asides.py: <module>",
    "rewards/notation.py: <module>",
    "rewards/right_steps.py: explain_right_steps",
    "tiny/tokenizer.py: <module>",
}


def test_a_search_for_its_first_eight_words_finds_each_message():
    places = {
        f"{path.relative_to(PACKAGE).as_posix()}: {function}"
        for path in PACKAGE.rglob("*.py")
        for function, _ in unfindable(path.read_text(encoding="utf-8"))
    }
    assert places == NO_MESSAGES, places ^ NO_MESSAGES


def test_a_new_assembled_message_is_noticed():
    source = """def check(key):
    words = "is larger than the memory of this machine"
    raise ValueError(f"{key} {words}")
"""
    assert list(unfindable(source)) == [("check", 3)]
    whole = source.replace("{key} {words}", "{key} needs more memory than this machine has here")
    assert not list(unfindable(whole))


def long_summaries(path) -> list[str]:
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    docstrings = [ast.get_docstring(node) or "" for node in nodes(path, kinds)]
    return [text for text in docstrings if "\n" in text.split("\n\n")[0]]


def test_the_summary_of_a_docstring_is_one_line():
    for room in [path for path in PACKAGE.iterdir() if path.is_dir()]:
        long = [text for path in room.rglob("*.py") for text in long_summaries(path)]
        assert not long, (room.name, long)
    assert not [text for path in PACKAGE.glob("*.py") for text in long_summaries(path)]
