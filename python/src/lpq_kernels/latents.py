"""A cache of latents in few bits (MLA), in the host's memory (docs/kv-cache.md; its bytes: formats/kv/spec.md, "latent")."""

from __future__ import annotations

from ctypes import byref

import torch

from ._caches import TYPES, argument, half, threads
from ._library import LatentBatch, LatentDesc, LatentInfo, LatentPages, check, library, sized


class LatentCache:
    """Latents and rotary keys of one layer of latent attention, of `sequences` sequences of up to `tokens` tokens, packed.

    A token's latent, `latent` dims as kv_b reads them (normalised), is key and value of all heads; `bits` are 2, 4, 8, or 16 for latents as they
    are. `group` dims share a scale and a zero: 32, 64 or 128, a divisor of `latent` (default: the largest up to 128, or 32 with 2 bits). The rotary
    key, `rotary` dims, stays f16: give it after the rotary embedding. `latent` is a multiple of 64 up to 512, `rotary` a multiple of 16
    up to 64: put zeros behind fewer dims.

    `pages` holds pages of `page_tokens` tokens (a multiple of 32), uint8 [pages, bytes]. Sequence s owns pages s P to (s + 1) P, as `table`
    [sequences, P] says. Raises Error, with a sentence, for settings that no cache has, for NaN and numbers beyond f16, and for more tokens than
    fit. It has no gradients.
    """

    def __init__(
        self,
        sequences: int,
        tokens: int,
        *,
        heads: int,
        latent: int,
        rotary: int,
        bits: int = 4,
        group: int | None = None,
        page_tokens: int = 64,
    ) -> None:
        if sequences < 1 or tokens < 1:
            raise argument(f"a cache of {sequences} sequences of {tokens} tokens holds nothing")
        if page_tokens < 1:
            raise argument(f"page_tokens is {page_tokens}, not a multiple of 32")
        most = 32 if bits == 2 else 128
        desc, info = sized(LatentDesc), sized(LatentInfo)
        desc.bits, desc.latent, desc.rotary, desc.heads, desc.page_tokens = bits, latent, rotary, heads, page_tokens
        desc.group = next((size for size in (128, 64, 32) if size <= most and latent % size == 0), 32) if group is None else group
        check(library.lpq_latent_describe(byref(desc), byref(info)))
        self._desc, self.page_tokens, self.group = desc, page_tokens, int(desc.group)
        self.heads, self.latent, self.rotary, self.bits, self.tokens = heads, latent, rotary, bits, tokens
        each = -(-tokens // page_tokens)
        self.table = torch.arange(sequences * each, dtype=torch.int32).view(sequences, each)
        self.lengths = torch.zeros(sequences, dtype=torch.int32)
        self.pages = torch.zeros((sequences * each, info.page_bytes), dtype=torch.uint8)

    def __len__(self) -> int:
        """The number of sequences."""
        return self.table.shape[0]

    @property
    def seen(self) -> torch.Tensor:
        """Tokens of each sequence: int32 [sequences]."""
        return self.lengths.clone()

    @property
    def nbytes(self) -> int:
        """Bytes of its pages."""
        return self.pages.nbytes

    def clear(self, sequence: int) -> None:
        """Forgets a sequence's tokens."""
        self._sequence(sequence)
        self.lengths[sequence] = 0

    def fill(self, sequence: int, latents: torch.Tensor, keys: torch.Tensor) -> None:
        """Adds tokens, latents [T, latent] and rotary keys [T, rotary], behind those that the sequence holds: a prompt, or a part of one."""
        self._sequence(sequence)
        count, first = latents.shape[0] if latents.dim() else 0, int(self.lengths[sequence])
        c, rotary = self._halves(latents, keys, count)
        self._room(count, sequence)
        own, pages = self.table[sequence], self._pages()
        arguments = count, c.data_ptr(), rotary.data_ptr(), first, own.data_ptr(), own.numel(), byref(pages), threads()
        check(library.lpq_cpu_latent_pack(byref(self._desc), *arguments))
        self.lengths[sequence] = first + count

    def append(self, latents: torch.Tensor, keys: torch.Tensor) -> None:
        """Adds the next token of every sequence, latents [sequences, latent] and rotary keys [sequences, rotary]."""
        c, rotary = self._halves(latents, keys, len(self))
        for sequence in range(len(self)):
            self._room(1, sequence)
        pages, batch = self._pages(), self._batch()
        check(library.lpq_cpu_latent_append(byref(self._desc), c.data_ptr(), rotary.data_ptr(), byref(pages), byref(batch), threads()))

    def attend(self, queries: torch.Tensor, scale: float) -> torch.Tensor:
        """softmax(q k^T scale) c for the newest Q tokens of every sequence, which the cache holds already: each sees tokens up to its own.

        `queries` [sequences, Q, heads, latent + rotary] are those of the heads times W_uk, then their rotary dims; they are rounded to f16. Returns
        [sequences, Q, heads, latent], which W_uv turns into the heads' results: f16 for f16 queries and f32 for others, summed in f64; 0
        if a query sees no token. `scale` is that of the model: of the dims before W_uk, not of these.
        """
        width = self.latent + self.rotary
        wanted = [len(self), queries.shape[1] if queries.dim() == 4 else 1, self.heads, width]
        if list(queries.shape) != wanted or wanted[1] == 0:
            raise argument(f"queries have the shape {list(queries.shape)}, not [{wanted[0]}, Q, {self.heads}, {width}]")
        q = half(queries, "queries")
        y = torch.empty([*wanted[:3], self.latent], dtype=torch.float16 if queries.dtype == torch.float16 else torch.float32)
        pages, batch = self._pages(), self._batch()
        arguments = wanted[1], q.data_ptr(), y.data_ptr(), TYPES[y.dtype], scale, byref(pages), byref(batch), threads()
        check(library.lpq_cpu_latent_decode(byref(self._desc), *arguments))
        return y

    def _sequence(self, sequence: int) -> None:
        if not 0 <= sequence < len(self):
            raise argument(f"sequence {sequence} does not exist: the cache has {len(self)}")

    def _room(self, more: int, sequence: int) -> None:
        held = int(self.lengths[sequence])
        if held + more > self.tokens:
            raise argument(f"sequence {sequence} holds {held} of {self.tokens} tokens, and {more} more were given")

    def _halves(self, latents: torch.Tensor, keys: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        for name, tensor, width in (("latents", latents, self.latent), ("rotary keys", keys, self.rotary)):
            if list(tensor.shape) != [count, width]:
                raise argument(f"{name} have the shape {list(tensor.shape)}, not {[count, width]}")
        return half(latents, "latents"), half(keys, "rotary keys")

    def _pages(self) -> LatentPages:
        made = sized(LatentPages)
        made.count, made.data = self.pages.shape[0], self.pages.data_ptr()
        return made

    def _batch(self) -> LatentBatch:
        made = sized(LatentBatch)
        made.sequences, made.table_pages = self.table.shape
        made.table, made.lengths = self.table.data_ptr(), self.lengths.data_ptr()
        return made
