"""`grpo-ext recipes`: list the packaged recipes, to run by name or to copy and edit.

examples:
  grpo-ext recipes
  grpo-ext recipes countdown/tiny > mine.yaml
  grpo-ext train --config countdown/tiny
"""

import argparse

from grpo_ext.cli.command import add_command


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, run)
    parser.add_argument(
        "recipe", metavar="NAME", nargs="?", help="print this recipe (default: list all)"
    )


def run(args: argparse.Namespace) -> int:
    """Print each recipe's name with the first line of its comment, or the text of one recipe."""
    from grpo_ext.recipe.folder import recipe_names, recipe_path

    if args.recipe:
        print(recipe_path(args.recipe).read_text(encoding="utf-8"), end="")
        return 0
    names = recipe_names()
    width = max(map(len, names))
    for name in names:
        comment = recipe_path(name).read_text(encoding="utf-8").partition("\n")[0]
        print(f"{name:{width}}  {comment.removeprefix('# ')}")
    return 0
