"""Which code block of a completion is its program, and how long finding it takes."""

from __future__ import annotations

import time

import pytest

from grpo_ext.rewards.answers import CodeBlock, code_blocks
from grpo_ext.rewards.code.code_reward import program_of


@pytest.mark.parametrize(
    ("completion", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("```\nprint(1)\n```", "print(1)\n"),
        ("```Python3\nprint(1)\n```", "print(1)\n"),
        ('```py title="a.py"\nprint(1)\n```', "print(1)\n"),
        ("Code: ```python\nprint(1)```", "print(1)"),
        ("```bash\npip install x\n```\nThen:\n```python\nprint(1)\n```", "print(1)\n"),
        ("```python\nprint(1)\n```\nIt prints\n```text\n1\n```\nThat is it.", "print(1)\n"),
        ("```python\nprint(0)\n```\nBetter:\n```python\nprint(1)\n```", "print(1)\n"),
        ("Call ```f(1)``` now.\n```python\nprint(1)\n```", "print(1)\n"),
        ("Use ``` for code.\n```python\nprint(1)\n```", "print(1)\n"),
        ("````python\nprint(1)\n````", "print(1)\n"),
        ("```python\nprint(1)", "print(1)"),
        ("```markdown\n```python\nprint(1)\n```\n```\nThat is it.", "print(1)\n"),
        ("````markdown\n```python\nprint(1)\n```\n````\nThat is it.", "print(1)\n"),
        ("```bash\npip install x\n\n```python\nprint(1)\n```\nDone.", "print(1)\n"),
        ("```python\r\nprint(1)\r\n```", "print(1)\r\n"),
        ("```python\nprint(0)\n```\nBetter:\n```python\nprint(1)", "print(1)"),
        ("```text\n1\n```\n<answer>print(1)</answer>", "print(1)"),
        ("<think>```python\nprint(0)\n```</think>print(1)", "print(1)"),
    ],
)
def test_the_program_is_the_last_block_of_python(completion, program):
    assert program_of(completion).lstrip(" ") == program


def test_blocks_have_their_language_and_whether_they_are_closed():
    text = "```JSON\n{}\n```\n```c++\nint x;\n```\n```\nopen"
    assert code_blocks(text) == [
        CodeBlock("json", "{}\n", True),
        CodeBlock("c++", "int x;\n", True),
        CodeBlock("", "open", False),
    ]


@pytest.mark.parametrize(
    "piece", ["```", "```\n", "```a`", "``` ", "```py\n", "```x ", "`\n", "```a" + " " * 30]
)
def test_hostile_fences_take_linear_time(piece):
    start = time.process_time()
    code_blocks(piece * 100_000)
    assert time.process_time() - start < 10
