"""The transfer of weights from the trainer to the workers of a vLLM server by gloo.

In a separate process group, the trainer is rank 0 and the workers are the other ranks. vLLM loads
tensor by tensor, under the names of the checkpoint.
"""

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

TIMEOUT = timedelta(seconds=120)  # for the workers to join, and for the transfer of one tensor
PORTS = 20  # another program, or the last group of this run, may still have the first ones


def own_address(peer: str) -> str:
    """Return the address from which this machine reaches `peer`; nothing is sent."""
    family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return probe.getsockname()[0]


def listening_store(address: str, port: int, world_size: int) -> TCPStore:
    """Return the store in which the workers find the trainer, at `port` or the next free one; raise
    `ConnectionError`.
    """
    for candidate in range(port, port + PORTS):
        with suppress(OSError):  # in use; an error of the store itself is another class, and raised
            listener = socket.create_server(
                (address, candidate), family=socket.AF_INET6 if ":" in address else socket.AF_INET
            )
            return TCPStore(
                address,
                candidate,
                world_size,
                True,
                TIMEOUT,
                False,
                master_listen_fd=listener.detach(),
            )
    raise ConnectionError(
        f"the workers of the vLLM server cannot join: no port from {port} to {port + PORTS - 1} "
        "is free"
    )


class WeightGroup:
    """The process group of the trainer and the workers of a server, whose members find each other
    in `store`.

    gloo's default is the address of the machine's name, often 127.0.0.1; here each side uses the
    one that the other reaches.
    """

    def __init__(self, store: TCPStore, address: str, rank: int, world_size: int):
        # The attribute is missing in torch's stubs.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = TIMEOUT
        self.group: Any = ProcessGroupGloo(PrefixStore("weights", store), rank, world_size, options)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Send a contiguous CPU tensor from rank 0, or receive into it."""
        self.group.broadcast(tensor, 0).wait()


@dataclass
class GlooInit(WeightTransferInitInfo):
    """What a worker needs to join: where the trainer's store listens."""

    address: str
    port: int
    world_size: int


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
        rank = 1 + ranks.data_parallel_index * ranks.world_size + ranks.rank
        store = TCPStore(init_info.address, init_info.port, init_info.world_size, timeout=TIMEOUT)
        self.weights = WeightGroup(
            store, own_address(init_info.address), rank, init_info.world_size
        )

    def start_weight_update(self) -> None:
        if self.weights is None:
            raise RuntimeError("No trainer has joined this server yet.")

    def finish_weight_update(self) -> None:
        pass  # each tensor is already loaded

    def update_weights(self, update_info: dict[str, Any]) -> None:
        self.receive_weights(
            self.parse_update_info(update_info)
        )  # the base class waits for an accelerator

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
