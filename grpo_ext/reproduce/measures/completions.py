"""Measures computed from `samples.jsonl`: faults, phrases, and groups with a right completion."""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from math import comb
from typing import Any

from grpo_ext.common.estimates import Estimate, mean_of
from grpo_ext.common.hashes import in_share
from grpo_ext.observe.read_run import RunData
from grpo_ext.reproduce.measures.base import Figure, Runs, figure, measure, together
from grpo_ext.rewards.answers import ANSWER, THINK, THINK_END, first_answer
from grpo_ext.rewards.countdown_reward import exact
from grpo_ext.rewards.expression import ExpressionError, evaluate

Sample = dict[str, Any]
Samples = list[Sample]

MAX_WORDS = 400  # words of a completion's thoughts that are searched for phrases
PHRASE_WORDS = (2, 3, 4)  # numbers of words in a phrase
MAX_SHOWN = 3  # phrases in the details, in each direction
MIN_MOVE = 0.02  # the details list phrases whose share changes by more than this
PASS = 1.0 - 1e-9  # the smallest reward of a correct completion


def training_samples(run: RunData) -> Samples:
    """Return a run's completions from training, without those from evaluations, oldest first."""
    return [sample for sample in run.samples if sample["mode"] == "train"]


def steps_in(samples: Samples) -> list[int]:
    """Return the distinct steps of completions, in ascending order."""
    return sorted({sample["step"] for sample in samples})


def of_steps(samples: Samples, steps: Iterable[int]) -> Samples:
    """Return the completions of the given steps."""
    steps = set(steps)
    return [sample for sample in samples if sample["step"] in steps]


def first_and_last(samples: Samples, share: float = 0.2) -> tuple[Samples, Samples]:
    """Return the completions of the first and of the last `share` of the steps.

    Each part has at least one step, unless there are no completions.
    """
    steps = steps_in(samples)
    count = max(1, int(len(steps) * share))
    early = of_steps(samples, steps[:count])
    late = of_steps(samples, steps[-count:])
    return early, late


def share_with(samples: Samples, has_property: Callable[[Sample], bool]) -> Estimate | None:
    """Return the share of completions with a property, with a standard error clustered by prompt.

    The result is `None` if there are no completions.
    """
    flags = [has_property(sample) for sample in samples]
    prompt_ids = [sample["prompt_id"] for sample in samples]
    return mean_of(flags, prompt_ids)


def kind_of_fault(sample: Sample) -> str:
    """Classify a Countdown completion as "right", "no form", "wrong numbers" or "wrong sum".

    - "no form": there is no answer that can be evaluated, or the problem's numbers or target were
      not logged.
    - "wrong numbers": the answer does not use each of the problem's numbers exactly once.
    - "wrong sum": the answer uses the right numbers, but its result is not the target.
    """
    answer = first_answer(sample["text"])
    if answer is None:
        return "no form"
    expression, _, _ = answer.partition("=")
    try:
        numbers, result = evaluate(expression)
        expected = [exact(number, "nums") for number in sample["columns"]["nums"]]
        target = exact(sample["columns"]["target"], "target")
    except (ExpressionError, KeyError, TypeError):
        return "no form"
    if sorted(numbers) != sorted(expected):
        return "wrong numbers"
    return "right" if result == target else "wrong sum"


@measure
def share_of_faults(runs: Runs, kind: str) -> Figure | None:
    """Return the share of fault `kind` among the wrong completions of the last fifth of the steps.

    `kind` is a result of `kind_of_fault`, such as "wrong sum". Returns `None` if no completion is
    wrong.
    """
    _, late = first_and_last(training_samples(runs[0]))
    faulty = [sample for sample in late if kind_of_fault(sample) != "right"]
    estimate = share_with(faulty, lambda sample: kind_of_fault(sample) == kind)
    if estimate is None:
        return None
    counts = Counter(map(kind_of_fault, faulty))
    details = [f"{name} {count}" for name, count in counts.most_common()]
    return Figure(estimate, ", ".join(details))


@measure
def change_of_fault(runs: Runs, kind: str) -> Figure | None:
    """Return how much the share of completions with fault `kind` grew during training.

    This is the share in the last fifth of the steps minus the share in the first fifth. `kind` is a
    result of `kind_of_fault`, such as "wrong sum". Returns `None` if there are no completions.
    """
    early, late = first_and_last(training_samples(runs[0]))
    before = share_with(early, lambda sample: kind_of_fault(sample) == kind)
    after = share_with(late, lambda sample: kind_of_fault(sample) == kind)
    if before is None or after is None:
        return None
    error = together(before.error, after.error)
    details = f"from {before.mean:.3f} to {after.mean:.3f}"
    return figure(after.mean - before.mean, error, details)


@measure
def change_of_phrases(runs: Runs) -> Figure | None:
    """Return how much the use of one phrase changes from the first to the last fifth of the steps.

    The phrase is the one whose share of completions changes most in one half of the prompts. Its
    change is measured in the other half, so that the choice does not inflate the result. The result
    is positive if the change has the same direction in both halves. Returns `None` if a half has no
    completions in one of the fifths, or if there are no phrases.
    """
    early, late = first_and_last(training_samples(runs[0]))
    early_to_choose, early_to_measure = halves(early)
    late_to_choose, late_to_measure = halves(late)
    if not (early_to_choose and early_to_measure and late_to_choose and late_to_measure):
        return None
    moves = shares_of_phrases(late_to_choose)
    for phrase, share in shares_of_phrases(early_to_choose).items():
        moves[phrase] = moves.get(phrase, 0.0) - share
    if not moves:
        return None
    chosen = max(moves, key=lambda phrase: (abs(moves[phrase]), phrase))
    before = share_with(early_to_measure, lambda sample: chosen in phrases_of(sample["text"]))
    after = share_with(late_to_measure, lambda sample: chosen in phrases_of(sample["text"]))
    if before is None or after is None:
        return None
    move = after.mean - before.mean
    if moves[chosen] < 0:
        move = -move
    error = together(before.error, after.error)
    return figure(move, error, as_sentence(moves))


def halves(samples: Samples) -> tuple[Samples, Samples]:
    """Split completions into two parts of about equal size, by a hash of the prompt.

    All completions of a prompt are in the same part.
    """
    first: Samples = []
    second: Samples = []
    for sample in samples:
        half = first if in_share(sample["prompt_id"], 0.5) else second
        half.append(sample)
    return first, second


def as_sentence(moves: dict[str, float]) -> str:
    """Describe the phrases whose shares grow and shrink most, at most `MAX_SHOWN` of each.

    Phrases that change by `MIN_MOVE` or less are left out, and so are phrases that contain a listed
    phrase or are contained in one.

    Args:
        moves: the change of each phrase's share.
    """
    parts = []
    for word, sign in (("more", 1), ("less", -1)):
        phrases: list[str] = []
        for phrase in sorted(moves, key=lambda name: (-sign * moves[name], -len(name), name)):
            if sign * moves[phrase] <= MIN_MOVE or len(phrases) == MAX_SHOWN:
                break
            if not any(phrase in other or other in phrase for other in phrases):
                phrases.append(phrase)
        listed = [f"“{phrase}” {moves[phrase]:+.2f}" for phrase in phrases]
        parts.append(f"{word}: {', '.join(listed) or 'none'}")
    return "; ".join(parts)


def shares_of_phrases(samples: Samples) -> dict[str, float]:
    """Return, for each phrase, the share of the completions that use it."""
    counts: Counter[str] = Counter()
    for sample in samples:
        counts.update(phrases_of(sample["text"]))
    shares = {}
    for phrase, count in counts.items():
        shares[phrase] = count / len(samples)
    return shares


def phrases_of(text: str) -> set[str]:
    """Return the phrases in the first `MAX_WORDS` words of a completion's thoughts.

    A phrase is a sequence of 2 to 4 words in lower case, with `#` in place of each number;
    punctuation marks count as words. The thoughts are the text after `<think>`, or all of it if
    there is no such tag, up to `</think>` or `<answer>`.
    """
    _, _, after_tag = text.partition(THINK)
    thoughts = after_tag or text
    for end in (THINK_END, ANSWER):  # the tag that ends them may be missing
        thoughts, _, _ = thoughts.partition(end)
    tokens = []
    for token in re.findall(r"\d+|[^\W\d_]+|[^\w\s]", thoughts)[:MAX_WORDS]:
        tokens.append("#" if token.isdigit() else token.lower())
    phrases = set()
    for size in PHRASE_WORDS:
        for start in range(len(tokens) - size + 1):
            phrases.add(" ".join(tokens[start : start + size]))
    return phrases


def groups_of(samples: Samples) -> list[Samples]:
    """Group completions by step and group number, and return the groups as lists."""
    groups: dict[tuple[int, int], Samples] = defaultdict(list)
    for sample in samples:
        groups[sample["step"], sample["group"]].append(sample)
    return list(groups.values())


@measure
def groups_with_a_right_one(runs: Runs, success: str, steps: int = 5) -> Figure | None:
    """Return the chance that a group of size 1 / success rate contains a correct completion.

    This is pass@k with k = 1 / success rate, rounded. It is estimated from the groups of the first
    steps by drawing k of their completions without replacement. Groups with fewer than k
    completions are left out. Returns `None` if no completion is correct, or if all groups are
    smaller than k.

    Args:
        runs: a list with the run, which has large groups.
        success: the name of the reward that says whether a completion is correct.
        steps: the number of steps to use, from the first one.
    """
    samples = training_samples(runs[0])
    early = of_steps(samples, steps_in(samples)[:steps])
    successes = sum(is_right(sample, success) for sample in early)
    if not successes:
        return None
    size = max(1, round(len(early) / successes))
    chances = []
    for group in groups_of(early):
        if len(group) >= size:
            num_wrong = sum(not is_right(sample, success) for sample in group)
            all_wrong = comb(num_wrong, size) / comb(len(group), size)
            chances.append(1 - all_wrong)
    estimate = mean_of(chances)
    if estimate is None:
        return None
    return Figure(estimate, f"success {successes / len(early):.2f}, so groups of {size}")


def is_right(sample: Sample, success: str) -> bool:
    return (sample["rewards"].get(success) or 0.0) >= PASS
