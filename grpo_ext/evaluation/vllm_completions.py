"""Complete prompts with a vLLM engine in this process, as an alternative to transformers."""

import gc
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers import AutoConfig, PreTrainedTokenizerBase

from grpo_ext.common.devices import gpu_is_there
from grpo_ext.common.prompt_tokens import encode_prompts
from grpo_ext.evaluation.completions import Completion, Decoding


def pick_engine(
    engine: str,
    model_name: str,
    use_cpu: bool = False,
    environment: object = None,
) -> str:
    """Return the engine to use, `transformers` or `vllm`.

    Args:
        engine: `transformers`, `vllm`, or `auto`, which chooses vLLM if it is installed, there is a
            GPU, and none of the other arguments rules it out.
        model_name: the folder or hub id of the model; for the folder of an adapter, vLLM is ruled
            out.
        use_cpu: whether the model must stay on the CPU; only `auto` considers this.
        environment: the recipe's environments; if there are any, vLLM is ruled out.

    Raises:
        ValueError: if `engine` is `vllm`, but vLLM is not installed or is ruled out by
            `model_name` or `environment`.
    """
    adapter = (Path(model_name) / "adapter_config.json").exists()
    if engine == "auto":
        fits = not (use_cpu or environment or adapter)
        return "vllm" if fits and find_spec("vllm") and gpu_is_there() else "transformers"
    if engine == "vllm" and environment:
        raise ValueError(
            "`grpo-ext eval` cannot play the episodes of an environment with vLLM. Use --engine "
            "transformers."
        )
    if engine == "vllm" and adapter:
        raise ValueError(
            f"{model_name} is an adapter, which vLLM cannot load without its base model. Use "
            "--engine transformers."
        )
    if engine == "vllm" and not find_spec("vllm"):
        raise ValueError(
            "vLLM is not installed. Run `pip install vllm`, or use --engine transformers."
        )
    return engine


class VllmCompletions:
    """Completes prompts with a vLLM engine, which the constructor starts and `close` shuts down.

    Call an instance with rows and a `Decoding` to complete the prompts of the rows.

    Args:
        model_name: a folder or a hub id.
        tokenizer: the tokenizer of the model.
        dtype: the dtype of the weights, such as "bfloat16"; `None` or "auto" keeps that of the
            checkpoint.
        tokens: the maximum number of tokens in a prompt and its completion together; `None` uses
            the model's maximum.
        chat_template_kwargs: additional arguments for the chat template.
        options: additional arguments for `vllm.LLM`.
    """

    def __init__(
        self,
        model_name: str,
        tokenizer: PreTrainedTokenizerBase,
        dtype: Any,
        tokens: int | None,
        chat_template_kwargs: dict[str, Any] | None = None,
        **options: Any,
    ):
        from vllm import LLM

        self.tokenizer = tokenizer
        self.chat_template_kwargs = chat_template_kwargs
        self.llm = LLM(model_name, **engine_arguments(model_name, dtype, tokens, **options))

    def __call__(
        self,
        rows: list[Any],
        decoding: Decoding,
        progress: str | None = None,
    ) -> list[list[Completion]]:
        """Return `decoding.num_samples` completions for the prompt of each row.

        The engine's `seed` is used instead of `decoding.seed`, because vLLM does not support a seed
        per request on a CPU. `decoding.options` are ignored.

        Args:
            rows: the rows, at least one; their `prompt` is a string or a list of messages.
            decoding: the decoding settings.
            progress: any string shows vLLM's progress bar; `None` shows none.

        Raises:
            ValueError: if the chat template takes too long.
        """
        from vllm import SamplingParams

        params = SamplingParams(
            n=decoding.num_samples,
            temperature=decoding.temperature,
            top_p=decoding.top_p,
            top_k=decoding.top_k,
            min_p=decoding.min_p or 0.0,
            max_tokens=decoding.max_new_tokens,
            stop_token_ids=[self.tokenizer.eos_token_id],  # the engine adds the model's own
            stop=list(decoding.stop_strings),
            detokenize=bool(decoding.stop_strings),
        )
        encoded = encode_prompts(
            [row["prompt"] for row in rows], self.tokenizer, self.chat_template_kwargs
        )
        outputs = self.llm.generate(
            [{"prompt_token_ids": prompt_ids} for prompt_ids in encoded],
            params,
            use_tqdm=progress is not None,
        )
        completions = []
        for output in outputs:
            group = []
            for sample in output.outputs:
                ids = list(sample.token_ids)
                text = str(self.tokenizer.decode(ids, skip_special_tokens=True))
                group.append(Completion(text, ids, sample.finish_reason))
            completions.append(group)
        return completions

    def close(self) -> None:
        """Shut down the engine and free its memory."""
        shut_down(self.llm)
        del self.llm
        gc.collect()


def engine_arguments(
    model_name: str,
    dtype: Any,
    tokens: int | None,
    **options: Any,
) -> dict[str, Any]:
    """Return the arguments for `vllm.LLM` except the model, with CPU settings if there is no GPU.

    Args:
        model_name: a folder or a hub id.
        dtype: the dtype of the weights; `None` or "auto" keeps that of the checkpoint.
        tokens: the maximum number of tokens in a prompt and its completion together; `None` uses
            the model's maximum.
        options: additional arguments for `vllm.LLM`, which are also returned.
    """
    from grpo_ext.vllm.settings import MAX_SEQUENCES, TextModel, cpu_settings

    options["dtype"] = str(dtype or "auto").removeprefix("torch.")
    options["max_model_len"] = tokens
    if gpu_is_there():
        return options
    config_options = {"revision", "trust_remote_code"} & options.keys()
    config = AutoConfig.from_pretrained(
        model_name, **{name: options[name] for name in config_options}
    )
    model = TextModel.of(config)
    cpu_dtype = model.dtype if options["dtype"] == "auto" else options["dtype"]
    return options | cpu_settings(model, cpu_dtype, MAX_SEQUENCES, tokens)


def shut_down(llm: Any) -> None:
    """Shut down the engine of a `vllm.LLM`; until then, the engine holds its memory."""
    llm.llm_engine.engine_core.shutdown()
