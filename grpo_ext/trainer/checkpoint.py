"""Checkpoints from which a run resumes exactly.

transformers saves weights, optimizer, schedule and random states. The other state of a GRPO run is saved here, in one file per
rank: the current generation and the position in it, the order of the prompts, carried groups, pass rates, figures that are not
logged yet, the entropy coefficient, skipped steps, and a reference that changes. A manifest with size and hash of every file is
written last, to detect a checkpoint that is incomplete or damaged. Older ones are deleted only after that.
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
from grpo_ext.trainer.manifest import (
    MANIFEST,
    STATE,
    delete_older,
    newest_whole,
    what_is_wrong,
    write_manifest,
)
from grpo_ext.trainer.state import CheckpointMismatch, load_plain

VERSION = 12  # of the format of a rank's file
UNWRITABLE = (
    OSError,
    RuntimeError,
    SafetensorError,
)  # errors of torch, safetensors and the system on a full disk
logger = logging.getLogger(__name__)


# accelerate puts ranks on `cpu:0`, and transformers 5.17 loads the optimizer's state there; torch itself knows only `cpu`
torch.serialization.register_package(
    1000, lambda _: None, lambda data, place: data if place.startswith("cpu:") else None
)


class Checkpoints:
    """Writes, checks and restores the checkpoints of a trainer; `parts` by name are those with a state."""

    def __init__(self, trainer: Any, parts: dict[str, Stateful]):
        self.trainer, self.parts = trainer, parts
        sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        if sharded and trainer.ref_model is not None and trainer.args.sync_ref_model:
            raise ValueError(
                "sync_ref_model changes the reference, and no checkpoint saves it while it is sharded: set it to false."
            )
        if not sharded:
            seam.expect_tied_weights(trainer.accelerator.unwrap_model(trainer.model))
        self.error: str | None = None  # why the last checkpoint could not be written
        self._of_trl: dict[str, Any] | None = (
            None  # TRL's state in the checkpoint that the run continues from
        )

    @property
    def folder(self) -> Path:
        """The folder of the checkpoint of this step."""
        return (
            Path(self.trainer.args.output_dir)
            / f"{PREFIX_CHECKPOINT_DIR}-{self.trainer.state.global_step}"
        )

    def newest(self) -> str | None:
        """Return the newest whole checkpoint of `output_dir`."""
        return from_main(
            self.trainer.accelerator, lambda: newest_whole(Path(self.trainer.args.output_dir))
        )

    def begin(self, resume_from_checkpoint: str | bool | None) -> str | None:
        """Restore the checkpoint that a run continues from and return it; `None` if the run begins.

        `CheckpointMismatch` if the checkpoint is damaged, or was saved by another number of ranks.
        """
        found = self.newest() if resume_from_checkpoint is True else resume_from_checkpoint or None
        if not found:
            return None
        folder = Path(found)
        if resume_from_checkpoint is not True:
            wrong = from_main(self.trainer.accelerator, lambda: what_is_wrong(folder))
            if wrong:
                raise CheckpointMismatch(
                    f"{folder} cannot be used: {wrong}. `resume: auto` takes the newest whole one."
                )
        self._restore(folder)
        self.trainer.args.eval_on_start = False
        return str(found)

    def save(self, write: Callable[[], None]) -> None:
        """Write a checkpoint, with TRL's part by `write`, and a manifest. If that fails, the run continues without it."""
        trainer, folder = self.trainer, self.folder
        error = failure_of(trainer, lambda: self.write(folder, write))
        if not error and trainer.args.should_save:
            try:
                write_manifest(folder)
                delete_older(
                    folder, trainer.args.save_total_limit, trainer.state.best_model_checkpoint
                )
            except OSError as failure:
                error = str(failure)
        self.error = broadcast_object_list([error])[0] or None
        if self.error and trainer.args.should_save:
            shutil.rmtree(
                folder, ignore_errors=True
            )  # an incomplete checkpoint is useless, and its space is needed
            last = newest_whole(folder.parent)
            kept = f"{last} is kept" if last else "There is no earlier one"
            what_to_do = "The next one is tried as usual. Free space on that disk, or lower save_total_limit."
            logger.warning(
                f"{folder} could not be written ({self.error}). {kept}, and the run continues. {what_to_do}"
            )
        trainer.accelerator.wait_for_everyone()

    def write(self, folder: Path, write: Callable[[], None]) -> None:
        """Write the files of a checkpoint without its manifest."""
        args, accelerator = self.trainer.args, self.trainer.accelerator
        if args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        with seam.keeping_all(args):  # older ones are deleted after this one is whole
            write()
        if not args.save_only_model:  # without the optimizer's state no run can resume exactly
            folder.mkdir(parents=True, exist_ok=True)
            torch.save(self._state(), folder / STATE.format(accelerator.process_index))

    def save_failure(self) -> None:
        """Save a checkpoint in the middle of a step, unless the current step already has a whole one, which is better."""
        if from_main(self.trainer.accelerator, lambda: what_is_wrong(self.folder)) is not None:
            self.trainer.save_checkpoint()

    def _state(self) -> dict[str, Any]:
        """Return the state of this rank that transformers does not save."""
        trainer, accelerator = self.trainer, self.trainer.accelerator
        moves = (
            trainer.ref_model is not None
            and trainer.args.sync_ref_model
            and accelerator.is_main_process
        )
        return {
            "version": VERSION,
            "ranks": accelerator.num_processes,
            "trl": seam.state_of(trainer),
            "parts": {name: part.state_dict() for name, part in self.parts.items()},
            "reference": accelerator.unwrap_model(trainer.ref_model).state_dict()
            if moves
            else None,
        }

    def _restore(self, checkpoint: Path) -> None:
        trainer, accelerator = self.trainer, self.trainer.accelerator
        path, ranks = (
            checkpoint / STATE.format(accelerator.process_index),
            accelerator.num_processes,
        )
        if not path.exists():
            raise CheckpointMismatch(why_no_state(checkpoint, path.name, ranks))
        state = load_plain(path)
        if not isinstance(state, dict) or state.get("version") != VERSION:
            raise CheckpointMismatch(
                f"{checkpoint} was saved by another version of this package: use that version."
            )
        if state["ranks"] != ranks:
            then = f"{checkpoint} was saved by {state['ranks']} ranks, and now there are {ranks}"
            raise CheckpointMismatch(f"{then}: start as many as then.")
        self._of_trl = state["trl"]
        for name, part in self.parts.items():
            part.load_state_dict(state["parts"][name])
        if trainer.ref_model is not None and trainer.args.sync_ref_model:
            accelerator.unwrap_model(trainer.ref_model).load_state_dict(
                load_plain(checkpoint / STATE.format(0))["reference"]
            )

    def restore_trl(self) -> None:
        """Restore the state of TRL's trainer, after transformers' loop has begun."""
        if self._of_trl is not None:
            seam.load_state(self.trainer, self._of_trl)
            self._of_trl = None


def why_no_state(checkpoint: Path, missing: str, ranks: int) -> str:
    """Say why a checkpoint lacks the state of a rank, `missing`, which a run of `ranks` ranks needs to continue."""
    if (checkpoint / STATE.format(0)).exists():
        return f"{checkpoint} has no {missing}: it was saved by fewer ranks, and now there are {ranks}."
    return (
        f"{checkpoint} has no {missing}: it was saved with save_only_model: true, or by another trainer, and has only a model. "
        "Start a new run from it: model_name_or_path: CHECKPOINT, resume: never, another output_dir."
    )


def failure_of(trainer: Any, write: Callable[[], Any]) -> str:
    """Return why `write` failed on any rank; empty if it did not."""
    error = ""
    try:
        write()
    except UNWRITABLE as failure:
        if (
            trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
        ):  # the other ranks wait inside `write`
            raise
        error = str(failure) or type(failure).__name__
    return next(filter(None, gather_object([error])), "")


def save_result(trainer: Any) -> str:
    """Save the model and the trainer's state in `output_dir`; return why that failed, or "". Incomplete files are deleted."""
    files = [path for path in Path(trainer.args.output_dir).glob("*") if path.is_file()]
    before = {path: path.stat().st_mtime_ns for path in files}
    error = failure_of(trainer, lambda: (trainer.save_model(), trainer.save_state()))
    for path in Path(trainer.args.output_dir).glob("*") if error else ():
        if path.is_file() and before.get(path) != path.stat().st_mtime_ns:
            path.unlink(missing_ok=True)
    return error
