"""Whether a completion is about its prompt: how much more likely it is after this prompt than after others.

    score = sum over tokens of [log p(token | own prompt) - mean over the others of log p(token | other prompt)]
            / max(number of tokens, min_tokens)

This is a pointwise mutual information of text and prompt, by a frozen model. It needs no judge and no reference answer. What
any prompt makes equally likely (set phrases, an evasive answer) earns 0, and what fits another prompt better less than 0.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import PositiveInt

from grpo_ext.rewards.completion_parts import Part, part_of
from grpo_ext.rewards.deadline import paused
from grpo_ext.rewards.explanation import Explanation, clip
from grpo_ext.rewards.registry import register

SEARCHED_ROWS = 1000  # of the data, for different prompts

Prompt = str | list[dict[str, Any]]
Pair = tuple[list[int], list[int]]  # prompt and text as token ids
Key = tuple[tuple[int, ...], tuple[int, ...]]


def different_prompts(prompts: Iterable[Prompt], most: int) -> list[Prompt]:
    """Return the first `most` different prompts, in their order."""
    by_identity: dict[str, Prompt] = {}
    for prompt in prompts:
        by_identity.setdefault(identity_of(prompt), prompt)
        if len(by_identity) == most:
            break
    return list(by_identity.values())


def identity_of(prompt: Prompt) -> str:
    return json.dumps(prompt, sort_keys=True, default=str)


def unrelated_to(prompt: Prompt, sample: Sequence[Prompt], most: int) -> list[Prompt]:
    """Return the first `most` prompts of a sample without equal ones that differ from `prompt`."""
    own = identity_of(prompt)
    return [other for other in sample if identity_of(other) != own][:most]


def are_copied(text: Sequence[int], prompt: Sequence[int], run: int) -> list[bool]:
    """Return for each token of a text whether it stands in `run` tokens in a row that the prompt also has in a row."""
    runs = {tuple(prompt[begin : begin + run]) for begin in range(len(prompt) - run + 1)}
    copied = [False] * len(text)
    for begin in range(len(text) - run + 1):
        if tuple(text[begin : begin + run]) in runs:
            copied[begin : begin + run] = [True] * run
    return copied


def explain_relevance(completion: str, *, part: Part = "answer", **options: Any) -> Explanation:
    """Return which text was judged; the score itself needs the model, which a report does not load."""
    text = part_of(completion, part).strip()
    if not text:
        return Explanation("relevance 0: there is no text to judge.")
    model = options.get("model") or "the model that the run started from"
    return Explanation(
        f"Text judged: {clip(text)}\n"
        f"Nats per token by which {model} finds it more likely after this prompt than after others."
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
    """How much more likely the answer is after its prompt than after other prompts, by a frozen model: nats per token.

    An answer that fits all prompts alike earns 0, as an empty one does; one that fits the others better earns less than 0.
    Tokens that are copied from the prompt count 0. The model costs `num_unrelated + 1` passes over prompt and answer.

    Args:
        model: folder or id of the frozen model; None: the model that the run starts from.
        revision: of the model on the hub.
        unrelated: the other prompts; None: in a run the first different prompts of its data, elsewhere of the same call.
        num_unrelated: how many of them each prompt is compared with.
        part: what is judged of a completion: "answer", "thoughts" or "all".
        min_tokens: shorter texts are divided by this number, so that a single keyword does not have the highest mean.
        max_tokens: how many tokens of a text are judged.
        copied: tokens in such a long run that the prompt has, too, count 0.
        dtype: type of the model's weights.
        device: torch's name of a device; None: the GPU of the process, if there is one.

    Raises:
        ValueError: if no model is named, or there is no other prompt.
    """
    texts = [part_of(completion, part).strip() for completion in completions]
    if not any(texts):
        return [0.0] * len(texts)
    if model is None:
        raise ValueError(
            "relevance: there is no run here whose model could be used; set the option `model`."
        )
    source = prompts if unrelated is None else unrelated
    sample = different_prompts(source, len(source))
    with paused():  # a deadline must not cut the loading short
        from grpo_ext.scoring.frozen_model import load_frozen

        frozen = load_frozen(model, revision, dtype, device)
    comparisons = []
    for row, (text, prompt) in enumerate(zip(texts, prompts, strict=True)):
        others = unrelated_to(prompt, sample, num_unrelated)
        if not others:
            raise ValueError(
                "relevance: there is no other prompt to compare with; write some into `unrelated`."
            )
        text_ids = frozen.text_ids(text, max_tokens)
        if text_ids:
            own_ids = frozen.prompt_ids(prompt)
            other_ids = [frozen.prompt_ids(other) for other in others]
            comparisons.append(Comparison(row, text_ids, own_ids, other_ids))
    pairs = {key: pair for comparison in comparisons for key, pair in comparison.pairs()}
    logps = dict(zip(pairs, frozen.log_probs(list(pairs.values())), strict=True))
    scores = [0.0] * len(texts)
    for comparison in comparisons:
        own, *rest = [logps[key] for key, _ in comparison.pairs()]  # (T,) each
        gains = (own - sum(rest) / len(rest)).tolist()
        is_copy = are_copied(comparison.text, comparison.own, copied)
        total = sum(0.0 if copy else gain for gain, copy in zip(gains, is_copy, strict=True))
        scores[comparison.row] = total / max(len(gains), min_tokens)
    return scores


class Comparison(NamedTuple):
    """A text with its own prompt and the others, as token ids."""

    row: int
    text: list[int]
    own: list[int]
    others: list[list[int]]

    def pairs(self) -> list[tuple[Key, Pair]]:
        """Return prompt and text for the own prompt, then for each other one, each with a key that is equal for equal pairs."""
        return [
            ((tuple(prompt), tuple(self.text)), (prompt, self.text))
            for prompt in (self.own, *self.others)
        ]
