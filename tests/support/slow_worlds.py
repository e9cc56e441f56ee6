"""Environments whose answers take time, and that tell whether they overlap without a clock."""

from __future__ import annotations

import asyncio
import threading
from typing import ClassVar

from grpo_ext.environments.base import Environment
from tests.support.worlds import Counting


class Gathering:
    """Lets calls go on once as many have come as it needs."""

    def __init__(self, needed: int):
        self.needed = needed
        self.come = 0
        self.full = threading.Event()
        self._lock = threading.Lock()

    def enter(self) -> None:
        with self._lock:
            self.come += 1
            if self.come == self.needed:
                self.full.set()

    def wait(self) -> None:
        self.enter()
        self.full.wait()

    async def wait_async(self) -> None:
        self.enter()
        while not self.full.is_set():
            await asyncio.sleep(0.001)


class Meeting(Counting):
    """Answers turn k only once all episodes wait for the answer to turn k: one at a time, they
    would wait until their time is up.
    """

    gatherings: tuple[Gathering, ...] = ()  # of each turn; a test sets them

    def step(self, text):
        Meeting.gatherings[self.turns].wait()
        return super().step(text)


class MeetingAsync(Counting):
    """Like `Meeting`, with an async `step`."""

    async def step(self, text):
        await Meeting.gatherings[self.turns].wait_async()
        return super().step(text)


class MeetingAgain(Counting):
    """Fails in the second turn of the first instance that plays a seed. Further instances answer
    turn k only once all episodes wait for it.
    """

    failed: ClassVar[set[int]] = set()  # seeds
    gatherings: tuple[Gathering, ...] = ()  # of each turn; a test sets them

    def reset(self, row):
        self.seed = row["seed"]
        self.is_first = self.seed not in MeetingAgain.failed

    def step(self, text):
        if not self.is_first:
            MeetingAgain.gatherings[self.turns].wait()
        elif self.turns == 1:
            MeetingAgain.failed.add(self.seed)
            raise ConnectionError("the service is gone")
        return super().step(text)


class MeetingAtStart(Environment):
    """Begins only once all episodes wait in `reset`."""

    gathering = Gathering(0)

    def reset(self, row):
        MeetingAtStart.gathering.wait()
        return "here"

    def step(self, text):
        return "", True


class MeetingAtStartAsync(MeetingAtStart):
    """Like `MeetingAtStart`, with an async `reset`."""

    async def reset(self, row):
        await MeetingAtStart.gathering.wait_async()
        return "here"


class Later(Counting):
    """Answers after the milliseconds that `delays` has for its turns and those of others."""

    delays = (0,)
    asked = 0

    async def step(self, text):
        delay = Later.delays[Later.asked % len(Later.delays)]
        Later.asked += 1
        await asyncio.sleep(delay / 1000)
        return super().step(text)


class Sleeping(Counting):
    """Takes a tenth of a second in `reset`, and a tenth in each turn."""

    async def reset(self, row):
        await asyncio.sleep(0.1)
        return super().reset(row)

    async def step(self, text):
        await asyncio.sleep(0.1)
        return super().step(text)


class Stuck(Counting):
    """Does not return from its first turn until the test lets it."""

    released = threading.Event()

    def step(self, text):
        if self.turns == 0 and text == "stuck":
            Stuck.released.wait()
        return super().step(text)


class OwnTimeout(Environment):
    """Raises an error of the kind that a time limit raises, too."""

    async def step(self, text):
        raise TimeoutError("the service is slow")


class Held(Counting):
    """The episode of the row `held` answers its first turn only once all others are over."""

    over = Gathering(0)

    def reset(self, row):
        self.held = row["held"]

    async def step(self, text):
        if self.held and self.turns == 0:
            while not Held.over.full.is_set():
                await asyncio.sleep(0.001)
        answer, over = super().step(text)
        if over and not self.held:
            Held.over.enter()
        return answer, over


class Uneven(Later):
    """Async, with as many turns as the row says."""

    def reset(self, row):
        self.most = row["turns"]
