"""The logs of a run as parquet, for pandas, DuckDB, Spark."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

from grpo_ext.observe.jsonl import parts, read
from grpo_ext.observe.read_run import find_folder
from grpo_ext.observe.run_log import METRICS, SAMPLE, SAMPLES

ROWS_AT_ONCE = 10_000
KINDS: tuple[type, ...] = (type(None), bool, int, float, str)  # a column has the last of these types among its values


def export_parquet(path: Path) -> list[Path]:
    """Write `metrics.parquet` and `samples.parquet` beside the logs of a run; return the files.

    Each reward is a column `rewards/NAME`; prompts and the data set's columns are JSON text.
    """
    folder = find_folder(path)
    logs = {folder / name: fields for name, fields in ((METRICS, {}), (SAMPLES, SAMPLE)) if parts(folder / name)}
    return [write_table(log, fields) for log, fields in logs.items()]


def write_table(log: Path, fields: dict[str, Any]) -> Path:
    """Write one log as one file. The log is read twice: for the types of its columns, then for its rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds: dict[str, type] = {}
    for row in map(flat, read(log, fields)):
        for key, value in row.items():
            kinds[key] = max(kinds.get(key, KINDS[0]), type(value), key=KINDS.index)
    out, types = log.with_suffix(".parquet"), {str: pa.string(), int: pa.int64(), bool: pa.bool_()}
    schema = pa.schema([(key, types.get(kind, pa.float64())) for key, kind in kinds.items()])
    temporary = out.with_name(f".{out.name}.part")
    rows = ({k: None if v is None else kinds[k](v) for k, v in flat(row).items()} for row in read(log, fields, []))
    with pq.ParquetWriter(temporary, schema, compression="zstd") as writer:
        while some := list(islice(rows, ROWS_AT_ONCE)):
            writer.write_table(pa.Table.from_pylist(some, schema=schema))
    temporary.replace(out)
    return out


def flat(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as numbers and texts. Lone surrogates, which parquet cannot hold, become escapes."""
    found: dict[str, Any] = {f"rewards/{name}": value for name, value in row.get("rewards", {}).items()}
    for key in (key for key in row if key != "rewards"):
        as_json = isinstance(row[key], dict | list) or key == "prompt"
        found[key] = json.dumps(row[key], ensure_ascii=False) if as_json else row[key]
    return {k: v.encode("utf-8", "backslashreplace").decode() if isinstance(v, str) else v for k, v in found.items()}
