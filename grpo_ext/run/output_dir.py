"""The folder of a run: its lock, and the checkpoint from which the next run there begins."""

from __future__ import annotations

import errno
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from grpo_ext.recipe.difference import SAVED, differences

if TYPE_CHECKING:
    from grpo_ext.seams.port import TransformersTrainer

logger = logging.getLogger(__name__)
HELD: list[Any] = []  # the lock of this process's run
PATIENCE = 5.0  # seconds that the ranks of a killed run may take to end
OF_ONE_RUN = ("checkpoint-*[0-9]", "trainer_state.json", SAVED)  # files beside logs and model


def hold(folder: Path, seconds: float = 0.0) -> FileLock | None:
    """Make a folder if necessary and lock it, until the lock is released or the process ends in any way.

    Returns the lock; `None` if another process still has it after `seconds`. A disk without locks is not guarded.
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


def hold_folder(recipe: Any) -> None:
    """Lock the run's folder until this process ends; `ValueError`, on all ranks, if another run has the lock."""
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    folder = recipe.output_dir  # this also sets up the ranks
    main = PartialState().is_main_process
    held = hold(folder, PATIENCE) if main else None
    if broadcast_object_list([main and held is None])[0]:
        raise ValueError(
            f"another run is writing to {folder}: stop it, or name another --output_dir."
        )
    HELD.append(held)


def where_to_begin(recipe: Any, trainer: TransformersTrainer) -> str | bool | None:
    """Return the checkpoint to resume from; `None` if the run starts afresh, which moves older files aside."""
    has_resume = recipe.flat.has("resume")  # supervised training knows only TRL's key
    where = recipe.training.resume_from_checkpoint
    if not where and has_resume:
        where = recipe.get("resume")
    if where in ("auto", "true", "True"):
        resume = trainer.newest_checkpoint() if hasattr(trainer, "newest_checkpoint") else True
    else:
        resume = None if where in (None, "never", "false", "False") else where
    if has_resume and trainer.is_world_process_zero():
        from grpo_ext.observe.run_log import set_aside

        folder = Path(str(trainer.args.output_dir))
        if not resume:
            set_aside(folder, OF_ONE_RUN)
        elif found := differences(recipe, folder):
            logger.warning(f"{resume} continues with other values: {', '.join(found)}.")
    trainer.accelerator.wait_for_everyone()
    return resume
