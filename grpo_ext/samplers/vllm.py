"""vLLM as a sampler: started with the number type of the trainer, and asked again if its server
fails.

TRL's `VLLMGeneration` makes the engine or the client, syncs weights and generates; `OurVLLM`
replaces it. Only the main process pushes weights to a server; with episodes every rank asks it for
turns. All ranks learn the result before any of them continues, so they push weights, retry and give
up together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from torch import Tensor
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from grpo_ext.common.main_rank import from_main
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.async_episodes import LogProbs, Turn, play_as_ready
from grpo_ext.samplers.base import PROBE_ROWS, PROBE_TOKENS, Request, Sampler, SamplerAbilities
from grpo_ext.samplers.exact_unmerge import base_kept
from grpo_ext.samplers.lockstep_episodes import Completed, of_played, play_by_turns
from grpo_ext.samplers.rollout_function import logp_tensors
from grpo_ext.seams.vllm import engine_with, weights_held
from grpo_ext.step.records import Generation
from grpo_ext.vllm import EngineFailure
from grpo_ext.vllm.settings import TextModel, cpu_settings, server_url, vllm_dtype

logger = logging.getLogger(__name__)


class VLLMSampler(Sampler):
    """Samples with vLLM, which gets the trainer's weights if the step has changed."""

    abilities = SamplerAbilities(
        separate_engine=True, plays_episodes=True, reports_weights=True, truncation_order="vllm"
    )

    def __init__(self, vllm: OurVLLM):
        self.vllm = vllm
        self.name = f"vLLM ({vllm.mode})"
        self._loaded: int | None = None  # the step whose weights it has

    def stop(self) -> None:
        super().stop()
        self._loaded = None
        if self.vllm.mode == "server" and self.vllm.accelerator.is_main_process:
            self.vllm.vllm_client.drop_answer()

    def load_weights(self, step: int) -> None:
        if step != self._loaded:
            self.vllm.sync_weights()
            self._loaded = step

    @property
    def seconds(self) -> float:  # type: ignore[override]  # a server's client measures them
        """Seconds that the last generation of a server took; 0 on other ranks than the main one."""
        return getattr(self.vllm, "vllm_client", self.vllm).seconds

    @property
    def syncs(self) -> int:  # type: ignore[override]  # `OurVLLM` also counts those of a retry
        return self.vllm.syncs

    def dtype(self) -> str:
        return self.vllm.dtype()

    def readable_weights(self) -> dict[str, Tensor]:
        return weights_held(self.vllm)

    def submit(self, request: Request) -> None:
        super().submit(request)
        if self.vllm.mode == "server" and not request.episodes:
            with self._at_most(request.max_new_tokens):
                self.vllm.start(
                    prompts=request.prompt_ids, images=None, num_generations=request.num_generations
                )

    def probe(self, request: Request) -> Generation:
        prompt_ids = request.prompt_ids[:PROBE_ROWS]
        ids, logprobs = self._complete(prompt_ids, 1, PROBE_TOKENS)
        return Generation(prompt_ids, ids, request.policy_step, logp_tensors(logprobs))

    def sample(self, request: Request) -> Generation:
        if request.episodes and self.vllm.mode == "server":
            logps: LogProbs = [[] for _ in request.episodes]
            self.vllm.play(request, logps)
            return of_played(request, logps)
        if request.episodes:
            return play_by_turns(request, lambda contexts, most: self._complete(contexts, 1, most))
        ids, logprobs = self._complete(
            request.prompt_ids, request.num_generations, request.max_new_tokens
        )
        return Generation(request.prompt_ids, ids, request.policy_step, logp_tensors(logprobs))

    def _complete(
        self, prompt_ids: list[list[int]], num_generations: int, most: int | None = None
    ) -> Completed:
        """Complete lists of tokens by at most `most` tokens; `None`: `max_completion_length`."""
        with self._at_most(most):
            _, ids, logprobs, _ = self.vllm.generate(
                prompts=prompt_ids, images=None, num_generations=num_generations
            )
        return [list(row) for row in ids], [[token[0] for token in row] for row in logprobs]

    @contextmanager
    def _at_most(self, tokens: int | None) -> Iterator[None]:
        longest = self.vllm.max_completion_length
        self.vllm.max_completion_length = tokens or longest
        try:
            yield
        finally:
            self.vllm.max_completion_length = longest


class OurVLLM(VLLMGeneration):
    """As TRL's, with `syncs`, the number of times that the engine got the weights."""

    options: GRPOExtConfig  # the trainer's arguments
    seconds = 0.0
    model: Any

    def __init__(self, options: GRPOExtConfig, *args: Any, **kwargs: Any):
        self.options = options
        self.syncs = 0
        super().__init__(*args, **kwargs)

    def _init_vllm(self) -> None:
        if (
            self.mode == "server"
        ):  # TRL raises an error on the main rank only, and the others wait for it
            self.server_base_url = server_url(vars(self.options))
            self._served_dtype: str = from_main(self.accelerator, self._connect)
            return
        with engine_with(self._settings()):
            super()._init_vllm()

    def _connect(self) -> str:
        """Find the server and join its workers; return the number type of its model."""
        self.vllm_client = self._new_client()
        self.vllm_client.init_communicator(device=self.accelerator.device)
        return self.vllm_client.get_server_info()["model_config"]["dtype"]

    def _new_client(self) -> Any:
        return self._client()(
            base_url=self.server_base_url,
            group_port=self.group_port,
            connection_timeout=self.server_timeout,
            request_timeout=self.options.vllm_server_request_timeout,
            vocabulary=self.model.config.get_text_config().vocab_size,
        )

    def _client(self) -> Callable[..., VLLMClient]:
        from grpo_ext.samplers.vllm_client import ServerClient

        return ServerClient

    def _settings(self) -> dict[str, Any]:
        """Return the arguments of `vllm.LLM` in addition to those of TRL."""
        if self.accelerator.device.type != "cpu":
            return {}
        from grpo_ext.vllm.plugin import register

        register()  # in case the package's entry points are not installed
        weights = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        dtype = vllm_dtype(weights, bool(self.options.bf16), bool(self.options.fp16))
        return cpu_settings(
            TextModel.of(self.model.config), dtype, self.max_num_seqs or 0, self.max_model_length
        )

    def dtype(self) -> str:
        """Return the number type of the engine, such as `"float32"`."""
        found = (
            self._served_dtype if self.mode == "server" else self.llm.llm_engine.model_config.dtype
        )
        return str(found).removeprefix("torch.")

    def sync_weights(self) -> None:
        """As TRL's, but wait for a server that fails; raise `EngineFailure` on all ranks if it does
        not come back.
        """
        self._until_answered(self._push)
        self.syncs += 1

    def _push(self) -> None:
        """Give the engine the trainer's weights, without retries."""
        super().sync_weights()

    def _iter_named_params(self) -> Iterator[tuple[str, Any]]:
        """As TRL's, which merges the adapter for the transfer; afterwards restore a base that is
        not sharded.
        """
        whole = not (self._dist.is_fsdp or self._dist.is_zero3)
        with (
            base_kept(self.model) if whole and isinstance(self.model, PeftModel) else nullcontext()
        ):
            yield from super()._iter_named_params()

    def generate(self, *args: Any, **kwargs: Any) -> tuple:
        """As TRL's, but wait for a server that fails, give it the current weights and ask again.

        `EngineFailure` on all ranks, if the server does not come back or refuses the request.
        """
        return self._until_answered(partial(super().generate, *args, **kwargs))

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Send a server the request that the next `generate` with the same arguments answers."""
        if self.accelerator.is_main_process:
            self.vllm_client.starts = True
        super().generate(
            *args, **kwargs
        )  # gathers the prompts of all ranks; the client answers nothing yet

    def play(self, request: Request, logps: LogProbs) -> None:
        """Play a request's episodes, on all ranks at once, each with separate requests; `logps` as
        `play_as_ready` has them.

        A server that fails is waited for, given the current weights, and the episodes go on.
        `EngineFailure` as for `generate`.
        """
        client = self._client_of_rank()
        names = (
            "repetition_penalty",
            "temperature",
            "top_p",
            "top_k",
            "logprobs",
            "generation_kwargs",
        )
        sampling = {"min_p": self.min_p or 0.0, **{name: getattr(self, name) for name in names}}

        def work() -> None:
            # the version of the weights that each turn must come from; the server takes an adapter
            # for another model
            version, client.model = broadcast_object_list([client.version, client.model])

            def ask(ids: list[int], most: int) -> Turn:
                found = client.complete(ids, version, max_tokens=most, **sampling)
                return found["completion_ids"][0], [token[0] for token in found["logprobs"][0]]

            with client.room_for(request):
                failure = play_as_ready(request.episodes, request.prompt_ids, logps, ask)
            client.failed(next((f for f in gather_object([failure]) if f), None))

        self._until_answered(work)

    def _client_of_rank(self) -> Any:
        """Return this rank's client of the server. `EngineFailure` on all ranks, if one of them
        finds no server.
        """
        error = None
        if not hasattr(self, "vllm_client"):  # the main process has one
            try:
                self.vllm_client = self._new_client()
            except Exception as met:
                error = f"rank {self.accelerator.process_index}: {met}"
        if found := [e for e in gather_object([error]) if e]:
            raise EngineFailure(
                f"Episodes need a way from every rank to the vLLM server: {found[0]}"
            )
        return self.vllm_client

    def _until_answered(self, work: Callable[[], Any]) -> Any:
        if self.mode != "server":
            return work()
        retries = self.options.vllm_server_retries
        for attempt in range(retries + 1):
            if attempt:
                self._recover(f"attempt {attempt} of {retries}")
            answer = work()
            failure = from_main(self.accelerator, lambda: self.vllm_client.failure)
            if failure is None:
                return answer
            if failure.refused:
                break
        outcome = "refused a request" if failure.refused else "did not come back"
        raise EngineFailure(
            f"The vLLM server at {self.server_base_url} {outcome}: {failure.message}. The log of "
            "the server says more. Start it again; the same command resumes from the checkpoint."
        )

    def _recover(self, attempt: str) -> None:
        """Wait for the server and push the weights to it; the next request shows whether this
        worked.
        """
        if self.accelerator.is_main_process:
            logger.warning(
                f"The vLLM server failed: {self.vllm_client.failure.message}. Waiting "
                f"{self.server_timeout:g} s for a server that will get the current weights and "
                f"the request again ({attempt})."
            )
            self.vllm_client.reconnect(self.server_timeout)
        self._push()
        self.syncs += 1
