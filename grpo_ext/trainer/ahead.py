"""`overlap: one_step`: sample the next generation while training on the current one.

At the border of a generation the trainer waits for the completions that were asked for at the last
border, gives the sampler its weights, asks for the next completions, and trains. All tokens of a
completion are sampled by the same weights, those of one generation before.
"""

from typing import Any

from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.records import Generation


class Ahead:
    """The generation under way, if one was asked for. All ranks call all methods together."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.due: int | None = None  # the step of the generation that was asked for
        self._arrived: Generation | None = None
        self._under_way = False

    def ask(self, request: Request | None, due: int) -> None:
        """Start the generation of step `due`, one at a time; `None`: no new completions needed."""
        self.due = due
        self._arrived = None
        if request is not None:
            self.sampler.submit(request)
        self._under_way = request is not None

    def wait(self) -> None:
        """Wait until nothing is under way; the sampler is then free for other requests."""
        if self._under_way:
            self._under_way = False
            self._arrived = self.sampler.collect()

    def take(self, step: int) -> Generation | None:
        """Return the generation of this step, once; `None` if another or none was requested.

        After a failure the generation at hand is made again, and the one asked for is of a later
        step. In-flight completions are then discarded, because their prompts will be requested
        again.
        """
        self.wait()
        generation = self._arrived if self.due == step else None
        if generation is None:
            self.sampler.under_way = ()
        self.due = None
        self._arrived = None
        return generation

    def stop(self) -> None:
        """Discard what was asked for, and stop the sampler's background work."""
        self.sampler.stop()
        self.due = None
        self._arrived = None
        self._under_way = False

    def state_dict(self) -> dict[str, Any]:
        """Return what was asked for; call `wait` before."""
        request = (self.due, self._arrived, self.sampler.under_way)
        return {"rounds": self.sampler.rounds, "asked": request}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        # with other options, what was under way is asked for again
        if state["rounds"] == self.sampler.rounds:
            self.due, self._arrived, self.sampler.under_way = state["asked"]
