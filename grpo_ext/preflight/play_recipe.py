"""Play an episode of a recipe's environment, with scripted turns or with turns of the model."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase

from grpo_ext.common.foreign_files import read_text
from grpo_ext.environments.episode import Episode
from grpo_ext.environments.start_episodes import Begin, beginning
from grpo_ext.evaluation.completions import completion_of, end_tokens, generate_completions
from grpo_ext.evaluation.evaluate_recipe import load_tokenizer
from grpo_ext.evaluation.run_precision import precision_of
from grpo_ext.evaluation.score import score_completions
from grpo_ext.observe.jsonl import row_of
from grpo_ext.preflight.first_rows import Row
from grpo_ext.preflight.replay import row_of_sample
from grpo_ext.preflight.sample_completions import EXTRAS, load_model, training_decoding
from grpo_ext.preflight.tokenized_prompts import local_options
from grpo_ext.recipe.episode_options import environments_of
from grpo_ext.recipe.load import Recipe
from grpo_ext.rewards.run_defaults import set_prompts
from grpo_ext.run.from_recipe import Rows, eval_rows, guarded_rewards, train_rows

MOST_BYTES = 2**20  # maximum size of a file of turns


@dataclass(frozen=True)
class Game:
    """An episode that has begun, with everything that is needed to play and score it."""

    recipe: Recipe
    tokenizer: PreTrainedTokenizerBase
    begin: Begin
    row: Row
    rewards: dict[str, Any]  # by name
    episode: Episode

    def play_text(self, text: str) -> int:
        """Play a turn that consists of `text`, and return how many tokens belong to the turn.

        Special tokens in the text are encoded as such. If the text contains no end token, one is
        appended. Tokens after the end of the turn, or beyond its limit, are dropped, and do not
        count.
        """
        tokens = self.episode.tokens
        return self.episode.play_turn(tokens.ended(tokens.tokens_of(text)))

    def play_by_model(self) -> Episode:
        """Let the model play a new episode with the row, and return the finished episode.

        The turns are sampled with transformers and the settings of training.

        Raises:
            OSError: if the model is not on this machine, or cannot be loaded.
            ValueError: if the model overrides `generate` or does not support the recipe's
                precision, if `max_completion_length` is null, or if a stop string is invalid.
        """
        template_options: Any = self.recipe.training.chat_template_kwargs  # parsed as a mapping
        model = load_model(self.recipe)
        [[completion]] = generate_completions(
            model,
            self.tokenizer,
            [self.row],
            training_decoding(self.recipe.flat),
            fast=self.recipe.flat.fast_generate,
            chat_template_kwargs=template_options,
            begin=self.begin,
            precision=precision_of(self.recipe, model),
        )
        assert completion.episode is not None
        return completion.episode

    def scores(self, episode: Episode) -> dict[str, float | None]:
        """Return each reward's score for a finished episode; `None` if the reward gave no score."""
        completions = [[completion_of(episode)]]
        [sample] = score_completions([self.row], completions, self.rewards, EXTRAS)
        return sample.rewards


def begin_game(recipe: Recipe, number: int = 1, sample: Row | None = None) -> Game:
    """Begin an episode with a row of the recipe, as training does.

    Args:
        recipe: a recipe with one environment or several.
        number: the number of the training row, counted from 1.
        sample: a line of `samples.jsonl`. If it is given, the row that it comes from is used, and
            `number` is ignored.

    Raises:
        ValueError: if the recipe has no environment, there is no such row, or the data, a reward or
            the environment cannot be used.
        OSError: if the data or the model's tokenizer cannot be loaded.
    """
    environments = environments_of(recipe.flat)
    if not environments:
        raise ValueError(
            "play needs a recipe with an environment; in this one, each completion is a single "
            "turn. Add `environment`, or run `grpo-ext check --sample 8` with this recipe to see "
            "completions of the model."
        )
    rows = rows_of(recipe, sample)
    row = nth_row(rows, number) if sample is None else row_of_sample(rows, sample)
    rewards, _ = guarded_rewards(recipe, [*row])
    set_prompts(rewards, rows)
    functions = {reward.__name__: reward for reward in rewards if callable(reward)}
    tokenizer = load_tokenizer(recipe, str(recipe.model.model_name_or_path))
    ends = end_tokens(tokenizer, generation_config(recipe))
    begin = beginning(environments, tokenizer, ends, recipe.training)
    [episode] = begin([row])
    return Game(recipe, tokenizer, begin, row, functions, episode)


def generation_config(recipe: Recipe) -> GenerationConfig:
    """Return the generation config of the recipe's model, or a default one if it has none."""
    v = recipe.flat
    with suppress(OSError):
        return GenerationConfig.from_pretrained(v["model_name_or_path"], **local_options(v))
    return GenerationConfig()


def rows_of(recipe: Recipe, sample: Row | None) -> Rows:
    """Return the training rows, or the held-out rows if `sample` comes from an evaluation."""
    if sample is not None and sample["mode"] == "eval":
        return eval_rows(recipe)
    return train_rows(recipe)


def nth_row(rows: Rows, number: int) -> Row:
    """Return the training row with the given number, counted from 1.

    Raises:
        ValueError: if there is no such row.
    """
    count = 0
    for row in rows:
        count += 1
        if count == number:
            return row
    if count == 0:
        raise ValueError("there is no training row, because the dataset is empty.")
    raise ValueError(
        f"there is no training row {number}, because the last one is row {count}. With --row, "
        f"choose a number from 1 to {count}."
    )


def read_turns(path: Path) -> list[str]:
    """Read turns from a file: a JSON list of strings if it begins with `[`, otherwise one per line.

    Raises:
        ValueError: if the file is not UTF-8, contains no turn, or begins with `[` but is not a JSON
            list of strings.
        RecursionError: if the JSON is nested too deeply for Python's parser.
        OSError: if the file cannot be read, or is larger than `MOST_BYTES`.
    """
    content = read_text(path, MOST_BYTES)
    turns: list[Any] = content.splitlines()
    if content.lstrip().startswith("["):
        row = row_of(f'{{"turns": {content}}}')
        turns = row["turns"] if len(row) == 1 else []
    if not turns or not all(isinstance(turn, str) for turn in turns):
        raise ValueError(f"{path} must contain one turn per line, or a JSON list of strings.")
    return turns


def played_turns(game: Game, turns: Sequence[str]) -> Episode:
    """Play turns in the episode of a game until it ends, and return the episode.

    If the turns run out first, the episode is cut off.
    """
    for text in turns:
        if game.episode.ended:
            break
        game.play_text(text)
    if not game.episode.ended:
        game.episode.cut_off()
    return game.episode
