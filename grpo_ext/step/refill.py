"""Fill a step with groups that have signal, and generate more to replace those without.

    prompts ──► generate ──► judge by the outcome reward ──► N groups with signal ──► step
                   ▲                  │ fewer than N: further prompts
                   └──────────────────┘ more than N: carried to the next generation

All ranks have the rewards of all groups, so they make the same decisions without communication.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from torch import Tensor

from grpo_ext.step.groups import Groups, count, groups_to_draw, join_groups, silenced

Prompt = dict[str, Any]  # a row of the dataset
# takes prompts; returns their groups, and which of them have signal: (N,), bool
GenerateGroups = Callable[[list[Prompt]], tuple[Groups, Tensor]]


class RefillArguments(Protocol):
    """Protocol for the training arguments that refilling depends on."""

    gradient_accumulation_steps: int
    group_filter_max_rounds: int
    max_staleness: int
    num_generations: int
    num_iterations: int
    overlap: Literal["off", "one_step"]
    steps_per_generation: int


def updates_per_generation(args: RefillArguments) -> int:
    """Return the number of optimizer steps per generation, rounded up."""
    micro_batches = args.steps_per_generation * args.num_iterations
    return math.ceil(micro_batches / args.gradient_accumulation_steps)


@dataclass(frozen=True)
class RefillRule:
    """Limits on refilling a step."""

    max_rounds: int  #: the maximum number of rounds after the first
    max_staleness: int  #: the maximum age of a carried group, in optimizer steps
    #: whether a round may generate more groups than are missing, because some will have no signal;
    #: surplus groups are then carried to the next generation
    may_carry: bool
    between: int = 1  #: the number of optimizer steps per generation, rounded up
    #: groups are generated in multiples of this, so that all ranks generate the same number of
    #: completions
    unit: int = 1

    @classmethod
    def of(cls, args: RefillArguments, ranks: int) -> RefillRule:
        """Return the rule for the given training arguments and number of ranks."""
        between = updates_per_generation(args)
        age = between  # the age of a carried group when it is trained on
        if args.overlap != "off":  # it was sampled with the weights of the previous generation
            age = 2 * between
        return cls(
            max_rounds=args.group_filter_max_rounds,
            max_staleness=args.max_staleness,
            may_carry=args.max_staleness >= age,
            between=between,
            unit=ranks // math.gcd(args.num_generations, ranks),
        )


@dataclass(frozen=True)
class Filled:
    """The result of `refill`: the groups for the step, the groups to carry over, and counts."""

    groups: Groups  #: as many as were wanted: first those with signal, then silenced ones
    carried: Groups | None  #: groups with signal for the next generation
    used: int  #: groups with signal in `groups`
    further: int  #: groups generated beyond `wanted - reused`, the number missing at the start
    expired: int  #: previously carried groups that were too old to use
    reused: int  #: previously carried groups that are in `groups`
    missing: int  #: silenced groups in `groups`


def refill(
    wanted: int,
    take: Callable[[int], list[Prompt]],
    generate: GenerateGroups,
    carried: Groups | None,
    step: int,
    rule: RefillRule,
) -> Filled:
    """Fill a step with carried and new groups that have signal, then with silenced groups.

    Groups are generated until enough have signal, in at most `1 + rule.max_rounds` rounds. Groups
    with signal that are not needed are returned as `carried`. All ranks must call this function.

    Args:
        wanted: the number of groups that the step needs.
        take: a function that returns the given number of further prompts.
        generate: a function that returns new groups for the given prompts, and a bool mask of the
            groups with signal; all ranks call it together.
        carried: the groups carried from the previous generation, or `None`.
        step: the current optimizer step.
        rule: the limits on refilling.
    """
    live, expired = not_too_old(carried, step, rule.max_staleness)
    dead = None
    reused = min(count(live), wanted)
    drawn = 0
    for _ in range(1 + rule.max_rounds):
        if count(live) >= wanted:
            break
        missing = wanted - count(live)
        seen = drawn if rule.may_carry else 0
        number = groups_to_draw(
            missing,
            kept=count(live) - reused,
            drawn=seen,
            most=wanted,
            unit=rule.unit,
        )
        new, has_signal = generate(take(number))
        new_live = new.take(has_signal.nonzero().flatten().tolist())
        new_dead = new.take((~has_signal).nonzero().flatten().tolist())
        live = join_groups([live, new_live])
        dead = join_groups([dead, new_dead])
        drawn += number
    used = min(count(live), wanted)
    parts: list[Groups | None] = []
    carried_on = None
    if live is not None:
        parts.append(live.take(range(used)))
        carried_on = live.take(range(used, len(live)))
    if dead is not None:
        fillers = dead.take(range(wanted - used))
        if fillers is not None:
            parts.append(silenced(fillers))
    groups = join_groups(parts)
    assert groups is not None and len(groups) == wanted
    return Filled(
        groups=groups,
        carried=carried_on,
        used=used,
        further=max(0, drawn - wanted + reused),
        expired=expired,
        reused=reused,
        missing=wanted - used,
    )


def first_round(wanted: int, carried: Groups | None, step: int, rule: RefillRule) -> int:
    """Return how many groups `refill` will generate in its first round.

    Args:
        wanted: the number of groups that the step needs.
        carried: the groups carried from the previous generation, or `None`.
        step: the optimizer step that the groups are for.
        rule: the limits on refilling.
    """
    live, _ = not_too_old(carried, step, rule.max_staleness)
    missing = wanted - count(live)
    if missing <= 0:
        return 0
    return groups_to_draw(missing, kept=0, drawn=0, most=wanted, unit=rule.unit)


def not_too_old(carried: Groups | None, step: int, max_staleness: int) -> tuple[Groups | None, int]:
    """Return the carried groups that are at most `max_staleness` steps old, and how many are older.

    The first element is `None` if no group is left.
    """
    if carried is None:
        return None, 0
    young = []
    for index, sampled_at in enumerate(carried.steps):
        age = step - sampled_at
        if age <= max_staleness:
            young.append(index)
    num_expired = len(carried) - len(young)
    return carried.take(young), num_expired
