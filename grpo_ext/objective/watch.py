"""Watching transformers' sampler: which tokens it kept at every step, and the log-prob of the one that it drew."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams

# What may stand in the sampler's list of processors: they scale by the temperature, or take tokens away.
_EXACT_PROCESSORS = (
    *("Temperature", "TopK", "TopP", "MinP", "TopH", "Typical", "Epsilon", "Eta", "LogitNormalization"),
    *("NoRepeatNGram", "EncoderNoRepeatNGram", "NoBadWords", "MinLength", "MinNewTokensLength"),
    *("SuppressTokens", "SuppressTokensAtBegin", "ForcedBOSToken", "ForcedEOSToken"),
)


class Recorder:
    """Stands last among the sampler's logits processors; keeps the tokens that they leave and the log-prob of the drawn one.

    Args:
        params: how sampling was resolved.
        strict: whether to refuse processors that do more than scale and take away.
    """

    def __init__(self, params: SamplingParams, strict: bool = True):
        self.params, self.strict = params, strict
        self._kept: list[KeptSet] = []
        self._logps: list[torch.Tensor] = []
        self._scores: torch.Tensor | None = None

    def check(self, processors: list[Any]) -> None:
        """Compare the sampler's processors with how sampling was resolved.

        Raises:
            ValueError: if one of them changes scores otherwise, or the temperature is another.
        """
        if not self.strict:
            return
        temperature = 1.0
        for processor in processors:
            name = type(processor).__name__
            if name.removesuffix("LogitsWarper").removesuffix("LogitsProcessor") not in _EXACT_PROCESSORS:
                raise ValueError(
                    f"{name} changes the sampler's scores in a way that is not scored exactly. Leave out the generation option "
                    "that adds it, or set logprob_policy: model."
                )
            temperature = getattr(processor, "temperature", temperature)
        if temperature != self.params.temperature:
            raise ValueError(
                f"Samples are drawn at temperature {temperature} and scored at {self.params.temperature}."
            )

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        if self._scores is not None:
            self._logps.append(_log_prob(self._scores, input_ids[:, -1]))
        self._scores = scores
        if self.params.truncated:
            self._kept.append(KeptSet.from_mask(scores > -torch.inf))
        return scores

    def rows(self, completion_ids: list[list[int]]) -> tuple[list[KeptSet] | None, list[torch.Tensor] | None]:
        """What was kept (`None` without truncation) and the sampler's log-probs, a row a completion.

        Both are `None` if no step was seen, since something else than `generate` made the completions.
        """
        if self._scores is None:
            return None, None
        longest = max(len(ids) for ids in completion_ids)
        if longest > len(self._logps):
            last = [ids[-1] if len(ids) == longest else 0 for ids in completion_ids]
            self._logps.append(_log_prob(self._scores, torch.tensor(last, device=self._scores.device)))
        logps = torch.stack(self._logps, dim=1)  # (B, steps)
        lengths = [len(ids) for ids in completion_ids]
        num_rows = len(completion_ids)
        kept = KeptSet.cat(self._kept) if self._kept else None  # position step * B + row
        kept_rows = [kept.select(torch.arange(n) * num_rows + i) for i, n in enumerate(lengths)] if kept else None
        return kept_rows, [logps[i, :n] for i, n in enumerate(lengths)]


def _log_prob(scores: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return scores.gather(-1, tokens.unsqueeze(-1)).squeeze(-1) - scores.logsumexp(-1)


@contextmanager
def watching(model: torch.nn.Module, recorder: Recorder) -> Iterator[None]:
    """Put `recorder` behind all processors of the model's `generate`."""
    model = model.get_base_model() if hasattr(model, "get_base_model") else model
    build = model._get_logits_processor

    def build_and_watch(*args: Any, **kwargs: Any) -> Any:
        processors = build(*args, **kwargs)
        recorder.check(processors)
        processors.append(recorder)
        return processors

    model._get_logits_processor = build_and_watch
    try:
        yield
    finally:
        del model._get_logits_processor
