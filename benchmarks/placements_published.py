"""Published runs with and without overlap, beside what the simulator says of them.

Two predictions: by the card's data sheet and the published sizes alone, as `grpo-ext plan --gpu` would make it; and with the
seconds of generation and training that were published of the run without overlap, as `--run` would. Neither reads the run
with overlap, but for its split of the GPUs. What was not published is assumed, and told; where lengths are, half and twice
are tried.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from grpo_ext.preflight.forecast import Forecast
from grpo_ext.preflight.placements import (
    Placement,
    Speeds,
    Workload,
    generation_seconds,
    simulate,
    training_seconds,
)
from grpo_ext.preflight.speeds import CARDS, COMPUTE, by_card, fitted
from grpo_ext.recipe.load import load_recipe
from grpo_ext.recipe.memory import ModelSize
from grpo_ext.recipe.run_plan import make_plan


@dataclass(frozen=True)
class Model:
    """Sizes of a model in bfloat16, by its config."""

    parameters: float
    layers: int
    kv_width: int
    active: float = 0.0  # parameters of a token, of a mixture of experts


QWEN_7B = Model(7.62e9, 28, 512)
LLAMA_8B = Model(8.03e9, 32, 1024)
QWEN_30B = Model(30.5e9, 48, 512, active=3.3e9)
R1_1_5B = Model(1.78e9, 28, 256)


@dataclass(frozen=True)
class Run:
    """A published pair of runs; times are seconds a step, or hours."""

    name: str
    model: Model
    card: str
    gpus: int
    sample: int  # of them, with overlap
    tensor_parallel: int
    prompts: int
    group: int  # completions a prompt
    mean: float  # tokens of a completion
    limit: int
    without: float
    overlapped: float
    assumed: str  # what was not published
    generation: float = 0.0  # of the run without overlap, if published
    switching: float = 0.0
    scoring: float = 0.0
    training: float = 0.0
    scores: bool = True  # whether the run with overlap scores old log-probs, too
    fixed: float = 0.0  # seconds of scoring and training that more GPUs do not shorten
    borders: bool = True  # whether a generation waits for its last completion, as with `one_step`


# verl's asynchronous runs: scoring and training on 32, 64 and 128 GPUs show what does not shrink with more of them
ASYNC_FIXED, _ = fitted(
    [1, 1, 1], [1 / 32, 1 / 64, 1 / 128], [107.71 + 313.81, 70.26 + 133.41, 53.92 + 113.81]
)
RUNS = (
    # verl docs/advance/one_step_off.md: `gen` is `generate_sequences` and what surrounds it, here switching
    Run("verl one step off, FSDP2", QWEN_7B, "h20", 16, 4, 2, 512, 12, 1500, 20480, 749, 520, "batch, length, engine",
        247, 74, 88, 286),
    Run("verl one step off, Megatron", QWEN_7B, "h20", 16, 4, 2, 512, 12, 1500, 8192, 699, 566, "batch, length, engine",
        162, 45, 119, 344),
    # verl docs/advance/fully_async.md; batch and engines by the scripts beside it
    Run("verl asynchronous, 32", QWEN_7B, "h20", 32, 16, 4, 512, 16, 2500, 28672, 790.1, 294.77, "length",
        357.41, 0, 107.71, 313.81, scores=False, fixed=ASYNC_FIXED, borders=False),
    Run("verl asynchronous, 64", QWEN_7B, "h20", 64, 32, 4, 512, 16, 2500, 28672, 365.28, 189.26, "length",
        150.72, 0, 70.26, 133.41, scores=False, fixed=ASYNC_FIXED, borders=False),
    Run("verl asynchronous, 128", QWEN_7B, "h20", 128, 64, 4, 512, 16, 2500, 28672, 356.3, 150.63, "length",
        177.85, 0, 53.92, 113.81, scores=False, fixed=ASYNC_FIXED, borders=False),
    Run("verl asynchronous, 30B-A3B, 128", QWEN_30B, "h20", 128, 96, 4, 512, 16, 2500, 8192, 497.89, 282.75,
        "length, engine", 348.05, 0, 28.73 + 20.86, 86.27, borders=False),
    Run("verl asynchronous, 16", QWEN_7B, "h20", 16, 8, 4, 512, 16, 800, 10240, 484.62, 489.95, "length",
        52.94, 0, 0, 430.26, borders=False),
    # NeMo-RL docs/about/performance-summary.md, 0.5 and 0.6; splits by its recipes
    Run("NeMo-RL 8B, 16 H100", LLAMA_8B, "h100", 16, 8, 1, 64, 32, 950, 4096, 92.8, 64.8, "half the GPUs sample"),
    Run("NeMo-RL 30B-A3B, 32 H100", QWEN_30B, "h100", 32, 16, 2, 64, 32, 3050, 4096, 192, 152, "nothing"),
    Run("NeMo-RL 30B-A3B, 16 GB200", QWEN_30B, "b200", 16, 8, 1, 64, 32, 3050, 4096, 221, 301, "a B200 for a GB200"),
    # AReaL, arXiv 2505.24298, table 1; hours
    Run("AReaL 1.5B", R1_1_5B, "h100", 128, 96, 1, 512, 16, 8000, 27648, 41.0, 14.8, "all but the hours", borders=False),
    Run("AReaL 7B", QWEN_7B, "h100", 192, 144, 1, 512, 16, 8000, 27648, 57.7, 25.4, "all but the hours", borders=False),
)  # fmt: skip


def by_sheet(run: Run) -> tuple[Workload, Speeds]:
    """Return what `grpo-ext plan --gpu` would simulate; of a mixture of experts only the active weights count as operations."""
    values = {
        "model_name_or_path": "m",
        "use_vllm": True,
        "vllm_mode": "server",
        "max_steps": 1,
        "use_cpu": True,
        "bf16": False,
    }
    values |= {
        "vllm_tensor_parallel_size": run.tensor_parallel,
        "max_completion_length": run.limit,
        "num_generations": run.group,
    }
    values |= {
        "per_device_train_batch_size": run.prompts * run.group,
        "gradient_accumulation_steps": 1,
        "dtype": "bfloat16",
    }
    recipe, model = load_recipe(None, values), run.model
    size = ModelSize(
        int(model.parameters), int(model.parameters), "bfloat16", 0, model.layers, model.kv_width
    )
    forecast = Forecast(make_plan(recipe.flat, 1, run.prompts), size, None, None, 100.0)
    work, speeds = by_card(run.card, recipe.flat, forecast, run.mean)
    if model.active:
        less = (
            2
            * (model.parameters - model.active)
            / (COMPUTE * CARDS[run.card][0])
            / run.tensor_parallel
        )
        speeds = replace(
            speeds, row=speeds.row - less, token=speeds.token * model.active / model.parameters
        )
    return work, speeds


def by_phases(run: Run, work: Workload, speeds: Speeds) -> tuple[Speeds, Speeds]:
    """Return the speeds scaled to the published run without overlap, and those of training in the one with overlap."""
    longer = run.generation / generation_seconds(work, speeds, run.gpus)
    trained = run.scoring + run.training
    unit = training_seconds(work, Speeds(0, 0, token=1), run.gpus)
    rest = max(0.0, run.without - run.generation - run.switching - trained)
    found = replace(
        speeds,
        step=speeds.step * longer,
        row=speeds.row * longer,
        switch=run.switching,
        sync=0,
        reward=rest,
    )
    found = replace(found, token=(trained - run.fixed) / unit, update=run.fixed)
    kept = 1.0 if run.scores else run.training / trained
    return found, replace(found, token=found.token * kept, update=found.update * kept)


def without_borders(work: Workload, speeds: Speeds, placement: Placement) -> float:
    """Return the seconds of a placement whose engines are always full: completions go on while the weights change."""
    engines = placement.sample // speeds.gpus
    rows = min(speeds.slots, len(work.lengths) / engines)
    generation = sum(work.lengths) / engines * (speeds.step / rows + speeds.row)
    return max(generation, placement.training + speeds.reward) + speeds.sync


def gain(
    run: Run, work: Workload, speeds: Speeds, overlapped: Speeds
) -> tuple[float, float, Placement]:
    """Return how many times as fast the published split is as all GPUs in turn, with `one_step` and without borders.

    Also the best split with `one_step`.
    """
    [colocate] = [x for x in simulate(work, speeds, run.gpus) if x.name == "colocate"]
    found = [x for x in simulate(work, overlapped, run.gpus) if x.name == "overlap"]
    [split] = [x for x in found if x.sample == run.sample]
    return (
        colocate.whole / split.whole,
        colocate.whole / without_borders(work, overlapped, split),
        found[0],
    )


def ratios(run: Run, mean: float) -> list[tuple[float, float, Placement]]:
    """Return `gain` by data sheet and, where phases were published, by them, for completions of this mean length."""
    work, speeds = by_sheet(replace(run, mean=mean))
    pairs = [(speeds, speeds), *([by_phases(run, work, speeds)] if run.generation else [])]
    return [gain(run, work, *pair) for pair in pairs]


def table() -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| run | sample, train | published | by data sheet | by phases | off by | best split | assumed |"
    yield "|---|---|---|---|---|---|---|---|"
    for run in RUNS:
        published, cells = run.without / run.overlapped, ["-", "-"]
        means = (
            [run.mean / 2, run.mean, run.mean * 2]
            if "length" in run.assumed or "all" in run.assumed
            else [run.mean]
        )
        for i, found in enumerate(zip(*(ratios(run, mean) for mean in means), strict=True)):
            middle = found[len(found) // 2]
            said = middle[0] if run.borders else middle[1]
            span = sorted(one[0] if run.borders else one[1] for one in found)
            cells[i] = f"{said:.2f}" + (
                f" ({span[0]:.2f} to {span[-1]:.2f})" if len(span) > 1 else ""
            )
            off, best = said / published - 1, middle[2]
        sizes = f"{run.sample}, {run.gpus - run.sample} | {published:.2f}"
        yield f"| {run.name} | {sizes} | {' | '.join(cells)} | {off:+.0%} | {best.sample}, {best.train} | {run.assumed} |"
