"""Tries a layout on a model at the start of a run: two short rows, scored so and as plain rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

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
        limit: how far log-probs may differ, over their spread.
    """

    run: RunModel
    vocab_size: int
    device: torch.device
    limit: float

    def refuse_unless_separate(self, model: Any) -> None:
        """Refuse a model that gives packed rows other log-probs, by a `ValueError` that says why."""
        try:
            apart = self._apart(model, packed=True)
        except (TypeError, NotImplementedError) as error:
            refuse_packing(f"the model does not take positions ({error})")
        if not apart <= self.limit:
            refuse_packing(
                f"the model lets sequences in one row see each other (log-probs differ by {apart:.2g} of their spread)"
            )

    def shares_prompts(self, model: Any) -> bool:
        """Whether completions have the same log-probs after a prompt that a model has read once for several."""
        try:
            return self._apart(model, packed=False) <= self.limit
        except Exception:  # whatever a model raises that cannot go on from a prompt, it reads each with its completion
            return False

    @torch.no_grad()
    def _apart(self, model: Any, packed: bool) -> float:
        """Largest difference of log-probs of packed rows, or of rows that share a prompt, from those of plain ones."""
        generator = torch.Generator().manual_seed(0)  # the run's own random state stays as it is
        ids = torch.randint(self.vocab_size, (2, 16), generator=generator).to(self.device)
        mask, training = torch.ones_like(ids), model.training
        ids[1, :8], mask[:, :3] = ids[0, :8], 0  # one prompt of 5 tokens behind padding, two completions
        rows, labels, params = Sequences(ids, mask, 8), labels_of(ids, mask, 8), SamplingParams()
        model.eval()
        try:
            alone = self.run(model, Head(params), labels, input_ids=ids, attention_mask=mask)
            if packed:
                found = run_packed(self.run, model, Head(params), ids, mask, labels)
            else:
                prompts = ReadPrompts(rows)
                prompts.read(self.run, model, Head(params))
                found = prompts.run(self.run, model, Head(params), rows, torch.arange(2))
        finally:
            model.train(training)
        a, b = (output.log_probs[:, -8:] for output in (alone, found))
        return float((a - b).abs().max() / a.std())
