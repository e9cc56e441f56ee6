"""Lock a run's folder, and choose the checkpoint to resume from or move older files aside."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from grpo_ext.recipe.difference import SAVED, differences

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe
    from grpo_ext.seams.port import TransformersTrainer

logger = logging.getLogger(__name__)
HELD: list[FileLock | None] = []  # the lock of this process's run
PATIENCE = 5.0  # seconds to wait for the ranks of a killed run to exit
RUN_FILES = (
    "checkpoint-*[0-9]",
    "trainer_state.json",
    SAVED,
)  # files to move aside, in addition to the logs and the model


def hold(folder: Path, seconds: float = 0.0) -> FileLock | None:
    """Lock a folder until the lock is released or the process ends; create the folder if needed.

    On a file system that does not support locks, the returned lock has no effect.

    Args:
        folder: the folder of a run.
        seconds: how long to wait for the lock.

    Returns:
        The lock, or `None` if another process still holds it.

    Raises:
        OSError: if the folder cannot be created, or its lock file cannot be opened.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # one lock for all threads; a soft lock would outlive a killed process
    lock = FileLock(folder / ".lock", is_singleton=True, thread_local=False, fallback_to_soft=False)
    try:
        lock.acquire(timeout=seconds)
    except Timeout:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOTSUP, errno.ENOLCK):
            raise
    return lock


def hold_folder(recipe: Recipe) -> None:
    """Lock the run's `output_dir` until this process ends.

    All ranks must call this function; the main rank holds the lock for all of them.

    Raises:
        ValueError: on all ranks, if another run holds the lock.
        OSError: on all ranks, if the folder cannot be created or locked.
    """
    from accelerate import PartialState

    from grpo_ext.common.main_rank import from_main

    folder = recipe.output_dir  # creates the training arguments, which sets up the ranks

    def is_taken() -> bool:
        HELD.append(hold(folder, PATIENCE))
        return HELD[-1] is None

    if from_main(PartialState(), is_taken):
        raise ValueError(
            f"another run is writing to {folder}. Stop that run, or set another --output_dir."
        )


def checkpoint_to_resume(recipe: Recipe, trainer: TransformersTrainer) -> str | bool | None:
    """Choose the checkpoint to resume from; for a fresh start, move an earlier run's files aside.

    All ranks must call this function; only the main process moves files, to a subfolder
    `earlier-N`. If the run continues with changed recipe values, a warning lists them. In
    supervised training, no files are moved and no values are compared.

    Returns:
        The value for the trainer's `resume_from_checkpoint`: a checkpoint's folder, `True` to let
        transformers find the newest one, or `None` to start from scratch.
    """
    has_resume = recipe.flat.has("resume")  # a supervised recipe has only `resume_from_checkpoint`
    choice = recipe.training.resume_from_checkpoint
    if not choice and has_resume:
        choice = recipe.get("resume")
    checkpoint: str | bool | None = choice
    if choice in ("auto", "true", "True"):
        checkpoint = True
        if hasattr(trainer, "newest_checkpoint"):
            checkpoint = trainer.newest_checkpoint()
    elif choice in ("never", "false", "False"):
        checkpoint = None
    if has_resume and trainer.is_world_process_zero():
        from grpo_ext.observe.run_log import set_aside

        if checkpoint:
            changed = differences(recipe, recipe.output_dir)
            if changed:
                logger.warning(
                    f"The run continues from {checkpoint} with changed values: "
                    f"{', '.join(changed)}."
                )
        else:
            set_aside(recipe.output_dir, RUN_FILES)
    trainer.accelerator.wait_for_everyone()
    return checkpoint
