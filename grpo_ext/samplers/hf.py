"""Sampling with transformers' `generate` on the model in training, watched so that any truncation is scored exactly."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from transformers import GenerationConfig

from grpo_ext.decoding.play import Player
from grpo_ext.decoding.support import NotSupported, base_model, check_config, check_model
from grpo_ext.environments.episode import of_episodes
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.watch import Recorder
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.seams.generate import watching
from grpo_ext.step.records import Generation


@dataclass(eq=False)
class HFSampler(Sampler):
    """transformers' `generate`."""

    name, plays = "transformers", True

    turn: Callable[[list[list[int]], int], list[list[int]]]  # completes lists of tokens, with a number of copies of each
    model: Callable[[], Any]  # returns the model without its wrappers
    params: Callable[[], SamplingParams]  # returns the sampling parameters that are scored
    set_temperature: Callable[[float], None] | None  # sets the temperature of `turn`; `None`: the temperature does not change
    strict: bool  # whether to refuse generation options that are not scored exactly
    every: int  # log-probs are recorded for one row in this many
    watched: bool  # whether kept tokens and log-probs are recorded

    def sample(self, request: Request) -> Generation:
        params = self.params()
        if self.set_temperature is not None:
            self.set_temperature(request.temperature)
            params = replace(params, temperature=request.temperature)
        recorder = Recorder(params, self.strict, self.every) if self.watched else None
        player = Player(request.episodes) if request.episodes else None
        with watching(self.model(), recorder, player):
            completion_ids = self.turn(request.prompt_ids, request.num_generations)
        if player is not None:  # `turn` returns only the first turns
            completion_ids = [episode.ids for episode in request.episodes]
        kept, logps = recorder.rows(completion_ids) if recorder is not None else (None, None)
        found = Generation(request.prompt_ids, completion_ids, request.policy_step, request.temperature, logps, kept)
        return of_episodes(found, request.episodes)


def how_it_generates(model: Any, config: GenerationConfig, fast: bool) -> str:
    """Describe in one line how transformers makes the completions."""
    if not fast:
        return "transformers' generate (fast_generate: false)"
    try:
        check_model(base_model(model))
        check_config(config)
    except NotSupported as reason:
        return f"transformers' generate, since {reason}"
    return "each prompt read once, rows that have ended leave the batch (fast_generate)"
