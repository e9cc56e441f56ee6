"""The list of the parts, the most important first, each with its limits and its function."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

from benchmarks.gpu.sheet import Sheet


@dataclass(frozen=True)
class Mode:
    """The options with which parts are run."""

    dry: bool = False  # on a CPU at tiny size, through the same code
    quick: bool = False  # fewer cases and rounds
    wheels: Path | None = (
        None  # a folder of wheels to install from where no registry can be reached
    )
    vllm_python: Path | None = None  # the Python of an environment that has vLLM
    model: Path | None = None  # a pretrained model: a folder, or a GGUF file with its tokenizer

    @property
    def device(self) -> str:
        return "cpu" if self.dry else "cuda"

    def size(self, whole: int, quick: int, dry: int) -> int:
        """Return `dry`, `quick` or `whole`, depending on the mode."""
        return dry if self.dry else quick if self.quick else whole


@dataclass(frozen=True)
class Part:
    """One part of the run.

    Args:
        title: what it measures.
        work: "module:function" in this package, called with a `Mode` and a `Sheet`; the function
            also gets a word that follows "/".
        limit: the limit in seconds, on a GPU.
        least: the seconds that must be left for it to begin.
        dry: the limit in seconds in a dry run.
        vllm: whether it runs in the Python that has vLLM.
        again: whether it runs in every call, even if it has a result.
    """

    title: str
    work: str
    limit: float
    least: float = 30.0
    dry: float = 300.0
    vllm: bool = False
    again: bool = False

    def load(self) -> Callable[[Mode, Sheet], None]:
        """Return the work as a function."""
        path, _, word = self.work.partition("/")
        module, _, name = path.partition(":")
        function = getattr(import_module(f"benchmarks.gpu.{module}"), name)
        return partial(function, word) if word else function


PARTS: dict[str, Part] = {
    "setup": Part("what is installed, and what can be", "setup:run", 420, least=5, again=True),
    "demo": Part("the Countdown demo from nothing", "checks:demo", 180),
    "tests": Part("the tests of the trainer and of the objective", "checks:tests", 240),
    "safety": Part("the safety tests", "checks:safety", 180),
    "vllm": Part("the safety tests with real vLLM", "checks:vllm", 270, vllm=True),
    "numerics": Part("the sampler against the trainer, by number type", "numerics:run", 150),
    "numerics-vllm": Part("the same with vLLM", "numerics:run_vllm", 180, vllm=True),
    "kept-vllm": Part("truncation over vLLM's own kept tokens", "kept:run", 240, vllm=True),
    "kill": Part("SIGKILL after a checkpoint, and resume", "checks:kill", 90),
    "train-0.5B": Part("training, 0.5B", "training:run/0.5B", 120),
    "train-1.5B": Part("training, 1.5B", "training:run/1.5B", 150),
    "train-3B": Part("training, 3B", "training:run/3B", 180),
    "train-0.5B-lora": Part("training, 0.5B, LoRA", "training:run/0.5B lora", 120),
    "train-1.5B-lora": Part("training, 1.5B, LoRA", "training:run/1.5B lora", 150),
    "train-3B-lora": Part("training, 3B, LoRA", "training:run/3B lora", 180),
    "batch": Part(
        "128 completions of about 1,200 tokens, 1.5B, LoRA", "training:run/1.5B lora batch", 200
    ),
    "seeds": Part("GSM8K's seed experiment: hours of a run", "seeds:run", 300, vllm=True),
    "advice": Part("the advice of grpo-ext bench against a sweep", "advice:run", 200),
}
