"""Extract the thoughts or the answer from a completion, for rewards that judge only one of them."""

from typing import Literal

from grpo_ext.rewards.answers import last_answer, only_thoughts, without_thoughts

Part = Literal["all", "thoughts", "answer"]


def part_of(completion: str, part: Part) -> str:
    """Return one part of a completion, in time linear in its length.

    - `"all"`: the completion, unchanged.
    - `"thoughts"`: the contents of all `<think>` blocks, including an unclosed last one, and any
      text before a `</think>` without an opening tag. Everything else, including the tags, is
      replaced with whitespace, so that character offsets are preserved. Without think tags, the
      result is blank.
    - `"answer"`: the content of the last closed `<answer>` block outside the thoughts, or, if there
      is none, all text outside the thoughts. Surrounding whitespace is stripped.
    """
    if part == "all":
        return completion
    if part == "thoughts":
        return only_thoughts(completion)
    remainder = without_thoughts(completion)
    answer = last_answer(remainder)
    return (remainder if answer is None else answer).strip()
