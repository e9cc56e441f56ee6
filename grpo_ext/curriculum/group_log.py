"""The figures to log about the groups of each generation."""

from grpo_ext.step.groups import GroupStats, count
from grpo_ext.step.refill import Filled


class GroupLog:
    """Counts of groups, generation by generation."""

    def start(self) -> None:
        """Begin a generation."""
        self._counts = [0, 0, 0, 0]  # generated, kept, all right, all wrong
        self.filled: Filled | None = None  # how the step was refilled

    def generated(self, stats: GroupStats) -> None:
        """Count groups that were generated and judged."""
        found = [
            stats.kept.numel(),
            *(int(x.sum()) for x in (stats.kept, stats.all_right, stats.all_wrong)),
        ]
        self._counts = [a + b for a, b in zip(self._counts, found, strict=True)]

    def figures(self) -> dict[str, float]:
        """Return the figures of the generation under their log names."""
        generated, kept, right, wrong = self._counts
        shares = {"all_right": right, "all_wrong": wrong, "mixed": kept}
        figures = {name: groups / max(generated, 1) for name, groups in shares.items()}
        figures |= {"generated": generated, "kept": kept}
        if filled := self.filled:
            figures |= {
                "refilled": filled.further,
                "expired": filled.expired,
                "reused": filled.reused,
            }
            figures |= {"carried": count(filled.carried), "missing": filled.missing}
        return {f"groups/{name}": float(value) for name, value in figures.items()}
