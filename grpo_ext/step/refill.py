"""Fill a step with groups that have signal: further groups are generated in place of those without.

    prompts ──► generate ──► judge by the outcome reward ──► N groups with signal ──► step
                   ▲                  │ fewer than N: further prompts
                   └──────────────────┘ more than N: carried to the next generation

Rewards are known on all ranks, so all ranks make the same decisions without communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from grpo_ext.step.groups import Groups, count, groups_to_draw, join_groups, silenced

# prompts to their groups, and which have signal, (N,) bool
GenerateGroups = Callable[[list[Any]], tuple[Groups, Tensor]]


def updates_per_generation(args: Any) -> int:
    """Return the optimizer steps from one generation to the next, rounded up."""
    micro_batches = args.steps_per_generation * args.num_iterations
    return math.ceil(micro_batches / args.gradient_accumulation_steps)


@dataclass(frozen=True)
class RefillRule:
    """How a step is refilled."""

    max_rounds: int  #: the maximum number of further generations
    max_staleness: int  #: the number of optimizer steps for which a carried group may be kept
    may_carry: bool  #: whether groups may be generated in excess
    between: int = 1  #: `updates_per_generation`
    #: groups are generated in multiples of this, so that all ranks make the same number of
    #: completions
    unit: int = 1

    @classmethod
    def of(cls, args: Any, ranks: int) -> RefillRule:
        """Return the rule by the training arguments."""
        between = updates_per_generation(args)
        lives = between * (
            1 + (args.overlap != "off")
        )  # with overlap the weights of the generation before sample
        unit = ranks // math.gcd(args.num_generations, ranks)
        return cls(
            args.group_filter_max_rounds,
            args.max_staleness,
            args.max_staleness >= lives,
            between,
            unit,
        )


@dataclass(frozen=True)
class Filled:
    """The result of a refill."""

    groups: Groups  #: as many as were wanted, first those with signal, then silenced ones
    carried: Groups | None  #: groups with signal for the next generation
    used: int  #: groups with signal in `groups`
    further: int  #: groups generated after the first round
    expired: int  #: groups carried from before that are too old
    reused: int  #: groups carried from before that are in `groups`
    missing: int  #: silenced groups in `groups`


def refill(
    wanted: int,
    take: Callable[[int], list[Any]],
    generate: GenerateGroups,
    carried: Groups | None,
    step: int,
    rule: RefillRule,
) -> Filled:
    """Generate until there are enough groups with signal, or the rounds have run out.

    `wanted` is the number of groups of the step, `carried` are groups from the generation before,
    and `take` returns the next prompts. All ranks call `generate` together.
    """
    live, expired = fresh(carried, step, rule.max_staleness)
    dead = None
    reused = min(count(live), wanted)
    drawn = 0
    for _ in range(1 + rule.max_rounds):
        if count(live) >= wanted:
            break
        seen = drawn if rule.may_carry else 0
        number = groups_to_draw(wanted - count(live), count(live) - reused, seen, wanted, rule.unit)
        new, kept = generate(take(number))
        live = join_groups([live, new.take(kept.nonzero().flatten().tolist())])
        dead = join_groups([dead, new.take((~kept).nonzero().flatten().tolist())])
        drawn += number
    used = min(count(live), wanted)
    rest = None if dead is None else dead.take(range(wanted - used))
    groups = join_groups(
        [live.take(range(used)) if live else None, None if rest is None else silenced(rest)]
    )
    assert groups is not None and len(groups) == wanted
    left = live.take(range(used, len(live))) if live else None
    return Filled(
        groups, left, used, max(0, drawn - wanted + reused), expired, reused, wanted - used
    )


def first_round(wanted: int, carried: Groups | None, step: int, rule: RefillRule) -> int:
    """Return how many groups `refill` will draw first."""
    missing = wanted - count(fresh(carried, step, rule.max_staleness)[0])
    return groups_to_draw(missing, 0, 0, wanted, rule.unit) if missing > 0 else 0


def fresh(carried: Groups | None, step: int, max_staleness: int) -> tuple[Groups | None, int]:
    """Return the carried groups whose policy is not too old, and the number of the others."""
    if carried is None:
        return None, 0
    young = [i for i, made in enumerate(carried.steps) if step - made <= max_staleness]
    return carried.take(young), len(carried) - len(young)
