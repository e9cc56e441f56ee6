"""`overlap: one_step`: the sampler works on the next generation while the trainer trains on the current one.

At the border of a generation the trainer waits for the completions that were asked for at the last border, gives the sampler
its weights, asks for the next completions, and trains. All tokens of a completion are sampled by the same weights, those of one
generation before.
"""

import time
from typing import Any

from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.records import Generation


class Ahead:
    """The generation under way, if one was asked for. All ranks call all methods together."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self._asked_at = self._taken_at = 0.0
        self._waited = 0.0  # seconds since the last generation
        self._due: int | None = None
        self._arrived: Generation | None = None
        self._under_way = False

    def ask(self, request: Request | None, due: int) -> None:
        """Start the generation of step `due`; at most one is under way. Without a request it needs no new completions."""
        self._due, self._arrived = due, None
        if request is not None:
            self.sampler.submit(request)
        self._under_way, self._asked_at = request is not None, time.monotonic()

    def wait(self) -> None:
        """Wait until nothing is under way; the sampler is then free for other requests."""
        if self._under_way:
            start, self._under_way = time.monotonic(), False
            self._arrived = self.sampler.collect()
            self._waited += time.monotonic() - start

    def asked_for(self, step: int) -> bool:
        """Whether the generation of this step was asked for."""
        return self._due == step

    def take(self, step: int) -> Generation | None:
        """Return the generation of this step, once; `None` if none was asked for, or another one was.

        After a failure the generation at hand is made again, and the one asked for is of a later step.
        """
        self.wait()
        found = self._arrived if self._due == step else None
        self._due = self._arrived = None
        return found

    def stop(self) -> None:
        """Forget what was asked for, and end what the sampler has started."""
        self.sampler.stop()
        self._due = self._arrived = None
        self._under_way = False

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
        """Return what was asked for; call `wait` before."""
        return {"due": self._due, "arrived": self._arrived}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._due, self._arrived = state["due"], state["arrived"]
