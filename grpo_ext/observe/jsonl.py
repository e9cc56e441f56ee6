"""A crash-safe log of JSON lines, in parts of bounded size, that is truncated on resume.

The newest lines are in `NAME.jsonl`, older ones in `NAME-0001.jsonl`, `NAME-0002.jsonl`, and so on.
Every line begins with its step, and steps never decrease. A run that resumes from a checkpoint of
step S writes the lines after S again, so `cut` first removes these lines and an incomplete last
line. Calling `cut` a second time with the same step has no effect.

Logs are untrusted when they are read: parsing a line either returns a row or raises `ValueError` or
`RecursionError`.
"""

import errno
import json
import logging
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any

from grpo_ext.common.foreign_files import (
    MOST_LINE,
    ForeignFile,
    append_plain,
    entries,
    lines_of,
    open_plain,
    size_of,
)
from grpo_ext.common.untrusted import one_line

logger = logging.getLogger(__name__)

STEP = re.compile(rb'\{"step": (\d{1,18})[,}]')
# Maximum number of invalid lines in a file. If there are more, the rest of the file is left out,
# because many invalid lines take long to parse.
MOST_SKIPPED = 10_000
# Maximum bytes kept in memory while writing fails; beyond that, the oldest lines are lost.
KEPT_BACK = 64 * 2**20
DEEPEST = 16  # maximum nesting depth of a line
FieldType = type | UnionType  # the second argument of `isinstance`


@dataclass
class JsonLines:
    """Writes one log; only one process may write to it."""

    path: Path  # the newest part, ending in `.jsonl`
    max_mb: float = 256.0  # size in MiB at which a part is closed and a new one begun
    _pending: list[bytes] = field(default_factory=list)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Append a line for each row; the first key of a row must be `step`.

        Otherwise, `cut` would remove the row's line and all lines after it. A full disk does not
        end the run: lines that cannot be written are kept in memory, and written with the next
        ones; beyond `KEPT_BACK` bytes, the oldest are dropped. Lines longer than `MOST_LINE` bytes
        are dropped with a warning.
        """
        for row in rows:
            line = encoded(row)
            if len(line) > MOST_LINE:  # no reader would accept it
                logger.warning(
                    "%s: a line for step %s was dropped, because it has %s bytes. Lines of more "
                    "than %s bytes cannot be read back.",
                    self.path,
                    row["step"],
                    f"{len(line):,}",
                    f"{MOST_LINE:,}",
                )
                continue
            self._pending.append(line)
        if not self._pending:
            return
        try:
            self._write(b"".join(self._pending))
        except OSError as error:
            self._drop_oldest()
            logger.warning(
                "%s cannot be written (%s). The run continues, keeps up to %s MiB of unwritten "
                "lines in memory, and writes them once it can. If the disk is full, free some "
                "space.",
                self.path,
                error,
                KEPT_BACK // 2**20,
            )
        else:
            self._pending = []

    def _drop_oldest(self) -> None:
        """Drop the oldest pending lines until at most `KEPT_BACK` bytes are in memory."""
        pending_bytes = sum(map(len, self._pending))
        while pending_bytes > KEPT_BACK:
            pending_bytes -= len(self._pending.pop(0))

    def sync(self) -> None:
        """Flush the newest part to disk, so that no checkpoint is ahead of the log.

        Older parts were flushed when they were closed. An error only causes a warning.
        """
        try:
            with suppress(FileNotFoundError), open_plain(self.path, self.path.parent) as file:
                os.fsync(file.fileno())
        except OSError as error:
            logger.warning(
                "%s may be incomplete on disk (%s). The run continues.", self.path, error
            )

    def cut(self, step: int) -> None:
        """Remove the lines after `step`, and everything from an incomplete or invalid line on.

        The newest part that has lines to keep is truncated (see `end_of`) and becomes
        `NAME.jsonl`. The parts after it are deleted, and those before it stay as they are.
        """
        for part in reversed(parts(self.path)):
            end = end_of(part, step)
            if end:
                os.truncate(part, end)
                os.replace(part, self.path)  # the run continues to append to it
                break
            part.unlink()

    def _write(self, lines: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = size_of(self.path, self.path.parent)
        if size >= max(1, self.max_mb * 2**20):
            closed = numbered_parts(self.path)
            number = closed[-1][0] + 1 if closed else 1  # the user may have deleted older parts
            closed_part = self.path.with_name(f"{self.path.stem}-{number:04d}.jsonl")
            self.sync()  # later calls of `sync` flush only the newest part
            os.replace(self.path, closed_part)
            size = 0
        try:
            with append_plain(self.path, self.path.parent) as file:
                while lines:
                    lines = lines[file.write(lines) :]
        except OSError:
            if size_of(self.path, self.path.parent) > size:
                os.truncate(self.path, size)  # leave no incomplete line
            raise


def parts(path: Path) -> list[Path]:
    """Return the existing files of a log, oldest first; `[]` if there are none.

    `path` is the newest part, which comes last.

    Raises:
        OSError: if the folder cannot be read or has too many entries.
    """
    files = [part for _, part in numbered_parts(path)]
    if os.path.lexists(path):
        files.append(path)
    return files


def numbered_parts(path: Path) -> list[tuple[int, Path]]:
    """Return the closed parts of a log with their numbers, oldest first; `[]` if there are none.

    Raises:
        OSError: if the folder cannot be read or has too many entries.
    """
    try:
        siblings = entries(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbered = re.compile(rf"{re.escape(path.stem)}-(\d{{4,18}})\.jsonl", re.ASCII)
    closed = []
    for sibling in siblings:
        match = numbered.fullmatch(sibling.name)
        if match is not None:
            closed.append((int(match[1]), sibling))
    return sorted(closed)


def end_of(part: Path, step: int) -> int:
    """Return the byte offset at which to truncate a part of the log.

    This is the start of the first line that has a step above `step`, is incomplete, does not begin
    with a step or is too long. If there is no such line, the result is the size of the file. It is
    0 if `part` is not a regular file, is sparse, or is a link out of its folder.

    Raises:
        OSError: if the file does not exist or cannot be read.
    """
    position = 0
    try:
        with open_plain(part, part.parent) as file:
            for line in lines_of(file, part):
                line_step = STEP.match(line)
                if not line.endswith(b"\n") or line_step is None or int(line_step[1]) > step:
                    return position
                position += len(line)
    except ForeignFile:
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return position


def read(
    path: Path,
    fields: Mapping[str, FieldType] | None = None,
    faults: list[str] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log, oldest first, without an incomplete last line.

    The log is untrusted. Lines that are not rows with `step` and `fields` of the given types are
    skipped. A file that cannot be read is left out, and so is the rest of a file after a line that
    is too long or after too many invalid lines. Numbers that are not finite, or beyond 1e100,
    become `None`.

    Args:
        path: the newest part of the log.
        fields: the fields that a row must have in addition to `step`, with their types.
        faults: once all rows have been read, receives a sentence about the skipped lines, with
            their number and the location of the first, and one about each file that is left out.
            `None` logs the sentences as warnings instead.

    Raises:
        OSError: if the folder of the log cannot be read or has too many entries.
    """
    for _, row in placed(path, fields, faults):
        yield row


def placed(
    path: Path,
    fields: Mapping[str, FieldType] | None = None,
    faults: list[str] | None = None,
    start: int = 0,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (position, row) for each valid row of a log, oldest first.

    `read` describes which rows are valid. The position is the byte offset of the row in the
    concatenation of all parts.

    Args:
        path: the newest part of the log.
        fields: the fields that a row must have in addition to `step`, with their types.
        faults: once all rows have been read, receives sentences about skipped lines and about
            files that are left out; `None` logs them as warnings.
        start: the position of the first row to yield.

    Raises:
        OSError: if the folder of the log cannot be read or has too many entries.
    """
    row_fields: dict[str, FieldType] = {"step": int, **(fields or {})}
    skipped_lines = 0
    first_skipped = ""
    part_start = 0
    sentences: list[str] = []
    for part in parts(path):
        size = size_of(part, path.parent)
        line_number = 0
        skipped_before = skipped_lines
        try:
            with open_plain(part, path.parent) as file:
                offset = min(max(0, start - part_start), size)
                line_end = part_start + file.seek(offset)
                for line in lines_of(file, part):
                    line_number += 1
                    if not line.endswith(b"\n"):
                        break
                    line_start = line_end
                    line_end += len(line)
                    try:
                        row = row_of(line, row_fields)
                    except (ValueError, RecursionError) as error:
                        skipped_lines += 1
                        if not first_skipped:
                            first_skipped = f"line {line_number} of {part} ({error})"
                            if start:
                                first_skipped = f"byte {line_start} of {path} ({error})"
                        if skipped_lines - skipped_before > MOST_SKIPPED:
                            reason = f"more than {MOST_SKIPPED:,} of its lines are not valid rows"
                            raise ForeignFile(errno.EINVAL, reason, str(part)) from None
                        continue
                    yield line_start, row
        except FileNotFoundError:  # rotated just now; its lines are read next time
            continue
        except OSError as error:
            after = f" after line {line_number}" if line_number else ""
            if start and line_number:
                after = f" after byte {line_end} of {path}"
            sentences.append(f"{part} is left out{after} ({error}).")
        part_start += size
    if skipped_lines == 1:
        sentences.append(f"1 line was skipped: {first_skipped}.")
    elif skipped_lines:
        sentences.append(f"{skipped_lines} lines were skipped; the first is {first_skipped}.")
    for sentence in map(one_line, sentences):
        if faults is None:
            logger.warning("%s", sentence)
        else:
            faults.append(sentence)


def encoded(row: dict[str, Any]) -> bytes:
    """Return a row as one line of strict JSON in UTF-8, with a line break.

    Numbers that are not finite become null and are listed under `not_finite`.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:  # replace non-finite numbers only if needed, because most rows have none
        not_finite: dict[str, str] = {}
        row = {**finite(row, "", not_finite), "not_finite": not_finite}
        text = json.dumps(row, ensure_ascii=False, allow_nan=False)
    # Lone surrogates become JSON escapes.
    return text.encode("utf-8", "backslashreplace") + b"\n"


def plain(value: Any) -> Any:
    """Convert a NumPy or torch scalar to a Python number, and any other value to a string."""
    try:
        return value.item()
    except Exception:  # an array, or not a number
        return str(value)


def finite(value: object, path: str, not_finite: dict[str, str]) -> Any:
    """Return a copy of `value` with `None` in place of numbers that are not finite.

    Args:
        value: a value to be written as JSON. NumPy and torch scalars in it become Python numbers,
            tuples become lists, and anything else that JSON does not support becomes a string.
        path: the path of `value` in the row, such as `rewards/a`; empty for the row itself.
        not_finite: receives the replaced numbers as strings, by path.
    """
    prefix = f"{path}/" if path else ""
    if isinstance(value, dict):
        return {key: finite(entry, f"{prefix}{key}", not_finite) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [finite(entry, f"{prefix}{i}", not_finite) for i, entry in enumerate(value)]
    if not isinstance(value, str | int | float | bool | None):
        value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        not_finite[path] = str(value)
        return None
    return value


def row_of(line: bytes | str, fields: Mapping[str, FieldType] | None = None) -> dict[str, Any]:
    """Parse JSON text as a mapping and, if `fields` is given, check that it is a row of a log.

    Numbers that are not finite, or beyond 1e100, become `None`.

    Args:
        line: the JSON text.
        fields: the fields that the row must have, with their types.

    Raises:
        ValueError: if the text is not a JSON mapping, a field is missing or has the wrong type, or
            the nesting is deeper than `DEEPEST`.
        RecursionError: if the nesting is too deep for Python's JSON parser.
    """
    row = json.loads(
        line,
        parse_int=number_of,
        parse_float=number_of,
        parse_constant=lambda _: None,
    )
    if not isinstance(row, dict):
        raise ValueError("it is not a mapping")
    if fields:
        _check_fields(row, fields)
    _check_depth(row)
    return row


def _check_fields(row: dict[str, Any], fields: Mapping[str, FieldType]) -> None:
    for name, field_type in fields.items():
        if name not in row or not isinstance(row[name], field_type):
            raise ValueError(f"its {name!r} is missing or has the wrong type")
    for name in ("not_finite", "rewards"):
        if not isinstance(row.get(name, {}), dict):
            raise ValueError(f"its {name!r} is not a mapping")
    for score in row.get("rewards", {}).values():
        if not isinstance(score, int | float | None):
            raise ValueError("an entry of its 'rewards' is neither a number nor null")


def _check_depth(row: dict[str, Any]) -> None:
    level: list[Any] = [row]
    for _ in range(DEEPEST):
        children: list[Any] = []
        for container in level:
            children += container.values() if isinstance(container, dict) else container
        level = [child for child in children if isinstance(child, dict | list)]
    if level:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")


def number_of(text: str) -> float | None:
    """Parse a number from JSON; return `None` if it is not finite or is beyond 1e100.

    The result is an `int` if the number is written as one and is below 2**53 in magnitude, so that
    every JSON reader represents it exactly. Otherwise, the result is a `float`.
    """
    number = float(text)
    if not abs(number) <= 1e100:
        return None
    if text.lstrip("-").isdigit() and abs(number) < 2**53:
        return int(text)
    return number
