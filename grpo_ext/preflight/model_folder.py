"""Check that a recipe's model is a complete folder, or is in the cache or on the hub."""

from collections.abc import Iterator
from pathlib import Path

from grpo_ext.common.adapters import ADAPTER_CONFIG
from grpo_ext.common.hub import find_repo
from grpo_ext.common.whole_model import folder_faults
from grpo_ext.recipe.problems import Findings
from grpo_ext.recipe.rules import Values

KEY = "model_name_or_path"


def check_model(v: Values, findings: Findings) -> None:
    """Check the recipe's model, which is a folder or a model on the hub.

    If the hub cannot be reached, that is a problem or, if the run will be on another machine, a
    note. If the recipe names no model, nothing is reported.

    Raises:
        OSError: if the model's folder cannot be listed or has too many entries.
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
    """Yield an error message if files in the cache show that a model on the hub is an adapter.

    Raises:
        FileNotFoundError: if neither the cache nor the hub has the model.
        ConnectionError: if the hub cannot be reached or its response is an error.
    """
    from huggingface_hub import constants, try_to_load_from_cache

    find_repo(name, "model")
    cached = try_to_load_from_cache(name, ADAPTER_CONFIG, cache_dir=constants.HF_HUB_CACHE)
    if isinstance(cached, str):
        yield (
            f"{name} is an adapter, not a whole model. Run `hf download {name} --local-dir "
            "FOLDER` and `grpo-ext merge --model FOLDER`, and set `model_name_or_path: "
            "FOLDER/merged`."
        )
