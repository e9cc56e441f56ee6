"""Check on two short rows that a layout computes the same log-probs as padded rows."""

from dataclasses import dataclass
from typing import Literal

import torch

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.scoring.head import Head, RunModel, labels_of
from grpo_ext.scoring.layout import refuse_packing
from grpo_ext.scoring.packed import run_packed
from grpo_ext.scoring.prompts_once import ReadPrompts


@dataclass(frozen=True)
class Probe:
    """Tests whether a model computes the same log-probs in another layout as with padded rows.

    The other layout is either packed rows, or chunks of completions that share a cached prompt.
    """

    run: RunModel  # calls the model; all ranks must call it the same number of times
    vocab_size: int
    device: torch.device  # the device of the model's inputs
    limit: float  # the largest allowed difference of log-probs, in their standard deviations

    def refuse_unless_separate(self, model: torch.nn.Module, shares: bool) -> None:
        """Raise `ValueError` if the model cannot score packed rows.

        Args:
            model: the model to test.
            shares: whether completions share one copy of their prompt in a packed row.
        """
        reason = self.why_not_separate(model, shares)
        if reason is not None:
            refuse_packing(reason)

    def why_not_separate(self, model: torch.nn.Module, shares: bool) -> str | None:
        """Return why the model cannot score packed rows, or `None` if it can.

        The model cannot if it raises `TypeError` or `NotImplementedError` for a packed row, or if
        packing changes log-probs by more than `limit`.

        Args:
            model: the model to test.
            shares: whether completions share one copy of their prompt in a packed row.
        """
        try:
            apart = self._apart(model, "packed", shares)
        except (TypeError, NotImplementedError) as error:
            return f"the model does not accept packed rows with positions ({error})"
        if apart <= self.limit:
            return None
        return (
            "the sequences of one row attend to each other (log-probs differ by "
            f"{apart:.2g} standard deviations)"
        )

    def shares_prompts(self, model: torch.nn.Module) -> bool:
        """Return whether completions can continue from the cache of a prompt that ran only once.

        They can if this changes log-probs by no more than `limit`. If the model raises an error,
        the result is `False`.
        """
        try:
            return self._apart(model, "chunks", True) <= self.limit
        except Exception:  # a model that cannot continue from a prompt may raise anything
            return False

    @torch.no_grad()
    def _apart(
        self,
        model: torch.nn.Module,
        kind: Literal["chunks", "packed"],
        shares: bool,
    ) -> float:
        """Return the largest difference between a layout's log-probs and those of padded rows.

        The difference is measured in standard deviations of the padded rows' log-probs.
        """
        generator = torch.Generator().manual_seed(0)  # leaves the run's RNG state unchanged
        ids = torch.randint(self.vocab_size, (2, 16), generator=generator).to(self.device)
        mask = torch.ones_like(ids)
        training = model.training
        ids[1, :8] = ids[0, :8]
        mask[:, :3] = 0  # left padding: the prompt has 5 tokens
        mask[0, 13:] = 0  # right padding: the completions have 5 and 8 tokens
        labels = labels_of(ids, mask, 8)
        params = SamplingParams()
        model.eval()
        try:
            alone = self.run(model, Head(params), labels, input_ids=ids, attention_mask=mask)
            if kind == "packed":
                shared = run_packed(self.run, model, Head(params), ids, mask, 8, shares)
            else:
                prompts = ReadPrompts(ids[:, :8], mask[:, :8])
                prompts.read(self.run, model, Head(params))
                rows = torch.arange(2)
                shared = prompts.run(self.run, model, Head(params), ids, mask, 8, rows)
        finally:
            model.train(training)
        alone_logps = alone.logps[:, -8:]  # (2, 8)
        shared_logps = shared.logps[:, -8:]  # (2, 8)
        difference = (alone_logps - shared_logps).abs().max()
        return float(difference / alone_logps.std())
