"""Serves directories in vLLM, one after the other, for test/engines: CASES.json -> RESULTS.json.

A case is {"name", "directory", "dtype", "ids", "tokens", "env", "compile"}: variables of the environment, and whether torch.compile makes the
model's graph; its result is {"outcome": "ran", "logprobs": [each token of `ids` but the first], "tokens": [greedy ones]}, or {"outcome":
"refused", "sentence"}.
"""

import gc
import json
import os
import re
import sys

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_LOGGING_LEVEL="ERROR",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)


def sentence(error: BaseException) -> str:
    """The first line of what a user reads, without pydantic's frame and without the folder."""
    text = str(error)
    framed = re.search(r"Value error, (.*?)(?: \[type=|$)", text, re.DOTALL)
    return (framed.group(1) if framed else text).strip().split("\n")[0]


def ran(case: dict) -> dict:
    from vllm import LLM, SamplingParams

    engine = LLM(
        case["directory"],
        dtype=case["dtype"],
        max_model_len=64,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        enforce_eager=not case["compile"],
    )
    wanted = SamplingParams(max_tokens=case["tokens"], temperature=0, ignore_eos=True, prompt_logprobs=0)
    (out,) = engine.generate({"prompt_token_ids": case["ids"]}, wanted, use_tqdm=False)
    told = [place[token].logprob for place, token in zip(out.prompt_logprobs[1:], case["ids"][1:], strict=True)]
    return {"outcome": "ran", "logprobs": told, "tokens": list(out.outputs[0].token_ids)}


def main(cases: str, results: str) -> None:
    made = {}
    with open(cases) as file:
        for case in json.load(file):
            os.environ.update(case["env"])
            try:
                made[case["name"]] = ran(case)
            except Exception as error:
                made[case["name"]] = {"outcome": "refused", "sentence": sentence(error).replace(case["directory"], "DIR")}
            gc.collect()
    with open(results, "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
