"""Record which tokens transformers' sampler keeps at each step, and the drawn token's log-prob."""

from typing import Any

import torch
from torch import Tensor

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams

# Processors that samples can be scored with, because they only divide by the temperature or remove
# tokens.
_EXACT_PROCESSORS = (
    "Temperature",
    "TopK",
    "TopP",
    "MinP",
    "TopH",
    "Typical",
    "Epsilon",
    "Eta",
    "LogitNormalization",
    "NoRepeatNGram",
    "EncoderNoRepeatNGram",
    "NoBadWords",
    "MinLength",
    "MinNewTokensLength",
    "SuppressTokens",
    "SuppressTokensAtBegin",
    "ForcedBOSToken",
    "ForcedEOSToken",
)

_MASK_BYTES = 2**24


def log_probs_of(scores: Tensor, token_ids: Tensor) -> Tensor:
    """Return the tokens' log-probs (n,), computed in the same way as in `sampling_log_probs`.

    Args:
        scores: (n, V), float32; -inf for tokens that could not be drawn.
        token_ids: (n, 1), one token for each row of `scores`.
    """
    top = scores.amax(-1, keepdim=True)  # (n, 1)
    log_total = -torch.softmax(scores, -1).amax(-1).log()  # (n,); the top score has p = 1 / total
    token_scores = scores.gather(-1, token_ids) - top  # (n, 1)
    return token_scores.squeeze(-1) - log_total


class Recorder:
    """A logits processor that records the kept tokens and the log-probs of one `generate` call.

    It returns the scores unchanged. It must be the last processor; otherwise, it does not see the
    scores that tokens are drawn from. After `generate`, call `rows` for the record.

    Args:
        params: the resolved sampling parameters.
        strict: whether `check` raises an error if the sampler's processors do not match `params`.
        every: record log-probs only for rows with an index divisible by this number, to save time.
            Kept tokens are recorded for all rows.
    """

    def __init__(self, params: SamplingParams, strict: bool = True, every: int = 1):
        self.params = params
        self.strict = strict
        self.every = every
        self._rows = torch.empty(0)  # (b,), the rows of the batch that are still being decoded
        # (b, V), the scores of the step whose tokens are not drawn yet
        self._scores: Tensor | None = None
        self._steps: list[Tensor] = []  # the rows of each step
        self._masks: list[Tensor] = []  # (b, V) for each step that is not in `_kept` yet
        self._kept: list[KeptSet] = []
        self._logps: list[Tensor] = []

    def check(self, processors: list[Any]) -> None:
        """If `strict` is set, check that the sampler's processors match the sampling parameters.

        Raises:
            ValueError: if a processor is not one of those known to only divide by the temperature
                or remove tokens, or if the sampler's temperature differs from that of the
                parameters.
        """
        if not self.strict:
            return
        temperature = 1.0
        for processor in processors:
            name = type(processor).__name__
            short_name = name.removesuffix("LogitsWarper").removesuffix("LogitsProcessor")
            if short_name not in _EXACT_PROCESSORS:
                raise ValueError(
                    f"{name} may change the sampler's probabilities in a way that cannot be "
                    "reproduced, so samples cannot be scored exactly. Remove the generation option "
                    "that adds it, or set `logprob_policy: model` to score without it."
                )
            temperature = getattr(processor, "temperature", temperature)
        if temperature != self.params.temperature:
            raise ValueError(
                f"Samples are drawn at temperature {temperature}, but scored at "
                f"{self.params.temperature}. Set temperature only in the training arguments, or "
                "set `logprob_policy: model` to score at temperature 1."
            )

    def __call__(self, input_ids: torch.LongTensor, scores: torch.FloatTensor) -> torch.FloatTensor:
        self._drawn(input_ids[:, -1])
        if not self._steps:
            self._rows = torch.arange(len(scores), device=scores.device)
        self._scores = scores
        self._steps.append(self._rows)
        if self.params.truncated:
            self._masks.append(scores > -torch.inf)
            num_bytes = sum(mask.numel() for mask in self._masks)
            if num_bytes > _MASK_BYTES:
                self._store()
        return scores

    def _store(self) -> None:
        """Compress the masks of several steps at once, which is faster than step by step."""
        if self._masks:
            mask = torch.cat(self._masks)  # (rows of all steps, V)
            self._kept.append(KeptSet.from_mask(mask))
            self._masks = []

    def select_rows(self, input_ids: torch.LongTensor, rows: torch.LongTensor) -> None:
        """Restrict recording to the rows that continue; the others have ended.

        Args:
            input_ids: (b, P + t), the tokens so far, including those of the rows that have ended.
            rows: (n,), the indices of the rows of `input_ids` that continue.
        """
        self._drawn(input_ids[:, -1])
        self._rows = self._rows[rows]

    def _drawn(self, tokens: Tensor) -> None:
        """Record the log-probs of `tokens` (b,), which were drawn from the last scores.

        If they have been recorded already, or if there are no scores yet, do nothing.
        """
        if self._scores is None:
            return
        recorded = self._steps[-1] % self.every == 0  # (b,)
        scores = self._scores[recorded].float()  # (n, V)
        token_ids = tokens[recorded].unsqueeze(-1)  # (n, 1)
        logps = torch.full(recorded.shape, torch.nan, device=recorded.device)  # (b,)
        logps[recorded] = log_probs_of(scores, token_ids)
        self._logps.append(logps)
        self._scores = None

    def rows(
        self, completion_ids: list[list[int]]
    ) -> tuple[list[KeptSet] | None, list[Tensor] | None]:
        """Return, for each completion, its kept tokens (T positions) and its log-probs (T,).

        The kept tokens are `None` if sampling was not truncated. The log-probs of rows that `every`
        skips are NaN. Both lists are `None` if no step was recorded, which is the case if something
        other than `generate` produced the completions.

        Args:
            completion_ids: the T tokens of each completion, in the order of the batch.

        Raises:
            RuntimeError: if a completion has more tokens than were sampled.
        """
        if not self._steps:
            return None, None
        lengths = [len(ids) for ids in completion_ids]
        last = len(self._steps) - 1
        device = self._rows.device
        if max(lengths) > last:
            last_tokens = []
            for row in self._rows.tolist():
                has_token = lengths[row] > last
                last_tokens.append(completion_ids[row][last] if has_token else 0)
            self._drawn(torch.tensor(last_tokens, device=device))
        logps = torch.zeros(len(lengths), len(self._logps), device=device)  # (B, steps)
        # (B, steps), the position of each step of a row among all kept sets
        places = torch.full(logps.shape, -1)
        start = 0
        for step, step_logps in enumerate(self._logps):
            rows = self._steps[step]
            end = start + len(rows)
            logps[rows, step] = step_logps
            places[rows.cpu(), step] = torch.arange(start, end)
            start = end
        num_recorded = (places >= 0).sum(-1)  # (B,), recorded steps of each row
        if (torch.tensor(lengths) > num_recorded).any():
            raise RuntimeError(
                "A completion has more tokens than `generate` sampled, so it cannot be scored "
                "exactly. Set `logprob_policy: trl`, which scores without a record of sampling."
            )
        logps_by_row = [logps[row, :length] for row, length in enumerate(lengths)]
        self._store()
        if not self._kept:
            return None, logps_by_row
        kept_set = KeptSet.cat(self._kept)
        kept_by_row = [kept_set.select(places[row, :length]) for row, length in enumerate(lengths)]
        return kept_by_row, logps_by_row
