"""`grpo-ext completion`: print a script that completes commands and keys in a shell.

examples:
  grpo-ext completion bash > ~/.local/share/bash-completion/completions/grpo-ext
  grpo-ext completion zsh > ~/.zfunc/_grpo-ext       and in ~/.zshrc, before compinit: fpath+=~/.zfunc
  grpo-ext completion fish > ~/.config/fish/completions/grpo-ext.fish

Open a new shell to use the script, and write it again after an update.
"""

import argparse
import dataclasses
from typing import Any

from grpo_ext.cli.command import add_command


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run)
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="for which shell")


def run(args: argparse.Namespace) -> int:
    print(script(args.shell))
    return 0


def script(shell: str) -> str:
    """Return the completion script for the present commands and keys."""
    import shtab
    from trl import ModelConfig

    from grpo_ext.cli.explain import explaining_rewards
    from grpo_ext.cli.main import make_parser
    from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
    from grpo_ext.rewards import list_rewards
    from grpo_ext.tasks import task_classes

    classes = [GRPOExtConfig, RunConfig, ModelConfig, *task_classes().values()]
    keys = sorted({f"--{f.name}" for cls in classes for f in dataclasses.fields(cls)})  # of a recipe
    names = {"NAME": [info.name for info in list_rewards()], "REWARD": explaining_rewards()}  # by the metavar

    def tell_words(parser: argparse.ArgumentParser) -> None:
        """Add the words to complete to a parser and its subparsers."""
        for key in keys if parser.get_default("takes_overrides") else ():
            if key not in parser._option_string_actions:
                parser.add_argument(key)
        action: Any  # shtab reads an attribute that argparse does not have
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for inner in action.choices.values():
                    tell_words(inner)
            elif action.metavar in names and not action.option_strings:
                action.choices = names[action.metavar]
            elif action.nargs != 0 and not action.choices:
                action.complete = shtab.FILE

    parser = make_parser()
    tell_words(parser)
    return shtab.complete(parser, shell)
