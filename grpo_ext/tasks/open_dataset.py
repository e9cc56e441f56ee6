"""Open a dataset from a file, a folder or the hub."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_ext.common.foreign_files import ForeignFile, check_tree, lines_of, open_plain
from grpo_ext.common.hub import find_repo, neighbors
from grpo_ext.common.suggestions import did_you_mean
from grpo_ext.common.untrusted import one_line
from grpo_ext.tasks.foreign_rows import check_folder, check_rows

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset

# The supported file types, with the names of their builders in `datasets`.
FILE_BUILDERS = {".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}
# A split in the syntax of `datasets`: names, each with an optional slice, joined by "+".
SPLIT_NAME = re.compile(r"(?:^|\+)\s*([\w.-]+)")
SLICED = re.compile(r"[\[+]")
ROW_NUMBERS = re.compile(r"(?P<split>[\w.-]+)\[(?P<first>\d*):(?P<end>\d*)\]")


def open_dataset(
    name: str, split: str = "train", config: str | None = None, streaming: bool = False
) -> Dataset | IterableDataset:
    """Open a dataset from a file, a folder or the hub.

    A file, or the folder of a saved `Dataset`, has no splits and is read as a whole, whatever the
    name in `split`. The folder of a saved `DatasetDict` has splits.

    Args:
        name: a file (jsonl, json, csv or parquet), a folder of such files, a folder saved by
            `datasets`, or a hub id.
        split: the split, in the syntax of `datasets`, such as `train[:1000]`; for the folder of a
            `DatasetDict`, only the name of a split.
        config: the name of the configuration, for hub datasets that have several.
        streaming: whether to read rows only as they are needed.

    Raises:
        FileNotFoundError: if there is no such file, folder or hub dataset, or a folder has no data
            files.
        ConnectionError: if the hub cannot be reached or responds with an error.
        ValueError: if the file is empty, the data lacks the split or the configuration, `split` has
            a slice or a "+" but the data has no splits, a folder contains special files or links
            that point out of it, a file is damaged (found in a stream only when it is read), or
            reading a file could exhaust the memory.
        OSError: if a folder cannot be read.
    """
    path = Path(name).expanduser()
    if is_unsplit(path) and SLICED.search(split):
        raise ValueError(
            f"the dataset {path} has no splits, so {split!r} cannot select rows from it. Set the "
            "split to a plain name, such as train, to read all rows. In GRPO training, limit the "
            "rows with max_train_samples and max_eval_samples."
        )
    if path.suffix in FILE_BUILDERS and not path.is_file():
        raise FileNotFoundError(
            f"there is no data file {path}.{did_you_mean(name, neighbors(name))}"
        )
    from datasets import load_dataset, load_from_disk  # takes a second
    from datasets.exceptions import DatasetGenerationError

    if path.suffix in FILE_BUILDERS:
        check_rows(path)
        try:
            return load_dataset(
                FILE_BUILDERS[path.suffix], data_files=str(path), split="train", streaming=streaming
            )
        except StopIteration:  # `datasets` raises it for an empty file
            raise ValueError(f"the dataset {path} has no rows.") from None
        except (DatasetGenerationError, ValueError) as error:
            if path.suffix == ".csv" and has_one_line(path):
                raise ValueError(f"the dataset {path} has no rows, only a header.") from None
            raise ValueError(unreadable(path, error)) from None
    if path.is_dir():
        try:
            check_tree(path)
            check_folder(path)
        except ForeignFile as error:
            raise ValueError(
                f"the dataset {path} cannot be read: {error.filename} ({error.strerror})."
            ) from None
    if (path / "state.json").exists():
        rows = load_from_disk(str(path))
        return rows.to_iterable_dataset() if streaming else rows
    if (path / "dataset_dict.json").exists():
        splits = load_from_disk(str(path))
        if split not in splits:
            raise ValueError(no_split(path, split, splits))
        return splits[split].to_iterable_dataset() if streaming else splits[split]
    if not path.exists() and "://" not in name:
        find_repo(name, "dataset")
    return load_split(name, config, split, streaming)


def has_one_line(path: Path) -> bool:
    """Return whether a file has no lines after the first, or only blank ones."""
    with open_plain(path) as file:
        lines = lines_of(file, path)
        next(lines, None)
        return not any(line.strip() for line in lines)


def is_unsplit(path: Path) -> bool:
    """Return whether a dataset has no splits because it is a file or a saved `Dataset`."""
    return path.suffix in FILE_BUILDERS or (path / "state.json").exists()


def load_split(
    name: str, config: str | None, split: str, streaming: bool
) -> Dataset | IterableDataset:
    """Load a split, or a slice such as `train[:1000]`, of a hub dataset or of a folder of files.

    `datasets` streams only whole splits. A slice by row numbers is cut from the stream of its
    split. Any other slice, or a combination such as `train+test`, is loaded as a whole and then
    streamed.

    Args:
        name: a hub id or a folder of data files.
        config: the name of the configuration, for hub datasets that have several.
        split: the split, in the syntax of `datasets`.
        streaming: whether to read rows only as they are needed.

    Raises:
        FileNotFoundError: if a folder has no data files.
        ValueError: if there is no such split or configuration, or a file is damaged (found in a
            stream only when it is read).
    """
    from datasets import load_dataset
    from datasets.exceptions import DatasetGenerationError

    try:
        if not streaming or not SLICED.search(split):
            return load_dataset(name, config, split=split, streaming=streaming)
        row_numbers = ROW_NUMBERS.fullmatch(split)
        if row_numbers is None:
            return load_dataset(name, config, split=split).to_iterable_dataset()
        first = int(row_numbers["first"] or 0)
        rows = load_dataset(name, config, split=row_numbers["split"], streaming=True).skip(first)
        if row_numbers["end"]:
            rows = rows.take(max(int(row_numbers["end"]) - first, 0))
        return rows
    except DatasetGenerationError as error:
        raise ValueError(unreadable(name, error)) from None
    except ValueError as error:
        splits = split_names(name, config)
        for part in SPLIT_NAME.findall(split):
            if splits and part not in splits:
                raise ValueError(no_split(name, part, splits)) from error
        raise


def split_names(name: str, config: str | None) -> list[str]:
    """Return the names of a dataset's splits; an empty list if they cannot be read."""
    from datasets import get_dataset_split_names

    try:
        return get_dataset_split_names(name, config)
    except (ValueError, OSError):
        return []


def unreadable(name: object, error: Exception) -> str:
    """Return the error message for a dataset whose rows cannot be read because of `error`."""
    return f"the dataset {name} cannot be read: {one_line(error.__cause__ or error)}"


def no_split(name: object, split: str, splits: Iterable[str]) -> str:
    """Return the error message for a dataset without the split `split`.

    Args:
        name: the dataset.
        split: the missing split.
        splits: the splits that the dataset has.
    """
    return (
        f"the dataset {name} has no split {split!r}. Its splits: {', '.join(splits)}. Set "
        "dataset_train_split or, for an evaluation, dataset_test_split to one of them. In GRPO "
        "training, you can instead evaluate on held-out rows of the training split: set "
        "`held_out_share: 0.05`."
    )
