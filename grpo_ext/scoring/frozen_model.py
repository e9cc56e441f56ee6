"""A frozen causal language model, used by rewards to score text given a prompt."""

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.integrations import is_deepspeed_zero3_enabled
from transformers.integrations.fsdp import is_fsdp_enabled

from grpo_ext.common.head_input import contiguous_head_input

MOST_TOKENS = 16_384  # maximum number of tokens in a batch
MOST_LOGITS = 2**27  # maximum number of logits in a batch: 512 MiB in float32
CHARACTERS_PER_TOKEN = 20  # assumed maximum; longer text is cut before it is tokenized

Prompt = str | list[dict[str, Any]]


class FrozenModel:
    """A causal language model that scores text, with its tokenizer.

    The constructor puts `model` in evaluation mode and turns off the gradients of its weights.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase):
        self.model = model.eval().requires_grad_(False)
        self.tokenizer = tokenizer
        config = model.config.get_text_config()
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self.vocabulary: int = config.vocab_size
        parameters = inspect.signature(model.forward).parameters
        self.takes_positions = "position_ids" in parameters
        self.takes_logits_to_keep = "logits_to_keep" in parameters

    def prompt_ids(self, prompt: Prompt) -> list[int]:
        """Return the token ids of a prompt, which is a string or a conversation.

        If the prompt has no tokens, return the end-of-sequence token, or token 0 if the tokenizer
        has none.
        """
        if isinstance(prompt, str):
            ids = self.tokenizer(encodable(prompt)).input_ids
        else:
            text = self.rendered(prompt)
            ids = self.tokenizer(text, add_special_tokens=False).input_ids
        if not ids:
            return [self.tokenizer.eos_token_id or 0]
        return list(ids)

    def rendered(self, messages: list[dict[str, Any]]) -> str:
        """Render a conversation with the chat template, if there is one.

        A final assistant message is left open so that it can be continued. After any other final
        message, the generation prompt is added. If there is no template, return the contents of the
        messages without their roles, each followed by a line break.
        """
        texts = []
        for message in messages:
            role = str(message.get("role"))
            content = encodable(content_of(message))
            texts.append({"role": role, "content": content})
        if not self.tokenizer.chat_template:
            return "".join(f"{text['content']}\n" for text in texts)
        begun = bool(texts) and texts[-1]["role"] == "assistant"
        rendered = self.tokenizer.apply_chat_template(
            texts,
            tokenize=False,
            add_generation_prompt=not begun,
            continue_final_message=begun,
        )
        return str(rendered)

    def text_ids(self, text: str, most: int) -> list[int]:
        """Return the first `most` token ids of `text`, or all of them if there are fewer.

        No special tokens are added. Only the first `most * CHARACTERS_PER_TOKEN` characters are
        tokenized.
        """
        text = encodable(text[: most * CHARACTERS_PER_TOKEN])
        ids = self.tokenizer(text, add_special_tokens=False).input_ids
        return list(ids[:most])

    @torch.no_grad()
    def log_probs(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[Tensor]:
        """Return the token log-probs (T,) of each text given its prompt, in float32 on the CPU.

        Args:
            pairs: the token ids of each prompt and of its text, none of them empty. If a pair does
                not fit into the model's context, the beginning of its prompt is dropped.
        """
        sequences = []
        lengths = []
        for prompt, text in pairs:
            sequences.append(self.fitted(prompt, text))
            lengths.append(len(text))
        logps: list[Tensor] = [torch.empty(0)] * len(pairs)
        for rows in self.batches(sequences, lengths):
            batch_sequences = [sequences[row] for row in rows]
            batch_lengths = [lengths[row] for row in rows]
            batch_logps = self.batch(batch_sequences, batch_lengths)
            for row, row_logps in zip(rows, batch_logps, strict=True):
                logps[row] = row_logps
        return logps

    def batches(self, sequences: list[list[int]], lengths: list[int]) -> list[list[int]]:
        """Group sequences of similar length into batches within `MOST_TOKENS` and `MOST_LOGITS`.

        A sequence that exceeds a limit by itself is a batch of its own.

        Args:
            sequences: the token ids of each prompt with its text.
            lengths: the number of tokens in each text.

        Returns:
            The indices of the sequences in each batch.
        """
        batches: list[list[int]] = []
        text_width = 0
        by_width = sorted(range(len(sequences)), key=lambda row: len(sequences[row]))
        for row in by_width:
            width = len(sequences[row])
            text_width = max(text_width, lengths[row])
            num_rows = len(batches[-1]) + 1 if batches else 1
            num_positions = text_width + 1 if self.takes_logits_to_keep else width
            num_tokens = num_rows * width
            num_logits = num_rows * num_positions * self.vocabulary
            if not batches or num_tokens > MOST_TOKENS or num_logits > MOST_LOGITS:
                batches.append([])
                text_width = lengths[row]
            batches[-1].append(row)
        return batches

    def fitted(self, prompt: Sequence[int], text: Sequence[int]) -> list[int]:
        """Concatenate prompt and text; if they exceed the context, cut the prompt at its start.

        At least the last token of the prompt is kept, and the text is never cut.
        """
        if self.context is None:
            return [*prompt, *text]
        room = max(1, self.context - len(text))
        return [*prompt[-room:], *text]

    def batch(self, sequences: list[list[int]], lengths: list[int]) -> list[Tensor]:
        """Run the model on a batch and return the log-probs of each sequence's last tokens.

        Args:
            sequences: the token ids of each sequence.
            lengths: for each sequence, the number of tokens to score, less than its length.

        Returns:
            One float32 tensor (lengths[i],) per sequence, on the CPU.
        """
        width = max(len(sequence) for sequence in sequences)  # S
        text_width = max(lengths)  # T
        ids = torch.zeros(len(sequences), width, dtype=torch.long)  # (B, S), padded on the left
        mask = torch.zeros_like(ids)
        for row, sequence in enumerate(sequences):
            start = width - len(sequence)
            ids[row, start:] = torch.tensor(sequence)
            mask[row, start:] = 1
        ids = ids.to(self.model.device)
        mask = mask.to(self.model.device)
        options: dict[str, Any] = {}
        if self.takes_positions:
            options["position_ids"] = (mask.cumsum(1) - 1).clamp(min=0)
        if self.takes_logits_to_keep:
            options["logits_to_keep"] = text_width + 1
        with contiguous_head_input(self.model):
            output = self.model(input_ids=ids, attention_mask=mask, use_cache=False, **options)
        logits = output.logits[:, -text_width - 1 : -1].float()  # (B, T, V)
        labels = ids[:, -text_width:]  # (B, T)
        label_logits = logits.gather(2, labels.unsqueeze(2)).squeeze(2)  # (B, T)
        log_totals = logits.logsumexp(2)  # (B, T)
        logps = (label_logits - log_totals).cpu()
        logps_by_row = []
        for row, length in enumerate(lengths):
            start = text_width - length
            logps_by_row.append(logps[row, start:])
        return logps_by_row


def encodable(text: str) -> str:
    """Replace lone surrogates, which tokenizers reject, with question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def content_of(message: dict[str, Any]) -> str:
    """Return the text of a message, or an empty string if it has no content.

    If the content is a list of blocks, the texts of its text blocks are concatenated.
    """
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, list):
        blocks = [block for block in content if isinstance(block, dict)]
        return "".join(block.get("text") or "" for block in blocks)
    return str(content)


@lru_cache(maxsize=4)
def load_frozen(
    name: str,
    revision: str | None = None,
    dtype: str = "float32",
    device: str | None = None,
) -> FrozenModel:
    """Load a frozen causal language model and its tokenizer.

    Each process caches the four most recently used models.

    Args:
        name: a folder or a Hugging Face hub id.
        revision: the revision of a hub model; if `None`, its default revision is loaded.
        dtype: the dtype of the weights, by its name in torch, such as "bfloat16".
        device: the device, by its name in torch. If `None`, this process's CUDA GPU is used if it
            has one, otherwise the CPU.

    Raises:
        RuntimeError: under DeepSpeed ZeRO-3, where `from_pretrained` shards every model, or under
            FSDP with `fsdp_cpu_ram_efficient_loading`, where only one process per node gets the
            weights.
        OSError: if the model or the revision does not exist.
    """
    if is_deepspeed_zero3_enabled() or is_fsdp_enabled():
        raise RuntimeError(
            f"The model {name} cannot be loaded whole in every process under ZeRO-3, or under FSDP "
            "with fsdp_cpu_ram_efficient_loading. Use ZeRO-2, or FSDP without that setting."
        )
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    model: Any = AutoModelForCausalLM.from_pretrained(
        name,
        revision=revision,
        dtype=getattr(torch, dtype),
    )
    tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
    return FrozenModel(model.to(device), tokenizer)
