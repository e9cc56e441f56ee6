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
    """Holds the generation requested ahead, if any. All ranks must call all methods together."""

    def __init__(self, sampler: Sampler):
        self.sampler = sampler
        self.due: int | None = None  # the step that the requested generation is for
        self._arrived: Generation | None = None
        self._under_way = False

    def ask(self, request: Request | None, due: int) -> None:
        """Start generating for step `due`; `request=None` means that nothing new is needed.

        Only one generation can be in progress.
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
        """Wait for the requested generation, and return it; `None` if there is none for `step`.

        It is returned only once. After a failure the current generation is redone, so the requested
        generation belongs to a later step and is dropped. If `None` is returned, unfinished
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
        """Restore a state from `state_dict`, unless the sampler cannot restore its own part."""
        if self.sampler.load_state_dict(state["sampler"]):
            self.due = state["due"]
            self._arrived = state["generation"]
