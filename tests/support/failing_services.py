"""Environments whose service fails."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from grpo_ext.environments.base import Environment


class Flaky(Environment):
    """Repeats three turns. In the first instance that plays, one call fails.

    Args:
        fails: the call that fails.
        every: whether it fails in all instances.
        forgets: whether further instances answer otherwise.
    """

    made: ClassVar[int] = 0

    def __init__(self, fails: str = "nothing", every: bool = False, forgets: bool = False):
        Flaky.made += 1
        is_first = Flaky.made <= 2  # the probe plays nothing
        self._fails = fails if is_first or every else "nothing"
        self._prefix = "" if is_first or not forgets else "again "
        self.heard: list[str] = []
        self.score = 0.0

    def reset(self, row):
        if self._fails == "reset":
            raise ConnectionError("the service is gone")
        return f"seed {row['seed']}"

    def step(self, text):
        turn = ("first", "second", "third")[len(self.heard)]
        if self._fails == f"{turn} step":
            self._fails = "nothing"
            raise ConnectionError("the service is gone")
        self.heard.append(text)
        self.score += len(text)
        return f"{self._prefix}{len(self.heard)} {text}", len(self.heard) == 3


class Quarter(Environment):
    """Two turns, worth the length of the texts. Every fourth episode fails in its second turn."""

    begun: ClassVar[int] = 0

    def __init__(self) -> None:
        self.turns, self.score = 0, 0.0
        self._is_broken = False

    def reset(self, row):
        Quarter.begun += 1
        self._is_broken = Quarter.begun % 4 == 0

    def step(self, text):
        self.turns += 1
        if self._is_broken and self.turns == 2:
            raise ConnectionError("the service is gone")
        self.score += len(text) % 5 / 4
        return "go on", self.turns == 2


class Stateless(Environment):
    """One turn. In every fourth episode `state` fails."""

    begun: ClassVar[int] = 0
    score = 1.0

    def reset(self, row):
        Stateless.begun += 1
        self._is_broken = Stateless.begun % 4 == 0

    def step(self, text):
        return "", True

    def state(self):
        if self._is_broken:
            raise ConnectionError("the service is gone")
        return super().state()


class Late(Environment):
    """Never answers: neither in `step` nor in its tool, which are sync or async."""

    score = 0.0

    def __init__(self, is_async: bool = False):
        self._is_async = is_async

    def tools(self):
        return [self.look_async if self._is_async else self.look]

    def look(self) -> str:
        """Look."""
        return threading.Event().wait()

    async def look_async(self) -> str:
        """Look."""
        return await asyncio.Event().wait()

    def step(self, text):
        return asyncio.Event().wait() if self._is_async else threading.Event().wait()
