"""Environments that write into files when they are made and closed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from grpo_ext.environments.base import Environment


def note(event: str) -> None:
    """Append a line to the file named `event` in the folder `CLOSING_WORLD`."""
    with (Path(os.environ["CLOSING_WORLD"]) / event).open("a") as file:
        file.write("1\n")


def noted(folder: Path, event: str) -> int:
    """Return how often an event was noted."""
    file = folder / event
    return len(file.read_text().splitlines()) if file.exists() else 0


class Closing(Environment):
    """Two turns. Its `state` is refused once it is closed."""

    def __init__(self) -> None:
        note("made")
        self.score = 0.0
        self._turns = 0
        self._is_closed = False

    def step(self, text):
        self._turns += 1
        self.score += len(text) % 3
        return "go on", self._turns == 2

    def state(self):
        assert not self._is_closed
        return super().state()

    def close(self):
        assert not self._is_closed
        self._is_closed = True
        note("closed")


class AsyncClosing(Closing):
    """The same with an async `close`."""

    async def close(self):
        await asyncio.sleep(0)
        Closing.close(self)


class Terminating(Closing):
    """Sends SIGTERM to its process in its first turn."""

    def step(self, text):
        os.kill(os.getpid(), signal.SIGTERM)
        return super().step(text)


class FailingClose(Closing):
    """Its `close` raises, after it has been noted."""

    def close(self):
        super().close()
        raise ConnectionError("the service is gone")
