"""Stages of a long job that can be stopped and restarted.

A finished stage runs again only if its inputs, or the inputs of an earlier stage, have changed.
"""

import hashlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich import get_console, print

from grpo_ext.common.files import write_atomically
from grpo_ext.common.foreign_files import read_text


class Stages:
    """Runs stages in order and records in `folder/stages.json` which of them are done.

    The fingerprint of a stage covers its inputs and the fingerprints of all previous stages, so
    that a changed input causes its stage and all later ones to run again.

    Args:
        folder: the folder of the job.
        total: the number of stages.
    """

    def __init__(self, folder: Path, total: int) -> None:
        self.file = folder / "stages.json"
        self.total = total
        self.fingerprint = ""  # that of the last stage
        self.seconds: dict[str, float] = {}  # by stage
        try:
            self.done = json.loads(read_text(self.file, within=folder))
        except (OSError, ValueError, RecursionError):
            self.done = {}

    def run(self, name: str, inputs: object, work: Callable[[bool], None]) -> None:
        """Run a stage, unless it is already done with the same inputs.

        Args:
            name: the name of the stage.
            inputs: the JSON values that the stage depends on.
            work: the function that does the work. Its argument is whether the stage was already
                begun with the same inputs, so that it may be continued.
        """
        covered = json.dumps([self.fingerprint, name, inputs], sort_keys=True)
        self.fingerprint = hashlib.sha256(covered.encode()).hexdigest()
        heading = f"{len(self.seconds) + 1}/{self.total} {name}"
        record = self.done.get(name, {})
        begun = record.get("fingerprint") == self.fingerprint
        if begun and record.get("done"):
            self.seconds[name] = record["seconds"]
            print(f"[dim]{heading}: already done (it took {record['seconds']:.0f} s)[/dim]")
            return
        get_console().rule(heading, align="left")
        self.record(name, done=False)
        start = time.perf_counter()
        work(begun)
        self.seconds[name] = round(time.perf_counter() - start, 1)
        self.record(name, done=True, seconds=self.seconds[name])
        print(f"[green]{name}: {self.seconds[name]:.0f} s[/green]")

    def record(self, name: str, **state: Any) -> None:
        """Write the state of a stage, with the current fingerprint, to `stages.json`."""
        self.done[name] = {"fingerprint": self.fingerprint, **state}
        write_atomically(self.file, json.dumps(self.done, indent=2) + "\n")
