"""Where time goes: seconds per phase, tokens per second, FLOPs utilisation, peak memory.

A phase that begins within another one interrupts it, so no second is counted twice. The metrics are
those of the first rank.
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from grpo_ext.scoring.rate import costs, matrix_rate, needed, wait_for
from grpo_ext.step.records import Scored
from grpo_ext.trainer.port import Trainer

LOGGED = ("time/", "throughput/", "memory/")  # prefixes of the metric names
BESIDE = ("evaluation", "checkpoint")  # phases that are not part of a step


class Phases(TrainerCallback):
    """A stopwatch for the phases of a run, used as `with phases("rewards"):`.

    The phases are `generation`, `sync` (weights to the sampler), `waiting` (for completions that
    were requested ahead), `rewards`, `scoring` (old and reference log-probs), `train` (forward and
    backward), `optimizer`, `evaluation` and `checkpoint`.
    """

    def __init__(self, trainer: Trainer):
        self.state = trainer.state
        self.device = trainer.accelerator.device
        mixed = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(
            trainer.accelerator.mixed_precision
        )
        self.dtype = mixed or trainer.model.dtype
        self.costs = costs(trainer.accelerator.unwrap_model(trainer.model))
        self._stack: list[str] = []
        self._since = 0.0
        self._restart()

    def _restart(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._needed: Any = 0  # a tensor (3,), see `needed`
        self._begun = time.perf_counter()
        self._step = self.state.global_step
        self._tokens = self.state.num_input_tokens_seen

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Count the time spent in the context towards this phase."""
        self._begin(name)
        try:
            yield
        finally:
            self._end()

    def _begin(self, name: str) -> None:
        self._count()
        self._stack.append("evaluation" if "evaluation" in self._stack else name)

    def _end(self) -> None:
        self._count()
        self._stack.pop()

    def _count(self) -> None:
        wait_for(self.device.type)
        now = time.perf_counter()
        if self._stack:
            self.seconds[self._stack[-1]] += now - self._since
        self._since = now

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.state = state  # `train` creates a new state
        self._restart()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._begin("optimizer")

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._end()

    def runs(self, rows: Scored) -> None:
        """Count a micro-batch that is trained on."""
        self._needed = self._needed + needed(rows)

    def figures(self) -> dict[str, float]:
        """Return the metrics since the last call; empty if no step has ended since.

        `time/PHASE`: seconds per optimizer step. `throughput/tokens_per_second`: prompt and
        completion tokens of all ranks per second, excluding evaluations and checkpoints.
        `throughput/share_of_rate`: the operations that training needs (see `grpo_ext.scoring.rate`)
        per second of `train`, as a share of the measured rate of matrix products.
        `memory/peak_gib`: the peak memory allocated on the GPU since the last call; on a CPU or an
        Apple GPU, the peak memory of the process.
        """
        steps = self.state.global_step - self._step
        if steps <= 0:
            return {}
        seconds = time.perf_counter() - self._begun - sum(self.seconds[name] for name in BESIDE)
        figures = {f"time/{name}": value / steps for name, value in self.seconds.items() if value}
        tokens = self.state.num_input_tokens_seen - self._tokens
        figures["throughput/tokens_per_second"] = tokens / seconds
        if torch.is_tensor(self._needed):
            rate = float(self.costs @ self._needed) / self.seconds["train"]
            figures["throughput/share_of_rate"] = rate / matrix_rate(self.device.type, self.dtype)
        figures["memory/peak_gib"] = peak_bytes(self.device.type) / 2**30
        self._restart()
        return figures


def peak_bytes(device: str) -> int:
    """Return the peak GPU memory allocated since the last call, in bytes.

    On a CPU or an Apple GPU, where torch does not track it, return the peak memory of this process
    since its start.
    """
    if device in ("cpu", "mps"):
        import resource  # not on Windows

        most_resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most_resident if sys.platform == "darwin" else 1024 * most_resident
    peak = torch.accelerator.max_memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    return peak
