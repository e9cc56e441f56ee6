"""Modules from files: plugins, and the way back to a reward's module in another process."""

import importlib
import importlib.util
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any


def load_file(path: str | Path) -> ModuleType:
    """The module of a Python file, run once a process; `FileNotFoundError`, or whatever the file raises."""
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with exits_told(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def exits_told(what: str) -> Iterator[None]:
    """Turn `sys.exit` of imported code, which would end the command as if all were well, into an `ImportError`."""
    try:
        yield
    except SystemExit as error:
        raise ImportError(f"{what} ends the process as it is imported: sys.exit({error.code})") from error


def load_place(place: str) -> ModuleType:
    """What stands before the colon of `package.module:name` or `file.py:name`, found from the working directory, too."""
    if place.endswith(".py"):
        return load_file(place)
    if os.getcwd() not in sys.path:  # as `python -m` has it, and a console script not
        sys.path.append(os.getcwd())
    return load_module(place, None)


def load_class(kind: str, name: str, place: str) -> Any:
    """What stands at `package.module:Class` or `file.py:Class`; `ValueError` where it cannot be loaded, by kind and name."""
    module, _, attribute = place.partition(":")
    try:
        return getattr(load_place(module), attribute)
    except Exception as error:  # whatever a user's module raises
        raise ValueError(f"cannot load the {kind} {name!r}: {type(error).__name__}: {error}.") from error


def load_module(name: str, file: str | None) -> ModuleType:
    """The module `name`, from `file` where it was itself loaded from a file."""
    try:
        with exits_told(name):
            return importlib.import_module(name)
    except ModuleNotFoundError:
        if file is None:
            raise
        return load_file(file)
