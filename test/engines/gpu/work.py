"""Cells of one process, for drive.py: FILE -> a line of JSON a cell on standard output, as soon as it is known."""

from __future__ import annotations

import gc
import importlib
import json
import re
import sys
import time
import traceback
from typing import Any

MARK = "@@cell "


def sentence(error: BaseException) -> str:
    """The first line of what a user reads, without pydantic's frame."""
    text = str(error)
    framed = re.search(r"Value error, (.*?)(?: \[type=|$)", text, re.DOTALL)
    told = (framed.group(1) if framed else text).strip().split("\n")[0]
    return f"{type(error).__name__}: {told}"[:600]


def judged(expected: dict[str, Any], logprobs: list[float], tokens: list[int], rounds: bool) -> dict[str, Any]:
    """How far logprobs of the prompt and greedy tokens are from lpq's.

    Tokens are compared up to the first that differs: what follows has another text before it. That one must be among lpq's likeliest, no further
    behind its best than two logprobs may be off. Where the engine rounds activations, which lpq's logits do not (`rounds`), nothing is required.
    """
    bound = expected["bound"]
    apart = [abs(told - own) for told, own in zip(logprobs, expected["logprobs"], strict=True)]
    off, mean = max(apart), sum(apart) / len(apart)
    equal = next((i for i, (told, own) in enumerate(zip(tokens, expected["tokens"])) if told != own), len(tokens))
    result = {"outcome": "ran", "off": off, "mean": mean, "bound": bound, "equal": equal, "of": len(expected["tokens"]), "tokens": tokens}
    if rounds:
        return {**result, "rounds": True}
    if not off <= bound:
        return {**result, "outcome": "differs", "reason": f"a logprob is {off:.3g} off, beyond {bound:.3g}"}
    if equal < len(tokens):
        best = dict(map(tuple, expected["best"][equal]))
        behind = max(best.values()) - best.get(tokens[equal], float("-inf"))
        if behind > 2 * bound:
            return {**result, "outcome": "differs", "reason": f"greedy token {equal} is {tokens[equal]}, {behind:.3g} behind lpq's best"}
        result["behind"] = behind
    return result


def kernels_of(engine: Any) -> list[str]:
    """Which kernels and methods vLLM chose for packed layers, by class."""
    found: set[str] = set()

    def look(model: Any) -> None:
        for layer in model.modules():
            method = getattr(layer, "quant_method", None)
            kernel = getattr(getattr(layer, "scheme", None), "kernel", None) or getattr(method, "kernel", None)
            name = type(kernel or method).__name__
            if method is not None and not name.startswith("Unquantized"):
                found.add(name)

    model = getattr(runner_of(engine), "model", None)
    if model is not None:
        look(model)
    return sorted(found)


def runner_of(engine: Any) -> Any:
    """vLLM's model runner where it is in this process; else None."""
    try:
        return engine.llm_engine.model_executor.driver_worker.worker.model_runner
    except AttributeError:
        return None


def engine_of(
    directory: str, device: str, *, dtype: str, ranks: int = 1, compiled: bool = False, tokens: int = 128, sequences: int = 4, share: float = 0.08
) -> Any:
    """An engine with a small share of the card, so that one whose memory comes back late is in nobody's way.

    The cache's size is told, but for a large share: vLLM measures it only where no other process gives memory back meanwhile.
    """
    from vllm import LLM

    collect()
    more: dict[str, Any] = {}
    if device == "cuda":
        more["gpu_memory_utilization"] = share
        if share < 0.5:
            more["kv_cache_memory_bytes"] = 1 << 28
    if ranks > 1:
        more.update(tensor_parallel_size=ranks, distributed_executor_backend="mp", disable_custom_all_reduce=True)
    return LLM(
        directory,
        dtype=dtype,
        max_model_len=tokens,
        max_num_seqs=sequences,
        max_num_batched_tokens=max(tokens, 8 * sequences),
        enforce_eager=not compiled,
        skip_tokenizer_init=True,
        disable_log_stats=True,
        **more,
    )


def vllm(cell: dict[str, Any], device: str) -> dict[str, Any]:
    from vllm import SamplingParams

    expected = cell["expected"]
    started = time.monotonic()
    engine = engine_of(cell["directory"], device, dtype=cell["dtype"], ranks=cell["ranks"], compiled=cell["compiled"])
    up = time.monotonic() - started
    try:
        wanted = SamplingParams(max_tokens=len(expected["tokens"]), temperature=0, ignore_eos=True, prompt_logprobs=0, detokenize=False)
        (out,) = engine.generate({"prompt_token_ids": expected["ids"]}, wanted, use_tqdm=False)
        told = [place[token].logprob for place, token in zip(out.prompt_logprobs[1:], expected["ids"][1:], strict=True)]
        made = judged(expected, told, list(out.outputs[0].token_ids), cell["rounds"])
        return {**made, "kernels": kernels_of(engine), "up": round(up, 1)}
    finally:
        release(engine)


def release(engine: Any) -> None:
    """Ends an engine, so that the next one has the memory."""
    try:
        engine.llm_engine.engine_core.shutdown()
    except AttributeError:
        pass
    del engine
    collect()


def collect() -> None:
    """Gives back what no object holds."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def transformers(cell: dict[str, Any], device: str) -> dict[str, Any]:
    import torch

    importlib.import_module("lpq_kernels.transformers")
    from transformers import AutoModelForCausalLM

    expected = cell["expected"]
    place = {} if device == "cpu" else {"device_map": device}
    model = AutoModelForCausalLM.from_pretrained(cell["directory"], dtype=getattr(torch, cell["dtype"]), **place)
    model.generation_config.eos_token_id = None
    ids = torch.tensor([expected["ids"]], device=device)
    with torch.no_grad():
        logprobs = model(ids).logits[0].double().log_softmax(-1)
        whole = model.generate(ids, max_new_tokens=len(expected["tokens"]), do_sample=False, pad_token_id=0)
    told = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0]
    made = judged(expected, told.tolist(), whole[0, ids.shape[1] :].tolist(), cell["rounds"])
    return {**made, "model": type(model).__name__}


def speed(cell: dict[str, Any], device: str) -> dict[str, Any]:
    from speed import measured

    return measured(cell, device, engine_of, kernels_of, runner_of, release)


def cost(cell: dict[str, Any], device: str) -> dict[str, Any]:
    import cost as module

    made: dict[str, Any] = getattr(module, cell["worker"])(cell, device)
    return made


WORKERS = {"vllm": vllm, "transformers": transformers, "speed": speed, "entry": cost, "call": cost}


def main(file: str) -> None:
    with open(file) as given:
        work = json.load(given)
    for cell in work["cells"]:
        try:
            result = WORKERS[cell["worker"]](cell, work["device"])
        except Exception as error:  # noqa: BLE001 - one cell of many
            outcome = "refused" if isinstance(error, (ValueError, NotImplementedError)) else "failed"
            result = {"outcome": outcome, "reason": sentence(error)}
            traceback.print_exc()
            print(f"{cell['name']}: {result['reason']}", file=sys.stderr)
            gc.collect()
        sys.stderr.flush()
        print(MARK + json.dumps(result), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
