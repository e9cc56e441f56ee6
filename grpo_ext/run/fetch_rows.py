"""Write the rows of a hub dataset to local files, for training on a machine without a network."""

from __future__ import annotations

import filecmp
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_ext.common.files import replacing
from grpo_ext.common.foreign_files import read_text
from grpo_ext.common.hub import find_repo
from grpo_ext.common.suggestions import unknown
from grpo_ext.common.untrusted import one_line
from grpo_ext.observe.jsonl import finite
from grpo_ext.recipe.folder import recipe_names
from grpo_ext.recipe.read import read_settings
from grpo_ext.tasks.open_dataset import FILE_BUILDERS, is_unsplit, open_dataset, split_names

if TYPE_CHECKING:
    from datasets import Dataset

CARD = "README.md"  # the card of a dataset
UNKNOWN = "unknown"
MOST_LICENSE = 200  # maximum number of characters of a license


@dataclass(frozen=True)
class Source:
    """A dataset: its hub id or folder, and the name of its configuration if it has several."""

    name: str
    config: str | None = None

    def __str__(self) -> str:
        return self.name if self.config is None else f"{self.name} ({self.config})"


@dataclass(frozen=True)
class RowsFile:
    """The path of the file with the rows of one split, and the number of rows in it."""

    split: str
    path: Path
    count: int


def packaged_sources() -> dict[str, Source]:
    """Return the hub datasets that the package's recipes train on, by recipe folder.

    If the recipes of a folder train on different datasets, only that of the first recipe is
    returned.
    """
    sources: dict[str, Source] = {}
    for recipe in recipe_names():
        settings = read_settings(recipe, None)
        values = {key: value for key, (value, _) in settings.items()}
        name = values.get("dataset_name")
        if name is None or Path(name).suffix in FILE_BUILDERS:
            continue
        sources.setdefault(recipe.partition("/")[0], Source(name, values.get("dataset_config")))
    return sources


def find_source(name: str, config: str | None = None) -> Source:
    """Return the dataset that `name` refers to.

    Args:
        name: a key of `packaged_sources`, such as `gsm8k`, a hub id `owner/name`, or a local
            folder.
        config: the name of the configuration. If `None`, use the one set in the package's recipe,
            if any.

    Raises:
        ValueError: if `name` is none of these. Whether a hub id exists is not checked.
    """
    sources = packaged_sources()
    if name in sources:
        source = sources[name]
        return source if config is None else Source(source.name, config)
    if "/" not in name and not Path(name).exists():
        raise ValueError(
            f"{unknown('dataset', name, sources)} To fetch another dataset from the hub, pass its "
            "id as owner/name."
        )
    return Source(name, config)


def fetch_rows(source: Source, folder: Path, splits: list[str] | None = None) -> list[RowsFile]:
    """Write the rows of a dataset to one jsonl file per split, and return the files.

    The files are named by `file_name`, and returned in the order of the splits. An existing file
    with different content is not overwritten.

    Args:
        source: the dataset.
        folder: the folder for the files.
        splits: the splits, in the syntax of `datasets`, such as `train[:100]`. If `None`, use
            `train` and, if the dataset has it, `test`.

    Raises:
        FileExistsError: if a file exists with different content.
        ConnectionError: if the dataset is not on this machine and the hub cannot be reached.
        FileNotFoundError: if there is no such dataset.
        OSError: if the dataset cannot be read, or a file cannot be written.
        ValueError: if there is no such split, if two splits would be written to the same file, if a
            row has values that JSON cannot represent, or if the dataset is damaged or unsafe to
            read.
    """
    try:
        if splits is None:
            splits = default_splits(source)
        paths = split_paths(source, folder, splits)
        files = []
        for split, path in zip(splits, paths, strict=True):
            rows: Any = open_dataset(source.name, split, source.config)
            write_rows(path, rows, f"{source}, {split}")
            files.append(RowsFile(split, path, len(rows)))
    except ConnectionError as error:
        raise ConnectionError(
            f"the rows of {source} cannot be fetched: {str(error).rstrip('.')}. If this machine "
            "has no network, run the same command on a machine that has one, and copy the "
            "files here."
        ) from None
    return files


def default_splits(source: Source) -> list[str]:
    """Return the split names to fetch by default: `train` and, if the dataset has it, `test`.

    Raises:
        FileNotFoundError: if there is no such dataset.
        ConnectionError: if the hub cannot be reached.
    """
    if is_unsplit(Path(source.name)):
        return ["train"]
    if not Path(source.name).exists():
        find_repo(source.name, "dataset")  # `datasets` would retry for half a minute
    names = split_names(source.name, source.config)
    return ["train", "test"] if "test" in names else ["train"]


def split_paths(source: Source, folder: Path, splits: list[str]) -> list[Path]:
    """Return the path of the file for each split.

    Args:
        source: the dataset.
        folder: the folder for the files.
        splits: the splits, in the syntax of `datasets`.

    Raises:
        ValueError: if two splits would be written to the same file.
    """
    paths: list[Path] = []
    for split in splits:
        path = folder / file_name(source, split)
        if path in paths:
            other = splits[paths.index(path)]
            raise ValueError(
                f"the splits {other} and {split} would both be written to {path}. Remove one of "
                "them, or fetch them separately, each with a different --out."
            )
        paths.append(path)
    return paths


def file_name(source: Source, split: str) -> str:
    """Return the name of the file for a split, such as `gsm8k-main-train-0-10.jsonl`.

    The name contains the configuration, if there is one, and both ends of a slice. Characters that
    are unusual in file names are replaced with `-`.
    """
    whole = split.replace("[:", "[0:").replace(":]", ":end]").replace("%", "pct")
    words = [Path(source.name).name, source.config or "", whole]
    stem = re.sub(r"[^\w.-]+", "-", "-".join(filter(None, words)))
    return f"{stem.strip('-')}.jsonl"


def write_rows(path: Path, rows: Dataset, title: str) -> None:
    """Write rows to a jsonl file, atomically and with a progress bar.

    Numbers that are not finite become null, because JSON cannot represent them.

    Args:
        path: the file to write.
        rows: the rows, one per line of the file.
        title: the title of the progress bar, which also begins error messages.

    Raises:
        FileExistsError: if the file exists with different content, or is not a regular file.
        OSError: if the file cannot be written.
        ValueError: if a row has values that JSON cannot represent, such as images.
    """
    from tqdm import tqdm

    progress: Iterable[dict[str, Any]] = tqdm(rows, desc=title, unit=" rows")
    with replacing(path) as file:
        for row in progress:
            try:
                file.write(as_json(row) + "\n")
            except TypeError as error:
                raise ValueError(
                    f"{title}: a row cannot be written as JSON ({one_line(error)}). In Python, "
                    "save the dataset with load_dataset(NAME, CONFIG).save_to_disk(FOLDER), where "
                    "CONFIG is the configuration or None, and set `dataset_name: FOLDER` in the "
                    "recipe."
                ) from None
        file.flush()
        if path.exists() and not (path.is_file() and filecmp.cmp(file.name, path, shallow=False)):
            raise FileExistsError(
                f"{path} already exists with different content. Move it, or choose another folder "
                "with --out."
            )


def as_json(row: dict[str, Any]) -> str:
    """Return a row as one line of JSON, with null for NaN and infinity.

    Raises:
        TypeError: if a value cannot be represented in JSON, such as bytes.
    """
    text = json.dumps(row, ensure_ascii=False)
    if "NaN" in text or "Infinity" in text:  # may also be words in a string
        text = json.dumps(finite(row, "", {}), ensure_ascii=False)
    return text


def license_of(source: Source) -> str:
    """Return the license that a dataset's card names, truncated to `MOST_LICENSE` characters.

    The card of a folder is its `README.md`. Return `UNKNOWN` if the card names no license or cannot
    be read.
    """
    from huggingface_hub import DatasetCard

    folder = Path(source.name)
    try:
        if folder.is_dir():
            card = DatasetCard(read_text(folder / CARD, within=folder))
        else:
            card = DatasetCard.load(source.name)
        license = card.data.to_dict().get("license")
    except Exception:  # from any library that `DatasetCard` uses
        return UNKNOWN
    names = license if isinstance(license, list) else [license]
    if not names or not all(isinstance(name, str) for name in names):
        return UNKNOWN
    return one_line(", ".join(names))[:MOST_LICENSE]
