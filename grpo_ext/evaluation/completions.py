"""Complete prompts with a transformers model, without changing the caller's RNG state.

If an option is left at its default, `generate` uses the value in the model's own
`generation_config` (Qwen2.5's has top_p 0.8 and a repetition penalty). Therefore that config is
replaced during the call.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from tqdm.auto import tqdm
from transformers import GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.common.stop_strings import StopStrings
from grpo_ext.decoding.checks import base_model
from grpo_ext.decoding.play import Player
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.transcript import as_text
from grpo_ext.samplers.episode_rounds import rounds
from grpo_ext.seams.generate import fast_generation, generate_batch, watching
from grpo_ext.seams.precision import Precision, sampling_in

Row = dict[str, Any]  # a row of a dataset, by column name


@dataclass(frozen=True)
class Decoding:
    """Settings for decoding completions, greedily or by sampling.

    Raises:
        ValueError: if `temperature` is 0 and `num_samples` is above 1.
    """

    max_new_tokens: int  # maximum number of tokens of a completion
    temperature: float = 0.0  # 0 decodes greedily
    # the next three filter the tokens to sample from; by default, none is filtered out
    top_p: float = 1.0
    top_k: int = 0
    min_p: float | None = None
    num_samples: int = 1  # number of completions of each prompt
    seed: int = 0  # the same seed and batch size give the same completions
    stop_strings: tuple[str, ...] = ()  # strings that end a completion; episodes have their own
    # additional options of transformers' GenerationConfig, which override those above
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.temperature == 0 and self.num_samples > 1:
            raise ValueError(
                f"At temperature 0, all {self.num_samples} samples of a prompt are the same "
                "completion. Choose a temperature above 0 (--sample_temperature), or a single "
                "sample (--num_samples 1)."
            )

    def generation_config(
        self,
        tokenizer: PreTrainedTokenizerBase,
        model: PreTrainedModel,
    ) -> GenerationConfig:
        """Return these settings as a `GenerationConfig`.

        `num_samples`, `seed` and `stop_strings` are left out. For greedy decoding, so are the
        temperature, top-p, top-k and min-p. The end-of-sequence ids are those of the tokenizer and
        of the model's own generation config.
        """
        sampling: dict[str, Any] = {"do_sample": False}
        if self.temperature > 0:
            sampling = {
                "do_sample": True,
                "temperature": self.temperature,
                "top_p": self.top_p,
                "top_k": self.top_k,
                "min_p": self.min_p,
            }
        pad_token_id = tokenizer.pad_token_id
        if pad_token_id is None:
            pad_token_id = tokenizer.eos_token_id
        settings = {
            "max_new_tokens": self.max_new_tokens,
            "pad_token_id": pad_token_id,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": end_tokens(tokenizer, model.generation_config),
        }
        return GenerationConfig(**settings | sampling | {**self.options})


def end_tokens(tokenizer: PreTrainedTokenizerBase, config: GenerationConfig) -> list[int]:
    """Return the end-of-sequence ids from a tokenizer and a model's generation config, sorted."""
    model_ids = config.eos_token_id
    if not isinstance(model_ids, list):
        model_ids = [model_ids]
    return sorted({tokenizer.eos_token_id, *model_ids} - {None})


@dataclass(frozen=True)
class Completion:
    """One completion: its text, its token ids, and why it ended.

    `text` contains no special tokens; `ids` may end with the end-of-sequence token.
    `finish_reason` is `"length"` if the length limit cut the completion off, otherwise `"stop"`.
    For an episode in an environment, `episode` is set, and `text` and `ids` include the
    environment's answers.
    """

    text: str
    ids: list[int]
    finish_reason: str = "stop"
    episode: Episode | None = None

    @property
    def length(self) -> int:
        """The number of tokens that the model generated, without the environment's answers."""
        if self.episode:
            return sum(self.episode.mask)
        return len(self.ids)

    @property
    def left_out(self) -> bool:
        """Whether the completion gets no scores, because its environment failed."""
        return self.episode is not None and self.episode.left_out

    def for_rewards(self, row: Row) -> tuple[Any, Any, Row]:
        """Return the prompt, the completion and the columns to pass to the rewards.

        The completion is a string if the prompt is a string, otherwise a list with one message. For
        an episode, the completion is the list of its messages, the prompt includes the text
        returned by `reset`, and the columns of the episode are added to those of the row.
        """
        if self.episode:
            columns = {**row, **self.episode.columns()}
            return self.episode.prompt, self.episode.messages, columns
        prompt = row["prompt"]
        if isinstance(prompt, str):
            return prompt, self.text, dict(row)
        message = {"role": "assistant", "content": self.text}
        return prompt, [message], dict(row)


def episodes_of(completions: Sequence[Sequence[Completion]]) -> list[Episode]:
    """Return the episodes of all completions in one list, skipping completions without an episode.

    Args:
        completions: the completions of each row.
    """
    episodes = []
    for group in completions:
        episodes += [completion.episode for completion in group if completion.episode]
    return episodes


@contextmanager
def _decoding_as(
    model: PreTrainedModel,
    config: GenerationConfig,
    seed: int,
) -> Iterator[None]:
    """Context manager that sets a generation config, eval mode and a seed, and disables gradients.

    If the model has an adapter, the config is also set on the base model. On exit, the configs, the
    train or eval mode and the RNG states are restored.
    """
    base = base_model(model)
    model_config = model.generation_config
    base_config = base.generation_config
    was_training = model.training
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=devices), torch.no_grad():
        torch.manual_seed(seed)
        model.generation_config = config
        base.generation_config = config
        model.eval()
        try:
            yield
        finally:
            model.generation_config = model_config
            base.generation_config = base_config
            model.train(was_training)


def generate_completions(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    rows: Sequence[Row],
    decoding: Decoding,
    *,
    batch_size: int = 64,
    fast: bool = True,
    chat_template_kwargs: dict[str, Any] | None = None,
    progress: str | None = None,
    begin: Callable[[list[Row]], list[Episode]] | None = None,
    precision: Precision | None = None,
) -> list[list[Completion]]:
    """Return `decoding.num_samples` completions for the prompt of each row.

    Args:
        model: the model, in train or eval mode; its state is restored afterwards.
        tokenizer: the tokenizer of the model.
        rows: the rows, at least one; their `prompt` is a string or a list of messages.
        decoding: the decoding settings.
        batch_size: the number of completions to decode at once.
        fast: whether to prefill each distinct prompt only once and to stop decoding completions
            that have ended.
        chat_template_kwargs: additional arguments for the chat template.
        progress: the title of a progress bar; `None` shows none.
        begin: a function that takes rows and starts an episode for each; `None` means that each
            completion is a single turn.
        precision: the dtypes to compute in; `None` uses the model's dtype.

    Raises:
        ValueError: if the chat template takes too long, or if `begin` is given but the model
            overrides `generate`, so that it cannot play episodes. Errors raised by `begin` are not
            caught.
    """
    config = decoding.generation_config(tokenizer, model)
    stops = StopStrings(tokenizer, decoding.stop_strings) if decoding.stop_strings else None
    num_samples = decoding.num_samples
    repeated_rows = []
    for row in rows:
        repeated_rows += [row] * num_samples
    episodes: Sequence[Episode | None] = [None] * len(repeated_rows)
    if begin is None:
        prompts = [row["prompt"] for row in repeated_rows]
        encoded = encode_prompts(prompts, tokenizer, chat_template_kwargs)
    else:
        begun = begin(repeated_rows)
        episodes = begun
        encoded = [episode.prompt_ids for episode in begun]
    completions: list[Completion] = []
    with (
        _decoding_as(model, config, decoding.seed),
        sampling_in(precision, model) if precision is not None else nullcontext(),
        fast_generation(model) if fast else nullcontext(),
        tqdm(total=len(encoded), desc=progress, disable=progress is None) as bar,
    ):
        for start in range(0, len(encoded), batch_size):
            batch = encoded[start : start + batch_size]
            batch_episodes = episodes[start : start + batch_size]
            if begin is None:
                with watching(model, None, stops=stops) if stops else nullcontext():
                    completion_ids = generate_batch(model, config, batch)
                if stops is not None:
                    completion_ids = [stops.cut(ids) for ids in completion_ids]
            else:
                completion_ids = play_batch(
                    model, config, [episode for episode in batch_episodes if episode is not None]
                )
            for ids, episode in zip(completion_ids, batch_episodes, strict=True):
                completions.append(_completion(tokenizer, config, ids, stops, episode))
            bar.update(len(batch))
    by_row = []
    for start in range(0, len(completions), num_samples):
        by_row.append(completions[start : start + num_samples])
    return by_row


def play_batch(
    model: PreTrainedModel, config: GenerationConfig, episodes: Sequence[Episode]
) -> list[list[int]]:
    """Play a batch of episodes to their ends, and return the completion ids of each.

    The ids include those of the environment's answers.

    Args:
        model: the model, whose generation config has been set to `config`.
        config: the generation config, from `Decoding.generation_config`.
        episodes: the episodes, which are changed in place.

    Raises:
        ValueError: if the model overrides `generate`.
    """
    for rows in rounds(episodes):
        player = Player([episodes[row] for row in rows])
        contexts = [episodes[row].prompt_ids + episodes[row].ids for row in rows]
        with watching(model, None, player):
            generate_batch(model, config, contexts)
        if not player.began:
            raise ValueError(
                "This model overrides `generate`, so it cannot play episodes with other sampling "
                "settings than in training. In training, remove eval_temperature, so that "
                "evaluations sample as training does. `grpo-ext eval` does not support such a "
                "model with an environment."
            )
    return [episode.ids for episode in episodes]


def _completion(
    tokenizer: PreTrainedTokenizerBase,
    config: GenerationConfig,
    ids: list[int],
    stops: StopStrings | None,
    episode: Episode | None,
) -> Completion:
    if episode is not None:
        return completion_of(episode)
    text = str(tokenizer.decode(ids, skip_special_tokens=True))
    ended_by_token = bool(ids) and ids[-1] in config.eos_token_id
    ended_by_string = stops is not None and stops.end_with(ids)
    reason = "stop" if ended_by_token or ended_by_string else "length"
    return Completion(text, ids, reason)


def completion_of(episode: Episode) -> Completion:
    """Convert a finished episode to a completion."""
    reason = "length" if episode.truncated else "stop"
    text = as_text(episode.messages)
    if episode.single_turn:
        text = episode.messages[0]["content"]
    return Completion(text, episode.ids, reason, episode)
