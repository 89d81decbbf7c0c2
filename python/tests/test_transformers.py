"""Whole artifacts in transformers, beside `lpq logits`."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

import lpq_kernels
import lpq_kernels.transformers  # noqa: F401

IDS = torch.arange(3, 35).reshape(1, 32)


def load(path, **options):
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, **options)


def plain_logits(model):
    """Of transformers' own linears with the weights of the packed ones."""
    for name, layer in list(model.named_modules()):
        if isinstance(layer, lpq_kernels.Linear):
            plain = torch.nn.Linear(layer.k, layer.n, bias=False)
            plain.weight.data = layer.weight_rows()
            model.set_submodule(name, plain)
    with torch.no_grad():
        return model(IDS).logits


def test_logits_are_those_of_lpq(artifacts):
    for case in json.loads((artifacts / "cases.json").read_text()):
        model = load(artifacts / case["name"])
        stored = load_file(artifacts / f"{case['name']}.logits.safetensors")["logits"]
        # `lpq logits` computes with the weights of the codes, which rounded shifts are not: test_artifacts bounds their difference.
        wanted = plain_logits(load(artifacts / case["name"])) if case["shifts"] else stored
        with torch.no_grad():
            got = model(IDS).logits
        # fp32 on both sides, sums of up to 768 products in another order: 768 * 2^-24 = 4.6e-5 of what a layer adds up, through four
        # blocks of two residual sums each, is 4e-4 of the largest logit; twice that, for either side.
        bound = 2 * 4 * 2 * 768 * 2.0**-24 * wanted.abs().max()
        assert bool(((got - wanted).abs() <= bound).all()), f"{case['name']}: {(got - wanted).abs().max()} beyond {bound}"


def test_generate(artifacts):
    model = load(artifacts / "sm90")
    with torch.no_grad():
        whole = model.generate(IDS, max_new_tokens=6, do_sample=False)
        logits = model(whole[:, :-1]).logits[0, IDS.shape[1] - 1 :]
    # The cache of keys and values changes nothing: each token is the best one of the whole text before it, or one as good.
    chosen = logits.gather(1, whole[0, IDS.shape[1] :, None])[:, 0]
    assert bool((chosen >= logits.max(1).values - 1e-3).all())


def test_what_does_not_run_is_refused(artifacts, tmp_path):
    asked = lpq_kernels.transformers.LpqQuantizer.__new__(lpq_kernels.transformers.LpqQuantizer)
    for place in ("xpu", "disk", {"model": "cpu", "lm_head": "cuda:0"}, {"a": 0, "b": 1}):
        with pytest.raises(ValueError, match="runs on the CPU or on one CUDA device, and device_map is"):
            asked.validate_environment(device_map=place)
    for place in (None, "cpu", "auto", "cuda", "cuda:1", {"": 0}):
        asked.validate_environment(device_map=place)
    cut = tmp_path / "cut"
    shutil.copytree(artifacts / "sm90", cut)
    (cut / "model.safetensors").write_bytes((artifacts / "sm90" / "model.safetensors").read_bytes()[:-64])
    with pytest.raises(Exception, match="model.safetensors|header|[Ii]ncomplete"):
        load(cut)
    other = tmp_path / "other"
    shutil.copytree(artifacts / "sm90", other)
    config = json.loads((other / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "intermediate_size": 512}))
    with pytest.raises(ValueError, match=r"down_proj' is \[256, 768\], and config.json makes it \[256, 512\]"):
        load(other)
    renamed = tmp_path / "renamed"
    shutil.copytree(artifacts / "sm90", renamed)
    (renamed / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(ValueError, match="layers.3.* is no layer of LlamaForCausalLM"):
        load(renamed)
