"""What the plugin refuses, found before vLLM starts its workers, and told in one sentence."""

from __future__ import annotations

import sys
from ctypes import byref, c_size_t
from types import TracebackType
from typing import Any

from vllm.config import VllmConfig
from vllm.platforms import current_platform

from .._library import Error, ModuleInfo, Share, check, library, sized
from ..artifact import Artifact, Module

# What vLLM makes one layer of, and the linears whose inputs ranks share; by the names that checkpoints give them.
FUSED = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
BY_INPUTS = ("o_proj", "down_proj", "out_proj", "w2")


class Refused(ValueError):
    """A sentence for the user: programs that it ends print nothing else."""


def _refusal_in(error: BaseException | None) -> str | None:
    """The sentence of a Refused that an error is, was raised from, or that pydantic keeps."""
    while error is not None:
        if isinstance(error, Refused):
            return str(error)
        listed = getattr(error, "errors", None)
        if callable(listed):
            for each in listed():
                kept = each.get("ctx", {}).get("error") if isinstance(each, dict) else None
                if isinstance(kept, Refused):
                    return str(kept)
        error = error.__cause__ or error.__context__
    return None


def print_sentences() -> None:
    """Has this process end with the sentence alone where a Refused ends it; everything else is printed as before."""
    others = sys.excepthook

    def told(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        sentence = _refusal_in(error)
        if sentence is None:
            others(kind, error, trace)
        else:
            print(f"lpq_kernels: {sentence}", file=sys.stderr)

    sys.excepthook = told


def parallel() -> Any:
    """vLLM's parallel settings while it makes its configuration, which asks a quantization's configuration without them; None elsewhere."""
    frame = sys._getframe(1)
    while frame is not None:
        made = frame.f_locals.get("self")
        if isinstance(made, VllmConfig):
            return made.parallel_config
        frame = frame.f_back  # type: ignore[assignment]
    return None


def require_shares(ranks: int, name: str, k: int, group: int) -> None:
    """Raises Refused unless `ranks` ranks can share the k inputs of a linear in whole groups."""
    if k % ranks or (group > 0 and k // ranks % group):
        whole = f"no whole number of groups of {group}" if group > 0 else "no whole number"
        raise Refused(f"{ranks} ranks cannot share the {k} inputs of '{name}': {k}/{ranks} is {whole}: choose another --tensor-parallel-size")


def _require_product(artifact: Artifact, module: Module, ranks: int) -> None:
    """Raises Error where the library has no product for a module, or for its first rank's share of inputs."""
    size = c_size_t()
    check(library.lpq_cpu_module_bytes(artifact.handle, module.name.encode(), byref(size)))
    if ranks > 1:
        share = sized(Share)
        share.n, share.n_count, share.k, share.k_count = 0, module.n, 0, module.k // ranks
        check(library.lpq_cpu_share_bytes(artifact.handle, module.name.encode(), byref(share), byref(size)))


def _require_on_device(artifact: Artifact, module: Module, ranks: int, by_inputs: bool) -> None:
    """Raises Error or Refused where a device has no product for a module, or for its ranks' shares: whole blocks of layout tilus."""
    info = sized(ModuleInfo)
    check(library.lpq_artifact_module(artifact.handle, module.name.encode(), byref(info)))
    if info.layout == 0:
        raise Refused(f"'{module.name}' has layout {module.layout}, whole and without a permutation or not at all, which no kernel of a device takes")
    if ranks == 1:
        return
    size, unit, what = (module.k, 128, "inputs") if by_inputs else (module.n, 32, "outputs")
    if module.layout != "tilus" or size % (ranks * unit):
        raise Refused(
            f"{ranks} ranks on devices cannot share the {size} {what} of '{module.name}' (layout {module.layout}): "
            f"each takes whole blocks of {unit} of layout tilus"
        )


def require_artifact(artifact: Artifact, settings: Any) -> None:
    """Raises Refused for the first packed module that vLLM's workers could not run with these parallel settings."""
    ranks = settings.tensor_parallel_size if settings is not None else 1
    whole_experts = settings is not None and settings.enable_expert_parallel
    modules = {module.name: module for module in artifact.modules()}
    stored, seen = set(artifact.tensors()), set()
    for name, module in modules.items():
        parent, _, last = name.rpartition(".")
        for part in next((fused for fused in FUSED if last in fused), ()):
            beside = f"{parent}.{part}"
            if beside not in modules and f"{beside}.weight" in stored and ".experts." not in name:
                raise Refused(f"vLLM makes one layer of '{name}' and '{beside}', and the artifact packs only the first: quantize both")
        shares = 1 if whole_experts and ".experts." in name else ranks
        if module.layout == "comet" and (ranks > 1 or ".experts." in name):
            raise Refused(f"'{name}' is packed for W4Ax (comet), which one rank runs here, and no experts: pack for sm80")
        by_inputs = shares > 1 and name.rpartition(".")[2] in BY_INPUTS
        if by_inputs:
            require_shares(shares, name, module.k, module.group)
        size = () if current_platform.is_cpu() else (module.n, module.k)
        alike = (module.layout, module.type, module.group, by_inputs, *size)  # whose bytes the library would read for nothing
        if alike in seen or (module.layout == "comet" and current_platform.is_cpu()):
            continue
        seen.add(alike)
        try:
            if current_platform.is_cpu():
                _require_product(artifact, module, shares if by_inputs else 1)
            else:
                _require_on_device(artifact, module, shares, by_inputs)
        except Error as error:
            raise Refused(f"{artifact.directory} does not run here: '{name}': {error}") from None
