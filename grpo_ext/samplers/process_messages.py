"""The messages between a trainer and its sampler process.

The classes are not in `process_worker`, because that module runs as `__main__`, and pickle would
store the classes under that name.
"""

from dataclasses import dataclass

from torch import Tensor
from transformers import GenerationConfig

from grpo_ext.objective.kept import KeptSet
from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.samplers.shared_weights import Place
from grpo_ext.seams.precision import Precision


@dataclass(frozen=True)
class Start:
    """The first message to a sampler process, with the model and the settings for all jobs."""

    model: bytes  # from `packed`
    weights: int  # file descriptor of the shared memory
    size: int  # size of the shared memory, in bytes
    places: list[Place]  # where the model's tensors are in the shared memory
    device: str
    threads: int  # number of torch threads
    fast: bool  # whether rows that have ended leave the batch
    precision: Precision  # the dtypes to sample in, which are those of the trainer's scorer


@dataclass(frozen=True)
class Job:
    """A request to complete prompts."""

    prompt_ids: list[list[int]]  # B lists of token ids
    config: GenerationConfig
    params: SamplingParams  # the sampling parameters in `config`, with which completions are scored
    seed: int


@dataclass(frozen=True)
class Completions:
    """The completions for a job.

    The values of all completions are concatenated, because each tensor takes about 0.3 ms to send
    through the pipe.
    """

    ids: list[list[int]]  # B lists of token ids, with N ids in total
    kept_sets: KeptSet | None  # N positions; `None` if sampling was not truncated
    logps: Tensor | None  # (N,); `None` if log-probs were not recorded
    seconds: float  # duration of the job


@dataclass(frozen=True)
class Failure:
    """The result of a job that raised an error, or whose process failed."""

    message: str
