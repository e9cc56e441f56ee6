"""Programs made of system calls and tricks.

None is paid, none stays unscored, and nothing of one stays on the machine.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import psutil
import pytest
from hypothesis import strategies as st

from grpo_ext.rewards import build
from grpo_ext.rewards.code.bubblewrap import find_bwrap
from tests.support.hunting import hunt
from tests.support.machine_state import State, left_behind, own_state

EXPECTED = 739174  # no statement below makes this number
TESTS = [
    [f"assert answer() == {EXPECTED}", f"assert [answer()] == [{EXPECTED}]"],
    [{"input": "1", "output": str(EXPECTED)}],
]
CALLS = 470  # system calls of x86_64 and aarch64 have numbers below
NUMBERS = [0, 1, 2, 3, 9, 15, 255, 4096, 0x10000000, 0x7E020000, 2**31 - 1, 2**63 - 1, -1, -100]
POINTERS = ["b'/tmp/x'", "b'/etc/passwd'", "b'SECRET'", "buffer", "None"]
STATEMENTS = [
    "import os; os.fork()",
    "import os; os.setsid()",
    "import os; os.closerange(0, 100)",
    "import os; os.dup2(1, 2)",
    "import os; [os.write(fd, b'\\x01' * 9) for fd in range(12)]",
    "import os; os.write(1, b'739' * 9999999)",
    "import os; os.kill(-1, 9)",
    "import os; os.kill(os.getppid(), 9)",
    "import os; os._exit(0)",
    "import os; os.abort()",
    "import os; os.mkfifo('f'); open('f')",
    "import os; os.symlink('SECRET', 'l'); print(open('l').read())",
    "import sys; sys.exit(0)",
    "import sys; sys.setrecursionlimit(10**9)",
    "import sys; sys.stdout = None",
    "import sys; sys.modules.clear()",
    "import sys; sys.settrace(lambda *_: 1 / 0)",
    "import builtins; builtins.len = builtins.repr = builtins.str = lambda *_: '739'",
    "import builtins; del builtins.__import__",
    "import gc; [o.clear() for o in gc.get_objects() if type(o) is dict]",
    "import signal; [signal.signal(n, lambda *_: None) for n in (1, 2, 14, 15)]",
    "import threading; threading.Thread(target=lambda: [0 for _ in iter(int, 1)]).start()",
    "import atexit; atexit.register(lambda: [0 for _ in iter(int, 1)])",
    "import resource; resource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "import mmap; m = mmap.mmap(-1, 1 << 30); m[::4096] = b'x' * (1 << 18)",
    "x = bytearray(1 << 29)",
    "open('fill', 'wb').write(bytes(1 << 26))",
    "open('SECRET', 'a').write('gone')",
    "print(open('/proc/1/environ').read())",
    "raise BaseException('739')",
    "while True: pass",
]
RETURNED = [
    "type('Same', (), {'__eq__': lambda s, o: True, '__hash__': lambda s: 1})()",
    "type('Same', (int,), {'__eq__': lambda s, o: True})(1)",
    "type('Words', (str,), {'__repr__': lambda s: '739' + '174'})()",
    "type('Many', (list,), {'__len__': lambda s: 1 / 0})([1])",
    "float('nan')",
    "10**9999",
    "[[]] * 10**6",
    "print",
    "iter([1])",
    "'739' + '17'",
    "None",
    "1 / 0",
]


def program_earns_nothing(statements: list[str], returned: str) -> None:
    """Score a program on asserts and on an input with its output.

    Args:
        statements: of the program, each of which may fail.
        returned: the expression that the function under test returns.
    """
    with tempfile.TemporaryDirectory(prefix="grpo_ext-hunt-") as folder:
        secret = Path(folder, "secret")
        secret.write_text("SECRET")
        lines = ["import ctypes", "buffer = ctypes.create_string_buffer(4096)"]
        for statement in statements:
            lines += ["try:", f"    {statement}", "except Exception: pass"]
        lines += ["def answer():", f"    return {returned}", "print(answer())"]
        program = "\n".join(lines).replace("SECRET", str(secret))
        reward = build("code", seconds=0.5, megabytes=128, partial=True)
        before = state_with_processes()
        scores = reward(completions=[f"```python\n{program}\n```"] * 2, tests=TESTS)
        assert scores == [0.0, 0.0]
        assert secret.read_text() == "SECRET" and os.listdir(folder) == ["secret"]
        assert not left_behind(before, state_with_processes, seconds=30)


def state_with_processes() -> State:
    """Return the state of this process, and the processes that it has started."""
    return {
        **own_state(),
        "processes": [child.pid for child in psutil.Process().children(recursive=True)],
    }


@st.composite
def system_call(draw: st.DrawFn) -> str:
    number = draw(st.integers(0, CALLS))
    argument = st.sampled_from([*map(str, NUMBERS), *POINTERS])
    arguments = draw(st.lists(argument, max_size=6))
    return f"ctypes.CDLL(None).syscall({', '.join([str(number), *arguments])})"


def test_programs():
    if find_bwrap() is None:
        pytest.skip("programs cannot be isolated here")
    statement = st.one_of(st.sampled_from(STATEMENTS), system_call())
    hunt(
        program_earns_nothing,
        statements=st.lists(statement, max_size=6),
        returned=st.sampled_from(RETURNED),
    )
