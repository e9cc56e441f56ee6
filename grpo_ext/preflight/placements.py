"""A step simulated beforehand: sampling and training on the same GPUs, on two parts of them in turn, or at the same time.

Continuous batching: rows are dealt to engines, and an engine decodes `slots` of them at once. A decoding step takes
`step + row * active rows`, so an engine takes `step` until its last row has ended, and `row` for each token. Left out: reading
prompts, refill, evaluations, checkpoints, memory, and what many GPUs lose to communication.
"""

import heapq
import math
import random
from dataclasses import dataclass
from statistics import NormalDist
from typing import NamedTuple


@dataclass(frozen=True)
class Workload:
    """What one generation asks for."""

    lengths: list[int]  # tokens of its completions, at least 1 each
    prompt_tokens: float = 0.0  # of the prompt of one completion
    updates: float = 1.0  # optimizer steps


@dataclass(frozen=True)
class Speeds:
    """Seconds of the parts of a step, and the size of an engine."""

    step: float  # one decoding step, for any number of rows: reading the weights, starting kernels
    row: float  # added by each row
    token: float  # training on one token of prompt or completion with one GPU: all passes of a generation
    update: float = 0.0  # added by each optimizer step, for any number of tokens and GPUs
    reward: float = 0.0  # judging a generation
    sync: float = 0.0  # bringing the weights to the GPUs that sample
    switch: float = 0.0  # colocate: from training to sampling and back
    slots: int = 256  # rows that an engine decodes at once
    gpus: int = 1  # of an engine (tensor parallel)


class Placement(NamedTuple):
    """A way to use the GPUs: "colocate", "in turn" or "overlap", GPUs on either side, and seconds per generation."""

    name: str
    sample: int
    train: int
    generation: float
    training: float
    other: float  # rewards, weight sync, switching
    whole: float
    trainer_waits: float = 0.0
    sampler_waits: float = 0.0


def drawn_lengths(number: int, mean: float, limit: int, seed: int = 0) -> list[int]:
    """Return the quantiles, in random order, of a lognormal distribution with this mean and 1 % beyond `limit`, its cut."""
    normal, rare = NormalDist(), NormalDist().inv_cdf(0.99)
    spread = rare - math.sqrt(max(0.0, rare**2 - 2 * math.log(max(1.0, limit / mean))))
    sizes = (
        mean * math.exp(spread * normal.inv_cdf((i + 0.5) / number) - spread**2 / 2)
        for i in range(number)
    )
    return random.Random(seed).sample(
        found := [min(limit, max(1, round(size))) for size in sizes], len(found)
    )


def generation_seconds(work: Workload, speeds: Speeds, gpus: int) -> float:
    """Return the seconds until the slowest engine has ended its last row; rows begin in their order."""
    engines, slowest = gpus // speeds.gpus, 0.0
    for rows in (work.lengths[i::engines] for i in range(engines)):
        heapq.heapify(ends := rows[: speeds.slots])
        for length in rows[speeds.slots :]:
            heapq.heapreplace(ends, ends[0] + length)
        slowest = max(slowest, speeds.step * max(ends, default=0) + speeds.row * sum(rows))
    return slowest


def training_seconds(work: Workload, speeds: Speeds, gpus: int) -> float:
    """Return the seconds of all passes and optimizer steps of a generation; a completion is not divided."""
    tokens = sum(work.lengths) + work.prompt_tokens * len(work.lengths)
    return (
        speeds.token * max(tokens / gpus, max(work.lengths) + work.prompt_tokens)
        + speeds.update * work.updates
    )


def simulate(work: Workload, speeds: Speeds, gpus: int) -> list[Placement]:
    """Return colocate and, of each split into whole engines and GPUs that train, both other placements, the fastest first."""
    if gpus < speeds.gpus:
        raise ValueError(
            f"An engine has {speeds.gpus} GPUs (vllm_tensor_parallel_size), and there are {gpus}."
        )
    both, other = (
        (generation_seconds(work, speeds, gpus), training_seconds(work, speeds, gpus)),
        speeds.reward + speeds.switch,
    )
    found = [Placement("colocate", gpus, gpus, *both, other, sum(both) + other)]
    for sample in range(speeds.gpus, gpus, speeds.gpus):
        both = generation, training = (
            generation_seconds(work, speeds, sample),
            training_seconds(work, speeds, gpus - sample),
        )
        busy = training + speeds.reward
        for name, time in (("in turn", generation + busy), ("overlap", max(generation, busy))):
            rest = (
                speeds.reward + speeds.sync,
                speeds.sync + time,
                time - busy,
                speeds.sync + time - generation,
            )
            found.append(Placement(name, sample, gpus - sample, *both, *rest))
    return sorted(found, key=lambda placement: placement.whole)
