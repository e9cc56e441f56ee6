"""The reward `instructions`: the share of a row's verifiable instructions that are followed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from grpo_ext.common.run_time import counted
from grpo_ext.rewards.completion_parts import Part, part_of
from grpo_ext.rewards.explanation import Explanation
from grpo_ext.rewards.instruction_checks import follows, words_of
from grpo_ext.rewards.registry import register
from grpo_ext.rewards.reward import plain_text

NUMBER_OF_WORDS = "length_constraints:number_words"
COPIED_WORDS = 8  # this many consecutive words from the prompt count as a copy
Credit = Literal["share", "all"]
Share = Annotated[float, Field(ge=0, le=1)]
Parameters = Mapping[str, Any] | None


@dataclass(frozen=True)
class Acceptance:
    """Requirements beyond a row's instructions; each field is an option of the reward.

    Attributes:
        min_words: the minimum number of words, unless an instruction asks for fewer.
        min_distinct: the minimum share of distinct words among all words.
        allow_copies: whether the text may copy `COPIED_WORDS` consecutive words from the prompt.
    """

    min_words: int
    min_distinct: float
    allow_copies: bool

    def fault(self, text: str, prompt: str, topic: str | None, limit: int | None) -> str | None:
        """Return why `text` is not accepted, or `None` if it is.

        The reason is a sentence without a final period.

        Args:
            text: the part of the completion that is judged.
            prompt: the text of the prompt, which must not be copied unless `allow_copies` is true.
            topic: a string that the text must contain, ignoring case; `None` if there is no topic.
            limit: the exclusive word limit that an instruction sets; `None` if there is none.
        """
        words = lowered_words(text)
        min_words = self.min_words if limit is None else min(self.min_words, limit - 1)
        distinct = len(set(words))
        if len(words) < min_words:
            return f"it has {counted(len(words), 'word')}, fewer than {min_words}"
        if distinct < self.min_distinct * len(words):
            share = f"{self.min_distinct:g}"
            return f"its share of distinct words, {distinct} of {len(words)}, is less than {share}"
        if topic and topic.lower() not in text.lower():
            return f"it does not name {topic!r}"
        if not self.allow_copies and runs_of(words) & runs_of(lowered_words(prompt)):
            return f"it copies {COPIED_WORDS} words in a row from the prompt"
        return None


def lowered_words(text: str) -> list[str]:
    return [word.lower() for word in words_of(text)]


def runs_of(words: list[str]) -> set[tuple[str, ...]]:
    """Return all runs of `COPIED_WORDS` consecutive words."""
    count = len(words) - COPIED_WORDS + 1
    return {tuple(words[i : i + COPIED_WORDS]) for i in range(count)}


def word_limit(names: Sequence[str], parameters: Sequence[Parameters]) -> int | None:
    """Return the smallest N among a row's instructions of the form "less than N words".

    Return `None` if the row has no such instruction.
    """
    limits = []
    for name, row_parameters in zip(names, parameters, strict=True):
        if name != NUMBER_OF_WORDS or row_parameters is None:
            continue
        number = row_parameters.get("num_words")
        if row_parameters.get("relation") == "less than" and number is not None:
            limits.append(int(number))
    return min(limits, default=None)


def followed(text: str, names: Sequence[str], parameters: Sequence[Parameters]) -> list[bool]:
    """Return, for each instruction of a row, whether `text` follows it.

    Args:
        text: the text to check.
        names: the names of the row's instructions.
        parameters: the parameters of each instruction; `None` if it has none.

    Raises:
        ValueError: if the lists differ in length, if an instruction is unknown, or if a parameter
            is missing or invalid.
    """
    if len(names) != len(parameters):
        raise ValueError(
            f"A row has {counted(len(names), 'instruction')} in `instruction_id_list`, but "
            f"{counted(len(parameters), 'set')} of parameters in `kwargs`. Set `kwargs` to a list "
            "with one mapping per instruction; use {} for an instruction without parameters."
        )
    results = []
    for name, row_parameters in zip(names, parameters, strict=True):
        results.append(follows(text, name, row_parameters or {}))
    return results


def explain_instructions(
    completion: str,
    *,
    instruction_id_list: list[str],
    kwargs: list[Any],
    topic: str | None = None,
    credit: Credit = "share",
    part: Part = "answer",
    min_words: int = 0,
    min_distinct: float = 0.0,
    allow_copies: bool = True,
    max_tokens: int | None = None,
) -> Explanation:
    """Say which instructions a completion follows, and give any other reason for a score of 0.

    Copies of the prompt and truncated completions are not detected.

    Args:
        completion: the completion.
        instruction_id_list: the names of the row's instructions.
        kwargs: the parameters of each instruction.
        topic: a string that the text must contain, ignoring case; `None` if there is no topic.
        credit: has no effect here.
        part: the part of the completion that is judged: "answer", "thoughts" or "all".
        min_words: the minimum number of words, unless an instruction asks for fewer.
        min_distinct: the minimum share of distinct words among all words.
        allow_copies: has no effect here, because the prompt is not available.
        max_tokens: has no effect here, because the tokens are not available.

    Raises:
        ValueError: if the lists differ in length, if an instruction is unknown, or if a parameter
            is missing or invalid.
    """
    text = part_of(completion, part)
    results = followed(text, instruction_id_list, kwargs)
    lines = []
    for name, parameters, is_followed in zip(instruction_id_list, kwargs, results, strict=True):
        shown = [f"{key} {value}" for key, value in (parameters or {}).items() if value is not None]
        verdict = "followed" if is_followed else "not followed"
        lines.append(f"{verdict}: {name} {', '.join(shown)}".rstrip())
    limit = word_limit(instruction_id_list, kwargs)
    # Without the prompt and the tokens, copies and truncated completions cannot be detected.
    fault = Acceptance(min_words, min_distinct, allow_copies).fault(text, "", topic, limit)
    if fault is not None:
        lines.append(f"The text earns 0: {fault}.")
    return Explanation("\n".join(lines))


@register("instructions", explain=explain_instructions)
def instructions(
    completions: list[str],
    instruction_id_list: list,
    kwargs: list,
    topic: list | None = None,
    prompts: list | None = None,
    completion_ids: list | None = None,
    *,
    credit: Credit = "share",
    part: Part = "answer",
    min_words: NonNegativeInt = 0,
    min_distinct: Share = 0.0,
    allow_copies: bool = True,
    max_tokens: PositiveInt | None = None,
) -> list[float]:
    """The share of a row's verifiable instructions that the text follows.

    The columns are the same as in IFEval (arXiv 2311.07911). A row without instructions scores 1. A
    text of more than 100,000 characters follows no instruction. The topic and the options set
    further conditions; a text that does not meet all of them scores 0.

    Args:
        instruction_id_list: the names of the instructions, such as
            `length_constraints:number_words`; a list for each row.
        kwargs: the parameters of each instruction; a list of mappings for each row.
        topic: for each row, a string that the text must contain, ignoring case, or `None`.
        prompts: the prompts, from which the text must not copy if `allow_copies` is false.
        completion_ids: the token ids of the completions; without them, `max_tokens` has no effect.
        credit: "share" scores the share of the instructions that are followed; "all" scores 1 if
            all of them are followed, else 0.
        part: "answer" judges the answer, "thoughts" the thoughts, "all" the whole completion.
        min_words: the minimum number of words, unless an instruction asks for fewer.
        min_distinct: the minimum share of distinct words among all words.
        allow_copies: whether the text may copy eight consecutive words from the prompt.
        max_tokens: the maximum number of tokens in a completion. A completion that reaches it
            counts as truncated and scores 0. If `None`, completions are not checked for truncation.

    Raises:
        ValueError: if a row's lists differ in length, if an instruction is unknown, or if a
            parameter is missing or invalid.
    """
    acceptance = Acceptance(min_words, min_distinct, allow_copies)
    topics = [None] * len(completions) if topic is None else topic
    prompt_texts = [""] * len(completions) if prompts is None else map(plain_text, prompts)
    is_cut = [False] * len(completions)
    if max_tokens is not None and completion_ids is not None:
        is_cut = [len(ids) >= max_tokens for ids in completion_ids]
    rows = zip(completions, instruction_id_list, kwargs, topics, prompt_texts, is_cut, strict=True)
    scores = []
    for completion, names, parameters, row_topic, prompt, was_cut in rows:
        text = part_of(completion, part)
        results = followed(text, names, parameters)
        limit = word_limit(names, parameters)
        if was_cut or acceptance.fault(text, prompt, row_topic, limit) is not None:
            scores.append(0.0)
        elif credit == "all":
            scores.append(float(all(results)))
        else:
            scores.append(sum(results) / len(results) if results else 1.0)
    return scores
