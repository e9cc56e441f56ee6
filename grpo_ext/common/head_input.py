"""A head that reads some positions of each row, without a copy of its weights for every row."""

from collections.abc import Iterator
from contextlib import contextmanager

from transformers import PreTrainedModel


@contextmanager
def contiguous_head_input(model: PreTrainedModel) -> Iterator[None]:
    """Make the input of the model's head contiguous within the context, if the model has a head.

    With `logits_to_keep`, the head gets the last positions of each row, which are a slice of the
    hidden states. torch would multiply a slice by frozen weights row by row, with a copy of the
    weights for each row: 57 MB per row for SmolLM2-135M in bfloat16.
    """
    head = model.get_output_embeddings()
    if head is None:
        yield
        return
    hook = head.register_forward_pre_hook(lambda _, inputs: (inputs[0].contiguous(), *inputs[1:]))
    try:
        yield
    finally:
        hook.remove()
