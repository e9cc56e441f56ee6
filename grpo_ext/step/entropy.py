"""The coefficient of the entropy bonus: constant, or controlled so that the entropy stays near a target.

Skywork-OR1 (arXiv 2505.22312): the coefficient rises while the entropy is at or below the target, falls while it is above, and
applies only while it is at or below.
"""

import math
from dataclasses import dataclass
from typing import Any


@dataclass
class EntropyControl:
    """The coefficient of the next optimizer step."""

    coef: float  # at first the coefficient that the run begins with
    adaptive: bool = False
    target: float = 0.0  # entropy per token
    delta: float = 0.0  # the change per optimizer step
    lowest: float = 0.0
    highest: float = 0.0
    last_entropy: float = math.inf  # of the last step, over all ranks

    @property
    def now(self) -> float | None:
        """The weight of the bonus in the next step; `None`: there is no bonus."""
        if not self.adaptive:
            return self.coef or None
        return self.coef if self.last_entropy <= self.target else 0.0

    def observe(self, entropy: float | None) -> None:
        """Update the coefficient from the mean entropy of a step's tokens over all ranks."""
        if not self.adaptive or entropy is None:
            return
        self.last_entropy = entropy
        up = self.coef + self.delta if entropy <= self.target else self.coef - self.delta
        self.coef = min(max(up, self.lowest), self.highest)

    def state_dict(self) -> dict[str, Any]:
        return {"coef": self.coef, "last_entropy": self.last_entropy}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.coef, self.last_entropy = state["coef"], state["last_entropy"]
