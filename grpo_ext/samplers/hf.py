"""Sample with transformers' `generate` on the model being trained.

If the sampler has the ability `returns_kept_tokens`, the tokens that truncation keeps are recorded
at each step, so that completions can be scored exactly. The log-probs of the sampled tokens are
also recorded, for a share of the completions (`sampler_check_share`) or, with
`deterministic: true`, for all of them.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from transformers import GenerationConfig

from grpo_ext.common.stop_strings import StopStrings, stop_strings_of
from grpo_ext.decoding.checks import NotSupported
from grpo_ext.decoding.play import Player
from grpo_ext.determinism.mode import InvariantOperations
from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.base import Request, Sampler, SamplerAbilities
from grpo_ext.samplers.episode_rounds import TokenRecord, played, rounds
from grpo_ext.samplers.lockstep_episodes import Turn, play_by_turns
from grpo_ext.samplers.port import SampledTrainer
from grpo_ext.seams import trl as seam
from grpo_ext.seams.generate import check_fast_generation, watching
from grpo_ext.seams.precision import Precision, sampling_in
from grpo_ext.step.records import Generation


class HFSampler(Sampler):
    """Samples from a trainer's model with transformers' `generate`.

    Args:
        trainer: the trainer whose model and generation config are used.
        abilities: the sampler's abilities; kept tokens and log-probs are recorded only if
            `returns_kept_tokens` is `True`.
        params: the sampling parameters, which determine the tokens that truncation keeps.
        precision: the dtypes to sample in, which are those of the trainer's scorer.
    """

    name = "transformers"
    abilities = SamplerAbilities(plays_episodes=True, returns_kept_tokens=True)

    def __init__(
        self,
        trainer: SampledTrainer,
        abilities: SamplerAbilities,
        params: SamplingParams,
        precision: Precision,
    ):
        self.trainer = trainer
        self.abilities = abilities
        self.params = params
        self.precision = precision
        texts = stop_strings_of(trainer.args.generation_kwargs)
        #: Ends completions of a single turn; `None` if there are no stop strings.
        self.stops = StopStrings(seam.tokenizer_of(trainer), texts) if texts else None
        # whether the model has its own `generate`, which does not run this package's processors
        self._own_generate = False

    def sample(self, request: Request) -> Generation:
        if request.episodes:
            return self._play(request)
        recorder = self._recorder()
        completion_ids = self._generate(request, request.prompt_ids, recorder)
        kept_sets = None
        logps = None
        if recorder is not None:
            kept_sets, logps = recorder.rows(completion_ids)
        if logps is None:
            self._refuse_own_generate()
        return Generation(request.prompt_ids, completion_ids, request.policy_step, logps, kept_sets)

    def _play(self, request: Request) -> Generation:
        """Play the episodes of a request in rounds, with one call of `generate` each.

        If the model has its own `generate`, which does not run this package's processors, each call
        completes only one turn of each episode.
        """
        if self._own_generate:
            return play_by_turns(request, self._turns)
        episodes = request.episodes
        records = [TokenRecord() for _ in episodes]
        for rows in rounds(episodes):
            contexts = [request.prompt_ids[row] + episodes[row].ids for row in rows]
            starts = [len(episodes[row].ids) for row in rows]
            player = Player([episodes[row] for row in rows])
            recorder = self._recorder()
            self._generate(request, contexts, recorder, player)
            if not player.began:
                self._refuse_own_generate()
                self._own_generate = True
                return play_by_turns(request, self._turns)
            # `_generate` returns only the first turns
            new_ids = [episodes[row].ids[start:] for row, start in zip(rows, starts, strict=True)]
            kept_sets = None
            logps = None
            if recorder is not None:
                kept_sets, logps = recorder.rows(new_ids)
            for number, row in enumerate(rows):
                records[row].add(
                    episodes[row].ids,
                    starts[number],
                    logps[number] if logps else None,
                    kept_sets[number] if kept_sets else None,
                )
        return played(request, records)

    def _recorder(self) -> Recorder | None:
        """Return a new recorder for one `generate` call, or `None` if sampling is not recorded."""
        if not self.abilities.returns_kept_tokens:
            return None
        args = self.trainer.args
        # with other policies, completions are not scored exactly anyway
        strict = args.logprob_policy == "sampling"
        every = 1 if args.deterministic else round(1 / args.sampler_check_share)
        return Recorder(self.params, strict, every)

    def _generate(
        self,
        request: Request,
        contexts: list[list[int]],
        recorder: Recorder | None,
        player: Player | None = None,
    ) -> list[list[int]]:
        """Complete each list of tokens, up to the first end token or stop string.

        Args:
            request: the request that the lists belong to.
            contexts: the lists of tokens.
            recorder: records the sampling steps; if `None`, they are not recorded.
            player: plays an episode in each row, in which case only the first turns are returned.
                If `None`, each completion is a single turn.
        """
        trainer = self.trainer
        model = trainer.accelerator.unwrap_model(trainer.model_wrapped)
        operations = InvariantOperations() if trainer.args.deterministic else nullcontext()
        stops = self.stops if player is None else None
        with self._as_scored(model), watching(model, recorder, player, stops), operations:
            completions = seam.complete(trainer, contexts, request.num_generations)
        if stops is None:
            return completions
        return [stops.cut(ids) for ids in completions]

    def _refuse_own_generate(self) -> None:
        """Raise `ValueError` if `deterministic: true` is set, which requires recorded log-probs.

        Call this method if the sampler's log-probs were not recorded.
        """
        if self.trainer.args.deterministic:
            raise ValueError(
                "`deterministic: true` does not work with this model, whose own `generate` does "
                "not run the logits processor that records the sampler's log-probs. Set "
                "`deterministic: false`."
            )

    def describe(self) -> str:
        model = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)
        return how_it_generates(
            model, self.trainer.generation_config, self.trainer.args.fast_generate
        )

    def _as_scored(self, model: torch.nn.Module) -> AbstractContextManager[None]:
        """Return a context manager that makes the model compute in the scorer's dtypes.

        With continuous batching, which generates in another thread, the context manager does
        nothing.
        """
        if self.trainer.use_transformers_continuous_batching:  # generates in another thread
            return nullcontext()
        return sampling_in(self.precision, model)

    def _turns(self, contexts: list[list[int]], max_tokens: int) -> list[Turn]:
        """Generate one turn after each context with the model's own `generate`.

        The log-probs are `None`, and tokens beyond `max_tokens` are dropped.
        """
        model = self.trainer.accelerator.unwrap_model(self.trainer.model_wrapped)
        turns = []
        with self._as_scored(model):
            completions = seam.complete(self.trainer, contexts, 1)
        for completion_ids in completions:
            ids = completion_ids[:max_tokens]
            turns.append(Turn(ids, [None] * len(ids)))
        return turns


def how_it_generates(model: torch.nn.Module, config: GenerationConfig, fast: bool) -> str:
    """Describe in one line how transformers generates the completions.

    Args:
        model: a transformers model, with or without PEFT adapters.
        config: the generation config.
        fast: whether the fast decoding loop may be used (`fast_generate`).
    """
    if not fast:
        return "transformers' generate (fast_generate: false)"
    try:
        check_fast_generation(model, config)
    except NotSupported as reason:
        return f"transformers' generate, since {reason}"
    return "each prompt processed once, finished rows removed from the batch (fast_generate)"
