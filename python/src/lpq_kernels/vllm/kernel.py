"""lpq's product as a kernel of vLLM's list, and what turns loaded words into packed blocks."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import nn
from vllm.config import get_current_vllm_config_or_none
from vllm.model_executor.kernels.linear import MPLinearKernel, MPLinearLayerConfig
from vllm.platforms import current_platform
from vllm.scalar_type import ScalarType

from .. import ops
from .._threads import spread
from ..artifact import Artifact

# Integers by vLLM's types, which not every version names, and the code that stands for 0 where there are no zero points.
TYPES: dict[ScalarType, tuple[str, int]] = {
    **{ScalarType.uint(bits, None): (f"u{bits}", 0) for bits in range(2, 9)},
    **{ScalarType.uint(bits, 1 << (bits - 1)): (f"u{bits}", 1 << (bits - 1)) for bits in range(2, 9)},
}
ON_DEVICE = not current_platform.is_cpu()
FLOATS = (torch.float16, torch.bfloat16) if ON_DEVICE else (torch.float32, torch.float16, torch.bfloat16)
GROUPS = (32, 64, 128)
"""Of products on a device; those on a CPU have any multiple of 32."""
BLOCK = "lpq_block"


@lru_cache(maxsize=1)
def opened(directory: str) -> Artifact:
    """The artifact, mapped while its modules are packed one after the other. LpqConfig opened it first, and checked what is to be checked."""
    return Artifact(directory, check_hashes=False)


def unpacked(words: torch.Tensor, bits: int, count: int) -> torch.Tensor:
    """`count` codes, uint8 [R, count], of int32 words [R, W] that are one little-endian stream of bits a row."""
    stream = nn.functional.pad(words.contiguous().view(torch.uint8), (0, 1))
    at = torch.arange(count, device=words.device) * bits
    byte, shift = at // 8, at % 8
    codes = torch.empty((words.shape[0], count), dtype=torch.uint8, device=words.device)
    step = max(1, (1 << 22) // max(1, count))  # rows: both bytes of a code are 16 bits for a moment
    for row in range(0, words.shape[0], step):
        part = stream[row : row + step]
        both = part[:, byte].to(torch.int16) | part[:, byte + 1].to(torch.int16) << 8
        codes[row : row + step] = ((both >> shift) & ((1 << bits) - 1)).to(torch.uint8)
    return codes


def rows_first(parameter: nn.Parameter) -> torch.Tensor:
    """The values of one of vLLM's parameters with outputs along the first dimension."""
    return parameter.data.t() if parameter.output_dim == 1 else parameter.data


def gptq_block(
    bits: int, group: int, less_one: bool, qweight: torch.Tensor, scales: torch.Tensor, qzeros: torch.Tensor, dtype: torch.dtype
) -> torch.Tensor:
    """The block of words in gptq's order: qweight [W, N], a stream along K; scales [G, N]; qzeros [G, V], a stream along N, stored less one or not.

    It lies where the words do, and multiplies inputs of `dtype`.
    """
    n, k = qweight.shape[1], qweight.shape[0] * 32 // bits
    zeros = unpacked(qzeros, bits, n).t()
    if less_one:
        zeros = zeros.to(torch.int16) + 1 & (1 << bits) - 1
    codes, there = unpacked(qweight.t(), bits, k), {"device": qweight.device, "dtype": dtype}
    return ops.pack_codes(f"u{bits}", codes, scales.t(), group=0 if group in (-1, k) else group, zeros=zeros, **there)


def make_room() -> None:
    """Products have room for as many tokens as vLLM takes at once, in the graphs that it captures, too. Asked for where it makes layers."""
    config = get_current_vllm_config_or_none()
    if ON_DEVICE and config is not None:
        ops.reserve(config.scheduler_config.max_num_batched_tokens)


def here() -> torch.device:
    """Where this process computes."""
    return torch.device("cuda", torch.cuda.current_device()) if ON_DEVICE else torch.device("cpu")


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
    if ON_DEVICE and group not in (-1, *GROUPS):
        return f"lpq_kernels has groups of 32, 64 and 128 on a device, or one a row, not of {group}"
    if act not in FLOATS:
        return f"lpq_kernels multiplies {', '.join(str(each).removeprefix('torch.') for each in FLOATS)} here, not {act}"
    return None


class LpqLinearKernel(MPLinearKernel):
    """W [N, K] of integers with a scale a group, from gptq, awq (which vLLM turns into gptq's order first) and compressed-tensors."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 80 if ON_DEVICE else -1

    def __init__(self, c: MPLinearLayerConfig, *names: str | None, **named: str | None) -> None:
        super().__init__(c, *names, **named)
        make_room()

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        if getattr(c, "has_g_idx", False):
            return False, "lpq_kernels has no order of columns (g_idx)"
        if c.weight_type not in TYPES:
            return False, f"lpq_kernels has no {c.weight_type}"
        why = refusal(c.weight_type.size_bits, c.group_size, c.act_type)
        return why is None, why

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        words, scales, zero_words, *_ = self._get_weight_params(layer)
        if words.packed_dim != words.input_dim:
            raise ValueError("lpq_kernels reads weights that are packed along the inputs, and this loader packs them along the outputs")
        type, zero = TYPES[self.config.weight_type]
        k, n = self.config.partition_weight_shape
        bits, zeros = self.config.weight_type.size_bits, None
        if self.config.zero_points:
            zeros = unpacked(rows_first(zero_words).t(), bits, n).t()
        group = self.config.group_size
        codes, there = unpacked(rows_first(words), bits, k), {"device": words.device, "dtype": self.config.act_type}
        block = ops.pack_codes(type, codes, rows_first(scales), group=0 if group in (-1, k) else group, zeros=zeros, zero=zero, **there)
        adopt(layer, block, self.w_q_name, self.w_s_name, self.w_zp_name)

    def apply_weights(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        k, n = self.config.partition_weight_shape
        return product(layer, x, n, k, bias)
