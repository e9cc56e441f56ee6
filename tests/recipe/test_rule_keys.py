"""Every key that a rule, a table or a message of a recipe names is a field; a mistyped one raises
and never reads as null.
"""

from __future__ import annotations

import ast
import dataclasses
from fnmatch import filter as names_that_match
from fnmatch import fnmatchcase
from string import Formatter

import pytest
from trl import ModelConfig, SFTConfig

from grpo_ext import load_recipe
from grpo_ext.common.files import data_yaml
from grpo_ext.objective.advantage import advantage_names, joint_advantage_names
from grpo_ext.objective.policy import loss_names
from grpo_ext.objective.presets import PRESETS
from grpo_ext.objective.sampling import FIELD_DEFAULTS
from grpo_ext.recipe import difference, fields, vllm_options
from grpo_ext.recipe.load import load_sft_recipe
from grpo_ext.recipe.notes import GRPO_NOTES, SFT_NOTES
from grpo_ext.recipe.rule_kinds import Dependency, Idle, Refusal
from grpo_ext.recipe.rules import GRPO_RULES, SFT_RULES, check_values
from grpo_ext.recipe.schema import GRPOExtConfig, LaunchConfig, RunConfig
from grpo_ext.recipe.typed_values import Values
from grpo_ext.recipe.values import choices
from tests.support.places import REPO

MODEL = {"model_name_or_path": "m"}
CLASSES = (GRPOExtConfig, RunConfig, ModelConfig, SFTConfig, LaunchConfig)
KNOWN = {field.name for cls in CLASSES for field in dataclasses.fields(cls)}
PACKAGE = REPO / "grpo_ext"
METHODS = {*dir(Values), "defaults", "unsound"}
DEPENDENCIES = [rule for rule in GRPO_RULES if isinstance(rule, Dependency)]


def values():
    return load_recipe(None, MODEL).flat


def check_keys(rules, classes) -> None:
    """Raise `KeyError` if a rule's key or message names something that is not a field."""
    fields = {f.name for cls in classes for f in dataclasses.fields(cls)}
    for rule in rules:
        named: set[str] = set()
        if isinstance(rule, Dependency):
            named = {rule.key, *rule.needed}
        if isinstance(rule, Idle):
            named = set(rule.always)
            named |= {pattern for pattern in rule.patterns if not names_that_match(fields, pattern)}
        if isinstance(rule, Refusal):
            named = {rule.key}
            for _, name, _, _ in Formatter().parse(rule.message):
                if name:
                    named.add(name.partition("[")[0])
        if not named <= fields:
            raise KeyError(f"{rule} names keys that are not fields of a recipe: {named - fields}")


def test_a_mistyped_key_raises_where_it_is_read():
    with pytest.raises(KeyError, match="no field of this recipe is named 'max_completion_lenght'"):
        values()["max_completion_lenght"]
    with pytest.raises(KeyError, match="no field of this recipe is named 'max_completion_lenght'"):
        values().max_completion_lenght  # noqa: B018
    with pytest.raises(KeyError, match="no field of this recipe is named 'bet'"):
        load_recipe(None, MODEL).get("bet")


def test_a_rule_with_a_mistyped_key_raises_and_does_not_pass():
    rule = Refusal("beta", "beta is wrong.", lambda v: v.use_pfet)
    with pytest.raises(KeyError, match="use_pfet"):
        check_values(values(), (rule,), {})


def test_a_message_with_a_mistyped_key_raises():
    rule = Refusal("beta", "beta {bta} is wrong.", lambda v: True)
    with pytest.raises(KeyError, match="bta"):
        check_values(values(), (rule,), {})
    with pytest.raises(KeyError, match="bta"):
        check_keys((rule,), CLASSES)


@pytest.mark.parametrize(
    "rule",
    [
        Refusal("bta", "beta is wrong.", lambda v: False),
        Dependency("bta", (None,), {}),
        Dependency("beta", (None,), {"bta": (1,)}),
        Idle(("beta", "bta"), lambda v: True, "it"),
        Idle(("bta_*",), lambda v: True, "it"),
        Idle(("beta",), lambda v: True, "it", always=("bta",)),
    ],
)
def test_a_table_with_a_mistyped_key_is_found(rule):
    with pytest.raises(KeyError, match="bta"):
        check_keys((rule,), CLASSES)


def test_rules_name_fields_of_their_kind_of_recipe():
    check_keys((*GRPO_RULES, *GRPO_NOTES), (GRPOExtConfig, RunConfig, ModelConfig))
    check_keys((*SFT_RULES, *SFT_NOTES), (SFTConfig, LaunchConfig, ModelConfig))


def test_no_field_has_the_name_of_a_method_of_values():
    assert set() == KNOWN & METHODS


def test_each_rule_stands_once():
    assert all(GRPO_RULES.count(rule) == 1 for rule in GRPO_RULES)
    messages = [rule.message for rule in GRPO_RULES if isinstance(rule, Refusal)]
    assert len(messages) > 30 and len(set(messages)) == len(messages)


def test_each_kind_of_recipe_says_which_fields_it_has():
    supervised = load_sft_recipe(None, {**MODEL, "dataset_name": "d"})
    assert supervised.flat.has("dataset_name") and not supervised.flat.has("num_generations")
    assert values().has("num_generations") and not values().has("completion_only_loss")


def keys_read(path) -> set[tuple[int, str]]:
    """Keys that a file reads from the values of a recipe, or looks for in them, with the line of
    each.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        key = None
        if isinstance(node, ast.Subscript) and is_values(node.value):
            key = node.slice
        if isinstance(node, ast.Compare) and is_values(node.comparators[0]):
            key = node.left
        if read := attribute_read(node, path):
            found.add((node.lineno, read))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            receiver = node.func.value
            recipe = ast.unparse(receiver).split(".")[-1] == "recipe"
            if node.func.attr in ("get", "has") and (recipe or is_values(receiver)):
                key = node.args[0]
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            found.add((node.lineno, key.value))
    return found


def attribute_read(node, path) -> str | None:
    """The key that `v.key` reads in a file of the rules; elsewhere `v` may be a tensor."""
    if path.parent.name != "recipe" or not isinstance(node, ast.Attribute):
        return None
    return node.attr if is_values(node.value) and node.attr not in METHODS else None


def is_values(node) -> bool:
    """Whether an expression is the values of a recipe, which code calls `v` or `flat`."""
    return ast.unparse(node).split(".")[-1] in ("v", "flat")


def test_code_reads_no_key_that_is_not_a_field():
    read = {
        (str(path.relative_to(REPO)), line, key)
        for path in PACKAGE.rglob("*.py")
        for line, key in keys_read(path)
    }
    assert len({key for _, _, key in read}) > 80, "the test has lost sight of the rules"
    assert {place for place in read if place[2] not in KNOWN} == set()


def words_compared(path) -> set[tuple[int, str, str]]:
    """Words that a file compares with the value of a key, as in `v["vllm_mode"] == "server"`: line,
    key and word.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Compare):
            continue
        key = attribute_read(node.left, path)
        if isinstance(node.left, ast.Subscript) and is_values(node.left.value):
            key = node.left.slice.value if isinstance(node.left.slice, ast.Constant) else None
        if key is None:
            continue
        for part in ast.walk(node.comparators[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.add((node.lineno, key, part.value))
    return found


def test_rules_compare_keys_with_words_that_the_field_takes():
    kinds = fields.hints_of(GRPOExtConfig) | fields.hints_of(RunConfig)
    compared = {word for path in PACKAGE.rglob("*.py") for word in words_compared(path)}
    limited = {row for row in compared if row[1] in kinds and choices(kinds[row[1]])}
    assert len(limited) > 10, "the test has lost sight of the rules"
    assert {row for row in limited if row[2] not in choices(kinds[row[1]])} == set()
    assert len(DEPENDENCIES) == 22
    needed = {
        (key, word)
        for dependency in DEPENDENCIES
        for key, values in dependency.needed.items()
        for word in values
        if choices(kinds[key])
    }
    assert {pair for pair in needed if pair[1] not in choices(kinds[pair[0]])} == set()
    registered = {
        "loss_type": loss_names(),
        "scale_rewards": (*advantage_names(), True, False),
        "multi_objective_aggregation": joint_advantage_names(),
    }
    free = [(row.key, row.free) for row in DEPENDENCIES]
    free += [pair for row in DEPENDENCIES for pair in row.needed.items()]
    assert registered.keys() <= {key for key, _ in free}
    for key, words in free:
        assert set(words) <= set(registered.get(key, words))


def test_tables_name_no_key_that_is_not_a_field():
    rules = (*GRPO_RULES, *SFT_RULES)
    named = {
        "rules": {rule.key for rule in rules if isinstance(rule, Refusal)},
        "dependencies": {key for row in DEPENDENCIES for key in (row.key, *row.needed)},
        "CHOICES": set(fields.CHOICES),
        "TYPES": set(fields.TYPES),
        "BOUNDS": {name for _, names in fields.BOUNDS for name in names.split()},
        "NOT_WITH_ADAPTER": set(vllm_options.NOT_WITH_ADAPTER),
        "FIELD_DEFAULTS": set(FIELD_DEFAULTS),
        "PRESETS": {key for preset in PRESETS.values() for key in preset},
        "LENGTHS": set(difference.LENGTHS),
        "packages": {key for key, _, _ in data_yaml("grpo_ext.preflight", "packages.yaml")},
    }
    assert {table: names - KNOWN for table, names in named.items() if names - KNOWN} == {}


def test_patterns_of_keys_fit_a_field():
    idle = [note for note in GRPO_NOTES if isinstance(note, Idle)]
    assert len(idle) == 22
    assert {key for note in idle for key in note.always} <= KNOWN
    patterns = (*difference.FREE, *difference.EVALUATION, *(p for n in idle for p in n.patterns))
    assert [p for p in patterns if not any(fnmatchcase(key, p) for key in KNOWN)] == []
