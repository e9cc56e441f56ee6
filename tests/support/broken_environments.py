"""Environments that are broken, as source text, and what is said about each."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HEAD = """
import grpo_ext


class World(grpo_ext.Environment):
    score = 0.0

"""
STEP = "    def step(self, text):\n        "
FINE = STEP + "return '', True\n"
BROKEN = {  # the methods of the class, and words of the problem
    "raises": (
        STEP + "return text[10_000], False",
        "step fails on every call that was tried: IndexError",
    ),
    "three values": (STEP + "return 'yes', 1.0, True", "it returned ('yes', 1.0, True)"),
    "a dict": (
        STEP + "return {'text': 'yes', 'over': True}",
        "it returned {'text': 'yes', 'over': True}",
    ),
    "a text": (STEP + "return 'no'", "step must return two values"),
    "a reward in place of the end": (STEP + "return 'yes', 0.5", "True or False, but is 0.5"),
    "the end first": (STEP + "return True, 'yes'", "True or False, but is 'yes'"),
    "nothing": (STEP + "pass", "it returned None"),
    "no text": (STEP + "return 7, False", "returned int instead of a string"),
    "another signature": (
        "    def step(self):\n        return '', True",
        "takes 1 positional argument but 2 were given",
    ),
    "async": (
        "    async def step(self, text):\n        raise KeyError('board')",
        "that was tried: KeyError: 'board'",
    ),
    "from the second turn on": (
        STEP
        + (
            "self.used = getattr(self, 'used', 0) + 1\n"
            "        return 'go on' * (2 - self.used) or 1 / 0, False"
        ),
        "some calls of step fail in trial episodes with made-up turns (3 of 6 that were tried)",
    ),
    "reset": (
        f"{FINE}    def reset(self, row):\n        raise KeyError('level')",
        "reset fails on every call",
    ),
    "what reset returns": (
        f"{FINE}    def reset(self, row):\n        return {{}}",
        "returned dict instead of a string",
    ),
    "reset without a row": (
        f"{FINE}    def reset(self):\n        pass",
        "reset fails on every call",
    ),
    "another type of text": (
        STEP + "return text.encode(), False",
        "returned bytes instead of a string",
    ),
    "a coroutine that nothing awaits": (
        f"    async def ask(self):\n        return 'yes'\n{STEP}return self.ask(), False",
        "returned coroutine instead of a string",
    ),
    "an async generator": (
        "    async def step(self, text):\n        yield 'yes', True",
        "it returned <async_generator object",
    ),
    "an exit": (f"{STEP}raise SystemExit(3)", "that was tried: SystemExit: 3"),
    "an async state": (
        f"{FINE}    async def state(self):\n        return {{}}",
        "state must not be async: write `def state(self)`",
    ),
    "what state returns": (
        f"{FINE}    def state(self):\n        return 'won'",
        "state must return a dict; it returned 'won'",
    ),
    "async tools": (
        f"{FINE}    async def tools(self):\n        return []",
        "`tools` must not be async: write `def tools(self)`",
    ),
    "tools by name": (
        f"{FINE}    def tools(self):\n        return ['look']",
        "`tools` must return a list of functions, such as [self.look]; the list contains 'look'",
    ),
    "state": (
        f"{FINE}    def state(self):\n        return 1 / 0",
        "that was tried: ZeroDivisionError",
    ),
    "tools": (
        f"{FINE}    def tools(self):\n        return [self.nothing]",
        "has no attribute 'nothing'",
    ),
    "options": (f"{FINE}    def __init__(self):\n        self.size = len(None)", "has no len()"),
}


def write(folder: Path, methods: str) -> Path:
    """Write a class with these methods to a file."""
    file = folder / "world.py"
    file.write_text(HEAD + methods + "\n")
    return file


def recipe_values(folder: Path, tiny_folder: Path, world: object, **changes: Any) -> dict[str, Any]:
    """Return the values of a recipe with an environment, and write its rows.

    Args:
        folder: for the rows and the run.
        tiny_folder: the model.
        world: the environment, by name or as a mapping.
        changes: values that differ.
    """
    (folder / "rows.jsonl").write_text(
        "".join(
            json.dumps({"prompt": [{"role": "user", "content": f"Play game {n}."}]}) + "\n"
            for n in range(40)
        )
    )
    return {
        "model_name_or_path": str(tiny_folder),
        "output_dir": str(folder / "out"),
        "use_cpu": True,
        "bf16": False,
        "report_to": "none",
        "task": "prompts",
        "dataset_name": str(folder / "rows.jsonl"),
        "environment": world,
        "reward_funcs": ["environment"],
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_completion_length": 64,
        **changes,
    }
