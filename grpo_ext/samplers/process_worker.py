"""The program of a sampler process, which completes prompts with weights in shared memory.

The program runs in a new interpreter, so that the training script does not run again. It ends when
the trainer's process ends.
"""

import gc
import os
import pickle
import sys
import time
from contextlib import nullcontext
from multiprocessing.connection import Connection

from grpo_ext.common.modules import without_collector
from grpo_ext.common.processes import die_with

with without_collector():
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from grpo_ext.decoding.checks import base_model
    from grpo_ext.objective.kept import KeptSet
    from grpo_ext.objective.recorder import Recorder
    from grpo_ext.samplers.process_messages import Completions, Failure, Job, Start
    from grpo_ext.samplers.shared_weights import mapped, tensors_of, unpacked
    from grpo_ext.seams.generate import fast_generation, generate_batch, watching
    from grpo_ext.seams.precision import Precision, sampling_in
gc.freeze()  # the collector skips what was imported, which is never garbage


def serve(connection: Connection) -> None:
    """Receive a `Start`, then answer each `Job` with `Completions` or a `Failure`.

    Return when the other end closes the pipe.
    """
    start: Start = pickle.loads(connection.recv_bytes())
    torch.set_num_threads(start.threads)
    shared_weights = mapped(start.weights, start.size, start.places)
    model = None
    while True:
        try:
            job: Job = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        answer: Completions | Failure
        try:
            if model is None:  # inside `try`, so that the answer reports an error
                model = loaded_model(start, shared_weights)
            elif start.device != "cpu":
                for tensor, shared in zip(tensors_of(model), shared_weights, strict=True):
                    tensor.copy_(shared)
            answer = complete(model, job, start.fast, start.precision)
        except Exception as error:
            answer = Failure(f"{type(error).__name__}: {error}")
        connection.send_bytes(pickle.dumps(answer))


def loaded_model(start: Start, shared_weights: list[Tensor]) -> PreTrainedModel:
    """Return the model in evaluation mode, on the sampler's device.

    On a CPU, the model uses the shared weights; on other devices, it uses copies of them.
    """
    weights = shared_weights
    if start.device != "cpu":
        weights = [tensor.to(start.device) for tensor in shared_weights]
    return unpacked(start.model, start.places, weights).eval()


@torch.no_grad()
def complete(model: PreTrainedModel, job: Job, fast: bool, precision: Precision) -> Completions:
    """Complete the prompts of a job, after seeding torch with the job's seed.

    The config of the job becomes the generation config of the model.

    Args:
        model: a model in evaluation mode, with or without adapters.
        job: the prompts, and the settings to sample with.
        fast: whether rows that have ended leave the batch.
        precision: the dtypes to sample in, which are those of the trainer's scorer.
    """
    start = time.monotonic()
    torch.manual_seed(job.seed)
    # otherwise the config of the model or its base fills in options that the recipe leaves out
    model.generation_config = job.config
    base_model(model).generation_config = job.config
    recorder = Recorder(job.params)
    decoding = fast_generation(model) if fast else nullcontext()
    with decoding, sampling_in(precision, model), watching(model, recorder):
        ids = generate_batch(model, job.config, job.prompt_ids)
    kept_sets, logps = recorder.rows(ids)
    return Completions(
        ids,
        KeptSet.cat(kept_sets) if kept_sets else None,
        torch.cat(logps).cpu() if logps else None,
        time.monotonic() - start,
    )


def main() -> None:
    fd, parent = map(int, sys.argv[1:3])
    die_with(parent)
    try:
        serve(Connection(fd))
    except (BrokenPipeError, ConnectionResetError):
        os._exit(1)


if __name__ == "__main__":
    main()
