"""The base class for samplers, and the requests that they receive."""

from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor

from grpo_ext.environments.episode import Episode
from grpo_ext.step.records import Generation

PROBE_ROWS = 4  # completions per rank in a check of a separate engine's weights
PROBE_TOKENS = 4  # tokens per completion in that check


@dataclass(frozen=True)
class Request:
    """A rank's request for one completion of each of its B prompts."""

    #: B strings or conversations; the copies of one prompt are adjacent
    prompts: list[Any]
    #: the token ids of the B prompts; empty if the sampler tokenizes prompts itself
    prompt_ids: list[list[int]]
    num_generations: int  #: the number of copies of each prompt, over all ranks
    policy_step: int  #: the optimizer step whose weights to sample with
    #: one episode per prompt; empty if each completion is a single turn
    episodes: list[Episode] = field(default_factory=list)
    #: rows of the dataset, one per prompt, for a sampler that reorders prompts
    rows: list[dict[str, Any]] = field(default_factory=list)
    #: maximum length of a completion in tokens; if `None`, `max_completion_length` applies
    max_new_tokens: int | None = None


@dataclass(frozen=True)
class SamplerAbilities:
    """What a sampler can do. The trainer uses this to choose and check its settings."""

    #: whether another engine samples from its own copy of the weights; its log-probs are then used
    #: to correct the gradient (`vllm_importance_sampling_correction`, `behaviour_policy`)
    separate_engine: bool = False
    #: whether generations contain the tokens that truncated sampling (such as top_k) kept, so that
    #: any truncation can be scored exactly
    returns_kept_tokens: bool = False
    #: whether the sampler tokenizes prompts itself; requests then have no `prompt_ids`
    tokenizes_prompts: bool = False
    #: whether the sampler can play episodes of several turns
    plays_episodes: bool = False
    #: whether the sampler defines `syncs`, `dtype` and `probe`, with which `SyncCheck` verifies
    #: that weights arrive
    reports_weights: bool = False
    #: the order in which the sampler applies truncations, as in `SamplingParams`
    truncation_order: Literal["hf", "vllm"] = "hf"


class Sampler:
    """Base class for samplers, which complete prompts.

    All ranks must call `load_weights`, `submit` and `collect`, in this order, for each generation.

    A subclass must define `name`, `abilities` and `sample`. If it generates in the background, it
    also overrides `submit`.
    """

    name: str  #: the sampler's name in logs
    abilities: SamplerAbilities

    #: duration of the last generation, in seconds; if 0, the trainer uses its own measurement
    seconds: float = 0.0
    syncs: int = 0  #: number of weight syncs so far, if the sampler `reports_weights`

    _request: Request | None = None

    def submit(self, request: Request) -> None:
        """Start a generation; by default, only store the request for `collect`."""
        self._request = request

    def collect(self) -> Generation:
        """Return the generation that `submit` started; call it once for each `submit`."""
        request = self._request
        self._request = None
        assert request is not None, "call submit before collect"
        return self.sample(request)

    def sample(self, request: Request) -> Generation:
        """Complete the prompts, or wait for the completions that `submit` started."""
        raise NotImplementedError

    def generations_to_request(self) -> range:
        """Return the indices of the generations whose prompts the next request must contain.

        Index 0 is the next generation. A sampler that returns completions out of order also needs
        the prompts of later generations.
        """
        return range(1)

    @property
    def has_unfinished(self) -> bool:
        """Whether completions that have already begun are held back for a later generation."""
        return False

    def discard_unfinished(self) -> None:
        """Discard the completions held back for a later generation; by default, there are none."""

    def metrics(self, generation: Generation) -> dict[str, float]:
        """Return metrics of a generation, by their names in the log; by default, an empty dict."""
        return {}

    def probe(self, request: Request) -> Generation:
        """Generate up to `PROBE_TOKENS` tokens for each of the first `PROBE_ROWS` prompts.

        The log-probs of these tokens show which weights the engine has. Only samplers with
        `reports_weights` define this method.
        """
        raise NotImplementedError

    def dtype(self) -> str:
        """Return the dtype that the engine computes in, such as `"float32"`.

        Only samplers with `reports_weights` define this method.
        """
        raise NotImplementedError

    def readable_weights(self) -> dict[str, Tensor]:
        """Return those of the engine's weights that this process can access, by parameter name.

        By default, there are none.
        """
        return {}

    def describe(self) -> str:
        """Describe in one line how completions are generated."""
        return self.name

    def state_dict(self) -> Any:
        """Return the state to save in a checkpoint between two generations; by default, `None`."""
        return None

    def load_state_dict(self, state: Any) -> bool:
        """Restore a state from `state_dict`; by default, only `None` can be restored.

        Returns:
            Whether the state was restored. If not, the caller requests the pending generation
            again.
        """
        return state is None

    def stop(self) -> None:
        """Stop any background work, and drop the submitted request.

        The next request restarts the work.
        """
        self._request = None

    def load_weights(self, step: int) -> None:
        """Load the trainer's current weights, which are those of optimizer step `step`.

        By default, do nothing: a sampler without its own copy of the weights needs no update.
        """
