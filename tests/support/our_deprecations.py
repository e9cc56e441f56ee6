"""A plugin of pytest that fails a test in which this package uses a deprecated name.

    pytest -p tests.support.our_deprecations

A warning about a deprecated name belongs to the code that called the library that warns. What other
libraries call, such as TRL, is not for this package to change.
"""

from __future__ import annotations

import logging
import sys
import warnings
from types import FrameType
from typing import Any

DEPRECATED = (FutureWarning, DeprecationWarning, PendingDeprecationWarning)
# Modules whose frames lie between the function that warns and its caller.
BETWEEN = ("contextlib", "functools", "logging", "warnings", __name__)
# Functions of libraries that pass on what they are given, such as a model's wrappers.
PASS_ON = (
    "__call__", "_call_impl", "_fused_forward", "_wrapped_call_impl", "decorate_context", "forward",
)  # fmt: skip
FOUND: set[str] = set()  # messages, each with the place in this package

_warn = warnings.warn
_make_record = logging.getLogRecordFactory()


def place_in_this_package() -> str | None:
    """Return the line of this package that called the library that now warns.

    Return `None` if other code called it.
    """
    frame: FrameType | None = sys._getframe(1)
    library = None
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        package = module.partition(".")[0]
        if package == "grpo_ext" and library is not None:
            return f"{module}:{frame.f_lineno}"
        if module not in BETWEEN:
            library = library or package
            if package != library and frame.f_code.co_name not in PASS_ON:
                return None
        frame = frame.f_back
    return None


def remember(message: object) -> None:
    """Remember a message about a deprecated name if this package uses that name."""
    place = place_in_this_package()
    if place is not None:
        FOUND.add(f"{place}: {message}")


def warn(
    message: Any, category: Any = None, stacklevel: int = 1, *args: Any, **kwargs: Any
) -> None:
    """Stand in for `warnings.warn`."""
    kind = type(message) if isinstance(message, Warning) else category or UserWarning
    if issubclass(kind, DEPRECATED):
        remember(message)
    _warn(message, category, stacklevel + 1, *args, **kwargs)


def make_record(name: str, level: int, path: str, line: int, text: Any, *args: Any) -> Any:
    """Stand in for the factory of log records; transformers also logs what is deprecated."""
    if "deprecated" in str(text):
        remember(text)
    return _make_record(name, level, path, line, text, *args)


def pytest_configure() -> None:
    warnings.warn = warn
    logging.setLogRecordFactory(make_record)


def pytest_unconfigure() -> None:
    warnings.warn = _warn
    logging.setLogRecordFactory(_make_record)


def pytest_runtest_teardown() -> None:
    found = sorted(FOUND)
    FOUND.clear()
    assert not found, "deprecated names that this package uses:\n" + "\n".join(found)
