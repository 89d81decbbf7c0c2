"""transformers opens artifacts of `lpq pack`, on a CPU or a CUDA device.

    import lpq_kernels.transformers
    model = AutoModelForCausalLM.from_pretrained("tiny-w4-sm90")
    model = AutoModelForCausalLM.from_pretrained("tiny-w4-sm90", dtype=torch.bfloat16, device_map="cuda")

Registers the quantization method `lpq`, which config.json of an artifact names. Linears and experts stay packed; everything else is
loaded by transformers itself. Raises ValueError, in one sentence, for what cannot run so.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.pytorch_utils import Conv1D
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ._experts import Experts, activation_of, place_of, sizes_of
from ._library import Error
from .artifact import Artifact, Module
from .comet import CometLinear
from .modules import Linear
from .ops import ACTIVATIONS, pack_expert, pack_module


@register_quantization_config("lpq")
class LpqConfig(QuantizationConfigMixin):
    """What config.json of an artifact says of it.

    transformers keeps the stored one and drops what is passed to from_pretrained beside it, so it has no options: LPQ_CHECK_HASHES=1 of the
    environment compares contents with lpq.json before they are used.
    """

    def __init__(self, quant_method: str = "lpq", **facts: Any) -> None:
        if "check_hashes" in facts:
            raise ValueError("LpqConfig has no check_hashes, which transformers would drop: set LPQ_CHECK_HASHES=1 in the environment")
        self.quant_method = quant_method
        for name, value in facts.items():
            setattr(self, name, value)


class _Place(nn.Module):
    """Stands where a packed linear will, while transformers loads the rest: it has nothing to load, and a weight for those who initialise one."""

    weight = torch.empty(0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("the model was not loaded to its end")


def _places(model: Any, artifact: Artifact) -> list[tuple[Module, str]]:
    """Packed modules, each with its place in the model: transformers gives multimodal models other names than their published ones."""
    renamings = [each for each in get_model_conversion_mapping(model) if isinstance(each, WeightRenaming)]
    found = []
    for module in artifact.modules():
        key = f"{module.name}.weight"
        for renaming in renamings:
            key, _ = renaming.rename_source_key(key)
        found.append((module, key.removesuffix(".weight")))
    return found


def _require_size(module: Module, n: int, k: int) -> None:
    if (n, k) != (module.n, module.k):
        raise ValueError(f"packed module '{module.name}' is [{module.n}, {module.k}], and config.json makes it [{n}, {k}]")


def _require(model: nn.Module, module: Module, place: str) -> None:
    """Raises ValueError if the model has no layer of that name and size."""
    try:
        layer = model.get_submodule(place)
    except AttributeError:
        raise ValueError(
            f"packed module '{module.name}' is no layer of {type(model).__name__} in transformers, "
            "which keeps some models, and experts with biases, under other names: this artifact does not run there"
        ) from None
    if isinstance(layer, nn.Linear):
        n, k = layer.out_features, layer.in_features
    elif isinstance(layer, Conv1D):
        n, k = layer.nf, layer.nx
    elif isinstance(layer, (_Place, Linear)):
        raise ValueError(f"packed module '{module.name}' names a layer that another packed module names, too")
    else:
        raise ValueError(f"packed module '{module.name}' is a {type(layer).__name__} in transformers, not a linear")
    _require_size(module, n, k)


@dataclass
class _Mixture:
    """The packed experts of a block: part and expert -> module."""

    modules: dict[tuple[str, int], Module]
    activation: str = ""


def _mixtures(model: nn.Module, places: list[tuple[Module, str]]) -> dict[str, _Mixture]:
    """Blocks whose experts transformers holds in one module. Raises ValueError for those that are packed in part, or compute otherwise."""
    found: dict[str, _Mixture] = {}
    for module, place in places:
        at = place_of(place)
        if at is None or sizes_of(_submodule(model, at[0])) is None:
            continue
        found.setdefault(at[0], _Mixture({})).modules[at[2], at[1]] = module
    for name, mixture in found.items():
        block = model.get_submodule(name)
        count, inner, hidden = sizes_of(block) or (0, 0, 0)
        for part, (n, k) in {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}.items():
            for expert in range(count):
                packed = mixture.modules.get((part, expert))
                if packed is None:
                    raise ValueError(f"'{name}' is one layer in transformers, and the artifact packs no {part} of expert {expert} beside others: quantize all")
                _require_size(packed, n, k)
                if packed.bias:
                    raise ValueError(f"packed module '{packed.name}' has a bias, and {type(block).__name__} adds none")
        activation = activation_of(block)
        if activation is None:
            raise ValueError(
                f"'{name}' is a {type(block).__name__} in transformers, which computes other than down(act(gate x) up x) "
                f"with {', '.join(ACTIVATIONS)}: its packed experts do not run there"
            )
        mixture.activation = activation
    return found


def _submodule(model: nn.Module, name: str) -> nn.Module:
    try:
        return model.get_submodule(name)
    except AttributeError:
        return nn.Module()


def _packed(artifact: Artifact, module: Module, device: torch.device, dtype: torch.dtype, expert: bool = False) -> torch.Tensor:
    try:
        if expert:
            return pack_expert(artifact, module.name, n=(0, module.n), k=(0, module.k), device=device, dtype=dtype)
        return pack_module(artifact, module.name, device=device, dtype=dtype)
    except Error as error:
        raise ValueError(f"{artifact.directory} does not run here: {error}") from None


def _layer(artifact: Artifact, module: Module, device: torch.device, dtype: torch.dtype) -> nn.Module:
    if module.layout != "comet" or device.type != "cpu":
        return Linear(_packed(artifact, module, device, dtype))
    try:
        return CometLinear.from_artifact(artifact, module.name)
    except Error as error:
        raise ValueError(f"{artifact.directory} does not run here: {error}") from None


@register_quantizer("lpq")
class LpqQuantizer(HfQuantizer):
    """Puts Linear in the place of every packed module."""

    requires_calibration = True

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Raises ValueError for other devices than the CPU and CUDA's, and for several."""
        places = {str(place) for place in (device_map.values() if isinstance(device_map, dict) else [device_map])}
        if len(places) > 1 or not re.fullmatch(r"None|cpu|auto|cuda(:\d+)?|\d+", next(iter(places))):
            raise ValueError(f"lpq_kernels.transformers runs on the CPU or on one CUDA device, and device_map is {device_map}")

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:
        self.dtype = dtype
        return dtype

    def _cast(self, model: Any) -> None:
        """Gives parameters the type that was asked for: transformers loads those that it renames as they are stored."""
        kept = {*(model._keep_in_fp32_modules or ()), *(model._keep_in_fp32_modules_strict or ())}
        for name, parameter in model.named_parameters():
            if parameter.is_floating_point() and parameter.dtype != self.dtype and not any(part in name for part in kept):
                parameter.data = parameter.data.to(self.dtype)

    def update_device_map(self, device_map: Any) -> Any:
        return {"": "cuda" if torch.cuda.is_available() else "cpu"} if device_map == "auto" else device_map

    def _open(self, model: Any) -> Artifact:
        directory = Path(model.config._name_or_path)
        if not (directory / "lpq.json").is_file():
            raise ValueError(f"{directory} is no local directory with an lpq.json: download the artifact and name its directory")
        try:
            return Artifact(directory)
        except Error as error:
            raise ValueError(f"{directory} does not open: {error}") from None

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        with self._open(model) as artifact:
            ignored, places = [], _places(model, artifact)
            self.mixtures = _mixtures(model, places)
            for name in self.mixtures:
                model.set_submodule(name, _Place())
            for module, place in places:
                if not self._is_expert(place):
                    _require(model, module, place)
                    model.set_submodule(place, _Place())
                ignored += ["^" + re.escape(name) + r"\." for name in {module.name, place}]
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), *ignored}
        return model

    def _is_expert(self, place: str) -> bool:
        at = place_of(place)
        return at is not None and at[0] in self.mixtures

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        with self._open(model) as artifact:
            device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
            for module, place in _places(model, artifact):
                if not self._is_expert(place):
                    model.set_submodule(place, _layer(artifact, module, device, self.dtype))
            for name, mixture in self.mixtures.items():
                count = len(mixture.modules) // 3
                parts = {part: [mixture.modules[part, expert] for expert in range(count)] for part in ("gate", "up", "down")}
                blocks = {part: [_packed(artifact, packed, device, self.dtype, expert=True) for packed in all] for part, all in parts.items()}
                places = getattr(model.config.get_text_config(), "num_experts_per_tok", None) or 1
                model.set_submodule(name, Experts(blocks, mixture.activation, places))
        self._cast(model)
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True
