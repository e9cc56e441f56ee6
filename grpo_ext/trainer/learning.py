"""Whether a run learnt: completions with an advantage, gradients, and weights that changed, from
its first step to its last.

A run in which one of these never occurred learnt nothing, whatever its other figures say. `verdict`
says which, in words for the last lines, the model card and the exit status.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from accelerate.utils import gather_object
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers.trainer_callback import TrainerCallback

from grpo_ext.observe.run_log import LEARNT_NOTHING
from grpo_ext.step.records import Scored
from grpo_ext.trainer.start_checks import check_start, steps_in_backward, used_parameters


@dataclass
class Progress:
    """What a rank has seen since the first step of the run; saved in checkpoints."""

    steps: int = 0  # optimizer steps
    completions: int = 0  # that were generated to train on
    with_signal: int = 0  # of these, those in groups whose rewards differ
    with_advantage: int = 0  # of these, those with an advantage and at least one token in the loss
    gradient: bool = False  # whether a parameter had a gradient other than 0 in some step
    moved: bool = False  # whether some step changed a weight
    episodes: int = 0  # that were played to train on
    failed_episodes: int = 0  # of these, those in which the environment failed

    def __add__(self, other: "Progress") -> "Progress":
        """Return what two ranks have seen together."""
        return Progress(
            steps=max(self.steps, other.steps),
            completions=self.completions + other.completions,
            with_signal=self.with_signal + other.with_signal,
            with_advantage=self.with_advantage + other.with_advantage,
            gradient=self.gradient or other.gradient,
            moved=self.moved or other.moved,
            episodes=self.episodes + other.episodes,
            failed_episodes=self.failed_episodes + other.failed_episodes,
        )


@dataclass(eq=False)
class Learning(TrainerCallback):
    """Checks the start of a run, watches its steps, and says at its end whether it learnt nothing."""

    trainer: Any
    progress: Progress = field(default_factory=Progress)
    verdict: str | None = None  # why the run learnt nothing; `None` if it learnt, or has not ended
    remarks: list[str] = field(
        default_factory=list
    )  # sentences for the end of the run, without the verdict
    # a checksum of each trained tensor, by its name, while none has changed
    _weights: dict[str, Tensor] = field(default_factory=dict)

    # ---- from the parts of the trainer

    def generated(self, table: Scored) -> None:
        """Count the completions of a generation that is trained on."""
        signal = table.signal > 0  # (B,)
        in_loss = table.loss_mask.any(dim=1)  # (B,)
        has_advantage = (table.row_advantages != 0).any(dim=1)  # (B,)
        self.progress.completions += len(table)
        self.progress.with_signal += int(signal.sum())
        self.progress.with_advantage += int((signal & in_loss & has_advantage).sum())

    def played(self, failures: list[int]) -> None:
        """Count the episodes of a generation that is trained on; `failures` has the failures of
        each one's environment.
        """
        self.progress.episodes += len(failures)
        self.progress.failed_episodes += sum(count > 0 for count in failures)

    # ---- events of the run

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Refuse a run that would learn nothing (`CannotLearn`)."""
        if state.global_step == 0:
            self.progress = Progress()
        self.verdict, self.remarks = None, []
        if state.global_step < state.max_steps:
            check_start(self.trainer, kwargs.get("optimizer"))
            self._weights = {} if self.progress.moved else self._checksums()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look for a gradient, until a step has had one."""
        if not self.progress.gradient:
            gradients = [p.grad for p in self._trained().values() if p.grad is not None]
            self.progress.gradient = any(bool(local(grad).any()) for grad in gradients)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Look for a weight that has changed, until a step has changed one; conclude after the last
        step.
        """
        self.progress.steps += 1
        if not self.progress.moved:
            now = self._checksums()
            # a callback may have frozen or unfrozen weights
            watched = now.keys() & self._weights.keys()
            self.progress.moved = any(bool(self._weights[name] != now[name]) for name in watched)
            self._weights = now
        if state.global_step >= state.max_steps:
            self.conclude()
            if self.verdict is not None and state.is_world_process_zero:
                log = self.trainer.parts.log
                log.note(state.global_step, {"alarm": LEARNT_NOTHING, "message": self.verdict})

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Conclude a run that ended early, or had ended before."""
        self.conclude()

    def conclude(self) -> None:
        """Set verdict and remarks from what all ranks have seen; all ranks must call it."""
        progress = sum(gather_object([self.progress]), Progress())
        judge = self.trainer.parts.judge
        self.remarks = failure_lines(judge.failed, judge.asked, progress)
        self.verdict = why_nothing_was_learnt(progress, self.watches_weights, self.needs_advantage)

    # ---- the trained parameters

    @property
    def watches_weights(self) -> bool:
        """Whether gradients and weights can be seen here.

        DeepSpeed keeps both elsewhere, and a layerwise optimizer keeps no gradients.
        """
        return not (self.trainer.is_deepspeed_enabled or steps_in_backward(self.trainer.args))

    @property
    def needs_advantage(self) -> bool:
        """Whether the loss has no gradient without advantages; a user's own loss may have one."""
        trainer = self.trainer
        return trainer.as_trl or trainer.parts.update.settings.loss.needs_advantage

    def _trained(self) -> dict[str, Tensor]:
        """Return the tensors that the policy uses and training may change, by name."""
        if not self.watches_weights:
            return {}
        model = self.trainer.accelerator.unwrap_model(self.trainer.model)
        return {name: p for name, p in used_parameters(model) if p.requires_grad}

    def _checksums(self) -> dict[str, Tensor]:
        """Return a checksum of the bits of each trained tensor, by name."""
        return {name: checksum(local(p.detach())) for name, p in self._trained().items()}

    # ---- checkpoints

    def state_dict(self) -> dict[str, Any]:
        return vars(self.progress).copy()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.progress = Progress(**state)


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part of a sharded tensor; any other tensor unchanged."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def checksum(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor's elements, read as integers of their size: a scalar on the same
    device.
    """
    integers = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.view(integers[tensor.element_size()]).sum(dtype=torch.int64)


def why_nothing_was_learnt(
    progress: Progress, watches_weights: bool = True, needs_advantage: bool = True
) -> str | None:
    """Return why a run learnt nothing, and what to look at; `None` if it learnt something, or took
    no step.

    Args:
        progress: what all ranks have seen together.
        watches_weights: whether `gradient` and `moved` were watched.
        needs_advantage: whether the loss has no gradient without advantages.
    """
    if progress.steps == 0:
        return None
    nothing = "Nothing was learnt: "
    if needs_advantage and progress.completions and not progress.with_advantage:
        if progress.with_signal:
            return (
                f"{nothing}all {progress.with_signal} completions of groups whose rewards differed "
                "were left out of the loss, because they were truncated "
                "(mask_truncated_completions). Raise max_completion_length."
            )
        return (
            f"{nothing}within every group all rewards were equal, so none of "
            f"{progress.completions} completions had an advantage. Look at completions and rewards "
            "in the report; an easier task, a warm start, or a reward with more than two values "
            "gives groups that differ."
        )
    if watches_weights and not progress.gradient:
        return (
            f"{nothing}no step had a gradient. Look at the loss and at which parameters require "
            "one."
        )
    if watches_weights and not progress.moved:
        return (
            f"{nothing}no step changed a weight. The learning rate was 0 in every step (a warm-up "
            "begins at 0), or so small that the weights' precision rounds each change away: raise "
            "learning_rate or max_steps, or train float32 weights."
        )
    return None


def failure_lines(failed: dict[str, int], asked: dict[str, int], progress: Progress) -> list[str]:
    """Return a sentence for each reward, and for the environment, that failed.

    Args:
        failed: by reward, the number of completions on which it failed.
        asked: by reward, the number of completions that it was asked to score.
        progress: has the episodes.
    """
    lines = [
        f"Reward {name!r} failed on "
        f"{share_of(count, max(asked.get(name, 0), count), 'completions')}, which it did not score."
        for name, count in failed.items()
        if count
    ]
    if progress.failed_episodes:
        counts = share_of(progress.failed_episodes, progress.episodes, "episodes")
        lines.append(f"The environment failed in {counts}.")
    return lines


def share_of(count: int, total: int, noun: str) -> str:
    """Return a count with its total and its share in percent."""
    return f"{count} of {total} {noun} ({count / total:.0%})"
