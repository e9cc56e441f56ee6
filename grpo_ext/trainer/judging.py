"""Run the rewards of a trainer: look them up, handle failures, and raise errors on all ranks."""

import logging
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from datasets import Dataset, IterableDataset
from torch import Tensor
from transformers import PreTrainedModel

from grpo_ext.common.untrusted import without_secrets
from grpo_ext.recipe.group_options import tie_break_fault
from grpo_ext.rewards.guard import Guard, RewardFailure, guard_rewards, unguarded
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.reward_checks import check_rewards, metric_name, unique_names
from grpo_ext.rewards.reward_specs import checked_weight, find
from grpo_ext.rewards.run_defaults import set_model, set_prompts
from grpo_ext.samplers.port import CheckedArguments
from grpo_ext.seams import trl as seam
from grpo_ext.seams.port import Row
from grpo_ext.step.groups import GroupShape
from grpo_ext.step.judge import TieBreak, outcome_order
from grpo_ext.step.records import Scored
from grpo_ext.trainer.port import Trainer

logger = logging.getLogger(__name__)


def rewards_for(
    reward_funcs: Any,
    args: CheckedArguments,
    model: str | PreTrainedModel | None = None,
    train_dataset: Dataset | IterableDataset | None = None,
) -> list[Any]:
    """Look up rewards given by name, and wrap reward functions in `Guard`s, which handle failures.

    Reward models are left as they are, and `None` is skipped. Functions that share a name are
    numbered, with a warning.

    Args:
        reward_funcs: a reward or a list of rewards, in any form that `GRPOExtTrainer` accepts.
        args: the training arguments, with the options of the guards.
        model: the folder or hub id of the frozen model for rewards that load one, unless their
            options name another. A loaded model is accepted only if no reward needs it.
        train_dataset: the dataset that provides prompts to rewards that use them.

    Raises:
        ValueError: if a name is unknown, reward models share a name, the trainer cannot call a
            function, or a weight is not a number or is too large. Also if `model` is a loaded
            model, and a reward needs a frozen one that its options do not name.
    """
    if not isinstance(reward_funcs, list | tuple):
        reward_funcs = [reward_funcs]
    rewards = []
    for reward in reward_funcs:
        if isinstance(reward, str):
            rewards.append(find(reward, {}))
        elif reward is not None:
            rewards.append(reward)
    names = unique_names(rewards)
    check_rewards(rewards, names=names)
    # not strict, because TRL checks the number of weights
    for name, weight in zip(names, args.reward_weights or (), strict=False):
        checked_weight(name, weight)
    if names != [metric_name(reward) for reward in rewards] and args.process_index == 0:
        logger.warning(
            "Some reward functions share a name, so their metrics are numbered. The metrics of all "
            "rewards, in the order of reward_funcs: %s. To choose the names, give each function a "
            "name of its own: rename functions written with `def`, and set `__name__` on a lambda, "
            "a partial or an object.",
            ", ".join(names),
        )
    set_model(rewards, model, (args.model_init_kwargs or {}).get("revision"))
    set_prompts(rewards, train_dataset)
    return guard_rewards(
        rewards,
        labels=names,
        max_failure_rate=args.reward_max_failure_rate,
        timeout=args.reward_timeout,
        workers=args.reward_workers,
        deferred=True,
    )


def rewards_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Return a description of each reward, as a dict with at least its `name` and `weight`.

    A registered reward also has `reward`, its registered name, and `options`. A reward that scores
    only some tasks also has `tasks`. The descriptions are logged and shown, so options with names
    that suggest a secret are left out.
    """
    descriptions = []
    weights = trainer.reward_weights.tolist()
    for guard, name, weight in zip(
        trainer.reward_funcs, trainer.reward_func_names, weights, strict=True
    ):
        description: dict[str, Any] = {"name": name, "weight": weight}
        reward = unguarded(guard)
        if isinstance(reward, Reward):
            description["reward"] = reward.registration.name
            description["options"] = without_secrets(reward.options)
        tasks = getattr(reward, "tasks", None)
        if tasks:
            description["tasks"] = list(tasks)
        descriptions.append(description)
    return descriptions


def exact_weights(trainer: Trainer) -> Tensor:
    """Return the weights of the rewards (R,) in float64, exactly as in the arguments.

    TRL rounds them to float32. The rounded weights are returned if TRL computes the loss
    (`loss_normalization: micro_batch`), and on an Apple GPU, which has no float64.
    """
    if trainer.as_trl or trainer.accelerator.device.type == "mps":
        return trainer.reward_weights
    weights = trainer.reward_weights.double()
    exact = trainer.args.reward_weights or ()  # TRL may have added a reward with its own weight
    weights[: len(exact)] = torch.tensor(exact, dtype=torch.float64)
    return weights


def outcomes_of_groups(trainer: Trainer) -> list[int]:
    """Return the indices of the rewards that may judge a group, in the order of `outcome_order`.

    Each group is judged by at most one of these rewards (see `group_outcomes`). Pass rates are
    computed from the same rewards.

    Raises:
        ValueError: if `group_filter_metric` is set, but is not the name of a reward.
    """
    return outcome_order(
        trainer.reward_func_names, trainer.reward_weights.tolist(), trainer.args.group_filter_metric
    )


def tie_break_of(trainer: Trainer) -> TieBreak | None:
    """Return the trainer's tie-break reward, or `None` if it has none.

    Raises:
        ValueError: if the tie-break reward is not one of the trainer's rewards, has a non-zero
            weight, or judges groups.
    """
    args = trainer.args
    names = list(trainer.reward_func_names)
    if args.tie_break_reward is None:
        return None
    weights = dict(zip(names, trainer.reward_weights.tolist(), strict=True))
    outcome = names[outcomes_of_groups(trainer)[0]]
    fault = tie_break_fault(args.tie_break_reward, weights, outcome)
    if fault:
        raise ValueError(fault)
    return TieBreak(names.index(args.tie_break_reward), args.tie_break_coef, args.pass_threshold)


@dataclass(frozen=True)
class Judged:
    """A generation with its rewards; B is the number of completions on all ranks.

    The lists (except `tasks`) and the table hold this rank's completions.
    """

    rows: list[Row]
    prompts: list[Any]
    completions: list[Any]
    truncated: list[bool]
    table: Scored
    raw_rewards: Tensor  # (B, R), NaN if a reward did not score a completion
    rewards: Tensor  # (B, R), the same with missing rewards filled in
    advantages: Tensor  # (B,)
    outcomes: Tensor  # (B,), NaN where the group's outcome reward did not score the completion
    lengths: list[int]
    shape: GroupShape  # the groups of all ranks' completions
    tasks: list[str] = field(default_factory=list)  # (B,); empty without a column "task"
    failed: Tensor | None = None  # (B, R), bool, true where a reward failed
    # (B,), bool, true in groups that the tie-break reward decides; `None` without such a reward
    ties: Tensor | None = None
    # the fields of each episode in `samples.jsonl`; none for a completion of a single turn
    episodes: list[Row] = field(default_factory=list)

    def is_episode(self, i: int) -> bool:
        """Return whether completion `i` of this rank is an episode, not a single turn."""
        return bool(self.episodes and self.episodes[i])


class Judge:
    """Runs the rewards of a trainer and counts their failures."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        # for each reward, how many completions it failed on and how many it was asked to score,
        # on all ranks since the start of the run
        self.failed: dict[str, int] = {}
        self.asked: dict[str, int] = {}
        # the totals of all ranks' guards at the last call of `count_failures`
        self._counted: Counter[str] = Counter()
        self._counted_asked: Counter[str] = Counter()

    @property
    def guards(self) -> list[Guard]:
        """The guarded rewards: all rewards of the trainer except reward models."""
        return [reward for reward in self.trainer.reward_funcs if isinstance(reward, Guard)]

    def begin(
        self,
        rows: list[Row],
        prompts: list[Any],
        completions: list[Any],
        ids: list[list[int]],
        left_out: Sequence[bool] = (),
    ) -> None:
        """Start the rewards that run in worker processes, and return without waiting for them.

        They run while old and reference log-probs are computed; `rewards` collects the results.

        Args:
            rows: the rows of the dataset, one per completion of this rank.
            prompts: the prompts, one per completion.
            completions: the completions, each a string or a list of messages.
            ids: the tokens of the completions.
            left_out: `True` for each completion on which reward functions are not called; empty to
                leave none out.
        """
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        with self._leaving_out(left_out):
            for guard in self.guards:
                guard.begin(prompts=prompts, completions=completions, completion_ids=ids, **columns)

    def rewards(
        self,
        rows: list[Row],
        prompts: list[Any],
        completions: list[Any],
        ids: list[list[int]],
        environments: Sequence[Any] = (),
        left_out: Sequence[bool] = (),
    ) -> Tensor:
        """Score this rank's completions, and return the rewards of all ranks.

        All ranks must call this method.

        Args:
            rows: the rows of the dataset, one per completion of this rank.
            prompts: the prompts, one per completion.
            completions: the completions, each a string or a list of messages.
            ids: the tokens of the completions.
            environments: instances of TRL environments, one per completion; empty if there are
                none.
            left_out: `True` for each completion that is not scored; empty to score all. Reward
                functions are not called on such a completion. Reward models run on whole batches,
                but their scores for such a completion are dropped.

        Returns:
            The rewards (B of all ranks, R); NaN if a reward did not score a completion.

        Raises:
            RewardFailure: on all ranks, if a reward failed too often.
        """

        def is_reported() -> bool:  # whether the environment or a guard reports a failure
            return any(left_out) or any(guard.last_failed for guard in self.guards)

        with self._leaving_out(left_out), seam.without_unscored_warnings(is_reported):
            rounded = seam.calculate_rewards(
                self.trainer, rows, prompts, completions, ids, list(environments)
            )
        self.count_failures()
        rewards = self._as_returned(rounded)
        if len(left_out) == 0:
            return rewards
        mask = torch.tensor(left_out, device=rewards.device)  # (b,)
        mask_of_ranks = self.trainer.accelerator.gather(mask)  # (B of all ranks,)
        return rewards.masked_fill(mask_of_ranks.unsqueeze(1), math.nan)

    @contextmanager
    def _leaving_out(self, left_out: Sequence[bool]) -> Iterator[None]:
        """Context manager in which reward functions skip the completions marked in `left_out`."""
        rows = frozenset(row for row, is_left_out in enumerate(left_out) if is_left_out)
        for guard in self.guards:
            guard.left_out = rows
        try:
            yield
        finally:
            for guard in self.guards:
                guard.left_out = frozenset()

    def _as_returned(self, rounded: Tensor) -> Tensor:
        """Return the rewards in float64, exactly as the reward functions returned them.

        The scores of reward models stay rounded to float32. If a subclass of the trainer has
        changed a reward since TRL computed it, the changed value is returned, rounded to float32 as
        well. On an Apple GPU, which has no float64, `rounded` is returned.

        Args:
            rounded: TRL's rewards (B of all ranks, R), in float32.
        """
        if rounded.device.type == "mps":
            return rounded
        accelerator = self.trainer.accelerator
        rows = len(rounded) // accelerator.num_processes
        columns = []
        for reward in self.trainer.reward_funcs:
            scores = reward.last_scores if isinstance(reward, Guard) else []
            if len(scores) != rows:
                scores = [None] * rows
            columns.append([math.nan if score is None else score for score in scores])
        own_scores = torch.tensor(columns, dtype=torch.float64, device=rounded.device).T  # (b, R)
        scores_of_ranks = accelerator.gather(own_scores.contiguous())  # (B of all ranks, R)
        unchanged = scores_of_ranks.float() == rounded
        return torch.where(unchanged, scores_of_ranks, rounded.double())

    def failures(self, rows: int) -> Tensor:
        """Return a mask of the completions on which each reward failed in its last call.

        All ranks must call this method.

        Args:
            rows: the number of completions of this rank.

        Returns:
            A bool mask (B of all ranks, R).
        """
        rewards = self.trainer.reward_funcs
        accelerator = self.trainer.accelerator
        failed = torch.zeros(rows, len(rewards), dtype=torch.bool)  # (b, R)
        for i, reward in enumerate(rewards):
            if isinstance(reward, Guard):
                failed[list(reward.last_failed), i] = True
        return accelerator.gather(failed.to(accelerator.device))

    def count_failures(self, gather: Callable[[list[Any]], list[Any]] = gather_object) -> None:
        """Update the counts in `failed` and `asked` from the guards of all ranks.

        All ranks must call this method.

        Args:
            gather: the collective that concatenates the lists of all ranks.

        Raises:
            RewardFailure: on all ranks, if a reward failed too often on some rank. Also if, on
                every rank, a reward has failed since it last scored a completion, on at least two
                different prompts in total (unless `reward_max_failure_rate` is 1).
        """
        failed: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        # for each reward, the `lost_prompts` of its guard on each rank
        lost_prompts: defaultdict[str, list[set[int]]] = defaultdict(list)
        errors: dict[str, str] = {}
        for report in gather([report_of(guard) for guard in self.guards]):
            name, failed_rows, asked_rows, failure, prompts, error = report
            if failure:
                raise RewardFailure(failure)
            failed[name] += failed_rows
            asked[name] += asked_rows
            lost_prompts[name].append(prompts)
            errors.setdefault(name, error)
        for name, prompts_of_ranks in lost_prompts.items():
            # if only one prompt fails, its row may be at fault rather than the reward
            if all(prompts_of_ranks) and len(set().union(*prompts_of_ranks)) > 1:
                raise RewardFailure(
                    f"Reward {name!r} failed on every completion of its latest batches, apart from "
                    "those for which it returned None. Fix the reward, try it with "
                    "`grpo-ext check`, and resume. To continue despite its failures, set "
                    f"`reward_max_failure_rate: 1`. The last failure: {errors[name]}"
                )
        for name, count in failed.items():
            if count:
                self.failed[name] = self.failed.get(name, 0) + count - self._counted[name]
        for name, count in asked.items():
            self.asked[name] = self.asked.get(name, 0) + count - self._counted_asked[name]
        self._counted = failed
        self._counted_asked = asked

    def state_dict(self) -> dict[str, Any]:
        return {"failed": dict(self.failed), "asked": dict(self.asked)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.failed = dict(state["failed"])
        self.asked = dict(state["asked"])


def report_of(guard: Guard) -> tuple[str, int, int, str, set[int], str]:
    """Return the failure counts and errors of a guard, to be sent to the other ranks.

    Returns:
        The guard's name; the number of rows on which the reward failed; the number of rows that it
        was asked to score; why it must stop the run, or "" if it need not; checksums of the prompts
        on which it has failed since it last scored anything; and its last error.
    """
    failure = str(guard.failure or "")
    return guard.name, guard.failed, guard.asked, failure, guard.lost_prompts, guard.last_error
