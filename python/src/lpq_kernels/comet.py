"""W4Ax on a CPU: weights of 4 bits in layout comet, whose inputs become codes of 4 and 8 bits by blocks of 128 columns."""

from __future__ import annotations

import torch
from torch import nn

from . import ops
from .artifact import Artifact

BLOCK = 128


def _codes(packed: torch.Tensor, n: int) -> torch.Tensor:
    """Codes of i4 as bit patterns, uint8 [n, K], of uint8 [N/16, K/128, 1024] (docs/internals/layouts/comet.md of lpq)."""
    row, column = torch.arange(16)[:, None], torch.arange(BLOCK)[None]
    chunk, lane = column // 32, 4 * (row % 8) + column % 16 // 4
    byte = chunk // 2 * 512 + lane * 16 + (chunk % 2 * 2 + row // 8) * 4 + column % 4
    codes = packed[:, :, byte] >> (column % 32 // 16 * 4).to(torch.uint8) & 15
    return codes.permute(0, 2, 1, 3).reshape(packed.shape[0] * 16, -1)[:n].contiguous()


class CometLinear(nn.Module):
    """y [..., N] = x^ [..., K] W^T + bias, x^ the input in codes; sums are f32. For inference: it has no gradient.

    Of a block of 128 columns in `order`, top is 7 or 127: scale = max|x| clip / top, code = x / scale to the nearest, ties to even.
    """

    block: torch.Tensor
    factor: torch.Tensor
    top: torch.Tensor
    order: torch.Tensor | None

    def __init__(self, block: torch.Tensor, bits: torch.Tensor, clip: torch.Tensor, order: torch.Tensor | None) -> None:
        super().__init__()
        info = ops.describe(block)
        self.out_features, self.in_features, top = info.n, info.k, torch.where(bits == 4, 7, 127).int()
        self.register_buffer("block", block)
        # Whole numbers, so that no cast of the module's floats touches them: the factor's f32 as its bits.
        self.register_buffer("top", top)
        self.register_buffer("factor", (clip.float() / top.float()).view(torch.int32))
        self.register_buffer("order", None if order is None else order.long())

    @classmethod
    def from_artifact(cls, artifact: Artifact, name: str) -> CometLinear:
        """The module `name` of an artifact. Raises Error where it lacks a tensor."""
        module, stored = artifact.module(name), set(artifact.tensors())

        def optional(last: str) -> torch.Tensor | None:
            return artifact.tensor(f"{name}.{last}") if f"{name}.{last}" in stored else None

        codes = _codes(artifact.tensor(f"{name}.packed"), module.n)
        scales = artifact.tensor(f"{name}.scales").t()[: module.n]
        block = ops.pack_codes("i4", codes, scales, group=BLOCK, bias=optional("bias"))
        return cls(block, artifact.tensor(f"{name}.bits"), artifact.tensor(f"{name}.clip"), optional("permutation"))

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        """x^ f32 [..., K]: code * scale of each column, in the order of the weights. A scale below 2^-126 is 0."""
        ordered = x.float() if self.order is None else x.float()[..., self.order]
        blocks, top = ordered.unflatten(-1, (-1, BLOCK)), self.top[:, None].float()
        scale = blocks.abs().amax(-1, keepdim=True) * self.factor.view(torch.float32)[:, None]
        scale = torch.where(scale < 2.0**-126, 0, scale)
        inverse = torch.where(scale > 0, 1 / scale, 0)
        return (torch.clamp(blocks * inverse, -top, top).round() * scale).flatten(-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ops.linear(self.rounded(x), self.block, self.out_features, self.in_features).to(x.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}"
