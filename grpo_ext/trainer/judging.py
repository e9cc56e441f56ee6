"""The rewards of a trainer: found by name, run behind guards, with failures raised on all ranks
together.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor

from grpo_ext.common.untrusted import without_secrets
from grpo_ext.recipe.group_options import tie_break_fault
from grpo_ext.rewards.guard import Guard, RewardFailure, guard_rewards
from grpo_ext.rewards.reward import Reward
from grpo_ext.rewards.reward_checks import check_rewards, metric_name, unique_names
from grpo_ext.rewards.reward_specs import checked_weight, find
from grpo_ext.rewards.run_defaults import set_model, set_prompts
from grpo_ext.seams import trl as seam
from grpo_ext.step.group_shape import GroupShape
from grpo_ext.step.judge import TieBreak, outcome_order
from grpo_ext.step.records import Scored
from grpo_ext.trainer.port import Trainer

Row = dict[str, Any]
logger = logging.getLogger(__name__)


def rewards_for(
    reward_funcs: Any, args: Any, model: Any = None, train_dataset: Any = None
) -> list[Any]:
    """Find reward functions that are given by name, and put functions behind guards with the
    trainer's options.

    Reward models stay as they are. Functions that share a name get numbers, with a warning. A
    reward that loads a frozen model gets `model` and prompts of `train_dataset`, unless its options
    name others.

    Raises:
        ValueError: for an unknown name, reward models that share a name, a function that the
            trainer cannot call, and a weight that float32 cannot hold.
    """
    reward_funcs = reward_funcs if isinstance(reward_funcs, list | tuple) else [reward_funcs]
    found = [
        find(reward, {}) if isinstance(reward, str) else reward
        for reward in reward_funcs
        if reward is not None
    ]
    names = unique_names(found)
    check_rewards(found, names=names)
    for name, weight in zip(names, args.reward_weights or (), strict=False):  # TRL counts them
        checked_weight(name, weight)
    if names != [metric_name(reward) for reward in found] and args.process_index == 0:
        logger.warning(
            "Some reward functions share a name. In the order of reward_funcs, their metrics are called %s. To choose "
            "the names, write functions with def, or set __name__ on a lambda, a partial or an object.",
            ", ".join(names),
        )
    set_model(found, model, (args.model_init_kwargs or {}).get("revision"))
    set_prompts(found, train_dataset)
    return guard_rewards(
        found,
        labels=names,
        on_error=args.reward_on_error,
        max_failure_rate=args.reward_max_failure_rate,
        timeout=args.reward_timeout,
        workers=args.reward_workers,
        deferred=True,
    )


def rewards_of(trainer: Trainer) -> list[dict[str, Any]]:
    """Return the name and weight of each reward, and for a registered one its registered name and
    its options.

    The options are for a log or a page: those with a secret's name are left out.
    """
    found = []
    weights = trainer.reward_weights.tolist()
    for reward, name, weight in zip(
        trainer.reward_funcs, trainer.reward_func_names, weights, strict=True
    ):
        inner = reward.reward if isinstance(reward, Guard) else None
        known = (
            {"reward": inner.registration.name, "options": without_secrets(inner.options)}
            if isinstance(inner, Reward)
            else {}
        )
        tasks = getattr(inner, "tasks", None)
        if tasks:
            known["tasks"] = list(tasks)
        found.append({"name": name, "weight": weight, **known})
    return found


def exact_weights(trainer: Trainer) -> Tensor:
    """Return the weights of the rewards (R,), in float64 as the arguments give them; TRL rounds
    them to float32.

    They stay TRL's under `loss_normalization: micro_batch`, which computes as TRL does.
    """
    if trainer.as_trl or trainer.accelerator.device.type == "mps":  # which has no float64
        return trainer.reward_weights
    weights = trainer.reward_weights.double()
    known = trainer.args.reward_weights or ()  # TRL may have added a reward of its own
    weights[: len(known)] = torch.tensor(known, dtype=torch.float64)
    return weights


def outcomes_of_groups(trainer: Trainer) -> list[int]:
    """Return the indices of the rewards that judge groups and count pass rates, in the order of
    `outcome_order`.
    """
    return outcome_order(
        trainer.reward_func_names, trainer.reward_weights.tolist(), trainer.args.group_filter_metric
    )


def tie_break_of(trainer: Trainer) -> TieBreak | None:
    """Return the tie-break reward of a trainer, or `None`.

    `ValueError` if it is not one of the trainer's rewards, has a weight in the sum, or judges
    groups.
    """
    args = trainer.args
    names = list(trainer.reward_func_names)
    if args.tie_break_reward is None:
        return None
    weights = dict(zip(names, trainer.reward_weights.tolist(), strict=True))
    outcome = names[outcomes_of_groups(trainer)[0]]
    if fault := tie_break_fault(args.tie_break_reward, weights, outcome):
        raise ValueError(fault)
    return TieBreak(names.index(args.tie_break_reward), args.tie_break_coef, args.pass_threshold)


@dataclass(frozen=True)
class Judged:
    """A generation with its rewards. The lists and the table are of this rank, rewards and
    advantages of all ranks.
    """

    rows: list[Row]
    prompts: list[Any]
    completions: list[Any]
    truncated: list[bool]
    table: Scored
    given: Tensor  # (B of all ranks, R), NaN if a reward did not score a completion
    rewards: Tensor  # (B of all ranks, R), the same with missing rewards filled in
    advantages: Tensor  # (B of all ranks,)
    # (B of all ranks,), NaN for a completion that its group's outcome reward did not score
    outcomes: Tensor
    lengths: list[int]
    shape: GroupShape  # the groups of the completions of all ranks
    # (B of all ranks); empty without a column "task"
    tasks: list[str] = field(default_factory=list)
    failed: Tensor | None = None  # (B of all ranks, R), bool, where a reward failed
    ties: Tensor | None = (
        # (B of all ranks,), bool, in groups that the tie-break reward decides; `None` without such
        # a reward
        None
    )
    # of each episode in `samples.jsonl`; empty if a completion is one turn
    episodes: list[Row] = field(default_factory=list)


class Judge:
    """Runs the rewards of a trainer and counts their failures."""

    def __init__(self, trainer: Trainer):
        self.trainer = trainer
        # number of rows on which a reward failed since the start of the run, on all ranks
        self.failed: dict[str, int] = {}
        # number of rows that a reward was asked to score since the start of the run, on all ranks
        self.asked: dict[str, int] = {}
        # the counts of the guards of all ranks at the last call of `count_failures`
        self._counted: Counter[str] = Counter()
        self._counted_asked: Counter[str] = Counter()

    def begin(
        self, rows: list[Row], prompts: list[Any], completions: list[Any], ids: list[list[int]]
    ) -> None:
        """Start the rewards in worker processes, so that they run while old and reference log-probs
        are computed.
        """
        columns = {name: [row[name] for row in rows] for name in rows[0] if name != "prompt"}
        for reward in self.trainer.reward_funcs:
            if isinstance(reward, Guard):
                reward.begin(
                    prompts=prompts, completions=completions, completion_ids=ids, **columns
                )

    def rewards(
        self,
        rows: list[Row],
        prompts: list[Any],
        completions: list[Any],
        ids: list[list[int]],
        environments: Sequence[Any] = (),
    ) -> Tensor:
        """Return the rewards (B of all ranks, R); NaN if a reward did not score a completion.

        `environments`: instances of TRL's kind. `RewardFailure` on all ranks, if a reward failed
        too often.
        """
        rounded = seam.calculate_rewards(
            self.trainer, rows, prompts, completions, ids, list(environments)
        )
        self.count_failures()
        return self._as_returned(rounded)

    def _as_returned(self, rounded: Tensor) -> Tensor:
        """Return rewards in float64, as the functions returned them; `rounded` (B of all ranks, R)
        are TRL's, in float32.

        A subclass of the trainer may change what TRL has computed; its values stay.
        """
        if rounded.device.type == "mps":  # which has no float64
            return rounded
        rows = len(rounded) // self.trainer.accelerator.num_processes
        columns = []
        for reward in self.trainer.reward_funcs:
            scores = reward.last_scores if isinstance(reward, Guard) else []
            scores = scores if len(scores) == rows else [None] * rows
            columns.append([math.nan if score is None else score for score in scores])
        returned = torch.tensor(columns, dtype=torch.float64, device=rounded.device).T  # (b, R)
        returned = self.trainer.accelerator.gather(returned.contiguous())  # (B of all ranks, R)
        return torch.where(returned.float() == rounded, returned, rounded.double())

    def failures(self, rows: int) -> Tensor:
        """Return where each reward failed in its last call, (B of all ranks, R), bool; `rows` is
        this rank's number.
        """
        failed = torch.zeros(rows, len(self.trainer.reward_funcs), dtype=torch.bool)  # (b, R)
        for index, reward in enumerate(self.trainer.reward_funcs):
            if isinstance(reward, Guard):
                failed[list(reward.last_failed), index] = True
        process = self.trainer.accelerator
        return process.gather(failed.to(process.device))

    def count_failures(self, gather: Callable[[list[Any]], list[Any]] = gather_object) -> None:
        """Count the rows that failed on all ranks; `gather` concatenates the lists of all ranks.

        `RewardFailure` on all ranks, if a reward failed too often on any rank, or on all rows of
        all ranks.
        """
        guards = [reward for reward in self.trainer.reward_funcs if isinstance(reward, Guard)]
        failed: Counter[str] = Counter()
        asked: Counter[str] = Counter()
        lost: dict[str, list[set[int]]] = {}
        errors: dict[str, str] = {}
        counts = [
            (
                guard.name,
                guard.failed,
                guard.asked,
                str(guard.failure or ""),
                guard.lost,
                guard.last_error,
            )
            for guard in guards
        ]
        for name, count, rows, failure, prompts, error in gather(counts):
            if failure:
                raise RewardFailure(failure)
            failed[name] += count
            asked[name] += rows
            lost.setdefault(name, []).append(prompts)
            errors.setdefault(name, error)
        for name, of_ranks in lost.items():
            if (
                all(of_ranks) and len(set().union(*of_ranks)) > 1
            ):  # a single prompt may be a bad row of the data
                raise RewardFailure(
                    f"Reward {name!r} failed on every completion that it did not decline. Fix it, "
                    f"try it with `grpo-ext check`, and resume; `reward_max_failure_rate: 1` "
                    f"continues without it. The last failure: {errors[name]}"
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
