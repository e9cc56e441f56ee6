"""The reward `right_steps`: the share of correct arithmetic steps in a completion."""

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Literal

from pydantic import PositiveInt

from grpo_ext.common import run_time
from grpo_ext.rewards.arithmetic_steps import Step, steps_in
from grpo_ext.rewards.completion_parts import Part, part_of
from grpo_ext.rewards.countdown_reward import exact, readable
from grpo_ext.rewards.explanation import Explanation, Mark, clip
from grpo_ext.rewards.registry import register

Numbers = Literal["any", "nums"]
MAX_MARKS = 100  # wrong steps marked in an explanation


def share_of_right(steps: Sequence[Step]) -> float | None:
    """Return the share of correct steps, counting repeated steps each time.

    The share measures how well a model calculates. Unlike the share, the reward counts a repeated
    step only once, and can leave out steps that do not use the given numbers (see `counted`).
    Return `None` if there are no steps.
    """
    if not steps:
        return None
    return count_right(steps) / len(steps)


def count_right(steps: Sequence[Step]) -> int:
    return sum(step.is_right for step in steps)


def counted(steps: Sequence[Step], nums: Sequence[Any] | None = None) -> list[Step]:
    """Return the steps that the reward counts; of repeated steps, only the first counts.

    If `nums` is given, a correct step counts only if each of its numbers is in `nums` or is the
    result of an earlier correct step that counts. A step may use a number as often as it occurs in
    `nums`, and once more if it is such a result. Wrong steps always count.

    Raises:
        TypeError: if `nums` contains anything but numbers.
    """
    by_identity: dict[object, Step] = {}
    for step in steps:
        by_identity.setdefault(step.identity, step)
    distinct = list(by_identity.values())
    if nums is None:
        return distinct
    available = Counter(Fraction(exact(number, "nums")) for number in nums)
    results: set[Fraction | None] = set()
    counting = []
    for step in distinct:
        if step.is_right:
            used = Counter(step.operands)
            if any(used[number] > available[number] + (number in results) for number in used):
                continue
            results.add(step.value)
        counting.append(step)
    return counting


def steps_that_count(
    completion: str, part: Part, numbers: Numbers, nums: Sequence[Any] | None
) -> list[Step]:
    """Return the steps that the reward counts in one part of a completion.

    Args:
        completion: the text of the completion.
        part: where the steps are: "thoughts", "answer" or "all".
        numbers: "any" counts all steps. "nums" counts a correct step only if it follows from `nums`
            (see `counted`).
        nums: the given numbers of the row, used only if `numbers` is "nums".
    """
    steps = steps_in(part_of(completion, part))
    return counted(steps, nums if numbers == "nums" else None)


def explain_right_steps(
    completion: str,
    *,
    nums: Sequence[Any] | None = None,
    min_steps: int = 3,
    part: Part = "thoughts",
    numbers: Numbers = "any",
) -> Explanation:
    """Explain a score: say how many steps are correct, and mark the wrong ones.

    At most `MAX_MARKS` steps are marked. The arguments after `completion` are the row's entry in
    the column `nums` and the options of `right_steps`.
    """
    steps = steps_that_count(completion, part, numbers, nums)
    lines = [
        f"{run_time.counted(len(steps), 'distinct step')}, {count_right(steps)} right; min_steps "
        f"is {min_steps}."
    ]
    if numbers == "nums" and nums is None:
        lines.append("The given numbers were not logged, so this counts steps with any numbers.")
    marks: list[Mark] = []
    wrong_steps = [step for step in steps if not step.is_right]
    for step in wrong_steps[:MAX_MARKS]:
        remark = "It divides by zero."
        if step.value is not None:
            remark = f"It is {readable(step.value)}."
        marks.append((step.begin, step.end, "fault", remark))
    for begin, end, _, remark in marks[:3]:
        lines.append(f"Wrong: {clip(completion[begin:end])}. {remark}")
    return Explanation("\n".join(lines), tuple(marks))


@register("right_steps", explain=explain_right_steps)
def right_steps(
    completions: list[str],
    nums: list[Any] | None = None,
    *,
    min_steps: PositiveInt = 3,
    part: Part = "thoughts",
    numbers: Numbers = "any",
) -> list[float | None]:
    """The share of correct steps among the distinct arithmetic steps in the thoughts.

    A step is an equation such as `3 + 4 = 7`; see `grpo_ext.rewards.arithmetic_steps` for the
    rules. If there are fewer than `min_steps` distinct steps, the number of correct ones is divided
    by `min_steps`; a completion without steps earns 0. Values are compared exactly: `10 / 3 = 3.33`
    is wrong, and `10 / 3 ≈ 3.33` is not a step. Only the first 100,000 characters are searched.

    Args:
        nums: the given numbers of Countdown, a list for each row; used only with `numbers: nums`.
        min_steps: how many distinct correct steps earn the full reward, if no step is wrong.
        part: where the steps are: "thoughts", "answer" or "all".
        numbers: "nums" counts a correct step only if its numbers are given or results of earlier
            correct steps, so that steps unrelated to the task earn nothing; wrong steps always
            count. "any" counts all steps.

    Returns:
        The shares; `None` for a row that needs `nums` and has none.

    Raises:
        ValueError: if `numbers` is "nums" and the column `nums` is missing.
        TypeError: if `numbers` is "nums" and `nums` contains anything but numbers.
    """
    if numbers == "nums" and nums is None:
        raise ValueError(
            "right_steps: `numbers: nums` needs the column `nums`, which is missing. Add the "
            "column, or set `numbers: any`."
        )
    scores: list[float | None] = []
    for completion, row_nums in zip(completions, nums or [None] * len(completions), strict=True):
        if numbers == "nums" and row_nums is None:
            scores.append(None)
            continue
        steps = steps_that_count(completion, part, numbers, row_nums)
        scores.append(count_right(steps) / max(len(steps), min_steps))
    return scores
