"""The score that the reward `accuracy` gives to one answer."""

from __future__ import annotations

from grpo_ext.rewards import build


def score(question: str | None, gold: str, completion: str) -> float | None:
    [verdict] = build("accuracy")(completions=[completion], solution=[gold], prompts=[question])
    return verdict
