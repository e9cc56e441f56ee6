"""Watching transformers' sampler: which tokens it kept at every step, and the log-prob of the one that it drew."""

from __future__ import annotations

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

_MASK_BYTES = 2**24


class Recorder:
    """Stands last among the sampler's logits processors; keeps the tokens that they leave and the log-prob of the drawn one.

    Args:
        params: how sampling was resolved.
        strict: whether to refuse processors that do more than scale and take away.
        every: log-probs are noted of the first of so many rows, which costs as much less; kept tokens always of all.
    """

    def __init__(self, params: SamplingParams, strict: bool = True, every: int = 1):
        self.params, self.strict, self.every = params, strict, every
        self._rows = torch.empty(0)  # (b,), which rows of the batch are still decoded
        self._scores: torch.Tensor | None = None  # (b, V), of the step whose tokens are not drawn yet
        self._steps: list[torch.Tensor] = []  # the rows of each step
        self._masks: list[torch.Tensor] = []  # (b, V) of the last steps, not stored yet
        self._kept: list[KeptSet] = []
        self._logps: list[torch.Tensor] = []

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
            raise ValueError(f"Samples are drawn at temperature {temperature}, scored at {self.params.temperature}.")

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self._drawn(input_ids[:, -1])
        if not self._steps:
            self._rows = torch.arange(len(scores), device=scores.device)
        self._scores = scores
        self._steps.append(self._rows)
        if self.params.truncated:
            self._masks.append(scores > -torch.inf)
            if sum(mask.numel() for mask in self._masks) > _MASK_BYTES:
                self._store()
        return scores

    def _store(self) -> None:
        """Store the masks of some steps compactly, all at once, which takes less time than one by one."""
        if self._masks:
            self._kept.append(KeptSet.from_mask(torch.cat(self._masks)))
            self._masks = []

    def select_rows(self, input_ids: torch.LongTensor, rows: torch.LongTensor) -> None:
        """Some rows have ended, and the sampler goes on without them.

        Args:
            input_ids: (b, P + t), of all rows so far, with the tokens drawn last.
            rows: (fewer than b,), those that go on.
        """
        self._drawn(input_ids[:, -1])
        self._rows = self._rows[rows]

    def _drawn(self, tokens: torch.Tensor) -> None:
        """The tokens (b,) that the last scores gave."""
        if self._scores is not None:
            noted = self._steps[-1] % self.every == 0  # (b,)
            logps = torch.full(noted.shape, torch.nan, device=noted.device)
            scores = self._scores[noted].float()
            logps[noted] = scores.gather(-1, tokens[noted].unsqueeze(-1)).squeeze(-1) - scores.logsumexp(-1)
            self._logps.append(logps)
            self._scores = None

    def rows(self, completion_ids: list[list[int]]) -> tuple[list[KeptSet] | None, list[torch.Tensor] | None]:
        """What was kept (`None` without truncation) and the sampler's log-probs (NaN where not noted), a row a completion.

        Both are `None` if no step was seen, since something else than `generate` made the completions.

        Raises:
            RuntimeError: if a completion has a token that was not seen being drawn.
        """
        if not self._steps:
            return None, None
        lengths, last = [len(ids) for ids in completion_ids], len(self._steps) - 1
        if max(lengths) > last:
            tokens = [completion_ids[i][last] if lengths[i] > last else 0 for i in self._rows.tolist()]
            self._drawn(torch.tensor(tokens, device=self._rows.device))
        logps = torch.zeros(len(lengths), len(self._logps), device=self._rows.device)  # (B, steps)
        places = torch.full(logps.shape, -1)  # (B, steps), where each step of a row stands among all that were kept
        start = 0
        for step, (rows, values) in enumerate(zip(self._steps, self._logps, strict=False)):
            logps[rows, step] = values
            places[rows.cpu(), step] = torch.arange(start, start + len(rows))
            start += len(rows)
        seen = (places >= 0).sum(-1)
        if max(lengths) > places.size(1) or any(n > s for n, s in zip(lengths, seen.tolist(), strict=True)):
            raise RuntimeError("A completion has more tokens than the sampler was seen to draw.")
        self._store()
        kept = KeptSet.cat(self._kept) if self._kept else None
        kept_rows = [kept.select(places[i, :n]) for i, n in enumerate(lengths)] if kept else None
        return kept_rows, [logps[i, :n] for i, n in enumerate(lengths)]
