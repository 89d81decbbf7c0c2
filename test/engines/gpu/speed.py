"""Tokens a second of vLLM over a checkpoint of random 4-bit weights in gptq's form, groups of 128, that is made here.

Eight blocks are less work than vLLM's Python does for a step, so tokens a second are the host's as much as the kernels'. Beside them stand the
microseconds of a step's graph by itself, on the card and of the host that launches it, and how fast the host was at that moment.

With LPQ_PROFILE=1 also what the card does in a step: the time of all kernels, and of those that take longest.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

GROUP = 128
REPLAYS = 50


def checkpoint(shape: dict[str, Any]) -> Path:
    """A Llama of that shape, made once a machine. What the numbers are does not change a kernel's time; none is infinite or NaN."""
    name = "-".join(str(shape[key]) for key in ("hidden", "intermediate", "heads", "kv_heads", "layers", "vocab"))
    place = Path(tempfile.gettempdir()) / f"lpq-speed-{name}"
    if (place / "config.json").exists():
        return place
    import torch
    from safetensors.torch import save_file

    draw = torch.Generator().manual_seed(0)
    tensors: dict[str, torch.Tensor] = {}
    hidden, inner = shape["hidden"], shape["intermediate"]
    dims = hidden // shape["heads"]
    group = min(GROUP, hidden)

    def linear(module: str, n: int, k: int) -> None:
        tensors[f"{module}.qweight"] = torch.randint(-(1 << 31), (1 << 31) - 1, (k // 8, n), dtype=torch.int32, generator=draw)
        tensors[f"{module}.qzeros"] = torch.full((k // group, n // 8), 0x77777777, dtype=torch.int32)
        # Codes have a deviation of 4.6: products keep the size of their inputs.
        tensors[f"{module}.scales"] = torch.full((k // group, n), 1 / (4.6 * k**0.5), dtype=torch.bfloat16)
        tensors[f"{module}.g_idx"] = torch.arange(k, dtype=torch.int32) // group

    for layer in range(shape["layers"]):
        block = f"model.layers.{layer}"
        for name, n, k in (
            ("self_attn.q_proj", hidden, hidden),
            ("self_attn.k_proj", shape["kv_heads"] * dims, hidden),
            ("self_attn.v_proj", shape["kv_heads"] * dims, hidden),
            ("self_attn.o_proj", hidden, hidden),
            ("mlp.gate_proj", inner, hidden),
            ("mlp.up_proj", inner, hidden),
            ("mlp.down_proj", hidden, inner),
        ):
            linear(f"{block}.{name}", n, k)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{block}.{norm}.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    tensors["model.norm.weight"] = torch.ones(hidden, dtype=torch.bfloat16)
    tensors["model.embed_tokens.weight"] = torch.randn((shape["vocab"], hidden), generator=draw).to(torch.bfloat16)
    place.mkdir(parents=True, exist_ok=True)
    save_file(tensors, place / "model.safetensors")
    config = {
        **{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "tie_word_embeddings": True},
        **{"hidden_size": hidden, "intermediate_size": inner, "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"]},
        **{"num_hidden_layers": shape["layers"], "vocab_size": shape["vocab"], "max_position_embeddings": 2048, "rms_norm_eps": 1e-5},
        **{"hidden_act": "silu", "head_dim": dims, "bos_token_id": 1, "eos_token_id": 2},
        "quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": group, "desc_act": False, "sym": True, "checkpoint_format": "gptq"},
    }
    (place / "config.json").write_text(json.dumps(config))
    return place


def measured(cell: dict[str, Any], device: str, engine_of: Any, kernels_of: Any, runner_of: Any, release: Any) -> dict[str, Any]:
    """Tokens a second of decoding at each batch: prompts of 8 tokens, and the difference of two lengths, which has no prompt in it."""
    from vllm import SamplingParams

    shape = cell["shape"]
    short, long = shape["tokens"]
    most = max(shape["batches"])
    started = time.monotonic()
    engine = engine_of(str(checkpoint(shape)), device, dtype="bfloat16", compiled=True, tokens=8 + long + 8, sequences=most, share=0.5)
    up = time.monotonic() - started

    def seconds(batch: int, tokens: int) -> float:
        prompts = [{"prompt_token_ids": [(31 * row + i) % (shape["vocab"] - 3) + 3 for i in range(8)]} for row in range(batch)]
        wanted = SamplingParams(max_tokens=tokens, min_tokens=tokens, temperature=0, ignore_eos=True, detokenize=False)
        begun = time.perf_counter()
        out = engine.generate(prompts, wanted, use_tqdm=False)
        took = time.perf_counter() - begun
        assert all(len(each.outputs[0].token_ids) == tokens for each in out)
        return took

    try:
        rates: dict[str, float | None] = {}
        steps: dict[str, dict[str, float]] = {}
        for batch in shape["batches"]:
            seconds(batch, short)  # warm
            # The least of three, each way: what else the machine does only adds.
            least = [min(seconds(batch, tokens) for _ in range(3)) for tokens in (short, long)]
            apart = least[1] - least[0]
            rates[str(batch)] = round(batch * (long - short) / apart, 1) if apart > 0 else None  # noise of a machine that is busy
            steps[str(batch)] = {"host_ms": host(), **replayed(runner_of(engine), batch)}
        told = ", ".join(f"{rate} tokens/s at {batch}{card(steps[batch])}" for batch, rate in rates.items())
        profiles = {str(batch): profiled(seconds, batch, short) for batch in shape["batches"]} if os.environ.get("LPQ_PROFILE") else {}
        more = {"profiles": profiles} if profiles else {}
        return {"outcome": "ran", "rates": rates, "steps": steps, **more, "told": told, "kernels": kernels_of(engine), "up": round(up, 1), "shape": shape}
    finally:
        release(engine)


def host() -> float:
    """Milliseconds of a loop of Python that is always the same, the median of many: how busy and how fast the host is now."""

    def once() -> float:
        begun = time.perf_counter()
        sum(i % 7 for i in range(20000))
        return (time.perf_counter() - begun) * 1e3

    return round(statistics.median(once() for _ in range(25)), 3)


def card(step: dict[str, float]) -> str:
    return f" ({step['card_us']:.0f} µs of the card a step)" if "card_us" in step else ""


def replayed(runner: Any, batch: int) -> dict[str, float]:
    """Microseconds of the graph of a decoding step of `batch` sequences, replayed alone: on the card, and of the host, launching it.

    It reads what the last step left in vLLM's buffers, so it follows one of as many sequences. Sampling is not in it. Nothing where vLLM
    captured no such graph.
    """
    graphs = getattr(getattr(runner, "cudagraph_manager", None), "graphs", {})
    graph = next((graph for key, graph in graphs.items() if key.num_reqs == key.num_tokens == batch), None)
    if graph is None:
        return {}
    import torch

    graph.replay()
    torch.cuda.synchronize()
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    first.record()
    for _ in range(REPLAYS):
        graph.replay()
    last.record()
    torch.cuda.synchronize()
    # The host's own time is that of a launch onto an idle card: behind others it may wait for them.
    alone = []
    for _ in range(5):
        begun = time.perf_counter()
        graph.replay()
        alone.append(time.perf_counter() - begun)
        torch.cuda.synchronize()
    return {"card_us": round(first.elapsed_time(last) * 1e3 / REPLAYS, 1), "launch_us": round(statistics.median(alone) * 1e6, 1)}


def profiled(seconds: Any, batch: int, tokens: int) -> dict[str, Any]:
    """Microseconds of a step on the card, its prompt's share included: of all kernels, and of each of the dozen that take longest."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as found:
        seconds(batch, tokens)
    events = sorted(found.key_averages(), key=lambda event: -event.self_device_time_total)
    kernels = [{"name": event.key, "calls": event.count / tokens, "us": round(event.self_device_time_total / tokens, 1)} for event in events[:12]]
    return {"us": round(sum(event.self_device_time_total for event in events) / tokens, 1), "kernels": kernels}
