"""Who may know whom: imports between the rooms, read from the source, and none in a circle."""

from __future__ import annotations

import ast
import subprocess
import sys

import pytest

from tests.support.places import REPO

PACKAGE = REPO / "grpo_ext"

# room -> what its files must not import at all, not even inside a function
FORBIDDEN = {
    "run": ("grpo_ext.cli", "grpo_ext.demo"),
    "rewards": ("torch", "grpo_ext.trainer", "grpo_ext.recipe.load", "grpo_ext.demo"),
    "recipe": ("torch", "grpo_ext.trainer", "grpo_ext.cli", "grpo_ext.rewards"),
    "migrate": ("torch", "grpo_ext.trainer", "grpo_ext.cli", "grpo_ext.rewards"),
    "tasks": ("torch", "trl", "grpo_ext.trainer", "grpo_ext.cli"),
    "preflight": ("grpo_ext.trainer", "grpo_ext.cli", "grpo_ext.demo"),
    "objective": ("trl", "grpo_ext.trainer", "grpo_ext.recipe", "grpo_ext.rewards", "grpo_ext.cli"),
    "step": (
        "trl",
        "transformers",
        "accelerate",
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.rewards",
        "grpo_ext.seams",
    ),
    "scoring": (
        "trl",
        "accelerate",
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.rewards",
        "grpo_ext.seams",
    ),
    "samplers": (
        "grpo_ext.trainer",
        "grpo_ext.rewards",
        "grpo_ext.curriculum",
        "grpo_ext.step.groups",
        "grpo_ext.step.loss",
    ),
    "seams": (
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.rewards",
        "grpo_ext.samplers",
        "grpo_ext.cli",
    ),
    "decoding": (
        "trl",
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.rewards",
        "grpo_ext.objective",
        "grpo_ext.cli",
    ),
    "determinism": ("trl", "transformers", "accelerate", "grpo_ext.step", "grpo_ext.trainer"),
    "environments": (
        "trl",
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.samplers",
        "grpo_ext.cli",
    ),
    "batching": (
        "trl",
        "transformers",
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.rewards",
        "grpo_ext.cli",
    ),
    "curriculum": (
        "trl",
        "grpo_ext.trainer",
        "grpo_ext.recipe",
        "grpo_ext.rewards",
        "grpo_ext.cli",
    ),
    "evaluation": ("grpo_ext.trainer", "grpo_ext.cli", "grpo_ext.demo"),
    "numerics": ("trl", "grpo_ext.cli", "grpo_ext.demo", "grpo_ext.rewards"),
    # what it measures are logs; only its processes train
    "reproduce": ("grpo_ext.cli", "grpo_ext.seams", "grpo_ext.step"),
    "vllm": ("trl", "grpo_ext.trainer", "grpo_ext.cli", "grpo_ext.demo"),
    "observe": ("trl", "grpo_ext.trainer", "grpo_ext.cli", "grpo_ext.reproduce"),
    # what watches every run is hung on by the trainer itself; it looks at nothing that observe
    # finds
    "trainer": (
        "grpo_ext.cli",
        "grpo_ext.demo",
        "grpo_ext.observe.report",
        "grpo_ext.observe.plots",
    ),
}


def imports(path) -> set[str]:
    return imports_of(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def imports_of(nodes) -> set[str]:
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", FORBIDDEN)
def test_room_imports_only_what_it_may(room):
    files = sorted((PACKAGE / room).rglob("*.py"))
    assert files
    for path in files:
        for name in imports(path):
            for banned in FORBIDDEN[room]:
                assert not (name == banned or name.startswith(banned + ".")), (
                    f"{path.name} imports {name}"
                )


def loaded(node, also_within_functions: bool):
    """Every statement below `node` that runs, without those for a type checker."""
    for child in ast.iter_child_nodes(node):
        if (
            isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            and not also_within_functions
        ):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from loaded(child, also_within_functions)


def module_imports(also_within_functions: bool = False) -> dict[str, set[str]]:
    """By module of the package, the modules of the package that it imports by name.

    Without itself.
    """
    paths = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        paths[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    found = {}
    for name, path in paths.items():
        nodes = loaded(ast.parse(path.read_text(encoding="utf-8")), also_within_functions)
        found[name] = (imports_of(nodes) & paths.keys()) - {name}
    return found


def circle(graph: dict[str, set[str]]) -> list[str]:
    """Nodes of circles, and of ways between circles; empty if there is none."""
    left = set(graph)
    while True:
        reached = {other for name in left for other in graph[name]}
        ends = {name for name in left if name not in reached or not graph[name] & left}
        if not ends:
            return sorted(left)
        left -= ends


@pytest.mark.parametrize("also_within_functions", [False, True])
def test_no_modules_import_in_a_circle(also_within_functions):
    assert circle(module_imports(also_within_functions)) == []


def test_no_rooms_import_in_a_circle():
    rooms: dict[str, set[str]] = {}
    for name, others in module_imports().items():
        room = ".".join(name.split(".")[:2])
        rooms.setdefault(room, set()).update(
            {".".join(other.split(".")[:2]) for other in others} - {room, "grpo_ext"}
        )
    assert circle(rooms) == []


def test_circles_are_found():
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}, "e": set()}) == ["b", "c"]


def test_common_imports_no_other_room():
    for path in (PACKAGE / "common").glob("*.py"):
        assert all(
            name.startswith("grpo_ext.common")
            for name in imports(path)
            if name.startswith("grpo_ext")
        ), path.name


def test_the_top_shows_only_rooms_and_programs():
    shown = {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"}
    assert {name for name in shown if "." in name} == {
        "__init__.py",
        "__main__.py",
        "py.typed",
        "train.py",
        "sft.py",
    }
    for folder in {path.parent for path in PACKAGE.rglob("*.py")}:
        assert (folder / "__init__.py").read_text().startswith('"""'), folder.name


@pytest.mark.parametrize(
    "room",
    [
        p.name
        for p in PACKAGE.iterdir()
        if p.is_dir() and p.name not in ("cli", "demo", "__pycache__")
    ],
)
def test_only_the_seams_import_private_names_of_trl(room):
    if room == "seams":
        return
    for path in (PACKAGE / room).rglob("*.py"):
        for name in imports(path):
            assert not (name.startswith("trl.trainer.") or "._" in name), (
                f"{path.name} imports {name}"
            )


@pytest.mark.parametrize(
    "module, heavy",
    [
        ("grpo_ext", ("torch", "transformers", "trl", "datasets")),
        ("grpo_ext.rewards", ("torch", "transformers", "trl", "math_verify", "pypinyin")),
        ("grpo_ext.cli.main", ("torch", "transformers", "trl", "datasets", "matplotlib")),
        ("grpo_ext.recipe.load", ("torch", "transformers", "trl", "datasets", "pandas", "scipy")),
        ("grpo_ext.observe.report.serve", ("torch", "transformers", "trl", "matplotlib")),
        ("grpo_ext.migrate.translate", ("torch", "transformers", "trl")),
        ("grpo_ext.run.training", ("torch", "transformers", "trl")),
        ("grpo_ext.run.launch", ("torch", "transformers", "trl")),
    ],
)
def test_light_modules_stay_light(module, heavy):
    code = f"import sys, {module}\nif {module!r} == 'grpo_ext.cli.main': {module}.make_parser()\n"
    code += f"print([m for m in {heavy!r} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert out.returncode == 0, out.stderr
    assert out.stdout.strip() == "[]"


SLOW = ("torch", "transformers", "trl", "datasets", "accelerate", "peft", "pandas", "scipy")
FAULTY = {
    "check --config nowhere.yaml": 2,
    "check --config countdown/tiny --bta 1": 1,
    "check --config countdown/tiny --beta x --num_generations 5": 1,
    "train --config nowhere.yaml": 2,
    "train --config countdown/tiny --bta 1": 2,
    "train --config countdown/tiny --num_generations 5": 2,
    "sft --config countdown/tiny-sft --learning_rate x": 2,
    "plan --config countdown/tiny --bta 1": 2,
    "bench --config countdown/tiny --beta x": 2,
    "numerics --config countdown/tiny --bta 1": 2,
    "eval --config countdown/tiny --bta 1": 2,
    "serve --config countdown/tiny --beta x": 2,
    "reproduce countdown --config countdown/tiny --bta 1": 2,
    "init nowhere.jsonl model --yes": 2,
    "report nowhere": 2,
}


def test_faulty_words_are_refused_without_slow_imports():
    code = f"""
import sys
from grpo_ext.cli.main import main
for words, code in {FAULTY!r}.items():
    assert main(words.split()) == code, words
    assert not [name for name in {SLOW!r} if name in sys.modules], words
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert out.returncode == 0, out.stderr


# packages of other recipes, other commands, and of the training itself
UNNEEDED = (
    "math_verify", "latex2sympy2_extended", "jsonschema", "pypinyin", "matplotlib", "scipy.stats",
    "requests", "vllm", "deepspeed", "torch._inductor.compile_fx",
)  # fmt: skip


def test_a_check_imports_only_what_its_recipe_needs(tiny_folder):
    words = ["check", "--config", "countdown/tiny", "--model_name_or_path", str(tiny_folder)]
    code = f"""
import sys
from grpo_ext.cli.main import main
assert main({words!r}) == 0
assert not [name for name in {UNNEEDED!r} if name in sys.modules]
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=REPO)
    assert out.returncode == 0, out.stderr
