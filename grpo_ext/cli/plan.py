"""`grpo-ext plan`: show the batch, the steps and the memory of a run.

examples:
  grpo-ext plan --config recipes/countdown/tiny.yaml
  grpo-ext plan --config recipes/countdown/qwen2.5-3b.yaml --num_processes 4 --rows 50000
  grpo-ext plan --config mine.yaml --num_generations 16 --json
  grpo-ext plan --config mine.yaml --gpu h100
  grpo-ext plan --config mine.yaml --gpu 16

Batch sizes, steps and checkpoints are exactly those of the run. Memory is estimated with the
formulas in grpo_ext/recipe/memory.py, and the time is shown once output_dir has a log of this
recipe. Set --rows to the number of training rows if the dataset cannot be read on this machine. If
batch sizes do not fit together, the nearest ones that do are shown.

exit codes: 0 done; 2 the recipe or its data cannot be used
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_processes, add_recipe_command, at_least
from grpo_ext.common.files import in_bytes
from grpo_ext.common.modules import without_collector
from grpo_ext.common.run_time import RunTime, duration
from grpo_ext.common.untrusted import printable

if TYPE_CHECKING:
    from grpo_ext.preflight.forecast import Forecast
    from grpo_ext.preflight.memory_fit import OnGpu, Remedy
    from grpo_ext.recipe.batch import Batch

GPU_GIGABYTES = {
    "3090": 24,
    "4090": 24,
    "l40s": 48,
    "a100": 80,
    "h20": 96,
    "h100": 80,
    "h200": 141,
    "b200": 180,
}


MOST_GIGABYTES = 100_000  # more than any GPU has


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    add_processes(parser)
    parser.add_argument(
        "--rows",
        type=at_least(1),
        metavar="N",
        help="number of training rows, if they cannot be counted on this machine",
    )
    parser.add_argument(
        "--gpu",
        type=gigabytes,
        metavar="GPU",
        help="estimate whether the run fits into a GPU's memory, and the longest completion that "
        f"fits; GPU is one of {', '.join(GPU_GIGABYTES)}, or the memory in GB",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def gigabytes(gpu: str) -> float:
    """Parse the name of a GPU, or its memory in GB, for argparse; return the memory in GB.

    Args:
        gpu: a name in `GPU_GIGABYTES`, or a number.

    Raises:
        argparse.ArgumentTypeError: if `gpu` is neither, or if the number is not above 0 and at most
            `MOST_GIGABYTES`.
    """
    if gpu in GPU_GIGABYTES:
        return GPU_GIGABYTES[gpu]
    try:
        number = float(gpu)
    except ValueError:
        number = 0.0
    if not 0 < number <= MOST_GIGABYTES:
        names = ", ".join(GPU_GIGABYTES)
        raise argparse.ArgumentTypeError(
            f"{printable(gpu)} is neither the name of a known GPU nor a positive number of GB up "
            f"to {MOST_GIGABYTES:,}. Choose one of {names}, or pass the memory in GB, such as 24."
        )
    return number


def run(args: argparse.Namespace) -> int:
    from grpo_ext.recipe.load import load_recipe

    recipe = load_recipe(args.config, args.overrides, args.num_processes)
    with without_collector():
        from grpo_ext.preflight.forecast import make_forecast
        from grpo_ext.preflight.measured_time import measured_time
        from grpo_ext.preflight.memory_fit import estimate_on_gpu

    gpu_bytes = args.gpu and round(args.gpu * 10**9)
    forecast = make_forecast(recipe, args.num_processes, args.rows, gpu_bytes)
    time = measured_time(recipe, forecast.plan)
    on_gpu = estimate_on_gpu(recipe, forecast, args.gpu) if args.gpu else None
    if args.json:
        figures = {"recipe": args.config, **forecast.as_dict()}
        figures["hours"] = None if time is None else time.seconds / 3600
        if args.gpu:
            figures["fits"] = on_gpu and on_gpu.fits
            figures["longest_completion"] = on_gpu and on_gpu.longest_alone
        print(json.dumps(figures, indent=2, default=str))
        return 0

    lines = [
        *([] if on_gpu is None else gpu_lines(on_gpu, forecast.plan.batch)),
        *plan_lines(forecast),
        *time_lines(time, recipe.get("output_dir")),
        *size_lines(forecast),
    ]
    if recipe.flat["use_vllm"]:
        lines.append(("vLLM", "needs additional memory, which is not included here"))
    width = max(len(title) for title, _ in lines)
    for title, text in lines:
        print(f"{title:{width}}  {text}")
    return 0


def gpu_lines(on_gpu: OnGpu, batch: Batch) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for the lines about a GPU's memory.

    Args:
        on_gpu: the estimate of what fits.
        batch: the batch sizes of the recipe.
    """
    title = f"a GPU of {on_gpu.gigabytes:g} GB"
    figures = f"{in_bytes(on_gpu.needed)} of the {in_bytes(on_gpu.room)} that training may fill"
    if on_gpu.fits:
        yield title, f"fits: {figures} (estimate)"
    else:
        yield title, f"does not fit: {figures} (estimate)"
        yield from remedy_lines(on_gpu.remedies)
    if on_gpu.longest:
        tokens = (
            f"{on_gpu.longest:,} tokens in micro-batches of {batch.per_device_train_batch_size}"
        )
        yield "longest completion", f"{tokens}, as in the recipe (estimate)"
    if on_gpu.longest_alone:
        conditions = "with one completion per micro-batch and gradient checkpointing"
        title = "" if on_gpu.longest else "longest completion"
        yield title, f"{on_gpu.longest_alone:,} tokens, {conditions} (estimate)"


def remedy_lines(remedies: tuple[Remedy, ...]) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for the lines about changes to the recipe that would make a run fit."""
    from grpo_ext.recipe.difference import as_yaml

    for remedy in remedies:
        keys = " and ".join(f"`{line}`" for line in as_yaml(remedy.change).splitlines())
        yield "", f"would fit with {keys}: {in_bytes(remedy.needed)}"
    if not remedies:
        yield (
            "",
            "would not fit even with smaller micro-batches, an adapter, gradient checkpointing and "
            "bfloat16 together",
        )


def plan_lines(forecast: Forecast) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for each line about the plan of a run.

    The lines are about the batch, the steps, the checkpoints, the evaluations and the tokens. The
    title is empty if the line continues the previous one.
    """
    plan = forecast.plan
    batch = plan.batch
    prompts = "prompts"
    if plan.most_slots > 1:
        prompts = f"slots (1 to {plan.most_slots} per prompt)"
    generation = f"{batch.prompts:,} {prompts} x {batch.num_generations} completions"
    if plan.max_completion_length:
        generation += f", at most {batch.completions * plan.max_completion_length:,} tokens"
    yield "a generation", generation
    updates = batch.passes / batch.gradient_accumulation_steps
    yield "", f"is trained on for {updates:g} optimizer step{'' if updates == 1 else 's'}"
    yield (
        "an optimizer step",
        f"{batch.completions_per_step:,} completions: {batch.per_device_train_batch_size} x "
        f"{batch.num_processes} processes x {batch.gradient_accumulation_steps} micro-batches",
    )
    if plan.rows is not None:
        yield (
            "an epoch",
            f"{plan.rows:,} rows, {plan.steps_per_epoch:,} steps, "
            f"{plan.generations_per_epoch:,} generations, {plan.rows_dropped:,} rows dropped",
        )
    epochs = "" if plan.epochs is None else f", {plan.epochs:.3g} epochs"
    yield "the run", f"{plan.steps:,} steps{epochs}, {plan.warmup_steps:,} of them warm-up"
    yield (
        "",
        f"{plan.prompts:,} {prompts} and {plan.completions:,} completions "
        f"in {plan.generations:,} generations",
    )
    yield "checkpoints", checkpoint_text(forecast)
    if plan.evaluations:
        evaluations = f"{plan.evaluations}"
        if plan.eval_completions is not None:
            evaluations += f", {plan.eval_completions:,} completions each"
        yield "evaluations", f"{evaluations}, {eval_batches(forecast)}"
        if plan.eval_remark:
            yield "", f"note: {plan.eval_remark}"
    if plan.token_budget is not None:
        tokens = f"at most {plan.token_budget:,} sampled"
        if forecast.prompt_tokens:
            tokens += f"; prompts have {forecast.prompt_tokens:.0f} tokens on average"
        yield "tokens", tokens


def eval_batches(forecast: Forecast) -> str:
    """Return a description of the batches in which an evaluation is decoded."""
    if forecast.eval_batch_size is None:
        return "in batches that the run chooses"
    batch = f"{forecast.eval_batch_size:,} at once"
    processes = forecast.plan.batch.num_processes
    return batch if processes == 1 else f"{batch} on each of {processes} processes"


def checkpoint_text(forecast: Forecast) -> str:
    """Return a description of the checkpoints: how many, after which steps, and their size."""
    steps = forecast.plan.checkpoints
    if steps == ():
        return "only the final model"
    text = "after each best evaluation"
    if steps is not None:
        labels = [str(step) for step in steps]
        if len(labels) > 6:
            labels[3:-1] = ["..."]
        text = f"{len(steps)}, after steps {', '.join(labels)}"
    if forecast.checkpoint:
        text += f", {in_bytes(forecast.checkpoint)} each"
    if forecast.plan.checkpoints_kept:
        text += f", the last {forecast.plan.checkpoints_kept} kept"
    return text


def time_lines(time: RunTime | None, folder: str) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for the lines about the time that the run takes.

    Args:
        time: the time according to the log in `folder`; `None` if there is no log of this recipe,
            or if the log has only one training line.
        folder: the `output_dir` of the recipe.
    """
    if time is None:
        yield "time", "not measured yet: `grpo-ext bench` measures how long a step takes, and after"
        yield "", "three steps the run prints how long it will take"
        return
    yield "time", f"about {duration(time.seconds)}, according to the log in {printable(folder)}:"
    yield "", time.describe()


def size_lines(forecast: Forecast) -> Iterator[tuple[str, str]]:
    """Yield (title, text) for the lines about the model's size and memory."""
    size = forecast.size
    memory = forecast.memory
    if size is None or memory is None:
        yield "memory", "unknown, because the model's config cannot be read here"
        return
    parameters = f"{size.parameters:,} parameters"
    if size.trainable != size.parameters:
        parameters += f", {size.trainable:,} trained"
    yield "model", parameters
    parts = []
    for name, num_bytes in memory.items():
        if num_bytes and name != "total":
            parts.append(f"{name} {in_bytes(num_bytes)}")
    yield "memory (estimate)", f"{in_bytes(memory['total'])} on each device: {', '.join(parts)}"
    if forecast.checkpointing is not None:
        yield "", str(forecast.checkpointing)
