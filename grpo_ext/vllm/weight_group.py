"""The gloo process group with which a trainer sends weights to the workers of a vLLM server.

This module needs only torch, so the trainer's client can be used without vLLM.
"""

import socket
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import PrefixStore, ProcessGroupGloo, TCPStore

TIMEOUT = timedelta(seconds=120)  # for the workers to join, and for the transfer of one tensor
PORTS = 20  # ports to try; another program or an earlier group of this run may use the first


def own_address(peer: str) -> str:
    """Return this machine's address on the route to `peer`; nothing is sent to `peer`.

    Raises:
        OSError: if the name of `peer` cannot be resolved, or there is no route to it.
    """
    family, _, _, _, target = socket.getaddrinfo(peer, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(target)
        return probe.getsockname()[0]


def listening_store(address: str, port: int, world_size: int) -> TCPStore:
    """Open the store through which workers find the trainer, on the first port that can be opened.

    Args:
        address: the trainer's address.
        port: the first of `PORTS` ports to try.
        world_size: number of members of the group, including the trainer.

    Raises:
        ConnectionError: if none of these ports can be opened.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for candidate in range(port, port + PORTS):
        try:
            listener = socket.create_server((address, candidate), family=family)
        except (OSError, OverflowError) as error:  # in use, not allowed, or above 65535
            last_error = error
            continue
        return TCPStore(
            address,
            candidate,
            world_size,
            is_master=True,
            timeout=TIMEOUT,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    raise ConnectionError(
        "the workers of the vLLM server cannot connect to the trainer, because no port from "
        f"{port} to {port + PORTS - 1} of {address} can be opened ({last_error}). If these ports "
        "are in use, set vllm_group_port to a port outside this range"
    )


class WeightGroup:
    """A process group of the trainer and a server's workers.

    The constructor waits until all members have joined, and raises `RuntimeError` if this takes
    longer than `TIMEOUT`. By default, gloo uses the address of the host name, which is often
    127.0.0.1; here, each member uses an address at which the others can reach it.

    Args:
        store: the store through which the members find each other.
        address: this member's address.
        rank: this member's rank; 0 is the trainer.
        world_size: number of members.
    """

    def __init__(self, store: TCPStore, address: str, rank: int, world_size: int):
        # torch's stubs lack the attribute.
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = TIMEOUT
        own_keys = PrefixStore("weights", store)
        self.group: Any = ProcessGroupGloo(own_keys, rank, world_size, options)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """On rank 0, send a contiguous CPU tensor; on other ranks, receive into `tensor`.

        Wait until the transfer is complete.
        """
        self.group.broadcast(tensor, 0).wait()
