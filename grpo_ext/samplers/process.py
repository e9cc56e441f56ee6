"""`sampler: process`: run transformers' `generate` in a second process, usually on another device.

Each rank has its own sampler process. The two processes share memory, to which the rank writes the
weights while the sampler process waits for a request.
"""

import contextlib
import copy
import logging
import os
import pickle
import subprocess
import weakref
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe

import torch
from accelerate.utils import gather_object
from transformers import GenerationConfig

from grpo_ext.common.processes import start_beside
from grpo_ext.decoding.checks import base_model
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.base import PROBE_ROWS, PROBE_TOKENS, Request, Sampler, SamplerAbilities
from grpo_ext.samplers.hf import how_it_generates
from grpo_ext.samplers.lockstep_episodes import Turn, play_by_turns
from grpo_ext.samplers.process_messages import Completions, Failure, Job, Start
from grpo_ext.samplers.shared_weights import mapped, new_memory, packed, places_of, tensors_of
from grpo_ext.seams.precision import Precision
from grpo_ext.step.records import Generation
from grpo_ext.vllm import EngineFailure

RESTARTS = 2  # restarts of a dead process per generation
logger = logging.getLogger(__name__)


class ProcessSampler(Sampler):
    """Samples in another process, which has a copy of the weights and starts at the first request.

    Args:
        model: the model without wrappers; `load_weights` copies its weights to the process.
        config: the generation config.
        params: the sampling parameters, for sampling and for scoring.
        device: the device that the process samples on, such as `"cuda:1"` or `"cpu"`.
        limit: number of seconds without a response after which the process is restarted.
        fast: whether rows that have ended leave the batch (`fast_generate`).
        precision: the dtypes to sample in, which are those of the trainer's scorer.

    Raises:
        ValueError: if the model cannot be copied to another process.
    """

    name = "another process"
    abilities = SamplerAbilities(
        separate_engine=True,
        returns_kept_tokens=True,
        plays_episodes=True,
        reports_weights=True,
    )

    def __init__(
        self,
        model: torch.nn.Module,
        config: GenerationConfig,
        params: SamplingParams,
        device: str,
        limit: float,
        fast: bool,
        precision: Precision,
    ):
        self.model = model
        self.config = config
        self.params = params
        self.limit = limit
        self._places, size = places_of(tensors_of(model))
        memory = new_memory(size)
        weakref.finalize(self, os.close, memory)
        self._shared = mapped(memory, size, self._places)
        self._start = Start(
            packed(model),
            memory,
            size,
            self._places,
            device,
            torch.get_num_threads(),
            fast,
            precision,
        )
        self._process: subprocess.Popen | None = None
        self._connection: Connection | None = None
        # the step of the last copy, and the versions of the tensors
        self._loaded: tuple[int, ...] | None = None
        self._job: Job | None = None

    def load_weights(self, step: int) -> None:
        """Copy the weights to the shared memory; frozen parameters are copied only the first time.

        After `stop`, all weights are copied again. Do nothing if neither the step nor a weight has
        changed.

        Raises:
            ValueError: if the shape of a weight has changed since the sampler was created.
        """
        tensors = tensors_of(self.model)
        version = step, *(tensor._version for tensor in tensors if not tensor.is_inference())
        if version == self._loaded:
            return
        if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in self._shared]:
            raise ValueError(
                "The shapes of the model's weights have changed since the trainer was created, but "
                "`sampler: process` has memory for the old shapes only. Create a new trainer."
            )
        with torch.no_grad():
            for place, shared, tensor in zip(self._places, self._shared, tensors, strict=True):
                # frozen parameters stay the same, but buffers may change
                if self._loaded is None or tensor.requires_grad or not place.trained:
                    shared.copy_(tensor)
        self._loaded = version
        self.syncs += 1

    def dtype(self) -> str:
        return str(next(self.model.parameters()).dtype).removeprefix("torch.")

    def describe(self) -> str:
        model = copy.copy(base_model(self.model))
        model.generation_config = self.config  # the config that the process uses
        return f"{self.name}: {how_it_generates(model, self.config, self._start.fast)}"

    def submit(self, request: Request) -> None:
        if request.episodes:
            super().submit(request)  # `sample` starts a job for each round of turns
            return
        # drawn from the rank's random state, which checkpoints contain
        self._start_job(request, seed=int(torch.randint(2**62, ())))

    def probe(self, request: Request) -> Generation:
        # a fixed seed, so that a check does not change the random state
        first_rows = replace(
            request,
            prompt_ids=request.prompt_ids[:PROBE_ROWS],
            max_new_tokens=min(PROBE_TOKENS, self.config.max_new_tokens),
        )
        self._start_job(first_rows, seed=0)
        return self.collect()

    def _start_job(self, request: Request, seed: int) -> None:
        super().submit(request)
        config = copy.copy(self.config)
        if request.max_new_tokens is not None:
            config.max_new_tokens = request.max_new_tokens
        params = replace(self.params, temperature=config.temperature)
        self._job = Job(request.prompt_ids, config, params, seed)
        with contextlib.suppress(EOFError, OSError):  # if the process is dead, `sample` restarts it
            self._send()

    def sample(self, request: Request) -> Generation:
        """Wait for the completions of a request, or play its episodes.

        All ranks must call this method. A sampler process that dies or hangs is restarted up to
        `RESTARTS` times, with the same weights and request.

        Raises:
            EngineFailure: on all ranks, if a process reports an error or still fails after its last
                restart.
        """
        if request.episodes:
            vocab_size = None
            if self.params.truncated:
                vocab_size = base_model(self.model).config.get_text_config().vocab_size
            generation = play_by_turns(request, self._turns, vocab_size)
            # each job has set its own duration; with 0, the trainer measures the whole generation
            self.seconds = 0.0
            return generation
        return self._generation(request)

    def _turns(self, contexts: list[list[int]], max_tokens: int) -> list[Turn]:
        """Generate one turn after each context, with at most `max_tokens` tokens.

        All ranks must call this method.
        """
        request = Request([], contexts, 1, policy_step=0, max_new_tokens=max_tokens)
        self._start_job(request, seed=int(torch.randint(2**62, ())))
        generation = self._generation(request)
        assert generation.sampling_logps is not None
        turns = []
        for row, ids in enumerate(generation.completion_ids):
            logps = generation.sampling_logps[row].tolist()
            kept = generation.kept[row] if generation.kept else None
            turns.append(Turn(ids, logps, kept))
        return turns

    def _generation(self, request: Request) -> Generation:
        """Wait for the completions of a request. All ranks must call this method.

        Raises:
            EngineFailure: on all ranks, if the sampler process of any rank failed.
        """
        answer = self._answer()
        for failure in gather_object([answer if isinstance(answer, Failure) else None]):
            if failure is not None:
                raise EngineFailure(
                    "A sampler process failed. Fix the cause. Then run the command again with "
                    "`--resume auto`, or `train(resume_from_checkpoint=True)` in a script, to "
                    f"continue from the newest checkpoint. The failure: {failure.message}"
                )
        assert isinstance(answer, Completions)
        self.seconds = answer.seconds
        lengths = [len(ids) for ids in answer.ids]
        logps = None
        if answer.logps is not None:
            logps = list(answer.logps.split(lengths))
        kept_sets = None
        if answer.kept_sets is not None:
            kept_sets = answer.kept_sets.split(lengths)
        return Generation(request.prompt_ids, answer.ids, request.policy_step, logps, kept_sets)

    def _send(self) -> None:
        if self._process is None:
            self._launch()
        assert self._connection is not None
        self._connection.send_bytes(pickle.dumps(self._job))

    def _answer(self) -> Completions | Failure:
        for attempt in range(1 + RESTARTS):
            try:
                if attempt:
                    self._end()
                    logger.warning(
                        "The sampler process died, or did not respond for "
                        f"{self.limit:g} s (vllm_server_request_timeout). A new process repeats "
                        "the request."
                    )
                    self._send()
                assert self._connection is not None
                if not self._connection.poll(self.limit):
                    raise TimeoutError
                return pickle.loads(self._connection.recv_bytes())
            except (EOFError, OSError):
                continue
        return Failure(
            f"the process failed {1 + RESTARTS} times, because it ran out of memory, crashed, or "
            f"did not respond for {self.limit:g} s (vllm_server_request_timeout). Its own messages "
            "are in the output of this run."
        )

    def _launch(self) -> None:
        self._connection, process_end = Pipe()
        start = self._start
        self._process = start_beside(
            "grpo_ext.samplers.process_worker",
            process_end,
            threads=start.threads,
            keep=(start.weights,),
        )
        weakref.finalize(self, end_process, self._process)
        self._connection.send_bytes(pickle.dumps(start))

    def stop(self) -> None:
        """Kill the sampler process; the next request starts another one."""
        super().stop()
        self._loaded = None
        self._end()

    def _end(self) -> None:
        if self._connection is not None:
            self._connection.close()
        if self._process is not None:
            end_process(self._process)
        self._process = None
        self._connection = None


def end_process(process: subprocess.Popen) -> None:
    """Kill a process and wait until it has ended."""
    process.kill()
    process.wait()
