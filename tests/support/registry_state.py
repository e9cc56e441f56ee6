"""For tests that register rewards, losses and advantages: take them out of the catalogue again."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from grpo_ext.objective import advantage, policy
from grpo_ext.rewards import registry


@contextmanager
def registry_as_before() -> Iterator[None]:
    """Forget the rewards, losses and estimators of advantages that are registered in the block,
    unless they belong to the package.

    The plugin files that registered rewards are forgotten too: loaded again, they register them
    again.
    """
    before = dict(registry._registered)
    losses = dict(policy._LOSSES)
    estimators = dict(advantage._ESTIMATORS)
    joint_estimators = dict(advantage._JOINT_ESTIMATORS)
    try:
        yield
    finally:
        for name, entry in list(registry._registered.items()):
            module = entry.function.__module__
            if not module.startswith("grpo_ext."):
                del registry._registered[name]
            if name not in before and re.search(
                "_[0-9a-f]{8}$", module
            ):  # a name that `load_file` gave
                sys.modules.pop(module, None)
        registry._registered.update(before)
        policy._LOSSES.clear()
        policy._LOSSES.update(losses)
        advantage._ESTIMATORS.clear()
        advantage._ESTIMATORS.update(estimators)
        advantage._JOINT_ESTIMATORS.clear()
        advantage._JOINT_ESTIMATORS.update(joint_estimators)
