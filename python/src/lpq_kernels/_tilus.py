"""Codes in the order of layout tilus, by torch, on whatever device they are: docs/internals/layouts/tilus.md of lpq, "Closed forms"."""

from __future__ import annotations

import torch

ROWS, COLUMNS = 32, 128
"""A block's outputs and inputs."""


def places(bits: int) -> list[list[tuple[int, int]]]:
    """Word and bit of a half of each bit of each of the 16 pairs of a chunk: [pair][bit of a code] -> (word, bit)."""
    fields = 16 // bits
    spare = 16 - fields * bits
    made = [[(pair // fields, pair % fields * bits + bit) for bit in range(bits)] for pair in range(min(16, fields * bits))]
    top = 16 - spare
    if bits in (3, 5):
        made.append([(bit, top) for bit in range(bits)])
    if bits == 6:
        for y in range(4):
            made.append([(y, top + bit) for bit in range(4)] + [(4 + y // 2, top + 2 * (y % 2) + bit) for bit in range(2)])
    if bits == 7:
        for y in range(2):
            made.append([(3 * y + bit // 2, top + bit % 2) for bit in range(6)] + [(6, top + y)])
    return made


def packed(codes: torch.Tensor, bits: int) -> torch.Tensor:
    """uint8 [N/32, K/128, 512 bits] of codes uint8 [N, K], raw bit patterns; padding is 0."""
    n, k = codes.shape
    padded = torch.nn.functional.pad(codes, (0, -k % COLUMNS, 0, -n % ROWS))
    tall, wide = padded.shape[0] // ROWS, padded.shape[1] // COLUMNS
    # n' = 8 r + g, k' = 32 chunk + 8 j + 2 t + half; lane = 4 g + t, pair = 4 j + r.
    split = padded.view(tall, 4, 8, wide, 4, 4, 4, 2)
    pairs = split.permute(0, 3, 4, 2, 6, 7, 5, 1).reshape(tall, wide, 4, 32, 2, 16)
    halves = torch.zeros((tall, wide, 4, 32, 2, bits), dtype=torch.int32, device=codes.device)
    for pair, of in enumerate(places(bits)):
        code = pairs[..., pair].to(torch.int32)
        first, start = of[0]
        if of == [(first, start + bit) for bit in range(bits)]:
            halves[..., first] |= code << start
            continue
        for bit, (word, place) in enumerate(of):
            halves[..., word] |= (code >> bit & 1) << place
    words = halves[:, :, :, :, 0] | halves[:, :, :, :, 1] << 16
    # A lane's words by chunk, then word; vectors of four words, interleaved over lanes.
    lanes = words.permute(0, 1, 3, 2, 4).reshape(tall, wide, 32, bits, 4)
    return lanes.permute(0, 1, 3, 2, 4).contiguous().view(torch.uint8).view(tall, wide, 512 * bits)


def sides(values: torch.Tensor) -> torch.Tensor:
    """[N/32, G, 32] of scales or zeros [N, G]: the columns n' % 8 of a lane are neighbours; padding is 0."""
    n, groups = values.shape
    padded = torch.nn.functional.pad(values, (0, 0, 0, -n % ROWS))
    # n' = 8 r + g stands at 4 g + r.
    return padded.view(-1, 4, 8, groups).permute(0, 3, 2, 1).reshape(-1, groups, ROWS).contiguous()


def slice_of(tensor: torch.Tensor, n: tuple[int, int], second: tuple[int, int]) -> torch.Tensor:
    """Rows n[0] to n[1] of W, and blocks or groups second[0] to second[1] of its inputs, of a packed, scales or zeros tensor."""
    return tensor[n[0] // ROWS : -(-n[1] // ROWS), second[0] : second[1]].contiguous()
