"""Artifacts of `lpq pack`, whose weights lpq's verifier decoded with code of its own."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

import lpq_kernels as lpq


def names(artifacts):
    return json.loads((artifacts / "cases.json").read_text())


def test_weights_are_what_the_verifier_decodes(artifacts):
    for case in names(artifacts):
        wanted = load_file(artifacts / f"{case['name']}.expected.safetensors")
        seen = 0
        with lpq.Artifact(artifacts / case["name"], check_hashes=True) as artifact:
            for module in artifact.modules():
                exact = wanted[f"{module.name}.weight"]
                got = lpq.Linear.from_artifact(artifact, module.name).weight_rows()
                # Codes and zero points are below 2^bits: two roundings of that many scales, here and there. A group's scale is at most
                # its largest weight, unless all of them are near a zero point that is not the middle; 2^bits covers that.
                bits = int(module.type[1])
                bound = exact.abs().amax(1, keepdim=True) * 2.0 ** (bits - 23)
                assert bool(((got - exact).abs() <= bound).all()), f"{case['name']}: {module.name}"
                seen += 1
        assert seen > 0


def copied(artifacts, to, name="tilus"):
    shutil.copytree(artifacts / name, to)
    return to


def test_damage_ends_in_a_sentence(artifacts, tmp_path):
    with pytest.raises(lpq.Error, match="lpq.json"):
        lpq.Artifact(tmp_path)
    cut = copied(artifacts, tmp_path / "cut")
    weights = cut / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(lpq.Error, match="model.safetensors"):
        lpq.Artifact(cut)
    flipped = copied(artifacts, tmp_path / "flipped")
    content = bytearray((flipped / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (flipped / "model.safetensors").write_bytes(content)
    lpq.Artifact(flipped).close()
    with pytest.raises(lpq.Error, match="is not what lpq.json was written for"):
        lpq.Artifact(flipped, check_hashes=True)
    strange = copied(artifacts, tmp_path / "strange")
    (strange / "lpq.json").write_text((strange / "lpq.json").read_text().replace('"type": "i4"', '"type": "q4"').replace('"type":"i4"', '"type":"q4"'))
    with pytest.raises(lpq.Error, match="'q4' is no quantized type"):
        lpq.Artifact(strange)
    with lpq.Artifact(artifacts / "tilus") as artifact, pytest.raises(lpq.Error, match="no module is called 'nothing'"):
        lpq.Linear.from_artifact(artifact, "nothing")
    with pytest.raises(lpq.Error, match="was closed"):
        artifact.module("nothing")


def test_tensors_come_as_they_are_stored(artifacts):
    with lpq.Artifact(artifacts / "tilus") as artifact:
        stored = load_file(artifacts / "tilus" / "model.safetensors")
        assert artifact.tensors() == sorted(stored)
        for name, value in stored.items():
            assert torch.equal(artifact.tensor(name), value)
