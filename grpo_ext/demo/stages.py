"""Stages of a long job that can be stopped and started again: what is finished is not redone, unless what it was made from
changed."""

import hashlib
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich import get_console, print

from grpo_ext.common.files import write_atomically


@dataclass
class Stages:
    """Runs stages in order and remembers, in `folder/stages.json`, which are done.

    A stage's fingerprint covers its own inputs and the fingerprints of all stages before it, so a changed recipe redoes
    what depends on it and nothing else.
    """

    folder: Path
    total: int  # number of stages, for the headings
    seconds: dict[str, float] = field(default_factory=dict)
    _chain: str = ""

    def run(self, name: str, inputs: Any, work: Callable[[bool], None]) -> None:
        """Run `work` unless this stage is done.

        `inputs` are what it is made from, as JSON values. `work` is told whether it was begun before with the same inputs, and
        may go on from there.
        """
        self._chain = hashlib.sha256(json.dumps([self._chain, name, inputs], sort_keys=True).encode()).hexdigest()
        try:
            done = json.loads((self.folder / "stages.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            done = {}
        number = len(self.seconds) + 1
        before = done.get(name, {})
        begun = before.get("fingerprint") == self._chain
        if begun and before.get("done"):
            self.seconds[name] = before["seconds"]
            print(f"[dim]{number}/{self.total} {name}: done before, in {before['seconds']:.0f} s[/dim]")
            return
        get_console().rule(f"{number}/{self.total} {name}", align="left")
        self._write({**done, name: {"fingerprint": self._chain, "done": False}})
        start = time.perf_counter()
        work(begun)
        self.seconds[name] = time.perf_counter() - start
        seconds = round(self.seconds[name], 1)
        self._write({**done, name: {"fingerprint": self._chain, "done": True, "seconds": seconds}})
        print(f"[green]{name}: {self.seconds[name]:.0f} s[/green]")

    def _write(self, done: dict[str, Any]) -> None:
        write_atomically(self.folder / "stages.json", json.dumps(done, indent=2) + "\n")
