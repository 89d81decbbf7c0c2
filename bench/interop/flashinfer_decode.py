"""Decode attention of FlashInfer and of torch over caches of 16 and 8 bits on a GPU, in the shapes of `lpq bench attention`.

    python bench/interop/flashinfer_decode.py

Needs torch with CUDA, nvcc and FlashInfer (0.2.8 compiles its kernels at the first call). Heads of 128, 32 query heads, a page of 16 tokens,
pages in random order. Caches rotate past the L2 cache; the median of 9 replays of a CUDA graph counts. A line of JSON for each cell.
"""

import json

import torch
from replays import median_us

PAGE, DIM, HEADS = 16, 128, 32
SHAPES = [(1, 131072), (8, 32768), (32, 8192)]
L2 = 50 << 20


def microseconds(launch, products: int) -> float:
    for i in range(products):
        launch(i)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(products):
            launch(i)
    return median_us(graph, products)


def flashinfer_us(batch: int, context: int, kv_heads: int, dtype: torch.dtype) -> float:
    import flashinfer

    pages = batch * context // PAGE
    size = pages * 2 * PAGE * kv_heads * DIM * dtype.itemsize
    copies = max(2, -(-4 * L2 // size))
    table = torch.randperm(pages, device="cuda").int()
    starts = torch.arange(0, batch + 1, device="cuda", dtype=torch.int32) * (context // PAGE)
    last = torch.full((batch,), PAGE, device="cuda", dtype=torch.int32)
    q = torch.randn(batch, HEADS, DIM, device="cuda", dtype=torch.float16)
    caches = [
        (torch.randn(pages, 2, PAGE, kv_heads, DIM, device="cuda", dtype=torch.float16) * 0.5).to(dtype)
        for _ in range(copies)
    ]
    wrapper = flashinfer.BatchDecodeWithPagedKVCacheWrapper(
        torch.empty(256 << 20, dtype=torch.uint8, device="cuda"), "NHD", use_tensor_cores=True
    )
    wrapper.plan(starts, table, last, HEADS, kv_heads, DIM, PAGE, q_data_type=torch.float16, kv_data_type=dtype)
    out = torch.empty_like(q)
    return microseconds(lambda i: wrapper.run(q, caches[i % copies], out=out), 2 * copies)


def torch_us(batch: int, context: int, kv_heads: int) -> float:
    size = batch * context * 2 * kv_heads * DIM * 2
    copies = max(2, -(-4 * L2 // size))
    q = torch.randn(batch, HEADS, 1, DIM, device="cuda", dtype=torch.float16)
    caches = [torch.randn(2, batch, kv_heads, context, DIM, device="cuda", dtype=torch.float16) for _ in range(copies)]
    attend = torch.nn.functional.scaled_dot_product_attention
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        return microseconds(lambda i: attend(q, *caches[i % copies], enable_gqa=True), 2 * copies)


for kv_heads in (8, 1):
    for batch, context in SHAPES:
        cell = dict(batch=batch, context=context, heads=HEADS, kvHeads=kv_heads)
        for name, of in (
            ("torchF16Us", lambda: torch_us(batch, context, kv_heads)),
            ("flashinferF16Us", lambda: flashinfer_us(batch, context, kv_heads, torch.float16)),
            ("flashinferF8Us", lambda: flashinfer_us(batch, context, kv_heads, torch.float8_e4m3fn)),
        ):
            try:
                cell[name] = round(of(), 2)
            except Exception as error:  # one form of a peer must not end the others
                cell[name] = str(error)[-300:]
            torch.cuda.empty_cache()
        print(json.dumps(cell), flush=True)
