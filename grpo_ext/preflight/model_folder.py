"""The check that a recipe's model can be loaded: a complete folder, or a name that the cache or the hub knows."""

import json
from collections.abc import Iterator
from pathlib import Path

from safetensors import SafetensorError, safe_open

from grpo_ext.common.hub import find_repo
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values

CONFIGS = ("config.json", "adapter_config.json")
WEIGHTS = ("*.safetensors", "*.bin")


def check_model(v: Values, findings: Findings) -> None:
    """Check the folder or name of the recipe's model."""
    name = v["model_name_or_path"]
    folder = Path(name or "").expanduser()
    try:
        if name and not folder.is_dir():
            find_repo(name, "model")
        for words in missing(folder) if name and folder.is_dir() else ():
            findings.problem(f"model_name_or_path: {words}", "model_name_or_path")
    except FileNotFoundError as error:
        findings.problem(error, "model_name_or_path")
    except ConnectionError as error:
        findings.absent(error, "model_name_or_path")


def missing(folder: Path) -> Iterator[str]:
    """Yield the faults of a folder that should hold a whole model."""
    if not any((folder / config).is_file() for config in CONFIGS):
        inner = sorted(
            {str(path.parent) for config in CONFIGS for path in folder.glob(f"*/{config}")}
        )
        words = f" Those in it are models: {', '.join(inner)}." if inner else ""
        yield f"the folder {folder} is no model: config.json, weights and a tokenizer belong there.{words}"
        return
    files = {path.name for pattern in WEIGHTS for path in folder.glob(pattern)}
    for index in folder.glob("*.index.json"):
        try:
            files |= set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError):
            yield f"{index} is damaged: copy the folder again."
    if not files:
        yield f"the folder {folder} has no weights (model.safetensors)."
    for path in (folder / name for name in sorted(files)):
        try:
            if path.suffix == ".safetensors":
                with safe_open(path, framework="np"):  # the header, against the file's size
                    pass
            elif not path.is_file():
                raise FileNotFoundError("no such file")
        except (OSError, SafetensorError) as error:
            yield f"{path} is not whole ({error}): copy the folder again."
