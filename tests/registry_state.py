"""For tests that register rewards and losses: take them out of the catalogue again."""

from collections.abc import Iterator
from contextlib import contextmanager

from grpo_ext.objective import policy
from grpo_ext.rewards import registry


@contextmanager
def registry_as_before() -> Iterator[None]:
    """Forget the rewards and losses that are registered in the block, unless they belong to the package."""
    before, losses = dict(registry._registered), dict(policy._LOSSES)
    try:
        yield
    finally:
        for name, entry in list(registry._registered.items()):
            if not entry.function.__module__.startswith("grpo_ext."):
                del registry._registered[name]
        registry._registered.update(before)
        policy._LOSSES.clear()
        policy._LOSSES.update(losses)
