"""Check or update the figures that pages cite from `benchmarks/results/`.

    python -m benchmarks.figures            exits with 1, and says where, if a page cites others
    python -m benchmarks.figures --write    writes the figures of the results into the pages

A `Sentence` below is the text of a page, with fields in braces. It occurs exactly once in its page,
with any line breaks.
"""

from __future__ import annotations

import argparse
import re
import string
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import extra_signals, loop_faults, zero_signal
from benchmarks.recorded import load
from grpo_ext.common.estimates import mean_difference

REPO = Path(__file__).resolve().parents[1]
NUMBER = r"[-+−]?\d[\d,]*(?:\.\d+)?(?:e[-+]\d+)?"
Fields = dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page, with fields for its figures.

    Attributes:
        page: its path in the repository.
        results: the name of a file in `results/`, without `.json`.
        text: the sentence, with fields as in `str.format`; each field is one number.
        fields: computes further fields from the file's figures.
    """

    page: str
    results: str
    text: str
    fields: Callable[[Any], Fields] = lambda figures: {}

    def pattern(self) -> re.Pattern[str]:
        """Return a pattern that matches the sentence with any numbers and any whitespace."""
        parts = []
        for literal, field, _, _ in string.Formatter().parse(self.text):
            parts.append(r"\s+".join(map(re.escape, re.split(r"\s+", literal))))
            if field is not None:
                parts.append(f"({NUMBER})")
        return re.compile("".join(parts))

    def numbers(self) -> list[str]:
        """Return the numbers of the sentence, as a page writes them."""
        figures = load(self.results)
        named = figures if isinstance(figures, dict) else {"rows": figures}
        known = {**named, **self.fields(figures)}
        formatter = string.Formatter()
        written = []
        for _, field, spec, _ in formatter.parse(self.text):
            if field is not None:
                number, _ = formatter.get_field(field, (), known)
                written.append(format(number, spec or ""))
        return written


def mean(rows: list[Any], *keys: str) -> float:
    """Return the mean of a figure over seeds, which `keys` leads to in each."""
    total = 0.0
    for row in rows:
        for key in keys:
            row = row[key]
        total += row
    return total / len(rows)


def kills(rows: list[dict[str, Any]]) -> Fields:
    turns = 0
    others: dict[str, int] = {}
    for row in rows:
        counts = {kind: part["kills"] for kind, part in row.items() if isinstance(part, dict)}
        if row["settings"] == "turns":
            turns += sum(counts.values())
            continue
        for kind, count in counts.items():
            others[kind] = others.get(kind, 0) + count
    beside = sum(others.values())
    return {"turns": turns, "others": beside, "all": turns + beside, "of": others}


def loss_types(figures: dict[str, Any]) -> Fields:
    fields: Fields = {}
    for name, runs in figures["runs"].items():
        ends = [run["end"] for run in runs]
        fields[name] = {key: mean(ends, key) for key in ("greedy", "sampled", "length")}
        fields[name]["seeds"] = ends
    return fields


def settings(figures: dict[str, Any]) -> Fields:
    return {name.partition("/")[0]: row for name, row in figures.items()}


def over_time(figures: dict[str, Any]) -> Fields:
    """Return the fields of `zero_signal`: final accuracy, time to reach TRL's, and gain."""
    gained = zero_signal.gains(figures)
    finals = [run["curve"][-1][1] for run in figures["TRL"]]
    fields: Fields = {}
    for name, runs in figures.items():
        shares = []
        for run, final in zip(runs, finals, strict=True):
            reached = zero_signal.seconds_to(run["curve"], final)
            shares.append(1.0 if reached is None else reached / run["curve"][-1][0])
        accuracy = sum(run["curve"][-1][1] for run in runs) / len(runs)
        steps = mean(runs, "steps")
        share = sum(shares) / len(shares)
        fields[name] = {"accuracy": accuracy, "steps": steps, "share": share, "gain": gained[name]}
    return fields


def faults_of_loops(figures: dict[str, Any]) -> Fields:
    fields: Fields = {}
    for fault, base in loop_faults.BASE_OF.items():
        right = [run["accuracy"] for run in figures["runs"][base]]
        wrong = [run["accuracy"] for run in figures["runs"][fault.value]]
        fields[fault.name] = {
            "without": sum(right) / len(right),
            "with": sum(wrong) / len(wrong),
            "effect": mean_difference(right, wrong),
        }
    return fields


def signals(figures: dict[str, Any]) -> Fields:
    """Return the fields of `extra_signals`: means without and with a signal, and difference."""
    fields: Fields = {}
    for pair in extra_signals.PAIRS:
        effects = {}
        for figure in pair.figures:
            off = [run[figure] for run in figures["runs"][pair.off]]
            on = [run[figure] for run in figures["runs"][pair.on]]
            effects[figure] = {
                "off": sum(off) / len(off),
                "on": sum(on) / len(on),
                "effect": mean_difference(off, on),
            }
        fields[pair.on] = effects
    return fields


BENCHMARKS = "benchmarks/README.md"
PROMISES = "docs/promises"


def loss_types_row(loss: str) -> str:
    """Return the template of a loss's row: length, and greedy and sampled accuracy by seed."""
    cells = [f"| {loss}"]
    for key in ("greedy", "sampled"):
        seeds = ", ".join(f"{{{loss}[seeds][{seed}][{key}]:.3f}}" for seed in range(3))
        cells.append(f"{{{loss}[{key}]:.3f}} ({seeds})")
    cells.append(f"{{{loss}[length]:.1f}} |")
    return " | ".join(cells)


SENTENCES = [
    Sentence(
        BENCHMARKS,
        "kills",
        "{turns} kills with SIGKILL on one and two ranks",
        kills,
    ),
    Sentence(
        BENCHMARKS,
        "kills",
        "{others} more kills in three settings ({of[after each save]} right after a save, "
        "{of[at random moments]} at random moments, {of[of the sampler]} of the sampler process, "
        "{of[in a checkpoint]} within a checkpoint)",
        kills,
    ),
    Sentence("README.md", "kills", "promises/killed-run.md): {all} kills", kills),
    Sentence("docs/index.md", "kills", "promises/killed-run.md): {all} kills", kills),
    Sentence(
        f"{PROMISES}/killed-run.md", "kills", "at random moments | {turns} | nothing |", kills
    ),
    Sentence(
        f"{PROMISES}/killed-run.md",
        "kills",
        "the sampler process itself | {others} | nothing |",
        kills,
    ),
    Sentence(
        f"{PROMISES}/gradient.md",
        "truncated",
        "{seeds[0][ours][greedy]:.3f}, {seeds[1][ours][greedy]:.3f}, "
        "{seeds[2][ours][greedy]:.3f} | {seeds[0][TRL][greedy]:.3f}, "
        "{seeds[1][TRL][greedy]:.3f}, {seeds[2][TRL][greedy]:.3f} |",
    ),
    Sentence(
        f"{PROMISES}/rewards.md",
        "hostile_code",
        "{alone:.0f} hostile programs, on asserts and on inputs, then {programs in the pool} in a "
        "pool of two workers | {scored above 0 in the pool} earned a score",
        lambda figures: {"alone": figures["programs alone"] / 2},
    ),
    Sentence(
        f"{PROMISES}/recipe.md",
        "settings",
        "| Countdown | {countdown[ratio]:.2f} | | word problems | {gsm8k[ratio]:.2f} | "
        "| verse | {poem[ratio]:.2f} |",
        settings,
    ),
    Sentence(
        BENCHMARKS,
        "hostile_code",
        "{alone:.0f} programs on asserts and on inputs, each alone, and then "
        "{programs in the pool} in a pool of two workers, cause {faults} faults",
        lambda figures: {"alone": figures["programs alone"] / 2},
    ),
    Sentence(
        BENCHMARKS,
        "settings",
        "{countdown[ratio]:.2f} times as long as with the fastest settings on Countdown, "
        "{gsm8k[ratio]:.2f} on word problems and {poem[ratio]:.2f} on verse (required: at most "
        "1.1). These are {countdown[seconds]:.2f}, {gsm8k[seconds]:.2f} and "
        "{poem[seconds]:.2f} s, where the slowest settings take "
        "{countdown[slowest seconds]:.1f}, {gsm8k[slowest seconds]:.1f} and "
        "{poem[slowest seconds]:.1f} s",
        settings,
    ),
    Sentence(
        BENCHMARKS,
        "truncated",
        "is {seeds[0][TRL][greedy]:.3f}, {seeds[1][TRL][greedy]:.3f} and "
        "{seeds[2][TRL][greedy]:.3f} with plain TRL, and {seeds[0][ours][greedy]:.3f}, "
        "{seeds[1][ours][greedy]:.3f} and {seeds[2][ours][greedy]:.3f} with ours",
    ),
    Sentence(
        "docs/log-probs.md",
        "truncated",
        "then unlearns: {seeds[0][TRL][greedy]:.3f}, {seeds[1][TRL][greedy]:.3f}, "
        "{seeds[2][TRL][greedy]:.3f} held-out accuracy after {steps} steps (three seeds), where "
        "exact scoring reaches {seeds[0][ours][greedy]:.3f}, {seeds[1][ours][greedy]:.3f} and "
        "{seeds[2][ours][greedy]:.3f}",
    ),
    Sentence(
        BENCHMARKS,
        "loss_types",
        "is {grpo[greedy]:.3f} for grpo, {bnpo[greedy]:.3f} for bnpo and {dr_grpo[greedy]:.3f} for "
        "dr_grpo; the mean lengths are {grpo[length]:.1f}, {bnpo[length]:.1f} and "
        "{dr_grpo[length]:.1f}",
        loss_types,
    ),
    *(
        Sentence(
            "docs/losses.md",
            "loss_types",
            loss_types_row(loss),
            loss_types,
        )
        for loss in ("grpo", "bnpo", "dr_grpo")
    ),
    Sentence(
        BENCHMARKS,
        "loop_faults",
        "truncated sampling changes the accuracy by {SCORED_WHOLE[effect].mean:.3f}, and summed "
        "micro-batches under SGD change it by {SUMMED_MICRO_BATCHES[effect].mean:.3f}",
        faults_of_loops,
    ),
    *(
        Sentence(
            "docs/own-loop.md",
            "loop_faults",
            f"| {row} | {{{fault}[without]:.3f}} | {{{fault}[with]:.3f}} | "
            f"{{{fault}[effect].mean:+.3f}} "
            f"[{{{fault}[effect].low:+.3f}}, {{{fault}[effect].high:+.3f}}]",
            faults_of_loops,
        )
        for row, fault in (
            ("truncated sampling, scored whole", "SCORED_WHOLE"),
            ("micro-batches summed (SGD)", "SUMMED_MICRO_BATCHES"),
            ("KL with its ratio inverted (beta 0.04)", "KL_INVERTED"),
            ("padding in the mean", "PADDING_IN_MEAN"),
            ("mask without the end token", "MASK_WITHOUT_END"),
            ("one group for the whole batch", "ONE_GROUP"),
        )
    ),
    Sentence(
        BENCHMARKS,
        "extra_signals",
        "the share of words on the subject from {relevance[answers on the subject][off]:.3f} to "
        "{relevance[answers on the subject][on]:.3f} "
        "({relevance[answers on the subject][effect].mean:+.3f} "
        "[{relevance[answers on the subject][effect].low:+.3f}, "
        "{relevance[answers on the subject][effect].high:+.3f}])",
        signals,
    ),
    Sentence(
        BENCHMARKS,
        "extra_signals",
        "raises the share of English there from "
        "{language of thoughts[English in thoughts][off]:.3f} to "
        "{language of thoughts[English in thoughts][on]:.3f} and from "
        "{language of answer[English in answers][off]:.3f} to "
        "{language of answer[English in answers][on]:.3f}. The tiny model also writes English in "
        "the other part ({language of thoughts[English in answers][on]:.3f}, "
        "{language of answer[English in thoughts][on]:.3f})",
        signals,
    ),
    Sentence(
        BENCHMARKS,
        "extra_signals",
        "`right_steps` greedy {right_steps[held out, greedy][effect].mean:+.3f} "
        "[{right_steps[held out, greedy][effect].low:+.3f}, "
        "{right_steps[held out, greedy][effect].high:+.3f}] and right steps "
        "{right_steps[right steps][off]:.3f} to {right_steps[right steps][on]:.3f} "
        "({right_steps[right steps][effect].mean:+.3f} "
        "[{right_steps[right steps][effect].low:+.3f}, "
        "{right_steps[right steps][effect].high:+.3f}])",
        signals,
    ),
    Sentence(
        BENCHMARKS,
        "zero_signal",
        "held-out accuracy is {TRL[accuracy]:.3f} with plain TRL, {ours[accuracy]:.3f} with ours, "
        "{refill[accuracy]:.3f} with refill, {adaptive[accuracy]:.3f} with the adaptive "
        "curriculum, and {both[accuracy]:.3f} with both",
        over_time,
    ),
    Sentence(
        BENCHMARKS,
        "zero_signal",
        "by the 95 % interval over the seeds ({refill[gain].mean:+.3f} [{refill[gain].low:+.3f}, "
        "{refill[gain].high:+.3f}] and {both[gain].mean:+.3f} [{both[gain].low:+.3f}, "
        "{both[gain].high:+.3f}])",
        over_time,
    ),
    Sentence(
        BENCHMARKS,
        "zero_signal",
        "{ours[steps]:.0f} instead of TRL's {TRL[steps]:.0f}",
        over_time,
    ),
    Sentence(
        BENCHMARKS,
        "generate",
        "{table[0][faster]:.1f} times as fast as transformers on Countdown (256 rows, "
        "{wasted:.0f} % of the slots wasted; predicted: 2.3), {table[1][faster]:.1f} times on long "
        "uneven completions (2.5), {table[2][faster]:.1f} times on equal lengths after different "
        "prompts (1.0), and {table[3][faster]:.2f} times on one row (1.0). For the long "
        "completions, the peak memory beyond the model is {peak_memory_mib[ours]:.0f} MiB, and "
        "{peak_memory_mib[transformers]:.0f} MiB with transformers",
        lambda figures: {"wasted": 100 * figures["table"][0]["transformers"]["wasted_slots"]},
    ),
    Sentence(
        BENCHMARKS,
        "instability",
        "the reward is {unstable[reward_at_first]:.2f} at first, begins to collapse at step "
        "{unstable[collapse_begins]}, and is {unstable[reward_at_last]:.2f} at the end; the alarm "
        "comes at step {unstable[alarms][0][step]}",
    ),
    Sentence(
        BENCHMARKS,
        "checkpoints",
        "{millions:.0f} million parameters ({megabytes_of_trl:.0f} MB), TRL's own writing takes "
        "{seconds[trl]:.1f} s, flushing {seconds[flush]:.2f} s, hashing {seconds[hash]:.1f} s "
        "({hashed_megabytes_per_second} MB/s; the files of large models are hashed in parallel), "
        "and our state {seconds[state]:.2f} s and {kilobytes:.0f} kB. Verifying a checkpoint takes "
        "{seconds_to_verify:.1f} s. Logging every completion takes {percent:.1f} % of the time",
        lambda figures: {
            "millions": figures["parameters"] / 1e6,
            "kilobytes": 1000 * figures["megabytes_of_ours"],
            "percent": 100 * figures["share_of_logging"],
        },
    ),
    Sentence(
        BENCHMARKS,
        "vllm_cpu",
        "`fast_generate` {thousands[fast_generate]:,.0f}, and colocated vLLM with weight sync "
        "{thousands[vLLM colocate]:,.0f}, with other work on the machine. Log-probs differ by "
        "{vLLM colocate[apart]:.1e} on average",
        lambda figures: {
            "thousands": {
                name: round(figures[name]["rate"], -2)
                for name in ("fast_generate", "vLLM colocate")
            }
        },
    ),
    Sentence(
        "docs/speed.md",
        "growth",
        "ours falls from {num_generations[4][ours s]:.2f} s to {num_generations[64][ours s]:.2f} s "
        "between 4 and 64",
        lambda figures: {"num_generations": _by_number(figures["num_generations"])},
    ),
    Sentence(
        "docs/speed.md",
        "growth",
        "{ratios[32]:.2f} times as fast there, {ratios[128]:.1f} times for a prompt as long as the "
        "completion, {ratios[512]:.1f} times at four times its length, {ratios[1024]:.1f} times at "
        "eight",
        lambda figures: {
            "ratios": {
                int(length): row["ratio"]
                for length, row in figures["prompt tokens, completions of 128"].items()
            }
        },
    ),
]


def _by_number(rows: dict[str, Any]) -> dict[int, Any]:
    return {int(number): row for number, row in rows.items()}


def cited(sentence: Sentence, page: str) -> re.Match[str]:
    """Return the match of a sentence in a page, whatever its numbers are.

    Raises:
        LookupError: if the page does not have the sentence, or has it several times.
    """
    places = list(sentence.pattern().finditer(page))
    if len(places) != 1:
        raise LookupError(
            f"{sentence.page} has this {len(places)} times, not once: {sentence.text}"
        )
    return places[0]


def filled(sentence: Sentence, page: str) -> str:
    """Return a page with the sentence's numbers replaced by those of its results."""
    place = cited(sentence, page)
    for group, number in reversed(list(enumerate(sentence.numbers(), start=1))):
        start, end = place.span(group)
        page = page[:start] + number + page[end:]
    return page


def differences(sentences: list[Sentence]) -> Iterator[str]:
    """Yield a message for each figure that a page cites differently from the results."""
    for sentence in sentences:
        page = (REPO / sentence.page).read_text(encoding="utf-8")
        numbers = sentence.numbers()
        on_page = list(cited(sentence, page).groups())
        if on_page != numbers:
            yield (
                f"{sentence.page} cites {', '.join(on_page)}; "
                f"results/{sentence.results}.json has {', '.join(numbers)}: {sentence.text}"
            )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="write the figures into the pages")
    if parser.parse_args().write:
        for sentence in SENTENCES:
            path = REPO / sentence.page
            page = path.read_text(encoding="utf-8")
            path.write_text(filled(sentence, page), encoding="utf-8")
    stale = list(differences(SENTENCES))
    print("\n".join(stale) or f"{len(SENTENCES)} sentences cite the figures of their results.")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
