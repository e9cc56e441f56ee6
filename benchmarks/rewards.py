"""How fast and how safe are the rewards?

    python -m benchmarks.rewards             all figures (about two minutes on two cores)
    python -m benchmarks.rewards --quick     the same with less work, in seconds
    python -m benchmarks.rewards --check     exit code 1 unless every figure is within its bound

1. `countdown` and the usual function with regular expressions and `eval`, which alternate on the
   same completions: `countdown` has at least 0.8 times its speed.
2. `poem_format` on one core: at least 10,000 poems per second.
3. `accuracy` with two workers: at least 1.6 times as fast as in this process on the same rows (on
   two free cores).
4. A batch of 256 with 5 answers that hang and one that exhausts memory: finished within 2 s after
   the deadline, with 250 correct scores.
5. `accuracy`, TRL's `accuracy_reward` and math-verify on tests/rewards/answers.tsv, with 10 s per
   row: ours accepts no wrong answer and rejects at most three correct ones.
"""

import argparse
import os
import random
import re
import statistics
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.recorded import save
from grpo_ext.common.modules import load_file
from grpo_ext.rewards import build
from grpo_ext.rewards.pool import RewardPool

HANGING = """
    import time
    from grpo_ext.rewards import register

    @register("benchmark_odd", needs_cpu=True)
    def odd(completions):
        def act(text):
            while text == "hang":
                pass
            if text == "sleep":
                time.sleep(600)
            if text == "bomb":
                return float(len([bytearray(2**27) for _ in range(10_000)]))
            return float(text)

        return [act(text) for text in completions]
"""

JUDGES = r"""
    from grpo_ext.rewards import Example, register

    # pays for the imports
    EXAMPLES = [Example(r"\boxed{\sqrt{8}}", 1.0, {"solution": r"$2\sqrt{2}$"})]

    @register("benchmark_trl", needs_cpu=True, examples=EXAMPLES)
    def by_trl(completions, solution):
        from trl.rewards import accuracy_reward

        return accuracy_reward([[{"content": text}] for text in completions], solution)

    @register("benchmark_math_verify", needs_cpu=True, examples=EXAMPLES)
    def by_math_verify(completions, solution):
        from math_verify import parse, verify

        pairs = zip(completions, solution)
        return [float(verify(parse(gold), parse(text))) for text, gold in pairs]
"""
ANSWERS = Path(__file__).resolve().parents[1] / "tests/rewards/answers.tsv"


def countdown_by_eval(
    completions: list[str], nums: list[list[int]], target: list[int]
) -> list[float]:
    """Score as most Countdown recipes do, with `eval`.

    This runs anything that matches the pattern, so `9**9**9` never returns.
    """
    rewards = []
    for completion, numbers, goal in zip(completions, nums, target, strict=True):
        try:
            match = re.search(r"<answer>(.*?)</answer>", completion, re.DOTALL)
            if match is None:
                rewards.append(0.0)
                continue
            equation = match.group(1).strip().split("=")[0]
            if sorted(map(int, re.findall(r"\d+", equation))) != sorted(numbers):
                rewards.append(0.0)
                continue
            if not re.match(r"^[\d+\-*/().\s]+$", equation):
                rewards.append(0.0)
                continue
            result = eval(equation, {"__builtins__": None}, {})
            rewards.append(1.0 if abs(float(result) - float(goal)) < 1e-5 else 0.0)
        except Exception:
            rewards.append(0.0)
    return rewards


def countdown_rows(count: int, seed: int = 0) -> dict[str, list]:
    """Return completions like those of a half-trained model.

    Nine in ten use all numbers, and three in ten are correct.
    """
    rng = random.Random(seed)
    rows: dict[str, list] = {"completions": [], "nums": [], "target": []}
    for _ in range(count):
        nums = [rng.randint(1, 99) for _ in range(rng.choice((3, 4)))]
        parts = [str(n) for n in (nums if rng.random() < 0.9 else nums[:-1])]
        while len(parts) > 1:
            at = rng.randrange(len(parts) - 1)
            parts[at : at + 2] = [f"({parts[at]} {rng.choice('+-*/')} {parts[at + 1]})"]
        equation = (
            parts[0].removeprefix("(").removesuffix(")") if parts[0].count("(") == 1 else parts[0]
        )
        value = eval(equation) if "/ (" not in equation else 1
        target = int(value) if value == int(value) and rng.random() < 0.5 else rng.randint(1, 99)
        work = "; ".join(
            f"{rng.randint(1, 99)} + {rng.randint(1, 99)} is too much"
            for _ in range(rng.randint(2, 12))
        )
        rows["completions"].append(f"<think> {work} </think>\n<answer> {equation} </answer>")
        rows["nums"].append(nums)
        rows["target"].append(target)
    return rows


def seconds(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[float, Any]:
    started = time.perf_counter()
    result = function(*args, **kwargs)
    return time.perf_counter() - started, result


def measure_countdown(count: int, rounds: int) -> dict[str, float]:
    rows = countdown_rows(count)
    ours = build("countdown")
    times: dict[str, list[float]] = {"eval": [], "ours": []}
    for _ in range(rounds):  # in turn, so that both see the same machine
        theirs, expected = seconds(countdown_by_eval, **rows)
        mine, found = seconds(ours, **rows)
        assert found == expected, "the two disagree on harmless completions"
        times["eval"].append(theirs)
        times["ours"].append(mine)
    ratio = statistics.median(a / b for a, b in zip(times["eval"], times["ours"], strict=True))
    per_row = {f"countdown_{name}_us": min(values) / count * 1e6 for name, values in times.items()}
    return {"countdown_completions": count, **per_row, "countdown_speed_over_eval": ratio}


def measure_poem(count: int, rounds: int) -> dict[str, float]:
    """Measure `poem_format` on last lines of shuffled characters, so that no poem occurs twice."""
    rng = random.Random(0)
    quatrain = ["水作青龙盘石堤", "桃花夹岸鲁门西", "若教月下乘舟去", "一棹烟波去未迷"]
    characters = list(
        "".join(quatrain)
        + "床前明月光疑是地上霜举头望明月低头思故乡白日依山尽黄河入海流欲穷千里目更上一层楼"
    )
    poems = [["".join(rng.choices(characters, k=7)) for _ in range(4)] for _ in range(count)]
    reward = build("poem_format")
    reward(completions=[quatrain[3]], lines=[quatrain[:3]])  # the tables are read once
    rows = {
        "completions": [f"<answer>{poem[3]}</answer>" for poem in poems],
        "lines": [poem[:3] for poem in poems],
    }
    best = min(seconds(reward, **rows)[0] for _ in range(rounds))
    return {"poem_poems": count, "poem_per_s": count / best}


def accuracy_rows(count: int) -> dict[str, list[str]]:
    """Return distinct answers that only math-verify can read.

    With plain numbers, only the pipe to the workers would be measured.
    """
    rng = random.Random(0)
    answers = []
    golds = []
    for _ in range(count):
        a = rng.randint(2, 999)
        b = rng.randint(2, 99)
        c = rng.randint(2, 99)
        answers.append(rf"We get \boxed{{\frac{{{a}}}{{{b}}}\sqrt{{{c}}} + {a}}}.")
        golds.append(rf"$\frac{{{a * c}}}{{{b}\sqrt{{{c}}}}} + {a if rng.random() < 0.7 else b}$")
    return {"completions": answers, "solution": golds}


def measure_accuracy(count: int, rounds: int) -> dict[str, float]:
    """Measure `accuracy` with new rows for each side, because parsed formulas are cached."""
    reward = build("accuracy")
    reward(completions=[r"\boxed{\sqrt{2}}"], solution=[r"\frac{1}{2}"])
    rows = accuracy_rows(2 * rounds * count)
    ratios = []
    with RewardPool(2) as pool:
        pool.score(reward, {key: column[:8] for key, column in rows.items()})
        for turn in range(rounds):
            parts = [slice((2 * turn + k) * count, (2 * turn + k + 1) * count) for k in (0, 1)]
            serial, _ = seconds(reward, **{key: column[parts[0]] for key, column in rows.items()})
            pooled, (_, errors) = seconds(
                pool.score, reward, {key: column[parts[1]] for key, column in rows.items()}
            )
            assert not errors, errors
            ratios.append(serial / pooled)
    return {
        "accuracy_rows": count,
        "accuracy_ms": serial / count * 1e3,
        "accuracy_two_workers": statistics.median(ratios),
    }


def load_plugin(folder: str, name: str, text: str) -> None:
    path = Path(folder) / f"{name}.py"
    path.write_text(textwrap.dedent(text))
    load_file(path)


def measure_hanging(timeout: float, workers: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        load_plugin(folder, "benchmark_odd", HANGING)
        reward = build("benchmark_odd")
        texts = list(map(str, range(256)))
        places = random.Random(0).sample(range(256), 6)
        for place, text in zip(
            places, ("hang", "sleep", "hang", "hang", "sleep", "bomb"), strict=True
        ):
            texts[place] = text
        with RewardPool(workers, timeout=timeout) as pool:
            pool.score(reward, {"completions": ["1"]})
            taken, (scores, _) = seconds(pool.score, reward, {"completions": texts})
    right = sum(
        score == float(text) for score, text in zip(scores, texts, strict=True) if text.isdigit()
    )
    return {
        "hanging_timeout_s": timeout,
        "hanging_workers": workers,
        "hanging_s": taken,
        "hanging_right_scores": right,
    }


def measure_verdicts(every: int) -> dict[str, float]:
    """Count the verdicts of each judge.

    TRL and math-verify get the gold answer in a box, which they read best.
    """
    lines = ANSWERS.read_text(encoding="utf-8").splitlines()[1::every]
    _, golds, texts, verdicts = zip(
        *(line.replace("⏎", "\n").split("\t") for line in lines), strict=True
    )
    boxed = [
        gold if r"\boxed" in gold else rf"\boxed{{{gold.rpartition('####')[2].strip(' $')}}}"
        for gold in golds
    ]
    figures: dict[str, float] = {"verdicts_rows": len(lines)}
    with tempfile.TemporaryDirectory() as folder:
        load_plugin(folder, "benchmark_judges", JUDGES)
        for name in ("accuracy", "benchmark_trl", "benchmark_math_verify"):
            given = {
                "completions": list(texts),
                "solution": list(golds if name == "accuracy" else boxed),
            }
            with RewardPool(1, timeout=10.0, memory_limit=2**32) as pool:
                scores, errors = pool.score(build(name), given)
            late = sum("TimeoutError: the row took" in error for error in errors.values())
            pairs = list(zip(scores, verdicts, strict=True))
            figures |= {
                f"{name}_false_right": pairs.count((1.0, "0")),
                f"{name}_false_wrong": pairs.count((0.0, "1")),
                f"{name}_late": late,
                f"{name}_raised": len(errors) - late,
            }
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument(
        "--check", action="store_true", help="exit code 1 unless every bound is reached"
    )
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the figures as JSON")
    args = parser.parse_args()
    quick = args.quick
    figures = {
        **measure_countdown(20_000 if quick else 100_000, 3 if quick else 5),
        **measure_poem(5_000 if quick else 50_000, 3),
        **measure_accuracy(150 if quick else 600, 1 if quick else 3),
        **measure_hanging(2.0 if quick else 5.0, 2),
        **measure_verdicts(8 if quick else 1),
        "cpu_count": os.cpu_count() or 1,
    }
    bounds = {
        "countdown_speed_over_eval": figures["countdown_speed_over_eval"] >= 0.8,
        "poem_per_s": figures["poem_per_s"] >= 10_000,
        "accuracy_two_workers": figures["accuracy_two_workers"] >= 1.6,
        "hanging_s": figures["hanging_s"] <= figures["hanging_timeout_s"] + 2,
        "hanging_right_scores": figures["hanging_right_scores"] == 250,
        "accuracy_false_right": figures["accuracy_false_right"] == 0,
        "accuracy_false_wrong": figures["accuracy_false_wrong"] <= 3,
    }
    for name, figure in figures.items():
        verdict = {True: "  ok", False: "  MISSED", None: ""}[bounds.get(name)]
        print(f"{name:33} {figure:>12,.2f}{verdict}")
    if args.output:
        save(args.output, figures)
    return 1 if args.check and not all(bounds.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
