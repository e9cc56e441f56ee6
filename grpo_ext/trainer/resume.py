"""Checkpoints from which a run goes on exactly, and the newest that is whole.

transformers saves weights, optimizer, schedule and random states. What a GRPO run knows beside them is saved here, a file a
rank: the generation that is being trained on and how far, the order of the prompts, groups carried over, pass rates, what is
not logged yet, and a reference that moves. A manifest with the size and hash of every file is written last, so that a
checkpoint that was cut off or damaged is told from a whole one. Older ones are deleted only then.
"""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from transformers.trainer_callback import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from grpo_ext.batching.rows import moved
from grpo_ext.trainer.manifest import MANIFEST, STATE, made_here, newest_whole, what_is_wrong, write_manifest
from grpo_ext.trainer.rows import overridden

UNWRITABLE = (OSError, RuntimeError, SafetensorError)  # what torch, safetensors and the system raise on a full disk
logger = logging.getLogger(__name__)


def _numbered_cpu(storage: torch.UntypedStorage, location: str) -> torch.UntypedStorage | None:
    """Lets `torch.load` read to `cpu:0`, which is what ranks on a CPU are on by accelerate.

    transformers 5.17 reads the optimizer's state there, and torch by itself knows `cpu` alone.
    """
    return storage if location.startswith("cpu:") else None


torch.serialization.register_package(1000, lambda storage: None, _numbered_cpu)


class CheckpointMismatch(ValueError):
    """A checkpoint that this run cannot go on from exactly."""


class ExactResume:
    """Mixin before `GRPOTrainer`, outside of what keeps state."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        sharded = self.is_deepspeed_enabled or self.is_fsdp_enabled
        if sharded and self.ref_model is not None and self.args.sync_ref_model:
            raise ValueError(
                "sync_ref_model moves a reference that is saved in no checkpoint while it is sharded: set it to false."
            )
        self.save_error: str | None = None  # of the last checkpoint, where it could not be written
        self._loss_state: tuple[torch.Tensor, int] | None = None
        self.add_callback(_RestoreLoss(self))

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in TRL; `True` goes on from the newest whole checkpoint of `output_dir`, or starts where there is none.

        Raises:
            CheckpointMismatch: if the checkpoint is damaged, or was saved by another number of ranks.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self.newest_checkpoint()
        elif resume_from_checkpoint:
            self._check_whole(Path(resume_from_checkpoint))
        if resume_from_checkpoint:
            self._restore(Path(resume_from_checkpoint))
        with overridden(self.args, eval_on_start=self.args.eval_on_start and not resume_from_checkpoint):
            return super().train(resume_from_checkpoint or None, *args, **kwargs)

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """As in transformers, which would take one step more from the checkpoint of the last step."""
        if self.state.global_step >= self.state.max_steps:
            self.control.should_training_stop = True
            return
        super()._run_epoch(*args, **kwargs)

    def newest_checkpoint(self) -> str | None:
        """The newest whole checkpoint of `output_dir`, read by one rank for all."""
        found = newest_whole(Path(self.args.output_dir)) if self.accelerator.is_main_process else None
        return broadcast_object_list([found])[0]

    def _check_whole(self, checkpoint: Path) -> None:
        wrong = what_is_wrong(checkpoint) if self.accelerator.is_main_process and made_here(checkpoint) else None
        wrong = broadcast_object_list([wrong])[0]
        if wrong:
            raise CheckpointMismatch(
                f"{checkpoint} cannot be used: {wrong}. `resume: auto` takes the newest that is whole."
            )

    def _save_checkpoint(self, model, trial):
        """As in TRL, with what a GRPO run knows, and a manifest. Where the disk takes it not, the run goes on without."""
        run = Path(self._get_output_dir(trial=trial))
        folder = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        error = ""
        try:
            self._write_checkpoint(folder, model, trial)
        except UNWRITABLE as failure:
            if self.is_deepspeed_enabled or self.is_fsdp_enabled:  # the other ranks wait within
                raise
            error = str(failure) or type(failure).__name__
        error = next(filter(None, gather_object([error])), "")
        if not error and self.args.should_save:
            try:
                write_manifest(folder)
                best = self.state.best_model_checkpoint
                rotate_checkpoints(str(run), self.args.save_total_limit, best_model_checkpoint=best, use_mtime=True)
            except OSError as failure:
                error = str(failure)
        self.save_error = broadcast_object_list([error])[0] or None
        if self.save_error and self.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)  # half a checkpoint is of no use, and its room is needed
            last = newest_whole(run)
            logger.warning(
                f"{folder} could not be written ({self.save_error}). "
                f"{f'{last} is kept' if last else 'There is none before it'}, and the run goes on; the next one is tried as "
                "usual. Make room on that disk, or lower save_total_limit."
            )
        self.accelerator.wait_for_everyone()

    def _write_checkpoint(self, folder: Path, model, trial) -> None:
        if self.args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        with overridden(self.args, save_total_limit=None):
            super()._save_checkpoint(model, trial)
        if not self.args.save_only_model:  # without the optimizer's state nothing goes on exactly
            folder.mkdir(parents=True, exist_ok=True)
            state = {"ranks": self.accelerator.num_processes, **self.run_state()}
            torch.save(state, folder / STATE.format(self.accelerator.process_index))

    def save_failure(self) -> None:
        """Save a checkpoint in the middle of a step, unless that of the step before it is whole: it is the better one."""
        folder = Path(self._get_output_dir(trial=None)) / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        whole = self.accelerator.is_main_process and what_is_wrong(folder) is None
        if not broadcast_object_list([whole])[0]:
            self._save_checkpoint(self.model, trial=None)

    def run_state(self) -> dict[str, Any]:
        """What this rank knows beside what transformers saves."""
        moves = self.ref_model is not None and self.args.sync_ref_model and self.accelerator.is_main_process
        return {
            "step": self._step,
            "generation": self._buffered_inputs and [moved(part, "cpu") for part in self._buffered_inputs],
            "groups": self.group_state(),
            "loss": (self._tr_loss.cpu(), self._globalstep_last_logged),
            "metrics": {name: list(values) for name, values in self._metrics["train"].items()},
            "reference": self.accelerator.unwrap_model(self.ref_model).state_dict() if moves else None,
        }

    def _restore(self, checkpoint: Path) -> None:
        path = checkpoint / STATE.format(self.accelerator.process_index)
        if not path.exists():
            if any(checkpoint.glob(STATE.format("*"))):
                raise CheckpointMismatch(
                    f"{checkpoint} was saved by fewer ranks than the {self.accelerator.num_processes} of now: start as many."
                )
            logger.warning(
                f"{checkpoint} was not saved by this trainer: a generation that was half used is made anew."
            )
            return
        state = torch.load(path, map_location="cpu", weights_only=False)
        if state["ranks"] != self.accelerator.num_processes:
            raise CheckpointMismatch(
                f"{checkpoint} was saved by {state['ranks']} ranks, and now there are {self.accelerator.num_processes}: start "
                "as many as then."
            )
        self._step = state["step"]
        generation = state["generation"]
        self._buffered_inputs = generation and [moved(part, self.accelerator.device) for part in generation]
        self.load_group_state(state["groups"])
        self._loss_state = state.get("loss")
        self.load_run_state(state)
        self._metrics["train"].clear()
        for name, values in state["metrics"].items():
            self._metrics["train"][name] = values
        if self.ref_model is not None and self.args.sync_ref_model:
            reference = torch.load(checkpoint / STATE.format(0), map_location="cpu", weights_only=False)["reference"]
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(reference)

    def load_run_state(self, state: dict[str, Any]) -> None:
        """For what else a mixin adds to `run_state`."""


class _RestoreLoss(TrainerCallback):
    """Gives back the sum of losses that were not logged yet, which transformers' loop begins with 0."""

    def __init__(self, trainer: ExactResume):
        self.trainer = trainer

    def on_train_begin(self, args, state, control, **kwargs):
        trainer, saved = self.trainer, self.trainer._loss_state
        if saved is not None:
            trainer._tr_loss, trainer._globalstep_last_logged = saved[0].to(args.device), saved[1]
            trainer._loss_state = None
