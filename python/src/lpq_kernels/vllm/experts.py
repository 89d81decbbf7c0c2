"""Experts of a mixture whose weights stay packed, under vLLM's own routing."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.fused_moe.fused_moe_method_base import FusedMoEMethodBase

from .. import ops
from .._library import Error
from .._threads import spread
from ..artifact import Artifact, Module
from .kernel import here, make_room, opened
from .refusal import Refused

PARTS = ("gate", "up", "down")


def refused(layer: RoutedExperts) -> str | None:
    """Why experts of this layer have no product here, in a sentence; None where they have one."""
    if not layer.moe_config.is_act_and_mul or layer.activation.value not in ops.ACTIVATIONS:
        return f"its experts have the activation {layer.activation.value}, and lpq_kernels has {', '.join(ops.ACTIVATIONS)}, each with a gate"
    if layer.swiglu_limit is not None or layer.swiglu_alpha is not None or layer.swiglu_beta is not None:
        return "its experts clamp or shift what their activation reads, which lpq_kernels does not"
    if layer.moe_config.has_bias:
        return "its experts have biases, which lpq_kernels does not add"
    if layer.local_num_experts != layer.global_num_experts and not layer.use_ep:
        return "it has more experts here than the model"
    return None


class PackedExpertsMethod(FusedMoEMethodBase):
    """Adopts blocks for gate, up and down of every expert, and multiplies by those that tokens chose; on a device all experts in one launch."""

    def get_fused_moe_quant_config(self, layer: RoutedExperts) -> None:
        return None

    def adopt(self, layer: RoutedExperts, experts: list[dict[str, torch.Tensor]]) -> None:
        """Makes blocks named as PARTS those of the local experts, which the caller lets go of."""
        gate, up, down = ([blocks[part] for blocks in experts] for part in PARTS)
        experts.clear()
        made = ops.stacked(gate, up, down, places=layer.top_k)
        self.counts = [len(blocks) for blocks in made]
        for part, blocks in zip(PARTS, made, strict=True):
            for i, block in enumerate(blocks):
                layer.register_parameter(f"lpq_{part}_{i}", nn.Parameter(block, requires_grad=False))

    def apply(
        self,
        layer: RoutedExperts,
        x: torch.Tensor,
        topk_weights: torch.Tensor,
        topk_ids: torch.Tensor,
        shared_experts: Any = None,
        shared_experts_input: torch.Tensor | None = None,
    ) -> torch.Tensor:
        blocks = [[getattr(layer, f"lpq_{part}_{i}") for i in range(count)] for part, count in zip(PARTS, self.counts, strict=True)]
        ids = topk_ids if layer.expert_map is None else layer.expert_map[topk_ids.long()]
        if layer.apply_router_weight_on_input:  # one expert a token
            x, topk_weights = x * topk_weights.to(x.dtype), torch.ones_like(topk_weights)
        return ops.experts(x, topk_weights, ids, *blocks, layer.activation.value)


def local_experts(layer: RoutedExperts) -> list[int]:
    """The experts of the model that this rank has, in its order."""
    if layer.expert_map is None:
        return list(range(layer.global_num_experts))
    places = layer.expert_map.tolist()
    return [expert for _, expert in sorted((place, expert) for expert, place in enumerate(places) if place >= 0)]


class LpqExpertsMethod(PackedExpertsMethod):
    """Experts of an artifact, each a module of its own. With tensor parallelism a rank packs outputs of gate and up, and inputs of down."""

    def __init__(self, directory: str, modules: dict[str, Module], layer: RoutedExperts, prefix: str) -> None:
        super().__init__(layer.moe_config)
        why = refused(layer)
        if why is not None:
            raise Refused(f"'{prefix}' has packed experts: {why}")
        self.directory = directory
        names = (layer.ckpt_gate_proj_name, layer.ckpt_up_proj_name, layer.ckpt_down_proj_name)
        self.experts: list[tuple[Module, ...]] = []
        for expert in range(layer.global_num_experts):
            wanted = [f"{prefix}.{expert}.{name}" for name in names]
            absent = [name for name in wanted if name not in modules]
            if absent:
                raise Refused(f"'{prefix}' is one layer in vLLM, and the artifact has no packed module '{absent[0]}' beside others of it: quantize all")
            self.experts.append(tuple(modules[name] for name in wanted))

    def create_weights(
        self, layer: RoutedExperts, num_experts: int, hidden_size: int, intermediate_size_per_partition: int, params_dtype: torch.dtype, **attributes: Any
    ) -> None:
        size, whole = intermediate_size_per_partition, self.moe.intermediate_size
        for gate, up, down in self.experts:
            for part, shape in ((gate, (whole, hidden_size)), (up, (whole, hidden_size)), (down, (hidden_size, whole))):
                if (part.n, part.k) != shape or part.bias:
                    raise Refused(f"config.json makes an expert of {list(shape)} of '{part.name}' [{part.n}, {part.k}]")
            if size != whole and down.group and size % down.group:
                raise Refused(
                    f"a rank's {size} inputs of '{down.name}' are no whole number of groups of {down.group}: "
                    "choose another tensor parallel size, or --enable-expert-parallel"
                )
        self.dtype = params_dtype
        make_room()
        first = self.moe.tp_rank * size if size != whole else 0
        self.share = (first, first + size)

    def process_weights_after_loading(self, layer: RoutedExperts) -> None:
        spread(torch.get_num_threads())
        artifact = opened(self.directory)
        made = []
        for expert in local_experts(layer):
            gate, up, down = self.experts[expert]
            made.append(
                {
                    "gate": self.packed(artifact, gate, n=self.share, k=(0, gate.k)),
                    "up": self.packed(artifact, up, n=self.share, k=(0, up.k)),
                    "down": self.packed(artifact, down, n=(0, down.n), k=self.share),
                }
            )
        self.adopt(layer, made)

    def packed(self, artifact: Artifact, part: Module, *, n: tuple[int, int], k: tuple[int, int]) -> torch.Tensor:
        try:
            return ops.pack_expert(artifact, part.name, n=n, k=k, device=here(), dtype=self.dtype)
        except Error as error:
            raise Refused(f"{self.directory} does not run here: '{part.name}': {error}") from None
