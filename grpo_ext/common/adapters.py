"""The folder of a model, or of an adapter, which is not a model that can be trained."""

from pathlib import Path

from grpo_ext.common.foreign_files import ForeignFile, entries, open_plain, special_file

CONFIG = "config.json"
ADAPTER_CONFIG = "adapter_config.json"
MERGED = "merged"  # the folder in which `grpo-ext merge` puts the whole model


def adapter_fault(folder: Path) -> str | None:
    """Return why a folder cannot be named as a model and what to do, if it holds an adapter; else
    `None`.
    """
    if not (folder / ADAPTER_CONFIG).is_file():
        return None
    holds = f"the folder {folder} holds an adapter, not a whole model."
    if (folder / MERGED / CONFIG).is_file():
        return (
            f"{holds} Name {folder / MERGED}, which `grpo-ext merge` has made of it, as the model."
        )
    return f"{holds} Run `grpo-ext merge --model {folder}` and name {folder / MERGED} as the model."


def special_file_fault(folder: Path) -> str | None:
    """Return what to do about a file on which loading a model from a folder could block, or read
    zeros without an end; `None` if there is none.

    A model's files may be links to anywhere: large weights often lie on another disk.
    """
    special = special_file(folder)
    if special is not None:
        return f"{special} is a FIFO, a device or a socket, not a plain file: remove it."
    for path in entries(folder):
        try:
            if path.is_file():
                open_plain(path).close()
        except ForeignFile as error:
            return f"{path} is not read: {error.strerror}."
        except OSError:  # loading the model says what is wrong
            continue
    return None


def check_model_folder(folder: Path) -> None:
    """Raise `ValueError` if loading a model from a folder could block; the name of a model
    passes.
    """
    fault = special_file_fault(folder) if folder.is_dir() else None
    if fault is not None:
        raise ValueError(fault)
