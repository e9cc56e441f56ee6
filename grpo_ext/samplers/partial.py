"""`partial_rollouts`: completions that are not done at the border of a generation go on under the
next weights, so that a few long ones hold nothing up (Kimi k1.5, arXiv 2501.12599, section 2.6.2).

    prompts of two generations ──► a round of `tokens` tokens ──► half of the groups done ──► training
                                            ▲                            │ the others
                                            └──── after the border ──────┘

Each token keeps the log-prob that it was drawn with, and the step of its weights. What is under way
at `max_steps` is dropped.
"""

from torch import cat

from grpo_ext.objective.kept import KeptSet
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.step.judge import EndRule
from grpo_ext.step.ranks import Ranks
from grpo_ext.step.records import Generation, PartialRollout


class PartialSampler(Sampler):
    """Completes prompts in rounds, through another sampler, and returns the first groups that are
    done.

    Args:
        sampler: completes lists of tokens.
        ends: tells whether a completion has ended; its limit is a multiple of `tokens`.
        tokens: the most that a round adds to a completion.
        rows: completions of this rank in a generation, whole groups.
        size: G, completions per prompt.
        ranks: those that make rounds together, with equally many lists of tokens.
    """

    def __init__(
        self, sampler: Sampler, ends: EndRule, tokens: int, rows: int, size: int, ranks: Ranks
    ):
        self.sampler = sampler
        self.name = sampler.name
        self.abilities = sampler.abilities
        self.ends = ends
        self.tokens = tokens
        self.rows = rows
        self.size = size
        self.ranks = ranks
        self.rounds = tokens, rows, size, ends.limit

    def submit(self, request: Request) -> None:
        """Start a round with the prompts of the request and what is under way."""
        super().submit(request)
        self.seconds = 0.0
        new = zip(request.rows, request.prompt_ids, strict=True)
        self.under_way = [*self.under_way, *(PartialRollout(row, ids) for row, ids in new)]
        self._begin_round(request.policy_step)

    def _begin_round(self, step: int) -> None:
        tokens = [rollout.prompt_ids + rollout.completion_ids for rollout in self._open()]
        most = max(1, *self.ranks.gather_objects([len(tokens)]))
        tokens += [self.under_way[0].prompt_ids] * (
            most - len(tokens)
        )  # whose completions nobody reads: no request is empty
        self.sampler.submit(Request([], tokens, 1, step, max_new_tokens=self.tokens))

    def _open(self) -> list[PartialRollout]:
        return [rollout for rollout in self.under_way if not rollout.ended]

    def sample(self, request: Request) -> Generation:
        """Return the first groups that are done, after further rounds with the same weights while
        these are too few.
        """
        while True:
            found = self.sampler.collect()
            self.seconds += self.sampler.seconds
            for i, rollout in enumerate(self._open()):
                self._extend(rollout, found, i, request.policy_step)
            groups = [
                self.under_way[i : i + self.size] for i in range(0, len(self.under_way), self.size)
            ]
            done = [group for group in groups if all(rollout.ended for rollout in group)]
            if not self.ranks.any(len(done) * self.size < self.rows):
                break
            self._begin_round(request.policy_step)
        rollouts = [rollout for group in done for rollout in group][: self.rows]
        used = set(map(id, rollouts))
        self.under_way = [rollout for rollout in self.under_way if id(rollout) not in used]
        return Generation(
            [rollout.prompt_ids for rollout in rollouts],
            [rollout.completion_ids for rollout in rollouts],
            [rollout.policy_step for rollout in rollouts],
            [cat(rollout.logps) for rollout in rollouts],
            [KeptSet.cat(rollout.kept) for rollout in rollouts] if rollouts[0].kept else None,
            rows=[rollout.row for rollout in rollouts],  # that they complete
        )

    def _extend(self, rollout: PartialRollout, found: Generation, i: int, step: int) -> None:
        """Add completion `i` of a round, which the weights of this step have sampled."""
        assert found.sampling_logps is not None
        ids = found.completion_ids[i]
        rollout.completion_ids += ids
        rollout.policy_step += [step] * len(ids)
        rollout.logps.append(found.sampling_logps[i])
        if found.kept is not None:
            rollout.kept.append(found.kept[i])
        cut = self.ends.truncated([rollout.prompt_ids], [ids])[0]
        rollout.ended = not cut or len(rollout.completion_ids) >= self.ends.limit

    def stop(self) -> None:
        super().stop()
        self.under_way = []
        self.sampler.stop()
