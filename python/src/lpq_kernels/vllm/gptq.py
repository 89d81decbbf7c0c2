"""GPTQ checkpoints that vLLM's own configuration refuses: all but 4 bits without zero points, on a device also 8."""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Any

import torch
from torch import nn
from vllm.model_executor.layers.fused_moe import RoutedExperts
from vllm.model_executor.layers.linear import LinearMethodBase
from vllm.model_executor.layers.quantization.auto_gptq import AutoGPTQConfig
from vllm.model_executor.layers.quantization.utils.gptq_utils import get_linear_quant_method
from vllm.model_executor.models.utils import WeightsMapper
from vllm.model_executor.parameter import ChannelQuantScaleParameter, GroupQuantScaleParameter, PackedColumnParameter, PackedvLLMParameter
from vllm.scalar_type import ScalarType

from .gptq_experts import LpqGptqExpertsMethod
from .kernel import ON_DEVICE, adopt, gptq_block, make_room, product, refusal
from .refusal import Refused, parallel, require_shares


def has_experts(hf_config: Any) -> bool:
    """Whether a model's configuration describes a mixture of experts."""
    text = hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config
    return any(getattr(text, key, None) for key in ("num_experts", "num_local_experts", "n_routed_experts"))


class LpqGptqConfig(AutoGPTQConfig):
    """`quant_method: gptq` of bits and symmetry that AutoGPTQConfig has no type or no kernel for; names, rules and heads are read as there."""

    NAME = "lpq_gptq"
    TYPE_MAP = {
        **{(bits, True): ScalarType.uint(bits, 1 << (bits - 1)) for bits in (2, 3, 4, 8)},
        **{(bits, False): ScalarType.uint(bits, None) for bits in (2, 3, 4, 8)},
    }

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Refuses columns in another order, and shares of ranks that end within a group, before vLLM starts its workers."""
        if self.full_config.get("desc_act") and self.group_size != -1:
            raise Refused("this checkpoint orders columns by activation (desc_act), and lpq_kernels has no g_idx: quantize without desc_act")
        settings = parallel()
        text = hf_config.get_text_config() if hasattr(hf_config, "get_text_config") else hf_config
        size = getattr(text, "moe_intermediate_size", None) if has_experts(hf_config) else getattr(text, "intermediate_size", None)
        if settings is not None and settings.tensor_parallel_size > 1 and isinstance(size, int) and not settings.enable_expert_parallel:
            require_shares(settings.tensor_parallel_size, "down_proj", size, self.group_size)
        super().maybe_update_config(model_name, hf_config=hf_config, revision=revision)

    def get_cache_scale_mapper(self) -> WeightsMapper:
        """Keeps g_idx from loaders of vLLM versions that have it: without desc_act it says nothing."""
        return super().get_cache_scale_mapper() | WeightsMapper(orig_to_new_regex={re.compile(r"\.g_idx$"): None})

    @property
    def less_one(self) -> bool:
        """Whether zeros are stored less one, modulo 2^bits."""
        return self.full_config.get("checkpoint_format", "gptq") != "gptq_v2"

    def get_name(self) -> str:
        return self.NAME

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return [torch.half, torch.bfloat16] if ON_DEVICE else [torch.float32, torch.half, torch.bfloat16]

    @classmethod
    def override_quantization_method(cls, hf_quant_cfg: dict[str, Any], user_quant: str | None, hf_config: Any = None) -> str | None:
        """Claims what AutoGPTQConfig refuses (8 bits only when it asks for Marlin; experts), or what the user asked it for by name."""
        if str(hf_quant_cfg.get("quant_method", "")).lower() != "gptq" or user_quant not in (None, "gptq", cls.NAME):
            return None
        facts = [(hf_quant_cfg.get("bits"), hf_quant_cfg.get("sym"))]
        for pattern, rule in (hf_quant_cfg.get("dynamic") or {}).items():
            if not pattern.startswith("-:") and isinstance(rule, dict):
                facts.append((rule.get("bits", facts[0][0]), rule.get("sym", facts[0][1])))
        own = {(4, True), (8, True)} if ON_DEVICE else {(4, True)}
        refused = (has_experts(hf_config) and not ON_DEVICE) or any(fact not in own for fact in facts)
        known = all(fact in cls.TYPE_MAP for fact in facts)
        return cls.NAME if user_quant == cls.NAME or (refused and known) else None

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            return LpqGptqExpertsMethod(self.weight_bits, self.group_size, self.less_one, layer, prefix)
        return get_linear_quant_method(self, layer, prefix, LpqGptqLinearMethod)


class LpqGptqLinearMethod(LinearMethodBase):
    """W = (code - zero) * scale; gptq stores zeros less one (modulo 2^bits), gptq_v2 as they are."""

    def __init__(self, config: LpqGptqConfig) -> None:
        self.config = config

    def create_weights(
        self,
        layer: nn.Module,
        input_size_per_partition: int,
        output_partition_sizes: list[int],
        input_size: int,
        output_size: int,
        params_dtype: torch.dtype,
        **attributes: Any,
    ) -> None:
        bits, group = self.config.weight_bits, self.config.group_size
        k, n = input_size_per_partition, sum(output_partition_sizes)
        why = refusal(bits, group, params_dtype)
        if why is None and any(size * bits % 32 for size in (k, *output_partition_sizes)):
            why = f"a share of [{n}, {k}] does not end where a word of {bits}-bit codes ends: choose another tensor parallel size"
        if why is None and group != -1 and k % group != 0:
            why = f"a share of {k} inputs is no whole number of groups of {group}: choose another tensor parallel size"
        if why is not None:
            raise Refused(why)
        layer.lpq_shape, layer.lpq_dtype = (n, k), params_dtype
        make_room()
        groups, rows = (1 if group == -1 else k // group), Fraction(32, bits)
        loader = attributes["weight_loader"]
        qweight = PackedvLLMParameter(
            data=torch.empty(k * bits // 32, n, dtype=torch.int32), input_dim=0, output_dim=1, packed_dim=0, packed_factor=rows, weight_loader=loader
        )
        # Scales stay as exact as they are stored: a model in bf16 would round those in f16.
        scales = {"data": torch.empty(groups, n, dtype=torch.float32), "output_dim": 1, "weight_loader": loader}
        zeros = {
            "data": torch.empty(groups, n * bits // 32, dtype=torch.int32),
            "output_dim": 1,
            "packed_dim": 1,
            "packed_factor": rows,
            "weight_loader": loader,
        }
        layer.register_parameter("qweight", qweight)
        if group == -1:
            layer.register_parameter("scales", ChannelQuantScaleParameter(**scales))
            layer.register_parameter("qzeros", PackedColumnParameter(**zeros))
        else:
            layer.register_parameter("scales", GroupQuantScaleParameter(input_dim=0, **scales))
            layer.register_parameter("qzeros", PackedvLLMParameter(input_dim=0, **zeros))

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        config = self.config
        stored = (layer.qweight.data, layer.scales.data, layer.qzeros.data)
        block = gptq_block(config.weight_bits, config.group_size, config.less_one, *stored, layer.lpq_dtype)
        adopt(layer, block, "qweight", "scales", "qzeros")

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return product(layer, x, *layer.lpq_shape, bias)
