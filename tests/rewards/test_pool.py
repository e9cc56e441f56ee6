"""The pool with rewards that really hang, eat memory and die."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from grpo_ext.common.modules import load_file
from grpo_ext.rewards import build
from grpo_ext.rewards.guard import Guard
from grpo_ext.rewards.pool import RewardPool, prepared
from tests.support.forked import LIMIT
from tests.support.places import REPO
from tests.support.processes import alive, gone, wait_until
from tests.support.registry_state import registry_as_before

ODD = REPO / "tests" / "support" / "odd_rewards.py"
HANG = 5.0  # seconds that a row may take where some hang: the others take a thousandth of it


@pytest.fixture(scope="module")
def odd():
    with registry_as_before():
        load_file(ODD)
        yield lambda **options: build("odd", **options)


def ask(pool, reward, *texts, **columns):
    return pool.score(reward, {"completions": list(texts), **columns})


def ask_too_long(pool, reward, *texts):
    """The scores of rows that end their worker, or take longer than the half second they get."""
    workers = pool._ready_worker_pool()
    usual = workers.timeout
    workers.timeout = 0.5
    try:
        return ask(pool, reward, *texts)[0]
    finally:
        workers.timeout = usual


def test_scores_come_in_order(odd):
    texts = list(map(str, random.Random(0).sample(range(1000), 300)))
    with RewardPool(3) as pool:
        scores, errors = ask(pool, odd(scale=2.0), *texts)
    assert scores == [2.0 * int(text) for text in texts] and not errors


def test_a_system_that_refuses_the_limit_of_memory_has_workers_all_the_same(
    odd, tmp_path, monkeypatch
):
    """As macOS does; the worker's own Python is told to refuse."""
    (tmp_path / "sitecustomize.py").write_text(
        "import resource\n\n\ndef refuse(kind, limits):\n"
        "    raise ValueError('current limit exceeds maximum limit')\n\n\n"
        "resource.setrlimit = refuse\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with RewardPool(1) as pool:
        assert ask(pool, odd(), "1", "2") == ([1.0, 2.0], {})


def test_columns_and_conversational_completions_reach_their_row(odd):
    n = 40
    texts = [f"row {i}" for i in range(n)]
    given = {
        "completions": [[{"role": "assistant", "content": text}] for text in texts],
        "prompts": [[{"role": "user", "content": text}] for text in texts],
        "completion_ids": [[i] for i in range(n)],
        "gold": texts,
        "extra": texts,
        "trainer_state": threading.Lock(),  # what cannot be sent stays here
        "log_extra": print,
    }
    with RewardPool(2) as pool:
        scores, errors = pool.score(build("odd_columns"), given)
        assert scores == [1.0] * n and not errors
        del given["gold"]
        scores, errors = pool.score(build("odd_columns"), given)
        assert scores == [None] * n and "reads the column 'gold'" in errors[0]


@pytest.mark.parametrize("workers", [1, 2])
def test_bad_rows_become_none_and_the_others_are_unharmed(odd, workers):
    bad = ["hang", "hang in C", "sleep", "bomb", "die", "crash", "exit", "raise", "close", "child"]
    texts = list(map(str, range(60)))
    places = random.Random(workers).sample(range(60), len(bad))
    for place, text in zip(places, bad, strict=True):
        texts[place] = text
    with RewardPool(workers, timeout=HANG, memory_limit=2**29) as pool:
        scores, errors = ask(pool, odd(), *texts)
        assert scores == [None if n in places else float(n) for n in range(60)]
        assert set(errors) == set(places)
        assert "TimeoutError" in errors[places[0]] and "exit code 3" in errors[places[4]]
        assert "SystemExit: 4" in errors[places[6]] and "could not convert" in errors[places[7]]
        assert ask(pool, odd(), "7") == ([7.0], {})


def test_memory_is_limited(odd):
    with RewardPool(1, timeout=LIMIT, memory_limit=2**28) as pool:
        scores, errors = ask(pool, odd(), "bomb", "1")
    assert scores == [None, 1.0] and "MemoryError" in errors[0]


def test_a_worker_that_has_used_up_its_memory_is_replaced(odd):
    with RewardPool(1, timeout=LIMIT, memory_limit=2**28) as pool:
        scores, errors = ask(pool, odd(), "hoard", "large", "2")
    assert scores == [None, 2.0**26, 2.0] and list(errors) == [0]


def test_a_process_that_a_reward_forks_off_answers_nothing(odd):
    texts = ["fork", "2", "3", "fork", "5", "nap 0.3", "7"]
    with RewardPool(1) as pool:
        assert ask(pool, odd(), *texts) == ([0.0, 2.0, 3.0, 0.0, 5.0, 1.0, 7.0], {})


def test_what_a_reward_writes_on_the_pipe_is_not_unpickled(odd):
    with RewardPool(1) as pool:
        scores, errors = ask(pool, odd(), "1", "pickle", "2")
    assert (
        scores == [1.0, None, 2.0]
        and "ChildProcessError" in errors[1]
        and not hasattr(os, "unpickled")
    )


def test_a_few_hanging_rows_do_not_hold_up_the_batch(odd):
    texts = ["hang", *["sleep"] * 4, "bomb", *map(str, range(6, 256))]
    with RewardPool(2, timeout=60.0) as pool:
        ask(pool, odd(), "1")
        worker_pool = pool._ready_worker_pool()
        futures = pool._hand_out(odd(), *prepared(odd(), {"completions": texts}))
        # rows hang beside each other, and not one or two at a time
        wait_until(lambda: sum(worker.overdue for worker in list(worker_pool.workers)) >= 3)
        wait_until(lambda: all(future.done() for future in futures[5:]))
    scores = [future.result(LIMIT)[0] for future in futures]
    assert scores == [None] * 6 + list(map(float, range(6, 256)))


def test_a_slow_reward_keeps_to_its_workers(odd):
    """Rows that take long as a rule are no reason to start more workers."""
    with RewardPool(2, timeout=LIMIT) as pool:
        ask(pool, odd(), *["nap 0.4"] * 4)
        worker_pool = pool._ready_worker_pool()
        assert worker_pool.usual >= 0.4 * (1 - 0.95**4)  # a running mean, which begins at 0
        worker_pool.timeout = 4.0  # rows of 0.4 s would be overdue after 0.2 s,
        worker_pool.usual = LIMIT / 10  # if rows were not usually slow
        ready = [*worker_pool.workers]
        assert ask(pool, odd(), *["nap 0.4"] * 8)[0] == [1.0] * 8
        assert worker_pool.workers == ready


def test_while_a_row_hangs_the_next_worker_gets_ready(odd):
    """Else the next batch would wait for the deadline and for a worker's start."""
    with RewardPool(1, timeout=100.0) as pool:
        ask(pool, odd(), "1")
        worker_pool = pool._ready_worker_pool()
        thread = threading.Thread(target=ask, args=(pool, odd(), "sleep"))
        thread.start()
        while not (len(worker_pool.workers) == 2 and worker_pool.workers[1].loaded):
            assert thread.is_alive()
            time.sleep(0.02)
        ready = {worker.process.pid for worker in worker_pool.workers}
        assert ask(pool, odd(), "2") == ([2.0], {})
        assert {worker.process.pid for worker in worker_pool.workers} == ready and len(ready) == 2


def test_overdue_workers_get_one_replacement_each(odd):
    """More would take the processor from those that are at work while they load what the reward
    needs.
    """
    with RewardPool(2, timeout=2.0) as pool:
        ask(pool, odd(), "1")
        worker_pool = pool._ready_worker_pool()
        thread = threading.Thread(
            target=ask, args=(pool, odd(), *["sleep"] * 3, *map(str, range(50)))
        )
        thread.start()
        most = 0
        while thread.is_alive():
            most = max(most, sum(not worker.overdue for worker in list(worker_pool.workers)))
            time.sleep(0.005)
        assert most == 2


def test_workers_that_are_killed_are_replaced(odd):
    with RewardPool(2, timeout=LIMIT) as pool:
        before = set(ask(pool, odd(), *["pid"] * 20)[0])
        assert ask_too_long(pool, odd(), "sleep", "sleep", "sleep") == [None] * 3
        after = set(ask(pool, odd(), *["pid"] * 20)[0])
        wait_until(lambda: len(pool._ready_worker_pool().workers) == 2)
    assert after and not any(alive(int(pid)) for pid in before | after)


def test_worker_is_a_fresh_interpreter_without_torch(odd):
    with RewardPool(1) as pool:
        assert ask(pool, odd(), "torch", "main")[0] == [0.0, 1.0]
        assert ask(pool, build("accuracy"), r"\boxed{\frac{2}{4}}", solution=["0.5"]) == ([1.0], {})
        assert ask(pool, odd(), "torch")[0] == [0.0]  # math-verify has not brought it in


def test_several_threads_share_a_pool(odd):
    results = {}
    with RewardPool(2) as pool:

        def work(n: int) -> None:
            results[n] = ask(pool, odd(scale=float(n)), *map(str, range(50)))[0]

        threads = [threading.Thread(target=work, args=(n,)) for n in range(1, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == {n: [float(n * k) for k in range(50)] for n in range(1, 5)}


def test_a_pool_outlives_the_thread_that_first_used_it(odd):
    with RewardPool(1) as pool:
        pids = []
        thread = threading.Thread(target=lambda: pids.extend(ask(pool, odd(), "pid")[0]))
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert ask(pool, odd(), "pid")[0] == pids


def test_close_leaves_nothing_and_the_pool_starts_again(odd):
    pool = RewardPool(2)
    pids = set(map(int, ask(pool, odd(), *["pid"] * 10)[0]))
    pool.close()
    assert gone(pids)
    assert ask(pool, odd(), "3") == ([3.0], {})
    pids = {worker.process.pid for worker in pool._ready_worker_pool().workers}
    del pool
    assert gone(pids)


def test_closing_gives_up_what_waits(odd):
    pool = RewardPool(1, timeout=LIMIT)
    found = []
    thread = threading.Thread(target=lambda: found.append(ask(pool, odd(), "sleep", "1")))
    thread.start()
    wait_until(
        lambda: (
            pool._worker_pool is not None and any(one.spent for one in pool._worker_pool.workers)
        )
    )
    pool.close()
    thread.join(LIMIT)
    assert found[0][0] == [None, None] and "the reward workers have been stopped" in found[0][1][1]


def test_what_a_reward_has_started_ends_with_its_worker(odd):
    with RewardPool(1, timeout=HANG) as pool:
        [worker] = list(map(int, ask(pool, odd(), "pid")[0]))
        thread = threading.Thread(target=ask, args=(pool, odd(), "child"))
        thread.start()
        children = []
        while not children and thread.is_alive():
            out = subprocess.run(
                ["pgrep", "-P", str(worker)], capture_output=True, text=True
            ).stdout
            children = list(map(int, out.split()))
        thread.join()
        assert children and gone([worker, *children])


@pytest.mark.parametrize("end", ["close", "sleep", "die"])
def test_what_a_reward_has_put_into_a_session_of_its_own_ends_with_its_worker(odd, end):
    with RewardPool(1, timeout=LIMIT) as pool:
        started = list(map(int, ask(pool, odd(), "own session", "orphan")[0]))
        assert all(alive(pid) for pid in started)
        if end != "close":
            assert ask_too_long(pool, odd(), end) == [None]
            assert gone(started)
    assert gone(started)


SCRIPT = """
import os, sys, threading, time
from grpo_ext.rewards import build, register
from grpo_ext.common.modules import load_file
from grpo_ext.rewards.pool import RewardPool

FACTOR = 3.0

@register("from_main", needs_cpu=True)
def from_main(completions, *, plus: float = 0.0):
    return [FACTOR * float(text) + plus for text in completions]

load_file({odd!r})
pool = RewardPool(2, timeout=6000)
print(pool.score(build("from_main", plus=1.0), {{"completions": ["1", "2"]}}), flush=True)
pids = set(pool.score(build("odd"), {{"completions": ["pid"] * 20 + ["own session", "orphan"]}})[0])
columns = {{"completions": ["hang in C", "sleep"]}}
threading.Thread(target=pool.score, args=(build("odd"), columns)).start()
time.sleep(0.5)
print(*(int(pid) for pid in pids), flush=True)
time.sleep(6000)
"""


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_a_trainer_that_is_killed(end):
    """The script comes through stdin, as a notebook does.

    There is no file that a worker could run again.
    """
    process = subprocess.Popen(
        [sys.executable, "-u", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path.cwd(),
    )
    process.stdin.write(SCRIPT.format(odd=str(ODD)))
    process.stdin.close()
    assert process.stdout.readline() == "([4.0, 7.0], {})\n"
    pids = list(map(int, process.stdout.readline().split()))
    assert pids and all(alive(pid) for pid in pids)
    process.send_signal(end)
    if end == signal.SIGINT:  # a thread still waits for a row; a second one ends that, too
        time.sleep(0.5)
        process.send_signal(end)
        time.sleep(0.5)
        process.kill()
    process.wait(timeout=LIMIT)
    process.stdout.close()
    assert gone(pids)


def test_a_forked_process_gets_workers_of_its_own(odd):
    with RewardPool(1) as pool:
        ask(pool, odd(), "1")
        child = os.fork()
        if child == 0:
            os._exit(0 if ask(pool, odd(), "5") == ([5.0], {}) else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ask(pool, odd(), "6") == ([6.0], {})


def test_a_reward_that_cannot_be_imported_there_says_so(odd, tmp_path):
    path = tmp_path / "vanishing.py"
    path.write_text(ODD.read_text().replace('"odd', '"vanishing'))
    load_file(path)
    path.unlink()
    with RewardPool(1) as pool:
        scores, errors = ask(pool, build("vanishing"), "1", "2")
        assert scores == [None, None] and "FileNotFoundError" in errors[1]
        assert ask(pool, odd(), "1") == ([1.0], {})


def test_workers_that_cannot_start_fail_the_rows_and_not_the_run(odd, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with RewardPool(2) as pool:
        scores, errors = ask(pool, odd(), "1", "2")
        assert scores == [None, None] and "reward workers repeatedly did not start" in errors[0]
        monkeypatch.undo()
        assert ask(pool, odd(), "1") == ([1.0], {})


def test_a_reward_whose_first_example_kills_its_worker_is_given_up(odd):
    with RewardPool(1) as pool:
        scores, errors = ask(pool, build("odd_first"), "1", "2")
        assert scores == [None, None] and "reward workers repeatedly did not start" in errors[1]


def test_an_error_in_a_worker_names_the_line_of_the_reward(odd):
    with RewardPool(1) as pool:
        _, errors = ask(pool, odd(), "raise")
    number = 1 + [line.strip() for line in ODD.read_text().splitlines()].index("return float(text)")
    assert errors[0].endswith(f"({ODD}:{number}, in act)")


def test_empty_batch(odd):
    with RewardPool(1) as pool:
        assert ask(pool, odd()) == ([], {})


def test_guard_counts_what_the_pool_gave_up(odd):
    with RewardPool(2, timeout=HANG) as pool:
        guard = Guard(odd(), pool=pool, max_failure_rate=1)
        assert guard(completions=["1", "sleep", "raise", "4"]) == [1.0, None, None, 4.0]
    assert guard.failed == 2


def test_rows_begun_early_are_scored_once(odd, tmp_path):
    notes = tmp_path / "notes"
    texts = [f"{'x' * n}" for n in range(20)]
    given = {"completions": texts, "notes": [str(notes)] * 20}
    with RewardPool(2) as pool:
        pool.begin(build("odd_noted"), given)
        scores, errors = pool.score(build("odd_noted"), dict(given))
        assert scores == list(map(float, range(20))) and not errors
        assert sorted(map(int, notes.read_text().split())) == list(range(20))
        assert pool.score(build("odd_noted"), given)[0] == scores  # asked again, scored again
        assert len(notes.read_text().split()) == 40


def test_rows_begun_early_count_only_for_the_very_same_rows(odd, tmp_path):
    notes = [str(tmp_path / "notes")] * 3
    with RewardPool(2) as pool:
        pool.begin(build("odd_noted"), {"completions": ["a", "bb", "ccc"], "notes": notes})
        assert pool.score(build("odd_noted"), {"completions": ["a", "bb", "c"], "notes": notes})[
            0
        ] == [1.0, 2.0, 1.0]
        pool.begin(build("odd_noted"), {"completions": ["a", "bb", "ccc"], "notes": notes})
        pool.close()
        assert pool.score(build("odd_noted"), {"completions": ["a", "bb", "ccc"], "notes": notes})[
            0
        ] == [
            1.0,
            2.0,
            3.0,
        ]
        pool.begin(build("odd_noted"), {"completions": ["a"]})  # lacks a column
        scores, errors = pool.score(build("odd_noted"), {"completions": ["a"]})
        assert scores == [None] and "notes" in errors[0]


def test_values_that_are_no_scores_are_told_apart_also_without_a_worker(odd):
    with RewardPool(1) as pool:
        scores, errors = pool.score(build("odd_formulas"), {"completions": ["0.5", "nan", "inf"]})
    assert scores == [0.5, None, None] and "nan" in errors[1] and "inf" in errors[2]


def test_what_fails_early_fails_when_asked(odd):
    given = {"completions": ["1", "raise", "die", "2"]}
    with RewardPool(2) as pool:
        pool.begin(odd(), given)
        scores, errors = pool.score(odd(), given)
    assert scores == [1.0, None, None, 2.0] and sorted(errors) == [1, 2]


def test_a_worker_that_compares_formulas_gets_prompts_without_images():
    image = {"type": "image", "image": object()}
    prompt = [{"role": "user", "content": [image, {"type": "text", "text": "Find $x$."}]}]
    given = {"completions": ["5"], "solution": ["5"], "prompts": [prompt]}
    _, [(arguments, message)] = prepared(build("accuracy"), given)
    assert arguments["prompts"][0][0]["content"] == [{"type": "text", "text": "Find $x$."}]
    assert prompt[0]["content"][0] is image and b"Find $x$." in message
    given["prompts"] = ["Find $x$."]
    assert prepared(build("accuracy"), given)[1][0][0]["prompts"] == ["Find $x$."]
