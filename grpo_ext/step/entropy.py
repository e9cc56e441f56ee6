"""The entropy bonus: a constant coefficient, or one that keeps the entropy near a target.

Skywork-OR1 (arXiv 2505.22312): the coefficient rises while the entropy is at or below the target,
falls while it is above, and applies only while it is at or below.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class EntropyControl:
    """Settings that control the coefficient of the entropy bonus.

    The coefficient itself is the trainer's `entropy_coef`, as in TRL.
    """

    enabled: bool  # whether the run has a bonus; fixed at its start, as in TRL
    adaptive: bool = False
    target: float = 0.0  # entropy per token, in nats
    delta: float = 0.0  # the change per optimizer step
    lowest: float = 0.0
    highest: float = 0.0

    def weight(self, coef: float, last_entropy: float) -> float | None:
        """Return the weight of the bonus in the next step, or `None` if the run has no bonus.

        An adaptive bonus has weight 0 while the entropy is above the target.

        Args:
            coef: the current coefficient.
            last_entropy: the mean entropy of the last step's tokens over all ranks; infinite before
                the first step.
        """
        if not self.enabled:
            return None
        if self.adaptive and last_entropy > self.target:
            return 0.0
        return coef

    def coef_after(self, coef: float, entropy: float) -> float:
        """Return the coefficient after a step with this mean entropy; constant unless adaptive."""
        if not self.adaptive:
            return coef
        moved = coef + self.delta if entropy <= self.target else coef - self.delta
        return min(max(moved, self.lowest), self.highest)
