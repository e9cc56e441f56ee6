"""Files of JSON lines, and what a trainer has logged."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import Trainer


def json_rows(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of JSON lines."""
    return list(map(json.loads, path.read_text(encoding="utf-8").splitlines()))


def write_json_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows to a file of JSON lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def entries_with(trainer: Trainer, key: str) -> list[dict[str, Any]]:
    """Return the entries of a trainer's log that have a key, in the order of the steps."""
    return [entry for entry in trainer.state.log_history if key in entry]


def metric_values(trainer: Trainer, key: str) -> list[Any]:
    """Return the logged values of a metric, in the order of the steps."""
    return [entry[key] for entry in entries_with(trainer, key)]
