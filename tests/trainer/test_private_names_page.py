"""Every private name that this package uses is in the contract, and the page lists the contract."""

from __future__ import annotations

import ast
import re

from grpo_ext.seams import contract
from tests.trainer.private_names_page import PACKAGE, PAGE, attributes, page

SEAMS = [*(PACKAGE / "seams").glob("*.py"), PACKAGE / "trainer" / "trainer.py"]


def test_the_page_is_what_the_contract_gives():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make names`"


def nodes(path, kind):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, kind)]


def test_every_import_from_a_module_of_trl_is_in_the_contract():
    imported = {
        f"{node.module}.{alias.name}"
        for path in PACKAGE.rglob("*.py")
        for node in nodes(path, ast.ImportFrom)
        for alias in node.names
        if (node.module or "").startswith("trl.")
    }
    assert len(imported) > 10
    assert imported <= set(contract.CONTRACT["names"])


def test_every_private_attribute_in_the_seams_is_in_the_contract():
    """Apart from those that the seams and our trainer define themselves."""
    paths = [*contract.CONTRACT["names"], *contract.expected_methods()]
    listed = {path.rpartition(".")[2] for path in paths} | {*attributes("_")}
    listed |= {"_inner_training_loop"}  # the contract reads its source
    for path in SEAMS:
        own = {node.name for node in nodes(path, ast.FunctionDef)}
        used = {node.attr for node in nodes(path, ast.Attribute)}
        private = {name for name in used if re.match("_[^_]", name)}
        assert private - listed - own == set(), path.name
