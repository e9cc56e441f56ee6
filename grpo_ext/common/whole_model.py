"""Check that a model folder is complete: it must have a config.json and complete weights."""

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from grpo_ext.common.adapters import adapter_fault
from grpo_ext.common.foreign_files import read_text
from grpo_ext.common.model_files import CONFIG, model_files_fault


def folder_faults(folder: Path) -> Iterator[str]:
    """Yield an error message for each fault of a folder that should contain a complete model.

    Weights files must exist, and safetensors files must not be cut short; the weights themselves
    are not checked. The check ends early if the folder contains an adapter, has no config.json, or
    has a file that could block loading or exhaust the memory.

    Raises:
        OSError: if the folder cannot be listed or has too many entries.
    """
    fault = adapter_fault(folder) or model_files_fault(folder)
    if fault is not None:
        yield fault
        return
    if not (folder / CONFIG).is_file():
        models = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG}"))
        hint = f" Use one of the models in it: {', '.join(models)}." if models else ""
        yield (
            f"the folder {folder} is not a model, because it has no config.json. A model folder "
            f"contains config.json, weights and a tokenizer.{hint}"
        )
        return
    weights = {path.name for path in weights_files(folder)}
    for index in folder.glob("*.index.json"):
        try:
            weights.update(map(str, json.loads(read_text(index))["weight_map"].values()))
        except OSError as error:
            yield f"{index} cannot be read ({error}). Copy the folder again."
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{index} is damaged. Copy the folder again."
    if not weights:
        yield f"the folder {folder} has no weights (model.safetensors). Copy them into it."
    for name in sorted(weights):
        path = folder / name
        try:
            if not path.is_file():
                yield f"the weights file {path} is missing. Copy the folder again."
            elif path.suffix == ".safetensors":
                with safe_open(path, framework="np"):  # compares the header with the file's size
                    pass
        except (OSError, SafetensorError) as error:
            yield f"{path} is incomplete or cannot be read ({error}). Copy the folder again."


def weights_files(folder: Path) -> list[Path]:
    """Return the files of a model's weights in a folder, without those of other states."""
    return [*folder.glob("*.safetensors"), *folder.glob("pytorch_model*.bin")]
