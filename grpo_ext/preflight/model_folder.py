"""The check that a recipe's model can be loaded: a complete folder, or a name that the cache or the
hub knows.
"""

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

WEIGHTS = ("*.safetensors", "*.bin")


def check_model(v: Values, findings: Findings) -> None:
    """Check the folder or name of the recipe's model."""
    name = v["model_name_or_path"]
    if not name:
        return  # a problem already
    folder = Path(name).expanduser()
    try:
        faults = missing(folder) if folder.is_dir() else missing_repo(name)
        for words in faults:
            findings.problem(f"model_name_or_path: {words}", "model_name_or_path")
    except FileNotFoundError as error:
        findings.problem(error, "model_name_or_path")
    except ConnectionError as error:
        findings.absent(error, "model_name_or_path")


def missing_repo(name: str) -> Iterator[str]:
    """Yield the faults of a model of the hub, as far as the cache shows them; `OSError` as for
    `find_repo`.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    find_repo(name, "model")
    cached = try_to_load_from_cache(name, ADAPTER_CONFIG, cache_dir=constants.HF_HUB_CACHE)
    if isinstance(cached, str):
        yield (
            f"{name} is an adapter, not a whole model. Run `hf download {name} --local-dir "
            "FOLDER` and `grpo-ext merge --model FOLDER`, and name FOLDER/merged as the model."
        )


def missing(folder: Path) -> Iterator[str]:
    """Yield the faults of a folder that should hold a whole model."""
    if fault := adapter_fault(folder):
        yield fault
        return
    fault = model_files_fault(folder)
    if fault is not None:
        yield fault
        return
    if not (folder / CONFIG).is_file():
        inner = sorted({str(path.parent) for path in folder.glob(f"*/{CONFIG}")})
        words = f" Those in it are models: {', '.join(inner)}." if inner else ""
        yield (
            f"the folder {folder} is no model: config.json, weights and a tokenizer belong "
            f"there.{words}"
        )
        return
    files = {path.name for pattern in WEIGHTS for path in folder.glob(pattern)}
    for index in folder.glob("*.index.json"):
        try:
            files |= {str(name) for name in json.loads(read_text(index))["weight_map"].values()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            yield f"{index} is damaged: copy the folder again."
    if not files:
        yield f"the folder {folder} has no weights (model.safetensors)."
    for path in (folder / name for name in sorted(files)):
        try:
            if not path.is_file():
                raise FileNotFoundError("no such file")
            if path.suffix == ".safetensors":
                with safe_open(path, framework="np"):  # the header, against the file's size
                    pass
        except (OSError, SafetensorError) as error:
            yield f"{path} is not whole ({error}): copy the folder again."
