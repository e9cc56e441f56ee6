"""Tries a layout on a model at the start of a run: two short rows, scored so and as plain rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.head import Head, RunModel
from grpo_ext.scoring.packed import refuse_packing, run_packed
from grpo_ext.scoring.prompts_once import ReadPrompts, Sequences, labels_of


@dataclass(frozen=True)
class Probe:
    """Compares layouts.

    Args:
        run: calls the model; all ranks call it equally often.
        vocab_size: of its tokens.
        device: of its inputs.
        exact: whether it computes in float32 throughout.
    """

    run: RunModel
    vocab_size: int
    device: torch.device
    exact: bool

    def refuse_unless_separate(self, model: Any) -> None:
        """Refuse a model that gives packed rows other log-probs.

        Raises:
            ValueError: saying why.
        """

        def packed(rows: Sequences) -> Tensor:
            labels = labels_of(rows.input_ids, rows.attention_mask, rows.width)
            ids, mask = rows.input_ids, rows.attention_mask
            return run_packed(self.run, model, Head(SamplingParams()), ids, mask, labels).log_probs

        try:
            apart = self._apart(model, packed)
        except (TypeError, NotImplementedError) as error:
            refuse_packing(f"the model does not take positions ({error})")
        if not self._same(apart):
            refuse_packing(
                f"the model lets sequences in one row see each other (log-probs differ by {apart:.2g} of their spread)"
            )

    def shares_prompts(self, model: Any) -> bool:
        """Whether completions have the same log-probs after a prompt that a model has read once for several."""

        def shared(rows: Sequences) -> Tensor:
            prompts, head = ReadPrompts(rows), Head(SamplingParams())
            if not prompts.read(self.run, model, head):
                raise ValueError("nothing was kept")
            return prompts.run(self.run, model, head, rows, torch.arange(len(rows))).log_probs

        try:
            return self._same(self._apart(model, shared))
        except Exception:  # whatever a model raises that cannot go on from a prompt, it reads each with its completion
            return False

    @torch.no_grad()
    def _apart(self, model: Any, otherwise: Callable[[Sequences], Tensor]) -> float:
        """Largest difference of log-probs from those of plain rows, over their spread."""
        generator = torch.Generator().manual_seed(0)  # the run's own random state stays as it is
        ids = torch.randint(self.vocab_size, (2, 16), generator=generator)
        mask = torch.ones_like(ids)
        ids[1, :8], mask[:, :3] = ids[0, :8], 0  # one prompt of 5 tokens behind padding, two completions
        rows, training = Sequences(ids.to(self.device), mask.to(self.device), 8), model.training
        labels = labels_of(rows.input_ids, rows.attention_mask, rows.width)
        model.eval()
        try:
            inputs = {"input_ids": rows.input_ids, "attention_mask": rows.attention_mask}
            alone = self.run(model, Head(SamplingParams()), labels, **inputs).log_probs[:, -rows.width :]
            found = otherwise(rows)[:, -rows.width :]
        finally:
            model.train(training)
        return float((found - alone).abs().max() / alone.std())

    def _same(self, apart: float) -> bool:
        return apart <= (1e-4 if self.exact else 0.1)
