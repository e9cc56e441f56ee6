"""A single short look-up of a model or data set, instead of the many retries of libraries."""

from pathlib import Path

from grpo_ext.common.foreign_files import entries
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.untrusted import first_line

PATIENCE = 3.0  # seconds that the hub may take to answer
KEYS = {"model": "model_name_or_path", "dataset": "dataset_name"}


def find_repo(name: str, kind: str) -> None:
    """Return if the cache or the hub has the model or data set `name`, which is not a folder here.

    `FileNotFoundError` if there is none, with a similar name beside that path or in the cache;
    `ConnectionError` if the hub cannot be reached.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    cached = {
        path.name.split("--", 1)[1].replace("--", "/")
        for path in Path(HF_HUB_CACHE).glob(f"{kind}s--*")
    }
    if name in cached:
        return
    guess = did_you_mean(name, [*neighbours(name), *cached])
    key = KEYS[kind]
    if name.count("/") > 1 or name.startswith(("/", ".", "~")):
        hint = guess or " An earlier stage makes it: the recipe's first lines name its commands."
        raise FileNotFoundError(f"{key}: there is no folder {name}.{hint}")
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=PATIENCE)
    except (RepositoryNotFoundError, HFValidationError):  # not there, or private
        raise FileNotFoundError(
            f"{key}: there is no folder {name}, and the hub shows none of that name.{guess}"
        ) from None
    except Exception as error:  # from any library below
        raise ConnectionError(
            f"{key}: there is no folder {name}, none in the cache, and the hub cannot be asked "
            f"({first_line(error)}).{guess}"
        ) from None


def neighbours(name: str) -> list[str]:
    """Return the folders and files beside the path `name`, in the same form as `name`."""
    try:
        inside = entries(Path(name).expanduser().parent)
    except OSError:  # there is no such folder, or it has too many files to compare their names
        return []
    return [name[: len(name) - len(Path(name).name)] + path.name for path in inside]
