"""`sampler: process`: transformers' `generate` in a process of its own, on a device of its own, beside the trainer.

Each rank has its own process. The weights are in memory that both map; the trainer writes them while the process waits.
"""

import contextlib
import copy
import os
import pickle
import subprocess
import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection, Pipe
from typing import Any

import torch
from accelerate.utils import gather_object
from transformers import GenerationConfig

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.base import Request, Sampler
from grpo_ext.samplers.process_worker import Job, Start
from grpo_ext.samplers.shared_weights import mapped, new_memory, packed, places_of, tensors_of
from grpo_ext.step.records import Generation
from grpo_ext.vllm import EngineFailure

RESTARTS = 2  # of a process that died, for one generation


class ProcessSampler(Sampler):
    """Samples in another process, which keeps its own copy of the weights.

    Args:
        model: without wrappers; its weights are those that `load_weights` gives to the process.
        config: of `generate`; its temperature is that of each request.
        params: returns the sampling parameters that are scored.
        device: on which the process samples, such as `"cuda:1"` or `"cpu"`.
        fast: whether rows that have ended leave the batch (`fast_generate`).
    """

    name, separate, watched = "a process of its own", True, True

    def __init__(
        self, model: Any, config: GenerationConfig, params: Callable[[], SamplingParams], device: str, fast: bool = True
    ):
        self.model, self.config, self.params = model, config, params
        self._places, size = places_of(tensors_of(model))
        memory, threads = new_memory(size), torch.get_num_threads()
        weakref.finalize(self, os.close, memory)
        self._start = Start(packed(model), memory, size, self._places, device, threads, fast)
        self._shared = mapped(memory, size, self._places)
        self._process: subprocess.Popen | None = None
        self._line: Connection | None = None
        self._loaded: int | None = None
        self._job: Job | None = None

    def load_weights(self, step: int) -> None:
        if step == self._loaded:
            return
        tensors = tensors_of(self.model)
        if [tensor.shape for tensor in tensors] != [tensor.shape for tensor in self._shared]:
            raise ValueError("The model has other weights than when its trainer was made: sampler: process cannot follow it.")
        with torch.no_grad():
            for place, shared, tensor in zip(self._places, self._shared, tensors, strict=True):
                if self._loaded is None or tensor.requires_grad or not place.trained:  # a frozen base is sent once
                    shared.copy_(tensor)
        self._loaded = step

    def submit(self, request: Request) -> None:
        super().submit(request)
        seed = int(torch.randint(2**62, ()))  # of the rank's random state, which a checkpoint has
        config = copy.copy(self.config)
        config.temperature = request.temperature
        self._job = Job(request.prompt_ids, config, replace(self.params(), temperature=request.temperature), seed)
        with contextlib.suppress(EOFError, OSError):  # `collect` starts another process
            self._send()

    def collect(self) -> Generation:
        """Return the generation. A process that died is started again, and repeats it with the weights that it had."""
        request, self._asked = self._asked, None
        assert request is not None, "call submit before collect"
        answer = self._answer()
        if failed := [error for error in gather_object([answer if isinstance(answer, str) else None]) if error]:
            raise EngineFailure(f"A sampler process failed: {failed[0]}")
        ids, kept, logps, self.seconds = answer
        return Generation(request.prompt_ids, ids, request.policy_step, request.temperature, logps, kept)

    def _send(self) -> None:
        if self._process is None:
            self._launch()
        assert self._line is not None
        self._line.send_bytes(pickle.dumps(self._job))

    def _answer(self) -> Any:
        for attempt in range(1 + RESTARTS):
            try:
                if attempt:
                    self._end()
                    self._send()
                assert self._line is not None
                return pickle.loads(self._line.recv_bytes())
            except (EOFError, OSError):
                continue
        return f"it died {1 + RESTARTS} times, out of memory or by a crash; its own messages say more"

    def _launch(self) -> None:
        self._line, theirs = Pipe()
        path = os.pathsep.join(dict.fromkeys(entry or os.getcwd() for entry in sys.path))
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "grpo_ext.samplers.process_worker", str(theirs.fileno()), str(os.getpid())],
                pass_fds=[theirs.fileno(), self._start.weights],
                stdin=subprocess.DEVNULL,
                process_group=0,  # Ctrl-C is for the trainer
                env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": str(self._start.threads)},
            )
        weakref.finalize(self, self._process.kill)
        self._line.send_bytes(pickle.dumps(self._start))
        self._line.recv_bytes()  # it is ready

    def stop(self) -> None:
        """End the process, whatever it does; the next request starts another one."""
        self._asked = self._loaded = None
        self._end()

    def _end(self) -> None:
        if self._line is not None:
            self._line.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._process = self._line = None
