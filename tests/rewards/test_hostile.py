"""No completion hangs, exhausts or breaks a reward: the hostile set against the whole catalogue."""

import math
import resource
from contextlib import suppress
from pathlib import Path

import pytest

from grpo_ext.rewards import build, list_rewards
from grpo_ext.rewards.engine import NeedsEngine, without_engine
from grpo_ext.rewards.pool import RewardPool
from tests.support.hostile_texts import hostile_completions
from tests.support.runaway import no_runaway

COMPLETIONS = hostile_completions()
CATALOGUE = {info.name: info for info in list_rewards()}
IN_PROCESS = [
    name
    for name, info in CATALOGUE.items()
    if not (info.needs_cpu or info.loads_model or "url" in info.options)
]
IN_WORKERS = [name for name, info in CATALOGUE.items() if info.needs_cpu]
LIMIT = 30.0  # seconds for a row in a worker: most take a thousandth of it on an idle machine
ALLOWED = 3 * 2**20  # KiB of this process's memory, with the whole set in it


def asked(name: str) -> tuple:
    """A reward with options that it takes, and the columns of one row."""
    example = CATALOGUE[name].examples[0]
    return build(name, **example.options), example.columns


def test_there_are_enough_of_them():
    assert len(set(COMPLETIONS)) >= 200


@pytest.mark.parametrize("name", IN_PROCESS)
def test_in_process_rewards_answer_quickly(name):
    """Each alone and unguarded: nothing is raised, every score is finite or None."""
    reward, columns = asked(name)
    given = {key: [value] for key, value in columns.items()}
    for text in COMPLETIONS:
        with no_runaway():
            [score] = reward(completions=[text], **given)
        assert score is None or (isinstance(score, float) and math.isfinite(score)), text[:80]
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < ALLOWED


def test_what_accuracy_does_in_the_trainer_takes_no_time():
    """Without the engine each completion is judged at once, or left to a worker."""
    reward = build("accuracy")
    for solution in ("72", r"\sqrt{2}", r"\text{Evelyn}", "(1,2)"):
        for text in COMPLETIONS:
            with no_runaway(), suppress(NeedsEngine), without_engine():
                assert reward(completions=[text], solution=[solution]) in ([0.0], [1.0])


PHRASES = [
    "1 in 2 ",
    "2 pies ",
    "1 pie or ",
    "1/2 or about 0.5 ",
    "one hundred ",
    "since ",
    "and the x is ",
    "Tom 2, ",
    "of the 2 ",
    "1,",
    "1 ",
    "three quarters ",
    "36 is the ",
    "between 2 and 2 ",
    r"\Rightarrow ",
    "2(3)",
    "2 m s^2/",
    "2-meter ",
    "\nNote: ",
    "2. Note ",
    "2, i.e. the point (",
    "than Tom, who ",
    "\nQuestion",
    "\n- x = 2",
    "the answer is A ",
    "2 degrees ",
    "July 2, ",
]


@pytest.mark.parametrize(
    "question",
    [
        "Of 28 pies 2 are eaten. How many pies are left for Tom?",
        "What fraction of the 2 is it?",
        "How much money, $2?",
        "How old is Tom, who is 2?",
        "Find $x$ in km, where $y = 2$.",
    ],
)
def test_no_last_sentence_takes_long_to_read_with_a_question(question):
    reward = build("accuracy")
    for phrase in PHRASES:
        text = phrase * (5_000 // len(phrase)) + "2"
        with no_runaway(), suppress(NeedsEngine), without_engine():
            scores = reward(completions=[text], solution=["7"], prompts=[question])
            assert scores == [0.0], phrase


@pytest.mark.parametrize(
    "name",
    [
        name if name == "accuracy" else pytest.param(name, marks=pytest.mark.slow)
        for name in IN_WORKERS
    ],
)
def test_rewards_in_workers_answer_within_the_deadline(name):
    """The same in a pool: who is late or needs too much memory costs its own row the score."""
    reward, columns = asked(name)
    limit = LIMIT if name == "accuracy" else 1.0  # only of accuracy are the failures counted
    answered = {}
    with RewardPool(2, timeout=limit) as pool:
        for start in range(0, len(COMPLETIONS), 64):
            some = COMPLETIONS[start : start + 64]
            given = {
                "completions": some,
                **{key: [value] * len(some) for key, value in columns.items()},
            }
            scores, errors = pool.score(reward, given)
            assert len(scores) == len(some)
            assert all(score is None or math.isfinite(score) for score in scores)
            answered |= {start + row: errors.get(row) for row in range(len(some))}
        memory = [worker_memory(worker.process.pid) for worker in pool._ready_worker_pool().workers]
    assert len(answered) == len(COMPLETIONS) and max(memory) < 2**20
    failures = {COMPLETIONS[row][:80]: error for row, error in answered.items() if error}
    kinds = {error.strip().rpartition("\n")[2].partition(":")[0] for error in failures.values()}
    assert kinds <= {"TimeoutError", "MemoryError", "ChildProcessError"}, failures
    if name == "accuracy":  # ours keeps away from what it cannot finish
        assert len(failures) <= 5, failures


def worker_memory(pid: int) -> int:
    """Peak memory of a process in KiB; 0 if it has just been replaced."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def test_no_hostile_completion_earns_anything():
    """An answer that is none gets nothing, whatever it is."""
    reward = build("countdown")
    n = len(COMPLETIONS)
    assert sum(reward(completions=COMPLETIONS, nums=[[19, 36, 55, 7]] * n, target=[65] * n)) == 0.0
