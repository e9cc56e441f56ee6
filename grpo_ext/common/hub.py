"""A quick check that a model or dataset exists, without the many retries of the libraries."""

from pathlib import Path

from grpo_ext.common.foreign_files import entries
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.untrusted import first_line

PATIENCE = 3.0  # timeout of the request to the hub, in seconds
NOUNS = {"model": "model", "dataset": "dataset"}


def find_model(name: str) -> None:
    """Check that a model is a local folder or, with `find_repo`, in the cache or on the hub.

    The hub is asked once; transformers would retry each file for half a minute.

    Raises:
        FileNotFoundError, ConnectionError: see `find_repo`.
    """
    if not Path(name).expanduser().is_dir():
        find_repo(name, "model")


def find_repo(name: str, kind: str) -> None:
    """Check that `name`, which is not a local folder, is a repository in the cache or on the hub.

    Args:
        name: the name of the repository, or the path of a folder that does not exist.
        kind: `"model"` or `"dataset"`.

    Raises:
        FileNotFoundError: if it is in neither place, or is private. The message suggests a similar
            name from the cache or from the folder that would contain the path.
        ConnectionError: if the hub cannot be reached or its response is an error.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import HFValidationError, RepositoryNotFoundError

    cached = set()
    for path in Path(HF_HUB_CACHE).glob(f"{kind}s--*"):
        _, _, repo = path.name.partition("--")
        cached.add(repo.replace("--", "/"))
    if name in cached:
        return
    guess = did_you_mean(name, [*neighbors(name), *cached])
    noun = NOUNS[kind]
    if name.count("/") > 1 or name.startswith(("/", ".", "~")):
        hint = guess or " If an earlier stage of training writes it, run that stage first."
        raise FileNotFoundError(f"the {noun} folder {name} does not exist.{hint}")
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=PATIENCE)
    except (RepositoryNotFoundError, HFValidationError):  # missing, private or an invalid name
        raise FileNotFoundError(
            f"there is no folder {name}, and the hub has no visible {noun} of that name.{guess} "
            "If it is private, run `hf auth login`."
        ) from None
    except Exception as error:  # from any of the libraries that it uses
        raise ConnectionError(
            f"the {noun} {name} is neither a folder nor in the cache, and asking the hub for it "
            f"failed ({first_line(error)}).{guess} Try again, or download it and write its folder."
        ) from None


def neighbors(name: str) -> list[str]:
    """Return the paths in the same folder as the path `name`, with the same prefix (such as `~/`).

    Returns an empty list if the folder does not exist, cannot be read, or has too many entries.
    """
    try:
        inside = entries(Path(name).expanduser().parent)
    except OSError:  # the folder does not exist, or has too many files
        return []
    folder = name.rstrip("/").removesuffix(Path(name).name)
    return [folder + path.name for path in inside]
