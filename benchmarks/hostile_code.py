"""Does a hostile program that the reward `code` runs leave anything behind, or get a score?

    python -m benchmarks.hostile_code [--quick] [--check] [--out FILE]

Runs each program of `tests/support/hostile_programs.py` alone, with asserts and with inputs and
outputs, and then 500 of them in a pool of two reward workers. After each run, the machine must be
in the same state as before: processes, mounts, namespaces, cgroups, System V objects, and the names
in /tmp, /var/tmp and /dev/shm. After the pool, the memory that the kernel cannot reclaim must be
the same as well. Nothing else should start or end on the machine meanwhile. `--check` exits with 1
if anything was left behind, or if a program did not score 0.
"""

import argparse
import itertools
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.recorded import save
from grpo_ext.common.modules import load_file
from grpo_ext.rewards import build
from grpo_ext.rewards.code import memory_group
from grpo_ext.rewards.pool import RewardPool
from tests.support.machine_state import State, left_behind, own_state

PROGRAMS = Path(__file__).resolve().parents[1] / "tests/support/hostile_programs.py"
FAMILIES = (
    "NETWORK",
    "FILES",
    "PROCESSES",
    "HUNGRY",
    "CHEATS",
    "SURVIVORS",
    "KERNEL",
    "SECRETS",
    "FORGERIES",
)
TESTS: list[list[Any]] = [
    ["assert double(2) == 4", "assert double(8) == 4 * 4"],
    [{"input": "2", "output": "4"}, {"input": "8", "output": "16"}],
]
# Files that are not there, ports that nobody listens at, and the process that must not be killed.
WORDS = {
    "TARGET": "/tmp/hostile-code-target",
    "SECRET": "/etc/hostname",
    "FOLDER": "/etc",
    "PORT": "9",
    "PARENT": str(os.getpid()),
}
IN_POOL = 500
WORKERS = 2
TIMEOUT = 60.0  # seconds of a row: a busy machine must not count as unscored
WAIT_SECONDS = 10.0  # in which the kernel ends what has been killed
MAX_KERNEL_MIB = 32  # of the kernel's memory that may stay; one set of 32,000 semaphores takes 2
KERNEL_MEMORY = ("SUnreclaim", "KernelStack", "PageTables", "Percpu", "Shmem", "VmallocUsed")
NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")


def machine() -> State:
    """Return the state of the machine that a program could change, apart from this process."""
    groups = memory_group.parent_of_groups()
    return {
        **own_state(),
        "processes": processes(),
        "namespaces": {name: namespaces(name) for name in NAMESPACES},
        "cgroups": sorted(path.name for path in groups.iterdir() if path.is_dir())
        if groups
        else [],
        "files": {
            folder: sorted(os.listdir(folder)) for folder in ("/tmp", "/var/tmp", "/dev/shm")
        },
    }


def processes() -> dict[int, str]:
    """Return the name of every process of the machine except the kernel's own, by id."""
    names = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            with suppress(OSError):
                after_name = (folder / "stat").read_text().rpartition(")")[2].split()
                if (
                    after_name[1] != "2" and folder.name != "2"
                ):  # the parent of the kernel's threads
                    names[int(folder.name)] = (folder / "comm").read_text().strip()
    return names


def namespaces(name: str) -> list[str]:
    """Return the namespaces of one kind that a process is in."""
    links = set()
    for path in Path("/proc").glob(f"[0-9]*/ns/{name}"):
        with suppress(OSError):
            links.add(os.readlink(path))
    return sorted(links)


def kernel_mib() -> dict[str, float]:
    """Return the kernel's memory by kind, in MiB, and the number of memory cgroups.

    Removed cgroups that still hold memory count as well.
    """
    lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    figures = {kind: int(lines[kind].split()[0]) / 1024 for kind in KERNEL_MEMORY}
    with suppress(OSError, StopIteration):
        rows = Path("/proc/cgroups").read_text().splitlines()
        memory = next(row.split() for row in rows if row.startswith("memory"))
        figures["memory cgroups"] = float(memory[2])
    return figures


def hostile_programs() -> list[str]:
    module = load_file(PROGRAMS)
    programs = []
    for program in itertools.chain.from_iterable(getattr(module, name) for name in FAMILIES):
        for word, text in WORDS.items():
            program = program.replace(word, text)
        programs.append(f"```python\n{program}\n```")
    return programs


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    programs = hostile_programs()[:: 10 if args.quick else 1]
    reward = build("code", seconds=0.6, megabytes=256, partial=True)
    reward(completions=["double = abs"], tests=TESTS[:1])  # what is made once is there
    time.sleep(1)  # its process is gone
    faults: list[str] = []
    before = machine()
    for program, tests in itertools.product(programs, TESTS):
        try:
            [score] = reward(completions=[program], tests=[tests])
        except Exception as error:
            faults.append(f"not scored, {error!r:.200}: {program!r:.200}")
            continue
        if score != 0:
            faults.append(f"scored {score}: {program!r:.200}")
        different = left_behind(before, machine, WAIT_SECONDS)
        if different:
            faults.append(f"left {different!r:.500}: {program!r:.200}")
            before = machine()
    in_pool = list(itertools.islice(itertools.cycle(programs), 50 if args.quick else IN_POOL))
    kernel_before = kernel_mib()
    start = time.perf_counter()
    with RewardPool(WORKERS, timeout=TIMEOUT) as pool:
        tests_of_rows = list(itertools.islice(itertools.cycle(TESTS), len(in_pool)))
        scores, errors = pool.score(reward, {"completions": in_pool, "tests": tests_of_rows})
    seconds = time.perf_counter() - start
    different = left_behind(before, machine, WAIT_SECONDS)
    if different:
        faults.append(f"left by the pool: {different!r:.500}")
    kernel_after = kernel_mib()
    growth = {kind: kernel_after[kind] - kernel_before[kind] for kind in kernel_before}
    memory_growth = sum(grown for kind, grown in growth.items() if kind != "memory cgroups")
    if memory_growth > MAX_KERNEL_MIB:
        faults.append(f"the kernel's memory grew by {memory_growth:.0f} MiB: {growth}")
    figures = {
        "programs alone": len(programs) * len(TESTS),
        "programs in the pool": len(in_pool),
        "seconds of the pool": seconds,
        "scored above 0 in the pool": sum(score is not None and score > 0 for score in scores),
        "not scored in the pool": len(errors),
        "growth of the kernel's memory, MiB": memory_growth,
        "growth in memory cgroups": growth.get("memory cgroups", 0.0),
        "faults": len(faults),
    }
    print("; ".join(f"{name}: {figure:.4g}" for name, figure in figures.items()))
    print("\n".join(faults))
    if args.out:
        save(args.out, {**figures, "what": faults})
    wrong = faults or figures["scored above 0 in the pool"] or errors
    return int(args.check and bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
