"""transformers opens artifacts of `lpq pack`, on a CPU.

    import lpq_kernels.transformers
    model = AutoModelForCausalLM.from_pretrained("tiny-w4-sm90")

Registers the quantization method `lpq`, which config.json of an artifact names. Linears stay packed; everything else is loaded by
transformers itself. Raises ValueError, in one sentence, for what cannot run so.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming
from transformers.pytorch_utils import Conv1D
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ._library import Error
from .artifact import Artifact, Module
from .modules import Linear


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
    """Stands where a packed linear will, while transformers loads the rest: it has nothing to load."""

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


def _require(model: nn.Module, module: Module, place: str) -> None:
    """Raises ValueError if the model has no layer of that name and size."""
    try:
        layer = model.get_submodule(place)
    except AttributeError:
        raise ValueError(
            f"packed module '{module.name}' is no layer of {type(model).__name__} in transformers, "
            "which keeps experts of a mixture, and parts of some models, under other names: this artifact does not run there"
        ) from None
    if isinstance(layer, nn.Linear):
        n, k = layer.out_features, layer.in_features
    elif isinstance(layer, Conv1D):
        n, k = layer.nf, layer.nx
    elif isinstance(layer, (_Place, Linear)):
        raise ValueError(f"packed module '{module.name}' names a layer that another packed module names, too")
    else:
        raise ValueError(f"packed module '{module.name}' is a {type(layer).__name__} in transformers, not a linear")
    if (n, k) != (module.n, module.k):
        raise ValueError(f"packed module '{module.name}' is [{module.n}, {module.k}], and config.json makes it [{n}, {k}]")


@register_quantizer("lpq")
class LpqQuantizer(HfQuantizer):
    """Puts Linear in the place of every packed module."""

    requires_calibration = True

    def validate_environment(self, *args: Any, device_map: Any = None, **kwargs: Any) -> None:
        """Raises ValueError for another device than the CPU."""
        places = device_map.values() if isinstance(device_map, dict) else [device_map]
        if any(str(place) not in ("None", "cpu", "auto") for place in places):
            raise ValueError(f"lpq_kernels.transformers runs on the CPU, and device_map is {device_map}")

    def update_device_map(self, device_map: Any) -> Any:
        return {"": "cpu"} if device_map == "auto" else device_map

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
            ignored = []
            for module, place in _places(model, artifact):
                _require(model, module, place)
                model.set_submodule(place, _Place())
                ignored += ["^" + re.escape(name) + r"\." for name in {module.name, place}]
        model._keys_to_ignore_on_load_unexpected = {*(model._keys_to_ignore_on_load_unexpected or ()), *ignored}
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        with self._open(model) as artifact:
            for module, place in _places(model, artifact):
                try:
                    model.set_submodule(place, Linear.from_artifact(artifact, module.name))
                except Error as error:
                    raise ValueError(f"{artifact.directory} does not run here: {error}") from None
        return model

    def is_serializable(self, *args: Any, **kwargs: Any) -> bool:
        return False

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True
