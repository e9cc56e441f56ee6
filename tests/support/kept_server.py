"""A server with the routes of vLLM that returns the tokens that truncation kept.

The tiny model samples, by transformers, with the adapter that the trainer has sent. Its responses
have the form of vLLM 0.32, of which `tests/serving/recorded` has some.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from grpo_ext.objective.sampling import SamplingParams
from grpo_ext.objective.warpers import kept_tokens
from grpo_ext.vllm.http import GENERATE
from tests.support.bad_servers import routes, serving

CONTEXT = 512


class KeptServer:
    """Completes lists of tokens.

    Args:
        folder: of the model and its tokenizer.
        end: the token that ends a completion.
        returns_kept: whether it was started with `--return-sampling-mask`.
    """

    def __init__(self, folder: Any, end: int, returns_kept: bool = True):
        self.folder, self.end, self.returns_kept = folder, end, returns_kept
        self.adapters: dict[str, Any] = {}
        self.random = torch.Generator().manual_seed(0)
        self.lock = threading.Lock()
        self.asked: list[dict[str, Any]] = []

    def load(self, body: dict[str, Any] | None) -> dict[str, Any]:
        if body is not None:
            base = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)
            model = PeftModel.from_pretrained(base, body["lora_path"]).eval()
            self.adapters[body["lora_name"]] = model
        return {}

    def info(self, _: Any) -> dict[str, Any]:
        model_config = {
            "dtype": "torch.float32",
            "logprobs_mode": "processed_logprobs",
            "max_model_len": CONTEXT,
            "return_sampling_mask": self.returns_kept,
        }
        config = {"model_config": model_config, "weight_transfer_config": None}
        return {"vllm_config": {**config, "lora_config": {"max_lora_rank": 8}}}

    def models(self, _: Any) -> dict[str, Any]:
        return {"data": [{"id": name} for name in ["m", *self.adapters]]}

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        if not body:  # the client looks for the route
            return {}
        with self.lock, torch.no_grad():
            self.asked.append(body)
            choices = []
            for index in range(body["sampling_params"]["n"]):
                choices.append({"index": index, **self.complete(body)})
        return {"request_id": body["request_id"], "choices": choices}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """One choice: tokens, log-probs and, if it returns them, kept tokens."""
        asked = body["sampling_params"]
        params = SamplingParams(
            asked["temperature"], asked["top_k"], asked["top_p"], asked["min_p"], order="vllm"
        )
        model = self.adapters[body["model"]]
        ids: list[int] = []
        content, masks = [], []
        while len(ids) < asked["max_tokens"] and self.end not in ids:
            tokens = torch.tensor([body["token_ids"] + ids])
            scores = model(input_ids=tokens).logits[0, -1:].float() / params.temperature
            kept = kept_tokens(scores, params)
            logps = scores.masked_fill(~kept, -torch.inf).log_softmax(-1)[0]
            token = int(torch.multinomial(logps.exp(), 1, generator=self.random))
            ids.append(token)
            content.append({"token_id": token, "logprob": float(logps[token]), "rank": 1})
            masks.append(kept[0].nonzero().flatten().tolist())
        choice = {"token_ids": ids, "logprobs": {"content": content}}
        return {**choice, "sampling_mask": masks if self.returns_kept else None}

    @property
    def table(self) -> dict[str, Any]:
        return {
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/v1/models": self.models,
            "/server_info": self.info,
            "/v1/load_lora_adapter": self.load,
            "/v1/unload_lora_adapter": lambda body: self.adapters.pop(body["lora_name"]) and {},
            GENERATE: self.generate,
        }


@contextmanager
def kept_server(folder: Any, end: int, returns_kept: bool = True) -> Iterator[tuple[Any, str]]:
    """Serve; yield the server and its URL. TRL takes vLLM for installed, as its client asks."""
    server = KeptServer(folder, end, returns_kept)
    with (
        patch("trl.generation.vllm_client.is_vllm_available", return_value=True),
        serving(routes(server.table)) as base,
    ):
        yield server, base
