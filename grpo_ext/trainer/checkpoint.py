"""Checkpoints from which a run goes on exactly, and the newest that is whole.

transformers saves weights, optimizer, schedule and random states. What a GRPO run knows beside them is saved here, a file a
rank: the generation that is being trained on and how far, the order of the prompts, groups carried over, pass rates, what is
not logged yet, the entropy coefficient, skipped steps, rollbacks, and a reference that moves. A manifest with the size and
hash of every file is written last, so that a checkpoint that was cut off or damaged is told from a whole one. Older ones are
deleted only then.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch
from accelerate.utils import broadcast_object_list, gather_object
from safetensors import SafetensorError
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from grpo_ext.seams import trl as seam
from grpo_ext.trainer.manifest import (
    MANIFEST,
    STATE,
    delete_older,
    made_elsewhere,
    newest_whole,
    what_is_wrong,
    write_manifest,
)
from grpo_ext.trainer.state import CheckpointMismatch, load_plain

VERSION = 4  # of the format of a rank's file
UNWRITABLE = (OSError, RuntimeError, SafetensorError)  # what torch, safetensors and the system raise on a full disk
logger = logging.getLogger(__name__)


# accelerate puts ranks on `cpu:0`, where transformers 5.17 reads the optimizer's state to; torch by itself knows `cpu` alone
torch.serialization.register_package(1000, lambda _: None, lambda data, place: data if place.startswith("cpu:") else None)


class Part(Protocol):
    """What keeps state that a run must find again."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class Checkpoints:
    """Writes, checks and restores the checkpoints of a trainer.

    Args:
        parts: what keeps state beside transformers, by name.
    """

    def __init__(self, trainer: Any, parts: dict[str, Part]):
        self.trainer, self.parts = trainer, parts
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if sharded and trainer.ref_model is not None and trainer.args.sync_ref_model:
            raise ValueError(
                "sync_ref_model moves a reference that is saved in no checkpoint while it is sharded: set it to false."
            )
        self.error: str | None = None  # of the last checkpoint, where it could not be written
        self._unlogged: dict[str, Any] | None = None  # of the checkpoint that the run goes on from

    @property
    def folder(self) -> Path:
        """Of the checkpoint of this step."""
        return Path(seam.output_folder(self.trainer)) / f"{PREFIX_CHECKPOINT_DIR}-{self.trainer.state.global_step}"

    def by_main(self, find: Callable[[], Any]) -> Any:
        """What the main process finds, on all ranks."""
        return broadcast_object_list([find() if self.trainer.accelerator.is_main_process else None])[0]

    def newest(self, before: float = float("inf")) -> str | None:
        """The newest whole checkpoint of `output_dir`, of step `before` at most."""
        return self.by_main(lambda: newest_whole(Path(self.trainer.args.output_dir), before))

    def begin(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """The checkpoint that a run goes on from, whose state is restored; `None` where it begins.

        Raises:
            CheckpointMismatch: if the checkpoint is damaged, or was saved by another number of ranks.
        """
        found = self.newest() if resume_from_checkpoint is True else resume_from_checkpoint or None
        if not found:
            return None
        folder = Path(found)
        if resume_from_checkpoint is not True:
            wrong = self.by_main(lambda: None if made_elsewhere(folder) else what_is_wrong(folder))
            if wrong:
                raise CheckpointMismatch(f"{folder} cannot be used: {wrong}. `resume: auto` takes the newest that is whole.")
        self._restore(folder)
        self.trainer.args.eval_on_start = False
        return str(found)

    def save(self, write: Callable[[], None]) -> None:
        """Write a checkpoint, TRL's part by `write`, and a manifest. Where that fails, the run goes on without."""
        trainer, folder = self.trainer, self.folder
        error = failure_of(trainer, lambda: self.write(folder, write))
        if not error and trainer.args.should_save:
            try:
                write_manifest(folder)
                delete_older(folder, trainer.args.save_total_limit, trainer.state.best_model_checkpoint)
            except OSError as failure:
                error = str(failure)
        self.error = broadcast_object_list([error])[0] or None
        if self.error and trainer.args.should_save:
            shutil.rmtree(folder, ignore_errors=True)  # half a checkpoint is of no use, and its room is needed
            last = newest_whole(folder.parent)
            kept = f"{last} is kept" if last else "There is none before it"
            what_to_do = "the next one is tried as usual. Make room on that disk, or lower save_total_limit."
            logger.warning(f"{folder} could not be written ({self.error}). {kept}, and the run goes on; {what_to_do}")
        trainer.accelerator.wait_for_everyone()

    def write(self, folder: Path, write: Callable[[], None]) -> None:
        """Write the files of a checkpoint, not yet its manifest."""
        args, accelerator = self.trainer.args, self.trainer.accelerator
        if args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        with seam.keeping_all(args):  # older ones go once this one is whole
            write()
        if not args.save_only_model:  # without the optimizer's state nothing goes on exactly
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self._state(), folder / STATE.format(accelerator.process_index))

    def save_failure(self) -> None:
        """Save a checkpoint in the middle of a step, unless that of the step before it is whole: it is the better one."""
        if self.by_main(lambda: what_is_wrong(self.folder)) is not None:
            self.trainer.save_checkpoint()

    def _state(self) -> dict[str, Any]:
        """What this rank knows beside what transformers saves."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        moves = trainer.ref_model is not None and trainer.args.sync_ref_model and accelerator.is_main_process
        return {
            "version": VERSION,
            "ranks": accelerator.num_processes,
            "trl": seam.state_of(trainer),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "reference": accelerator.unwrap_model(trainer.ref_model).state_dict() if moves else None,
        }

    def _restore(self, checkpoint: Path) -> None:
        trainer, accelerator = self.trainer, self.trainer.accelerator
        path, ranks = checkpoint / STATE.format(accelerator.process_index), accelerator.num_processes
        if not path.exists():
            if any(checkpoint.glob(STATE.format("*"))):
                raise CheckpointMismatch(f"{checkpoint} was saved by fewer ranks than the {ranks} of now: start as many.")
            logger.warning(f"{checkpoint} was not saved by this trainer: a generation that was half used is made anew.")
            return
        state = load_plain(path)
        if state.get("version") != VERSION:
            raise CheckpointMismatch(f"{checkpoint} was saved by another version of this package: go on with that one.")
        if state["ranks"] != ranks:
            then = f"{checkpoint} was saved by {state['ranks']} ranks, and now there are {ranks}"
            raise CheckpointMismatch(f"{then}: start as many as then.")
        seam.load_state(trainer, state["trl"])
        self._unlogged = state["trl"]
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        if trainer.ref_model is not None and trainer.args.sync_ref_model:
            first = load_plain(checkpoint / STATE.format(0))
            accelerator.unwrap_model(trainer.ref_model).load_state_dict(first["reference"])

    def restore_loss(self) -> None:
        """Give back the sum of losses that was not logged yet, once transformers' loop has set it to 0."""
        if self._unlogged is not None:
            seam.restore_loss(self.trainer, self._unlogged)
            self._unlogged = None


def failure_of(trainer: Any, write: Callable[[], Any]) -> str:
    """Why `write` failed on any rank; empty where it did not."""
    error = ""
    try:
        write()
    except UNWRITABLE as failure:
        if trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled:  # the other ranks wait within
            raise
        error = str(failure) or type(failure).__name__
    return next(filter(None, gather_object([error])), "")


def save_result(trainer: Any) -> str:
    """Save the trained model and the trainer's state in `output_dir`; why that failed, or nothing. No half file is left."""
    files = [path for path in Path(trainer.args.output_dir).glob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    error = failure_of(trainer, lambda: (trainer.save_model(), trainer.save_state()))
    for path in Path(trainer.args.output_dir).glob("*") if error else ():
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns:
            path.unlink(missing_ok=True)
    return error
