"""Sample with transformers' `generate` on the model being trained.

The sampling steps are recorded, so that any truncation can be scored exactly.
"""

import torch
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
    """Samples from a trainer's model with transformers' `generate`.

    Args:
        trainer: the trainer whose model and generation config are used.
        abilities: the sampler's abilities; kept tokens and log-probs are recorded only with
            `returns_kept_tokens`.
        params: the sampling parameters, which determine the tokens that truncation keeps.
    """

    name = "transformers"
    abilities = SamplerAbilities(plays_episodes=True, returns_kept_tokens=True)

    def __init__(
        self, trainer: SampledTrainer, abilities: SamplerAbilities, params: SamplingParams
    ):
        self.trainer = trainer
        self.abilities = abilities
        self.params = params
        # whether the model has its own `generate`, which does not run our processors
        self._own_generate = False

    def sample(self, request: Request) -> Generation:
        if request.episodes and self._own_generate:
            return play_by_turns(request, self._turn)
        trainer = self.trainer
        args = trainer.args
        recorder = None
        if self.abilities.returns_kept_tokens:
            # with other policies completions are not scored exactly anyway
            strict = args.logprob_policy == "sampling"
            recorder = Recorder(self.params, strict, round(1 / args.sampler_check_share))
        player = None
        if request.episodes:
            player = Player(request.episodes)
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        with watching(model, recorder, player):
            completion_ids = seam.complete(trainer, request.prompt_ids, request.num_generations)
        if player is not None:
            if not player.began:
                self._own_generate = True
                return play_by_turns(request, self._turn)
            # `complete` returns only the first turns
            completion_ids = [episode.ids for episode in request.episodes]
        kept_sets = None
        logps = None
        if recorder is not None:
            kept_sets, logps = recorder.rows(completion_ids)
        generation = Generation(
            request.prompt_ids, completion_ids, request.policy_step, logps, kept_sets
        )
        if request.episodes:
            generation = of_episodes(generation, request.episodes)
        return generation

    def describe(self) -> str:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)
        return how_it_generates(
            model, self.trainer.generation_config, self.trainer.args.fast_generate
        )

    def _turn(self, contexts: list[list[int]], max_tokens: int) -> Completed:
        """Complete one turn of each episode with the model's own `generate`, without log-probs."""
        completion_ids = seam.complete(self.trainer, contexts, 1)
        turns = [ids[:max_tokens] for ids in completion_ids]
        logps: list[list[float | None]] = [[None] * len(ids) for ids in turns]
        return turns, logps


def how_it_generates(model: torch.nn.Module, config: GenerationConfig, fast: bool) -> str:
    """Describe in one line how transformers generates the completions.

    Args:
        model: a transformers model, with or without PEFT adapters.
        config: the config of `generate`.
        fast: whether the fast decoding loop may be used (`fast_generate`).
    """
    if not fast:
        return "transformers' generate (fast_generate: false)"
    try:
        check_model(base_model(model))
        check_config(config)
    except NotSupported as reason:
        return f"transformers' generate, since {reason}"
    return "each prompt read once, rows that have ended leave the batch (fast_generate)"
