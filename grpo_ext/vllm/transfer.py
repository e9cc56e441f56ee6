"""Receive the trainer's weights over gloo, in the workers of a vLLM server.

The trainer and the server's workers have a process group of their own, in which the trainer is rank
0. vLLM loads one tensor at a time, under the tensor's name in the checkpoint.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import TCPStore
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from grpo_ext.vllm.weight_group import TIMEOUT, WeightGroup, own_address


@dataclass
class GlooInit(WeightTransferInitInfo):
    """What a worker needs to join the group: the store's address and port, and the group size."""

    address: str
    port: int
    world_size: int


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):
    """The names, dtypes and shapes of the tensors that the trainer sends next, in this order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooTransferEngine(WeightTransferEngine[GlooInit, GlooUpdate]):
    """Receives weights from the trainer and loads them; vLLM creates one engine per worker."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate
    weights: WeightGroup | None = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        ranks = self.parallel_config
        rank = 1 + ranks.data_parallel_index * ranks.world_size + ranks.rank
        store = TCPStore(init_info.address, init_info.port, init_info.world_size, timeout=TIMEOUT)
        self.weights = WeightGroup(
            store,
            own_address(init_info.address),
            rank,
            init_info.world_size,
        )

    def start_weight_update(self) -> None:
        if self.weights is None:
            raise RuntimeError(
                "No trainer has joined this server yet. Request /init_weight_transfer_engine first."
            )

    def finish_weight_update(self) -> None:
        pass  # each tensor is already loaded

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # the base class would wait for an accelerator
        self.receive_weights(self.parse_update_info(update_info))

    @torch.no_grad()
    def receive_weights(self, update_info: GlooUpdate) -> None:
        self.model.load_weights(self._arriving(update_info))

    def _arriving(self, update: GlooUpdate) -> Iterator[tuple[str, torch.Tensor]]:
        assert self.weights is not None  # see `start_weight_update`
        tensors = zip(update.names, update.dtype_names, update.shapes, strict=True)
        for name, dtype_name, shape in tensors:
            tensor = torch.empty(shape, dtype=getattr(torch, dtype_name))
            self.weights.broadcast(tensor)
            yield name, tensor

    def shutdown(self) -> None:
        self.weights = None
