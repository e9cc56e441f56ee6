"""The page of keys by topic is what the code says, and has every key."""

from __future__ import annotations

from tests.recipe.keys_page import PAGE, choices, defaults, documented, own_keys, page, topics


def test_the_page_is_what_the_code_says():
    assert PAGE.read_text(encoding="utf-8") == page(), "run `make keys`"


def test_every_key_of_this_package_has_one_topic():
    named = [key for topic in topics() for key in topic["keys"]]
    assert len(named) == len(set(named))
    assert own_keys() <= set(named) <= set(defaults())


def test_every_other_key_is_named_once():
    text = PAGE.read_text(encoding="utf-8")
    for key in defaults():
        in_table = text.count(f"\n| `{key}` |")
        in_list = text.rpartition("\n## ")[2].count(f"`{key}`")
        assert in_table + in_list == 1, key


def test_texts_are_whole_sentences_of_docstrings():
    assert documented()["group_filter"].startswith("what happens to a group without signal.")
    assert documented()["eval_top_k"] == documented()["eval_top_p"]
    assert choices()["group_filter"] == ("off", "drop", "refill")
