"""The logs of a run as parquet, for pandas, DuckDB, Spark."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from grpo_ext.observe.jsonl import parts, read
from grpo_ext.observe.read_run import find_folder
from grpo_ext.observe.run_log import METRICS, SAMPLES

ROWS_AT_ONCE = 10_000


def export_parquet(path: Path) -> list[Path]:
    """Write `metrics.parquet` and `samples.parquet` beside the logs of a run; returns the files written.

    Each reward is a column `rewards/NAME`; prompts and the data set's columns are JSON text.
    """
    folder = find_folder(path)
    written = []
    for name in (METRICS, SAMPLES):
        if parts(folder / name):
            written.append(folder / name.replace(".jsonl", ".parquet"))
            write_table(folder / name, written[-1])
    return written


def write_table(log: Path, out: Path) -> None:
    """One log as one file, read twice: for its columns, then for its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([])
    for rows in batches(log):
        schema = pa.unify_schemas([schema, pa.Table.from_pylist(rows).schema], promote_options="permissive")
    # a column without a single value has no type of its own
    schema = pa.schema([pa.field(f.name, pa.float64() if pa.types.is_null(f.type) else f.type) for f in schema])
    temporary = out.with_name(f".{out.name}.part")
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        for rows in batches(log):
            writer.write_table(pa.Table.from_pylist(rows, schema=schema))
    temporary.replace(out)


def batches(log: Path) -> Iterator[list[dict[str, Any]]]:
    """Flat rows, so many at once, each with every column that any of them has."""
    rows = map(flat, read(log))
    while some := list(islice(rows, ROWS_AT_ONCE)):
        keys = dict.fromkeys(key for row in some for key in row)
        yield [{key: row.get(key) for key in keys} for row in some]


def flat(row: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in row.items():
        if key == "rewards":
            found |= {f"rewards/{name}": None if v is None else float(v) for name, v in value.items()}
        elif isinstance(value, dict | list) or (key == "prompt"):
            found[key] = json.dumps(value, ensure_ascii=False)
        elif isinstance(value, int | float) and not isinstance(value, bool) and key not in ("step", "group", "length"):
            found[key] = float(value)
        else:
            found[key] = value
    # parquet holds no lone surrogate: it becomes its escape
    return {k: v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for k, v in found.items()}
