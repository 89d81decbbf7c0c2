"""Artifacts of `lpq pack`, whose weights lpq's verifier decoded with code of its own."""

import json
import re
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
                if case["shifts"]:
                    # -zero * scale in f16: half a unit of eleven bits of it. Of 16 outputs, n and n + 8 are neighbours.
                    shifts = artifact.tensor(f"{module.name}.scales_zeros").float()[..., 1]
                    shifts = shifts.view(shifts.shape[0], -1, 8, 2).transpose(2, 3).reshape(shifts.shape[0], -1)
                    bound = bound + (shifts.abs() * 2.0**-11).t().repeat_interleave(module.group, 1)[: module.n]
                    assert bool((got != exact).any()), "no shift was rounded: the bound is not needed"
                assert bool(((got - exact).abs() <= bound).all()), f"{case['name']}: {module.name}"
                seen += 1
        assert seen > 0


def copied(artifacts, to, name="tilus"):
    shutil.copytree(artifacts / name, to)
    return to


def test_damage_ends_in_a_sentence(artifacts, tmp_path, monkeypatch):
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
    monkeypatch.setenv("LPQ_CHECK_HASHES", "1")
    with pytest.raises(lpq.Error, match="is not what lpq.json was written for"):
        lpq.Artifact(flipped)
    lpq.Artifact(flipped, check_hashes=False).close()
    monkeypatch.delenv("LPQ_CHECK_HASHES")
    strange = copied(artifacts, tmp_path / "strange")
    (strange / "lpq.json").write_text((strange / "lpq.json").read_text().replace('"type": "i4"', '"type": "q4"').replace('"type":"i4"', '"type":"q4"'))
    with pytest.raises(lpq.Error, match="'q4' is no quantized type"):
        lpq.Artifact(strange)
    with lpq.Artifact(artifacts / "tilus") as artifact, pytest.raises(lpq.Error, match="no module is called 'nothing'"):
        lpq.Linear.from_artifact(artifact, "nothing")
    with pytest.raises(lpq.Error, match="was closed"):
        artifact.module("nothing")


def test_what_lpq_verify_does_not_pass_is_refused(artifacts, tmp_path, monkeypatch):
    monkeypatch.setenv("LPQ_REQUIRE_VERIFY", "1")
    lpq.Artifact(artifacts / "tilus").close()
    changed = copied(artifacts, tmp_path / "changed")
    content = bytearray((changed / "model.safetensors").read_bytes())
    content[-1] ^= 1
    (changed / "model.safetensors").write_bytes(content)
    with pytest.raises(lpq.Error, match="lpq verify does not pass it: .*v_proj") as refused:
        lpq.Artifact(changed)
    assert "\n" not in str(refused.value)
    monkeypatch.setenv("LPQ_COMMAND", str(tmp_path / "absent"))
    with pytest.raises(lpq.Error, match="absent' does not run"):
        lpq.Artifact(copied(artifacts, tmp_path / "again"))


def test_tensors_come_as_they_are_stored(artifacts):
    with lpq.Artifact(artifacts / "tilus") as artifact:
        stored = load_file(artifacts / "tilus" / "model.safetensors")
        assert artifact.tensors() == sorted(stored)
        for name, value in stored.items():
            assert torch.equal(artifact.tensor(name), value)


def test_shares_are_parts_of_the_whole(artifacts):
    for case in names(artifacts):
        with lpq.Artifact(artifacts / case["name"]) as artifact:
            name = "model.layers.0.mlp.down_proj"
            whole = lpq.Linear.from_artifact(artifact, name)
            rows = whole.weight_rows()
            shares = ((0, 128), (0, 768)), ((128, 256), (0, 768)), ((0, 256), (384, 768)), ((64, 128), (256, 512))
            for n, k in shares:
                part = lpq.Linear(lpq.pack_share(artifact, name, n=n, k=k))
                assert torch.equal(part.weight_rows(), rows[n[0] : n[1], k[0] : k[1]])


def test_shares_that_there_are_none_of(artifacts):
    with lpq.Artifact(artifacts / "tilus") as artifact:
        with pytest.raises(lpq.Error, match="no whole number of groups of 64"):
            lpq.pack_share(artifact, "model.layers.0.mlp.down_proj", n=(0, 256), k=(0, 96))
        with pytest.raises(lpq.Error, match=r"not inside the module's \[256, 768\]"):
            lpq.pack_share(artifact, "model.layers.0.mlp.down_proj", n=(128, 257), k=(0, 768))


@pytest.mark.parametrize(("key", "value", "wrong"), [("count", "2", "5"), ("count", "2", "0"), ("split", '"k"', '"m"')])
def test_ranks_that_cannot_share_a_module(artifacts, tmp_path, key, value, wrong):
    changed = copied(artifacts, tmp_path / "changed", "ranks")
    manifest = (changed / "lpq.json").read_text()
    (changed / "lpq.json").write_text(re.sub(rf'"{key}": ?{value}', f'"{key}": {wrong}', manifest))
    with pytest.raises(lpq.Error, match="its ranks cannot share"):
        lpq.Artifact(changed)
