"""TRL's `VLLMGeneration` in the trainer's dtype, with retries if the server fails.

Only the main process sends weights to a server, but with episodes, every rank requests turns. All
ranks learn the result of a request before any of them continues, so that they send weights, retry
and give up together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch
from accelerate.utils import broadcast_object_list, gather_object
from peft import PeftModel
from trl.generation.vllm_client import VLLMClient
from trl.generation.vllm_generation import VLLMGeneration

from grpo_ext.common.main_rank import from_main
from grpo_ext.objective.kept import KeptSet
from grpo_ext.recipe.schema import GRPOExtConfig
from grpo_ext.samplers.async_episodes import play_as_ready
from grpo_ext.samplers.base import Request
from grpo_ext.samplers.exact_unmerge import base_kept
from grpo_ext.samplers.lockstep_episodes import PlayedTokens, Turn
from grpo_ext.samplers.vllm_kept import kept_of_outputs
from grpo_ext.seams.vllm import engine_with, watch_outputs
from grpo_ext.vllm import EngineFailure
from grpo_ext.vllm.kept_tokens import engine_settings, wants_kept
from grpo_ext.vllm.settings import TextModel, cpu_settings, server_url, vllm_dtype

logger = logging.getLogger(__name__)
Result = TypeVar("Result")


class OurVLLM(VLLMGeneration):
    """TRL's `VLLMGeneration` with retries; `syncs` counts how often weights were sent.

    If `returns_kept` is `True`, the engine also returns the tokens that truncation kept, and
    `generate` stores those of this rank in `kept`.

    Args:
        options: the training arguments.
        args: the positional arguments of `VLLMGeneration`.
        kwargs: the keyword arguments of `VLLMGeneration`.
    """

    options: GRPOExtConfig  # the trainer's arguments
    model: Any

    def __init__(self, options: GRPOExtConfig, *args: Any, **kwargs: Any):
        self.options = options
        self.syncs = 0
        self.returns_kept = False
        self.kept: list[KeptSet] = []  # of this rank's last completions, if `returns_kept`
        self._engine_kept: list[KeptSet] = []  # of all completions that the engine made last
        super().__init__(*args, **kwargs)

    @property
    def vocab_size(self) -> int:
        """The number of tokens in the model's vocabulary."""
        return self.model.config.get_text_config().vocab_size

    @property
    def seconds(self) -> float:
        """How long a server's last generation took, in seconds.

        The value is 0 for a colocated engine, and on all ranks except the main process.
        """
        if self.mode == "server" and self.accelerator.is_main_process:
            return self.vllm_client.seconds
        return 0.0

    def _init_vllm(self) -> None:
        if self.mode == "server":
            # TRL would raise an error on the main rank only, and the other ranks would hang
            self.server_base_url = server_url(vars(self.options))
            self._served_dtype, self.returns_kept = from_main(self.accelerator, self._connect)
            return
        settings = self._settings()
        self.returns_kept = "return_sampling_mask" in settings
        with engine_with(settings):
            super()._init_vllm()
        if self.returns_kept:
            watch_outputs(self.llm, self._keep)

    def _connect(self) -> tuple[str, bool]:
        """Create the client for the server, and join a process group with the server's workers.

        Return the dtype of the server's model, and whether generations are to contain kept tokens,
        that is, whether this run uses them and the server can return them.
        """
        self.vllm_client = self._new_client()
        self.vllm_client.init_communicator(device=self.accelerator.device)
        model_config = self.vllm_client.get_server_info()["model_config"]
        has_kept = model_config.get("return_sampling_mask", False)
        returns_kept = has_kept and wants_kept(vars(self.options))
        if returns_kept:
            self.vllm_client.ask_for_kept()
        return model_config["dtype"], returns_kept

    def _keep(self, outputs: list[Any]) -> None:
        """Extract the kept tokens from the engine's outputs, and store them.

        Raises:
            EngineFailure: if a completion does not have one set of kept tokens per token.
        """
        self._engine_kept = kept_of_outputs(outputs, self.vocab_size)

    def _own_kept(self, num_rows: int) -> list[KeptSet]:
        """Return the kept tokens of this rank's completions. All ranks must call this method.

        Args:
            num_rows: the number of completions on this rank, which must be the same on all ranks.
        """
        rank = 0
        kept_sets = self._engine_kept
        if self.mode == "server":
            shared = [None]
            if self.accelerator.is_main_process:
                shared = [self.vllm_client.kept]
            [kept_sets] = broadcast_object_list(shared)
            rank = self.accelerator.process_index
        elif self.tensor_parallel_size > 1:
            rank = torch.distributed.get_rank(group=self.tp_group)
        return kept_sets[rank * num_rows : (rank + 1) * num_rows]

    def _new_client(self) -> Any:
        return self._client()(
            base_url=self.server_base_url,
            group_port=self.group_port,
            connection_timeout=self.server_timeout,
            request_timeout=self.options.vllm_server_request_timeout,
            vocabulary=self.vocab_size,
        )

    def _client(self) -> Callable[..., VLLMClient]:
        from grpo_ext.samplers.vllm_client import ServerClient

        return ServerClient

    def _settings(self) -> dict[str, Any]:
        """Return the arguments for `vllm.LLM` that are passed in addition to TRL's.

        On a CPU, they come from `cpu_settings`, and this package's vLLM plugin is registered. On
        other devices, they come from `engine_settings`.
        """
        if self.accelerator.device.type != "cpu":
            return engine_settings(vars(self.options))
        from grpo_ext.vllm.plugin import register

        register()  # in case the package's entry points are not installed
        weights = str(next(self.model.parameters()).dtype).removeprefix("torch.")
        # accelerate has no autocast to float16 on a CPU
        dtype = vllm_dtype(weights, bool(self.options.bf16), fp16=False)
        return cpu_settings(
            TextModel.of(self.model.config),
            dtype,
            self.max_num_seqs or 0,
            self.max_model_length,
        )

    def dtype(self) -> str:
        """Return the dtype of the engine, such as `"float32"`."""
        if self.mode == "server":
            return self._served_dtype.removeprefix("torch.")
        return str(self.llm.llm_engine.model_config.dtype).removeprefix("torch.")

    def sync_weights(self) -> None:
        """Send the engine the weights, as TRL does; if a server fails, wait for it and retry.

        Raises:
            EngineFailure: on all ranks, if the server does not recover or rejects the request.
        """
        self._until_answered(self._push)
        self.syncs += 1

    def _push(self) -> None:
        """Send the engine the trainer's weights, without retries."""
        super().sync_weights()

    def _iter_named_params(self) -> Iterator[tuple[str, Any]]:
        """Yield the weights as TRL does, with the adapter, if any, merged into them.

        If the model is not sharded, the base weights are restored exactly afterwards.
        """
        is_sharded = self._dist.is_fsdp or self._dist.is_zero3
        if is_sharded or not isinstance(self.model, PeftModel):
            yield from super()._iter_named_params()
            return
        with base_kept(self.model):
            yield from super()._iter_named_params()

    def generate(self, *args: Any, **kwargs: Any) -> tuple:
        """Generate as TRL does; if a server fails, wait for it, send the weights and retry.

        Raises:
            EngineFailure: on all ranks, if the server does not recover or rejects the request; on
                this rank only, if a colocated engine does not return the kept tokens.
        """
        completions = self._until_answered(partial(super().generate, *args, **kwargs))
        if self.returns_kept:
            completion_ids = completions[1]
            self.kept = self._own_kept(len(completion_ids))
        return completions

    def start(self, *args: Any, **kwargs: Any) -> None:
        """Send a request to the server without waiting for the result.

        All ranks must call this method. To wait for the result, call `generate` with the same
        arguments.
        """
        if self.accelerator.is_main_process:
            self.vllm_client.starts = True
        # gathers the prompts of all ranks; the client returns `NOTHING` for now
        super().generate(*args, **kwargs)

    def play(self, request: Request, played: list[PlayedTokens]) -> None:
        """Play a request's episodes. All ranks must call this method, each with its own episodes.

        If the server fails, wait for it, send it the current weights, and continue the episodes.

        Args:
            request: a request with episodes.
            played: the log-probs and kept tokens of each episode so far; extended in place.

        Raises:
            EngineFailure: on all ranks, if any rank cannot connect to the server, or if the server
                does not recover or rejects a request.
        """
        client = self._client_of_rank()
        sampling = {
            "repetition_penalty": self.repetition_penalty,
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p or 0.0,
            "logprobs": self.logprobs,
            "generation_kwargs": self.generation_kwargs,
        }

        def play_once() -> None:
            # each turn must use these weights; to the server, an adapter is another model
            version, client.model = broadcast_object_list([client.version, client.model])

            def complete(ids: list[int], max_tokens: int) -> Turn:
                answer = client.complete(ids, version, max_tokens=max_tokens, **sampling)
                [tokens] = answer["completion_ids"]
                [logprobs] = answer["logprobs"]
                [kept] = answer.get("kept", [None])
                return Turn(tokens, [token_logprobs[0] for token_logprobs in logprobs], kept)

            with client.room_for(request, sampling):
                failure = play_as_ready(request.episodes, request.prompt_ids, played, complete)
            failures = filter(None, gather_object([failure]))
            client.failed(next(failures, None))

        self._until_answered(play_once)

    def _client_of_rank(self) -> Any:
        """Return this rank's client for the server, creating it if necessary.

        All ranks must call this method.

        Raises:
            EngineFailure: on all ranks, if any of them cannot connect to the server.
        """
        problems = []
        if not hasattr(self, "vllm_client"):  # the main process has one
            try:
                self.vllm_client = self._new_client()
                self.vllm_client.returns_kept = self.returns_kept
            except Exception as error:
                problems.append(f"rank {self.accelerator.process_index}: {error}")
        problems = gather_object(problems)
        if problems:
            raise EngineFailure(
                "Episodes need a connection to the vLLM server on every rank. The connection "
                f"failed on {problems[0]}"
            )
        return self.vllm_client

    def _until_answered(self, request: Callable[[], Result]) -> Result:
        """Return the result of `request()`; with a server, retry the request if it fails.

        Before each retry, wait for the server and send it the weights.

        Raises:
            EngineFailure: on all ranks, if the server rejects the request, or if it still fails
                after `vllm_server_retries` retries.
        """
        if self.mode != "server":
            return request()
        retries = self.options.vllm_server_retries
        for attempt in range(retries + 1):
            if attempt:
                self._recover(f"attempt {attempt} of {retries}")
            answer = request()
            failure = from_main(self.accelerator, lambda: self.vllm_client.failure)
            if failure is None:
                return answer
            if failure.refused:
                raise EngineFailure(
                    f"The vLLM server at {self.server_base_url} rejected a request: "
                    f"{failure.message}. Check the server's log, and correct the settings. Then "
                    "run the command again with `--resume auto`, or "
                    "`train(resume_from_checkpoint=True)` in a script, to continue from the newest "
                    "checkpoint."
                )
        raise EngineFailure(
            f"The vLLM server at {self.server_base_url} still fails after all retries "
            f"(`vllm_server_retries: {retries}`): {failure.message}. Check the server's log, "
            "and restart the server. Then run the command again with `--resume auto`, or "
            "`train(resume_from_checkpoint=True)` in a script, to continue from the newest "
            "checkpoint."
        )

    def _recover(self, attempt: str) -> None:
        """Log a warning that names the attempt, wait for the server and send it the weights.

        If this fails, the failure is stored in the client and not raised.
        """
        if self.accelerator.is_main_process:
            logger.warning(
                f"The vLLM server failed: {self.vllm_client.failure.message}. Waiting up to "
                f"{self.server_timeout:g} s for the server to recover; the current weights and the "
                f"request are then sent to it again ({attempt})."
            )
            self.vllm_client.reconnect(self.server_timeout)
        self._push()
        self.syncs += 1
