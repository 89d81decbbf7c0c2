"""Loads directories in transformers, one after the other, for test/engines; drive_vllm.py says what is read and written.

Outcomes: "ran", or "refused". `import` names a module to import first (lpq_kernels.transformers).
"""

import importlib
import json
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText
from transformers.utils import logging

logging.set_verbosity_error()


def ran(case: dict) -> dict:
    # What also reads images is a class of its own, asked for text here.
    kind = AutoModelForImageTextToText if hasattr(AutoConfig.from_pretrained(case["directory"]), "vision_config") else AutoModelForCausalLM
    model = kind.from_pretrained(case["directory"], dtype=getattr(torch, case["dtype"]))
    model.generation_config.eos_token_id = None  # as many tokens as are asked for, whichever they are
    ids = torch.tensor([case["ids"]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].double().log_softmax(-1)
        whole = model.generate(ids, max_new_tokens=case["tokens"], do_sample=False)
    told = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return {"outcome": "ran", "logprobs": told.tolist(), "tokens": whole[0, ids.shape[1] :].tolist()}


def main(cases: str, results: str, *first: str) -> None:
    for name in first:
        importlib.import_module(name)
    made = {}
    with open(cases) as file:
        for case in json.load(file):
            os.environ.update(case["env"])
            try:
                made[case["name"]] = ran(case)
            except Exception as error:
                made[case["name"]] = {"outcome": "refused", "sentence": str(error).strip().split("\n")[0].replace(case["directory"], "DIR")}
    with open(results, "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
