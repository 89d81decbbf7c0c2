"""Loads directories in GPTQModel on a CPU, one after the other, for test/engines; drive_vllm.py says what is read and written."""

import json
import os
import sys

os.environ.update(HF_HUB_OFFLINE="1", GPTQMODEL_CPU_WORKERS="2")

import torch
from gptqmodel import BACKEND, GPTQModel


def ran(case: dict) -> dict:
    backend = BACKEND.TORCH_AWQ if case["directory"].rstrip("/").endswith("awq") else BACKEND.TORCH
    model = GPTQModel.load(case["directory"], backend=backend, device="cpu", dtype=getattr(torch, case["dtype"]), trust_remote_code=False).model
    ids = torch.tensor([case["ids"]])
    with torch.no_grad():
        logprobs = model(ids).logits[0].double().log_softmax(-1)
        whole = model.generate(ids, max_new_tokens=case["tokens"], min_new_tokens=case["tokens"], do_sample=False)
    told = logprobs[:-1].gather(1, ids[0, 1:, None])[:, 0]
    return {"outcome": "ran", "logprobs": told.tolist(), "tokens": whole[0, ids.shape[1] :].tolist()}


def main(cases: str, results: str) -> None:
    made = {}
    with open(cases) as file:
        for case in json.load(file):
            try:
                made[case["name"]] = ran(case)
            except Exception as error:
                made[case["name"]] = {"outcome": "refused", "sentence": str(error).strip().split("\n")[0].replace(case["directory"], "DIR")}
    with open(results, "w") as file:
        json.dump(made, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
