"""Checkpoints from which a run goes on exactly, and the newest that is whole.

transformers saves weights, optimizer, schedule and random states. What a GRPO run knows beside them is saved here, a file a
rank: the generation that is being trained on and how far, the order of the prompts, groups carried over, pass rates, what is
not logged yet, and a reference that moves. A manifest with the size and hash of every file is written last, so that a
checkpoint that was cut off or damaged is told from a whole one. Older ones are deleted only then.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from pathlib import Path
from typing import Any

import torch
from accelerate.utils import broadcast_object_list
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from grpo_ext.batching.rows import moved
from grpo_ext.files import write_atomically
from grpo_ext.trainer.rows import overridden

MANIFEST = "manifest.json"
logger = logging.getLogger(__name__)


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

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in TRL; `True` goes on from the newest whole checkpoint of `output_dir`, or starts where there is none.

        Raises:
            CheckpointMismatch: if the checkpoint was saved by another number of ranks.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = self.newest_checkpoint()
        if resume_from_checkpoint:
            self._restore(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint or None, *args, **kwargs)

    def newest_checkpoint(self) -> str | None:
        """The newest whole checkpoint of `output_dir`, read by one rank for all."""
        found = newest_whole(Path(self.args.output_dir)) if self.accelerator.is_main_process else None
        return broadcast_object_list([found])[0]

    def _save_checkpoint(self, model, trial):
        run = Path(self._get_output_dir(trial=trial))
        folder = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        with overridden(self.args, save_total_limit=None):
            super()._save_checkpoint(model, trial)
        if not self.args.save_only_model:  # without the optimizer's state nothing goes on exactly
            folder.mkdir(parents=True, exist_ok=True)
            state = {"ranks": self.accelerator.num_processes, **self.run_state()}
            torch.save(state, folder / _name(self.accelerator.process_index))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            write_manifest(folder)
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(run), self.args.save_total_limit, best_model_checkpoint=best, use_mtime=True)
        self.accelerator.wait_for_everyone()

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
            "metrics": {name: list(values) for name, values in self._metrics["train"].items()},
            "reference": self.accelerator.unwrap_model(self.ref_model).state_dict() if moves else None,
        }

    def _restore(self, checkpoint: Path) -> None:
        path = checkpoint / _name(self.accelerator.process_index)
        if not path.exists():
            if any(checkpoint.glob(_name("*"))):
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
        if state["generation"] is not None:
            self._buffered_inputs = [moved(part, self.accelerator.device) for part in state["generation"]]
        self.load_group_state(state["groups"])
        for name, values in state["metrics"].items():
            self._metrics["train"][name] = values
        if self.ref_model is not None and self.args.sync_ref_model:
            reference = torch.load(checkpoint / _name(0), map_location="cpu", weights_only=False)["reference"]
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(reference)


def _name(rank: int | str) -> str:
    return f"grpo_state_{rank}.pt"


def write_manifest(folder: Path) -> None:
    """Note the size and hash of every file of a checkpoint, after they have reached the disk."""
    files = {str(p.relative_to(folder)): p for p in sorted(folder.rglob("*")) if p.is_file() and p.name != MANIFEST}
    for path in files.values():
        with open(path, "rb") as file:
            os.fsync(file.fileno())
    noted = {name: {"size": path.stat().st_size, "sha256": _hash(path)} for name, path in files.items()}
    write_atomically(folder / MANIFEST, json.dumps(noted, indent=1) + "\n")


def what_is_wrong(folder: Path) -> str | None:
    """What keeps a checkpoint from being used; `None` where it is whole."""
    try:
        noted = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return "it was not written to its end"
    except ValueError:
        return f"its {MANIFEST} is damaged"
    for name, entry in noted.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != entry["size"] or _hash(path) != entry["sha256"]:
            return f"{name} is damaged"
    return None


def newest_whole(run: Path) -> str | None:
    """The newest checkpoint of a run that is whole; those passed over are told."""
    found = [path for path in run.glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.name.rpartition("-")[2].isdigit()]
    for folder in sorted(found, key=lambda path: -int(path.name.rpartition("-")[2])):
        wrong = what_is_wrong(folder)
        if wrong is None:
            return str(folder)
        logger.warning(f"{folder} is passed over: {wrong}.")
    return None


def _hash(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
