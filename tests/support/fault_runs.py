"""A small run with every stateful feature on, in processes that can be killed, and the files that
it leaves.

The processes are forks of one that has imported torch, so that a trial takes seconds. The faults
are real: SIGKILL, a full file system, a damaged file.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import TrainerCallback

from grpo_ext import GRPOExtTrainer
from grpo_ext.observe import jsonl
from grpo_ext.tasks.countdown import Countdown
from grpo_ext.tiny.demonstrations import countdown_demonstrations
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import build_tokenizer
from grpo_ext.trainer.manifest import checkpoints
from grpo_ext.trainer.phases import LOGGED
from tests.support.tiny_run import tiny_arguments, tiny_trainer

STEPS = 16  # two epochs of 8: two passes over each of two generations, two steps a pass
CLOCKS = ("time", "per_second", "runtime", "speed", "train_loss", *LOGGED)
Outcome = tuple[str, str, bool]  # what happened, what was lost, whether that is expected
LIMIT = 300.0  # seconds that a trial may take


def build_start(folder: Path) -> Path:
    """A folder with an untrained model of 0.1 million parameters and its tokenizer."""
    task = Countdown(
        num_problems=200, min_numbers=3, max_numbers=3, max_number=9, operators="+-", max_target=30
    )
    rows = countdown_demonstrations(task, 200)
    tokenizer = build_tokenizer(
        [message["content"] for row in rows for part in row.values() for message in part]
    )
    tokenizer.save_pretrained(folder)
    build_model(
        tokenizer, hidden_size=64, intermediate_size=128, max_position_embeddings=2048
    ).save_pretrained(folder)
    return folder


def letters(completions: list[str], **columns: Any) -> list[float]:
    """1 or 0 by the text, so that some groups have no signal."""
    return [float(sum(map(ord, text)) % 5 == 0) for text in completions]


def make(
    model: Path, out: Path, reward: Callable[..., Any] = letters, **settings: Any
) -> GRPOExtTrainer:
    """Two epochs with accumulation, half-used generations, two passes over each, refill, an
    adaptive curriculum, a changing reference and evaluation."""
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    rows = [{"prompt": f"Use {a}, {a + 1}, 3 to make {a + 4}."} for a in range(1, 8 * ranks + 1)]
    everything = {
        "num_train_epochs": 2,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "max_completion_length": 6,
        "group_filter": "refill",
        "curriculum": "adaptive",
        "beta": 0.1,
        "sync_ref_model": True,
        "ref_model_sync_steps": 3,
        "max_staleness": 4,
        "eval_strategy": "steps",
        "eval_steps": 3,
        "eval_temperature": 0.8,
        "learning_rate": 1e-2,
        "logging_steps": 2,
        "save_strategy": "steps",
        "save_steps": 1,
        "save_total_limit": 3,
    }
    return tiny_trainer(
        model,
        [reward],
        tiny_arguments(out, **{**everything, **settings}),
        Dataset.from_list(rows),
        eval_dataset=Dataset.from_list(rows[:3]),
    )


def start(ranks: int, out: Path, body: Callable[[], None]) -> list[int]:
    """Fork `ranks` processes that run `body` and exit, with output in `out/rank-N.log`.

    Return their process ids.
    """
    out.mkdir(parents=True, exist_ok=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return [_fork(rank, ranks, port, out, body) for rank in range(ranks)]


def _fork(rank: int, ranks: int, port: int, out: Path, body: Callable[[], None]) -> int:
    sys.stdout.flush()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        file = os.open(out / f"rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(file, 1)
        os.dup2(file, 2)
        sys.stdout = sys.stderr = os.fdopen(
            file, "w", buffering=1, errors="backslashreplace"
        )  # also if they were captured
        if ranks > 1:
            place: dict[str, Any] = {
                "RANK": rank,
                "LOCAL_RANK": rank,
                "WORLD_SIZE": ranks,
                "LOCAL_WORLD_SIZE": ranks,
            }
            place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "ACCELERATE_USE_CPU": "true"}
            os.environ |= {key: str(value) for key, value in place.items()}
        body()
        code = 0
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if isinstance(error.code, str):
            print(error.code)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def wait(pids: list[int], kill_after: float | None = None) -> list[int]:
    """Return the exit codes of processes, minus the signal for a killed one. If one dies, the
    others are killed, as torch does.

    Args:
        pids: from `start`.
        kill_after: seconds after which they are killed.
    """
    codes: dict[int, int] = {}
    began = time.monotonic()
    killed = False
    while len(codes) < len(pids):
        for pid in [pid for pid in pids if pid not in codes]:
            done, status = os.waitpid(pid, os.WNOHANG)
            if done:
                codes[pid] = os.waitstatus_to_exitcode(status)
        age = time.monotonic() - began
        failed = any(codes.values()) or age > LIMIT or (kill_after is not None and age > kill_after)
        if failed and not killed:
            time.sleep(0.0 if kill_after else 1.0)  # the others may be about to exit
            killed = True
            for pid in [pid for pid in pids if pid not in codes]:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [codes[pid] for pid in pids]


class KillAt(TrainerCallback):
    """SIGKILL on one rank at the end of a step.

    Before it is logged and saved, or with `saved` right after that.
    """

    def __init__(self, step: int, rank: int = 0, saved: bool = False):
        self.step, self.rank, self.saved = step, rank, saved

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.saved:
            self._kill(args, state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.saved:
            self._kill(args, state)

    def _kill(self, args: Any, state: Any) -> None:
        if state.global_step == self.step and args.process_index == self.rank:
            os.kill(os.getpid(), signal.SIGKILL)


def left_by(out: Path) -> dict[str, Any]:
    """Return the result of a run.

    Weights and optimizer of its last checkpoint, and its logs without clocks.
    """
    last = checkpoints(out)[-1]
    return {
        "weights": load_file(last / "model.safetensors"),
        "optimizer": torch.load(last / "optimizer.pt")["state"],
        "metrics": list(map(timeless, jsonl.read(out / "metrics.jsonl"))),
        "samples": [json.dumps(timeless(row)) for row in jsonl.read(out / "samples.jsonl")],
    }


def timeless(line: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in line.items() if not any(clock in key for clock in CLOCKS)}


def lost(found: dict[str, Any], wanted: dict[str, Any]) -> list[str]:
    """Return which parts of the expected result differ, bit for bit."""
    different = [part for part in ("metrics", "samples") if found[part] != wanted[part]]
    for part in ("weights", "optimizer"):
        try:
            torch.testing.assert_close(found[part], wanted[part], rtol=0, atol=0)
        except AssertionError:
            different.append(part)
    return different


def finite(out: Path) -> bool:
    return len(checkpoints(out)) > 0 and all(
        p.isfinite().all() for p in left_by(out)["weights"].values()
    )


def last_metrics(out: Path) -> dict[str, Any]:
    return [line for line in jsonl.read(out / "metrics.jsonl") if "loss" in line][-1]


@dataclass
class Bench:
    """The folder of the trials, their model, and the results of undisturbed runs by number of
    ranks.
    """

    folder: Path
    model: Path
    wanted: dict[int, dict[str, Any]]

    def run(
        self, name: str, ranks: int = 1, callbacks: tuple[Any, ...] = (), **settings: Any
    ) -> tuple[Path, list[int]]:
        """Continue the trial `name`, or begin it."""
        out = self.folder / name

        def body() -> None:
            trainer = make(self.model, out, **settings)
            for callback in callbacks:
                trainer.add_callback(callback(trainer) if isinstance(callback, type) else callback)
            trainer.train(True)

        codes = wait(start(ranks, out, body))
        if any(code > 0 for code in codes):
            print((out / "rank-0.log").read_text()[-2000:], file=sys.stderr)
        return out, codes

    def lost(self, out: Path, ranks: int = 1) -> str:
        return ", ".join(lost(left_by(out), self.wanted[ranks])) or "nothing"


def quiet() -> None:
    """Reduce the output: a trial is judged by its files.

    Freeze the objects that all trials inherit.
    """
    gc.collect()
    gc.freeze()
    logging.disable(logging.NOTSET)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    torch.set_num_threads(1)


def work_folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="grpo_ext-faults-")
