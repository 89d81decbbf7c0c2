"""The cache of latents, beside codes that are made here from formats/kv/spec.md and attention in fp64."""

import pytest
import torch

import lpq_kernels as lpq


def read_back(c: torch.Tensor, size: int, bits: int) -> torch.Tensor:
    """f16 latents [T, L] as their codes say, rounded to f16 once; f64."""
    if bits == 16:
        return c.double()
    groups = c.float().unflatten(1, (-1, size))
    low, high = groups.amin(2, keepdim=True), groups.amax(2, keepdim=True)
    top = float((1 << bits) - 1)
    scale = ((high - low) / top).half()
    codes = ((groups - low) / scale.float()).clamp(max=top).round()  # round() takes ties to even
    codes = torch.where(scale > 0, codes, torch.zeros_like(codes))
    exact = (codes.double() * scale.double() + low.double()).flatten(1)
    unit = 2.0 ** (torch.frexp(exact)[1].double() - 11).clamp(min=-24)
    return (exact / unit).round() * unit


FORMS = [{"bits": 4}, {"bits": 2}, {"bits": 8, "group": 64}, {"bits": 16}, {"bits": 4, "page_tokens": 96, "group": 32}]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_attention_over_what_was_filled_and_appended(form):
    draw = torch.Generator().manual_seed(3)
    heads, latent, rotary, scale = 3, 128, 32, 0.1
    cache = lpq.LatentCache(2, 200, heads=heads, latent=latent, rotary=rotary, **form)

    def tokens(count):
        return [torch.randn((count, width), generator=draw).half() for width in (latent, rotary)]

    held = []
    for sequence, count in enumerate((70, 3)):
        c, keys = tokens(count)
        cache.fill(sequence, c[:2], keys[:2])
        cache.fill(sequence, c[2:].float(), keys[2:])
        held.append([c, keys])
    for _ in range(3):
        c, keys = tokens(2)
        cache.append(c, keys)
        held = [[torch.cat((old, new[i, None])) for old, new in zip(one, (c, keys), strict=True)] for i, one in enumerate(held)]
    assert cache.seen.tolist() == [73, 6]
    q = torch.randn((2, 2, heads, latent + rotary), generator=draw).half()
    got = {torch.float32: cache.attend(q.float(), scale), torch.float16: cache.attend(q, scale)}
    for sequence, (c, keys) in enumerate(held):
        values = read_back(c, cache.group, form["bits"])
        rows = torch.cat((values, keys.double()), 1)
        for query in range(2):
            count = len(rows) - 1 + query
            weights = (q[sequence, query].double() @ rows[:count].T * scale).softmax(-1)
            exact = weights @ values[:count]
            for dtype, y in got.items():
                assert y.dtype == dtype
                # Sums are f64 here and there: one rounding, and what is below f16's smallest.
                unit, least = (2.0**-24, 2.0**-40) if dtype == torch.float32 else (2.0**-11, 2.0**-25)
                off = (y[sequence, query].double() - exact).abs()
                assert bool((off <= exact.abs() * unit * 1.001 + least).all()), f"{dtype}: {off.max()}"


def test_attention_in_the_space_of_the_latent_is_that_of_the_heads():
    """What DeepSeek computes of keys and values that W_uk and W_uv make of latents."""
    draw = torch.Generator().manual_seed(4)
    heads, latent, rotary, plain, value, count = 2, 64, 16, 24, 40, 9
    c, keys = (torch.randn((count, width), generator=draw).half() for width in (latent, rotary))
    up, down = (torch.randn((heads, dims, latent), generator=draw).double() / 8 for dims in (plain, value))
    q, turned = (torch.randn((heads, dims), generator=draw).double() for dims in (plain, rotary))
    scale = (plain + rotary) ** -0.5
    cache = lpq.LatentCache(1, count, heads=heads, latent=latent, rotary=rotary, bits=16)
    cache.fill(0, c, keys)
    absorbed = torch.cat((torch.einsum("hp,hpl->hl", q, up), turned), 1)
    made = cache.attend(absorbed[None, None].float(), scale)[0, 0].double()
    got = torch.einsum("hl,hvl->hv", made, down)
    each = torch.cat((torch.einsum("hpl,tl->thp", up, c.double()), keys.double()[:, None].expand(-1, heads, -1)), 2)
    weights = (torch.einsum("hd,thd->ht", torch.cat((q, turned), 1), each) * scale).softmax(-1)
    want = torch.einsum("ht,hvl,tl->hv", weights, down, c.double())
    # Queries in the space of the latent are rounded to f16: 2^-11 of every term of scores below 10.
    torch.testing.assert_close(got, want, rtol=0, atol=1e-2)


def test_a_query_that_sees_nothing_is_zero_and_cleared_sequences_begin_again():
    cache = lpq.LatentCache(1, 64, heads=2, latent=64, rotary=16)
    q, c, keys = torch.ones(1, 1, 2, 80), torch.full((9, 64), 0.5), torch.zeros(9, 16)
    assert bool((cache.attend(q, 1.0) == 0).all())
    cache.fill(0, c, keys)
    assert bool((cache.attend(q, 1.0) == 0.5).all())
    cache.clear(0)
    assert cache.seen.tolist() == [0]
    cache.fill(0, -c, keys)
    assert bool((cache.attend(q, 1.0) == -0.5).all())


def test_a_token_of_deepseek_takes_400_bytes():
    assert lpq.LatentCache(1, 64, heads=128, latent=512, rotary=64).nbytes == 64 * 400
    assert lpq.LatentCache(1, 64, heads=128, latent=512, rotary=64, bits=16).nbytes == 64 * 1152


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bits": 3}, "bits is not 2, 4, 8 or 16"),
        ({"latent": 96}, "latent is not a multiple of 64 from 64 to 512"),
        ({"rotary": 72}, "rotary is not a multiple of 16 from 16 to 64"),
        ({"group": 48}, "group is not 32, 64 or 128"),
        ({"latent": 192, "group": 128}, "does not divide latent"),
        ({"heads": 0}, "heads is not positive"),
        ({"page_tokens": 48}, "page_tokens is no multiple of 32"),
        ({"page_tokens": 0}, "page_tokens is 0"),
        ({"sequences": 0}, "holds nothing"),
    ],
)
def test_caches_that_there_are_none_of(change, sentence):
    with pytest.raises(lpq.Error, match=sentence):
        lpq.LatentCache(**{"sequences": 1, "tokens": 128, "heads": 4, "latent": 128, "rotary": 16, **change})


def test_bad_tokens_end_in_a_sentence():
    cache = lpq.LatentCache(2, 70, heads=2, latent=64, rotary=16)
    c, keys = torch.zeros(70, 64), torch.zeros(70, 16)
    with pytest.raises(lpq.Error, match=r"latents have the shape \[70, 32\]"):
        cache.fill(0, c[:, :32], keys)
    with pytest.raises(lpq.Error, match=r"rotary keys have the shape \[69, 16\]"):
        cache.fill(0, c, keys[1:])
    with pytest.raises(lpq.Error, match="sequence 2 does not exist: the cache has 2"):
        cache.fill(2, c, keys)
    with pytest.raises(lpq.Error, match="71 more were given"):
        cache.fill(0, torch.zeros(71, 64), torch.zeros(71, 16))
    with pytest.raises(lpq.Error, match="rotary keys hold NaN, infinity or numbers beyond f16"):
        cache.fill(0, c, torch.full_like(keys, 1e5))
    cache.fill(0, c, keys)
    with pytest.raises(lpq.Error, match="sequence 0 holds 70 of 70 tokens"):
        cache.append(c[:2], keys[:2])
    with pytest.raises(lpq.Error, match=r"queries have the shape \[1, 1, 2, 80\]"):
        cache.attend(torch.zeros(1, 1, 2, 80), 1.0)
    cache.table[0, 0] = 99  # whoever keeps tables of its own
    with pytest.raises(lpq.Error, match="names page 99, which is none"):
        cache.attend(torch.zeros(2, 1, 2, 80), 1.0)
