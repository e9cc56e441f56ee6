"""Rewards that do what their completion says, good and bad, for the tests of the pool.

Loaded there as a plugin.
"""

import os
import pickle
import subprocess
import sys
import time
from multiprocessing.connection import Connection

from grpo_ext.rewards import Example, register

HOARD = []


@register("odd", needs_cpu=True, examples=[Example("0.5", 0.5), Example("raise", None)])
def odd(completions, gold=None, *, scale: float = 1.0):
    """The number that the completion is, or what it asks for."""
    return [scale * act(text) for text in completions]


@register("odd_first", needs_cpu=True, examples=[Example("die", None)])
def odd_first(completions):
    """As `odd`, whose first example is harmless."""
    return [act(text) for text in completions]


@register("odd_formulas", needs_cpu="formulas")
def odd_formulas(completions):
    """The number that the completion is, also nan or inf."""
    return list(map(float, completions))


@register("odd_columns", needs_cpu=True)
def odd_columns(completions, gold, prompts, **columns):
    """1 where all columns are of the completion's own row."""
    rows = zip(completions, gold, prompts, columns["extra"], strict=True)
    return [float(text == g == p[0]["content"] == e) for text, g, p, e in rows]


def act(text: str) -> float:
    if text == "hang":
        while True:
            pass
    if text == "hang in C":
        return float(9**9**9 % 7)
    if text == "sleep":
        time.sleep(6000)
    if text.startswith("nap "):
        time.sleep(float(text[4:]))
        return 1.0
    if text == "bomb":
        return float(len([bytearray(2**27) for _ in range(10_000)]))
    if text == "die":
        os._exit(3)
    if text == "crash":
        os.abort()
    if text == "exit":
        raise SystemExit(4)
    if text == "close":
        os.closerange(3, 100)
        time.sleep(6000)
    if text == "child":
        subprocess.Popen(["sleep", "6000"])
        time.sleep(6000)
    if text == "own session":
        return float(subprocess.Popen(["sleep", "6000"], start_new_session=True).pid)
    if text == "orphan":
        out = subprocess.run(
            ["sh", "-c", "setsid sleep 6000 >/dev/null & echo $!"], stdout=subprocess.PIPE
        )
        return float(out.stdout)
    if text == "fork":
        child = os.fork()
        time.sleep(0.1 if child else 0.0)
        return float(child == 0)
    if text == "pickle":
        harm = type(
            "Harm", (), {"__reduce__": lambda self: (exec, ("import os; os.unpickled = True",))}
        )
        Connection(int(sys.argv[1])).send_bytes(pickle.dumps(harm()))
        time.sleep(0.5)
    if text == "hoard":
        while True:
            HOARD.append(bytearray(2**20))
    if text == "large":
        return float(len(bytearray(2**26)))
    if text == "pid":
        return float(os.getpid())
    if text == "torch":
        return float("torch" in sys.modules)
    if text == "main":
        return float(
            sys.modules["__main__"].__name__ == "__main__"
            and hasattr(sys.modules["__main__"], "serve")
        )
    return float(text)


@register("odd_noted", needs_cpu=True)
def odd_noted(completions, notes):
    """The length of the text, with a line in the file `notes` for each row scored."""
    for text, path in zip(completions, notes, strict=True):
        with open(path, "a", encoding="utf-8") as file:
            file.write(f"{len(text)}\n")
    return [float(len(text)) for text in completions]
