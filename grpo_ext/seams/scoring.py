"""Score with our `Head` in place of TRL's fused head, and run the reference model."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import trl.trainer.utils as trl_utils
from accelerate import Accelerator
from torch import Tensor, nn
from trl.models.utils import disable_gradient_checkpointing
from trl.trainer.utils import use_adapter

from grpo_ext.common.projection import computing_dtype
from grpo_ext.determinism.mode import InvariantOperations
from grpo_ext.objective.logprob import LogitTransform
from grpo_ext.scoring.head import Head, positions_of
from grpo_ext.seams.generate import replaced
from grpo_ext.seams.port import TRLTrainer
from grpo_ext.seams.precision import Precision, computing_in
from grpo_ext.seams.trl import checkpointing_options
from grpo_ext.step.records import Scored, Scores


class _StandIn:
    """Replaces TRL's `_ChunkedLogProbFunction`; its `apply` has the same signature."""

    def __init__(self, head: Head, original: Any):
        self.head = head
        self.original = original

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
        on_cpu = hidden.device.type == "cpu"
        # on a CPU, TRL's function rounds logits to half precision
        rounds = computing_dtype(hidden) != torch.float32
        by_head = params.restricted or (on_cpu and (self.head.compact or rounds))
        if self.original and not by_head:
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
        logps, entropy = self.head(hidden, weight, bias, targets, LogitTransform(scale, softcap))
        asked_entropy = entropy if "entropy" in outputs else None
        return logps, asked_entropy, None, None, None


@contextmanager
def scoring_with(head: Head) -> Iterator[None]:
    """Context manager that replaces the log-prob function called by TRL's fused head.

    `head` computes the log-probs if its sampling parameters are `restricted`, and on a CPU also if
    `head` is compact or the dtype is not float32. In all other cases, TRL's own function computes
    them, with the temperature of `head`.

    TRL skips positions without a label only on devices where it uses Triton. If `head` is compact
    or restricted, they are skipped on every device.
    """
    compact = head.compact or head.params.restricted
    uses_triton = trl_utils._use_triton
    with replaced(
        trl_utils,
        _ChunkedLogProbFunction=_StandIn(head, trl_utils._ChunkedLogProbFunction),
        _use_triton=lambda device: compact or uses_triton(device),
    ):
        yield


def run_model(
    accelerator: Accelerator,
    precision: Precision,
    model: nn.Module,
    head: Head,
    labels: Tensor,
    **inputs: Any,
) -> Scores:
    """Run a model with `head` in place of TRL's fused head, and return the scores of its labels.

    If the first two arguments are bound, the function is a `RunModel`.

    Args:
        accelerator: the accelerator, which sets the autocast of mixed precision.
        precision: the dtypes to compute in, which the sampler also uses.
        model: the policy or the reference model.
        head: computes the scores from the hidden states.
        labels: (B, L), the token ids to score, and -100 elsewhere.
        **inputs: all other model inputs.
    """
    with accelerator.autocast(), computing_in(precision, model), scoring_with(head):
        output = model(**inputs, labels=labels, fused_lm_head=True)
    return Scores(output.log_probs, output.entropy, output.aux_loss)


def run_invariantly(
    accelerator: Accelerator,
    precision: Precision,
    model: nn.Module,
    head: Head,
    labels: Tensor,
    **inputs: Any,
) -> Scores:
    """Run a model as `run_model` does, with batch-invariant operations.

    The bits of a log-prob then depend only on its token and the tokens before it. Positions are
    passed explicitly, as `generate` does, because a model's default positions count the padding.

    Args:
        accelerator: the accelerator, which sets the autocast of mixed precision.
        precision: the dtypes to compute in, which the sampler also uses.
        model: the policy or the reference model.
        head: computes the scores from the hidden states.
        labels: (B, L), the token ids to score, and -100 elsewhere.
        **inputs: all other model inputs, including `position_ids` or `attention_mask`.
    """
    if "position_ids" not in inputs:
        inputs["position_ids"] = positions_of(inputs["attention_mask"])
    with InvariantOperations():
        return run_model(accelerator, precision, model, head, labels, **inputs)


def score_images(
    trainer: TRLTrainer,
    model: Any,
    table: Scored,
    head: Head,
    block: int | None,
    aux_loss: bool,
) -> Scores:
    """Score completions for prompts with images, using `head` and padded batches like TRL's.

    Entropies are computed for all models except the trainer's reference model.

    Args:
        trainer: the trainer whose scoring method is called.
        model: the policy or the reference model.
        table: the completions, with the model inputs for their images.
        head: computes the scores from the hidden states.
        block: the number of completions in a batch; `None` means all.
        aux_loss: whether to compute the MoE load-balancing loss.
    """
    with scoring_with(head):
        logps, entropies, aux = trainer._get_per_token_logps_and_entropies(
            model,
            table.input_ids,
            table.attention_mask,
            table.width,
            block,
            compute_entropy=model is not trainer.ref_model,  # the reference's entropy is not used
            compute_aux_loss=aux_loss,
            **table.model_inputs,
        )
    return Scores(logps, entropies, aux)


@contextmanager
def reference_of(trainer: TRLTrainer) -> Iterator[nn.Module]:
    """Context manager that provides the reference model.

    This is `trainer.ref_model` or, if there is none, the policy without its trained adapter. The
    policy then uses the adapter "ref" within the context, or no adapter if there is no "ref".
    """
    if trainer.ref_model is not None:
        yield trainer.ref_model
        return
    model = trainer.accelerator.unwrap_model(trainer.model)
    adapter_name = "ref" if "ref" in model.peft_config else None  # `None` switches adapters off
    with use_adapter(model, adapter_name=adapter_name):
        yield trainer.model


def without_checkpointing(trainer: TRLTrainer) -> AbstractContextManager[None]:
    """Return a context in which gradient checkpointing is off, for passes without gradient."""
    return disable_gradient_checkpointing(trainer.model, checkpointing_options(trainer.args))
