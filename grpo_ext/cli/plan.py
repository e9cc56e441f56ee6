"""`grpo-ext plan`: show the batch, the steps and the memory of a run.

examples:
  grpo-ext plan --config recipes/countdown/tiny.yaml
  grpo-ext plan --config recipes/countdown/qwen2.5-3b.yaml --num_processes 4 --rows 50000
  grpo-ext plan --config mine.yaml --num_generations 16 --json

The numbers are those of the run. Memory is an estimate; its formulas are in grpo_ext/recipe/memory.py. --rows gives the number
of training rows if the data set cannot be read here. If sizes do not fit, the nearest that fit are shown.

exit codes: 0 done; 2 the recipe or its data cannot be used
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_processes, add_recipe_command, at_least
from grpo_ext.common.files import in_bytes

if TYPE_CHECKING:
    from grpo_ext.preflight.forecast import Forecast
    from grpo_ext.preflight.placements import Placement


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    add_processes(parser)
    parser.add_argument(
        "--rows", type=int, metavar="N", help="training rows, if they cannot be counted here"
    )
    parser.add_argument(
        "--gpus",
        type=at_least(2),
        metavar="N",
        help="compare placements of N GPUs; needs --gpu or --run",
    )
    parser.add_argument(
        "--gpu",
        metavar="CARD",
        help="with --gpus: speeds by a card's data sheet: h100, a100, h20, ...",
    )
    parser.add_argument(
        "--run",
        dest="folder",
        metavar="FOLDER",
        help="with --gpus: speeds from a run of this recipe",
    )
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.preflight.forecast import make_forecast
    from grpo_ext.preflight.speeds import CARDS, compared
    from grpo_ext.recipe.folder import sharding
    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.recipe.memory import longest_completion

    recipe = load_recipe(args.config, args.overrides, args.num_processes)
    forecast = make_forecast(recipe, args.num_processes, args.rows)
    asked = args.gpus, args.gpu, args.folder
    placements = compared(recipe.flat, forecast, *asked) if any(asked) else []
    if args.json:
        more = (
            {"placements": [placement._asdict() for placement in placements]} if placements else {}
        )
        print(
            json.dumps({"recipe": args.config, **forecast.as_dict(), **more}, indent=2, default=str)
        )
        return 0

    lines = [*plan_lines(forecast), *size_lines(forecast)]
    if recipe.flat["use_vllm"]:
        lines.append(("vLLM", "needs memory of its own"))
    width = max(len(title) for title, _ in lines)
    for title, text in lines:
        print(f"{title:{width}}  {text}")
    if args.gpu and forecast.size is not None:
        room, prompt = CARDS[args.gpu][2], round(forecast.prompt_tokens or 0)
        longest = longest_completion(
            forecast.size,
            recipe.flat,
            forecast.plan.batch,
            int(room),
            sharding(recipe.flat),
            prompt,
        )
        where = f"on a GPU of {in_bytes(room)}, one per micro-batch with gradient checkpointing (estimate)"
        print(f"{'longest completion':{width}}  {longest:,} tokens {where}")
    if placements:
        print(*placement_lines(placements, args.folder or "a data sheet, an estimate"), sep="\n")
    return 0


def placement_lines(placements: list[Placement], source: str) -> Iterator[str]:
    """Yield a table of colocate, the best split in turn and the best five with overlap, and what is fastest."""
    yield f"\nseconds a generation by {source}\n          " + "  ".join(
        f"{key:>13}" for key in placements[0]._fields[1:]
    )
    for name, most in (("colocate", 1), ("in turn", 1), ("overlap", 5)):
        for x in [x for x in placements if x.name == name][:most]:
            yield f"{name:<8}  " + "  ".join(
                f"{value:>13.{2 * isinstance(value, float)}f}" for value in x[1:]
            )
    other = next(
        (x for x in placements if x.name not in ("in turn", placements[0].name)), placements[0]
    )
    yield f"{placements[0].name} is fastest, {other.whole / placements[0].whole:.2f} times as fast as {other.name}"


def plan_lines(forecast: Forecast) -> Iterator[tuple[str, str]]:
    """Yield title and text of the lines about batch, steps, checkpoints, evaluations and tokens."""
    plan = forecast.plan
    batch = plan.batch
    longest = plan.max_completion_length
    tokens = f", at most {batch.completions * longest:,} tokens" if longest else ""
    what = "prompts"
    if plan.most_slots > 1:
        what = f"slots (1 to {plan.most_slots} a prompt)"
    yield "a generation", f"{batch.prompts:,} {what} x {batch.num_generations} completions{tokens}"
    updates = batch.passes / batch.gradient_accumulation_steps
    yield "", f"is trained on for {updates:g} optimizer step{'' if updates == 1 else 's'}"
    micro = f"{batch.per_device_train_batch_size} x {batch.num_processes} processes"
    step = f"{batch.completions_per_step:,} completions: {micro} x {batch.gradient_accumulation_steps} micro-batches"
    yield "an optimizer step", step
    if plan.rows is not None:
        sizes = f"{plan.rows:,} rows, {plan.steps_per_epoch:,} steps, {plan.generations_per_epoch:,} generations"
        yield "an epoch", f"{sizes}, {plan.rows_dropped:,} rows dropped"
    epochs = "" if plan.epochs is None else f", {plan.epochs:.3g} epochs"
    yield "the run", f"{plan.steps:,} steps{epochs}, {plan.warmup_steps:,} of them warm-up"
    yield (
        "",
        f"{plan.prompts:,} {what} and {plan.completions:,} completions in {plan.generations:,} generations",
    )
    yield "checkpoints", checkpoints_in_words(forecast)
    if plan.evaluations:
        each = (
            f", {plan.eval_completions:,} completions each"
            if plan.eval_completions is not None
            else ""
        )
        yield "evaluations", f"{plan.evaluations}{each}"
    if plan.token_budget is not None:
        asked = forecast.prompt_tokens
        prompts = f"; prompts {asked:.0f} tokens each" if asked else ""
        yield "tokens", f"at most {plan.token_budget:,} sampled{prompts}"


def checkpoints_in_words(forecast: Forecast) -> str:
    """Return the number of checkpoints, their steps and their size."""
    saved, kept = forecast.plan.checkpoints, forecast.plan.checkpoints_kept
    if saved == ():
        return "none but the final model"
    each = f", {in_bytes(forecast.checkpoint)} each" if forecast.checkpoint else ""
    last = f", the last {kept} kept" if kept else ""
    if saved is None:
        return f"at each best evaluation{each}{last}"
    steps = ", ".join(map(str, saved if len(saved) <= 6 else [*saved[:3], "...", saved[-1]]))
    return f"{len(saved)}, after steps {steps}{each}{last}"


def size_lines(forecast: Forecast) -> Iterator[tuple[str, str]]:
    """Yield title and text of the lines about the model's size and memory."""
    size, memory = forecast.size, forecast.memory
    if size is None or memory is None:
        yield "memory", "not known: the model's config cannot be read here"
        return
    trained = "" if size.trainable == size.parameters else f", {size.trainable:,} trained"
    yield "model", f"{size.parameters:,} parameters{trained}"
    parts = ", ".join(
        f"{name} {in_bytes(value)}" for name, value in memory.items() if value and name != "total"
    )
    yield "memory (estimate)", f"{in_bytes(memory['total'])} on each device: {parts}"
