"""Check a model folder for an adapter, and for files that are unsafe to load."""

from pathlib import Path

from grpo_ext.common.model_files import CONFIG, model_files_fault

ADAPTER_CONFIG = "adapter_config.json"
MERGED = "merged"  # the folder to which `grpo-ext merge` writes the complete model


def adapter_fault(folder: Path) -> str | None:
    """Return an error message if `folder` holds an adapter (`adapter_config.json`), else `None`."""
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    merged = folder / MERGED
    if (merged / CONFIG).is_file():
        return (
            f"the folder {folder} holds an adapter, not a complete model: use {merged}, the "
            "complete model that `grpo-ext merge` has made from it."
        )
    return (
        f"the folder {folder} holds an adapter, not a complete model: run `grpo-ext merge --model "
        f"{folder}`, and use {merged} instead."
    )


def check_model_folder(folder: Path) -> None:
    """Check a model folder for files that could block loading or exhaust the memory.

    Does nothing if `folder` is not a directory, for example because it is a model id on the hub.

    Raises:
        ValueError: if a file in the folder could block loading or exhaust the memory.
        OSError: if the folder cannot be listed or has too many entries.
    """
    fault = model_files_fault(folder) if folder.is_dir() else None
    if fault is not None:
        raise ValueError(fault)
