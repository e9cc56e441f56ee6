"""`grpo-ext serve`: start the vLLM server of a recipe.

examples:
  grpo-ext serve --config recipes/countdown/qwen2.5-3b.yaml --vllm_server_devices 2
  grpo-ext train --config recipes/countdown/qwen2.5-3b.yaml          # in another terminal

It runs until it is interrupted. vLLM's output goes to vllm_server.log in the recipe's output_dir.
`grpo-ext train --serve` starts the server and also trains.
"""

import argparse
import shlex
import signal

from grpo_ext.cli.command import add_recipe_command, at_least


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_recipe_command(subparsers, __doc__, run)
    parser.add_argument(
        "--num_processes",
        type=at_least(1),
        default=1,
        metavar="N",
        help="number of processes that will train (default: 1)",
    )
    parser.add_argument("--dry_run", action="store_true", help="only print the command")


def run(args: argparse.Namespace) -> int:
    from grpo_ext.preflight.model_folder import check_model
    from grpo_ext.recipe.load import load_recipe
    from grpo_ext.recipe.problems import Findings
    from grpo_ext.vllm import EngineFailure
    from grpo_ext.vllm.server import server_of

    recipe = load_recipe(args.config, args.overrides, args.num_processes)
    if not args.dry_run:  # a dry run needs no network
        findings = Findings(places=recipe.places)
        check_model(recipe.flat, findings)
        findings.refuse()
    server = server_of(recipe, args.num_processes, local_only=args.dry_run)
    print("$ VLLM_SERVER_DEV_MODE=1", shlex.join(["python", *server.command[1:]]), flush=True)
    if args.dry_run:
        return 0
    # A background job of a script ignores SIGINT, so SIGTERM interrupts it.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        process = server.start()
        server.wait_ready(recipe.training.vllm_server_timeout)
        print(
            f"The vLLM server answers at {server.url}; its log is {server.log}. Ctrl-C stops it.",
            flush=True,
        )
        code = process.wait()
        raise EngineFailure(f"The vLLM server ended with code {code}:\n{server.last_lines()}")
    except KeyboardInterrupt:
        return 0
    finally:
        server.stop()
