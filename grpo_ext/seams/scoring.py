"""Run a model to score tokens: TRL's fused head with our `Head` in it, and the model of the reference."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import trl.trainer.utils as trl_utils
from accelerate import Accelerator
from torch import Tensor
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from grpo_ext.objective.logprob import Projection
from grpo_ext.scoring.head import Head
from grpo_ext.seams.replace import replaced
from grpo_ext.step.records import Scored, Scores


class _StandIn:
    """Replaces TRL's `_ChunkedLogProbFunction`, with the same signature."""

    def __init__(self, head: Head, original: Any):
        self.head, self.original = head, original

    def apply(
        self,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        temperature: float,
        chunk_size: int,
        softcap: float | None = None,
        scale: float = 1.0,
        outputs: tuple[str, ...] = (),
    ) -> Any:
        params = self.head.params
        if (
            not params.restricted
            and (hidden.device.type != "cpu" or not self.head.compact)
            and self.original
        ):
            return self.original.apply(
                hidden,
                weight,
                bias,
                targets,
                params.temperature,
                chunk_size,
                softcap,
                scale,
                outputs,
            )
        logps, entropy = self.head(hidden, weight, bias, targets, Projection(scale, softcap))
        return logps, entropy if "entropy" in outputs else None, None, None, None


@contextmanager
def scoring_with(head: Head) -> Iterator[None]:
    """Let a model's fused head score with `head`.

    TRL leaves out positions without a label only on a GPU, so that shapes stay the same elsewhere.
    """
    compact, on_gpu = head.compact or head.params.restricted, trl_utils._use_triton
    ours = _StandIn(head, trl_utils._ChunkedLogProbFunction)
    with replaced(
        trl_utils,
        _ChunkedLogProbFunction=ours,
        _use_triton=lambda device: compact or on_gpu(device),
    ):
        yield


def run_model(
    accelerator: Accelerator, model: Any, head: Head, labels: Tensor, **inputs: Any
) -> Scores:
    """Call a model with TRL's fused head; without its first argument a `RunModel`."""
    with accelerator.autocast(), scoring_with(head):
        output = model(**inputs, labels=labels, fused_lm_head=True)
    return Scores(output.log_probs, output.entropy, output.aux_loss)


def score_images(
    trainer: Any, model: Any, table: Scored, head: Head, block: int | None, aux_loss: bool
) -> Scores:
    """Score a table with images as TRL does, in rectangles, with our head."""
    with scoring_with(head):
        logps, entropies, aux = trainer._get_per_token_logps_and_entropies(
            model,
            table.input_ids,
            table.attention_mask,
            table.width,
            block,
            compute_entropy=model is not trainer.ref_model,  # which returns none
            compute_aux_loss=aux_loss,
            **table.model_inputs,
        )
    return Scores(logps, entropies, aux)


@contextmanager
def reference_of(trainer: Any) -> Iterator[Any]:
    """Yield the reference: a separate model, or the policy without its adapter."""
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    with use_adapter(model, adapter_name="ref" if "ref" in model.peft_config else None):
        yield trainer.model


def without_checkpointing(trainer: Any) -> AbstractContextManager[None]:
    """Turn gradient checkpointing off in the context, for passes without gradient."""
    return disable_gradient_checkpointing(trainer.model, trainer.args.gradient_checkpointing_kwargs)
