"""torch.ops.lpq_kernels, compiled and by ctypes: the same bytes and the same sentences. LPQ_TORCH_OPS names the compiled ones."""

import json
import os
import subprocess
import sys

import torch

from lpq_kernels import Linear, ops

PROGRAM = """
import hashlib, json, torch
from lpq_kernels import ops
torch.set_num_threads(2)
draw = torch.Generator().manual_seed(1)
codes = torch.randint(0, 16, (32, 32), generator=draw).to(torch.uint8)
block, running, told = ops.pack_codes("u4", codes, torch.rand(32, 1, generator=draw)), hashlib.sha256(), []
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    made = [ops.linear(torch.randn(shape, generator=draw).to(dtype), block, 32, 32) for shape in ((32,), (1, 32), (2, 3, 32), (0, 32), (17, 32))]
    made.append(ops.linear(torch.randn((32, 9), generator=draw).t().to(dtype), block, 32, 32))  # not contiguous
    for ids in (torch.tensor([[1, 2], [31, 0]], dtype=torch.int32), torch.tensor(7), torch.arange(8)[::2], torch.zeros(0, dtype=torch.long)):
        made.append(ops.rows(ids, block, 32, dtype))
    x, share, ids = torch.randn((7, 32), generator=draw).to(dtype), torch.rand((7, 2), generator=draw), torch.randint(-1, 3, (7, 2), generator=draw)
    made += [ops.experts(x, share, ids, [block] * 3, [block] * 3, [block] * 3, name) for name in ops.ACTIVATIONS]
    sorted_by = torch.tensor([0, 4, 4, 7], dtype=torch.int32)
    made.append(ops.experts_linear(x, sorted_by, ops.stack([block] * 3), 32, 32))
    for each in made:
        running.update(repr((each.dtype, list(each.shape), each.stride())).encode())
        running.update(each.float().numpy().tobytes())
one = torch.ones(1, 32)
for bad in (
    lambda: ops.linear(one, block, 32, 31),
    lambda: ops.linear(one[:, :5], block, 32, 32),
    lambda: ops.linear(torch.tensor(1.0), block, 32, 32),
    lambda: ops.linear(one.double(), block, 32, 32),
    lambda: ops.linear(one, block[:-1], 32, 32),
    lambda: ops.rows(torch.tensor([99]), block, 32, torch.float32),
    lambda: ops.rows(torch.tensor([1]), block, 31, torch.float32),
    lambda: ops.rows(torch.tensor([1]), block, 32, torch.int32),
    lambda: ops.experts_linear(one, torch.tensor([0, 1]), block, 32, 32),
    lambda: ops.experts_linear(one, torch.tensor([0, 2], dtype=torch.int32), block, 32, 32),
    lambda: ops.experts_linear(one, torch.tensor([0, 1, 1], dtype=torch.int32), block, 32, 32),
    lambda: ops.experts_linear(one, torch.tensor([], dtype=torch.int32), block, 32, 32),
    lambda: ops.experts_linear(one, torch.tensor([0, 1], dtype=torch.int32), block, 32, 31),
    lambda: ops.experts_linear(one[:, :5], torch.tensor([0, 1], dtype=torch.int32), block, 32, 32),
    lambda: ops.experts_linear(one[0], torch.tensor([0, 1], dtype=torch.int32), block, 32, 32),
    lambda: ops.experts(one, torch.ones(1, 2), torch.tensor([[5, 0]]), [block], [block], [block], "silu"),
):
    try:
        told.append(f"no error: {bad()}")
    except RuntimeError as error:
        told.append(str(error))
print(json.dumps([ops.operations, running.hexdigest(), told]))
"""


def ran(which: str) -> list:
    done = subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "LPQ_TORCH_OPS": which}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_compiled_and_by_ctypes_they_are_the_same():
    assert ops.operations == "compiled"
    compiled, plain = ran(os.environ["LPQ_TORCH_OPS"]), ran("ctypes")
    assert [compiled[0], plain[0]] == ["compiled", "ctypes"]
    assert compiled[1:] == plain[1:]
    assert not [each for each in compiled[2] if each.startswith("no error") or "\n" in each]


def test_an_older_torch_is_told_of_and_a_file_that_is_none_ends_in_a_sentence():
    named = os.environ["LPQ_TORCH_OPS"]
    older = "import torch; torch.__version__ = '2.9.1'; import lpq_kernels.ops as ops; print(ops.operations)"
    done = subprocess.run([sys.executable, "-c", older], capture_output=True, text=True)
    assert done.stdout == "ctypes\n" and "need torch 2.10, and this is 2.9.1" in done.stderr, done.stderr
    done = subprocess.run([sys.executable, "-c", "import lpq_kernels"], env={**os.environ, "LPQ_TORCH_OPS": __file__}, capture_output=True, text=True)
    assert "LPQ_TORCH_OPS=ctypes goes without it" in done.stderr.strip().split("\n")[-1], named


def test_the_compiler_of_torch_takes_them_whole():
    codes = torch.randint(0, 8, (64, 96), generator=torch.Generator().manual_seed(3)).to(torch.uint8)
    up = Linear(ops.pack_codes("u3", codes, torch.ones(64, 3) / 64, group=32))

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(up(x)).to(x.dtype)

    # "aot_eager": functionalized and by fakes, without a C++ compiler; symbolic sizes.
    compiled = torch.compile(block, backend="aot_eager", fullgraph=True, dynamic=True)
    with torch.no_grad():
        for rows in (1, 5, 16):
            x = torch.randn((rows, 96), generator=torch.Generator().manual_seed(rows))
            assert torch.equal(compiled(x), block(x))
    exported = torch.export.export(up, (torch.randn(4, 96),))
    assert [node.target for node in exported.graph.nodes if node.op == "call_function"] == [torch.ops.lpq_kernels.linear.default]
