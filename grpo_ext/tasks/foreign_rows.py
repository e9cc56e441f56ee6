"""Check untrusted data files before `datasets` reads them.

`datasets` reads a row group of a parquet file, or about 10 MB of a jsonl file, as one table. A
small file can describe an enormous table, for example with a long value that is stored once and
repeated a million times, or with a new column in every line. A deeply nested line crashes the
process.
"""

import json
import os
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from grpo_ext.common.foreign_files import (
    MOST_LEVELS,
    ForeignFile,
    entries,
    lines_of,
    open_plain,
    read_bytes,
)

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

# limits of a row group of a parquet file, which is loaded as a whole
MAX_GROUP_ROWS = 2**23
MAX_GROUP_BYTES = 2**32  # in memory
MAX_SEARCHED = 2**28  # maximum bytes to check, since the danger is a small file with a large table
BATCH_ROWS = 2**16
MAX_COLUMNS = 10_000
# The maximum number of cells in the table of a file's lines, where missing cells become null. A
# larger table is accepted only if at least one cell in `MAX_EMPTY` has a value.
MAX_CELLS = 2**27
MAX_EMPTY = 20
PACKED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".rar", ".tar", ".tgz")
FIXED_BYTES = {"BOOLEAN": 1, "INT32": 4, "INT64": 8, "INT96": 12, "FLOAT": 4, "DOUBLE": 8}
TEXT_BYTES = 8  # bytes in memory per string, in addition to its characters


def check_rows(path: Path) -> None:
    """Check a data file for contents that could exhaust the memory or crash the process.

    Missing and unreadable files pass the check, and so do most damaged files, because `datasets`
    reports their errors. Some contents are not checked:

    - strings in a parquet file of more than `MAX_SEARCHED` bytes,
    - what follows about the first `MAX_SEARCHED` bytes of a jsonl file,
    - a json file of more than `MAX_SEARCHED` bytes,
    - all but the first line of a csv file, and
    - files of types other than parquet, jsonl, json, arrow and csv.

    Raises:
        ValueError: if the file is not a regular file, is sparse, or fails the check.
    """
    try:
        with open_plain(path) as file:
            status = os.fstat(file.fileno())
    except ForeignFile as error:
        refuse(path, f"{error.strerror}.")
    except OSError:
        return  # `datasets` reports the error
    _check(path, status.st_size, status.st_mtime_ns, status.st_ino)


def check_folder(folder: Path) -> None:
    """Check all data files in a folder and its subfolders with `check_rows`.

    Call this after `check_tree`, which rejects links that point out of the folder. Linked folders
    are not searched.

    Raises:
        ValueError: if a file is not a regular file, is sparse, fails the check, or is compressed,
            so that its size says nothing about its contents.
        OSError: if a folder cannot be read.
    """
    waiting = [folder]
    while waiting:
        for path in entries(waiting.pop()):
            if path.is_dir():
                if not path.is_symlink():  # a link within the folder could form a cycle
                    waiting.append(path)
            elif path.suffix in PACKED:
                refuse(
                    path,
                    "it is compressed, so its real size is unknown. Decompress it, and delete the "
                    "compressed file.",
                )
            else:
                check_rows(path)


@lru_cache(maxsize=1024)
def _check(path: Path, size: int, changed: int, inode: int) -> None:
    """Check a file according to its suffix; raise `ValueError` if it fails the check.

    `check_rows` says which contents are not checked. `size`, `changed` and `inode` identify the
    version of the file for the cache, so that a version that has passed is not checked again.

    Args:
        path: the file.
        size: the size of the file in bytes.
        changed: the time of the file's last change, in nanoseconds.
        inode: the file's inode number.
    """
    if path.suffix == ".parquet":
        _check_parquet(path, size)
    elif path.suffix == ".jsonl":
        with open_plain(path) as file:
            try:
                _check_documents(path, lines_of(file, path))
            except ForeignFile as error:
                refuse(path, f"{error.strerror}.")
    elif path.suffix == ".json" and size <= MAX_SEARCHED:
        _check_documents(path, iter([read_bytes(path, MAX_SEARCHED)]))
    elif path.suffix == ".arrow":
        _check_arrow(path)
    elif path.suffix == ".csv":
        with open_plain(path) as file:
            try:
                header = next(lines_of(file, path), b"")
            except ForeignFile as error:
                refuse(path, f"{error.strerror}.")
        if header.count(b",") >= MAX_COLUMNS:
            refuse(
                path,
                f"its first line has {MAX_COLUMNS:,} commas or more, but a file may have at most "
                f"{MAX_COLUMNS:,} columns. Drop some, or join their values in one text column.",
            )


def _check_documents(path: Path, documents: Iterator[bytes]) -> None:
    """Raise `ValueError` if JSON documents are nested too deeply or would be too large as a table.

    A table is too large if it has more than `MAX_COLUMNS` columns, or more than `MAX_CELLS` cells
    of which fewer than one in `MAX_EMPTY` has a value. Keys of nested mappings count as columns. Of
    a jsonl file, only about the first `MAX_SEARCHED` bytes are checked.

    Args:
        path: the file. If its suffix is .json, a document holds all rows; otherwise, it is a line.
        documents: the documents in the file.
    """
    names: set[str] = set()
    filled = 0  # cells with a value
    rows = 0
    searched = 0

    def note(pairs: list[tuple[str, Any]]) -> None:
        """Record the keys of a mapping and drop the mapping, so that documents take no memory."""
        nonlocal filled
        filled += len(pairs)
        names.update(name for name, _ in pairs)

    for line, document in enumerate(documents, 1):
        if searched > MAX_SEARCHED:
            return
        searched += len(document)
        if document.isspace():  # not a row, and slow to decode: 10 us a line
            continue
        rows += max(1, document.count(b"}")) if path.suffix == ".json" else 1
        if document.count(b"[") + document.count(b"{") > MOST_LEVELS and _is_deep(document):
            where = "it" if path.suffix == ".json" else f"line {line}"
            refuse(
                path,
                f"{where} is nested deeper than {MOST_LEVELS} levels. Store the nested part as a "
                "string.",
            )
        try:
            json.loads(document, object_pairs_hook=note)
        except (ValueError, RecursionError):
            continue  # `datasets` reports the error
        if len(names) > MAX_COLUMNS:
            refuse(
                path,
                f"its rows have more than {MAX_COLUMNS:,} different column names or keys. Put the "
                "values whose names differ from row to row into one text column.",
            )
        cells = rows * len(names)
        if cells > MAX_CELLS and cells > MAX_EMPTY * filled:
            refuse(
                path,
                f"its rows have {len(names):,} different column names or keys, so most of the "
                "table would be empty. Put the values whose names differ from row to row into one "
                "text column.",
            )


def _is_deep(document: bytes) -> bool:
    """Return whether a JSON document, possibly malformed, is nested deeper than `MOST_LEVELS`."""
    level = 0
    text = False
    escaped = False
    for byte in document:
        if text:
            text = escaped or byte != 0x22  # "
            escaped = not escaped and byte == 0x5C  # \
        elif byte == 0x22:
            text = True
        elif byte in b"[{":
            level += 1
            if level > MOST_LEVELS:
                return True
        elif byte in b"]}":
            level -= 1
    return False


def _check_arrow(path: Path) -> None:
    """Raise `ValueError` if a table in an Arrow file is compressed.

    `datasets` never writes compressed tables. Uncompressed tables are memory-mapped, so they are no
    larger in memory than on disk.
    """
    import pyarrow as pa

    try:
        with pa.memory_map(str(path)) as source:
            for message in pa.ipc.MessageReader.open_stream(source):
                if _is_compressed(message.metadata.to_pybytes()):
                    refuse(
                        path,
                        "it is compressed. Save the data again with save_to_disk, which does not "
                        "compress.",
                    )
    except (pa.ArrowInvalid, OSError, struct.error):
        return  # `datasets` reports the error


def _is_compressed(message: bytes) -> bool:
    """Return whether the metadata of an Arrow message says that its buffers are compressed.

    The metadata is a flatbuffer: `Message` has `header_type` and `header` as fields 1 and 2,
    `DictionaryBatch` has its `RecordBatch` as field 1, and `RecordBatch` has `compression` as field
    3 (format/Message.fbs of Arrow).
    """

    def field(table: int, number: int) -> int:
        """Return the byte offset of a table's field, or 0 if the field is absent."""
        [distance] = struct.unpack_from("<i", message, table)
        vtable = table - distance
        [length] = struct.unpack_from("<H", message, vtable)
        entry = 4 + 2 * number
        if entry >= length:
            return 0
        [offset] = struct.unpack_from("<H", message, vtable + entry)
        return table + offset if offset else 0

    def follow(position: int) -> int:
        [offset] = struct.unpack_from("<I", message, position)
        return position + offset

    root = follow(0)
    kind = field(root, 1)
    header = field(root, 2)
    if not kind or not header or message[kind] not in (2, 3):  # a dictionary or a record batch
        return False
    batch = follow(header)
    if message[kind] == 2:
        data = field(batch, 1)
        if not data:
            return False
        batch = follow(data)
    return bool(field(batch, 3))


def _check_parquet(path: Path, size: int) -> None:
    """Raise `ValueError` if a parquet file is too large in memory, or its strings are unreadable.

    A file is too large if it has more than `MAX_COLUMNS` columns, or a row group with more than
    `MAX_GROUP_ROWS` rows or `MAX_GROUP_BYTES` bytes. In a file of more than `MAX_SEARCHED` bytes,
    strings are not read, and each one counts only as `TEXT_BYTES`.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            metadata = file.metadata
            columns = [file.schema.column(i) for i in range(metadata.num_columns)]
    except (ArrowInvalid, OSError):
        return  # `datasets` reports the error
    if len(columns) > MAX_COLUMNS:
        refuse(
            path,
            f"it has {len(columns):,} columns, but a file may have at most {MAX_COLUMNS:,}. Drop "
            "some, or join their values in one text column.",
        )
    texts = [column.path for column in columns if column.physical_type == "BYTE_ARRAY"]
    for i in range(metadata.num_row_groups):
        group = metadata.row_group(i)
        if group.num_rows > MAX_GROUP_ROWS or group.total_byte_size > MAX_GROUP_BYTES:
            _refuse_group(path, f"{group.num_rows:,} rows and {group.total_byte_size:,} bytes")
        in_memory = 0
        for j, column in enumerate(columns):
            width = FIXED_BYTES.get(column.physical_type, TEXT_BYTES)
            if column.physical_type == "FIXED_LEN_BYTE_ARRAY":
                width = column.length
            in_memory += width * group.column(j).num_values
            if in_memory > MAX_GROUP_BYTES:
                _refuse_group(path, f"at least {in_memory:,} bytes")
    if not texts or size > MAX_SEARCHED:
        return
    # Repeated strings take little memory if they are read as indices into a dictionary.
    try:
        with ParquetFile(path, read_dictionary=texts) as file:
            for i in range(metadata.num_row_groups):
                _check_texts(path, file, i, texts)
    except OSError:
        # The encodings in the file's metadata prove nothing, since each page names its own.
        refuse(
            path,
            "its strings cannot be read as dictionary-encoded columns. The file is damaged, or has "
            "an encoding such as DELTA_BYTE_ARRAY, which can make a small file huge in memory. "
            "Create it again with pyarrow.parquet.write_table(table, path).",
        )


def _check_texts(path: Path, file: "ParquetFile", group: int, columns: list[str]) -> None:
    """Raise `ValueError` if a row group's strings take more than `MAX_GROUP_BYTES` in memory.

    Args:
        path: the file, for the error message.
        file: the open file, whose string columns are read as dictionaries.
        group: the index of the row group.
        columns: the paths of the string columns.
    """
    in_memory = 0
    for batch in file.iter_batches(BATCH_ROWS, row_groups=[group], columns=columns):
        in_memory += sum(_text_bytes(column) for column in batch.columns)
        if in_memory > MAX_GROUP_BYTES:
            _refuse_group(path, f"at least {in_memory:,} bytes of text")


def _text_bytes(array: Any) -> int:
    """Return how many bytes the dictionary-encoded strings in a pyarrow array take when decoded."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_dictionary(array.type):
        lengths = pc.fill_null(pc.binary_length(array.dictionary), 0)
        counts = pc.value_counts(array.indices.drop_null())
        per_value = lengths.cast(pa.int64()).take(counts.field("values"))
        total = pc.sum(pc.multiply(per_value, counts.field("counts")))
        return total.as_py() or 0
    if pa.types.is_struct(array.type):
        return sum(_text_bytes(part) for part in array.flatten())
    if pa.types.is_map(array.type):
        return _text_bytes(array.keys) + _text_bytes(array.items)
    if pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        return _text_bytes(array.flatten())
    return 0


def _refuse_group(path: Path, size: str) -> NoReturn:
    refuse(
        path,
        f"it has a row group of {size}. A row group is loaded as a whole, so it may have at most "
        f"{MAX_GROUP_ROWS:,} rows and {MAX_GROUP_BYTES:,} bytes. Create the file again with "
        "smaller row groups: pyarrow.parquet.write_table(table, path, row_group_size=10_000).",
    )


def refuse(path: Path, reason: str) -> NoReturn:
    raise ValueError(f"the data file {path} cannot be read: {reason}")
