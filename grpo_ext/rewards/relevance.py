"""Score how much more likely a completion is after its own prompt than after other prompts.

    gain(token) = log p(token | own prompt) - mean over other prompts of log p(token | other prompt)
    score = sum of gain(token) over tokens / max(number of tokens, min_tokens)

The log-probabilities come from a frozen model. The sum of the gains estimates the pointwise mutual
information between completion and prompt. Neither a judge nor a reference answer is needed. Text
that is equally likely after any prompt (set phrases, evasive answers) earns 0, and text that fits
the other prompts better earns less than 0.
"""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import PositiveInt

from grpo_ext.rewards.completion_parts import Part, part_of
from grpo_ext.rewards.deadline import paused
from grpo_ext.rewards.explanation import Explanation, clip
from grpo_ext.rewards.registry import register

SEARCHED_ROWS = 1000  # rows of the data that are searched for distinct prompts

Prompt = str | list[dict[str, Any]]
Pair = tuple[list[int], list[int]]  # (prompt, text) as token ids
Key = tuple[tuple[int, ...], tuple[int, ...]]


def different_prompts(prompts: Iterable[Prompt], max_count: int) -> list[Prompt]:
    """Return the first `max_count` distinct prompts in order, or all if there are fewer."""
    by_key: dict[str, Prompt] = {}
    for prompt in prompts:
        by_key.setdefault(prompt_key(prompt), prompt)
        if len(by_key) == max_count:
            break
    return list(by_key.values())


def prompt_key(prompt: Prompt) -> str:
    """Return a string that identifies a prompt: the keys of equal prompts are equal."""
    return json.dumps(prompt, sort_keys=True, default=str)


def unrelated_to(prompt: Prompt, sample: Sequence[Prompt], max_count: int) -> list[Prompt]:
    """Return at most the first `max_count` prompts in `sample` that differ from `prompt`."""
    key = prompt_key(prompt)
    return [other for other in sample if prompt_key(other) != key][:max_count]


def are_copied(text_ids: Sequence[int], prompt_ids: Sequence[int], run_length: int) -> list[bool]:
    """Return, for each token of a text, whether it is in a run that also occurs in the prompt.

    Args:
        text_ids: the token ids of the text, (T,).
        prompt_ids: the token ids of the prompt.
        run_length: the number of consecutive tokens in a run.

    Returns:
        A list of T booleans.
    """
    prompt_runs = set(n_grams(prompt_ids, run_length))
    copied = [False] * len(text_ids)
    for begin, run in enumerate(n_grams(text_ids, run_length)):
        if run in prompt_runs:
            copied[begin : begin + run_length] = [True] * run_length
    return copied


def n_grams(ids: Sequence[int], n: int) -> Iterator[tuple[int, ...]]:
    """Yield each run of `n` consecutive token ids."""
    for begin in range(len(ids) - n + 1):
        yield tuple(ids[begin : begin + n])


def explain_relevance(completion: str, *, part: Part = "answer", **options: Any) -> Explanation:
    """Explain a score by showing the text that was judged; the model is not loaded.

    The explanation therefore does not contain the score, unless there is no text, which scores 0.

    Args:
        completion: the text of the completion.
        part: the part of the completion that was judged: "answer", "thoughts" or "all".
        options: the other options of `relevance`, of which only `model` is used.
    """
    text = part_of(completion, part).strip()
    if not text:
        return Explanation("relevance 0: there is no text to judge.")
    model = options.get("model") or "the model that the run started from"
    return Explanation(
        f"Text judged: {clip(text)}\n"
        f"The score is how much more likely {model} finds this text after its prompt than after "
        "other prompts, in nats per token."
    )


@register("relevance", explain=explain_relevance, loads_model=True)
def relevance(
    completions: list[str],
    prompts: list[Any],
    *,
    model: str | None = None,
    revision: str | None = None,
    unrelated: list[str | list[dict[str, Any]]] | None = None,
    num_unrelated: PositiveInt = 4,
    part: Part = "answer",
    min_tokens: PositiveInt = 8,
    max_tokens: PositiveInt = 512,
    copied: PositiveInt = 4,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str | None = None,
) -> list[float]:
    """How much more likely the answer is after its prompt than after other prompts.

    A frozen model measures this in nats per token. An answer earns 0 if it is empty or fits all
    prompts equally well, and less than 0 if it fits the other prompts better. Tokens copied from
    the prompt count as 0. Each answer takes up to `num_unrelated + 1` forward passes, each over a
    prompt and the answer.

    Args:
        model: the folder or hub id of the frozen model. If it is `None`, a run uses the model that
            training starts from.
        revision: the model's revision on the hub.
        unrelated: the other prompts. If it is `None`, a run uses the first distinct prompts of its
            data; outside a run, the prompts of the same call are used.
        num_unrelated: the maximum number of other prompts that each prompt is compared with.
        part: the part of a completion that is judged: "answer", "thoughts" or "all".
        min_tokens: the minimum divisor. The sum over the tokens is divided by the number of tokens
            or, for a shorter answer, by `min_tokens`, so that a single keyword does not get the
            highest score.
        max_tokens: the maximum number of tokens that are judged; further tokens are ignored.
        copied: the number of consecutive tokens that must also occur in the prompt, in the same
            order, to be treated as copied.
        dtype: the dtype of the model's weights.
        device: the name of a torch device. If it is `None`, the process's GPU is used if there is
            one, otherwise the CPU.

    Raises:
        ValueError: if no model is given outside a run, or there is no other prompt.
        OSError: if there is no such model.
        RuntimeError: under DeepSpeed ZeRO-3, or FSDP with `fsdp_cpu_ram_efficient_loading`, where
            a process cannot load a whole model.
    """
    texts = [part_of(completion, part).strip() for completion in completions]
    if not any(texts):
        return [0.0] * len(texts)
    if model is None:
        raise ValueError(
            "relevance: outside a training run, the option `model` must name a folder or hub id, "
            "as in build('relevance', model=...)."
        )
    source = prompts if unrelated is None else unrelated
    sample = different_prompts(source, len(source))
    with paused():  # a deadline must not interrupt the loading
        from grpo_ext.scoring.frozen_model import load_frozen

        frozen = load_frozen(model, revision, dtype, device)
    comparisons = []
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        others = unrelated_to(prompt, sample, num_unrelated)
        if not others:
            raise ValueError(
                "relevance: there is no other prompt to compare a row's prompt with. Set the "
                "option `unrelated` to a list of different prompts."
            )
        text_ids = frozen.text_ids(text, max_tokens)
        if text_ids:
            prompt_ids = frozen.prompt_ids(prompt)
            unrelated_ids = [frozen.prompt_ids(other) for other in others]
            comparisons.append(Comparison(row, text_ids, prompt_ids, unrelated_ids))
    distinct_pairs: dict[Key, Pair] = {}
    for comparison in comparisons:
        distinct_pairs |= comparison.pairs()
    log_probs = frozen.log_probs(list(distinct_pairs.values()))
    logps = dict(zip(distinct_pairs, log_probs, strict=True))
    scores = [0.0] * len(texts)
    for comparison in comparisons:
        prompt_logps = logps[comparison.key(comparison.prompt_ids)]  # (T,)
        unrelated_logps = [logps[comparison.key(ids)] for ids in comparison.unrelated_ids]
        mean_logps = sum(unrelated_logps) / len(unrelated_logps)  # (T,)
        gains = (prompt_logps - mean_logps).tolist()
        is_copied = are_copied(comparison.text_ids, comparison.prompt_ids, copied)
        total = sum(gain for gain, is_copy in zip(gains, is_copied, strict=True) if not is_copy)
        scores[comparison.row] = total / max(len(gains), min_tokens)
    return scores


class Comparison(NamedTuple):
    """A text with its own prompt and unrelated prompts, as token ids."""

    row: int
    text_ids: list[int]
    prompt_ids: list[int]
    unrelated_ids: list[list[int]]

    def key(self, prompt_ids: list[int]) -> Key:
        """Return a hashable key for the pair of this prompt and the text."""
        return tuple(prompt_ids), tuple(self.text_ids)

    def pairs(self) -> dict[Key, Pair]:
        """Return (prompt ids, text ids) for the own prompt and each unrelated one, by their `key`.

        Equal prompts share an entry.
        """
        pairs = {}
        for prompt_ids in (self.prompt_ids, *self.unrelated_ids):
            pairs[self.key(prompt_ids)] = (prompt_ids, self.text_ids)
        return pairs
