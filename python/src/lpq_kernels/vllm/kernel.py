"""lpq's product as a kernel of vLLM's list, and what turns loaded words into packed blocks."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.platforms import current_platform
from vllm.scalar_type import ScalarType, scalar_types

from .. import ops
from .._threads import spread
from ..artifact import Artifact

# Integers by vLLM's names, and the code that stands for 0 where there are no zero points.
TYPES: dict[ScalarType, tuple[str, int]] = {
    scalar_types.uint2: ("u2", 0),
    scalar_types.uint3: ("u3", 0),
    scalar_types.uint4: ("u4", 0),
    scalar_types.uint5: ("u5", 0),
    scalar_types.uint6: ("u6", 0),
    scalar_types.uint7: ("u7", 0),
    scalar_types.uint8: ("u8", 0),
    scalar_types.uint2b2: ("u2", 2),
    scalar_types.uint3b4: ("u3", 4),
    scalar_types.uint4b8: ("u4", 8),
    scalar_types.uint5b16: ("u5", 16),
    scalar_types.uint6b32: ("u6", 32),
    scalar_types.uint7b64: ("u7", 64),
    scalar_types.uint8b128: ("u8", 128),
}
FLOATS = (torch.float32, torch.float16, torch.bfloat16)
BLOCK = "lpq_block"


@lru_cache(maxsize=1)
def opened(directory: str) -> Artifact:
    """The artifact, mapped while its modules are packed one after the other. LpqConfig opened it first, and checked what is to be checked."""
    return Artifact(directory, check_hashes=False)


def unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """`count` codes, uint8 [R, count], of int32 words [R, W] that are one little-endian stream of bits a row."""
    stream = nn.functional.pad(words.contiguous().view(torch.uint8), (0, 1))
    at = torch.arange(count) * bits
    byte, shift = at // 8, at % 8
    codes = torch.empty((words.shape[0], count), dtype=torch.uint8)
    step = max(1, (1 << 22) // max(1, count))  # rows: both bytes of a code are 16 bits for a moment
    for row in range(0, words.shape[0], step):
        part = stream[row : row + step]
        both = part[:, byte].to(torch.int16) | part[:, byte + 1].to(torch.int16) << 8
        codes[row : row + step] = ((both >> shift) & ((1 << bits) - 1)).to(torch.uint8)
    return codes


def rows_first(parameter: nn.Parameter) -> torch.Tensor:
    """The values of one of vLLM's parameters with outputs along the first dimension."""
    return parameter.data.t() if parameter.output_dim == 1 else parameter.data


def gptq_block(bits: int, group: int, less_one: bool, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor) -> torch.Tensor:
    """The block of words in gptq's order: qweight [W, N], a stream along K; scales [G, N]; qzeros [G, V], a stream along N, stored less one or not."""
    n, k = qweight.shape[1], qweight.shape[0] * 32 // bits
    zeros = unpacked(qzeros, bits, n).t()
    if less_one:
        zeros = zeros.to(torch.int16) + 1 & (1 << bits) - 1
    return ops.pack_codes(f"u{bits}", unpacked(qweight.t(), bits, k), scales.t(), group=0 if group in (-1, k) else group, zeros=zeros)


def adopt(layer: nn.Module, block: torch.Tensor, *spent: str | None) -> None:
    """Makes `block` the layer's weight, and frees the parameters that it was made of."""
    spread(torch.get_num_threads())
    for name in spent:
        if name is not None and getattr(layer, name, None) is not None:
            delattr(layer, name)
    layer.register_parameter(BLOCK, nn.Parameter(block, requires_grad=False))


def product(layer: nn.Module, x: torch.Tensor, n: int, k: int, bias: torch.Tensor | None) -> torch.Tensor:
    """x W^T + bias of a layer that has adopted a block."""
    y = ops.linear(x, getattr(layer, BLOCK), n, k)
    return y if bias is None else y + bias


def refusal(bits: int, group: int, act: torch.dtype) -> str | None:
    """Why there is no product of integers of `bits` in groups of `group` (-1: a row), in a sentence; None where there is one."""
    if not 1 <= bits <= 8:
        return f"lpq_kernels has integers of 1 to 8 bits, not of {bits}"
    if group != -1 and (group < 32 or group % 32 != 0):
        return f"lpq_kernels has groups of multiples of 32, or one a row, not of {group}"
    if act not in FLOATS:
        return f"lpq_kernels multiplies float32, float16 and bfloat16, not {act}"
    return None


class LpqLinearKernel(MPLinearKernel):
    """W [N, K] of integers with a scale a group, from gptq, awq (which vLLM turns into gptq's order first) and compressed-tensors."""

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        if not current_platform.is_cpu():
            return False, "lpq_kernels is for the CPU"
        if c.weight_type not in TYPES:
            return False, f"lpq_kernels has no {c.weight_type}"
        why = refusal(c.weight_type.size_bits, c.group_size, c.act_type)
        return why is None, why

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        words, scales, zero_words = self._get_weight_params(layer)
        if words.packed_dim != words.input_dim:
            raise ValueError("lpq_kernels reads weights that are packed along the inputs, and this loader packs them along the outputs")
        type, zero = TYPES[self.config.weight_type]
        k, n = self.config.partition_weight_shape
        bits, zeros = self.config.weight_type.size_bits, None
        if self.config.zero_points:
            zeros = unpacked(rows_first(zero_words).t(), bits, n).t()
        group = self.config.group_size
        block = ops.pack_codes(
            type, unpacked(rows_first(words), bits, k), rows_first(scales), group=0 if group in (-1, k) else group, zeros=zeros, zero=zero
        )
        adopt(layer, block, self.w_q_name, self.w_s_name, self.w_zp_name)

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        k, n = self.config.partition_weight_shape
        return product(layer, x, n, k, bias)
