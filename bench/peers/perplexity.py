"""Perplexity by transformers in fp32: python perplexity.py DIR WINDOWS [FILE.gguf | gptqmodel]. Prints {"ppl"}.

The first token of each window is not scored. GPTQModel's linears (`gptqmodel`), which compute in 16 bits alone, and AutoRound's, which
unpack in every call, are replaced by the weights that they stand for.
"""

import json
import math
import sys

import torch
import transformers

directory, windows, *how = sys.argv[1:]
transformers.logging.set_verbosity_error()
if how == ["gptqmodel"]:
    from gptqmodel import BACKEND, GPTQModel

    model = GPTQModel.load(directory, backend=BACKEND.TORCH, device="cpu", dtype=torch.float16, trust_remote_code=False).model.eval()
else:
    options = {"gguf_file": how[0]} if how else {}
    model = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32, device_map="cpu", **options).eval()
for name, module in list(model.named_modules()):
    if hasattr(module, "dequantize_weight"):
        weight = module.dequantize_weight().T.float().contiguous()
    elif hasattr(module, "qweight"):  # AutoRound's: what it makes of unit vectors
        with torch.no_grad():
            weight = module(torch.eye(module.infeatures)).T.clone()
        weight -= 0 if module.bias is None else module.bias.float()[:, None]
    else:
        continue
    linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias=module.bias is not None)
    linear.weight.data = weight
    if module.bias is not None:
        linear.bias.data = module.bias.float()
    model.set_submodule(name, linear)
torch.nn.Module.float(model)  # transformers refuses what was quantized
with open(windows) as file:
    rows = torch.tensor(json.load(file))
total, count = 0.0, 0
with torch.inference_mode():
    for ids in rows.split(4):
        logits = model(ids, use_cache=False).logits[:, :-1].double()
        told = torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten(), reduction="sum")
        total, count = total + told.item(), count + ids[:, 1:].numel()
print(json.dumps({"ppl": math.exp(total / count), "tokens": count, "transformers": transformers.__version__}))
