"""The reward `code`: hostile programs get nothing and touch nothing, honest ones are judged right."""

import os
import socket
import sys
import threading

import psutil
import pytest
from forked import LIMIT
from hostile_programs import CHEATS, FILES, HUNGRY, NETWORK, PROCESSES

from grpo_ext.rewards import build
from grpo_ext.rewards.code import sandbox
from grpo_ext.rewards.code.sandbox import NoIsolation, plain, run
from grpo_ext.rewards.pool import RewardPool

TESTS = ["assert double(2) == 4", "assert double(8) == 4 * 4"]


def isolated_here():
    try:
        return run("", expressions=("1",), seconds=LIMIT).values == ("1",)
    except NoIsolation:
        return False


needs_isolation = pytest.mark.skipif(
    not isolated_here(), reason="this kernel does not let users make namespaces"
)


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """A file to destroy, a file to read, and a server that counts who connects."""
    folder = tmp_path_factory.mktemp("world")
    (folder / "target").write_text("whole")
    (folder / "secret").write_text("secret")
    server = socket.create_server(("127.0.0.1", 0))
    came = []

    def listen():
        while True:
            try:
                came.append(server.accept()[0])
            except OSError:
                return

    threading.Thread(target=listen, daemon=True).start()
    words = {
        "TARGET": f"{folder}/target",
        "SECRET": f"{folder}/secret",
        "FOLDER": str(folder),
        "PARENT": str(os.getpid()),
    }
    yield folder, words | {"PORT": str(server.getsockname()[1])}, came
    server.close()


@needs_isolation
@pytest.mark.parametrize("program", [*NETWORK, *FILES, *PROCESSES, *HUNGRY, *CHEATS])
def test_no_hostile_program_gets_anything(world, program):
    folder, words, came = world
    for word, value in words.items():
        program = program.replace(word, value)
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    found = run(program, seconds=1.0, megabytes=256)
    assert "secret" not in found.printed and "root:" not in found.printed
    score = build("code", seconds=1.0, megabytes=256)(
        completions=[f"```python\n{program}\n```"], tests=[TESTS]
    )
    assert score == [0.0]
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "target": "whole",
        "secret": "secret",
    } and not came
    left = [p for p in psutil.Process().children(recursive=True) if p.pid not in before]
    assert not psutil.wait_procs(left, timeout=LIMIT)[1]


def test_there_are_enough_hostile_programs():
    assert len({*NETWORK, *FILES, *PROCESSES, *HUNGRY, *CHEATS}) >= 60


@needs_isolation
@pytest.mark.parametrize(
    ("program", "tests", "score"),
    [
        ("def f(x): return sorted(x)", ["assert f([3, 1]) == [1, 3]", "assert f('ba') == ['a', 'b']"], 1),
        ("def f(x): return set(x)", ["assert f([1, 1]) == {1}", "assert f([]) == set()"], 1),
        ("from collections import Counter\ndef f(x): return Counter(x)", ["assert f('aab') == {'a': 2, 'b': 1}"], 0),
        ("from collections import Counter\ndef f(x): return dict(Counter(x))", ["assert f('aab') == {'b': 1, 'a': 2}"], 1),
        ("import math\ndef f(x): return math.sqrt(x)", ["import math"], None),
        ("def f(x): return x / 3", ["assert abs(f(1) - 0.3333) < 1e-3", "assert f(3) == 1"], 1),
        ("def f(x): return x is None", ["assert f(None)", "assert not f(1)", "assert f(None) == True"], 1),
        ("def f(x): return -x", ["assert f(f(2)) == f(-2)"], 1),
        ("def f(x): return -x", ["assert f(2) == f(3)"], 0),
        ("def f(x): return 1", ["assert f(2) == 1 + int('0')", "assert f(2) == sum([1])"], 1),
        ("x = input(); y = input(); print(int(x) + int(y))", [{"input": "1\n2\n", "output": "3"}], 1),
        ("import sys\nfor line in sys.stdin: print(line.strip()[::-1])", [{"input": "ab\ncd", "output": "ba\ndc\n"}], 1),
        ("print('3 ')\nprint()", [{"input": "", "output": "3"}], 1),
        ("print(3)\n1 / 0", [{"input": "", "output": "3"}], 0),
        ("def main(): print(max(input().split()))\nif __name__ == '__main__': main()", [{"input": "3 9", "output": "9"}], 1),
        ("class Stack(list):\n    push = list.append", ["assert Stack([1]).pop() == 1"], 1),
        ("with open('/tmp/a', 'w') as file: file.write('7')\nx = open('/tmp/a').read()", ["assert x == '7'"], 1),
        ("from threading import Thread as T\nx = []\nt = T(target=x.append, args=(1,)); t.start(); t.join()", ["assert x"], 1),
        ("def f(x):\n    return x +", ["assert f(1) == 2"], 0),
        ("", ["assert f(1) == 2"], 0),
    ],
)  # fmt: skip
def test_honest_programs_are_judged_right(program, tests, score):
    reward = build("code", seconds=LIMIT)
    if score is None:
        with pytest.raises(ValueError, match="is no assert"):
            reward(completions=[program], tests=[tests])
    else:
        assert reward(completions=[f"Here:\n```python\n{program}\n```\nDone."], tests=[tests]) == [
            float(score)
        ]


@needs_isolation
def test_the_share_of_tests_and_tests_as_text():
    tests = '["assert f(1) == 1", "assert f(2) == 2", "assert f(3) == 4", "assert f(4) == 1 / 0"]'
    assert build("code", partial=True, seconds=LIMIT)(
        completions=["f = lambda x: x"], tests=[tests]
    ) == [0.5]
    assert build("code", seconds=LIMIT)(completions=["f = lambda x: x"], tests=[tests]) == [0.0]
    both = [
        '[{"input": "true", "output": "\\u2713 \\ud83d\\ude00", "note": null}]',
        "[{'input': 'true', 'output': '✓ 😀'}]",
    ]
    printing = ["print('✓ 😀')"] * 2
    assert build("code", seconds=LIMIT)(completions=printing, tests=both) == [1.0, 1.0]


@needs_isolation
def test_a_right_side_that_takes_too_long_leaves_the_row_unscored():
    with pytest.raises(TimeoutError, match="right sides"):
        build("code", seconds=0.5)(
            completions=["f = lambda: 1"], tests=[["assert f() == 1", "assert f() == 9**9**9**9"]]
        )


@needs_isolation
def test_it_runs_in_reward_workers():
    with RewardPool(1, timeout=LIMIT) as pool:
        good, bad = "double = lambda x: 2 * x", "while True: pass"
        scores, errors = pool.score(
            build("code", seconds=10.0), {"completions": [good, bad, good], "tests": [TESTS] * 3}
        )
    assert scores == [1.0, 0.0, 1.0] and not errors


def test_without_isolation_it_refuses_or_does_as_told(monkeypatch, tmp_path):
    refusing = tmp_path / "inside.py"
    refusing.write_text(
        sandbox.INSIDE.read_text().replace(
            "    root_in_memory()\n", "    raise OSError('not here')\n"
        )
    )
    monkeypatch.setattr(sandbox, "INSIDE", refusing)
    reward, given = build("code"), {"completions": ["other = 1"], "tests": [["assert other == 1"]]}
    with pytest.raises(NoIsolation, match="set isolation: none"):
        reward(**given)
    assert build("code", isolation="none")(**given) == [1.0]


def test_values_that_are_no_plain_data_are_texts():
    assert (
        plain("[1, 'a']") == [1, "a"]
        and plain("Fraction(1, 2)") == "Fraction(1, 2)"
        and plain(None) is None
    )
    assert plain("(" * 5000) == "(" * 5000 and sys.getrecursionlimit() < 10_000
