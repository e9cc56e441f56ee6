"""The parts of a completion, thoughts and answer, for rewards that judge one of the two."""

from typing import Literal

from grpo_ext.rewards.answers import last_answer, only_thoughts, without_thoughts

Part = Literal["all", "thoughts", "answer"]


def part_of(completion: str, part: Part) -> str:
    """Return one part of a completion, in time linear in its length.

    - `"all"`: the completion, unchanged.
    - `"thoughts"`: the content of each `<think>` block, closed or cut off, and all text before a
      lone `</think>`. All other text is replaced by blanks, so that positions stay those of the
      completion. Without these tags there are no thoughts.
    - `"answer"`: the content of the last closed `<answer>` block after the thoughts, else all text
      outside the thoughts, without white space around it.
    """
    if part == "all":
        return completion
    if part == "thoughts":
        return only_thoughts(completion)
    remainder = without_thoughts(completion)
    answer = last_answer(remainder)
    return (remainder if answer is None else answer).strip()
