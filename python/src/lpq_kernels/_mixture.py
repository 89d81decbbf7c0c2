"""Experts of a mixture on a device: all of a projection in one launch, and rows sorted by expert without a word to the host."""

from __future__ import annotations

from collections.abc import Sequence
from ctypes import byref, c_size_t
from dataclasses import replace

import torch
from torch.nn import functional

from . import _device, _tilus
from ._ctypes import ACTIVATIONS
from ._device import Pieces, Weight
from ._library import Error, MixtureDesc, check, library, sized


def _facts(of: Weight, pieces: Pieces) -> dict[str, object]:
    """What weights that one launch multiplies have in common."""
    return {
        "their sizes": (of.n, of.k),
        "their types": pieces.type,
        "their groups": of.group,
        "the types of their scales": pieces.scales,
        "their zero points": (pieces.zeros, pieces.zero),
        "their biases": of.bias,
        "the type of their inputs": (of.dtype, of.device),
    }


def stack(experts: Sequence[Sequence[torch.Tensor]], places: int = 1) -> torch.Tensor:
    """The block of all experts of a projection, of a block an expert; or of gate and up of every expert, which a mixture gates in one launch.
    `places`: rows of x that a token has at most. Raises Error where blocks are not alike."""
    blocks = [block for each in experts for block in each]
    weights, parts = [_device.of(block) for block in blocks], len(experts[0])
    for i, weight in enumerate(weights):
        if weight.pieces is None or weights[0].pieces is None:
            raise Error("LPQ_ERROR_UNSUPPORTED", f"expert {i // parts} is not of layout tilus, which one launch multiplies")
        known, facts = _facts(weights[0], weights[0].pieces), _facts(weight, weight.pieces)
        what = next((name for name, fact in facts.items() if fact != known[name]), None)
        if what is not None:
            raise Error("LPQ_ERROR_UNSUPPORTED", f"experts 0 and {i // parts} differ in {what}: one launch multiplies experts that are alike")
    first, pieces = weights[0], weights[0].pieces
    assert pieces is not None
    gated, runs = parts == 2, -(-first.n // _tilus.ROWS)
    where, total = [], 0
    for i, (_, size) in enumerate(pieces.places):
        bias = first.bias and i == len(pieces.places) - 1
        each = 2 * _tilus.ROWS * runs if bias and gated else size
        where.append((total, each))
        total += -(-len(blocks) * each // 16) * 16
    made = torch.zeros(total, dtype=torch.uint8, device=blocks[0].device)
    for i, block in enumerate(blocks):
        for (start, each), (at, size) in zip(where, pieces.places, strict=True):
            piece, to = functional.pad(block[at : at + size], (0, each - size)), made[start : start + len(blocks) * each]
            if gated:  # 32 rows of the gate, as many of up, and so on
                to.view(len(experts), runs, 2, each // runs)[i // 2, :, i % 2] = piece.view(runs, -1)
            else:
                to[i * each : (i + 1) * each] = piece
    _device.settled(made.device)
    whole = Pieces(pieces.type, pieces.zero, pieces.scales, pieces.zeros, tuple((start, 0) for start, _ in where))
    weight = replace(first, handle=0, pieces=None, experts=len(experts), gated=gated)
    if gated:
        _device.interleave_gates(made, weight, whole)
    handle = _device.created(made, weight, whole)
    alike = ("tilus", pieces.type, pieces.scales, pieces.zeros)
    return _device.adopt(made, handle, replace(weight, handle=handle.value or 0), alike, places)


def stacked(
    gate: Sequence[torch.Tensor], up: Sequence[torch.Tensor], down: Sequence[torch.Tensor], places: int
) -> tuple[Sequence[torch.Tensor], Sequence[torch.Tensor], Sequence[torch.Tensor]]:
    """What experts() takes of experts with these blocks: one block of gate and up, gated, and one of down, where experts are alike; else the
    same."""
    try:
        both, lowers = stack(list(zip(gate, up, strict=True))), stack([[block] for block in down])
    except Error as error:
        if error.name != "LPQ_ERROR_UNSUPPORTED":
            raise
        return gate, up, down
    _reserve(both, lowers, places)
    return [both], [], [lowers]


def _reserve(both: torch.Tensor, down: torch.Tensor, places: int) -> None:
    """Room for mixtures of these blocks, in CUDA graphs, too."""
    opens, lowers, tokens = _device.of(both), _device.of(down), _device.tokens_reserved()

    def needed() -> int:
        desc, size = sized(MixtureDesc), c_size_t()
        desc.gate_up, desc.down, desc.places, desc.some_none = opens.handle, lowers.handle, places, 1
        check(library.lpq_mixture_sizes(byref(desc), tokens, None, byref(size)))
        return size.value

    key = ("mixture", opens.device, opens.dtype, opens.n, opens.k, lowers.n, opens.group, lowers.group, opens.bits, lowers.bits, opens.experts, places)
    _device.make_room(opens.device, key, tokens, needed)


def experts(
    x: torch.Tensor,
    weights: torch.Tensor,
    ids: torch.Tensor,
    gate: Sequence[torch.Tensor],
    up: Sequence[torch.Tensor],
    down: Sequence[torch.Tensor],
    activation: str,
) -> torch.Tensor:
    """ops.experts() on a device. No step waits for the host, and shapes are those of x and ids, whatever ids hold."""
    if activation not in ACTIVATIONS:
        raise Error("LPQ_ERROR_ARGUMENT", f"'{activation}' is no activation: {', '.join(ACTIVATIONS)}")
    if len(gate) == 1 and _device.of(gate[0]).experts:
        return _grouped(x, weights, ids, gate[0], down[0], activation)
    # Experts that are not alike: every expert of every token, those that a token did not choose times 0.
    act, y = ACTIVATIONS[activation], torch.zeros(x.shape, dtype=torch.float32, device=x.device)
    parts = [[(block, _device.of(block)) for block in blocks] for blocks in (gate, up, down)]

    def product(rows: torch.Tensor, part: tuple[torch.Tensor, Weight]) -> torch.Tensor:
        made: torch.Tensor = torch.ops.lpq_kernels.linear_on_device(rows, part[0], part[1].n, part[1].k)
        return made

    for expert, (opens, raises, lowers) in enumerate(zip(*parts, strict=True)):
        share = torch.where(ids == expert, weights.float(), 0).sum(-1, keepdim=True)
        inner = (act(product(x, opens).float()) * product(x, raises).float()).to(x.dtype)
        y += product(inner, lowers).float() * share
    return y.to(x.dtype)


def _grouped(x: torch.Tensor, weights: torch.Tensor, ids: torch.Tensor, both: torch.Tensor, down: torch.Tensor, activation: str) -> torch.Tensor:
    """One call of the library, which groups rows by expert, multiplies, and adds up each token's in ascending order of experts."""
    # What is no expert becomes their number, which is none.
    chosen = (ids.to(torch.int32) & 0x7FFFFFFF).clamp_(max=_device.of(both).experts)
    made: torch.Tensor = torch.ops.lpq_kernels.mixture_on_device(x, weights.float(), chosen, both, down, list(ACTIVATIONS).index(activation))
    return made
