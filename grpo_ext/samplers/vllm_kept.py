"""Extract the tokens that truncated sampling kept from the outputs of a colocated vLLM engine."""

from typing import Any

from grpo_ext.objective.kept import KeptSet
from grpo_ext.vllm import EngineFailure


def kept_of_outputs(outputs: list[Any], vocab_size: int) -> list[KeptSet]:
    """Return the kept tokens at each position of each completion, in the order of `outputs`.

    Args:
        outputs: vLLM's `RequestOutput` for each prompt.
        vocab_size: the number of tokens in the model's vocabulary.

    Raises:
        EngineFailure: if a completion does not have one set of kept tokens per token.
    """
    kept_sets = []
    for output in outputs:
        for completion in output.outputs:
            mask = completion.sampling_mask
            ids = [] if mask is None else mask.token_ids
            if len(ids) != len(completion.token_ids):
                raise EngineFailure(
                    f"vLLM returned kept tokens for {len(ids)} positions, but the completion has "
                    f"{len(completion.token_ids)} tokens. To run without kept tokens, set "
                    "VLLM_USE_V2_MODEL_RUNNER=0 in the environment."
                )
            kept_sets.append(KeptSet.from_ids(ids, vocab_size))
    return kept_sets
