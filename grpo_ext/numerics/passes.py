"""Score the same completions with a trainer's scorer, in the run's passes and in other layouts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from grpo_ext.numerics.edges import with_other_targets
from grpo_ext.scoring.layout import Layout, choose_layout
from grpo_ext.scoring.scorer import Scorer, blocks_of
from grpo_ext.seams.scoring import without_checkpointing
from grpo_ext.step.records import Scored, Scores
from grpo_ext.trainer import GRPOExtTrainer
from grpo_ext.trainer.settings import make_scorer

ROWS = 8  # maximum number of rows in a pass of `Passes.cut`


@dataclass(frozen=True)
class Cut:
    """A way to arrange completions for a pass without gradient."""

    name: str
    layout: str  # a value of the recipe key `layout`
    shares: bool  # whether completions share one copy of their prompt


ONE_ROW = "one row at a time"
CUTS = (
    Cut(f"{ROWS} rows, padded", "padded", shares=False),
    Cut(f"{ROWS} rows, chunks of similar length", "chunks", shares=False),
    Cut(f"{ROWS} rows, chunks, prompts shared", "chunks", shares=True),
    Cut(f"{ROWS} rows, packed", "packed", shares=False),
    Cut(f"{ROWS} rows, packed, prompts shared", "packed", shares=True),
)


class Passes:
    """Scores the same completions in several ways with a trainer's model.

    Args:
        trainer: a trainer whose training has begun.
        table: the completions to score.
    """

    def __init__(self, trainer: GRPOExtTrainer, table: Scored):
        self.trainer = trainer
        self.table = table
        self.scorer: Scorer = trainer.parts.scorer

    def one_row(self) -> Tensor:
        """Return the log-probs (B, T) computed one row at a time, without gradient."""
        layout = replace(self._layout("padded"), shares=False)
        return self._without_gradient(self._scorer(layout), 1).logps

    def cut(self, cut: Cut) -> Tensor:
        """Return the log-probs (B, T) computed in passes of up to `ROWS` rows, without gradient.

        Args:
            cut: the layout of the passes.

        Raises:
            ValueError: if the trainer would not use the layout for this model, or if completions
                are to share a prompt but cannot in this layout. The message is a clause that says
                why.
        """
        layout = self._layout(cut.layout)
        can_share = layout.in_row if cut.layout == "packed" else layout.shares
        if not cut.shares:
            layout = replace(layout, shares=False, in_row=False)
        scorer = self._scorer(layout)
        if scorer.layout.kind != cut.layout:
            raise ValueError(scorer.layout.reason or "the trainer chose another layout")
        if cut.shares and not can_share:
            raise ValueError("in this layout, the model's completions cannot share a prompt")
        if cut.shares and not scorer.layout.shares:
            raise ValueError("the model cannot continue from a shared prompt")
        return self._without_gradient(scorer, ROWS).logps

    def before_the_step(self) -> Tensor:
        """Return the old policy's log-probs (B, T), computed as in the run, without gradient."""
        return self._without_gradient(self.scorer, self.micro_batch).logps

    def of_the_step(self, checkpointing: bool | None = None) -> Tensor:
        """Return the log-probs (B, T), computed with gradient as in a training step.

        The result itself is detached.

        Args:
            checkpointing: whether to use gradient checkpointing; `None` keeps the run's setting.
        """
        if checkpointing is None or checkpointing == self.checkpoints:
            return self._with_gradient(self.scorer)
        layout = replace(self.scorer.layout, recomputes=checkpointing)
        with self._checkpointing(checkpointing):
            return self._with_gradient(replace(self.scorer, layout=layout))

    def own_kept(self) -> tuple[Scores, Scores]:
        """Score without the sampler's kept sets, so that the trainer computes its own.

        Returns:
            The scores of the drawn tokens and the scores of other tokens in their places. If the
            run samples with top_k, top_p or min_p, both contain the trainer's kept sets.
        """
        table = replace(self.table, kept=None)
        block = self.micro_batch
        with torch.no_grad(), without_checkpointing(self.trainer):
            drawn = self.scorer.score(self.trainer.model, table, block)
            others = with_other_targets(self.scorer).score(self.trainer.model, table, block)
        return drawn, others

    @property
    def micro_batch(self) -> int:
        """The maximum number of rows in a pass of the run."""
        return self.trainer.args.per_device_train_batch_size

    @property
    def checkpoints(self) -> bool:
        """Whether the run uses gradient checkpointing."""
        return bool(self.trainer.args.gradient_checkpointing)

    def _layout(self, option: str) -> Layout:
        return choose_layout(
            option,
            self.trainer.accelerator.unwrap_model(self.trainer.model),
            one_call=False,
            aux_loss=False,
            recomputes=False,
            max_tokens=self.trainer.args.max_tokens_per_micro_batch,
        )

    def _scorer(self, layout: Layout) -> Scorer:
        """Return a scorer with `layout`, or with another one if the model cannot use `layout`."""
        return make_scorer(self.trainer, self.scorer.params, layout)

    def _without_gradient(self, scorer: Scorer, block: int) -> Scores:
        with torch.no_grad(), without_checkpointing(self.trainer):
            return scorer.score(self.trainer.model, self.table, block)

    def _with_gradient(self, scorer: Scorer) -> Tensor:
        """Score in micro-batches with gradient, and return the detached log-probs (B, T)."""
        table = self.table
        logps = torch.zeros(table.completion_ids.shape, device=table.completion_ids.device)
        for rows in blocks_of(table, self.micro_batch):
            part = table.take(rows)
            with torch.enable_grad():
                aux_loss = self.trainer.aux_loss_enabled
                scores = scorer.score(self.trainer.model, part, aux_loss=aux_loss)
            on_device = rows.to(logps.device)
            logps[on_device, : part.width] = scores.logps.detach().to(logps.dtype)
            del scores  # frees the graph before the next pass
        return logps

    @contextmanager
    def _checkpointing(self, on: bool) -> Iterator[None]:
        """Context manager that turns gradient checkpointing on or off, and reverses this on exit.

        `on` must be the opposite of the run's own setting, so that the exit restores that setting.
        """
        model: Any = self.trainer.accelerator.unwrap_model(self.trainer.model)
        set_checkpointing(model, on)
        try:
            yield
        finally:
            set_checkpointing(model, not on)


def set_checkpointing(model: Any, on: bool) -> None:
    """Turn gradient checkpointing on or off in a transformers model."""
    if on:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    else:
        model.gradient_checkpointing_disable()
