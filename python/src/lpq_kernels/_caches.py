"""What caches in the host's memory share."""

from __future__ import annotations

import torch

from ._library import Error

TYPES = {torch.float16: 1, torch.float32: 3}


def argument(sentence: str) -> Error:
    return Error("LPQ_ERROR_ARGUMENT", sentence)


def half(tensor: torch.Tensor, name: str) -> torch.Tensor:
    """f16, dense. Raises Error for numbers that f16 does not hold."""
    if not tensor.is_floating_point() or tensor.device.type != "cpu":
        raise argument(f"{name} are {tensor.dtype} on {tensor.device}, not floats on the CPU")
    rounded = tensor.detach().to(torch.float16).contiguous()
    if not bool(rounded.isfinite().all()):
        raise argument(f"{name} hold NaN, infinity or numbers beyond f16")
    return rounded


def threads() -> int:
    return torch.get_num_threads()
