"""The messages between a trainer and its sampler process.

The classes are not in `process_worker`, because that module runs as `__main__` and pickle would
store them under that name.
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
    """The first message to a sampler process, with the model and the settings that it needs."""

    model: bytes  # from `packed`
    weights: int  # file descriptor of the shared memory
    size: int  # of the shared memory, in bytes
    places: list[Place]
    device: str
    threads: int
    fast: bool  # whether rows that have ended leave the batch
    precision: Precision  # the number types that completions are scored in


@dataclass(frozen=True)
class Job:
    """A request to complete prompts."""

    prompt_ids: list[list[int]]  # B lists of tokens
    config: GenerationConfig
    params: SamplingParams  # the config's sampling parameters; completions are scored with them
    seed: int


@dataclass(frozen=True)
class Completions:
    """The answer to a job.

    Values of all completions are concatenated: sending a tensor through a pipe takes 0.3 ms.
    """

    ids: list[list[int]]  # B lists of tokens, N in all
    kept_sets: KeptSet | None  # N positions; `None` if sampling was not truncated
    logps: Tensor | None  # (N,)
    seconds: float


@dataclass(frozen=True)
class Failure:
    """The outcome of a job if it raised an error or its process failed."""

    message: str
