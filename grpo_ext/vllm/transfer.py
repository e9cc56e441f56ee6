"""The transfer of weights from the trainer to the workers of a vLLM server by gloo.

In a separate process group, the trainer is rank 0 and the workers are the other ranks. vLLM loads tensor by tensor, under the
names of the checkpoint.
"""

import socket
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, PrefixStore, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo


def own_address(peer: str) -> str:
    """Return the address from which this machine reaches `peer`; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return probe.getsockname()[0]


class WeightGroup:
    """The process group of the trainer and the workers of a server; rank 0 listens at `address` and `port`.

    `seconds` limit the time to join, and the transfer of each tensor. gloo's default is the address of the machine's name,
    often 127.0.0.1; here each side uses the address from which it reaches the other.
    """

    def __init__(self, address: str, port: int, rank: int, world_size: int, seconds: float):
        wait = timedelta(seconds=seconds)
        mine = address if rank == 0 else own_address(address)
        store = TCPStore(address, port, world_size, is_master=rank == 0, timeout=wait)
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # missing in torch's stubs
        options._devices = [ProcessGroupGloo.create_device(hostname=mine)]
        options._timeout = wait
        self.group: Any = ProcessGroupGloo(PrefixStore("weights", store), rank, world_size, options)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a contiguous CPU tensor from rank 0, or receive into it."""
        options = BroadcastOptions()
        options.rootRank, options.rootTensor = 0, 0
        self.group.broadcast([tensor], options).wait()


@dataclass
class GlooInit(WeightTransferInitInfo):
    """What a worker needs to join: the arguments of `WeightGroup`, with the rank of the first worker."""

    address: str
    port: int
    first_rank: int
    world_size: int
    seconds: float


@dataclass
class GlooUpdate(WeightTransferUpdateInfo):
    """The tensors that follow, in order."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


class GlooTransferEngine(WeightTransferEngine[GlooInit, GlooUpdate]):
    """The side of a worker; vLLM makes one for each."""

    init_info_cls = GlooInit
    update_info_cls = GlooUpdate
    weights: WeightGroup | None = None

    def init_transfer_engine(self, init_info: GlooInit) -> None:
        ranks = self.parallel_config
        rank = ranks.data_parallel_index * ranks.world_size + ranks.rank + init_info.first_rank
        self.weights = WeightGroup(init_info.address, init_info.port, rank, init_info.world_size, init_info.seconds)

    def start_weight_update(self) -> None:
        if self.weights is None:
            raise RuntimeError("No trainer has joined this server yet.")

    def finish_weight_update(self) -> None:
        pass  # each tensor is already loaded

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(self.parse_update_info(update_info))  # the base class waits for an accelerator

    @torch.no_grad()
    def receive_weights(self, update_info: GlooUpdate) -> None:
        self.model.load_weights(self._arriving(update_info))

    def _arriving(self, update: GlooUpdate) -> Iterator[tuple[str, torch.Tensor]]:
        assert self.weights is not None  # see `start_weight_update`
        for name, dtype, shape in zip(update.names, update.dtype_names, update.shapes, strict=True):
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self.weights.broadcast(tensor)
            yield name, tensor

    def shutdown(self) -> None:
        self.weights = None
