"""Build tokenizers with byte-level BPE, a chat template, and a token for each tag.

The vocabulary covers every byte, so a tokenizer can encode any text. Tasks differ in their corpus,
the size of their vocabulary, and the pattern that determines which pieces of text may become one
token.
"""

from collections.abc import Iterable

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from grpo_ext.rewards.answers import TAGS

# A word with its leading space, one digit, one other character, or one whitespace character.
WORDS = r" ?[A-Za-z]+| ?\d| ?[^\sA-Za-z\d]|\s"
# Spaces belong to words and signs, so that a number up to 99 is the same single token everywhere.
# Sequences are shorter than with one token per digit, and a model learns small sums much sooner.
NUMBERS = r" ?[A-Za-z]+ ?|\d{1,2}| ?[^\sA-Za-z\d] ?|\s"
# Every digit is one token, the same everywhere, so a model reads longer numbers digit by digit.
DIGITS = r" ?[A-Za-z]+|\d| ?[^\sA-Za-z\d]|\s+"
# One character, for verse: a Chinese character is three bytes and becomes one token.
CHARACTERS = r"[\s\S]"

PAD = "<|pad|>"
START = "<|im_start|>"
END = "<|im_end|>"

CHATML = (
    "{% for message in messages %}"
    "<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
# For many short messages, where ChatML's markup would be most of the tokens. The roles follow from
# the order of the messages.
TERSE = "{% for message in messages %}{{ message['content'] }}<|im_end|>{% endfor %}"


def build_tokenizer(
    corpus: Iterable[str],
    vocab_size: int = 512,
    *,
    pattern: str = WORDS,
    tags: tuple[str, ...] = TAGS,
    template: str = CHATML,
) -> PreTrainedTokenizerFast:
    """Build a tokenizer that pads on the left and has `<|im_end|>` as its eos token.

    Args:
        corpus: prompts and completions to train on, without the markup of the chat template.
        vocab_size: the maximum vocabulary size without the tags; a small corpus fills less of it.
        pattern: a regular expression that splits text into pieces, such as `WORDS`, `NUMBERS`,
            `DIGITS` or `CHARACTERS`. No token spans two pieces.
        tags: strings that become single tokens. They are not special tokens, so decoding with
            `skip_special_tokens=True` keeps them.
        template: a chat template that ends turns with `<|im_end|>`, such as `CHATML` or `TERSE`.

    Raises:
        ValueError: if `vocab_size` is below 259, the number of bytes plus three special tokens.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special_tokens = [PAD, START, END]
    smallest = len(alphabet) + len(special_tokens)
    if vocab_size < smallest:
        raise ValueError(f"vocab_size must be at least {smallest}, but is {vocab_size}.")

    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(pattern), "isolated")
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special_tokens,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    # The template's words are part of every prompt: "assistant" should not take nine tokens.
    template_words = ["system", "user", "assistant", "\n"] * 100
    backend.train_from_iterator([*corpus, *template_words], trainer)

    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=PAD,
        eos_token=END,
        additional_special_tokens=[START],
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )
    for tag in tags:
        tokenizer.add_tokens(AddedToken(tag, normalized=False, special=False))
    tokenizer.chat_template = template
    return tokenizer
