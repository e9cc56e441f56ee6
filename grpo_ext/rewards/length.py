"""Length: shorter or longer than a target, or near it, for compression tasks and against rambling."""

from typing import Literal

from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import shipped_examples

Prefer = Literal["shorter", "longer", "near"]
Unit = Literal["tokens", "characters", "words"]


@register("length", examples=shipped_examples("length"))
def length(
    completions: list[str],
    completion_ids: list[list[int]] | None = None,
    *,
    target: int,
    prefer: Prefer = "shorter",
    unit: Unit = "tokens",
) -> list[float]:
    """1 within the target length, beyond it the ratio of the two lengths; 0 for an empty completion.

    For a length n, "shorter" is min(1, target / n), "longer" is min(1, n / target), "near" the smaller of the two.

    Args:
        target: the length, at least 1.
        prefer: "shorter", "longer" or "near".
        unit: "tokens" (the trainer's token ids), "characters" or "words" (separated by white space).
    """
    if target < 1:
        raise ValueError(f"length: target = {target}, but a length is at least 1.")
    if unit == "tokens":
        if completion_ids is None:
            raise ValueError("length: there are no token ids here; set unit: characters or words.")
        lengths = [len(ids) for ids in completion_ids]
    elif unit == "words":
        lengths = [len(text.split()) for text in completions]
    else:
        lengths = [len(text) for text in completions]
    short = [1.0 if prefer == "longer" else min(1.0, target / n) if n else 0.0 for n in lengths]
    long = [1.0 if prefer == "shorter" else min(1.0, n / target) for n in lengths]
    return [min(pair) for pair in zip(short, long, strict=True)]
