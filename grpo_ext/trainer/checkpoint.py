"""Write and restore checkpoints from which a run resumes exactly.

transformers saves weights, optimizer, schedule and RNG states. The rest of a GRPO run's state is
saved here, in one file per rank: the current generation and the position in it, the order of the
prompts, carried groups, pass rates, metrics not yet logged, the entropy coefficient, the number of
skipped steps, and the reference model if it changes. A manifest with the size and hash of every
file is written last, so that incomplete or damaged checkpoints are detected. Older checkpoints are
deleted only after that.
"""

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from torch.distributed.checkpoint.stateful import Stateful
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from grpo_ext.common.main_rank import from_main
from grpo_ext.seams import trl as seam
from grpo_ext.seams.port import TransformersTrainer
from grpo_ext.trainer.manifest import (
    MANIFEST,
    STATE,
    delete_older,
    newest_whole,
    what_is_wrong,
    write_manifest,
)
from grpo_ext.trainer.port import Trainer
from grpo_ext.trainer.state import CheckpointMismatch, load_plain

VERSION = 13  # the format version of a rank's state file
# errors that torch, safetensors and the system raise on a full disk
UNWRITABLE = (OSError, RuntimeError, SafetensorError)
logger = logging.getLogger(__name__)


# On CPU ranks, accelerate's device is `cpu:0`, and transformers 5.17 loads the optimizer's state
# onto it, but torch itself accepts only `cpu`.
torch.serialization.register_package(
    1000, lambda _: None, lambda data, place: data if place.startswith("cpu:") else None
)


class Checkpoints:
    """Writes, checks and restores the checkpoints of a trainer.

    Args:
        trainer: the trainer to save.
        parts: the parts of the trainer with a state to save, by name.

    Raises:
        ValueError: if the reference model changes during training (`sync_ref_model`) and the run
            uses DeepSpeed or FSDP.
    """

    def __init__(self, trainer: Trainer, parts: dict[str, Stateful]):
        self.trainer = trainer
        self.parts = parts
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if sharded and self._reference_changes:
            raise ValueError(
                "sync_ref_model changes the reference model, which checkpoints do not save under "
                "FSDP or DeepSpeed. Set `sync_ref_model: false` to keep the initial reference, "
                "or train without FSDP or DeepSpeed."
            )
        if not sharded:
            seam.expect_tied_weights(trainer.accelerator.unwrap_model(trainer.model))
        self.error: str | None = None  # why the last checkpoint could not be written
        # TRL's state from the checkpoint that the run resumes from, until it is restored
        self._trl_state: dict[str, Any] | None = None

    @property
    def _reference_changes(self) -> bool:
        return self.trainer.ref_model is not None and self.trainer.args.sync_ref_model

    @property
    def folder(self) -> Path:
        """The folder of the current step's checkpoint."""
        name = f"{PREFIX_CHECKPOINT_DIR}-{self.trainer.state.global_step}"
        return Path(self.trainer.args.output_dir) / name

    def newest(self) -> str | None:
        """Return the folder of the newest complete checkpoint in `output_dir`, or `None`.

        The result is `None` if there is no complete checkpoint. All ranks must call this method.
        """
        output_dir = Path(self.trainer.args.output_dir)
        return from_main(self.trainer.accelerator, lambda: newest_whole(output_dir))

    def begin(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """Restore the checkpoint that the run resumes from, and return its folder.

        TRL's own state is only loaded; `restore_trl` restores it later. If the run resumes, the
        folder is printed, and `eval_on_start` is turned off. All ranks must call this method.

        Args:
            resume_from_checkpoint: the folder of a checkpoint; `True` to use the newest complete
                checkpoint in `output_dir`, or to start from scratch if there is none; `None` or
                `False` to start from scratch.

        Returns:
            The folder, or `None` if the run starts from scratch.

        Raises:
            CheckpointMismatch: if the checkpoint is missing, incomplete or damaged, lacks training
                state, or was saved with a different number of ranks or by a different version of
                this package.
        """
        newest = resume_from_checkpoint is True
        checkpoint = self.newest() if newest else resume_from_checkpoint
        if not checkpoint:
            return None
        folder = Path(str(checkpoint))
        if not newest:
            fault = from_main(self.trainer.accelerator, lambda: what_is_wrong(folder))
            if fault:
                raise CheckpointMismatch(
                    f"{folder} cannot be used: {fault}. Set `resume: auto` (in Python, "
                    "resume_from_checkpoint=True) to use the newest complete checkpoint in "
                    "output_dir."
                )
        self.trainer.accelerator.print(f"Resuming from {checkpoint}.")
        self._restore(folder)
        self.trainer.args.eval_on_start = False
        return str(checkpoint)

    def save(self, write: Callable[[], None]) -> None:
        """Write a checkpoint and its manifest, then delete surplus older checkpoints.

        If a file cannot be written, the checkpoint is deleted, a warning is logged, and the run
        continues. The reason is stored in `error`, which is `None` after a success. All ranks must
        call this method.

        Args:
            write: saves the files that TRL and transformers write themselves.

        Raises:
            Exception: an error while the checkpoint's files are written, unless it is one of
                `UNWRITABLE` and the model is not sharded; an error other than `OSError` while the
                manifest is written.
        """
        trainer = self.trainer
        folder = self.folder
        error = failure_of(trainer, lambda: self.write(folder, write))
        if not error and trainer.args.should_save:
            try:
                write_manifest(folder)
                best = trainer.state.best_model_checkpoint
                delete_older(folder, trainer.args.save_total_limit, best)
            except OSError as failure:
                error = str(failure)
        self.error = broadcast_object_list([error])[0] or None
        if self.error and trainer.args.should_save:
            # an incomplete checkpoint is useless, and its space is needed
            shutil.rmtree(folder, ignore_errors=True)
            previous = newest_whole(folder.parent)
            fallback = f"{previous} is kept" if previous else "There is no earlier checkpoint"
            logger.warning(
                f"{folder} could not be written ({self.error}). {fallback}, and the run continues. "
                "The next checkpoint will be written at its usual step. If the disk is full, free "
                "some space."
            )
        trainer.accelerator.wait_for_everyone()

    def write(self, folder: Path, write: Callable[[], None]) -> None:
        """Write the files of a checkpoint, except its manifest.

        An old manifest is deleted first. With `save_only_model`, the ranks' states are not written.

        Args:
            folder: the folder of the checkpoint.
            write: saves the files that TRL and transformers write themselves.
        """
        args = self.trainer.args
        if args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        with seam.keeping_all(args):  # older ones are deleted once this one is complete
            write()
        if not args.save_only_model:  # without the optimizer's state, no run can resume exactly
            folder.mkdir(parents=True, exist_ok=True)
            rank = self.trainer.accelerator.process_index
            torch.save(self._state(), folder / STATE.format(rank))

    def save_failure(self) -> None:
        """Save a checkpoint in the middle of a step, after a failure.

        If the last completed step already has a complete checkpoint, that one is kept instead. All
        ranks must call this method.
        """
        if from_main(self.trainer.accelerator, lambda: what_is_wrong(self.folder)) is not None:
            self.trainer.save_checkpoint()

    def _state(self) -> dict[str, Any]:
        """Return the part of this rank's state that transformers does not save."""
        trainer = self.trainer
        accelerator = trainer.accelerator
        reference = None
        if self._reference_changes and accelerator.is_main_process:
            reference = accelerator.unwrap_model(trainer.ref_model).state_dict()
        return {
            "version": VERSION,
            "ranks": accelerator.num_processes,
            "trl": seam.state_of(trainer),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "reference": reference,
        }

    def _restore(self, checkpoint: Path) -> None:
        trainer = self.trainer
        accelerator = trainer.accelerator
        ranks = accelerator.num_processes
        path = checkpoint / STATE.format(accelerator.process_index)
        if not path.exists():
            raise CheckpointMismatch(why_no_state(checkpoint, path.name, ranks))
        state = load_plain(path)
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise CheckpointMismatch(
                f"{checkpoint} was saved by another version of this package. Resume with that "
                "version, or start a new run with another output_dir."
            )
        if state["ranks"] != ranks:
            raise CheckpointMismatch(
                f"The number of ranks has changed: {checkpoint} was saved with {state['ranks']}, "
                f"and this run has {ranks}. Start the run with `--num_processes {state['ranks']}`."
            )
        self._trl_state = state["trl"]
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        if self._reference_changes:
            reference = load_plain(checkpoint / STATE.format(0))["reference"]
            accelerator.unwrap_model(trainer.ref_model).load_state_dict(reference)

    def restore_trl(self) -> None:
        """Restore TRL's own state, which `begin` has loaded.

        Call this method after transformers' training loop has begun. It does nothing if the run did
        not resume, or if the state has already been restored.
        """
        if self._trl_state is not None:
            seam.load_state(self.trainer, self._trl_state)
            self._trl_state = None


def why_no_state(checkpoint: Path, missing: str, ranks: int) -> str:
    """Return why a checkpoint lacks the state of a rank, and what to do about it.

    Args:
        checkpoint: the folder of the checkpoint.
        missing: the name of the rank's file.
        ranks: the number of ranks of the current run.
    """
    present = {path.name for path in checkpoint.glob(STATE.format("*"))}
    if present == {STATE.format(rank) for rank in range(len(present))} and present:
        return (
            f"{checkpoint} has no {missing}: it was saved by fewer ranks than this run has "
            f"({ranks}). Start the run with `--num_processes {len(present)}`."
        )
    if present:
        return (
            f"the checkpoint {checkpoint} is incomplete, because it has no {missing}, but "
            f"has {len(present)} files of other ranks, such as {min(present)}. Copy the whole "
            "checkpoint again, or resume from another one with `resume: PATH`."
        )
    return (
        f"{checkpoint} has no {missing}: it was saved with `save_only_model: true`, or by another "
        "trainer, so this trainer cannot resume from it. To start a new run from its model, set "
        f"`model_name_or_path: {checkpoint}`, `resume: never` and another output_dir."
    )


def failure_of(trainer: TransformersTrainer, write: Callable[[], None]) -> str:
    """Call `write`, and return the error message of the first rank that failed, or "" if none did.

    With a sharded model, the error is raised instead, because the other ranks wait inside `write`.
    Errors other than `UNWRITABLE` are always raised. All ranks must call this function.
    """
    error = ""
    try:
        write()
    except UNWRITABLE as failure:
        # the other ranks of a sharded model wait inside `write` and would not reach `gather_object`
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:
            raise
        error = str(failure) or type(failure).__name__
    errors = gather_object([error])
    return next(filter(None, errors), "")


def save_result(trainer: TransformersTrainer) -> str:
    """Save the model and the trainer's state in `output_dir`. All ranks must call this function.

    If a file cannot be written, all files directly in `output_dir` that this call wrote are
    deleted, including those that it overwrote. With a sharded model, and for errors other than
    `UNWRITABLE`, the error is raised instead.

    Returns:
        Why a file could not be written, or an empty string.
    """

    def write() -> None:
        trainer.save_model()
        trainer.save_state()

    output_dir = Path(str(trainer.args.output_dir))
    times = modification_times(output_dir)
    error = failure_of(trainer, write)
    if error:
        for path, time in modification_times(output_dir).items():
            if times.get(path) != time:
                path.unlink(missing_ok=True)
    return error


def modification_times(folder: Path) -> dict[Path, int]:
    """Return the modification time of each file directly in a folder, in nanoseconds."""
    return {path: path.stat().st_mtime_ns for path in folder.glob("*") if path.is_file()}
