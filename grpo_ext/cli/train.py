"""`grpo-ext train`: train with GRPO from a recipe.

examples:
  grpo-ext train --config recipes/countdown/tiny.yaml
  grpo-ext train --config recipes/countdown/tiny.yaml --num_processes 2 --max_steps 5
  grpo-ext train --config recipes/countdown/qwen2.5-3b.yaml --accelerate_config zero3
  grpo-ext train --config recipes/countdown/qwen2.5-3b.yaml --serve --vllm_server_devices 2
  grpo-ext train --config countdown/tiny --report     with a live report at http://127.0.0.1:8787

It runs `accelerate launch`. Any key of a recipe can be set on the command line as --key value,
which overrides the recipe. Keys are the fields of TRL's GRPOConfig and ModelConfig, of
GRPOExtConfig and RunConfig (grpo_ext/recipe/schema.py and the *_options.py next to it), and of the
recipe's task. An unknown key is an error; the message names a similar key, if there is one.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import sys
from collections.abc import Callable
from functools import partial
from threading import Thread
from typing import TYPE_CHECKING

from grpo_ext.cli.command import add_processes, add_recipe_command
from grpo_ext.common.modules import without_collector

if TYPE_CHECKING:
    from grpo_ext.recipe.load import Recipe


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_training_parser(subparsers, __doc__, "grpo_ext.train")
    parser.add_argument(
        "--serve",
        action="store_true",
        help="also start the recipe's vLLM server, and stop it at the end",
    )
    parser.add_argument(
        "--report",
        action="store_true",
        help="also serve the run's report at 127.0.0.1 until the run ends",
    )


def add_training_parser(
    subparsers: argparse._SubParsersAction, doc: str | None, module: str
) -> argparse.ArgumentParser:
    """Add the parser for a subcommand that trains with `module`, and return it.

    `doc` is the help text of the subcommand.
    """
    parser = add_recipe_command(subparsers, doc, run)
    add_processes(parser)
    parser.add_argument(
        "--accelerate_config",
        metavar="NAME",
        help="accelerate config to launch with: a file, or a name such as zero3 (default: that of "
        "the recipe)",
    )
    parser.set_defaults(module=module, serve=False, report=False)
    return parser


def run(args: argparse.Namespace) -> int:
    from grpo_ext.recipe.difference import check_same_run
    from grpo_ext.recipe.load import load_recipe, load_sft_recipe
    from grpo_ext.recipe.rules import processes
    from grpo_ext.run.launch import launch

    load = load_recipe if args.module == "grpo_ext.train" else load_sft_recipe
    overrides = args.overrides
    if args.accelerate_config:
        overrides = [*overrides, "--accelerate_config", args.accelerate_config]
    recipe = load(args.config, overrides, args.num_processes)
    with without_collector():
        from grpo_ext.preflight.loaded_recipe import check_start

    # The processes check the recipe again, but here each fault is reported once, before they start.
    check_start(recipe)
    check_same_run(recipe)
    if args.report:
        from grpo_ext.observe.report.serve import ReportServer

        server = ReportServer([recipe.output_dir])
        Thread(target=server.serve_forever, daemon=True).start()
        print(f"The report of this run is at {server.url}.", flush=True)
    job = partial(
        launch, args.module, ["--config", args.config, *args.overrides], recipe, args.num_processes
    )
    if args.serve:
        return run_beside_server(job, recipe, args.num_processes or processes(recipe.flat))
    return job()


def run_beside_server(job: Callable[..., int], recipe: Recipe, num_processes: int) -> int:
    """Start the vLLM server of a recipe, run a job next to it, and return the job's exit code.

    The server is stopped when the job ends. Both get the same secret key: the one in this process's
    environment, or a new random key, which is added to that environment. SIGTERM stops the server
    and ends this process with exit code 143; this signal handler stays installed afterwards.

    Args:
        job: a function that takes `environment`, a mapping of environment variables, and returns an
            exit code.
        recipe: a recipe that uses a vLLM server.
        num_processes: the number of processes that the job trains with.
    """
    from grpo_ext.vllm.server import server_of, trainer_devices
    from grpo_ext.vllm.signature import KEY

    os.environ.setdefault(KEY, secrets.token_urlsafe())
    server = server_of(recipe, num_processes)
    print(f"Starting the vLLM server at {server.url}; its log is {server.log}.", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that SIGTERM also stops the server
    training = recipe.training
    with server.running(training.vllm_server_timeout, restarts=training.vllm_server_retries):
        return job(environment=trainer_devices(recipe))
