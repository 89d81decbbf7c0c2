"""A GGUF in BF16 of a checkpoint, by llama.cpp's own converter: python drive_gguf.py LLAMA_CPP MODEL OUT.

A tokenizer that the converter does not know is written as GPT-2's: quantizing does not read it. None of the models has one of sentencepiece.
"""

import sys

source, model, out = sys.argv[1:]
sys.path.insert(0, source)
sys.argv = ["convert_hf_to_gguf.py", model, "--outfile", out, "--outtype", "bf16"]
import convert_hf_to_gguf as converter
from conversion.base import TextModel

known = TextModel.get_vocab_base_pre


def get_vocab_base_pre(self, tokenizer) -> str:
    try:
        return known(self, tokenizer)
    except NotImplementedError:
        return "gpt-2"


def no_sentencepiece(self, *args, **kwargs):
    raise FileNotFoundError


TextModel.get_vocab_base_pre = get_vocab_base_pre
TextModel._set_vocab_sentencepiece = no_sentencepiece
converter.main()
