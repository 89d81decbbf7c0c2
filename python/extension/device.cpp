// lpq_kernels::linear and experts_linear on a CUDA device: lpq_gemm and lpq_gemm_experts on torch's current stream. A
// call allocates y and nothing else, and never waits, so that CUDA graphs take it. A weight is found by its block's
// address, which _device.py adopts. linear_on_device and experts_linear_on_device are the same products for tensors of
// any device, by which tests run them without one.
#include <dlfcn.h>
#include <torch/csrc/stable/library.h>

#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "common.h"

namespace lpq::torch_ops {
namespace {

struct Functions {
  decltype(&lpq_gemm) gemm;
  decltype(&lpq_gemm_experts) gemm_experts;
  decltype(&lpq_mixture) mixture;
  decltype(&lpq_mixture_sizes) mixture_sizes;
  decltype(&lpq_gemm_workspace) workspace;
  decltype(&lpq_workspace_init) init;
  decltype(&lpq_last_error) last_error;
} kernels;

struct Weight {
  const lpq_weight* weight;
  lpq_context* context;
  int64_t n, k;
  int type;         // lpq_dtype of x and y
  int64_t experts;  // 0: a plain weight
};

/** A workspace, which belongs to a stream from its first call on: what runs at the same time must not share one. */
struct Workspace {
  Tensor memory;  // kept: captured graphs hold its address
  void* address;
  size_t bytes;
  bool taken = false;
  void* stream = nullptr;
};

std::shared_mutex guard;
std::unordered_map<const void*, Weight> weights;
std::unordered_map<int64_t, std::vector<Workspace>> workspaces;  // by device
std::vector<Tensor> outgrown;

int64_t place_of(int32_t device_type, int32_t device) { return int64_t{device_type} << 32 | std::max(device, 0); }

void* torch_cuda() {
  static void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library;
}

/** torch's stream of a CUDA device, a cudaStream_t; NULL for others. */
void* current_stream(int32_t device_type, int32_t device) {
  using Current = AOTITorchError (*)(int32_t, void**);
  static const auto current =
      reinterpret_cast<Current>(torch_cuda() ? dlsym(torch_cuda(), "aoti_torch_get_current_cuda_stream") : nullptr);
  void* stream = nullptr;
  if (current && device_type == aoti_torch_device_type_cuda()) STABLE_TORCH_ERROR_CODE_CHECK(current(device, &stream));
  return stream;
}

bool capturing(void* stream) {
  using Capturing = int (*)(void*, int*);
  static const auto ask = [] {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return reinterpret_cast<Capturing>(driver ? dlsym(driver, "cuStreamIsCapturing") : nullptr);
  }();
  int status = 0;
  return ask && ask(stream, &status) == 0 && status != 0;
}

void check(lpq_status status) {
  if (status != LPQ_OK) fail(kernels.last_error());
}

Weight weight_of(const Tensor& block) {
  const std::shared_lock lock(guard);
  const auto found = weights.find(block.const_data_ptr());
  if (found == weights.end())
    fail("the packed weight was not packed for this device: pack it there, it cannot be moved or copied");
  return found->second;
}

Workspace made(lpq_context* context, int32_t device_type, int32_t device, size_t bytes, void* stream) {
  Tensor memory = dense({static_cast<int64_t>(bytes) + 511}, ScalarType::Byte, device_type, device);
  auto address = (reinterpret_cast<uintptr_t>(memory.mutable_data_ptr()) + 511) / 512 * 512;
  check(kernels.init(context, reinterpret_cast<void*>(address), bytes, stream));
  return {memory, reinterpret_cast<void*>(address), bytes};
}

/** The stream's workspace: the one that it has, else a free one; NULL where all are taken. */
Workspace* workspace_of(int64_t place, void* stream) {
  for (Workspace& each : workspaces[place])
    if (each.taken && each.stream == stream) return &each;
  for (Workspace& each : workspaces[place])
    if (!each.taken) {
      each.taken = true, each.stream = stream;
      return &each;
    }
  return nullptr;
}

struct Room {
  void* address = nullptr;
  size_t bytes = 0;
};

Room room_for(int64_t place, void* stream) {
  {
    const std::shared_lock lock(guard);
    const auto found = workspaces.find(place);
    if (found != workspaces.end())
      for (const Workspace& each : found->second)
        if (each.taken && each.stream == stream) return {each.address, each.bytes};
  }
  const std::unique_lock lock(guard);
  const Workspace* found = workspace_of(place, stream);
  return found ? Room{found->address, found->bytes} : Room{};
}

/** A larger workspace for the stream; not while it is captured, whose memory would be the graph's. */
template <class Bytes>
Room grown(lpq_context* context, int64_t m, int32_t device_type, int32_t device, void* stream, const Bytes& bytes_of) {
  if (capturing(stream))
    fail("a graph is captured, and a product of " + std::to_string(m) +
         " tokens needs a larger workspace: lpq_kernels.reserve() makes it before");
  const size_t bytes = bytes_of();
  const std::unique_lock lock(guard);
  const int64_t place = place_of(device_type, device);
  Workspace* now = workspace_of(place, stream);
  if (now != nullptr && now->bytes >= bytes) return {now->address, now->bytes};
  Workspace larger = made(context, device_type, device, bytes, stream);
  larger.taken = true, larger.stream = stream;
  if (now == nullptr) return workspaces[place].push_back(larger), Room{larger.address, larger.bytes};
  outgrown.push_back(now->memory);
  *now = larger;
  return {larger.address, larger.bytes};
}

/** Where a tensor is, in AOTI's numbers. */
struct Device {
  int32_t type = 0, index = 0;

  explicit Device(const Tensor& tensor) {
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &type));
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_index(tensor.get(), &index));
  }
  bool operator==(const Device&) const = default;
};

/** Calls multiply(room) with the stream's workspace, and once more with a larger one where that is too small. */
template <class Bytes, class Multiply>
void in_workspace(lpq_context* context, int64_t m, const Device& device, void* stream, const Bytes& bytes_of,
                  const Multiply& multiply) {
  const auto larger = [&] { return grown(context, m, device.type, device.index, stream, bytes_of); };
  Room room = room_for(place_of(device.type, device.index), stream);
  if (room.address == nullptr) room = larger();
  lpq_status status = multiply(room);
  if (status == LPQ_ERROR_WORKSPACE) room = larger(), status = multiply(room);
  check(status);
}

/** Dense, and from a multiple of 16 bytes on: a slice may begin anywhere, and the kernels read 16 bytes at once. */
Tensor readable(const Tensor& x) {
  const Tensor rows = x.is_contiguous() ? x : torch::stable::contiguous(x);
  return reinterpret_cast<uintptr_t>(rows.const_data_ptr()) % 16 == 0 ? rows : torch::stable::clone(rows);
}

void require_type(const Tensor& x, const Weight& weight) {
  const int type = kind(x.scalar_type(), "x");
  if (type != weight.type)
    fail(std::string("x is ") +
         (type == LPQ_F32   ? "float32"
          : type == LPQ_F16 ? "float16"
                            : "bfloat16") +
         ", and the weight was packed for " + (weight.type == LPQ_F16 ? "float16" : "bfloat16"));
}

/** A product by a weight, of experts where there are `offsets`. */
Tensor product(const Tensor& x, const int32_t* offsets, const Weight& weight, int64_t n, int64_t k) {
  if (weight.n != n || weight.k != k) fail("the packed weight is " + pair(weight.n, weight.k) + ", not " + pair(n, k));
  if (x.dim() == 0 || x.size(x.dim() - 1) != k)
    fail("x has the shape " + list(x) + ", and the packed weight is " + pair(n, k));
  require_type(x, weight);
  const Device device(x);
  const Tensor from = readable(x);
  Tensor y = dense(shaped(x, n), x.scalar_type(), device.type, device.index);
  const int64_t m = x.numel() / k;
  if (m == 0) return y;
  void* stream = current_stream(device.type, device.index);
  const auto bytes = [&] {
    size_t needed = 0;
    check(kernels.workspace(weight.weight, m, m, &needed));
    return needed;
  };
  in_workspace(weight.context, m, device, stream, bytes, [&](const Room& room) {
    const void* rows = from.const_data_ptr();
    void* to = y.mutable_data_ptr();
    return offsets == nullptr
               ? kernels.gemm(weight.weight, m, rows, to, room.address, room.bytes, stream, LPQ_GEMM_SETTLED)
               : kernels.gemm_experts(weight.weight, m, rows, offsets, to, room.address, room.bytes, stream,
                                      LPQ_GEMM_SETTLED);
  });
  return y;
}

Tensor linear(const Tensor& x, const Tensor& block, int64_t n, int64_t k) {
  const Weight weight = weight_of(block);
  if (weight.experts != 0) fail("the packed weight is of experts, whose rows experts_linear takes");
  return product(x, nullptr, weight, n, k);
}

Tensor experts_linear(const Tensor& x, const Tensor& offsets, const Tensor& block, int64_t n, int64_t k) {
  const Weight weight = weight_of(block);
  if (weight.experts == 0) fail("the packed weight is not of experts: linear multiplies by it");
  require_sorted(x, offsets, weight.experts);
  if (!(Device(offsets) == Device(x))) fail("offsets are on another device than x");
  return product(x, offsets.const_data_ptr<int32_t>(), weight, n, k);
}

/** A whole mixture; an id that is the number of experts is of none. Scratch is torch's, a graph's where it is captured.
 */
Tensor mixture(const Tensor& x, const Tensor& weights, const Tensor& ids, const Tensor& gate_up, const Tensor& down,
               int64_t activation) {
  const Weight opens = weight_of(gate_up), lowers = weight_of(down);
  if (x.dim() != 2 || x.size(1) != opens.k)
    fail("x has the shape " + list(x) + ", and the experts take " + std::to_string(opens.k) + " inputs");
  if (ids.dim() != 2 || ids.size(0) != x.size(0) || list(weights) != list(ids))
    fail("x has the shape " + list(x) + ", ids " + list(ids) + " and weights " + list(weights) +
         ", not [T, H] and twice [T, J]");
  if (ids.scalar_type() != ScalarType::Int || weights.scalar_type() != ScalarType::Float)
    fail("ids are no int32, or weights no float32");
  require_type(x, opens);
  const Device device(x);
  if (!(Device(ids) == device && Device(weights) == device)) fail("ids or weights are on another device than x");
  const int64_t tokens = x.size(0);
  Tensor y = dense({tokens, lowers.n}, x.scalar_type(), device.type, device.index);
  if (tokens == 0) return y;
  lpq_mixture_desc desc{};
  desc.size = sizeof desc, desc.gate_up = opens.weight, desc.down = lowers.weight;
  desc.activation = static_cast<int>(activation), desc.places = ids.size(1), desc.some_none = 1;
  const Tensor from = readable(x), chosen = torch::stable::contiguous(ids), shares = torch::stable::contiguous(weights);
  size_t needed = 0;
  check(kernels.mixture_sizes(&desc, tokens, &needed, nullptr));
  Tensor scratch = dense({static_cast<int64_t>(needed) + 511}, ScalarType::Byte, device.type, device.index);
  auto* const between =
      reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(scratch.mutable_data_ptr()) + 511) / 512 * 512);
  void* stream = current_stream(device.type, device.index);
  const auto bytes = [&] {
    size_t most = 0;
    check(kernels.mixture_sizes(&desc, tokens, nullptr, &most));
    return most;
  };
  in_workspace(opens.context, tokens, device, stream, bytes, [&](const Room& room) {
    return kernels.mixture(&desc, tokens, from.const_data_ptr(), chosen.const_data_ptr<int32_t>(),
                           shares.const_data_ptr<float>(), y.mutable_data_ptr(), between, needed, room.address,
                           room.bytes, stream, LPQ_GEMM_SETTLED);
  });
  return y;
}

thread_local std::string sentence;

}  // namespace

const char* bind_device(void* library) {
  const auto found = [&](const char* name, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    return function != nullptr;
  };
  if (!found("lpq_gemm", kernels.gemm)) return "lpq_gemm";
  if (!found("lpq_gemm_experts", kernels.gemm_experts)) return "lpq_gemm_experts";
  if (!found("lpq_mixture", kernels.mixture)) return "lpq_mixture";
  if (!found("lpq_mixture_sizes", kernels.mixture_sizes)) return "lpq_mixture_sizes";
  if (!found("lpq_gemm_workspace", kernels.workspace)) return "lpq_gemm_workspace";
  if (!found("lpq_workspace_init", kernels.init)) return "lpq_workspace_init";
  if (!found("lpq_last_error", kernels.last_error)) return "lpq_last_error";
  return nullptr;
}

}  // namespace lpq::torch_ops

using namespace lpq::torch_ops;

#define LPQ_TORCH_API extern "C" __attribute__((visibility("default")))

/** Products whose block begins at `address` are those of `weight` from here on; `experts` 0: a plain one. */
LPQ_TORCH_API void lpq_torch_adopt(const void* address, const lpq_weight* weight, lpq_context* context, int64_t n,
                                   int64_t k, int type, int64_t experts) {
  const std::unique_lock lock(guard);
  weights[address] = {weight, context, n, k, type, experts};
}

LPQ_TORCH_API void lpq_torch_drop(const void* address) {
  const std::unique_lock lock(guard);
  weights.erase(address);
}

/** Sees to it that a device has `count` workspaces of `bytes` each. NULL, or a sentence of this thread. */
LPQ_TORCH_API const char* lpq_torch_reserve(lpq_context* context, int cuda, int device, size_t bytes, int count) {
  try {
    const int32_t device_type = cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
    void* stream = current_stream(device_type, device);
    const std::unique_lock lock(guard);
    auto& all = workspaces[place_of(device_type, device)];
    for (Workspace& each : all)
      if (each.bytes < bytes) {
        Workspace larger = made(context, device_type, device, bytes, stream);
        larger.taken = each.taken, larger.stream = each.stream;
        outgrown.push_back(each.memory);
        each = larger;
      }
    while (all.size() < static_cast<size_t>(count)) all.push_back(made(context, device_type, device, bytes, stream));
    return nullptr;
  } catch (const std::exception& error) {
    sentence = error.what();
    return sentence.c_str();
  }
}

/** The workspace of a device's current stream, for a caller of lpq_gemm() of its own. NULL where it has none. */
LPQ_TORCH_API void* lpq_torch_workspace(int cuda, int device, size_t* bytes, void** stream) {
  const int32_t device_type = cuda ? aoti_torch_device_type_cuda() : aoti_torch_device_type_cpu();
  *stream = current_stream(device_type, device);
  const Room room = room_for(place_of(device_type, device), *stream);
  *bytes = room.bytes;
  return room.address;
}

STABLE_TORCH_LIBRARY_IMPL(lpq_kernels, CUDA, m) {
  m.impl("linear", TORCH_BOX(&lpq::torch_ops::linear));
  m.impl("linear_on_device", TORCH_BOX(&lpq::torch_ops::linear));
  m.impl("experts_linear", TORCH_BOX(&lpq::torch_ops::experts_linear));
  m.impl("experts_linear_on_device", TORCH_BOX(&lpq::torch_ops::experts_linear));
  m.impl("mixture_on_device", TORCH_BOX(&lpq::torch_ops::mixture));
}

STABLE_TORCH_LIBRARY_IMPL(lpq_kernels, CPU, m) {
  m.impl("linear_on_device", TORCH_BOX(&lpq::torch_ops::linear));
  m.impl("experts_linear_on_device", TORCH_BOX(&lpq::torch_ops::experts_linear));
  m.impl("mixture_on_device", TORCH_BOX(&lpq::torch_ops::mixture));
}
