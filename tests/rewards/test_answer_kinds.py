"""Exact texts, choices, numbers, patterns and JSON.

What people write, and what cannot be judged.
"""

import time

import pytest

from grpo_ext.rewards import build

SCHEMA = {
    "type": "object",
    "properties": {"tags": {"type": "array", "items": {"pattern": "^[a-z]+$"}}},
    "required": ["tags"],
}


@pytest.mark.parametrize(
    ("completion", "letter"),
    [
        ("B", "B"),
        ("b.", "B"),
        ("**C**", "C"),
        ("The answer is D.", "D"),
        ("Answer: (A)", "A"),
        ("I choose option E", "E"),
        ("A) is wrong, so B)", "B"),
        ("<answer>(C)</answer>", "C"),
        ("<think>B</think>\nA", "A"),
        (r"so \boxed{D}", "D"),
        ("A cat sat. I think", None),
        ("", None),
        ("no idea", None),
        ("answer is unclear", None),
        ("B, because A is false", None),
    ],
)
def test_the_letter_that_is_chosen(completion, letter):
    for gold in "ABCDE":
        assert build("choice")(completions=[completion], solution=[gold]) == [float(gold == letter)]


@pytest.mark.parametrize(
    ("completion", "solution", "score"),
    [
        ("3.14", 3.14159, 0.0),
        ("it costs $3.50", "3.5", 1.0),
        ("-5", -5, 1.0),
        ("5", -5, 0.0),
        ("1e3", 1000, 1.0),
        ("3/4", 0.75, 1.0),
        ("0", 0, 1.0),
        ("0.0000001", 0, 1.0),
        ("7", None, None),
        ("1e999", 1e300, 0.0),
        ("9" * 5000, 3, 0.0),
        ("1e400", 0, 0.0),
        ("about 1e100 of them", 1e100, 1.0),
        ("1e400", "1e400", None),
    ],
)
def test_numbers(completion, solution, score):
    assert build("number")(completions=[completion], solution=[solution]) == [score]


def test_a_tolerance_is_a_share_of_the_solution():
    reward = build("number", tolerance=0.1)
    assert reward(completions=["91", "89", "-91"], solution=[100, 100, -100]) == [1.0, 0.0, 1.0]


def test_a_pattern_that_explodes_is_left_unscored():
    start = time.process_time()
    assert build("regex", pattern="(a|aa)+$")(completions=["a" * 60 + "!"]) in ([None], [0.0])
    assert time.process_time() - start < 30


@pytest.mark.parametrize(
    ("completion", "score"),
    [
        ('{"tags": ["a", "b"]}', 1.0),
        ('{"tags": ["A"]}', 0.2),
        ('["tags"]', 0.2),
        ("tags", 0.0),
        ("[" * 50_000, 0.0),
        ('```json\n{"tags": []}\n```', 1.0),
        ('```python\nprint(tags)\n```\nIt prints\n```json\n{"tags": []}\n```', 1.0),
        ('```json\n{"tags": []}\n```\nfrom\n```python\nprint(tags)\n```', 1.0),
        ('```json\n{"tags": []}', 0.0),
        ('```markdown\n```json\n{"tags": []}\n```\n```', 1.0),
        ('```json\r\n{"tags": []}\r\n```', 1.0),
        ("1" * 5000, 0.0),
        ('<think>{"tags": []}</think>', 0.0),
        ("NaN", 0.2),
    ],
)
def test_json(completion, score):
    assert build("json_schema")(completions=[completion], json_schema=[SCHEMA]) == [score]


def test_a_schema_that_is_none_is_an_error_of_the_row():
    with pytest.raises(Exception, match=r"is not (valid|of type)"):
        build("json_schema")(completions=["1"], json_schema=[{"type": "number", "minimum": "a"}])


def test_a_schema_never_loads_another_document(monkeypatch):
    loaded = []
    monkeypatch.setattr("urllib.request.urlopen", lambda *args, **kwargs: loaded.append(args))
    schema = {"$ref": "http://localhost:1/schema.json"}
    with pytest.raises(Exception, match="Unresolvable"):
        build("json_schema")(completions=["1"], json_schema=[schema])
    assert loaded == []


def test_a_schema_that_is_none_is_an_error_even_if_the_answer_is_not_json():
    with pytest.raises(Exception, match=r"is not (valid|of type)"):
        build("json_schema")(completions=["no"], json_schema=[{"type": "number", "minimum": "a"}])
