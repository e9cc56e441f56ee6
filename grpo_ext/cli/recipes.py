"""`grpo-ext recipes`: the recipes that come with the package, to run by name or to copy and edit.

examples:
  grpo-ext recipes
  grpo-ext recipes copy countdown/tiny .
  grpo-ext train --config countdown/tiny
"""

import argparse
import shutil
from pathlib import Path

from grpo_ext.cli.command import add_command


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    parser = add_command(subparsers, __doc__, list_recipes)
    copying = parser.add_subparsers(metavar="copy").add_parser("copy", help="copy a recipe to edit it")
    copying.add_argument("recipe", metavar="NAME", help="such as countdown/tiny")
    copying.add_argument("target", type=Path, metavar="TARGET", help="a folder, or the new file")
    copying.set_defaults(run=copy_recipe)


def list_recipes(args: argparse.Namespace) -> int:
    """Print each recipe's name with the first line of its comment."""
    from grpo_ext.recipe.folder import recipe_names, recipe_path

    names = recipe_names()
    for name in names:
        first = recipe_path(name).read_text(encoding="utf-8").partition("\n")[0]
        print(f"{name:{max(map(len, names))}}  {first.removeprefix('# ')}")
    return 0


def copy_recipe(args: argparse.Namespace) -> int:
    """Copy a recipe, but never over an existing file."""
    from grpo_ext.recipe.folder import recipe_path

    source = recipe_path(args.recipe)
    target = args.target / source.name if args.target.is_dir() else args.target
    if target.exists():
        raise ValueError(f"{target} exists already; name another file.")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
    print(f"{target}: edit it, then: grpo-ext check --config {target}")
    return 0
