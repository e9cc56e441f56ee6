"""`overlap: one_step`: sample the next generation while training on the current one.

Between two generations, the trainer waits for the completions that it requested one generation ago,
loads its weights into the sampler, requests the next completions, and trains. All tokens of a
completion are sampled with the weights that were loaded for its request, unless `partial_rollouts`
is set.
"""

from typing import Any

from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.records import Generation


class Ahead:
    """Requests a generation ahead of time and holds it until it is needed.

    All ranks must call every method together.
    """

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.due: int | None = None  # the step that the requested generation is for
        self._arrived: Generation | None = None
        self._under_way = False

    def ask(self, request: Request | None, due: int) -> None:
        """Start generating the completions for optimizer step `due`.

        Only one generation can be in progress. If `request` is `None`, nothing is generated.
        """
        self.due = due
        self._arrived = None
        if request is not None:
            self.sampler.submit(request)
        self._under_way = request is not None

    def wait(self) -> None:
        """Wait until no generation is in progress; the sampler is then free for other requests."""
        if self._under_way:
            self._under_way = False
            self._arrived = self.sampler.collect()

    def take(self, step: int) -> Generation | None:
        """Wait for the requested generation, and return it if it is for `step`, otherwise `None`.

        A generation is returned only once. One for another step is dropped: it was requested before
        a failure, after which the current step is redone. Whenever the result is `None`, unfinished
        completions are discarded, because their prompts will be requested again.
        """
        self.wait()
        generation = self._arrived if self.due == step else None
        if generation is None:
            self.sampler.discard_unfinished()
        self.due = None
        self._arrived = None
        return generation

    def stop(self) -> None:
        """Discard the requested generation, and stop the sampler's background work."""
        self.sampler.stop()
        self.due = None
        self._arrived = None
        self._under_way = False

    def state_dict(self) -> dict[str, Any]:
        """Return the requested generation and the sampler's state; call `wait` first."""
        return {
            "due": self.due,
            "generation": self._arrived,
            "sampler": self.sampler.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state from `state_dict`; do nothing if the sampler cannot restore its part."""
        if self.sampler.load_state_dict(state["sampler"]):
            self.due = state["due"]
            self._arrived = state["generation"]
