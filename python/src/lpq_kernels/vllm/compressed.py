"""compressed-tensors checkpoints with integer experts, which vLLM cannot multiply on a CPU: vLLM loads them, lpq multiplies. On a device by name."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import RoutedExperts, UnquantizedFusedMoEMethod
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors import CompressedTensorsConfig
from vllm.model_executor.utils import set_weight_attrs

from .. import ops
from .._threads import spread
from .experts import PackedExpertsMethod, refused
from .gptq import has_experts
from .kernel import ON_DEVICE, make_room, refusal, unpacked
from .refusal import Refused

PACKED = "pack-quantized"


class LpqCompressedTensorsConfig(CompressedTensorsConfig):
    """vLLM's configuration for linears, heads and caches, with lpq's method for experts of packed integers."""

    NAME = "lpq_compressed_tensors"

    def get_name(self) -> str:
        return self.NAME

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None) -> str | None:
        """Claims checkpoints of mixtures with groups of packed integers, and those for which the user names it."""
        if str(hf_quant_cfg.get("quant_method", "")).lower() != "compressed-tensors" or user_quant not in (None, "compressed-tensors", cls.NAME):
            return None
        groups = (hf_quant_cfg.get("config_groups") or {}).values()
        packed = any(
            (group.get("format") or hf_quant_cfg.get("format")) == PACKED and (group.get("weights") or {}).get("type") == "int" for group in groups
        )
        return cls.NAME if user_quant == cls.NAME or (packed and has_experts(hf_config) and not ON_DEVICE) else None

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if not isinstance(layer, RoutedExperts):
            return super().get_quant_method(layer, prefix)
        self._add_fused_moe_to_target_scheme_map()
        names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
        schemes = [self.get_scheme_dict(layer, f"{prefix}.0.{name}") for name in names]
        if any(scheme != schemes[0] for scheme in schemes):
            raise Refused(f"'{prefix}' has experts whose parts have different types, and vLLM holds them as one tensor")
        if schemes[0] is None:
            return UnquantizedFusedMoEMethod(layer.moe_config)
        weights, inputs = schemes[0]["weights"], schemes[0]["input_activations"]
        if schemes[0]["format"] != PACKED or not self._is_wNa16_group_channel(weights, inputs):
            return super().get_quant_method(layer, prefix)
        return LpqCompressedTensorsExpertsMethod(weights, layer, prefix)


class LpqCompressedTensorsExpertsMethod(PackedExpertsMethod):
    """Experts of 2 to 8 bits, loaded by vLLM as w13 (gate, then up, along their outputs) and w2 (down), with words along the inputs."""

    def __init__(self, weights: Any, layer: RoutedExperts, prefix: str) -> None:
        super().__init__(layer.moe_config)
        self.bits, self.symmetric, self.strategy = weights.num_bits, weights.symmetric, weights.strategy
        self.group = -1 if weights.group_size is None else weights.group_size
        why = refused(layer)
        if why is None and getattr(weights.actorder, "value", weights.actorder) == "group":
            why = "their columns are reordered (actorder: group), and vLLM loads no order of columns for experts"
        if why is not None:
            raise Refused(f"'{prefix}' has experts in compressed-tensors: {why}")

    def create_weights(
        self, layer: RoutedExperts, num_experts: int, hidden_size: int, intermediate_size_per_partition: int, params_dtype: torch.dtype, **attributes: Any
    ) -> None:
        bits, group, size = self.bits, self.group, intermediate_size_per_partition
        why = refusal(bits, group, params_dtype)
        if why is None and (hidden_size * bits % 32 or size * bits % 32):
            why = f"a rank's experts of {size} do not end where a word of {bits}-bit codes ends: choose another tensor parallel size"
        if why is None and group != -1 and (hidden_size % group or size % group):
            why = f"a rank's experts of {size} are not a whole number of groups of {group}: choose another tensor parallel size"
        if why is not None:
            raise Refused(why)
        self.dtype = params_dtype
        make_room()
        for name, k, n in (("w13", hidden_size, 2 * size), ("w2", size, hidden_size)):
            groups = 1 if group == -1 else k // group
            # Scales stay as exact as they are stored.
            shapes = {
                "packed": ((n, k * bits // 32), torch.int32),
                "scale": ((n, groups), torch.float32),
                "shape": ((2,), torch.float32),
            }
            if not self.symmetric:
                shapes["zero_point"] = ((n * bits // 32, groups), torch.int32)
            for each, (shape, dtype) in shapes.items():
                parameter = nn.Parameter(torch.empty((num_experts, *shape), dtype=dtype), requires_grad=False)
                set_weight_attrs(parameter, {**attributes, "quant_method": self.strategy, "is_transposed": False})
                layer.register_parameter(f"{name}_weight_{each}", parameter)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        spread(torch.get_num_threads())
        size, experts = layer.w13_weight_packed.shape[1] // 2, []
        for expert in range(layer.local_num_experts):
            gate, up = (self._block(layer, "w13", expert, first, first + size) for first in (0, size))
            experts.append({"gate": gate, "up": up, "down": self._block(layer, "w2", expert, 0, layer.w2_weight_packed.shape[1])})
        for name in ("w13", "w2"):
            for each in ("packed", "scale", "shape", "zero_point"):
                if hasattr(layer, f"{name}_weight_{each}"):
                    delattr(layer, f"{name}_weight_{each}")
        self.adopt(layer, experts)

    def _block(self, layer: RoutedExperts, name: str, expert: int, first: int, end: int) -> torch.Tensor:
        """Outputs first to end of an expert's w13 or w2. Without zero points, the code of 0 is 2^(bits - 1)."""
        words, scales = (getattr(layer, f"{name}_weight_{each}").data[expert, first:end] for each in ("packed", "scale"))
        bits, k = self.bits, words.shape[1] * 32 // self.bits
        zeros = None
        if not self.symmetric:
            stored = getattr(layer, f"{name}_weight_zero_point").data[expert, first * bits // 32 : end * bits // 32]
            zeros = unpacked(stored.t(), bits, end - first).t()
        group = 0 if self.group in (-1, k) else self.group
        middle = 1 << (bits - 1) if self.symmetric else 0
        there = {"device": words.device, "dtype": self.dtype}
        return ops.pack_codes(f"u{bits}", unpacked(words, bits, k), scales, group=group, zeros=zeros, zero=middle, **there)
