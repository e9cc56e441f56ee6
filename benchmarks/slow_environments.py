"""How long does a generation take if its environment waits for a service?

    python -m benchmarks.slow_environments [--quick] [--check] [--out FILE]

There are 16 episodes of three turns of unequal lengths. In its first turn, each calls a service
once and waits 2 s for it. The code is synchronous, async, or synchronous in 16 threads. A tiny
model plays the episodes in a training run, with transformers and in a sampler process. A stub with
random turns plays them as a vLLM server does, each episode on its own, and as a colocated engine
does, turn by turn. All cases are repeated with the 2 s in `reset`. Calls made one after another
would take 32 s; at most 5 s are allowed.

Finally, the cost of rows that leave the batch to wait is measured: an environment that answers at
once is run synchronous and async, and the passes of the model and the tokens read in them are
counted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.recorded import save
from grpo_ext import Environment, GRPOExtConfig, GRPOExtTrainer
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.played_episodes import seconds_alone
from grpo_ext.environments.start_episodes import beginning
from grpo_ext.samplers.async_episodes import play_as_ready
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.lockstep_episodes import PlayedTokens, Turn, play_by_turns
from grpo_ext.step.records import Generation
from grpo_ext.tiny.model import build_model
from grpo_ext.tiny.tokenizer import build_tokenizer

BOUND = 5.0  # seconds
EPISODES = 16
TURNS = 3
TURN_TOKENS = 40
ROWS = [{"prompt": [{"role": "user", "content": f"Say {n}."}]} for n in range(EPISODES)]


class Service(Environment):
    """An environment that waits for a service in its first turn, or in `reset`."""

    def __init__(self, seconds: float = 0.0, reset_seconds: float = 0.0):
        self.seconds = seconds
        self.reset_seconds = reset_seconds
        self.turns = 0
        self.score = 0.0

    def reset(self, row: dict[str, Any]) -> str | None:
        time.sleep(self.reset_seconds)
        return None

    def step(self, text: str) -> tuple[str, bool]:
        self.turns += 1
        self.score = len(text) % 3 / 2
        if self.turns == 1:
            time.sleep(self.seconds)
        return "go on", self.turns == TURNS


class AsyncService(Service):
    """Like `Service`, but async."""

    async def reset(self, row: dict[str, Any]) -> None:  # type: ignore[override]  # of Service
        await asyncio.sleep(self.reset_seconds)

    async def step(self, text: str) -> tuple[str, bool]:  # type: ignore[override]  # of Service
        self.turns += 1
        self.score = len(text) % 3 / 2
        if self.turns == 1:
            await asyncio.sleep(self.seconds)
        return "go on", self.turns == TURNS


WAYS: dict[str, dict[str, Any]] = {
    "sync": {"name": f"{__name__}:Service"},
    "async": {"name": f"{__name__}:AsyncService"},
    "threads": {"name": f"{__name__}:Service", "threads": EPISODES},
}


class Bench:
    """A tiny model for which many tokens end a turn, so that turns are short."""

    def __init__(self, folder: Path):
        self.folder = folder
        tokenizer = build_tokenizer(["Say something about turn 1, go on. That was it."] * 50)
        tokenizer.save_pretrained(folder / "model")
        model = build_model(tokenizer, max_position_embeddings=1024)
        ends = [tokenizer.eos_token_id, *range(100, 110)]
        model.generation_config.eos_token_id = ends
        model.save_pretrained(folder / "model")
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder / "model", padding_side="left")
        self.ends = ends

    def arguments(self, **settings: Any) -> GRPOExtConfig:
        return GRPOExtConfig(
            str(self.folder / "run"),
            per_device_train_batch_size=EPISODES,
            num_generations=4,
            max_completion_length=400,
            max_steps=2,
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            bf16=False,
            disable_tqdm=True,
            **settings,
        )

    def train(
        self, environment: dict[str, Any], sampler: Literal["process"] | None = None
    ) -> dict[str, float]:
        """Return the seconds of the second step, by phase, and its generation's passes."""
        model = AutoModelForCausalLM.from_pretrained(self.folder / "model")
        rules = {"turn_tokens": TURN_TOKENS, **environment}
        trainer = GRPOExtTrainer(
            model,
            ["environment"],
            self.arguments(environment=rules, sampler=sampler),
            Dataset.from_list(ROWS),
            processing_class=self.tokenizer,
        )
        sample = trainer.parts.sampler.sample
        passes = 0
        tokens = 0

        def count(_: object, given: tuple[Any, ...]) -> None:
            nonlocal passes, tokens
            passes += 1
            tokens += given[0].numel()

        def counted(request: Request) -> Generation:
            nonlocal passes, tokens
            passes = 0
            tokens = 0
            hook = model.get_input_embeddings().register_forward_pre_hook(count)
            try:
                return sample(request)
            finally:
                hook.remove()

        trainer.parts.sampler.sample = counted  # type: ignore[method-assign]
        trainer.train()
        trainer.parts.sampler.stop()
        logged = trainer.state.log_history[1]
        phases = {name: logged.get(f"time/{name}", 0.0) for name in ("generation", "environment")}
        figures = {**phases, "seconds": sum(phases.values())}
        if sampler is None:  # the passes of another process are not counted
            figures |= {"passes": passes, "tokens": tokens}
        return figures

    def episodes(self, environment: dict[str, Any]) -> tuple[list[Episode], float]:
        """Return new episodes, and the seconds of their `reset`."""
        rules = {"turn_tokens": TURN_TOKENS, **environment}
        begin = beginning({"": rules}, self.tokenizer, self.ends, self.arguments())
        start = time.perf_counter()
        episodes = begin(ROWS)
        seconds_alone(episodes)  # of `reset`
        return episodes, time.perf_counter() - start

    def beside_server(self, environment: dict[str, Any]) -> dict[str, float]:
        """Play episodes as with a vLLM server: a turn of n tokens takes n ms."""
        episodes, reset_seconds = self.episodes(environment)

        def complete(ids: list[int], most: int) -> Turn:
            turn = turn_after(ids, most, self.ends[0])
            time.sleep(len(turn.ids) / 1000)
            return turn

        start = time.perf_counter()
        prompts = [episode.prompt_ids for episode in episodes]
        played = [PlayedTokens() for _ in episodes]
        failure = play_as_ready(episodes, prompts, played, complete)
        assert failure is None
        seconds = time.perf_counter() - start
        alone = seconds_alone(episodes)
        return {"environment": reset_seconds + alone, "seconds": reset_seconds + seconds}

    def beside_engine(self, environment: dict[str, Any]) -> dict[str, float]:
        """Play episodes as with a colocated engine: a request takes as long as its longest turn."""
        episodes, reset_seconds = self.episodes(environment)
        requests = 0

        def turns_of(contexts: list[list[int]], most: int) -> list[Turn]:
            nonlocal requests
            requests += 1
            turns = [turn_after(ids, most, self.ends[0]) for ids in contexts]
            time.sleep(max(len(turn.ids) for turn in turns) / 1000)
            return turns

        start = time.perf_counter()
        prompt_ids = [episode.prompt_ids for episode in episodes]
        play_by_turns(Request([], prompt_ids, 4, 0, episodes), turns_of)
        seconds = time.perf_counter() - start
        alone = seconds_alone(episodes)
        return {
            "environment": reset_seconds + alone,
            "seconds": reset_seconds + seconds,
            "requests": requests,
        }


def turn_after(ids: list[int], most: int, end: int) -> Turn:
    """Return a turn of 1 to `TURN_TOKENS` tokens, which depends only on the tokens before it."""
    length = random.Random(repr(ids)).randint(1, TURN_TOKENS)
    tokens = [*[300] * (length - 1), end][:most]
    return Turn(tokens, [None] * len(tokens))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="only answers that wait in step")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bound is missed")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    given = parser.parse_args()
    figures: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as name:
        bench = Bench(Path(name))
        figures["2 s in step, sync, transformers"] = bench.train({**WAYS["sync"], "seconds": 2.0})
        players: dict[str, Callable[[dict[str, Any]], dict[str, float]]] = {
            "transformers": bench.train,
            "process": partial(bench.train, sampler="process"),
            "server": bench.beside_server,
            "colocated": bench.beside_engine,
        }
        places = {"step": "seconds"}
        if not given.quick:
            places["reset"] = "reset_seconds"
        for place, kind in places.items():
            for way in ("async", "threads"):
                for player, play in players.items():
                    case = f"2 s in {place}, {way}, {player}"
                    figures[case] = play({**WAYS[way], kind: 2.0})
        for way in ("sync", "async"):
            figures[f"at once, {way}, transformers"] = bench.train(WAYS[way])
    for case, found in figures.items():
        values = ", ".join(f"{key} {value:.2f}" for key, value in found.items())
        print(f"{case}: {values}")
    slowest = max(
        found["seconds"]
        for case, found in figures.items()
        if "2 s" in case and ", sync," not in case
    )
    print(f"slowest generation that is async or in threads: {slowest:.2f} s (at most {BOUND:g})")
    if given.out:
        save(given.out, figures)
    return int(given.check and slowest > BOUND)


if __name__ == "__main__":
    sys.exit(main())
