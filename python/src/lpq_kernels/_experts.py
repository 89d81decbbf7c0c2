"""Experts of a mixture in transformers, which holds those of a block as one module with two tensors."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from . import ops

# An expert's linears by the names that checkpoints give them.
PARTS = {"gate_proj": "gate", "w1": "gate", "up_proj": "up", "w3": "up", "down_proj": "down", "w2": "down"}
_PARTS = ("gate", "up", "down")
_PLACE = re.compile(rf"(?P<block>.+)\.(?P<expert>\d+)\.(?P<part>{'|'.join(PARTS)})")


def place_of(name: str) -> tuple[str, int, str] | None:
    """The block, the expert and which of PARTS' values a linear's name says; None where it says none."""
    found = _PLACE.fullmatch(name)
    return None if found is None else (found["block"], int(found["expert"]), PARTS[found["part"]])


def sizes_of(block: nn.Module) -> tuple[int, int, int] | None:
    """How many experts a module of transformers holds, their inner size and the model's; None where it holds them otherwise."""
    gate_up, down = (getattr(block, name, None) for name in ("gate_up_proj", "down_proj"))
    if not isinstance(gate_up, nn.Parameter) or not isinstance(down, nn.Parameter) or gate_up.dim() != 3 or len(list(block.parameters())) != 2:
        return None
    count, both, hidden = gate_up.shape
    return (count, both // 2, hidden) if down.shape == (count, hidden, both // 2) else None


def activation_of(block: nn.Module) -> str | None:
    """Which of ops.ACTIVATIONS a block computes down(act(gate x) up x) with, by running its own code on small numbers; None for other sums."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.device("cpu"), torch.no_grad():
            return _computed(block)
    finally:
        torch.set_default_dtype(before)


def _computed(block: nn.Module) -> str | None:
    count = block.gate_up_proj.shape[0]
    draw = torch.Generator().manual_seed(0)
    gate_up, down = torch.randn((count, 6, 4), generator=draw) * 2, torch.randn((count, 4, 3), generator=draw)
    x, shares = torch.randn((5, 4), generator=draw) * 2, torch.rand((5, 2), generator=draw)
    ids = torch.stack([torch.arange(5) % count, (torch.arange(5) + 1) % count], 1)
    probe = copy.copy(block)
    probe._parameters = {name: nn.Parameter(value, requires_grad=False) for name, value in (("gate_up_proj", gate_up), ("down_proj", down))}
    if hasattr(block, "config"):  # the class's own code, not one of transformers' others for the same sums
        probe.config = copy.copy(block.config)
        probe.config._experts_implementation = "eager"
    try:
        got = probe.forward(x, ids, shares)
    except (RuntimeError, TypeError, AttributeError, ValueError):
        return None
    for name, act in ops.ACTIVATIONS.items():
        inner = [act(functional.linear(x[t], gate_up[e, :3])) * functional.linear(x[t], gate_up[e, 3:]) for t in range(5) for e in ids[t].tolist()]
        wanted = torch.stack([functional.linear(row, down[e]) for row, e in zip(inner, ids.flatten().tolist(), strict=True)]).view(5, 2, 4)
        # GELU's two forms differ by up to 5e-4.
        if got.shape == x.shape and torch.allclose(got, (wanted * shares[..., None]).sum(1), rtol=1e-5, atol=1e-5):
            return name
    return None


class Experts(nn.Module):
    """The packed experts of a block; transformers routes. `blocks` maps gate, up and down to a block an expert (ops.py); a token has `places`."""

    def __init__(self, blocks: Mapping[str, list[torch.Tensor]], activation: str, places: int = 1) -> None:
        super().__init__()
        self.num_experts, self.activation = len(blocks["gate"]), activation
        stacked = ops.stacked(blocks["gate"], blocks["up"], blocks["down"], places=places)
        self.counts = [len(packed) for packed in stacked]
        for part, packed in zip(_PARTS, stacked, strict=True):
            for i, block in enumerate(packed):
                self.register_buffer(f"{part}_{i}", block)

    def forward(self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        blocks = [[getattr(self, f"{part}_{i}") for i in range(count)] for part, count in zip(_PARTS, self.counts, strict=True)]
        ids = torch.where(top_k_index < self.num_experts, top_k_index, -1)  # one beyond the last: none
        return ops.experts(hidden_states, top_k_weights, ids, *blocks, self.activation)

    def extra_repr(self) -> str:
        return f"{self.num_experts}, activation={self.activation}"
