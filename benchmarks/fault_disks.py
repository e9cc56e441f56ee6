"""Simulate file systems that are full or read-only.

Small file systems in memory are mounted such that only the process of one trial sees them.
"""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from grpo_ext import GRPOExtTrainer
from grpo_ext.preflight.machine import check_disk
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.problems import Findings
from grpo_ext.trainer.manifest import newest_whole
from tests.support.fault_runs import Bench, KillAt, Outcome, left_by, lost, make, start, wait


class FillsTheDisk(TrainerCallback):
    """Fills the file system after step 4, and makes room again after step 9."""

    def __init__(self, trainer: GRPOExtTrainer):
        self.trainer, self.out = trainer, Path(trainer.args.output_dir)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        ballast = self.out.parent / "ballast"
        if state.global_step == 4:
            try:
                with ballast.open("wb", buffering=0) as file:
                    while True:
                        file.write(bytes(4096))
            except OSError:
                pass
        if state.global_step == 9:
            found = {"whole": newest_whole(self.out), "error": self.trainer.save_error}
            ballast.unlink()
            (self.out / "during.json").write_text(json.dumps(found))


def full_disk(bench: Bench) -> Outcome:
    """A file system of 16 MiB, visible only to this trial's process."""
    out = bench.folder / "full"
    disk = bench.folder / "disk"
    disk.mkdir()

    def body() -> None:
        small_file_system(disk)
        trainer = make(bench.model, disk / "run")
        trainer.add_callback(FillsTheDisk(trainer))
        trainer.train(True)
        shutil.copytree(disk / "run", out / "run")

    if wait(start(1, out, body)) == [3]:
        return "not tried: no file system can be mounted here", "", True
    during = json.loads((out / "run" / "during.json").read_text())
    gone = bench.lost(out / "run")
    kept = Path(during["whole"] or "").name == "checkpoint-4" and "space" in (during["error"] or "")
    told = (
        "five checkpoints were not written and logs kept in memory; checkpoint-4 was kept; with "
        "room again it went on saving"
    )
    return told, gone, kept and gone == "nothing"


def read_only(bench: Bench) -> Outcome:
    """A checkpoint on a read-only file system, and an `output_dir` there."""
    old, _ = bench.run("old", callbacks=(KillAt(6),))
    out = bench.folder / "read"
    disk = bench.folder / "locked"
    disk.mkdir()

    def body() -> None:
        small_file_system(disk)
        shutil.copytree(old / "checkpoint-5", disk / "checkpoint-5")
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        findings = Findings()
        check_disk(
            load_recipe(
                None, {"model_name_or_path": str(bench.model), "output_dir": str(disk)}
            ).flat,
            findings,
        )
        (out / "told.txt").write_text("\n".join(problem.message for problem in findings.problems))
        make(bench.model, out).train(str(disk / "checkpoint-5"))

    if (codes := wait(start(1, out, body))) == [3]:
        return "not tried: no file system can be mounted here", "", True
    told = "cannot be written, because" in (out / "told.txt").read_text()
    gone = [
        part for part in lost(left_by(out), bench.wanted[1]) if part in ("weights", "optimizer")
    ]  # logs began anew
    happened = (
        "as output_dir it was refused before the model was loaded; as the checkpoint it served"
    )
    return happened, ", ".join(gone) or "nothing", codes == [0] and told and not gone


def small_file_system(folder: Path) -> None:
    """Mount 16 MiB of memory on a folder, for this process only.

    Exit with 3 if that is not allowed.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts = 0x00020000
    new_user = 0x10000000
    if libc.unshare(new_mounts) and libc.unshare(new_user | new_mounts):
        sys.exit(3)
    subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True)
    if subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True
    ).returncode:
        sys.exit(3)
