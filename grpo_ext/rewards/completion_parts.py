"""The thoughts and the answer of a completion, for rewards that judge only one of them."""

from typing import Literal

from grpo_ext.rewards.answers import last_answer, only_thoughts, without_thoughts

Part = Literal["all", "thoughts", "answer"]


def part_of(completion: str, part: Part) -> str:
    """Return one part of a completion, in time linear in its length.

    - `"all"`: the completion, unchanged.
    - `"thoughts"`: the content of each `<think>` block, closed or cut off, and all text before a
      lone `</think>`. All other text and the tags are replaced by whitespace, so that positions do
      not change. Without these tags there are no thoughts.
    - `"answer"`: the content of the last closed `<answer>` block outside the thoughts, or else all
      text outside the thoughts; stripped of surrounding whitespace.
    """
    if part == "all":
        return completion
    if part == "thoughts":
        return only_thoughts(completion)
    remainder = without_thoughts(completion)
    answer = last_answer(remainder)
    return (remainder if answer is None else answer).strip()
