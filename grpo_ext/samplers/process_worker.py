"""The program of a sampler process: it completes prompts with the weights that the trainer has
written into shared memory.

It is a fresh interpreter, so that the training script is not run again, and ends with the trainer.
"""

import os
import pickle
import sys
import time
from contextlib import nullcontext
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from transformers import GenerationConfig

from grpo_ext.common.processes import die_with
from grpo_ext.decoding.checks import base_model
from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.recorder import Recorder
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.shared_weights import Place, mapped, tensors_of, unpacked
from grpo_ext.seams.generate import fast_generation, generate_batch, watching


@dataclass(frozen=True)
class Start:
    """What a sampler process needs to begin."""

    model: bytes  # `packed`
    weights: int  # the descriptor of the shared memory
    size: int  # of it, in bytes
    places: list[Place]
    device: str
    threads: int
    fast: bool  # whether rows that have ended leave the batch


@dataclass(frozen=True)
class Job:
    """One request."""

    prompt_ids: list[list[int]]  # B lists of tokens
    config: GenerationConfig
    params: SamplingParams  # of the config; completions are scored with them
    seed: int


def serve(connection: Connection) -> None:
    """Load the model, and answer each `Job` with `complete(...)`, or with its error as a text,
    until the pipe is closed.
    """
    start: Start = pickle.loads(connection.recv_bytes())
    torch.set_num_threads(start.threads)
    shared = mapped(start.weights, start.size, start.places)
    model = None
    while True:
        try:
            job: Job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if model is None:  # within `try`, so that the answer has its error
                own = (
                    shared
                    if start.device == "cpu"
                    else [tensor.to(start.device) for tensor in shared]
                )
                model = unpacked(start.model, start.places, own).eval()
            elif start.device != "cpu":
                for mine, given in zip(tensors_of(model), shared, strict=True):
                    mine.copy_(given)
            answer: Any = complete(model, job, start.fast)
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        connection.send_bytes(pickle.dumps(answer))


def complete(model: Any, job: Job, fast: bool) -> tuple[Any, ...]:
    """Return completions, kept sets and log-probs of all rows in one (a pipe takes 0.3 ms a
    tensor), and seconds.
    """
    begun = time.monotonic()
    torch.manual_seed(job.seed)
    # else the config of the model, or of its base, fills in options that the recipe leaves out
    model.generation_config = base_model(model).generation_config = job.config
    recorder = Recorder(job.params)
    with (
        torch.no_grad(),
        fast_generation(model) if fast else nullcontext(),
        watching(model, recorder),
    ):
        ids = generate_batch(model, job.config, job.prompt_ids)
    kept, logps = recorder.rows(ids)
    whole = kept and KeptSet.cat(kept), None if logps is None else torch.cat(logps).cpu()
    return ids, *whole, time.monotonic() - begun


def main() -> None:
    fd, parent = map(int, sys.argv[1:3])
    die_with(parent)
    try:
        serve(Connection(fd))
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    main()
