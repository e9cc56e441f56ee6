"""`grpo-ext completion`: a script with which a shell completes commands, options and the keys of recipes."""

from __future__ import annotations

import argparse

EXAMPLES = """\
examples:
  grpo-ext completion bash > ~/.local/share/bash-completion/completions/grpo-ext
  grpo-ext completion zsh > ~/.grpo-ext.zsh          and in ~/.zshrc: source ~/.grpo-ext.zsh

The script is written once and starts nothing; write it again after an update. Open a new shell to use it.
"""
ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
BASH = """\
_grpo_ext() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{commands}"
  else
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
  fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ "$COMP_CWORD" -gt 1 ] && [ "${{word:0:1}}" != "-" ]; then COMPREPLY+=($(compgen -f -- "$word")); fi
}}
complete -o filenames -F _grpo_ext grpo-ext
"""


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = subparsers.add_parser(
        "completion",
        help="a script that completes commands and keys in a shell",
        description=f"Print a script with which a shell completes commands, options and the keys of recipes.\n\n{EXAMPLES}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("shell", choices=("bash", "zsh"), help="for which shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    print((ZSH if args.shell == "zsh" else "") + script(), end="")
    return 0


def script() -> str:
    """The completion script, of the commands and keys that there are now."""
    from grpo_ext.cli.main import make_parser

    commands = subcommands(make_parser())
    keys = recipe_keys()
    cases = []
    for name, parser in commands.items():
        words = [option for action in parser._actions for option in action.option_strings]
        for inner_name, inner in subcommands(parser).items():
            words += [inner_name, *(option for action in inner._actions for option in action.option_strings)]
        words += keys if parser.get_default("takes_overrides") else []
        more = parser.get_default("more_words")
        words += more() if more else []
        cases.append(f'      {name}) words="{" ".join(dict.fromkeys(words))}" ;;')
    return BASH.format(commands=" ".join(["--help", "--version", *commands]), cases="\n".join(cases))


def subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers under a parser, by name."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(groups[0].choices) if groups else {}


def recipe_keys() -> list[str]:
    """Every key of a recipe, as an option."""
    import dataclasses

    from trl import ModelConfig

    from grpo_ext.recipe.schema import GRPOExtConfig, RunConfig
    from grpo_ext.tasks import task_classes

    classes = [GRPOExtConfig, RunConfig, ModelConfig, *task_classes().values()]
    return sorted({f"--{f.name}" for cls in classes for f in dataclasses.fields(cls)})
