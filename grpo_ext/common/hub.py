"""Check quickly that a model or dataset exists, without the many retries of the libraries."""

from pathlib import Path

from grpo_ext.common.foreign_files import entries
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.untrusted import first_line

PATIENCE = 3.0  # timeout of the request to the hub, in seconds
NOUNS = {"model": "model", "dataset": "dataset"}


def find_model(name: str) -> None:
    """Check that a model exists as a local folder, in the cache or on the hub.

    At most one request is sent to the hub; transformers would retry each file for half a minute.

    Args:
        name: the model's folder or hub id.

    Raises:
        FileNotFoundError: if the model is in none of these places, or is private and the user has
            no access to it. The message suggests a similar name, if there is one.
        ConnectionError: if the hub cannot be reached or responds with an error.
    """
    if not Path(name).expanduser().is_dir():
        find_repo(name, "model")


def find_repo(name: str, kind: str) -> None:
    """Check that a repository exists in the cache or on the hub.

    Call this only for names that are not local folders. A name that looks like a path is reported
    as missing without a request to the hub.

    Args:
        name: the repository id, or the path of a folder that does not exist.
        kind: `"model"` or `"dataset"`.

    Raises:
        FileNotFoundError: if the repository does not exist, if it is private and the user has no
            access to it, or if `name` is invalid or looks like a path. The message suggests a
            similar name in the same folder or in the cache, if there is one.
        ConnectionError: if the hub cannot be reached or responds with an error.
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
        hint = guess or " If an earlier stage of training creates it, run that stage first."
        raise FileNotFoundError(f"the {noun} folder {name} does not exist.{hint}")
    try:
        HfApi().repo_info(name, repo_type=kind, timeout=PATIENCE)
    except (RepositoryNotFoundError, HFValidationError):  # missing, private or an invalid name
        raise FileNotFoundError(
            f"there is no folder {name}, and the hub has no visible {noun} of that name.{guess} "
            f"If the {noun} is private, run `hf auth login`."
        ) from None
    except Exception as error:  # each library that `HfApi` uses has its own errors
        raise ConnectionError(
            f"the {noun} {name} is neither a folder nor in the cache, and asking the hub for it "
            f"failed ({first_line(error)}).{guess} Try again, or download the {noun} and set the "
            "path of its folder."
        ) from None


def neighbors(name: str) -> list[str]:
    """Return the paths of all entries in the parent folder of `name`.

    They are written like `name`; for example, they begin with `~/` if `name` does. The list is
    empty if the folder does not exist, cannot be read, or has too many entries.
    """
    try:
        inside = entries(Path(name).expanduser().parent)
    except OSError:  # the folder does not exist, or has too many files
        return []
    folder = name.rstrip("/").removesuffix(Path(name).name)
    return [folder + path.name for path in inside]
