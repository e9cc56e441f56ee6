"""Compact storage for the tokens that a sampler's truncation kept.

A position with few kept tokens stores their ids (4 bytes each); a position with many stores one bit
per token of the vocabulary. The choice is made for each position, so a position never takes more
than V / 8 bytes, and usually a few hundred with top_k or top_p. A threshold on the scores would
take less memory, but it does not apply to a policy that has changed, and it is not exact: two
forward passes may round a score near the threshold to different sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class KeptSet:
    """The kept tokens at N positions, in host memory."""

    vocab_size: int  # V
    # (N,), the number of ids stored for a position; -1 if it is stored as bits
    counts: torch.Tensor
    ids: torch.Tensor  # (sum of counts,), int32, position by position
    # (positions stored as bits, ceil(V / 8)), uint8; token 8 i + j is bit j of byte i
    bits: torch.Tensor

    def __len__(self) -> int:
        return self.counts.size(0)

    @classmethod
    def from_mask(cls, mask: torch.Tensor) -> KeptSet:
        """Compress a mask (N, V), bool, of kept tokens."""
        vocab_size = mask.size(-1)
        counts = mask.sum(-1)  # (N,)
        dense = 32 * counts > vocab_size  # (N,), positions for which bits are smaller than ids
        ids = (mask & ~dense.unsqueeze(-1)).nonzero()[:, 1].int().cpu()
        num_bytes = -(-vocab_size // 8)
        padded = torch.nn.functional.pad(mask[dense], (0, 8 * num_bytes - vocab_size))
        bits = padded.view(-1, num_bytes, 8).to(torch.uint8)
        places = torch.arange(8, dtype=torch.uint8, device=mask.device)
        packed = (bits << places).sum(-1, dtype=torch.uint8)  # (dense positions, bytes)
        return cls(vocab_size, counts.masked_fill(dense, -1).cpu(), ids, packed.cpu())

    def mask(self, device: torch.device | str = "cpu") -> torch.Tensor:
        """Return the kept tokens as a mask (N, V), bool."""
        mask = torch.zeros(len(self), self.vocab_size, dtype=torch.bool, device=device)
        dense = self.counts < 0  # (N,)
        if dense.any():
            places = torch.arange(8, dtype=torch.uint8, device=device)
            shifted = self.bits.to(device).unsqueeze(-1) >> places  # (dense positions, bytes, 8)
            bits = (shifted & 1).bool().flatten(1)  # (dense positions, 8 bytes)
            mask[dense.to(device)] = bits[:, : self.vocab_size]
        positions = torch.arange(len(self)).repeat_interleave(self.counts.clamp(min=0))
        mask[positions.to(device), self.ids.to(device).long()] = True
        return mask

    def select(self, positions: torch.Tensor) -> KeptSet:
        """Return the kept tokens at `positions`, in the given order."""
        positions = positions.cpu()
        sizes = self.counts.clamp(min=0)
        starts = sizes.cumsum(0) - sizes
        chosen = sizes[positions]
        # the n-th id of the selection is the id `n - (ids of earlier positions in the selection)`
        # of its own position
        shift = (starts[positions] - (chosen.cumsum(0) - chosen)).repeat_interleave(chosen)
        dense = self.counts < 0
        row_of_bits = dense.cumsum(0) - 1
        return KeptSet(
            self.vocab_size,
            self.counts[positions],
            self.ids[torch.arange(shift.numel()) + shift],
            self.bits[row_of_bits[positions][dense[positions]]],
        )

    def split(self, sizes: list[int]) -> list[KeptSet]:
        """Split into consecutive parts with these numbers of positions; `cat` joins them again."""
        return [self.select(positions) for positions in torch.arange(len(self)).split(sizes)]

    @staticmethod
    def cat(parts: list[KeptSet]) -> KeptSet:
        """Concatenate the positions of `parts`, which must not be empty."""
        return KeptSet(
            parts[0].vocab_size,
            torch.cat([part.counts for part in parts]),
            torch.cat([part.ids for part in parts]),
            torch.cat([part.bits for part in parts]),
        )
