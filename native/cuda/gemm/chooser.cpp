#include "cuda/gemm/chooser.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "cuda/gemm/tensor_maps.h"
#include "cuda/gemm/tuning.h"
#include "cuda/launch.h"

namespace lpq::cuda {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return div_up(value, unit) * unit; }

Tensor tensor_at(const void* address, size_t place, DType dtype, std::vector<int64_t> shape, int device,
                 const void* owner) {
  Tensor tensor;
  tensor.storage = std::make_shared<Storage>();
  // Where there is no address nobody looks: operands a gigabyte and more apart, beyond the scratch of a rehearsal.
  tensor.storage->data = address ? static_cast<std::byte*>(const_cast<void*>(address))
                                 : reinterpret_cast<std::byte*>(kNowhere + (uintptr_t{place + 1} << 42));
  tensor.storage->owner = owner;
  tensor.dtype = dtype;
  tensor.shape = std::move(shape);
  tensor.device = device;
  tensor.storage->bytes = tensor.bytes();
  return tensor;
}

// The layouts that have a kernel: their operation, and how `lpq pack` pads N and K.
struct Layout {
  const char *name, *op;
  int64_t unit_n, unit_k;
};
constexpr std::array<Layout, 3> kLayouts{
    {{"tilus", "gemm_packed", 32, 128}, {"marlin", "gemm_marlin", 256, 128}, {"turbomind", "gemm_turbomind", 64, 1}}};

const Layout& layout_of(const std::string& name) {
  for (const Layout& layout : kLayouts)
    if (name == layout.name) return layout;
  throw Failure("LPQ_NATIVE_ARGUMENT",
                "there is no kernel of the layout '" + name + "': tilus, marlin and turbomind have one");
}

// The product that a call of one of these operations is; none where the call is malformed, which the operation will
// say.
std::optional<Product> product_of(const std::string& op, const Call& call) {
  Product p;
  for (const Layout& layout : kLayouts)
    if (op == layout.op) p.layout = layout.name;
  if (call.in.size() < 3 || call.out.empty() || call.in[0].rank() != 2 || call.out[0].rank() != 2) return std::nullopt;
  p.m = call.in[0].dim(0), p.k = call.in[0].dim(1), p.n = call.out[0].dim(1);
  p.x = call.in[0].dtype;
  p.scales = call.in[2].dtype;
  p.group = call.params.integer("groupLength", 0);
  p.type = op == "gemm_marlin" ? "u" + std::to_string(call.params.integer("bits", 4))
                               : type_name(QuantType::from(call.params));
  if (call.params.integer("hasZeros", 0) != 0 && call.in.size() > 3) p.zeros = call.in[3].dtype;
  return p;
}

}  // namespace

Params type_params(const std::string& name) {
  Params params;
  const auto set = [&](const char* kind, int bits, bool is_signed, int exponent, int mantissa, int bias,
                       const char* special) {
    params.set("kind", kind);
    params.set("bits", double(bits)), params.set("signed", is_signed ? 1.0 : 0.0);
    params.set("exponent", double(exponent)), params.set("mantissa", double(mantissa)),
        params.set("bias", double(bias));
    params.set("special", special);
  };
  const auto digit = [&](size_t at) {
    return at < name.size() && name[at] >= '0' && name[at] <= '9' ? name[at] - '0' : -1;
  };
  const int bits = digit(1);
  if (name.size() == 2 && (name[0] == 'u' || name[0] == 'i') && bits >= (name[0] == 'i' ? 2 : 1) && bits <= 8) {
    set("int", bits, name[0] == 'i', 0, 0, 0, "none");
    return params;
  }
  const int exponent = digit(3), mantissa = digit(5);
  if (name.size() == 6 && name[0] == 'f' && name[2] == 'e' && name[4] == 'm' && bits >= 3 && bits <= 8 &&
      exponent >= 1 && mantissa >= 1 && 1 + exponent + mantissa == bits) {
    set("float", bits, true, exponent, mantissa, exponent == 1 ? 0 : (1 << (exponent - 1)) - 1,
        name == "f8e4m3"   ? "fn"
        : name == "f8e5m2" ? "ieee"
                           : "none");
    return params;
  }
  throw Failure("LPQ_NATIVE_PARAM",
                "'" + name + "' is no quantized type: u1 to u8, i2 to i8, or fBeXmY of 3 to 8 bits with 1 + X + Y = B");
}

std::string type_name(const QuantType& t) {
  if (t.kind == QuantType::Kind::integer) return (t.is_signed ? "i" : "u") + std::to_string(t.bits);
  return "f" + std::to_string(t.bits) + "e" + std::to_string(t.exponent) + "m" + std::to_string(t.mantissa);
}

std::pair<std::string, Call> product_call(const Product& p, const Addresses& at, int device, const void* owner) {
  const Layout& layout = layout_of(p.layout);
  constexpr int64_t kMost = (int64_t{1} << 31) - 1024;
  require(p.m >= 0 && p.m < kMost && p.n >= 1 && p.n < kMost && p.k >= 1 && p.k < kMost,
          "M, N or K is 0, negative, or 2^31 or more");
  require(p.group == 0 || p.group == 32 || p.group == 64 || p.group == 128,
          "the group is not 0 (one scale a row), 32, 64 or 128");
  const int64_t n_pad = p.n_padded ? p.n_padded : round_up(p.n, layout.unit_n),
                k_pad = p.k_padded ? p.k_padded : round_up(p.k, layout.unit_k);
  require(n_pad >= p.n && k_pad >= p.k && n_pad < kMost + 1024 && k_pad < kMost + 1024,
          "what is stored holds fewer than N rows or K columns");
  Call call;
  call.params = type_params(p.type);
  const QuantType type = QuantType::from(call.params);
  const int64_t bits = type.bits;
  const auto add = [&](const void* address, DType dtype, std::vector<int64_t> shape) {
    call.in.push_back(tensor_at(address, call.in.size(), dtype, std::move(shape), device, owner));
  };
  add(at.x, p.x, {p.m, p.k});
  require(p.layout == "marlin" || !p.permutation,
          "only marlin's kernel gathers activations in the order of a permutation");
  require(p.layout == "turbomind" || !p.experts, "only turbomind has a form for experts");
  if (p.layout == "tilus") {
    require(n_pad == round_up(p.n, 32) && k_pad == round_up(p.k, 128),
            "tilus is stored in N of whole blocks of 32 and K of 128, and no more");
    const int64_t groups = p.group == 0 ? 1 : div_up(p.k, p.group);
    add(at.weights, DType::u8, {n_pad / 32, k_pad / 128, 512 * bits});
    add(at.scales, p.scales, {n_pad / 32, groups, 32});
    if (p.zeros) add(at.zeros, *p.zeros, {n_pad / 32, groups, 32});
    call.params.set("zero", p.zero);
  } else if (p.layout == "marlin") {
    require(type.kind == QuantType::Kind::integer && !type.is_signed && (bits == 4 || bits == 8),
            "marlin has u4 and u8; signed types are stored as these");
    require(p.scales == DType::f16, "marlin's scales are f16");
    require(!p.zeros || *p.zeros == DType::i32, "marlin's zero points are words, i32");
    require(n_pad % 64 == 0 && k_pad % 32 == 0, "marlin is stored in whole tiles of 64 columns and 32 rows");
    const int64_t groups = p.group == 0 ? 1 : div_up(k_pad, p.group);
    add(at.weights, DType::i32, {k_pad / 16, n_pad * bits / 2});
    add(at.scales, DType::f16, {groups, n_pad});
    if (p.zeros) add(at.zeros, DType::i32, {groups, n_pad * bits / 32});
    if (p.permutation) add(at.permutation, DType::i32, {p.k});
    call.params.set("hasOrder", p.permutation ? 1.0 : 0.0);
  } else {
    const bool integer = type.kind == QuantType::Kind::integer;
    require(k_pad == p.k && p.group != 0, "turbomind is stored in K of whole groups, without padding");
    require(n_pad % 64 == 0, "turbomind is stored in whole tiles of 64 columns");
    require(!p.zeros, "turbomind's zero points stand with its scales");
    const int64_t groups = div_up(p.k, p.group);
    add(at.weights, DType::i32, {n_pad * p.k * bits / 32});
    if (integer) add(at.scales, p.scales, {groups, n_pad, 2});
    else add(at.scales, p.scales, {groups, n_pad});
    call.params.set("experts", p.experts ? 1.0 : 0.0);
  }
  if (p.bias) add(at.bias, p.x, {p.n});
  call.params.set("groupLength", double(p.group));
  call.params.set("hasZeros", p.zeros ? 1.0 : 0.0);
  call.params.set("hasBias", p.bias ? 1.0 : 0.0);
  call.out.push_back(tensor_at(at.y, 8, p.x, {p.m, p.n}, device, owner));
  return {layout.op, std::move(call)};
}

DeviceFacts described_device(const std::string& name) {
  const DescribedDevice* const known = described(name);
  if (!known)
    throw Failure("LPQ_CUDA_DEVICE", "no device is described as '" + name + "': " + described_names() + " are");
  DeviceFacts facts;
  // Planners keep what they asked about a device under its number: one for each that is described, and none of a real
  // one.
  facts.ordinal = -2 - known->multiprocessors - 1000 * known->arch;
  facts.arch = known->arch, facts.features = features_of(known->arch), facts.multiprocessors = known->multiprocessors,
  facts.shared_per_block = known->shared_per_block;
  facts.name = known->title;
  return facts;
}

std::string launch_text(const Launch& l) {
  const auto dim = [](const Dim3& d) {
    std::string text = std::to_string(d.x);
    if (d.y > 1 || d.z > 1) text += "x" + std::to_string(d.y);
    if (d.z > 1) text += "x" + std::to_string(d.z);
    return text;
  };
  return l.kernel + ": " + dim(l.grid) + " blocks" +
         (l.cluster > 1 ? " in clusters of " + std::to_string(l.cluster) : "") + " of " + dim(l.block) + " threads, " +
         std::to_string(l.shared) + " bytes of shared memory";
}

Choice choose_kernel(const DeviceFacts& device, Kernels* kernels, const Product& product, const Tuning* tuning,
                     const std::set<std::string>* names) {
  const int owner = 0;
  auto [op, call] = product_call(product, {}, device.ordinal, &owner);
  const auto found = cuda_op_table().find(op);
  if (found == cuda_op_table().end()) throw Failure("LPQ_NATIVE_OP", "no operation is called " + op);
  std::optional<NoTensorMaps> nobody;
  if (!kernels) nobody.emplace();
  Choice choice;
  const auto rehearse = [&](Call& with) {
    Rehearsal rehearsal;
    rehearsal.names = names;
    Hosted hosted(device, kernels, &owner, rehearsal);
    found->second(with, hosted.exec());
    choice.launches = std::move(rehearsal.launches);
    choice.reasons.insert(choice.reasons.end(), rehearsal.reasons.begin(), rehearsal.reasons.end());
    choice.workspace = hosted.memory_taken();
  };
  if (!kernels)
    choice.reasons.push_back(device.name + " (" + compute_capability(device.arch) + ", " +
                             std::to_string(device.multiprocessors) +
                             " multiprocessors) is described, not asked: its clusters are taken to fit without gaps.");
  if (tuning && !tuning->problem.empty())
    choice.reasons.push_back("The settings in " + tuning->path + " are not used: " + tuning->problem + ".");
  if (const TunedPoint* point = tuning ? tuning->find(product) : nullptr) {
    Call with = call;
    for (const auto& [name, value] : point->best) with.params.set(name, value), choice.settings.set(name, value);
    with.params.set("tuned", double{kTuned});
    const size_t before = choice.reasons.size();
    try {
      char percent[32];
      std::snprintf(percent, sizeof percent, "%.1f", 100 * (point->ratio - 1));
      choice.reasons.push_back("Settings that were timed at M = " + std::to_string(point->m) + " (" + tuning->path +
                               "): the planners' choice took " + percent + " % longer.");
      rehearse(with);
      choice.tuned = true;
      return choice;
    } catch (const Failure& failure) {
      if (failure.code != "LPQ_NATIVE_ARGUMENT" && failure.code != "LPQ_CUDA_KERNELS") throw;
      choice.reasons.resize(before);
      choice.settings = {};
      choice.reasons.push_back(std::string("Settings that were timed do not fit: ") + failure.what() + ".");
    }
  }
  rehearse(call);
  return choice;
}

void run_tuned(CudaOpFn fn, Call& call, CudaExec& exec, const Tuning& tuning, const Product& product) {
  const TunedPoint* point = tuning.find(product);
  const bool forced = point && std::any_of(point->best.begin(), point->best.end(),
                                           [&](const auto& setting) { return call.params.has(setting.first); });
  if (!point || forced || call.params.has("kernel")) return fn(call, exec);
  const Params plain = call.params;
  for (const auto& [name, value] : point->best) call.params.set(name, value);
  call.params.set("tuned", double{kTuned});
  try {
    fn(call, exec);
  } catch (const Failure& failure) {
    call.params = plain;
    // Settings are checked before anything of the product is launched.
    if (failure.code != "LPQ_NATIVE_ARGUMENT" && failure.code != "LPQ_CUDA_KERNELS") throw;
    fn(call, exec);
  }
}

void run_cuda_op(const std::string& op, CudaOpFn fn, Call& call, CudaExec& exec) {
  const bool packed =
      std::any_of(kLayouts.begin(), kLayouts.end(), [&](const Layout& layout) { return op == layout.op; });
  if (!packed || call.params.integer("tuned", 1) == 0) return fn(call, exec);
  const Tuning& tuning = tuning_of(exec.device());
  const std::optional<Product> product = tuning.points.empty() ? std::nullopt : product_of(op, call);
  if (!product) return fn(call, exec);
  run_tuned(fn, call, exec, tuning, *product);
}

}  // namespace lpq::cuda
