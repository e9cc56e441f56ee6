"""Sampling with transformers' `generate` on the model in training, watched so that any truncation
is scored exactly.
"""

from typing import Any

from transformers import GenerationConfig

from grpo_ext.decoding.checks import NotSupported, base_model, check_config, check_model
from grpo_ext.decoding.play import Player
from grpo_ext.environments.episode import of_episodes
from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.base import Request, Sampler, SamplerAbilities
from grpo_ext.samplers.lockstep_episodes import Completed, play_by_turns
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.generate import watching
from grpo_ext.step.records import Generation


class HFSampler(Sampler):
    """transformers' `generate` on the model of a trainer.

    Args:
        trainer: whose model and generation config it uses.
        abilities: of the class; kept tokens and log-probs are recorded only if it returns them.
        params: the distribution that completions are drawn from.
    """

    name = "transformers"
    abilities = SamplerAbilities(plays_episodes=True, returns_kept_tokens=True)

    def __init__(
        self, trainer: SampledTrainer, abilities: SamplerAbilities, params: SamplingParams
    ):
        self.trainer = trainer
        self.abilities = abilities
        self.params = params
        self._own_generate = False  # whether the model's `generate` is not transformers'

    def sample(self, request: Request) -> Generation:
        if request.episodes and self._own_generate:
            return play_by_turns(request, self._turn)
        trainer = self.trainer
        args = self.trainer.args
        strict = args.logprob_policy == "sampling"  # else completions are not scored exactly anyway
        recorder = (
            Recorder(self.params, strict, round(1 / args.sampler_check_share))
            if self.abilities.returns_kept_tokens
            else None
        )
        player = Player(request.episodes) if request.episodes else None
        with watching(trainer.accelerator.unwrap_model(trainer.model_wrapped), recorder, player):
            completion_ids = seam.complete(trainer, request.prompt_ids, request.num_generations)
        if player is not None and not player.began:
            self._own_generate = True
            return play_by_turns(request, self._turn)
        if player is not None:  # `complete` returns only the first turns
            completion_ids = [episode.ids for episode in request.episodes]
        kept, logps = recorder.rows(completion_ids) if recorder is not None else (None, None)
        return of_episodes(
            Generation(request.prompt_ids, completion_ids, request.policy_step, logps, kept),
            request.episodes,
        )

    def describe(self) -> str:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)
        return how_it_generates(
            model, self.trainer.generation_config, self.trainer.args.fast_generate
        )

    def _turn(self, contexts: list[list[int]], left: int) -> Completed:
        """Complete one turn of each episode by a `generate` of the model's own, which runs no
        processors of ours.
        """
        turns = [ids[:left] for ids in seam.complete(self.trainer, contexts, 1)]
        return turns, [[None] * len(ids) for ids in turns]


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
