"""`partial_rollouts`: unfinished completions continue under the next weights.

This way, a few long completions do not block the step (Kimi k1.5, arXiv 2501.12599, section 2.6.2).

    prompts of two generations ──► a round of `tokens` tokens ──► half of the groups ──► training
                                            ▲                            │ the others
                                            └──── next generation ───────┘

Each token keeps the log-prob that it was sampled with, and the step of the weights that sampled it.
Completions that are unfinished at `max_steps` are dropped.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, cat

from grpo_ext.objective.kept import KeptSet
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.judge import EndRule
from grpo_ext.step.records import Generation, Ranks


@dataclass
class PartialRollout:
    """A completion that is unfinished, or that waits for the other completions of its group."""

    row: dict[str, Any]  #: the row of the dataset
    prompt_ids: list[int]
    completion_ids: list[int] = field(default_factory=list)  #: the T tokens so far
    #: for each of the T tokens, the optimizer step whose weights sampled it
    policy_step: list[int] = field(default_factory=list)
    #: the sampler's log-probs, one tensor per round, with T entries in total
    logps: list[Tensor] = field(default_factory=list)
    #: the tokens that truncated sampling kept, one set per round, with T positions in total
    kept: list[KeptSet] = field(default_factory=list)
    ended: bool = False


class PartialSampler(Sampler):
    """Completes prompts in rounds through another sampler, and returns the first completed groups.

    Args:
        sampler: the sampler that runs each round; it must return log-probs.
        ends: the rule that decides whether a completion has ended; `ends.limit` must be a multiple
            of `tokens`, because completions could otherwise exceed it.
        tokens: maximum number of tokens that a round adds to a completion.
        rows: number of completions per generation on this rank, a multiple of `size`.
        size: number of completions per prompt.
        ranks: the ranks, which run every round together, with the same number of rows on each.
    """

    def __init__(
        self,
        sampler: Sampler,
        ends: EndRule,
        tokens: int,
        rows: int,
        size: int,
        ranks: Ranks,
    ):
        self.sampler = sampler
        self.name = sampler.name
        self.abilities = sampler.abilities
        self.ends = ends
        self.tokens = tokens
        self.rows = rows
        self.size = size
        self.ranks = ranks
        self.under_way: Sequence[PartialRollout] = ()  # in whole groups

    def generations_to_request(self) -> range:
        """Return the indices 0 and 1, or only the index 1 if completions are held back."""
        return range(1, 2) if self.has_unfinished else range(2)

    @property
    def has_unfinished(self) -> bool:
        return bool(self.under_way)

    def discard_unfinished(self) -> None:
        self.under_way = ()

    def submit(self, request: Request) -> None:
        """Start a round with the prompts of the request and the unfinished completions."""
        super().submit(request)
        self.seconds = 0.0
        rollouts = list(self.under_way)
        for row, prompt_ids in zip(request.rows, request.prompt_ids, strict=True):
            rollouts.append(PartialRollout(row, prompt_ids))
        self.under_way = rollouts
        self._begin_round(request.policy_step)

    def _begin_round(self, step: int) -> None:
        contexts = []
        for rollout in self._unfinished():
            contexts.append(rollout.prompt_ids + rollout.completion_ids)
        # every rank sends the same number of rows, at least one; completions of padding rows are
        # ignored
        num_rows = max(1, *self.ranks.gather_objects([len(contexts)]))
        padding = self.under_way[0].prompt_ids
        contexts += [padding] * (num_rows - len(contexts))
        self.sampler.submit(Request([], contexts, 1, step, max_new_tokens=self.tokens))

    def _unfinished(self) -> list[PartialRollout]:
        return [rollout for rollout in self.under_way if not rollout.ended]

    def sample(self, request: Request) -> Generation:
        """Return the first completed groups, and keep all other completions for later generations.

        As long as any rank has too few completed groups, all ranks run further rounds with the same
        weights.
        """
        while True:
            generation = self.sampler.collect()
            self.seconds += self.sampler.seconds
            self._extend(generation, request.policy_step)
            completed = self._completed_groups()
            if not self.ranks.any(len(completed) < self.rows):
                break
            self._begin_round(request.policy_step)
        rollouts = completed[: self.rows]
        returned = {id(rollout) for rollout in rollouts}
        self.under_way = [rollout for rollout in self.under_way if id(rollout) not in returned]
        kept_sets = None
        if rollouts[0].kept:
            kept_sets = [KeptSet.cat(rollout.kept) for rollout in rollouts]
        return Generation(
            prompt_ids=[rollout.prompt_ids for rollout in rollouts],
            completion_ids=[rollout.completion_ids for rollout in rollouts],
            policy_step=[rollout.policy_step for rollout in rollouts],
            sampling_logps=[cat(rollout.logps) for rollout in rollouts],
            kept=kept_sets,
            rows=[rollout.row for rollout in rollouts],
        )

    def _completed_groups(self) -> list[PartialRollout]:
        """Return the completions of all completed groups, group by group."""
        completed: list[PartialRollout] = []
        for start in range(0, len(self.under_way), self.size):
            group = self.under_way[start : start + self.size]
            if all(rollout.ended for rollout in group):
                completed += group
        return completed

    def _extend(self, generation: Generation, step: int) -> None:
        """Append the tokens of a round to the unfinished completions, and mark those that ended.

        The tokens were sampled with the weights of optimizer step `step`.
        """
        assert generation.sampling_logps is not None
        for i, rollout in enumerate(self._unfinished()):
            ids = generation.completion_ids[i]
            rollout.completion_ids += ids
            rollout.policy_step += [step] * len(ids)
            rollout.logps.append(generation.sampling_logps[i])
            if generation.kept is not None:
                rollout.kept.append(generation.kept[i])
            truncated = self.ends.truncated([rollout.prompt_ids], [ids])[0]
            rollout.ended = not truncated or len(rollout.completion_ids) >= self.ends.limit

    def metrics(self, generation: Generation) -> dict[str, float]:
        """Return `overlap/partial`: the share of completions that continued under new weights."""
        steps = generation.policy_step
        assert not isinstance(steps, int)
        partial = sum(len(set(row)) > 1 for row in steps)
        return {"overlap/partial": partial / len(steps)}

    def state_dict(self) -> dict[str, Any]:
        return {"sizes": self._sizes, "under_way": self.under_way}

    def load_state_dict(self, state: Any) -> bool:
        """Restore the unfinished completions; return whether the state could be restored.

        The state cannot be restored if it is `None`, or if a setting in `_sizes` has changed.
        """
        fits = state is not None and state["sizes"] == self._sizes
        if fits:
            self.under_way = state["under_way"]
        return fits

    @property
    def _sizes(self) -> tuple[int, ...]:
        """The settings that must be unchanged when `under_way` is restored."""
        return self.tokens, self.rows, self.size, self.ends.limit

    def stop(self) -> None:
        super().stop()
        self.discard_unfinished()
        self.sampler.stop()
