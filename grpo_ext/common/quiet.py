"""Silence a logger for the duration of a context."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet(name: str, least: int = logging.CRITICAL) -> Iterator[None]:
    """Context manager that suppresses a logger's messages below the level `least`.

    The level also applies to the logger's children, except those with a level of their own.

    Args:
        name: the name of the logger.
        least: the lowest level that is still logged; by default, only critical messages are logged.
    """
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(least)
    try:
        yield
    finally:
        logger.setLevel(level)
