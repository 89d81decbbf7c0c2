// Devices, weights and products of the C interface.
#include "library/context.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>

#include "cuda/device.h"
#include "library/status.h"

namespace lpq::library {
namespace {

using namespace lpq::cuda;

struct ContextApi {
  CUresult (*current)(CUcontext*);
  CUresult (*device)(CUdevice*);
};

const ContextApi& context_api() {
  static const ContextApi api = [] {
    driver();
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    ContextApi found{};
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(library ? ::dlsym(library, name) : nullptr);
      if (!function) throw Failure("LPQ_CUDA_DRIVER", std::string("the NVIDIA driver lacks ") + name);
    };
    find(found.current, "cuCtxGetCurrent");
    find(found.device, "cuCtxGetDevice");
    return found;
  }();
  return api;
}

// Where the kernels lie when nobody says: LPQ_CUDA_FATBIN, beside the library, or as cmake --install puts them.
std::string kernels_file() {
  const std::string beside = kernels_path();
  if (::access(beside.c_str(), R_OK) == 0) return beside;
  if (const size_t slash = beside.rfind('/'); slash != std::string::npos) {
    const std::string below = beside.substr(0, slash) + "/lpq" + beside.substr(slash);
    if (::access(below.c_str(), R_OK) == 0) return below;
  }
  return beside;
}

DType half_type(int dtype, const char* name) {
  argument(dtype == LPQ_F16 || dtype == LPQ_BF16, std::string(name) + " is neither LPQ_F16 nor LPQ_BF16");
  return dtype == LPQ_F16 ? DType::f16 : DType::bf16;
}

// A call of a product in a workspace.
struct Work {
  int64_t m;
  const void *x, *offsets;
  void *y, *workspace;
  size_t bytes;
  void* stream;
  unsigned flags;
};

void launch(const lpq_weight& weight, const Work& work) {
  argument((work.flags & ~LPQ_GEMM_SETTLED) == 0, "there is no such flag");
  argument(work.m >= 0 && work.m < ops::kMostRows, "M is negative, or 2^31 or more");
  if (work.m == 0) return;
  require_address(work.x, "x");
  require_address(work.y, "y");
  require_address(work.workspace, "workspace", 512);
  if (work.bytes < kHostedHead) throw Failure("LPQ_WORKSPACE", "the workspace is too small: ask lpq_gemm_workspace()");
  lpq_context* context = weight.context;
  const Current current(context);
  Hosted hosted(context->facts, *context->kernels, static_cast<CUstream>(work.stream), context,
                static_cast<std::byte*>(work.workspace), work.bytes, (work.flags & LPQ_GEMM_SETTLED) != 0);
  hosted.exec().tune(&context->tuning);
  if (weight.layer) return run_layer(*weight.layer, work.m, work.x, work.y, hosted.exec());
  hosted.exec().share(&weight.plans);
  Call call = product_of_rows(weight, work.m, work.x, work.offsets, work.y);
  weight.op(call, hosted.exec());
}

std::string choice_text(const Choice& choice) {
  std::string text;
  for (const Launch& launch : choice.launches) text += launch_text(launch) + "\n";
  for (const std::string& reason : choice.reasons) text += reason + "\n";
  return text + "Workspace: " + std::to_string(choice.workspace) + " bytes.\n";
}

void give_text(const std::string& all, char* text, size_t size, size_t* needed) {
  argument(text != nullptr || size == 0, "text is NULL");
  if (size > 0) {
    const size_t kept = std::min(size - 1, all.size());
    std::memcpy(text, all.data(), kept);
    text[kept] = '\0';
  }
  if (needed) *needed = all.size() + 1;
}

}  // namespace

Current::Current(const lpq_context* context) {
  argument(context != nullptr, "context is NULL");
  check(context_api().current(&before_), "asking for the current context");
  if (before_ == context->cuda) return;
  check(driver().context_set(context->cuda), "selecting the context");
  changed_ = true;
}

Current::~Current() {
  if (changed_) driver().context_set(before_);
}

void require_address(const void* address, const char* name, uintptr_t unit) {
  if (address == nullptr) argument(false, std::string(name) + " is NULL");
  if (reinterpret_cast<uintptr_t>(address) % unit != 0)
    argument(false, std::string(name) + " does not start at a multiple of " + std::to_string(unit) + " bytes");
}

bool grouped(const lpq_weight& weight) { return weight.product.layout == "tilus" && weight.product.experts != 0; }

Choice choice_of(const lpq_weight& weight, int64_t m) {
  if (weight.layer) return choose_layer(*weight.layer, m, weight.context->facts, weight.context->kernels.get());
  ops::GemmProduct product = weight.product;
  product.m = m;
  return choose_kernel(weight.context->facts, weight.context->kernels.get(), product, &weight.context->tuning);
}

Call product_of_rows(const lpq_weight& weight, int64_t m, const void* x, const void* offsets, void* y) {
  Call call = weight.call;
  const lpq_context* context = weight.context;
  const auto place = [&](Tensor& tensor, const void* address, int64_t rows) {
    tensor.shape[0] = rows;
    tensor = tensor_at(address, 0, tensor.dtype, tensor.shape, context->facts.ordinal, context);
  };
  place(call.in[0], x, m);
  if (offsets) place(call.in[1], offsets, weight.product.experts + 1);
  place(call.out[0], y, m);
  return call;
}

ops::GemmProduct product_of(const lpq_weight_desc& d) {
  ops::GemmProduct p;
  switch (d.layout) {
    case LPQ_LAYOUT_TILUS: p.layout = "tilus"; break;
    case LPQ_LAYOUT_MARLIN: p.layout = "marlin"; break;
    case LPQ_LAYOUT_TURBOMIND: p.layout = "turbomind"; break;
    case LPQ_LAYOUT_SPARSE_MARLIN: p.layout = "sparse_marlin"; break;
    default: throw Failure("LPQ_UNSUPPORTED", "layout " + std::to_string(d.layout) + " has no kernel here");
  }
  argument(d.type != nullptr, "type is NULL");
  p.type = d.type;
  ops::type_named(p.type);
  if (p.layout == "marlin" && (p.type == "i4" || p.type == "i8")) p.type[0] = 'u';
  p.n = d.n, p.k = d.k, p.n_padded = d.n_padded, p.k_padded = d.k_padded;
  p.group_size = d.group;
  p.x = half_type(d.activations, "activations");
  switch (d.scale_type) {
    case LPQ_F16: p.scales = DType::f16; break;
    case LPQ_BF16: p.scales = DType::bf16; break;
    case LPQ_U8:
    case LPQ_F8_E8M0: p.scales = DType::u8; break;
    default: throw Failure("LPQ_NATIVE_ARGUMENT", "scale_type is none of LPQ_F16, LPQ_BF16 and LPQ_U8");
  }
  switch (d.zero_type) {
    case LPQ_NONE: break;
    case LPQ_U8: p.zeros = DType::u8; break;
    case LPQ_F16: p.zeros = DType::f16; break;
    case LPQ_I32: p.zeros = DType::i32; break;
    default: throw Failure("LPQ_NATIVE_ARGUMENT", "zero_type is none of LPQ_NONE, LPQ_U8, LPQ_F16 and LPQ_I32");
  }
  p.zero = d.zero;
  p.bias = d.bias != nullptr;
  p.permutation = d.permutation != nullptr;
  p.experts = d.experts, p.gated = d.gated != 0;
  return p;
}

std::unique_ptr<lpq_weight> make_weight(lpq_context* context, const lpq_weight_desc& d) {
  auto weight = std::make_unique<lpq_weight>();
  weight->context = context;
  if (is_layer(d.layout)) {
    weight->layer = make_layer(d, context->facts.ordinal, context);
    require_address(d.weights, "weights");
    require_address(d.scales, "scales");
    require_address(d.block_bits, "block_bits"), require_address(d.block_clip, "block_clip"),
        require_address(d.blocks, "blocks");
  } else {
    weight->product = product_of(d);
    require_address(d.weights, "weights");
    require_address(d.scales, "scales");
    if (d.layout == LPQ_LAYOUT_SPARSE_MARLIN) require_address(d.metadata, "metadata");
    if (weight->product.zeros) require_address(d.zeros, "zeros");
  }
  if (d.permutation) require_address(d.permutation, "permutation");
  if (d.bias) require_address(d.bias, "bias");
  if (weight->layer) {
    choice_of(*weight, 1);
    return weight;
  }
  Addresses at;
  at.weights = d.weights, at.metadata = d.metadata, at.scales = d.scales, at.zeros = d.zeros,
  at.permutation = d.permutation, at.bias = d.bias;
  auto [op, call] = product_call(weight->product, at, context->facts.ordinal, context);
  weight->call = std::move(call);
  weight->op = cuda_op_table().at(op);
  choice_of(*weight, 1);  // says what no kernel takes
  return weight;
}

}  // namespace lpq::library

using namespace lpq;
using namespace lpq::cuda;
using namespace lpq::library;

extern "C" {

lpq_status lpq_context_open(const lpq_context_options* options, lpq_context** context) {
  return guarded([&] {
    argument(context != nullptr, "context is NULL");
    *context = nullptr;
    const lpq_context_options wish = options ? taken(options, "options") : lpq_context_options{};
    auto made = std::make_unique<lpq_context>();
    check(context_api().current(&made->cuda), "asking for the current context");
    if (!made->cuda)
      throw Failure(
          "LPQ_CUDA_DEVICE",
          "the thread has no current CUDA context: cudaSetDevice() and cudaFree(0) make one, or torch.cuda.init()");
    CUdevice device = 0;
    check(context_api().device(&device), "asking for the context's device");
    made->facts = device_facts(device);
    if (!made->facts.features.portable)
      throw Failure("LPQ_CUDA_DEVICE", made->facts.name + " has compute capability " +
                                           compute_capability(made->facts.arch) + "; lpq needs 8.0 or newer");
    made->kernels = std::make_unique<Kernels>(made->cuda, wish.kernels ? wish.kernels : kernels_file());
    const int version = driver().version;
    made->tuning =
        read_tuning(wish.tuning ? wish.tuning : tuning_path(made->facts.name, version), made->facts.name, version);
    // What the caller names must be right; what lies in a cache may be old.
    if (wish.tuning && *wish.tuning && !made->tuning.problem.empty())
      throw Failure("LPQ_NATIVE_ARGUMENT", std::string(wish.tuning) + ": " + made->tuning.problem);
    *context = made.release();
  });
}

void lpq_context_close(lpq_context* context) {
  if (!context) return;
  try {
    const Current current(context);
    context->kernels->unload();
  } catch (const Failure&) {  // the context is gone, and its modules with it
  }
  delete context;
}

lpq_status lpq_context_device(const lpq_context* context, lpq_device_info* info) {
  return guarded([&] {
    argument(context != nullptr, "context is NULL");
    lpq_device_info facts{};
    std::snprintf(facts.name, sizeof facts.name, "%s", context->facts.name.c_str());
    facts.ordinal = context->facts.ordinal;
    facts.arch = context->facts.arch;
    facts.multiprocessors = context->facts.multiprocessors;
    facts.driver = driver().version;
    hand_out(facts, info, "info");
  });
}

lpq_status lpq_weight_create(lpq_context* context, const lpq_weight_desc* desc, lpq_weight** weight) {
  return guarded([&] {
    argument(weight != nullptr, "weight is NULL");
    *weight = nullptr;
    const Current current(context);
    *weight = make_weight(context, taken(desc, "desc")).release();
  });
}

void lpq_weight_destroy(lpq_weight* weight) { delete weight; }

lpq_status lpq_gemm_workspace(const lpq_weight* weight, int64_t first, int64_t last, size_t* bytes) {
  return guarded([&] {
    argument(weight != nullptr && bytes != nullptr, "weight or bytes is NULL");
    argument(first >= 0 && first <= last, "first is negative or beyond last");
    const Current current(weight->context);
    size_t most = kHostedHead;
    for (int64_t m = std::max<int64_t>(first, 1); m <= last; ++m)
      most = std::max(most, choice_of(*weight, m).workspace);
    *bytes = most;
  });
}

lpq_status lpq_workspace_init(lpq_context* context, void* workspace, size_t bytes, void* stream) {
  return guarded([&] {
    const Current current(context);
    require_address(workspace, "workspace", 512);
    if (bytes < kHostedHead)
      throw Failure("LPQ_WORKSPACE", "a workspace has " + std::to_string(kHostedHead) + " bytes or more");
    check(driver().fill_bytes(reinterpret_cast<CUdeviceptr>(workspace), 0, kHostedHead, static_cast<CUstream>(stream)),
          "clearing the workspace");
  });
}

lpq_status lpq_workspace_check(lpq_context* context, void* workspace, void* stream) {
  return guarded([&] {
    const Current current(context);
    require_address(workspace, "workspace", 512);
    uint32_t word = 0;
    const auto on = static_cast<CUstream>(stream);
    check(driver().copy_to_host(&word, reinterpret_cast<CUdeviceptr>(workspace), sizeof word, on),
          "reading the workspace");
    check(driver().stream_wait(on), "waiting for the stream");
    if (word == 0) return;
    check(driver().fill_bytes(reinterpret_cast<CUdeviceptr>(workspace), 0, sizeof word, on), "clearing the workspace");
    throw Failure("LPQ_NATIVE_ARGUMENT",
                  "a call met bad data: offsets of experts that do not ascend inside x, an id of no expert, a "
                  "permutation that names a column which x does not have, a cache with a page, length or tail that is "
                  "none, or NaN or infinity where numbers become codes");
  });
}

lpq_status lpq_gemm(const lpq_weight* weight, int64_t m, const void* x, void* y, void* workspace, size_t bytes,
                    void* stream, unsigned flags) {
  return guarded([&] {
    argument(weight != nullptr, "weight is NULL");
    argument(!grouped(*weight), "the weight is of experts, whose rows lpq_gemm_experts() takes");
    launch(*weight, {m, x, nullptr, y, workspace, bytes, stream, flags});
  });
}

lpq_status lpq_gemm_experts(const lpq_weight* weight, int64_t m, const void* x, const int32_t* offsets, void* y,
                            void* workspace, size_t bytes, void* stream, unsigned flags) {
  return guarded([&] {
    argument(weight != nullptr, "weight is NULL");
    argument(grouped(*weight), "the weight is not of experts: lpq_gemm() multiplies by it");
    argument(!weight->product.gated,
             "the weight is gated: rows of gate and up stand by turns, as lpq_mixture() alone takes them");
    if (m != 0) require_address(offsets, "offsets", 4);
    launch(*weight, {m, x, offsets, y, workspace, bytes, stream, flags});
  });
}

lpq_status lpq_gemm_explain(const lpq_weight* weight, int64_t m, char* text, size_t size, size_t* needed) {
  return guarded([&] {
    argument(weight != nullptr, "weight is NULL");
    argument(m >= 1, "M is not 1 or more");
    const Current current(weight->context);
    give_text(choice_text(choice_of(*weight, m)), text, size, needed);
  });
}

lpq_status lpq_explain(const char* device, const lpq_weight_desc* desc, int64_t m, char* text, size_t size,
                       size_t* needed) {
  return guarded([&] {
    argument(device != nullptr, "device is NULL");
    argument(m >= 1, "M is not 1 or more");
    const lpq_weight_desc d = taken(desc, "desc");
    // The kernels that were built, where they lie at hand; else all.
    static const std::optional<std::set<std::string>> names = []() -> std::optional<std::set<std::string>> {
      try {
        return kernel_names(kernels_file());
      } catch (const Failure&) {
        return std::nullopt;
      }
    }();
    const DeviceFacts facts = described_device(device);
    const std::set<std::string>* const known = names ? &*names : nullptr;
    if (is_layer(d.layout)) {
      const int owner = 0;
      return give_text(choice_text(choose_layer(make_layer(d, facts.ordinal, &owner), m, facts, nullptr, known)), text,
                       size, needed);
    }
    ops::GemmProduct product = product_of(d);
    product.m = m;
    give_text(choice_text(choose_kernel(facts, nullptr, product, nullptr, known)), text, size, needed);
  });
}
}
