"""`sampler: process`.

However a run ends, no process, thread, descriptor, memory or port of it is left. They are counted.
"""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
import time
from collections import Counter
from pathlib import Path

import psutil
import pytest
import torch
from transformers import TrainerCallback

from grpo_ext.run.ranks import EXIT_INTERRUPTED
from tests.support import overlap_run
from tests.support.forked import LIMIT, Forked

pytestmark = pytest.mark.slow


def held() -> dict[str, Counter]:
    """What this process has, by kind."""
    gc.collect()
    me = psutil.Process()
    files = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {
        "processes": Counter(
            child.pid for child in me.children(recursive=True)
        ),  # with those that have ended unnoticed
        "threads": Counter(thread.name for thread in threading.enumerate()),
        "descriptors": Counter(
            os.readlink(path).split(":")[0] for path in files if os.path.lexists(path)
        ),
        "memory": Counter("memfd" for line in maps if "memfd:" in line),
        "ports": Counter(
            c.laddr.port for c in me.net_connections("inet") if c.status == psutil.CONN_LISTEN
        ),
    }


class At2(TrainerCallback):
    """Does something at the end of step 2, while the sampler works."""

    def __init__(self, act):
        self.act = act

    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 2:
            self.act()


def fails():
    raise KeyError("a callback")


def runs_in_one_process(folder, out):
    """Runs one after the other, and after each what this process has more than before."""

    def trainer(name, act=None, **settings):
        found = overlap_run.make(folder, out / name, max_steps=3, **settings)
        if act is not None:
            found.add_callback(At2(act))
        return found

    def dead_sampler():
        one = trainer("dead", lambda: os.kill(one.parts.sampler._process.pid, signal.SIGKILL))
        one.train()

    def exception():
        with pytest.raises(KeyError):
            trainer("exception", fails).train()

    def evaluation():
        one = trainer("evaluation")
        one.evaluate(one.train_dataset.select(range(2)))

    trainer("first", overlap="off", sampler=None).train()  # what torch itself keeps
    before = held()
    for end in (
        lambda: trainer("end").train(),
        lambda: trainer("again").train(),
        exception,
        dead_sampler,
        evaluation,
    ):
        end()
        more = {kind: now - before[kind] for kind, now in held().items() if now - before[kind]}
        assert not more, (end, more)
    print({kind: sum(counter.values()) for kind, counter in before.items()})


def test_nothing_is_left_in_a_process_that_goes_on(tiny_folder, tmp_path):
    process = Forked(runs_in_one_process, tiny_folder, tmp_path)
    assert process.wait() == 0, process.printed[-4000:]


def long_run(folder, out):
    """A run whose reward, while there is a file `hold`, says so and does not come back."""

    def slow(completions, **kwargs):
        time.sleep(0.2)
        while (out / "hold").exists():
            (out / "held").touch()
            time.sleep(0.02)
        return overlap_run.letters(completions)

    overlap_run.make(
        folder, out, slow, max_steps=500, prompts=1000, save_strategy="steps", save_steps=1
    ).train()


def samplers_of(*pids: int) -> list[psutil.Process]:
    """The sampler processes that these have started, whoever is their parent now."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "grpo_ext.samplers.process_worker" in words and words[-1] in map(str, pids):
            found.append(process)
    return found


def wait_until(holds, seconds=LIMIT):
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def start_ranks(count, folder, out):
    """So many ranks of one run, whose samplers work; the ranks and their port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {
        "WORLD_SIZE": count,
        "LOCAL_WORLD_SIZE": count,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
    }
    shared = {key: str(value) for key, value in shared.items()} | {"ACCELERATE_USE_CPU": "true"}
    places = [
        {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} if count > 1 else {}
        for rank in range(count)
    ]
    return [Forked(long_run, folder, out, environment=place) for place in places], port


@pytest.mark.parametrize(
    "ranks, ends, code",
    [
        pytest.param(1, [signal.SIGINT], EXIT_INTERRUPTED, id="ctrl-c"),
        pytest.param(1, [signal.SIGINT] * 2, -signal.SIGINT, id="ctrl-c-twice"),
        pytest.param(1, [signal.SIGTERM], EXIT_INTERRUPTED, id="sigterm"),
        pytest.param(1, [signal.SIGKILL], -signal.SIGKILL, id="killed"),
        pytest.param(
            1, [None, signal.SIGKILL], -signal.SIGKILL, id="killed-while-the-sampler-starts"
        ),
        pytest.param(2, [signal.SIGKILL], -signal.SIGKILL, id="one-of-two-ranks-killed"),
    ],
)
def test_nothing_is_left_of_a_process_that_ends(tiny_folder, tmp_path, ranks, ends, code):
    processes, port = start_ranks(ranks, tiny_folder, tmp_path)
    pids = [process.pid for process in processes]
    wait_until(lambda: len(samplers_of(*pids)) == ranks)
    if ends[0] is not None:
        wait_until(lambda: (tmp_path / "checkpoint-2").exists())
    if len(ends) == 2 and None not in ends:  # the second comes before the step of the first ends
        (tmp_path / "hold").touch()
        wait_until((tmp_path / "held").exists)
    for number in filter(None, ends):
        processes[-1].send_signal(number)
        if number == signal.SIGINT:  # two at once would arrive as one
            processes[-1].wait_for("SIGINT: the run will save a checkpoint")
    assert processes[-1].wait() == code, processes[-1].printed[-3000:]
    for other in processes[:-1]:  # it notices by itself
        assert other.wait() not in (0, -signal.SIGKILL), other.printed[-3000:]
    wait_until(lambda: not samplers_of(*pids))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


def below() -> set[int]:
    return {
        child.pid
        for child in psutil.Process().children(recursive=True)
        if "process_worker" in " ".join(child.cmdline())
    }


def test_no_process_is_left_and_a_killed_one_repeats_its_work(tiny_folder, tmp_path):
    before = below()
    whole = overlap_run.make(tiny_folder, tmp_path)
    whole.train()
    assert below() == before
    killed = overlap_run.make(tiny_folder, tmp_path)
    plain = killed.parts.sampler.collect
    calls = []

    def collect():
        calls.append(1)
        if (
            len(calls) == 3
        ):  # of a generation under way: the second one is of the check of the weights
            [pid] = below() - before
            os.kill(pid, signal.SIGKILL)
        return plain()

    killed.parts.sampler.collect = collect
    killed.train()
    assert len(calls) == 4 + 3
    for name, p in killed.model.named_parameters():
        assert torch.equal(p, dict(whole.model.named_parameters())[name])
