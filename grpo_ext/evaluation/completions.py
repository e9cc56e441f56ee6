"""Completions of prompts by a transformers model, which leave the caller's random state unchanged.

A model's `generation_config` (Qwen2.5's has top_p 0.8 and a repetition penalty) replaces defaults
of a config that is passed to `generate`. Therefore the model's config is swapped during the call.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.decoding.checks import base_model
from grpo_ext.decoding.play import Player
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.transcript import as_text
from grpo_ext.seams.generate import fast_generation, generate_batch, watching


@dataclass(frozen=True)
class Decoding:
    """The settings of decoding. `ValueError` for several samples at temperature 0."""

    max_new_tokens: int  # limit of a completion
    temperature: float = 0.0  # 0 decodes greedily
    top_p: float = (
        1.0  # like the next two, a truncation of the distribution; the defaults do not truncate
    )
    top_k: int = 0
    min_p: float | None = None
    num_samples: int = 1  # completions of each prompt
    seed: int = 0  # the same seed and batch size give the same completions

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.num_samples > 1:
            same = (
                f"{self.num_samples} samples at temperature 0 are the same completion "
                f"{self.num_samples} times"
            )
            raise ValueError(f"{same}: set a temperature above 0, or one sample.")

    def generation_config(
        self, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
    ) -> GenerationConfig:
        """Return the `transformers` config of these settings, with all end-of-sequence ids of model
        and tokenizer.
        """
        sampling: dict[str, Any] = {"do_sample": False}
        if self.temperature > 0:
            truncation = {"top_p": self.top_p, "top_k": self.top_k, "min_p": self.min_p}
            sampling = {"do_sample": True, "temperature": self.temperature, **truncation}
        return GenerationConfig(
            max_new_tokens=self.max_new_tokens,
            pad_token_id=tokenizer.pad_token_id
            if tokenizer.pad_token_id is not None
            else tokenizer.eos_token_id,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=end_tokens(tokenizer, model.generation_config),
            **sampling,
        )


def end_tokens(tokenizer: PreTrainedTokenizerBase, config: GenerationConfig) -> list[int]:
    """Return all end-of-sequence ids of a tokenizer and of its model's generation config."""
    eos = config.eos_token_id
    return sorted({tokenizer.eos_token_id, *(eos if isinstance(eos, list) else [eos])} - {None})


@dataclass(frozen=True)
class Completion:
    """One completion: its text without special tokens, its token ids with the end-of-sequence
    token, why it ended (`"stop"`, or `"length"` at the limit), and its `episode` if it has several
    turns.
    """

    text: str
    ids: list[int]
    finish_reason: str = "stop"
    episode: Episode | None = None

    @property
    def length(self) -> int:
        """Number of tokens that the model wrote."""
        return sum(self.episode.mask) if self.episode else len(self.ids)

    def for_rewards(self, row: dict[str, Any]) -> tuple[Any, Any, dict[str, Any]]:
        """Return what rewards read: the prompt, the completion (messages if the prompt is a
        conversation), and the columns.
        """
        if self.episode:
            return self.episode.prompt, self.episode.messages, {**row, **self.episode.columns()}
        prompt = row["prompt"]
        return (
            prompt,
            self.text if isinstance(prompt, str) else [{"role": "assistant", "content": self.text}],
            dict(row),
        )


@contextmanager
def _decoding_as(model: PreTrainedModel, config: GenerationConfig, seed: int) -> Iterator[None]:
    """Set generation config (an adapter's base has one too), eval mode and random state of a model,
    and restore them.
    """
    was = [(m, m.generation_config) for m in (model, base_model(model))]
    was_training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        for part, _ in was:
            part.generation_config = config
        model.eval()
        try:
            yield
        finally:
            for part, was_config in was:
                part.generation_config = was_config
            model.train(was_training)


def generate_completions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[dict[str, Any]],
    decoding: Decoding,
    *,
    batch_size: int = 64,
    fast: bool = True,
    chat_template_kwargs: dict[str, Any] | None = None,
    progress: str | None = None,
    begin: Callable[[list[dict[str, Any]]], list[Episode]] | None = None,
) -> list[list[Completion]]:
    """Return for the `prompt` of each row, chat messages or plain text, a list of
    `decoding.num_samples` completions.

    `batch_size` completions are decoded at once. `fast` runs each distinct prompt once, and decodes
    no completion beyond its end. `progress` is the title of a progress bar; `None` shows none.
    `begin` makes the episodes of the rows; with `None` a completion is one turn.
    """
    config = decoding.generation_config(tokenizer, model)
    asked = [row for row in rows for _ in range(decoding.num_samples)]
    episodes = begin(asked) if begin else []
    encoded = [e.prompt_ids for e in episodes] or encode_prompts(
        [r["prompt"] for r in asked], tokenizer, chat_template_kwargs
    )
    found: list[Completion] = []
    with (
        _decoding_as(model, config, decoding.seed),
        fast_generation(model) if fast else nullcontext(),
        tqdm(total=len(encoded), desc=progress, disable=progress is None) as bar,
    ):
        for start in range(0, len(encoded), batch_size):
            batch = encoded[start : start + batch_size]
            played = episodes[start : start + batch_size]
            player = Player(played) if played else None
            with watching(model, None, player) if player else nullcontext():
                made = generate_batch(model, config, batch)
            if player is not None and not player.began:
                raise ValueError(
                    "Episodes are decoded within transformers' generate, and this model has "
                    "another one: leave out eval_temperature, or evaluate with vLLM."
                )
            alone = [None] * len(batch)  # without an episode
            found += [
                _completion(tokenizer, config, *pair)
                for pair in zip(made, played or alone, strict=True)
            ]
            bar.update(len(batch))
    return [found[n : n + decoding.num_samples] for n in range(0, len(found), decoding.num_samples)]


def _completion(
    tokenizer: Any, config: GenerationConfig, ids: list[int], episode: Episode | None
) -> Completion:
    if episode is not None:
        return Completion(
            as_text(episode.messages),
            episode.ids,
            "length" if episode.truncated else "stop",
            episode,
        )
    reason = "stop" if ids and ids[-1] in config.eos_token_id else "length"
    return Completion(str(tokenizer.decode(ids, skip_special_tokens=True)), ids, reason)
