"""A sampler that uses vLLM, either in this process or as a server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from torch import Tensor

from grpo_ext.objective.kept import KeptSet
from grpo_ext.samplers.base import PROBE_ROWS, PROBE_TOKENS, Request, Sampler, SamplerAbilities
from grpo_ext.samplers.lockstep_episodes import PlayedTokens, Turn, of_played, play_by_turns
from grpo_ext.samplers.rollout_function import logp_tensors
from grpo_ext.samplers.vllm_generation import OurVLLM
from grpo_ext.seams.vllm import weights_held
from grpo_ext.step.records import Generation


class VLLMSampler(Sampler):
    """Samples with vLLM; `load_weights` sends the trainer's weights if the step has changed.

    Args:
        vllm: the engine, or the client for a server.
        watched: whether generations contain the tokens that truncation kept, if vLLM returns them.
    """

    abilities = SamplerAbilities(
        separate_engine=True,
        plays_episodes=True,
        reports_weights=True,
        truncation_order="vllm",
    )

    def __init__(self, vllm: OurVLLM, watched: bool = True):
        self.vllm = vllm
        returns_kept = watched and vllm.returns_kept
        self.abilities = replace(self.abilities, returns_kept_tokens=returns_kept)
        self.name = f"vLLM ({vllm.mode})"
        self._loaded_step: int | None = None  # the step of the engine's weights

    def stop(self) -> None:
        super().stop()
        self._loaded_step = None
        if self.vllm.mode == "server" and self.vllm.accelerator.is_main_process:
            self.vllm.vllm_client.drop_answer()

    def load_weights(self, step: int) -> None:
        if step != self._loaded_step:
            self.vllm.sync_weights()
            self._loaded_step = step

    @property
    def seconds(self) -> float:  # type: ignore[override]  # the client measures them
        """How long a server's last generation took, in seconds.

        The value is 0 for a colocated engine, and on all ranks except the main process.
        """
        return self.vllm.seconds

    @property
    def syncs(self) -> int:  # type: ignore[override]  # `OurVLLM` also counts syncs of retries
        return self.vllm.syncs

    def dtype(self) -> str:
        return self.vllm.dtype()

    def readable_weights(self) -> dict[str, Tensor]:
        return weights_held(self.vllm)

    def submit(self, request: Request) -> None:
        super().submit(request)
        if self.vllm.mode == "server" and not request.episodes:
            with self._length_limit(request.max_new_tokens):
                self.vllm.start(
                    prompts=request.prompt_ids, images=None, num_generations=request.num_generations
                )

    def probe(self, request: Request) -> Generation:
        prompt_ids = request.prompt_ids[:PROBE_ROWS]
        turns = self._complete(prompt_ids, 1, PROBE_TOKENS)
        return _generation(prompt_ids, request.policy_step, turns)

    def sample(self, request: Request) -> Generation:
        if request.episodes and self.vllm.mode == "server":
            played = [PlayedTokens(self._vocab_size) for _ in request.episodes]
            self.vllm.play(request, played)
            return of_played(request, played)
        if request.episodes:
            return play_by_turns(request, self._turns, self._vocab_size)
        turns = self._complete(request.prompt_ids, request.num_generations, request.max_new_tokens)
        return _generation(request.prompt_ids, request.policy_step, turns)

    @property
    def _vocab_size(self) -> int | None:
        """The size of the model's vocabulary; `None` if generations do not contain kept tokens."""
        return self.vllm.vocab_size if self.abilities.returns_kept_tokens else None

    def _turns(self, contexts: list[list[int]], max_tokens: int) -> list[Turn]:
        return self._complete(contexts, 1, max_tokens)

    def _complete(
        self,
        prompt_ids: list[list[int]],
        num_generations: int,
        max_tokens: int | None,
    ) -> list[Turn]:
        with self._length_limit(max_tokens):
            _, ids, logprobs, _ = self.vllm.generate(
                prompts=prompt_ids, images=None, num_generations=num_generations
            )
        kept_sets: list[KeptSet | None] = [None] * len(ids)
        if self.abilities.returns_kept_tokens:
            kept_sets = list(self.vllm.kept)
        turns = []
        for row, row_logprobs, kept in zip(ids, logprobs, kept_sets, strict=True):
            logps = [token_logps[0] for token_logps in row_logprobs]
            turns.append(Turn(list(row), logps, kept))
        return turns

    @contextmanager
    def _length_limit(self, max_tokens: int | None) -> Iterator[None]:
        """Context manager that limits completions to `max_tokens`, unless it is `None`."""
        max_completion_length = self.vllm.max_completion_length
        self.vllm.max_completion_length = max_tokens or max_completion_length
        try:
            yield
        finally:
            self.vllm.max_completion_length = max_completion_length


def _generation(prompt_ids: list[list[int]], step: int, turns: list[Turn]) -> Generation:
    """Build a generation from completions that consist of a single turn.

    Args:
        prompt_ids: the token ids of each completion's prompt.
        step: the optimizer step whose weights sampled the completions.
        turns: the completions, in the order of `prompt_ids`.
    """
    kept_sets = [turn.kept for turn in turns if turn.kept is not None]
    return Generation(
        prompt_ids=prompt_ids,
        completion_ids=[turn.ids for turn in turns],
        policy_step=step,
        sampling_logps=logp_tensors([turn.logps for turn in turns]),
        kept=kept_sets or None,
    )
