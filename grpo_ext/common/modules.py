"""Import large libraries faster, load modules by file or name, and list package versions."""

import gc
import importlib
import importlib.util
import os
import platform
import sys
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from grpo_ext.common.hub import neighbors
from grpo_ext.common.suggestions import did_you_mean, unknown

PACKAGES = (
    "trl",
    "transformers",
    "torch",
    "accelerate",
    "datasets",
    "peft",
    "deepspeed",
    "vllm",
)


@cache  # reading the metadata of a package takes about a millisecond
def versions() -> Mapping[str, str]:
    """Return the versions of this package, of Python, and of all installed packages in `PACKAGES`.

    The version of this package comes from its source, because the metadata of an editable
    installation may be outdated.
    """
    own = sys.modules["grpo_ext"].__version__
    installed = {"grpo_ext": own, "python": platform.python_version()}
    for name in PACKAGES:
        with suppress(PackageNotFoundError):
            installed[name] = version(name)
    return installed


@contextmanager
def without_collector() -> Iterator[None]:
    """Context manager that disables the garbage collector, to speed up large imports.

    The collector takes about a quarter of the time of such imports. On exit, it is enabled again,
    but ignores all objects that exist by then (`gc.freeze`). If it was disabled before, it stays
    disabled.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.freeze()
            gc.enable()


def load_file(path: str | Path) -> ModuleType:
    """Import a Python file and return its module; each process runs the file only once.

    If the file has already been imported in another way, such as by `import`, that module is
    returned. Errors that the file itself raises are passed on.

    Raises:
        FileNotFoundError: if there is no such file.
        ImportError: if it is not a Python file, or calls `sys.exit`.
    """
    path = Path(path).expanduser().resolve()
    if not path.is_file():
        raise FileNotFoundError(f"no file at {path}")
    imported = module_of_file(path)
    if imported is not None:
        return imported
    name = f"{path.stem}_{zlib.crc32(str(path).encode()):08x}"
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


def module_of_file(path: Path) -> ModuleType | None:
    """Return the imported module whose file is `path`, or `None` if there is none.

    `__main__` does not count. `path` must be absolute and without symbolic links.
    """
    for name, module in list(sys.modules.items()):
        if name == "__main__":  # the program itself, which may not have run to its end
            continue
        file = getattr(module, "__dict__", {}).get("__file__")
        if isinstance(file, str) and file.endswith(path.name) and Path(file).resolve() == path:
            return module
    return None


@contextmanager
def exits_as_errors(what: str) -> Iterator[None]:
    """Context manager that turns `sys.exit` in imported code into `ImportError`.

    Otherwise, `sys.exit` would end the command silently. `what` names the code in the message.
    """
    try:
        yield
    except SystemExit as error:
        raise ImportError(
            f"{what} exits with {error.code!r} when it is imported. Move the code that exits below "
            '`if __name__ == "__main__":`'
        ) from error


def load_class(kind: str, name: str, known: Mapping[str, str]) -> Any:
    """Import and return the class that `name` refers to, without checking that it is a class.

    The working directory is appended to `sys.path` if it is missing there, so that modules in it
    are found.

    Args:
        kind: the kind of class, for error messages.
        name: a known name, `package.module:Class` or `file.py:Class`.
        known: the location of each known name, as `package.module:Class` or `file.py:Class`.

    Raises:
        ValueError: if the name is unknown, its module cannot be imported, or the module has no such
            attribute.
    """
    module, sign, attribute = known.get(name, name).partition(":")
    if not sign:
        raise ValueError(
            f"{unknown(kind, name, known)} To use your own {kind}, set `file.py:Class` or "
            "`pkg.module:Class`."
        )
    if os.getcwd() not in sys.path:  # `python -m` adds it, but a console script does not
        sys.path.append(os.getcwd())
    try:
        loaded = load_file(module) if module.endswith(".py") else load_module(module)
    except Exception as error:  # from the user's module
        hint = ""
        if module.endswith(".py") and not Path(module).expanduser().exists():
            hint = did_you_mean(module, neighbors(module))
        raise ValueError(
            f"cannot load the {kind} {name!r}: {type(error).__name__}: {error}.{hint}"
        ) from error
    if not hasattr(loaded, attribute):
        hint = did_you_mean(attribute, vars(loaded))
        raise ValueError(f"cannot load the {kind} {name!r}: {module} has no {attribute!r}.{hint}")
    return getattr(loaded, attribute)


def optional_package(name: str, requirement: str) -> ModuleType:
    """Import and return an optional package, which is not installed with this one.

    Args:
        name: the name of the module.
        requirement: the package's requirement for pip, with the supported versions.

    Raises:
        ValueError: if importing the package raises `ImportError`, for example because the package
            or one that it imports is missing, or calls `sys.exit`.
    """
    try:
        with exits_as_errors(name):
            return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(
            f"the package {name} cannot be imported ({error}). Install it: "
            f"`pip install '{requirement}'`."
        ) from error


def load_module(name: str, file: str | None = None) -> ModuleType:
    """Import and return the module `name`; if it or one of its imports is missing, load `file`.

    If `load_file` has already imported the module's file, that module is returned. Other errors
    that the module or `load_file` raises are passed on.

    Args:
        name: the full name of the module.
        file: the path of the Python file to load instead; `None` if there is none.

    Raises:
        ModuleNotFoundError: if the module or one of its imports is missing, and `file` is `None`.
        ImportError: if the module calls `sys.exit`.
    """
    try:
        with exits_as_errors(name):
            spec = None if name in sys.modules else importlib.util.find_spec(name)
            imported = None
            if spec is not None and spec.origin is not None:
                imported = module_of_file(Path(spec.origin).resolve())
            return imported or importlib.import_module(name)
    except ModuleNotFoundError:
        if file is None:
            raise
        return load_file(file)
