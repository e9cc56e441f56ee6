"""Async rewards: one that blocks, is cancelled or fails costs its rows their score, and neither
time nor the run.
"""

import asyncio
import threading

import pytest

from grpo_ext.rewards import deadline
from grpo_ext.rewards.guard import AsyncGuard
from tests.support.forked import LIMIT


async def waits(completions, **columns):
    await asyncio.sleep(0.01)
    return [2.0] * len(completions)


def test_one_that_blocks_is_given_up_and_the_next_ones_run(monkeypatch):
    """It blocks until the end of the test, so that nothing after it has waited for it."""
    monkeypatch.setattr(deadline, "RESPONSE_LIMIT", 0.3)
    end = threading.Event()
    ended = threading.Event()

    async def blocks(completions, **columns):
        end.wait(LIMIT)
        ended.set()
        return [1.0] * len(completions)

    guard = AsyncGuard(blocks, timeout=0.1)
    other = AsyncGuard(waits, timeout=LIMIT)
    try:
        assert asyncio.run(guard(completions=["a", "b"])) == [None, None]
        assert "timed out after 0.2 s" in guard.last_error
        assert asyncio.run(other(completions=["a"])) == [2.0]
        assert not ended.is_set()
    finally:
        end.set()


def test_the_loop_of_one_that_only_waits_too_long_goes_on(monkeypatch):
    monkeypatch.setattr(
        deadline, "RESPONSE_LIMIT", LIMIT
    )  # it answers, however slow the machine is

    async def sleeps(completions, **columns):
        await asyncio.sleep(60)

    asyncio.run(AsyncGuard(waits)(completions=["a"]))
    loops = dict(deadline._loops)
    assert asyncio.run(AsyncGuard(sleeps, timeout=0.05)(completions=["a"])) == [None]
    assert loops and deadline._loops == loops


@pytest.mark.parametrize("error", [asyncio.CancelledError, SystemExit, GeneratorExit, RuntimeError])
def test_what_it_raises_costs_its_rows_alone(error):
    async def raises(completions, **columns):
        raise error

    guard = AsyncGuard(raises)
    assert asyncio.run(guard(completions=["a", "b"])) == [None, None]
    assert error.__name__ in guard.last_error


def test_rewards_share_a_semaphore_across_calls():
    """As a bound on the requests to one server: all of them are in one loop."""
    gate = asyncio.Semaphore(1)

    async def one(completions, **columns):
        async with gate:
            await asyncio.sleep(0.01)
        return [1.0] * len(completions)

    async def two(completions, **columns):
        return await one(completions)

    async def both():
        return await asyncio.gather(
            *(AsyncGuard(reward)(completions=["a"]) for reward in (one, two))
        )

    for _ in range(2):
        assert asyncio.run(both()) == [[1.0], [1.0]]
