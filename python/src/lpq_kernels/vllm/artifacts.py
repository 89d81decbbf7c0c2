"""`quant_method: lpq`: artifacts of `lpq pack --target sm80, sm86, sm89, sm90, marlin, sparse_marlin, turbomind, tilus, comet`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn
from vllm.distributed import get_tensor_model_parallel_rank
from vllm.model_executor.layers.fused_moe import RoutedExperts, UnquantizedFusedMoEMethod
from vllm.model_executor.layers.linear import LinearBase, LinearMethodBase, UnquantizedLinearMethod
from vllm.model_executor.layers.quantization.base_config import QuantizationConfig
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead
from vllm.model_executor.models.utils import WeightsMapper

from .. import ops
from .._library import Error
from .._threads import spread
from ..artifact import Artifact, Module
from ..comet import CometLinear
from .experts import LpqExpertsMethod
from .kernel import FLOATS, ON_DEVICE, here, make_room, opened
from .refusal import Refused, parallel, require_artifact


class LpqConfig(QuantizationConfig):
    """What config.json of an artifact says, and which modules its lpq.json has.

    LPQ_CHECK_HASHES=1 of the environment compares contents with lpq.json first.
    Raises Refused, in one sentence, for what does not open or does not fit the model.
    """

    NAME = "lpq"

    def __init__(self) -> None:
        super().__init__()
        self.directory = ""
        self.modules: dict[str, Module] = {}  # by vLLM's names of them
        self.tensors: set[str] = set()  # the last parts of the names of packed tensors

    def get_name(self) -> str:
        return self.NAME

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> LpqConfig:
        return cls()

    def get_supported_act_dtypes(self) -> list[torch.dtype]:
        return list(FLOATS)

    @classmethod
    def get_min_capability(cls) -> int:
        return -1

    @staticmethod
    def get_config_filenames() -> list[str]:
        return []

    def maybe_update_config(self, model_name: str, hf_config: Any = None, revision: str | None = None) -> None:
        """Opens the artifact, which vLLM names here first, before it starts its workers."""
        directory = Path(model_name)
        if not (directory / "lpq.json").is_file():
            raise Refused(f"{directory} is no local directory with an lpq.json: download the artifact and name its directory")
        try:
            with Artifact(directory) as artifact:
                self.modules = {module.name: module for module in artifact.modules()}
                stored = artifact.tensors()
                require_artifact(artifact, parallel())
        except Error as error:
            raise Refused(f"{directory} does not open: {error}") from None
        self.directory = str(directory)
        for name in stored:
            module, _, last = name.rpartition(".")
            if re.sub(r"\.rank\d+$", "", module) in self.modules and last != "bias":
                self.tensors.add(last)

    def apply_vllm_mapper(self, hf_to_vllm_mapper: WeightsMapper) -> None:
        renamed = {}
        for name, module in self.modules.items():
            renamed.update((each, module) for each in hf_to_vllm_mapper.apply_list([name]))
        self.modules = renamed

    def get_checkpoint_weight_mapper(self) -> WeightsMapper:
        """Keeps packed tensors from vLLM's loaders: what is packed is read from the artifact itself."""
        if not self.tensors:
            return WeightsMapper()
        last = "|".join(re.escape(name) for name in sorted(self.tensors))
        return WeightsMapper(orig_to_new_regex={re.compile(rf"\.(?:{last})$"): None} if last else {})

    def get_cache_scale_mapper(self) -> WeightsMapper:
        """The same for versions of vLLM that ask by this name."""
        return QuantizationConfig.get_cache_scale_mapper() | self.get_checkpoint_weight_mapper()

    def parts(self, prefix: str) -> list[Module]:
        """The modules that vLLM's layer `prefix` is made of, in its order; none where it is not packed."""
        if prefix in self.modules:
            return [self.modules[prefix]]
        parent, _, last = prefix.rpartition(".")
        names = [f"{parent}.{each}" for each in self.packed_modules_mapping.get(last, [])]
        found = [self.modules[name] for name in names if name in self.modules]
        if found and len(found) < len(names):
            whole = next(name for name in names if name not in self.modules)
            beside = f"'{whole}' in floats beside packed '{found[0].name}'"
            raise Refused(f"'{prefix}' is one layer in vLLM, and the artifact leaves {beside}: quantize both")
        return found

    def get_quant_method(self, layer: nn.Module, prefix: str) -> Any:
        if isinstance(layer, RoutedExperts):
            inside = prefix.rsplit(".", 1)[0] + "."
            if not any(name.startswith(inside) and ".experts." in name for name in self.modules):
                return UnquantizedFusedMoEMethod(layer.moe_config)
            return LpqExpertsMethod(self.directory, self.modules, layer, prefix)
        if not isinstance(layer, (LinearBase, ParallelLMHead)):
            return None
        parts = self.parts(prefix)
        if parts:
            return LpqLinearMethod(self.directory, parts)
        return UnquantizedLinearMethod() if isinstance(layer, LinearBase) else None


class LpqLinearMethod(LinearMethodBase):
    """y = x W^T by the packed modules that the layer is made of, side by side along its outputs; types may differ.

    With tensor parallelism a rank packs its share of each: of outputs, or of inputs in whole groups.
    """

    def __init__(self, directory: str, parts: list[Module]) -> None:
        self.directory, self.parts = directory, parts
        self.biased = any(part.bias for part in parts)

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
        n = sum(part.n for part in self.parts)
        # A head has the rows that vLLM pads the vocabulary to; its logits end where the vocabulary does.
        wanted = layer.org_vocab_size if isinstance(layer, ParallelLMHead) else output_size
        replicated = getattr(layer, "num_kv_head_replicas", 1)  # of k and v, which output_size counts once a rank
        if (n != wanted and replicated == 1) or any(part.k != input_size for part in self.parts):
            got = ", ".join(f"'{part.name}' [{part.n}, {part.k}]" for part in self.parts)
            raise Refused(f"config.json makes a layer of [{wanted}, {input_size}] of {got}")
        if self.biased and getattr(layer, "skip_bias_add", False):
            raise Refused(f"the bias of packed module '{self.parts[0].name}' is added by its product, and vLLM adds that of this layer later")
        self.dtype = params_dtype
        make_room()
        rank, self.padded = getattr(layer, "tp_rank", get_tensor_model_parallel_rank()), 0  # heads do not say it in every version
        first = rank * input_size_per_partition if input_size_per_partition != input_size else 0
        self.inputs = (first, first + input_size_per_partition)
        if layer.tp_size == 1 or input_size_per_partition != input_size:
            self.pieces = [(part, 0, part.n) for part in self.parts]
        elif isinstance(layer, ParallelLMHead):
            (count,), (part,) = output_partition_sizes, self.parts
            self.pieces = [(part, min(rank * count, part.n - 1), min((rank + 1) * count, part.n))]
            self.padded = count - (self.pieces[0][2] - self.pieces[0][1])
        else:
            self.pieces = self._shares(rank, layer.tp_size, output_partition_sizes)

    def _shares(self, rank: int, ranks: int, sizes: list[int]) -> list[tuple[Module, int, int]]:
        """The rows of its modules that a rank has, in the layer's order."""
        if len(self.parts) == len(sizes):
            found = []
            for part, size in zip(self.parts, sizes, strict=True):
                same = max(1, ranks * size // part.n)  # ranks that have the same rows: of k and v, where heads are fewer
                found.append((part, rank // same * size, (rank // same + 1) * size))
            return found
        (whole,) = self.parts  # q, k, v or gate, up that the checkpoint has as one
        if sum(sizes) == whole.n:
            return [(whole, 0, whole.n)]
        if sum(sizes) * ranks != whole.n:
            raise Refused(f"packed module '{whole.name}' holds {whole.n} outputs, which {ranks} ranks cannot share: lower --tensor-parallel-size")
        found, start = [], 0
        for size in sizes:
            found.append((whole, start + rank * size, start + (rank + 1) * size))
            start += size * ranks
        return found

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        spread(torch.get_num_threads())
        for i, (part, first, end) in enumerate(self.pieces):
            try:
                artifact = opened(self.directory)
                whole = (first, end) == (0, part.n) and self.inputs == (0, part.k)
                if part.layout == "comet" and whole and not ON_DEVICE:
                    layer.add_module(f"lpq_comet_{i}", CometLinear.from_artifact(artifact, part.name))
                    continue
                there = {"device": here(), "dtype": self.dtype}
                share = {"n": (first, end), "k": self.inputs}
                block = ops.pack_module(artifact, part.name, **there) if whole else ops.pack_share(artifact, part.name, **share, **there)
            except Error as error:
                raise Refused(f"{self.directory} does not run here: '{part.name}': {error}") from None
            layer.register_parameter(f"lpq_block_{i}", nn.Parameter(block, requires_grad=False))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        made = [self._product(layer, x, i) for i in range(len(self.pieces))]
        y = made[0] if len(made) == 1 else torch.cat(made, dim=-1)
        if self.padded:
            y = nn.functional.pad(y, (0, self.padded))
        return y if bias is None or self.biased else y + bias

    def _product(self, layer: nn.Module, x: torch.Tensor, i: int) -> torch.Tensor:
        part, first, end = self.pieces[i]
        if part.layout == "comet" and not ON_DEVICE:
            made: torch.Tensor = getattr(layer, f"lpq_comet_{i}")(x)
            return made
        return ops.linear(x, getattr(layer, f"lpq_block_{i}"), end - first, self.inputs[1] - self.inputs[0])
