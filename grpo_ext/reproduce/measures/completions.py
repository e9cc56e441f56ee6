"""Measures of completions, from `samples.jsonl`: kinds of faults, phrases, groups."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from math import comb
from typing import Any

from grpo_ext.common.estimates import Estimate, mean_of
from grpo_ext.common.hash_sample import in_share
from grpo_ext.observe.read_run import RunData
from grpo_ext.reproduce.measures.base import Figure, figure, measure, together
from grpo_ext.rewards.answers import ANSWER, THINK, THINK_END, first_answer
from grpo_ext.rewards.countdown_reward import exact
from grpo_ext.rewards.expression import ExpressionError, evaluate

Runs = list[RunData]
Sample = dict[str, Any]

MOST_WORDS = 400  # of a completion's thoughts that are searched for phrases
SIZES = (2, 3, 4)  # words of a phrase
SHOWN = 3  # phrases in the details, each way
PASS = 1.0 - 1e-9  # the reward of a right completion


def training_samples(run: RunData) -> list[Sample]:
    """Return the completions of training, oldest first."""
    return [sample for sample in run.samples if sample["mode"] == "train"]


def first_and_last(samples: list[Sample], share: float = 0.2) -> tuple[list[Sample], list[Sample]]:
    """Return the completions of the first and of the last part of the steps."""
    steps = sorted({sample["step"] for sample in samples})
    count = max(1, int(len(steps) * share))
    early = set(steps[:count])
    late = set(steps[-count:])
    return (
        [sample for sample in samples if sample["step"] in early],
        [sample for sample in samples if sample["step"] in late],
    )


def share_with(samples: list[Sample], flags: list[bool]) -> Estimate | None:
    """Return the share of completions with a property, which depend within a prompt."""
    return mean_of([float(flag) for flag in flags], [sample["prompt_id"] for sample in samples])


def kind_of_fault(sample: Sample) -> str:
    """Return `right`, `no form`, `wrong numbers` or `wrong sum` for a completion of Countdown."""
    answer = first_answer(sample["text"])
    if answer is None:
        return "no form"
    try:
        numbers, result = evaluate(answer.partition("=")[0])
        wanted = sorted(exact(number, "nums") for number in sample["columns"]["nums"])
        target = exact(sample["columns"]["target"], "target")
    except (ExpressionError, KeyError, TypeError):
        return "no form"
    if sorted(numbers) != wanted:
        return "wrong numbers"
    return "right" if result == target else "wrong sum"


@measure
def share_of_faults(runs: Runs, kind: str) -> Figure | None:
    """The share of a kind of fault among the wrong completions of the last fifth of the steps."""
    _, late = first_and_last(training_samples(runs[0]))
    wrong = [(sample, kind_of_fault(sample)) for sample in late]
    wrong = [(sample, fault) for sample, fault in wrong if fault != "right"]
    estimate = share_with([sample for sample, _ in wrong], [fault == kind for _, fault in wrong])
    if estimate is None:
        return None
    counts = Counter(fault for _, fault in wrong)
    return Figure(estimate, ", ".join(f"{name} {count}" for name, count in counts.most_common()))


@measure
def change_of_fault(runs: Runs, kind: str) -> Figure | None:
    """The share of completions with a fault in the last fifth of steps, less the first's."""
    shares = [
        share_with(part, [kind_of_fault(sample) == kind for sample in part])
        for part in first_and_last(training_samples(runs[0]))
    ]
    before, after = shares
    if before is None or after is None:
        return None
    details = f"from {before.mean:.3f} to {after.mean:.3f}"
    return figure(after.mean - before.mean, together(before.error, after.error), details)


@measure
def change_of_phrases(runs: Runs) -> Figure | None:
    """How much the use of a phrase in thoughts changes from first to last fifth of steps.

    The phrase is the one that changes most in half of the prompts; the figure is its change in the
    other half, in the same direction, so that the choice does not inflate it.
    """
    early, late = first_and_last(training_samples(runs[0]))
    chosen_on = [
        [sample for sample in part if in_share(sample["prompt_id"], 0.5)] for part in (early, late)
    ]
    told_on = [
        [sample for sample in part if not in_share(sample["prompt_id"], 0.5)]
        for part in (early, late)
    ]
    if not all(chosen_on) or not all(told_on):
        return None
    before, after = (shares_of_phrases(part) for part in chosen_on)
    moves = {phrase: after.get(phrase, 0.0) - before.get(phrase, 0.0) for phrase in before | after}
    if not moves:
        return None
    phrase = max(moves, key=lambda name: (abs(moves[name]), name))
    first, last = (
        share_with(part, [phrase in phrases_of(sample["text"]) for sample in part])
        for part in told_on
    )
    if first is None or last is None:
        return None
    direction = 1 if moves[phrase] > 0 else -1
    moved = direction * (last.mean - first.mean)
    return figure(moved, together(first.error, last.error), as_sentence(moves))


def as_sentence(moves: dict[str, float]) -> str:
    """Return the phrases that appear most and vanish most, which are not parts of each other."""
    parts = []
    for word, sign in (("more", 1), ("less", -1)):
        ranked = sorted(moves, key=lambda name: (-sign * moves[name], -len(name), name))
        shown: list[str] = []
        for phrase in ranked:
            apart = not any(phrase in other or other in phrase for other in shown)
            if apart and sign * moves[phrase] > 0.02 and len(shown) < SHOWN:
                shown.append(phrase)
        listed = ", ".join(f"“{phrase}” {moves[phrase]:+.2f}" for phrase in shown)
        parts.append(f"{word}: {listed or 'none'}")
    return "; ".join(parts)


def shares_of_phrases(samples: list[Sample]) -> dict[str, float]:
    """Return the share of the completions that use each phrase."""
    counts: Counter[str] = Counter()
    for sample in samples:
        counts.update(phrases_of(sample["text"]))
    return {phrase: count / len(samples) for phrase, count in counts.items()}


def phrases_of(text: str) -> set[str]:
    """Return the phrases of a completion's thoughts, each number written as #."""
    thoughts = text.partition(THINK)[2] or text
    for end in (THINK_END, ANSWER):  # the tag that ends them may be missing
        thoughts = thoughts.partition(end)[0]
    words = re.findall(r"\d+|[^\W\d_]+|[^\w\s]", thoughts)[:MOST_WORDS]
    words = ["#" if word.isdigit() else word.lower() for word in words]
    return {
        " ".join(words[start : start + size])
        for size in SIZES
        for start in range(len(words) - size + 1)
    }


def groups_of(samples: list[Sample]) -> Iterator[list[Sample]]:
    """Yield the completions of each group."""
    groups: dict[tuple[int, int], list[Sample]] = defaultdict(list)
    for sample in samples:
        groups[sample["step"], sample["group"]].append(sample)
    yield from groups.values()


@measure
def groups_with_a_right_one(runs: Runs, success: str, steps: int = 5) -> Figure | None:
    """The share of groups with a right completion, at a size of the inverse success rate.

    From the large groups of the first `steps` steps, of which smaller groups are drawn without
    replacement (pass@k).
    """
    samples = training_samples(runs[0])
    early = sorted({sample["step"] for sample in samples})[:steps]
    groups = list(groups_of([sample for sample in samples if sample["step"] in early]))
    right = [
        sum((sample["rewards"].get(success) or 0.0) >= PASS for sample in group) for group in groups
    ]
    total = sum(len(group) for group in groups)
    if not sum(right):
        return None
    size = max(1, round(total / sum(right)))
    chances = [
        1 - comb(len(group) - count, size) / comb(len(group), size)
        for group, count in zip(groups, right, strict=True)
        if len(group) >= size
    ]
    estimate = mean_of(chances)
    if estimate is None:
        return None
    return Figure(estimate, f"success {sum(right) / total:.2f}, so groups of {size}")
