"""The plugin of vLLM on a device, without one: the platform says that it is CUDA, the library's device is python/tests/device_stub.c on the
host's memory, and the device's product takes tensors of the CPU. Prints the cases that hold, a line each."""

import torch
import vllm.model_executor.kernels.linear as linears
import vllm.model_executor.layers.fused_moe
import vllm.model_executor.layers.quantization.auto_gptq
import vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors
import vllm.model_executor.models.utils
import vllm.platforms as platforms
from torch import nn
from vllm.model_executor.kernels.linear import MPLinearLayerConfig
from vllm.scalar_type import ScalarType


class Pretended(type(platforms.current_platform)):
    """The CPU's platform that answers as CUDA's."""

    _enum = platforms.PlatformEnum.CUDA

    def is_cpu(self):
        return False

    def is_cuda(self):
        return True


platforms._current_platform = platforms.current_platform = Pretended()
import lpq_kernels.vllm  # noqa: E402
from lpq_kernels import _device, _mixture, ops  # noqa: E402

lpq_kernels.vllm.register()
from lpq_kernels.vllm.artifacts import LpqConfig  # noqa: E402
from lpq_kernels.vllm.experts import PackedExpertsMethod  # noqa: E402
from lpq_kernels.vllm.gptq import LpqGptqConfig  # noqa: E402
from lpq_kernels.vllm.kernel import FLOATS, LpqLinearKernel, adopt, gptq_block, product  # noqa: E402
from lpq_kernels.vllm.refusal import Refused  # noqa: E402

ops._elsewhere = lambda device, dtype: (torch.device("cpu"), dtype)
ops._linear = torch.ops.lpq_kernels.linear_on_device.default
ops._experts = _mixture.experts
ops.stacked = lambda gate, up, down, *, places: _mixture.stacked(gate, up, down, places)
N, K, GROUP = 64, 128, 64


def config(**changes):
    known = MPLinearLayerConfig.__dataclass_fields__
    said = {
        **{"full_weight_shape": (K, N), "partition_weight_shape": (K, N), "weight_type": ScalarType.uint(4, 8), "act_type": torch.bfloat16},
        **{"group_size": GROUP, "zero_points": False, "has_g_idx": False},
        **changes,
    }
    return MPLinearLayerConfig(**{name: value for name, value in said.items() if name in known})


def parameter(data, **facts):
    made = nn.Parameter(data, requires_grad=False)
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def words(codes, bits):
    """int32 [R, C bits / 32] of codes [R, C]: one stream of bits a row."""
    stream = (codes.long()[..., None] >> torch.arange(bits) & 1).flatten(1).view(codes.shape[0], -1, 32)
    return (stream << torch.arange(32)).sum(-1).to(torch.int32)


def drawn(bits, seed=0):
    draw = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 1 << bits, (N, K), generator=draw).to(torch.uint8)
    scales = torch.randint(1, 64, (N, K // GROUP), generator=draw).float() / 64
    zeros = torch.randint(1, 1 << bits, (N, K // GROUP), generator=draw)
    x = torch.randn((3, K), generator=draw).to(torch.bfloat16)
    return codes, scales, zeros, x


def near(y, exact):
    """One rounding to bf16 of what the stub sums in double."""
    assert bool(((y.double() - exact).abs() <= exact.abs() * 2.0**-8 + 1e-6).all()), (y.double() - exact).abs().max()


def the_kernel_stands_last_in_the_devices_list():
    assert linears._POSSIBLE_KERNELS[platforms.PlatformEnum.CUDA][-1] is LpqLinearKernel


def what_it_takes_and_refuses():
    assert LpqLinearKernel.can_implement(config()) == (True, None)
    assert LpqLinearKernel.can_implement(config(group_size=-1))[0]
    assert "groups of 32, 64 and 128" in LpqLinearKernel.can_implement(config(group_size=256))[1]
    assert "float16, bfloat16 here, not torch.float32" in LpqLinearKernel.can_implement(config(act_type=torch.float32))[1]
    if "has_g_idx" in MPLinearLayerConfig.__dataclass_fields__:
        assert "g_idx" in LpqLinearKernel.can_implement(config(has_g_idx=True))[1]
    assert torch.float32 not in FLOATS and LpqLinearKernel.get_min_capability() == 80


def a_symmetric_weight_of_gptq():
    codes, scales, _, x = drawn(4)
    layer = nn.Module()
    layer.q = parameter(words(codes, 4).t().contiguous(), input_dim=0, output_dim=1, packed_dim=0)
    layer.s = parameter(scales.t().contiguous().to(torch.bfloat16), input_dim=0, output_dim=1)
    kernel = LpqLinearKernel(config(), "q", "s")
    kernel.process_weights_after_loading(layer)
    assert not hasattr(layer, "q")
    weight = (codes.double() - 8) * scales.double().repeat_interleave(GROUP, 1)
    near(kernel.apply_weights(layer, x), x.double() @ weight.T)


def gptqs_words_with_zero_points():
    for bits in (2, 3, 4, 8):
        codes, scales, zeros, x = drawn(bits, bits)
        qweight, qzeros = words(codes, bits).t().contiguous(), words((zeros - 1).t(), bits)
        layer = nn.Module()
        adopt(layer, gptq_block(bits, GROUP, True, qweight, scales.t(), qzeros, torch.bfloat16))
        weight = (codes.double() - zeros.double().repeat_interleave(GROUP, 1)) * scales.double().repeat_interleave(GROUP, 1)
        near(product(layer, x, N, K, None), x.double() @ weight.T)


def experts_are_two_launches_whatever_tokens_chose():
    """Four experts of the model, of which this rank has two; a token's others are the other rank's."""
    layer, made, weights = nn.Module(), [], {}
    layer.top_k, layer.expert_map, layer.apply_router_weight_on_input = 2, torch.tensor([-1, 0, -1, 1], dtype=torch.int32), False
    layer.activation = type("Activation", (), {"value": "silu"})
    for expert in (1, 3):
        blocks, weights[expert] = {}, {}
        for part, (n, k) in {"gate": (N, K), "up": (N, K), "down": (K, N)}.items():
            draw = torch.Generator().manual_seed(10 * expert + len(part))
            codes = torch.randint(0, 16, (n, k), generator=draw).to(torch.uint8)
            scales = torch.randint(1, 64, (n, k // GROUP), generator=draw).float() / 4096
            weights[expert][part] = (codes.double() - 8) * scales.double().repeat_interleave(GROUP, 1)
            blocks[part] = ops.pack_codes("u4", codes, scales, group=GROUP, zero=8, dtype=torch.bfloat16)
        made.append(blocks)
    method = type("Method", (PackedExpertsMethod,), {"create_weights": None, "__init__": lambda self: None})()
    method.adopt(layer, made)
    assert not made and sorted(name for name, _ in layer.named_parameters()) == ["lpq_down_0", "lpq_gate_0"]
    draw = torch.Generator().manual_seed(1)
    x, share = torch.randn((5, K), generator=draw).to(torch.bfloat16), torch.rand((5, 2), generator=draw)
    ids = torch.tensor([[1, 3], [0, 1], [2, 0], [3, 2], [3, 1]], dtype=torch.int32)
    y = method.apply(layer, x, share, ids)
    exact = torch.zeros((5, K), dtype=torch.float64)
    for token in range(5):
        for place in range(2):
            if (of := weights.get(int(ids[token, place]))) is not None:
                opened, raised = (of[part] @ x[token].double() for part in ("gate", "up"))
                exact[token] += share[token, place].double() * (of["down"] @ (nn.functional.silu(opened) * raised))
    # Gate, up, what they make, down and the sum are rounded to bf16: five times 2^-8 of numbers of some times the result's size.
    assert bool(((y.double() - exact).abs() <= 5 * 2.0**-8 * exact.abs().max()).all()) and not y[2].any()


def which_checkpoints_are_claimed():
    def claimed(bits, sym):
        return LpqGptqConfig.override_quantization_method({"quant_method": "gptq", "bits": bits, "sym": sym}, None)

    assert [claimed(*each) for each in ((4, True), (8, True))] == [None, None]
    assert [claimed(*each) for each in ((2, True), (3, True), (4, False), (8, False))] == [LpqGptqConfig.NAME] * 4


def columns_in_another_order_are_refused():
    made = LpqGptqConfig.from_config({"quant_method": "gptq", "bits": 3, "group_size": GROUP, "desc_act": False, "sym": True})
    made.full_config = {**made.full_config, "desc_act": True}
    try:
        made.maybe_update_config("a model")
    except Refused as refused:
        assert str(refused).startswith("this checkpoint orders columns by activation (desc_act)"), refused
    else:
        raise AssertionError("desc_act was taken")


def g_idx_stays_from_vllms_loaders():
    if hasattr(LpqGptqConfig.__mro__[1], "get_cache_scale_mapper"):
        made = LpqGptqConfig.from_config({"quant_method": "gptq", "bits": 3, "group_size": GROUP, "desc_act": False, "sym": True})
        assert made.get_cache_scale_mapper().apply_list(["model.a.g_idx", "model.a.qweight"]) == ["model.a.qweight"]


def packed_tensors_stay_from_vllms_loaders():
    made = LpqConfig()
    made.tensors = {"packed", "scales"}
    for mapper in (made.get_checkpoint_weight_mapper(), made.get_cache_scale_mapper() if hasattr(made, "get_cache_scale_mapper") else None):
        if mapper is not None:
            assert mapper.apply_list(["model.a.packed", "model.norm.weight"]) == ["model.norm.weight"]


def room_is_made_for_as_many_tokens_as_vllm_takes():
    ops.reserve(3000)
    assert _device._tokens == 3000


def main():
    torch.set_num_threads(2)
    cases = [value for name, value in list(globals().items()) if callable(value) and getattr(value, "__module__", "") == "__main__"]
    for case in cases:
        if case is not main and isinstance(case, type(main)) and case.__code__.co_argcount == 0 and case is not config:
            case()
            print(case.__name__)


if __name__ == "__main__":
    main()
