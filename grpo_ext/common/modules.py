"""Imports of large libraries and of modules by file or name, and versions of packages."""

import gc
import importlib
import importlib.util
import os
import platform
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_ext.common.suggestions import did_you_mean, unknown

PACKAGES = (
    "grpo_ext",
    "python",
    "trl",
    "transformers",
    "torch",
    "accelerate",
    "datasets",
    "peft",
    "deepspeed",
    "vllm",
)


def versions() -> dict[str, str]:
    """Return the versions of Python, this package and the installed packages that a run uses."""
    installed = {}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = platform.python_version() if name == "python" else version(name)
    return installed


@contextmanager
def without_collector() -> Iterator[None]:
    """Import without the garbage collector, which takes a quarter of the time of large imports."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def load_file(path: str | Path) -> ModuleType:
    """Return the module of a Python file, run once in each process.

    Raises `FileNotFoundError`, or what the file raises.
    """
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with exits_as_errors(str(path)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def exits_as_errors(what: str) -> Iterator[None]:
    """Turn `sys.exit` in imported code, which ends a command silently, into `ImportError`."""
    try:
        yield
    except SystemExit as error:
        raise ImportError(
            f"{what} ends the process as it is imported: sys.exit({error.code})"
        ) from error


def load_class(kind: str, name: str, known: Mapping[str, str]) -> Any:
    """Return the class at `package.module:Class`, `file.py:Class` or the place of a known name.

    The working directory is searched last. `ValueError`, with kind and name, if there is none.
    """
    module, sign, attribute = known.get(name, name).partition(":")
    if not sign:
        raise ValueError(
            f"{unknown(kind, name, known)} Your own {kind} is written `file.py:Class` or "
            "`pkg.module:Class`."
        )
    if os.getcwd() not in sys.path:  # `python -m` adds it, a console script does not
        sys.path.append(os.getcwd())
    try:
        loaded = load_file(module) if module.endswith(".py") else load_module(module)
    except Exception as error:  # from the user's module
        raise ValueError(
            f"cannot load the {kind} {name!r}: {type(error).__name__}: {error}."
        ) from error
    if not hasattr(loaded, attribute):
        hint = did_you_mean(attribute, vars(loaded))
        raise ValueError(f"cannot load the {kind} {name!r}: {module} has no {attribute!r}.{hint}")
    return getattr(loaded, attribute)


def load_module(name: str, file: str | None = None) -> ModuleType:
    """Return the module `name`, or the one of `file` if no module has that name."""
    try:
        with exits_as_errors(name):
            return importlib.import_module(name)
    except ModuleNotFoundError:
        if file is None:
            raise
        return load_file(file)
