"""The page of all rules is what the code says, and has every rule."""

from __future__ import annotations

from grpo_ext.recipe.notes import GRPO_NOTES, SFT_NOTES
from grpo_ext.recipe.rule_kinds import Dependency, Idle, Refusal
from grpo_ext.recipe.rules import GRPO_RULES, SFT_RULES
from tests.recipe.rules_page import FIELDS, PAGE, entries, page

SILENT = {"load_plugins"}  # it only registers what later rules look up


def test_the_page_is_what_the_rules_say():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make rules`"


def test_every_rule_is_on_the_page_under_a_key():
    found = entries()
    functions = {entry.place.partition(": ")[2] for entry in found}
    keys = {entry.key for entry in found}
    for rule in (*GRPO_RULES, *SFT_RULES, *GRPO_NOTES, *SFT_NOTES):
        if isinstance(rule, Refusal):
            assert rule.key in keys and rule.holds.__name__ in functions
        elif isinstance(rule, Dependency):
            assert rule.key in keys
        elif isinstance(rule, Idle):
            assert {*rule.patterns} <= keys
        else:
            assert {rule.__name__} <= functions | SILENT
    assert {key for key in keys if "*" not in key} - {"any training argument"} <= FIELDS


def test_every_entry_says_in_a_sentence_what_is_wrong():
    for entry in entries():
        assert entry.summary.endswith((".", "`none`.")), entry
