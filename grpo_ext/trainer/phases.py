"""Measure where time goes: seconds per phase, tokens per second, FLOPs utilization, memory.

A phase that begins within another one interrupts it, so no second is counted twice. Times, FLOPs
utilization and memory are those of the first rank.

FLOPs utilization compares the operations that training needs with the rate at which the device
multiplies matrices. A weight takes 6 operations per token if it is trained, and 4 if it is frozen
(forward, and the gradient of its input). Attention takes 12 operations per layer, per hidden
dimension and per pair of tokens of which one attends to the other. The head counts only for
completion tokens, and each distinct prompt counts once. Padding, recomputation and scoring without
gradient do not count. (Korthikanti et al. 2022, arXiv 2205.05198, appendix A, with causal
attention.)
"""

import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from transformers import (
    PretrainedConfig,
    PreTrainedModel,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from grpo_ext.batching.cuts import equal_prompts
from grpo_ext.common.matrix_rate import matrix_rate_of, wait_for
from grpo_ext.common.run_time import BESIDE
from grpo_ext.seams.precision import MIXED
from grpo_ext.step.records import Scored
from grpo_ext.trainer.port import Trainer

LOGGED = ("time/", "throughput/", "memory/", "progress/")  # prefixes of the metric names


class Phases(TrainerCallback):
    """Callback that times the phases of a run, used as `with phases("rewards"):`.

    The phases are `environment` (waiting for the environments of episodes while nothing is
    generated), `generation`, `sync` (sending weights to the sampler), `waiting` (for completions
    that were requested ahead), `rewards`, `scoring` (old and reference log-probs), `train` (forward
    and backward), `optimizer`, `evaluation` and `checkpoint`.
    """

    def __init__(self, trainer: Trainer):
        self.state = trainer.state
        self.device = trainer.accelerator.device
        mixed = MIXED.get(trainer.accelerator.mixed_precision)
        model = trainer.accelerator.unwrap_model(trainer.model)
        self.matrix_rate = matrix_rate_of(model, self.device.type, mixed or trainer.model.dtype)
        self.costs = costs(model)
        # seconds of each evaluation and checkpoint so far
        self.lasted: dict[str, list[float]] = defaultdict(list)
        self._stack: list[str] = []
        self._since = 0.0
        self._restart()

    def _restart(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._needed: Any = 0  # a tensor (3,): the sum of the results of `needed`
        self._most_tokens = 0.0  # the most tokens that any micro-batch needed
        self._begun = self.now()
        self._step = self.state.global_step
        self._tokens = self.state.num_input_tokens_seen

    @contextmanager
    def __call__(self, name: str) -> Iterator[None]:
        """Context manager that counts the time inside it towards the phase `name`.

        Time in inner phases counts towards those instead. Within an evaluation, all time counts as
        `evaluation`.
        """
        self._begin(name)
        start = self._since
        try:
            yield
        finally:
            self._end()
            if name in BESIDE and not self._stack:
                self.lasted[name].append(self._since - start)

    def move(self, seconds: float, source: str, target: str) -> None:
        """Move seconds from a phase that has ended to another phase.

        Within an evaluation, all time counts as `evaluation`, so nothing is moved.

        Args:
            seconds: the seconds to move.
            source: the phase that they were counted towards.
            target: the phase that they belong to.
        """
        if seconds and "evaluation" not in self._stack:
            self.seconds[source] -= seconds
            self.seconds[target] += seconds

    def now(self) -> float:
        """Return the current time in seconds, by the clock that measures the phases."""
        return time.perf_counter()

    def _begin(self, name: str) -> None:
        self._count()
        self._stack.append("evaluation" if "evaluation" in self._stack else name)

    def _end(self) -> None:
        self._count()
        self._stack.pop()

    def _count(self) -> None:
        wait_for(self.device.type)
        now = self.now()
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
        """Add the counts of a micro-batch (see `needed`) to the totals for FLOPs utilization."""
        counts = needed(rows)
        self._needed = self._needed + counts
        self._most_tokens = max(self._most_tokens, float(counts[0]))

    def figures(self) -> dict[str, float]:
        """Return the metrics for the time since the last call that returned any.

        The result is empty if no step has ended since then.

        - `time/PHASE`: seconds per optimizer step.
        - `throughput/tokens_per_second`: prompt and completion tokens of all ranks per second, not
          counting the time of evaluations and checkpoints.
        - `throughput/share_of_rate`: the operations that training needs, per second of the phase
          `train`, as a share of the rate of matrix multiplication (see `MatrixRate`); missing if
          TRL computes the loss.
        - `memory/peak_gib`: the peak memory allocated on the GPU since the last call that returned
          metrics; on a CPU or an Apple GPU, the peak memory of the process since its start.
        """
        steps = self.state.global_step - self._step
        if steps <= 0:
            return {}
        seconds = self.now() - self._begun - sum(self.seconds[name] for name in BESIDE)
        figures = {f"time/{name}": value / steps for name, value in self.seconds.items() if value}
        tokens = self.state.num_input_tokens_seen - self._tokens
        figures["throughput/tokens_per_second"] = tokens / seconds
        figures["memory/peak_gib"] = peak_bytes(self.device.type) / 2**30
        if torch.is_tensor(self._needed):
            rate = float(self.costs @ self._needed) / self.seconds["train"]
            share = self.matrix_rate.share(rate, round(self._most_tokens))
            figures["throughput/share_of_rate"] = share
        self._restart()
        return figures


def peak_bytes(device: str) -> int:
    """Return the peak GPU memory allocated since the last call, in bytes.

    On a CPU or an Apple GPU, for which torch does not track the peak, return the peak memory of
    this process since its start.
    """
    if device in ("cpu", "mps"):
        import resource  # does not exist on Windows

        most_resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most_resident if sys.platform == "darwin" else 1024 * most_resident
    peak = torch.accelerator.max_memory_allocated()
    torch.accelerator.reset_peak_memory_stats()
    return peak


def needed(rows: Scored) -> Tensor:
    """Return the counts of a micro-batch that determine its operations: (3,), float64.

    They are, in this order, the tokens (equal prompts count once), the completion tokens, and the
    token pairs in attention. Their dot product with `costs` is the number of operations.
    """
    first, _ = equal_prompts(rows.prompt_ids, rows.prompt_mask)
    # on the CPU, because an Apple GPU has no float64
    prompt_lengths = rows.prompt_mask.sum(1).cpu().double()  # (B,)
    lengths = rows.completion_mask.sum(1).cpu().double()  # (B,)
    distinct = prompt_lengths[first.cpu()]  # (N,)
    completion_tokens = lengths.sum()
    completion_pairs = (lengths * (prompt_lengths + lengths / 2)).sum()
    prompt_pairs = (distinct**2).sum() / 2
    tokens = distinct.sum() + completion_tokens
    return torch.stack([tokens, completion_tokens, completion_pairs + prompt_pairs])


def _operations(parameter: Tensor) -> int:
    """Return the number of operations per token for a weight, including its shards on other ranks.

    The forward and backward pass together take 6 per element, or 4 if the weight is not trained.
    """
    size: int = getattr(parameter, "ds_numel", parameter.numel())
    per_token = 6 if parameter.requires_grad else 4
    return size * per_token


def _active_share(name: str, config: PretrainedConfig) -> float:
    """Return the share of a weight that each token uses: below 1 only for experts of an MoE."""
    active = getattr(config, "num_experts_per_tok", None)
    experts = getattr(config, "num_local_experts", None)
    if ".experts." not in name or not active or not experts:
        return 1.0
    return active / experts


def costs(model: PreTrainedModel) -> Tensor:
    """Return the training operations per unit of each count from `needed`: (3,), float64.

    The model may have an adapter and may be sharded by ZeRO. In a mixture of experts, only the
    experts that a token is routed to are counted.
    """
    config = model.config.get_text_config()
    embedding = model.get_input_embeddings().weight
    assert isinstance(embedding, Tensor)
    output = getattr(model.get_output_embeddings(), "weight", None)
    head = _operations(embedding)
    all_weights = 0.0
    for name, parameter in model.named_parameters():
        all_weights += _operations(parameter) * _active_share(name, config)
    # a token runs through all weights except the embedding and the head, which may share a matrix
    token = all_weights - head
    if output is not embedding:
        token -= head
    pair = 12 * getattr(config, "hidden_size", 0) * getattr(config, "num_hidden_layers", 0)
    return torch.tensor([token, head, pair], dtype=torch.float64)
