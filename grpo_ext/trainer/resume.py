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
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, rotate_checkpoints

from grpo_ext.files import write_atomically
from grpo_ext.trainer.rows import overridden

MANIFEST = "manifest.json"
logger = logging.getLogger(__name__)


class ExactResume:
    """Mixin before `GRPOTrainer`, outside of what keeps state."""

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """As in TRL; `True` goes on from the newest whole checkpoint of `output_dir`, or starts where there is none.

        Raises:
            ValueError: if the checkpoint was saved by another number of ranks.
        """
        if resume_from_checkpoint is True:
            resume_from_checkpoint = newest_whole(Path(self.args.output_dir))
        if resume_from_checkpoint:
            self._restore(Path(resume_from_checkpoint))
        return super().train(resume_from_checkpoint or None, *args, **kwargs)

    def _save_checkpoint(self, model, trial):
        run = Path(self._get_output_dir(trial=trial))
        folder = run / f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        if self.args.should_save:
            (folder / MANIFEST).unlink(missing_ok=True)
        with overridden(self.args, save_total_limit=None):
            super()._save_checkpoint(model, trial)
        state = {"ranks": self.accelerator.num_processes, **self.run_state()}
        torch.save(state, folder / _name(self.accelerator.process_index))
        self.accelerator.wait_for_everyone()
        if self.args.should_save:
            write_manifest(folder)
            best = self.state.best_model_checkpoint
            rotate_checkpoints(str(run), self.args.save_total_limit, best_model_checkpoint=best, use_mtime=True)
        self.accelerator.wait_for_everyone()

    def run_state(self) -> dict[str, Any]:
        """What this rank knows beside what transformers saves."""
        moves = self.ref_model is not None and self.args.sync_ref_model
        return {
            "step": self._step,
            "generation": self._buffered_inputs,
            "groups": self.group_state(),
            "metrics": {name: list(values) for name, values in self._metrics["train"].items()},
            "reference": self.accelerator.unwrap_model(self.ref_model).state_dict() if moves else None,
        }

    def _restore(self, checkpoint: Path) -> None:
        path = checkpoint / _name(self.accelerator.process_index)
        if not path.exists():
            if any(checkpoint.glob(_name("*"))):
                raise ValueError(
                    f"{checkpoint} was saved by fewer ranks than the {self.accelerator.num_processes} of now: start as many."
                )
            logger.warning(
                f"{checkpoint} was not saved by this trainer: a generation that was half used is made anew."
            )
            return
        state = torch.load(path, map_location=self.accelerator.device, weights_only=False)
        if state["ranks"] != self.accelerator.num_processes:
            raise ValueError(
                f"{checkpoint} was saved by {state['ranks']} ranks, and now there are {self.accelerator.num_processes}: start "
                "as many as then."
            )
        self._step, self._buffered_inputs = state["step"], state["generation"]
        self.load_group_state(state["groups"])
        for name, values in state["metrics"].items():
            self._metrics["train"][name] = values
        if state["reference"] is not None:
            self.accelerator.unwrap_model(self.ref_model).load_state_dict(state["reference"])


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
