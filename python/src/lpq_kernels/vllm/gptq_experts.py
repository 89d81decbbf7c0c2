"""Experts of GPTQ checkpoints: vLLM's loader, lpq's products."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.routed_experts import FusedMoeWeightScaleSupported
from vllm.model_executor.utils import set_weight_attrs

from .._threads import spread
from .experts import PackedExpertsMethod, refused
from .kernel import gptq_block, make_room, refusal
from .refusal import Refused


class LpqGptqExpertsMethod(PackedExpertsMethod):
    """Experts of 2, 3, 4 or 8 bits, loaded by vLLM as w13 (gate, then up, along their outputs) and w2 (down)."""

    def __init__(self, bits: int, group: int, less_one: bool, layer: RoutedExperts, prefix: str) -> None:
        super().__init__(layer.moe_config)
        self.bits, self.group, self.less_one = bits, group, less_one
        why = refused(layer)
        if why is not None:
            raise Refused(f"'{prefix}' has experts in gptq: {why}")

    def create_weights(
        self, layer: RoutedExperts, num_experts: int, hidden_size: int, intermediate_size_per_partition: int, params_dtype: torch.dtype, **attributes: Any
    ) -> None:
        bits, group, size = self.bits, self.group, intermediate_size_per_partition
        why = refusal(bits, group, params_dtype)
        if why is None and (hidden_size * bits % 32 or size * bits % 32):
            why = f"a rank's experts of {size} do not end where a word of {bits}-bit codes ends: choose another tensor parallel size"
        if why is None and group != -1 and (hidden_size % group or size % group):
            why = f"a rank's experts of {size} are no whole number of groups of {group}: choose another tensor parallel size"
        if why is not None:
            raise Refused(why)
        self.dtype = params_dtype
        make_room()
        scale = FusedMoeWeightScaleSupported.CHANNEL if group == -1 else FusedMoeWeightScaleSupported.GROUP
        for name, k, n in (("w13", hidden_size, 2 * size), ("w2", size, hidden_size)):
            groups = 1 if group == -1 else k // group
            # Scales stay as exact as they are stored.
            shapes = {
                "qweight": ((k * bits // 32, n), torch.int32),
                "scales": ((groups, n), torch.float32),
                "qzeros": ((groups, n * bits // 32), torch.int32),
            }
            for each, (shape, dtype) in shapes.items():
                parameter = nn.Parameter(torch.empty((num_experts, *shape), dtype=dtype), requires_grad=False)
                set_weight_attrs(parameter, {**attributes, "quant_method": scale.value, "is_transposed": True})
                layer.register_parameter(f"{name}_{each}", parameter)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        spread(torch.get_num_threads())
        bits, size = self.bits, layer.w13_scales.shape[2] // 2
        experts = []
        for expert in range(layer.local_num_experts):
            made = {}
            for part, name, outputs in (("gate", "w13", slice(0, size)), ("up", "w13", slice(size, 2 * size)), ("down", "w2", slice(None))):
                words, scales, zeros = (getattr(layer, f"{name}_{each}").data[expert] for each in ("qweight", "scales", "qzeros"))
                last = scales.shape[1] if outputs.stop is None else outputs.stop
                at = slice((outputs.start or 0) * bits // 32, last * bits // 32)
                made[part] = gptq_block(bits, self.group, self.less_one, words[:, outputs], scales[:, outputs], zeros[:, at], self.dtype)
            experts.append(made)
        for name in ("w13", "w2"):
            for each in ("qweight", "scales", "qzeros"):
                delattr(layer, f"{name}_{each}")
        self.adopt(layer, experts)
