"""Write what a part has found to the disk at once.

Each part has a JSON file, and adds lines to a table that all parts share.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

TABLE = "table.md"
HEAD = (
    "| part | what | predicted | measured | unit | asked for | by the formula |\n"
    "|---|---|---|---|---|---|---|\n"
)
Bound = tuple[str, float]  # ">=" or "<=", and the number


def kept(value: float, bound: Bound) -> bool:
    """Return whether a figure is within its bound; NaN is never within one."""
    return value >= bound[1] if bound[0] == ">=" else value <= bound[1]


def shown(value: Any) -> str:
    """Format a figure for the table: with three digits, or as an integer from 1,000 on."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return "" if value is None else str(value)
    return f"{value:,.0f}" if abs(value) >= 1000 or value == int(value) else f"{value:.3g}"


class Sheet:
    """The figures of a part; after an interrupted call, the next one continues them.

    `status` is `None` until the part has ended; then it is "done", "failed", "over its limit" or
    "left out".
    """

    def __init__(self, folder: Path, part: str):
        self.folder, self.part = folder, part
        self.path = folder / f"{part}.json"
        self.data: dict[str, Any] = {"part": part, "status": None, "rows": {}}
        if self.path.exists():
            self.data = json.loads(self.path.read_text(encoding="utf-8"))

    def has(self, what: str) -> bool:
        """Whether a figure has been measured."""
        return "measured" in self.data["rows"].get(what, {})

    def predict(
        self, what: str, value: float | str, unit: str, formula: str, bound: Bound | None = None
    ) -> None:
        """Record the prediction of a figure before it is measured, and its bound."""
        row = {"predicted": value, "unit": unit, "formula": formula, "bound": bound}
        self.data["rows"][what] = row
        self.save()
        asked = f", asked for {bound[0]} {bound[1]:g}" if bound else ""
        print(
            f"{self.part}: {what}: predicted {shown(value)} {unit} = {formula}{asked}", flush=True
        )

    def measured(self, what: str, value: float | str, **more: Any) -> None:
        """Record a figure that was predicted; `more` is written only to the JSON file."""
        row = self.data["rows"][what]
        row |= {"measured": value, **more}
        if row["bound"] is not None:
            row["kept"] = kept(float(value), tuple(row["bound"]))
        self.save()
        missed = " (missed)" if row.get("kept") is False else ""
        asked = f"{row['bound'][0]} {row['bound'][1]:g}{missed}" if row["bound"] else ""
        self.line(what, shown(row["predicted"]), shown(value), row["unit"], asked, row["formula"])
        print(f"{self.part}: {what}: measured {shown(value)} {row['unit']}{missed}", flush=True)

    def fact(self, what: str, value: float | str, unit: str = "", **more: Any) -> None:
        """Record a figure without a prediction."""
        self.data["rows"][what] = {"measured": value, "unit": unit, **more}
        self.save()
        self.line(what, "", shown(value), unit, "", "")
        print(f"{self.part}: {what}: {shown(value)} {unit}", flush=True)

    def end(self, status: str | None, seconds: float, limit: float, last: str = "") -> None:
        """Record how the part ended.

        `last` holds the last lines of its output if it failed.
        """
        self.data |= {"status": status, "seconds": round(seconds, 1), "last": last}
        self.save()
        self.line(
            "the whole part",
            f"at most {limit:.0f}",
            f"{seconds:.0f}",
            "s",
            status or "cut off",
            "its time limit",
        )

    def missed(self) -> list[str]:
        """Name the bounds that were missed, and the part itself if it failed."""
        wrong = [
            f"{self.part}: {what}"
            for what, row in self.data["rows"].items()
            if row.get("kept") is False
        ]
        failed = self.data["status"] in ("failed", "over its limit")
        return wrong + ([f"{self.part} {self.data['status']}"] if failed else [])

    def save(self) -> None:
        """Replace the JSON file atomically, so that after a kill the last complete one is left."""
        self.folder.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(self.data, indent=1) + "\n", encoding="utf-8")
        os.replace(new, self.path)

    def line(self, *cells: str) -> None:
        """Append a line to the table."""
        table = self.folder / TABLE
        begun = table.exists()
        with table.open("a", encoding="utf-8") as file:
            file.write(
                ("" if begun else HEAD)
                + "| "
                + " | ".join(x.replace("|", "/") for x in (self.part, *cells))
                + " |\n"
            )
