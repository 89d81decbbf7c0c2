"""The cache of keys and values, beside codes that are made here from formats/kv/spec.md ("Numbers") and attention in fp64."""

import pytest
import torch

import lpq_kernels as lpq


def codes_and_back(x: torch.Tensor, dim: int, size: int, bits: int) -> torch.Tensor:
    """f16 numbers, in groups of `size` along `dim`, as their codes say; f64, exact: a code times a f16 plus a f16."""
    groups = x.float().unflatten(dim, (-1, size))
    inner = dim + 1
    low, high = groups.amin(inner, keepdim=True), groups.amax(inner, keepdim=True)
    top = float((1 << bits) - 1)
    scale, zero = ((high - low) / top).half(), low.half()
    codes = ((groups - low) / scale.float()).clamp(max=top).round()  # round() takes ties to even
    codes = torch.where(scale > 0, codes, torch.zeros_like(codes))
    return (codes.double() * scale.double() + zero.double()).flatten(dim, inner)


def attention(q, k, v, scale):
    """One query [H, D] over [T, G, D], in f64."""
    each = q.shape[0] // k.shape[1]
    k, v = k.repeat_interleave(each, 1), v.repeat_interleave(each, 1)
    weights = (torch.einsum("hd,thd->ht", q.double(), k) * scale).softmax(-1)
    return torch.einsum("ht,thd->hd", weights, v)


FORMS = [
    {"bits": 4},
    {"bits": 2},
    {"bits": 8, "group": 64},
    {"bits": 8, "value_bits": 4, "residual": 256},
    {"bits": 4, "by_token": True, "group": 32, "page_tokens": 256},
    {"bits": 4, "form": "turbomind"},
    {"bits": 8, "form": "turbomind", "value_bits": 4},
]


def test_sinks_take_part_in_the_softmax():
    draw = torch.Generator().manual_seed(5)
    heads, kv_heads, dim, scale = 4, 2, 64, 0.125
    cache = lpq.KvCache(1, 512, heads=heads, kv_heads=kv_heads, head_dim=dim)
    k, v = (torch.randn((9, kv_heads, dim), generator=draw).half() for _ in range(2))
    cache.fill(0, k, v)
    q, sinks = torch.randn((1, 1, heads, dim), generator=draw).half(), torch.tensor([-2.0, 0.0, 1.0, 3.0])
    scores = torch.einsum("hd,thd->ht", q[0, 0].double(), k.repeat_interleave(2, 1).double()) * scale
    weights = torch.cat((scores, sinks.double()[:, None]), 1).softmax(-1)[:, :-1]
    want = torch.einsum("ht,thd->hd", weights, v.repeat_interleave(2, 1).double())
    # Summed in f64, rounded once to f32.
    torch.testing.assert_close(cache.attend(q.float(), scale, sinks)[0, 0].double(), want, rtol=2**-23, atol=1e-9)
    # The last of two queries sees what the only one saw.
    two = cache.attend(q.float().expand(1, 2, heads, dim), scale, sinks)
    torch.testing.assert_close(two[0, 1].double(), want, rtol=2**-23, atol=1e-9)
    with pytest.raises(lpq.Error, match=r"shape \[3\]"):
        cache.attend(q, scale, sinks[:3])


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_attention_over_what_was_filled_and_appended(form):
    draw = torch.Generator().manual_seed(3)
    heads, kv_heads, dim, steps = 4, 2, 64, 3
    cache = lpq.KvCache(2, 1024, heads=heads, kv_heads=kv_heads, head_dim=dim, **form)
    # One sequence ends a residual just before the last step, which then packs it; the other begins one.
    prompts = (2 * cache.residual - steps + 1, 5) if cache.residual else (70, 5)
    held = []
    for sequence, count in enumerate(prompts):
        k, v = (torch.randn((count, kv_heads, dim), generator=draw).half() for _ in range(2))
        cache.fill(sequence, k, v)
        held.append([k, v])
    for _ in range(steps):
        k, v = (torch.randn((2, kv_heads, dim), generator=draw).half() for _ in range(2))
        cache.append(k, v)
        held = [[torch.cat((old[0], k[i, None])), torch.cat((old[1], v[i, None]))] for i, old in enumerate(held)]
    assert cache.seen.tolist() == [count + steps for count in prompts]
    q = torch.randn((2, 2, heads, dim), generator=draw).half()
    got = {torch.float32: cache.attend(q.float(), 0.2), torch.float16: cache.attend(q, 0.2)}
    whole, bits = form.get("form") == "turbomind", form["bits"]
    for sequence, (k, v) in enumerate(held):
        packed = int(cache.lengths[sequence])
        # The tail is packed when the token after it comes.
        full = max(0, (len(k) - 1) // cache.residual * cache.residual) if cache.residual else len(k)
        assert packed == (full if sequence == 0 or whole else 0)
        group = form.get("group", 32 if bits == 2 else 128)
        value_group = dim if whole else min(group, dim)
        k, v = k.double(), v.double()
        if packed:
            by_dims = whole or form.get("by_token", False)
            k[:packed] = codes_and_back(k[:packed], *((2, value_group) if by_dims else (0, group)), bits)
            v[:packed] = codes_and_back(v[:packed], 2, value_group, form.get("value_bits", bits))
        for query in range(2):
            exact = attention(q[sequence, query], k[: len(k) - 1 + query], v[: len(v) - 1 + query], 0.2)
            for dtype, y in got.items():
                # Sums are f64 here and there: one rounding, and what is below f16's smallest.
                unit, least = (2.0**-24, 2.0**-40) if dtype == torch.float32 else (2.0**-11, 2.0**-25)
                off = (y[sequence, query].double() - exact).abs()
                assert bool((off <= exact.abs() * unit * 1.001 + least).all()), f"{dtype}: {off.max()}"


def test_a_query_that_sees_nothing_is_zero_and_cleared_sequences_begin_again():
    cache = lpq.KvCache(1, 128, heads=2, kv_heads=1, head_dim=64)
    q, k = torch.ones(1, 1, 2, 64), torch.full((9, 1, 64), 0.5)
    assert bool((cache.attend(q) == 0).all())
    cache.fill(0, k, k)
    assert bool((cache.attend(q) == 0.5).all())
    with pytest.raises(lpq.Error, match="sequence 0 holds 9 tokens: clear"):
        cache.fill(0, k, k)
    cache.clear(0)
    assert cache.seen.tolist() == [0]
    cache.fill(0, k, -k)
    assert bool((cache.attend(q) == -0.5).all())


def test_four_bits_take_a_quarter():
    cache = lpq.KvCache(1, 4096, heads=8, kv_heads=8, head_dim=128)
    exact = 2 * 2 * 4096 * 8 * 128
    # 4 of 16 bits, 32 bits for 128 codes of keys and of values, and a block that is exact.
    assert cache.nbytes == exact // 4 + exact // 64 + exact // 32


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bits": 3}, "key_bits is not 2, 4 or 8"),
        ({"head_dim": 100}, "head_dim is not a multiple of 8 from 64 to 512"),
        ({"head_dim": 520}, "head_dim is not a multiple of 8 from 64 to 512"),
        ({"heads": 3}, "heads is no multiple of kv_heads"),
        ({"form": "turbomind", "bits": 2}, "key_bits is not 4 or 8"),
        ({"form": "turbomind", "residual": 64}, "no exact tail"),
        ({"form": "paged"}, "'paged', not one of bitdecoding, turbomind"),
        ({"residual": 100}, "residual is 100, not a multiple of the 128"),
        ({"page_tokens": 100}, "page_tokens is no multiple of 128"),
        ({"sequences": 0}, "holds nothing"),
    ],
)
def test_caches_that_there_are_none_of(change, sentence):
    with pytest.raises(lpq.Error, match=sentence):
        lpq.KvCache(**{"sequences": 1, "tokens": 128, "heads": 4, "kv_heads": 2, "head_dim": 64, **change})


def test_bad_tokens_end_in_a_sentence():
    cache = lpq.KvCache(2, 130, heads=2, kv_heads=2, head_dim=64)
    k = torch.zeros(130, 2, 64)
    with pytest.raises(lpq.Error, match=r"keys have the shape \[130, 2, 32\]"):
        cache.fill(0, k[..., :32], k)
    with pytest.raises(lpq.Error, match="sequence 2 does not exist: the cache has 2"):
        cache.fill(2, k, k)
    with pytest.raises(lpq.Error, match="131 more were given"):
        cache.fill(0, torch.zeros(131, 2, 64), torch.zeros(131, 2, 64))
    with pytest.raises(lpq.Error, match="values hold NaN, infinity or numbers beyond f16"):
        cache.fill(0, k, torch.full_like(k, 1e5))
    cache.fill(0, k, k)
    with pytest.raises(lpq.Error, match="sequence 0 holds 130 of 130 tokens"):
        cache.append(k[:2], k[:2])
    with pytest.raises(lpq.Error, match=r"queries have the shape \[1, 1, 2, 64\]"):
        cache.attend(torch.zeros(1, 1, 2, 64))
    cache.table[0, 0] = 99  # whoever keeps tables of its own
    with pytest.raises(lpq.Error, match="names page 99, which is none"):
        cache.attend(torch.zeros(2, 1, 2, 64))
