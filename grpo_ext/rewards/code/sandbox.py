"""Run a program that a model wrote in isolation, by `inside.py` in a new process."""

import ast
import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from pydantic import BaseModel, ValidationError

INSIDE = Path(__file__).with_name("inside.py")


class NoIsolation(RuntimeError):
    """This machine cannot isolate a program."""


class Ran(BaseModel):
    """What a program did; nothing, if it was killed at a limit or has written something else."""

    printed: str = ""
    values: tuple[str | None, ...] = ()  #: the `repr` of each expression; `None` if it failed
    error: str = ""
    refused: str = ""  #: why it could not be isolated; then it has not run


def run(
    program: str, stdin: str = "", expressions: tuple[str, ...] = (), seconds: float = 5.0, megabytes: int = 512,
    isolated: bool = True,
) -> Ran:  # fmt: skip
    """Run a program, then evaluate expressions with its names.

    Args:
        program: Python that needs only the standard library.
        stdin: the text that it reads.
        expressions: evaluated afterwards, one by one.
        seconds: limit of processor time, and nearly of the clock, which gets a second more.
        megabytes: limit of address space; `inside.py` has those of files and output.
        isolated: `False` runs it with these limits only.

    Raises:
        NoIsolation: if it should be isolated and the kernel does not allow it: then nothing has run.
    """
    asked = {
        "program": program, "stdin": stdin, "expressions": expressions, "seconds": seconds, "megabytes": megabytes,
        "isolated": isolated,
    }  # fmt: skip
    command = [sys.executable, "-I", "-S", "-B", str(INSIDE)]
    with (
        TemporaryFile() as file
    ):  # for the answer, since the limits of `inside.py` bound the size of a file
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": file, "stderr": subprocess.DEVNULL}
        # in a session of its own, since `kill(0)` reaches a process group beyond namespaces
        with (
            subprocess.Popen(command, start_new_session=True, **pipes) as process,
            suppress(subprocess.TimeoutExpired),
        ):
            try:
                process.communicate(json.dumps(asked).encode(), timeout=seconds + 1.0)
            finally:
                process.kill()
        file.seek(0)
        try:
            ran = Ran.model_validate_json(file.read())
        except ValidationError:
            return Ran()
    if ran.refused:
        raise NoIsolation(
            f"Programs cannot be isolated here ({ran.refused}), as in a container without user namespaces. Allow them, or set "
            "isolation: none, and the model's programs run with your rights."
        )
    return ran


def plain(text: str | None) -> Any:
    """Return the value of a `repr` of plain data; any other text is returned as it is."""
    try:
        return ast.literal_eval(text or "")
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return text
