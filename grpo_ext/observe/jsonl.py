"""A log of JSON lines that survives crashes: whole lines, parts of bounded size, cut back where a
run resumes.

The newest lines are in `NAME.jsonl`, older ones in `NAME-0001.jsonl`, `NAME-0002.jsonl`, and so on.
Every line begins with its step, and steps never fall from one line to the next. A run that resumes
from a checkpoint of step S writes the lines after S again, so `cut` removes them and a half-written
last line. A second `cut` changes nothing.
"""

import errno
import json
import logging
import math
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
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
DEEPEST = 16  # levels of a line's nesting
# bytes kept in memory while the disk fails; beyond them the oldest lines are lost
KEPT_BACK = 64 * 2**20


@dataclass
class JsonLines:
    """One log, written by one process."""

    path: Path  # of the newest part, ending in `.jsonl`
    max_mb: float = 256.0  # size in MiB at which a part is closed and the next one begun
    _pending: list[bytes] = field(default_factory=list)

    def append(self, rows: list[dict[str, Any]]) -> None:
        """Add a line for each row; the first key of a row is `step`.

        A full disk does not end the run: lines that cannot be written stay in memory and are
        written with the next ones.
        """
        for row in rows:
            line = encoded(row)
            if len(line) <= MOST_LINE:
                self._pending.append(line)
            else:  # no reader would accept it
                logger.warning(
                    "%s: a line of step %s is left out: it would have %s bytes, and at most %s "
                    "are read.",
                    self.path,
                    row["step"],
                    f"{len(line):,}",
                    f"{MOST_LINE:,}",
                )
        if not self._pending:
            return
        try:
            self._write(b"".join(self._pending))
            self._pending = []
        except OSError as error:
            total = sum(map(len, self._pending))
            while total > KEPT_BACK:
                total -= len(self._pending.pop(0))
            how = "The run goes on, and tries again with the next lines; make room on that disk."
            logger.warning("%s cannot be written (%s). %s", self.path, error, how)

    def sync(self) -> None:
        """Flush the log to the disk, so that no checkpoint is newer than its log. A failure is a
        warning.
        """
        try:
            with suppress(FileNotFoundError), open_plain(self.path, self.path.parent) as file:
                os.fsync(file.fileno())
        except OSError as error:
            logger.warning(
                "%s may not have reached the disk (%s). The run goes on.", self.path, error
            )

    def cut(self, step: int) -> None:
        """Remove all lines after `step` and a last line that is not whole."""
        for part in reversed(parts(self.path)):
            if keep := end_of(part, step):
                os.truncate(part, keep)
                os.replace(part, self.path)  # the run appends to it again
                break
            part.unlink()

    def _write(self, data: bytes) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        size = size_of(self.path, self.path.parent)
        if size >= max(1, self.max_mb * 2**20):
            os.replace(
                self.path,
                self.path.with_name(f"{self.path.stem}-{len(parts(self.path)):04d}.jsonl"),
            )
            size = 0
        try:
            with append_plain(self.path, self.path.parent) as file:
                while data:
                    data = data[file.write(data) :]
        except OSError:
            if size_of(self.path, self.path.parent) > size:
                os.truncate(self.path, size)  # no half line
            raise


def encoded(row: dict[str, Any]) -> bytes:
    """Return a row as one line of strict JSON. Numbers that are not finite become null and are
    named under `not_finite`.
    """
    try:
        text = json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:  # looked for only then: most rows have none, and every sample is written
        found: dict[str, str] = {}
        row = finite(row, "", found)
        text = json.dumps({**row, "not_finite": found}, ensure_ascii=False, allow_nan=False)
    return (
        text.encode("utf-8", "backslashreplace") + b"\n"
    )  # a lone surrogate becomes its JSON escape


def plain(value: Any) -> Any:
    """Return a number of numpy or torch as a Python number, and any other value as text."""
    try:
        return value.item()
    except Exception:  # an array, or not a number at all
        return str(value)


def finite(value: Any, place: str, found: dict[str, str]) -> Any:
    """Return `value` with `None` for numbers that are not finite, and note these in `found` by
    place, such as `rewards/a`.
    """
    if isinstance(value, dict):
        return {
            key: finite(part, f"{place}/{key}".lstrip("/"), found) for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [finite(part, f"{place}/{i}".lstrip("/"), found) for i, part in enumerate(value)]
    if not isinstance(value, str | int | float | bool | None):
        value = plain(value)
    if isinstance(value, float) and not math.isfinite(value):
        found[place] = str(value)
        return None
    return value


def parts(path: Path) -> list[Path]:
    """Return the files of a log, oldest first."""
    try:
        inside = entries(path.parent)
    except (FileNotFoundError, NotADirectoryError):
        return []
    numbered = re.compile(rf"{re.escape(path.stem)}-(\d{{4,18}})\.jsonl", re.ASCII)
    older = {part: match for part in inside if (match := numbered.fullmatch(part.name))}
    return [
        *sorted(older, key=lambda part: int(older[part][1])),
        *([path] if path in inside else []),
    ]


def end_of(part: Path, step: int) -> int:
    """Return where the first line begins that is later than `step` or not whole; without such a
    line, the file's size.

    A file that is not the log's own, such as a link out of its folder, has no such lines.
    """
    position = 0
    try:
        with open_plain(part, part.parent) as file:
            for line in lines_of(file, part):
                found = STEP.match(line)
                if not line.endswith(b"\n") or found is None or int(found[1]) > step:
                    return position
                position += len(line)
    except ForeignFile:
        pass
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
    return position


def read(
    path: Path, fields: dict[str, Any] | None = None, faults: list[str] | None = None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of a log, oldest first. The log may still be written: a last line that is not
    whole is left out.

    A log is untrusted. A line that is not a row, with `step` and `fields` of these types, is
    skipped. One sentence says how many there were and where the first one is; it goes to `faults`,
    or with `None` to the log of the process. A file of the log that cannot be read, and the rest of
    one after a line that is too long, are left out with a sentence each. A number that is not
    finite, or beyond 1e100, becomes `None`.
    """
    for _, row in placed(path, fields, faults):
        yield row


def placed(
    path: Path,
    fields: dict[str, Any] | None = None,
    faults: list[str] | None = None,
    start: int = 0,
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of `read`, each with its place: the bytes before it in all parts. `start`: the
    place of the first.
    """
    bad = 0
    first = ""
    begin = 0
    sentences: list[str] = []
    for part in parts(path):
        size = size_of(part, path.parent)
        number = 0
        try:
            with open_plain(part, path.parent) as file:
                place = begin + file.seek(min(max(0, start - begin), size))
                for line in lines_of(file, part):
                    number += 1
                    if not line.endswith(b"\n"):
                        break
                    here = place
                    place += len(line)
                    try:
                        row = row_of(line, {"step": int, **(fields or {})})
                    except (ValueError, RecursionError) as error:
                        where = f"byte {here} of {path}" if start else f"line {number} of {part}"
                        bad += 1
                        first = first or f"{where} ({error})"
                        continue
                    yield here, row
        except FileNotFoundError:  # it was rotated this moment; its lines are read next time
            continue
        except OSError as error:
            after = f" after line {number}" if number else ""
            sentences.append(f"{part} is left out{after} ({error}).")
        begin += size
    if bad:
        sentences.append(
            f"{bad} {'line was' if bad == 1 else 'lines were'} skipped, the first is {first}."
        )
    for sentence in map(one_line, sentences):
        logger.warning("%s", sentence) if faults is None else faults.append(sentence)


def row_of(line: bytes | str, fields: dict[str, Any] | None = None) -> dict[str, Any]:
    """Parse JSON as a mapping, and with `fields` as a row.

    `ValueError` if it is not a mapping, lacks a field, or is nested too deeply.
    """
    row = json.loads(
        line, parse_int=number_of, parse_float=number_of, parse_constant=lambda _: None
    )
    if not isinstance(row, dict):
        raise ValueError("it is not a mapping")
    for name, kind in (fields or {}).items():
        if name not in row or not isinstance(row[name], kind):
            raise ValueError(f"its {name!r} is missing or of another type")
    for name, kind in (("not_finite", object), ("rewards", int | float | None)) if fields else ():
        inner = row.get(name, {})
        if not isinstance(inner, dict) or not all(
            isinstance(value, kind) for value in inner.values()
        ):
            raise ValueError(f"its {name!r} is not a mapping, or has values of another type")
    level: list[Any] = [row]
    for _ in range(DEEPEST):
        parts_of = [x.values() if isinstance(x, dict) else x for x in level]
        level = [part for some in parts_of for part in some if isinstance(part, dict | list)]
    if level:
        raise ValueError(f"it is nested deeper than {DEEPEST} levels")
    return row


def number_of(text: str) -> float | None:
    """Return a number of a log: an integer if it is written as one and every program can hold
    it.
    """
    value = float(text)
    if not abs(value) <= 1e100:
        return None
    return int(text) if text.lstrip("-").isdigit() and abs(value) < 2**53 else value
