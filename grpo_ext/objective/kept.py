"""Compact storage for the tokens that a sampler's truncation kept.

A position with few kept tokens stores their ids (4 bytes each); a position with many stores one bit
per token of the vocabulary. The choice is made for each position, so a position never takes more
than V / 8 bytes, and usually takes a few hundred with top_k or top_p. A threshold on the scores
would take less memory, but it does not apply to a policy that has changed, and it is not exact: two
forward passes may round a score near the threshold to different sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeptSet:
    """The tokens that truncation kept at each of N positions, stored in host memory."""

    vocab_size: int  # V
    # (N,), the number of ids stored for each position; -1 if the position is stored as bits
    counts: Tensor
    ids: Tensor  # (sum of counts,), int32, position by position
    # (positions stored as bits, ceil(V / 8)), uint8; token 8 i + j is bit j of byte i
    bits: Tensor

    def __len__(self) -> int:
        return self.counts.size(0)

    @classmethod
    def from_mask(cls, mask: Tensor) -> KeptSet:
        """Create a kept set from a bool mask (N, V) on any device, true for kept tokens."""
        vocab_size = mask.size(-1)
        counts = mask.sum(-1)  # (N,)
        dense = 32 * counts > vocab_size  # (N,), positions for which bits are smaller than ids
        sparse_mask = mask & ~dense.unsqueeze(-1)  # (N, V)
        ids = sparse_mask.nonzero()[:, 1]  # (sum of counts,)
        return cls(
            vocab_size=vocab_size,
            counts=counts.masked_fill(dense, -1).cpu(),
            ids=ids.int().cpu(),
            bits=packed_bits(mask[dense]).cpu(),
        )

    @classmethod
    def from_ids(cls, ids: Sequence[list[int]], vocab_size: int) -> KeptSet:
        """Create a kept set from the ids of the kept tokens at each of N positions.

        Args:
            ids: N lists of token ids.
            vocab_size: the size V of the vocabulary.
        """
        counts = torch.tensor([len(kept_ids) for kept_ids in ids], dtype=torch.long)  # (N,)
        dense = 32 * counts > vocab_size  # (N,), as in `from_mask`
        sparse_ids: list[int] = []
        dense_mask = torch.zeros(int(dense.sum()), vocab_size, dtype=torch.bool)
        row = 0
        for kept_ids, is_dense in zip(ids, dense.tolist(), strict=True):
            if is_dense:
                dense_mask[row, torch.tensor(kept_ids)] = True
                row += 1
            else:
                sparse_ids += kept_ids
        return cls(
            vocab_size=vocab_size,
            counts=counts.masked_fill(dense, -1),
            ids=torch.tensor(sparse_ids, dtype=torch.int32),
            bits=packed_bits(dense_mask),
        )

    @classmethod
    def of_tokens(cls, tokens: list[int], vocab_size: int) -> KeptSet:
        """Create a kept set with one position per token, at which only that token is kept."""
        return cls(
            vocab_size=vocab_size,
            counts=torch.ones(len(tokens), dtype=torch.long),
            ids=torch.tensor(tokens, dtype=torch.int32),
            bits=torch.zeros(0, -(-vocab_size // 8), dtype=torch.uint8),
        )

    def mask(self, device: torch.device | str = "cpu") -> Tensor:
        """Return a bool mask (N, V) on `device`, true for kept tokens."""
        mask = torch.zeros(len(self), self.vocab_size, dtype=torch.bool, device=device)
        dense = self.counts < 0  # (N,)
        if dense.any():
            places = torch.arange(8, dtype=torch.uint8, device=device)
            packed = self.bits.to(device).unsqueeze(-1)  # (dense positions, bytes, 1)
            bits = (packed >> places) & 1  # (dense positions, bytes, 8)
            dense_mask = bits.bool().flatten(1)  # (dense positions, 8 * bytes)
            mask[dense.to(device)] = dense_mask[:, : self.vocab_size]
        num_ids = self.counts.clamp(min=0)  # (N,)
        positions = torch.arange(len(self)).repeat_interleave(num_ids).to(device)
        ids = self.ids.to(device).long()
        mask[positions, ids] = True
        return mask

    def select(self, positions: Tensor) -> KeptSet:
        """Return the kept set for `positions` (n,), in this order; positions may be repeated."""
        positions = positions.cpu()  # (n,)
        num_ids = self.counts.clamp(min=0)  # (N,)
        starts = num_ids.cumsum(0) - num_ids  # (N,), where the ids of a position start
        new_num_ids = num_ids[positions]  # (n,)
        new_starts = new_num_ids.cumsum(0) - new_num_ids  # (n,), where they start in the selection
        shifts = starts[positions] - new_starts  # (n,)
        shift_of_id = shifts.repeat_interleave(new_num_ids)  # (ids in the selection,)
        id_indices = torch.arange(shift_of_id.numel()) + shift_of_id
        dense = self.counts < 0  # (N,)
        row_of_bits = dense.cumsum(0) - 1  # (N,)
        dense_positions = positions[dense[positions]]
        return KeptSet(
            vocab_size=self.vocab_size,
            counts=self.counts[positions],
            ids=self.ids[id_indices],
            bits=self.bits[row_of_bits[dense_positions]],
        )

    def split(self, sizes: list[int]) -> list[KeptSet]:
        """Split the positions into consecutive parts, which `cat` can concatenate again.

        Args:
            sizes: the number of positions in each part; the sizes must add up to N.
        """
        all_positions = torch.arange(len(self))
        return [self.select(positions) for positions in all_positions.split(sizes)]

    @staticmethod
    def cat(parts: list[KeptSet]) -> KeptSet:
        """Concatenate the positions of `parts`: one or more kept sets with the same vocabulary."""
        return KeptSet(
            vocab_size=parts[0].vocab_size,
            counts=torch.cat([part.counts for part in parts]),
            ids=torch.cat([part.ids for part in parts]),
            bits=torch.cat([part.bits for part in parts]),
        )


def packed_bits(mask: Tensor) -> Tensor:
    """Pack a bool mask (n, V) into a uint8 tensor (n, ceil(V / 8)), lowest bit first."""
    vocab_size = mask.size(-1)
    num_bytes = -(-vocab_size // 8)  # rounded up
    padding = 8 * num_bytes - vocab_size
    padded = torch.nn.functional.pad(mask, (0, padding))
    bits = padded.view(-1, num_bytes, 8).to(torch.uint8)  # (n, bytes, 8)
    places = torch.arange(8, dtype=torch.uint8, device=mask.device)
    return (bits << places).sum(-1, dtype=torch.uint8)
