"""Layers whose weights stay packed."""

from __future__ import annotations

import torch
from torch import nn

from . import ops
from .artifact import Artifact


class _Packed(nn.Module):
    """Holds a block (ops.py) as the buffer `block`, which no cast of the module's floats touches."""

    block: torch.Tensor

    def __init__(self, block: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("block", block)
        info = ops.describe(block)
        self.n, self.k, self.bits, self.group = info.n, info.k, info.bits, info.group

    def weight_rows(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """W [N, K], each weight rounded to `dtype` once."""
        return ops.rows(torch.arange(self.n), self.block, self.k, dtype)


class Linear(_Packed):
    """y [..., N] = x [..., K] W^T + bias over packed codes; x is f32, f16 or bf16, sums are f32. For inference: it has no gradient."""

    def __init__(self, block: torch.Tensor) -> None:
        super().__init__(block)
        self.in_features, self.out_features = self.k, self.n

    @classmethod
    def from_artifact(cls, artifact: Artifact, name: str, *, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Linear:
        """The module `name` of an artifact, on a CUDA device for inputs of `dtype`. Raises Error where it has no product there."""
        return cls(ops.pack_module(artifact, name, device=device, dtype=dtype))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(x, self.block, self.n, self.k)

    def extra_repr(self) -> str:
        return f"in_features={self.k}, out_features={self.n}, bits={self.bits}, group={self.group}"


class Embedding(_Packed):
    """Rows of a packed weight, [..., K] of `dtype` for ids [...]: a packed head read as the table that it is tied to."""

    def __init__(self, block: torch.Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__(block)
        self.num_embeddings, self.embedding_dim, self.dtype = self.n, self.k, dtype

    @classmethod
    def from_artifact(cls, artifact: Artifact, name: str, dtype: torch.dtype = torch.float32) -> Embedding:
        """The module `name` of an artifact. Raises Error where it cannot be read on a CPU."""
        return cls(ops.pack_module(artifact, name), dtype)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return ops.rows(ids, self.block, self.k, self.dtype)

    def extra_repr(self) -> str:
        return f"{self.n}, {self.k}, bits={self.bits}, group={self.group}"
