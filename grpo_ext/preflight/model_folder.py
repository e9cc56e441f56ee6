"""Check that a recipe's model is a complete folder, or a name in the cache or on the hub."""

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from grpo_ext.common.adapters import ADAPTER_CONFIG, adapter_fault
from grpo_ext.common.foreign_files import read_text
from grpo_ext.common.hub import find_repo
from grpo_ext.common.model_files import CONFIG, model_files_fault
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values

KEY = "model_name_or_path"


def check_model(v: Values, findings: Findings) -> None:
    """Check the recipe's model, which is a folder or a name on the hub.

    A hub that cannot be reached is a problem, or a note if the run will be on another machine.
    Without a name, nothing is reported.
    """
    name = v[KEY]
    if not name:
        return  # the recipe's rules report it
    folder = Path(name).expanduser()
    try:
        faults = folder_faults(folder) if folder.is_dir() else repo_faults(name)
        for fault in faults:
            findings.problem(f"{KEY}: {fault}", KEY)
    except FileNotFoundError as error:
        findings.problem(f"{KEY}: {error}", KEY)
    except ConnectionError as error:
        findings.absent(f"{KEY}: {error}", KEY)


def repo_faults(name: str) -> Iterator[str]:
    """Yield a fault if the cache shows that a model on the hub is only an adapter.

    Raises:
        FileNotFoundError: if neither the cache nor the hub has the model.
        ConnectionError: if the hub cannot be reached.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    find_repo(name, "model")
    cached = try_to_load_from_cache(name, ADAPTER_CONFIG, cache_dir=constants.HF_HUB_CACHE)
    if isinstance(cached, str):
        yield (
            f"{name} is an adapter, not a whole model. Run `hf download {name} --local-dir "
            "FOLDER` and `grpo-ext merge --model FOLDER`, and write model_name_or_path: "
            "FOLDER/merged."
        )


def folder_faults(folder: Path) -> Iterator[str]:
    """Yield the faults of a folder that should contain a complete model."""
    fault = adapter_fault(folder) or model_files_fault(folder)
    if fault is not None:
        yield fault
        return
    if not (folder / CONFIG).is_file():
        models = sorted(str(path.parent) for path in folder.glob(f"*/{CONFIG}"))
        hint = f" Write one of the models in it: {', '.join(models)}." if models else ""
        yield (
            f"the folder {folder} is not a model, because it has no config.json. A model folder "
            f"contains config.json, weights and a tokenizer.{hint}"
        )
        return
    weights = {path.name for path in (*folder.glob("*.safetensors"), *folder.glob("*.bin"))}
    for index in folder.glob("*.index.json"):
        try:
            weights.update(map(str, json.loads(read_text(index))["weight_map"].values()))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
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
            yield f"{path} is incomplete ({error}). Copy the folder again."
