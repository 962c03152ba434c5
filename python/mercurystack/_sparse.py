"""Sums of sparse tensors, as embeddings' gradients are: every rank's indices and values go to all."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

Gather = Callable[[Sequence[Sequence[torch.Tensor]], Sequence[torch.Tensor]], Any]  # all_gather of a group, its work


def sum_of(tensor: torch.Tensor, size: int, gather: Gather) -> torch.Tensor:
    """Blocks: what the second exchange moves is known by the first."""
    own = tensor.detach().coalesce()
    counts = _gathered(torch.tensor([own._nnz()]), size, gather)
    most = max(int(count) for count in counts)
    if most == 0:
        return own
    indices = _gathered(_padded(own.indices().t().contiguous(), most), size, gather)
    values = _gathered(_padded(own.values(), most), size, gather)
    kept = [slice(0, int(count)) for count in counts]
    return torch.sparse_coo_tensor(torch.cat([one[rows] for one, rows in zip(indices, kept)]).t(),
                                   torch.cat([one[rows] for one, rows in zip(values, kept)]), tensor.shape).coalesce()


def _gathered(tensor: torch.Tensor, size: int, gather: Gather) -> list[torch.Tensor]:
    all_of_them = [torch.empty_like(tensor) for _ in range(size)]
    gather([all_of_them], [tensor]).wait()
    return all_of_them


def _padded(rows: torch.Tensor, count: int) -> torch.Tensor:
    return torch.cat([rows, rows.new_zeros((count - len(rows), *rows.shape[1:]))])
