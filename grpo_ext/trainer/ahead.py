"""`overlap: one_step`: the sampler works on the next generation while the trainer trains on the present one.

At the border of a generation the trainer waits for the completions that were asked for at the last border, gives the sampler
its weights, asks for the next completions, and trains. All tokens of a completion are sampled by the same weights, those of one
generation before.
"""

import time
from typing import Any

from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.records import Generation

Row = dict[str, Any]


class Ahead:
    """The generation under way. All ranks call all methods together."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self._asked_at = self._taken_at = 0.0
        self._waited = 0.0  # seconds since the last generation
        self.prompts: list[Row] | None = None  # of all ranks, one per group, if refill has drawn them
        self._under_way = False
        self._arrived: Generation | None = None

    def ask(self, request: Request | None, prompts: list[Row] | None) -> None:
        """Start a generation; at most one is under way. `None`: the next generation needs no new completions."""
        if request is not None:
            self.sampler.submit(request)
        self.prompts, self._under_way, self._asked_at = prompts, request is not None, time.monotonic()

    def wait(self) -> None:
        """Wait until nothing is under way; the sampler is then free for other requests."""
        if self._under_way:
            start = time.monotonic()
            self._arrived, self._under_way = self.sampler.collect(), False
            self._waited += time.monotonic() - start

    def take(self) -> Generation | None:
        """Return the generation that was asked for; `None` if none was."""
        self.wait()
        found, self._arrived = self._arrived, None
        return found

    def figures(self) -> dict[str, float]:
        """Return what is logged at the end of a wait, about the time since the last one.

        `overlap/waited`: seconds that the trainer waited for completions. `overlap/idle`: seconds that the sampler waited for a
        request. `overlap/share`: share of the time in which both worked.
        """
        now = time.monotonic()
        whole, waited, sampled = now - self._taken_at, self._waited, self.sampler.seconds
        first, self._taken_at, self._waited = self._taken_at == 0.0, now, 0.0
        if first or not whole:
            return {}
        return {
            "overlap/waited": waited,
            "overlap/idle": max(0.0, whole - sampled),
            "overlap/share": max(0.0, min(sampled, now - self._asked_at) - waited) / whole,
        }

    def state_dict(self) -> dict[str, Any]:
        """Wait for what is under way, and return it."""
        self.wait()
        return {"prompts": self.prompts, "arrived": self._arrived}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`, without what is under way."""
        self.wait()
        self.prompts, self._arrived, self._under_way = state["prompts"], state["arrived"], False
