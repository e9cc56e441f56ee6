"""How many tokens and seconds do episodes of four turns cost, compared with a single turn?

    python -m benchmarks.turns [--quick] [--check] [--out FILE]

Compares three ways to generate with the same model, prompts and number of tokens: one turn as long
as the episodes; episodes within one call of `generate`; and a loop that requests one turn at a time
and reads the whole conversation again each time, like the tool loop of TRL 1.16. All use the fast
decoding loop. Training runs then compare TRL's own tool loop with ours, and show for both tasks
with truncated sampling how far the importance ratio of a token that the model wrote is from 1.
Predictions before the first run: 1.0 times the tokens of one turn and 0.4 times those of the loop;
TRL reads 3 times as many tokens as ours.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from benchmarks.recorded import save
from benchmarks.turns_runs import exactness, read_in_training
from grpo_ext import Environment
from grpo_ext.decoding.play import Player
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.episode_rules import EpisodeRules
from grpo_ext.environments.turn_tokens import TurnTokens
from grpo_ext.samplers.lockstep_episodes import hear, write_turn
from grpo_ext.seams.generate import fast_generation, watching
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import build_tokenizer

BOUNDS = {"tokens of one turn": 1.15, "ratio": 1e-4}
TURN_TOKENS = 24
TURNS = 4


class Counting(Environment):
    """An environment that tells the model how many turns there have been."""

    def __init__(self) -> None:
        self.turns = 0

    def step(self, text: str) -> tuple[str, bool]:
        self.turns += 1
        return f"That was turn {self.turns}, go on.", self.turns == TURNS


class Bench:
    """A tiny model that never draws its end token, so that every turn has `TURN_TOKENS` tokens."""

    def __init__(self, folder: Path, rows: int):
        build = build_tokenizer(["Say something about turn 1, go on. That was it."] * 50)
        build.save_pretrained(folder)
        build_model(build, max_position_embeddings=1024).save_pretrained(folder)
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
        self.model: Any = AutoModelForCausalLM.from_pretrained(folder).eval()
        self.rows = [
            {"prompt": [{"role": "user", "content": f"Say something about {n}. " * 3}]}
            for n in range(rows)
        ]
        self.read = 0
        self.model.get_input_embeddings().register_forward_hook(
            lambda _, given, __: self.count(given[0])
        )

    def count(self, ids: torch.Tensor) -> None:
        self.read += ids.numel()

    def episodes(self) -> tuple[list[Episode], list[list[int]]]:
        """Return new episodes, and the tokens of their prompts."""
        tokens = TurnTokens(self.tokenizer, [self.tokenizer.eos_token_id])
        rules = EpisodeRules(Counting, turns=TURNS, turn_tokens=TURN_TOKENS)
        made = [Episode(rules, tokens, 512, row) for row in self.rows]
        asked = self.tokenizer.apply_chat_template(
            [e.prompt for e in made], add_generation_prompt=True, return_dict=True
        )
        return made, asked["input_ids"]

    def generate(
        self, contexts: list[list[int]], most: int, player: Player | None = None
    ) -> list[list[int]]:
        """Return `most` new tokens for each context; the end token is never drawn."""
        batch = self.tokenizer.pad({"input_ids": contexts}, return_tensors="pt")
        ends = [self.tokenizer.eos_token_id]
        config = GenerationConfig(
            max_new_tokens=most,
            do_sample=True,
            eos_token_id=ends,
            pad_token_id=0,
            suppress_tokens=ends,
        )
        with torch.no_grad(), fast_generation(self.model), watching(self.model, None, player):
            ids = self.model.generate(**batch, generation_config=config)
        return ids[:, batch["input_ids"].size(1) :].tolist()

    def one_turn(self, length: int) -> None:
        self.generate(self.episodes()[1], length)

    def in_one_generate(self) -> int:
        """Return the number of tokens of an episode."""
        episodes, contexts = self.episodes()
        self.generate(contexts, 512, Player(episodes))
        return max(len(episode.ids) for episode in episodes)

    def read_anew(self) -> None:
        episodes, prompts = self.episodes()
        while waiting := [(e, p) for e, p in zip(episodes, prompts, strict=True) if not e.ended]:
            for episode, _ in waiting:
                while episode.pending:
                    episode.read()
            for (episode, _), ids in zip(
                waiting, self.generate([p + e.ids for e, p in waiting], TURN_TOKENS), strict=True
            ):
                write_turn(episode, ids, TURN_TOKENS)
                hear([episode])

    @contextmanager
    def measured(self, into: list[tuple[int, float]]) -> Iterator[None]:
        """Measure the tokens read and the seconds of the block."""
        torch.manual_seed(0)
        self.read, start = 0, time.perf_counter()
        yield
        into.append((self.read, time.perf_counter() - start))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer rows and rounds")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    found: dict[str, list[tuple[int, float]]] = {
        "one turn": [],
        "one generate": [],
        "read anew": [],
    }
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name), 16 if given.quick else 64)
        length = bench.in_one_generate()
        for _ in range(3 if given.quick else 7):
            with bench.measured(found["one turn"]):
                bench.one_turn(length)
            with bench.measured(found["one generate"]):
                bench.in_one_generate()
            with bench.measured(found["read anew"]):
                bench.read_anew()
        loops = read_in_training(Path(name) / "loops")
        ratios = exactness(Path(name), given.quick)
    figures: dict[str, Any] = {"ratios": ratios, "loops": loops, "episode_tokens": length}
    for way, values in found.items():
        tokens, seconds = (statistics.median(part) for part in zip(*values, strict=True))
        figures[way] = {"tokens": tokens, "seconds": seconds}
        print(f"{way:<14} {tokens:>9.0f} tokens  {seconds:6.2f} s")
    more = figures["one generate"]["tokens"] / figures["one turn"]["tokens"]
    print(
        f"episodes read {more:.3f} times the tokens of one turn (asked for: at most "
        f"{BOUNDS['tokens of one turn']})"
    )
    for side, cost in loops.items():
        print(
            f"{side}, {cost['calls']:.1f} calls an episode: {cost['read']:.1f} tokens read "
            f"for each of a completion, "
            f"{cost['seconds']:.1f} s a step"
        )
    for case, ratio in ratios.items():
        print(f"{case}: importance ratios within {ratio:.1e} of 1 (asked for: {BOUNDS['ratio']:g})")
    if given.out:
        save(given.out, figures)
    return int(
        given.check
        and not (more <= BOUNDS["tokens of one turn"] and max(ratios.values()) <= BOUNDS["ratio"])
    )


if __name__ == "__main__":
    sys.exit(main())
