"""A cache of keys and values in few bits, in the host's memory (docs/kv-cache.md; its bytes: formats/kv/spec.md)."""

from __future__ import annotations

from ctypes import byref

import torch

from ._caches import TYPES, argument, half, threads
from ._library import KvBatch, KvDesc, KvInfo, KvPages, check, library, sized

_FORMS = {"bitdecoding": 0, "turbomind": 1}


class KvCache:
    """Keys and values of one layer of `sequences` sequences of up to `tokens` tokens, packed.

    `bits` and `value_bits` (default: `bits`) are 2, 4 or 8; both are the same, or 8 and 4. `form` bitdecoding packs whole blocks of `block`
    tokens and keeps up to `residual` of the newest tokens in f16. Keys have one scale per channel and `group` tokens, or with `by_token` one
    scale per token and `group` dims. `form` turbomind (4 and 8 bits) packs each token when it arrives, with one scale per token and head.
    `fit` looks for the scale and zero of each group with the least squared error; else they are of its smallest and largest number.
    Give keys after the rotary embedding. Heads have 64 to 512 dims, a multiple of 8, and
    are stored as 64, 128, 256 or 512, with zeros behind; `heads` of queries is a multiple of `kv_heads`.

    `pages` holds pages of `page_tokens` tokens (default: one block), as uint8 [pages, bytes] tensors of keys, their scales and zeros, values,
    and their scales and zeros (turbomind: one tensor for all). Sequence s owns pages s P to (s + 1) P, as `table` [sequences, P] says. Raises
    Error, with a sentence, for settings that no cache has, for NaN and numbers beyond f16, and for more tokens than fit. It has no gradients.
    """

    def __init__(
        self,
        sequences: int,
        tokens: int,
        *,
        heads: int,
        kv_heads: int,
        head_dim: int,
        bits: int = 4,
        value_bits: int | None = None,
        form: str = "bitdecoding",
        by_token: bool = False,
        group: int | None = None,
        residual: int | None = None,
        page_tokens: int | None = None,
        fit: bool = False,
    ) -> None:
        if form not in _FORMS:
            raise argument(f"form is {form!r}, not one of {', '.join(_FORMS)}")
        if sequences < 1 or tokens < 1:
            raise argument(f"a cache of {sequences} sequences of {tokens} tokens holds nothing")
        whole = form == "turbomind"
        if whole and (by_token or group is not None or residual):
            raise argument("turbomind has one scale per token and head and no exact tail: by_token, group and residual are bitdecoding's")
        group = group if group is not None else 32 if bits == 2 else 128
        desc, info = sized(KvDesc), sized(KvInfo)
        desc.form, desc.key_bits, desc.value_bits = _FORMS[form], bits, bits if value_bits is None else value_bits
        desc.by_token, desc.heads, desc.kv_heads, desc.head_dim = int(by_token), heads, kv_heads, head_dim
        stored = next((dims for dims in (64, 128, 256, 512) if head_dim <= dims), head_dim)
        desc.key_group = stored if whole else min(group, stored) if by_token else group
        desc.value_group = min(desc.key_group, stored)
        desc.page_tokens, desc.fit = page_tokens or 0, int(fit)
        check(library.lpq_kv_describe(byref(desc), byref(info)))
        desc.page_tokens = page_tokens or info.unit
        self._desc, self.block, self.page_tokens = desc, int(info.block), int(desc.page_tokens)
        self.residual = 0 if whole else self.block if residual is None else residual
        if not whole and (self.residual < 1 or self.residual % self.block):
            raise argument(f"residual is {self.residual}, not a multiple of the {self.block} tokens that are packed together")
        self.heads, self.kv_heads, self.head_dim, self.tokens = heads, kv_heads, head_dim, tokens
        each = -(-tokens // self.page_tokens)
        self.table = torch.arange(sequences * each, dtype=torch.int32).view(sequences, each)
        self.lengths, self.tails = torch.zeros(sequences, dtype=torch.int32), torch.zeros(sequences, dtype=torch.int32)
        self.pages = [torch.zeros((sequences * each, size), dtype=torch.uint8) for size in info.page_bytes if size]
        self.tail_keys = torch.zeros((sequences, self.residual, kv_heads, head_dim), dtype=torch.float16)
        self.tail_values = torch.zeros_like(self.tail_keys)

    def __len__(self) -> int:
        """The number of sequences."""
        return self.table.shape[0]

    @property
    def seen(self) -> torch.Tensor:
        """Tokens of each sequence, packed or exact: int32 [sequences]."""
        return self.lengths + self.tails

    @property
    def nbytes(self) -> int:
        """Bytes of its pages and tails."""
        return sum(each.nbytes for each in (*self.pages, self.tail_keys, self.tail_values))

    def clear(self, sequence: int) -> None:
        """Forgets a sequence's tokens."""
        self._sequence(sequence)
        self.lengths[sequence] = self.tails[sequence] = 0

    def fill(self, sequence: int, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Adds a prompt, [T, kv_heads, head_dim], to an empty sequence: packs whole residuals, and keeps the rest of T exact."""
        self._sequence(sequence)
        if self.seen[sequence] != 0:
            raise argument(f"sequence {sequence} holds {int(self.seen[sequence])} tokens: clear() it first")
        (k, v), count = self._halves(keys, values, None), keys.shape[0]
        self._room(count, sequence)
        left = count % self.residual if self.residual else 0
        packed = count - left
        own = self.table[sequence]
        pages = self._pages()
        arguments = packed, k.data_ptr(), v.data_ptr(), 0, own.data_ptr(), own.numel(), byref(pages), threads()
        check(library.lpq_cpu_kv_pack(byref(self._desc), *arguments))
        if left:
            self.tail_keys[sequence, :left], self.tail_values[sequence, :left] = k[packed:], v[packed:]
        self.lengths[sequence], self.tails[sequence] = packed, left

    def append(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Adds the next token of every sequence, [sequences, kv_heads, head_dim]; packs a full tail first."""
        k, v = self._halves(keys, values, len(self))
        for sequence in range(len(self)):
            self._room(1, sequence)
        pages, batch = self._pages(), self._batch()
        check(library.lpq_cpu_kv_append(byref(self._desc), k.data_ptr(), v.data_ptr(), self.residual, byref(pages), byref(batch), threads()))

    def attend(self, queries: torch.Tensor, scale: float | None = None, sinks: torch.Tensor | None = None) -> torch.Tensor:
        """softmax(q k^T scale) v for the newest Q tokens of every sequence, which the cache holds already: each sees tokens up to its own.

        `queries` [sequences, Q, heads, head_dim] are rounded to f16; `scale` defaults to head_dim^-1/2. Returns the same shape, f16 for f16
        queries and f32 for others, summed in f64; 0 if a query sees no token. `sinks` [heads] is a logit a head that takes part in
        the softmax and has no value.
        """
        wanted = [len(self), queries.shape[1] if queries.dim() == 4 else 1, self.heads, self.head_dim]
        if list(queries.shape) != wanted or wanted[1] == 0:
            raise argument(f"queries have the shape {list(queries.shape)}, not [{wanted[0]}, Q, {self.heads}, {self.head_dim}]")
        q = half(queries, "queries")
        y = torch.empty(wanted, dtype=torch.float16 if queries.dtype == torch.float16 else torch.float32)
        pages, batch = self._pages(), self._batch()
        if sinks is not None:
            if list(sinks.shape) != [self.heads] or not sinks.is_floating_point():
                raise argument(f"sinks have the shape {list(sinks.shape)}: [{self.heads}] floats are needed")
            logits = sinks.detach().to(torch.float32).contiguous()
            batch.sinks, batch.sinks_type = logits.data_ptr(), TYPES[torch.float32]
        factor = self.head_dim**-0.5 if scale is None else scale
        arguments = wanted[1], q.data_ptr(), y.data_ptr(), TYPES[y.dtype], factor, byref(pages), byref(batch), threads()
        check(library.lpq_cpu_kv_decode(byref(self._desc), *arguments))
        return y

    def _sequence(self, sequence: int) -> None:
        if not 0 <= sequence < len(self):
            raise argument(f"sequence {sequence} does not exist: the cache has {len(self)}")

    def _room(self, more: int, sequence: int) -> None:
        held = int(self.seen[sequence])
        if held + more > self.tokens:
            raise argument(f"sequence {sequence} holds {held} of {self.tokens} tokens, and {more} more were given")

    def _halves(self, keys: torch.Tensor, values: torch.Tensor, first: int | None) -> tuple[torch.Tensor, torch.Tensor]:
        for name, tensor in (("keys", keys), ("values", values)):
            wanted = [keys.shape[0] if first is None and keys.dim() else first, self.kv_heads, self.head_dim]
            if list(tensor.shape) != wanted:
                raise argument(f"{name} have the shape {list(tensor.shape)}, not {wanted}")
        return half(keys, "keys"), half(values, "values")

    def _pages(self) -> KvPages:
        made = sized(KvPages)
        made.count = self.pages[0].shape[0]
        for name, page in zip(("keys", "key_numbers", "values", "value_numbers"), self.pages, strict=False):
            setattr(made, name, page.data_ptr())
        return made

    def _batch(self) -> KvBatch:
        made = sized(KvBatch)
        made.sequences, made.table_pages, made.tail_room = *self.table.shape, self.residual
        for name in ("table", "lengths", "tails", "tail_keys", "tail_values"):
            tensor: torch.Tensor = getattr(self, name)
            setattr(made, name, tensor.data_ptr() if tensor.numel() else None)
        return made
