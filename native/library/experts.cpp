#include "library/experts.h"

#include <memory>

#include "cuda/driver.h"
#include "library/context.h"
#include "library/status.h"
#include "ops/gemm_experts.h"

namespace lpq::library {

void differ(const Module& a, const Module& b, const std::string& what) {
  throw Failure("LPQ_UNSUPPORTED",
                "modules '" + a.name + "' and '" + b.name + "' differ in " + what + ": one product needs them alike");
}

ExpertModules expert_modules(const lpq_artifact* artifact, const lpq_experts_desc* desc) {
  const lpq_experts_desc given = taken(desc, "desc");
  argument(artifact != nullptr && given.modules != nullptr, "artifact or modules is NULL");
  ExpertModules made{
      ops::GemmExperts::checked_experts(given.experts), given.parts ? given.parts : 1, given.gated != 0, {}};
  argument(made.parts >= 1 && made.parts <= 64, "parts is not between 0 and 64");
  if (made.gated && made.parts != 2)
    argument(false, "desc.gated is of two parts, gate and up, and there are " + std::to_string(made.parts));
  for (int64_t i = 0; i < made.experts * made.parts; ++i) {
    made.modules.push_back(&module_called(artifact, given.modules[i]));
    const Module &first = made.first(), &last = *made.modules.back();
    if (first.n != last.n || first.k != last.k) differ(first, last, "their sizes");
  }
  return made;
}

namespace {

// A kind of tensor of all experts, one module's after the other.
struct Kind {
  const char* name;
  const StoredTensor* Parts::* tensor;
};
constexpr Kind kKinds[] = {{"weights", &Parts::weights}, {"scales", &Parts::scales}, {"zeros", &Parts::zeros}};

void require_alike(const Module& a, const Module& b) {
  const Parts one = parts_of(a), other = parts_of(b);
  if (a.type != b.type) differ(a, b, "their types");
  if (a.group != b.group) differ(a, b, "their groups");
  if (a.zero != b.zero) differ(a, b, "their zero points");
  if ((a.bias != nullptr) != (b.bias != nullptr)) differ(a, b, "their biases");
  for (const Kind& kind : kKinds) {
    const StoredTensor *mine = one.*kind.tensor, *its = other.*kind.tensor;
    if ((mine != nullptr) != (its != nullptr) || (mine && (mine->dtype != its->dtype || mine->bytes != its->bytes)))
      differ(a, b, std::string("their ") + kind.name);
  }
}

ExpertModules device_experts(const lpq_artifact* artifact, const lpq_experts_desc* desc) {
  ExpertModules of = expert_modules(artifact, desc);
  for (const Module* m : of.modules) {
    if (m->layout != LPQ_LAYOUT_TILUS)
      throw Failure("LPQ_UNSUPPORTED",
                    "module '" + m->name + "': " +
                        (m->layout == LPQ_LAYOUT_OTHER
                             ? m->why_other
                             : "experts of one product are of layout tilus, not of '" + m->layout_name + "'"));
    require_alike(of.first(), *m);
  }
  return of;
}

size_t bias_bytes(const ExpertModules& of) {
  return of.first().bias ? static_cast<size_t>(of.experts * of.rows()) * 2 : 0;
}

size_t experts_bytes(const ExpertModules& of) {
  size_t bytes = placed(bias_bytes(of));
  const Parts parts = parts_of(of.first());
  for (const Kind& kind : kKinds)
    if (const StoredTensor* tensor = parts.*kind.tensor) bytes += placed(of.modules.size() * tensor->bytes);
  return bytes;
}

// Where run `run` of a tensor that a part has `runs` of stands among those of all experts: one part after the other, or
// by turns.
int64_t place_of_run(const ExpertModules& of, int64_t e, int64_t p, int64_t run, int64_t runs) {
  return of.gated ? (e * runs + run) * of.parts + p : (e * of.parts + p) * runs + run;
}

// [experts, rows]: 0 between the parts.
std::vector<std::byte> biases_of(const ExpertModules& of, int activations) {
  std::vector<std::byte> all(bias_bytes(of));
  if (all.empty()) return all;
  const int64_t rows = of.first().n, unit = of.gated ? ops::GemmPacked::kBlockN : of.rows_a_part();
  for (int64_t e = 0; e < of.experts; ++e)
    for (int64_t p = 0; p < of.parts; ++p) {
      const std::vector<std::byte> one = module_bias(of.at(e, p), activations);
      for (int64_t n = 0; n < rows; n += unit) {
        const int64_t to =
            of.gated ? unit * place_of_run(of, e, p, n / unit, of.rows_a_part() / unit) : e * of.rows() + p * unit;
        std::copy_n(one.begin() + 2 * n, 2 * std::min(unit, rows - n), all.begin() + 2 * to);
      }
    }
  return all;
}

// Rows of gate and up of this product's tensors, whose blocks stand by turns, into the order of its kernels, in place.
void interleave(lpq_context* context, const ops::GemmProduct& product, const Call& call, cuda::CUstream stream) {
  // It takes no memory, and meets no bad data.
  cuda::Hosted hosted(context->facts, *context->kernels, stream, context, reinterpret_cast<std::byte*>(cuda::kNowhere),
                      0, false);
  const int64_t blocks = ops::parts_of(product.n, ops::GemmPacked::kBlockN);
  if (blocks == 0) return;
  size_t next = 2;  // behind x and offsets
  const auto each = [&](Params params) {
    Tensor tensor = call.in[next++];
    tensor.shape[0] *= blocks, tensor.shape[1] /= blocks;
    Call made{{tensor}, {tensor}, std::move(params)};
    cuda::cuda_op_table().at("interleave_gates")(made, hosted.exec());
  };
  each({{"of", "words"}, {"bits", static_cast<double>(ops::type_named(product.type).bits)}});
  each({{"of", "sides"}});
  if (product.zeros) each({{"of", "sides"}});
  if (product.bias) each({{"of", "rows"}});
}

}  // namespace
}  // namespace lpq::library

using namespace lpq;
using namespace lpq::library;

extern "C" {

lpq_status lpq_gates_interleave(lpq_context* context, const lpq_weight_desc* desc, void* stream) {
  return guarded([&] {
    const Current current(context);
    const lpq_weight_desc d = taken(desc, "desc");
    argument(d.gated != 0, "desc is not gated: its rows stay as they are");
    const std::unique_ptr<lpq_weight> described = make_weight(context, d);
    interleave(context, described->product, described->call, static_cast<cuda::CUstream>(stream));
  });
}

lpq_status lpq_experts_bytes(const lpq_artifact* artifact, const lpq_experts_desc* desc, size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    *bytes = experts_bytes(device_experts(artifact, desc));
  });
}

lpq_status lpq_experts_upload(lpq_context* context, const lpq_artifact* artifact, const lpq_experts_desc* desc,
                              int activations, void* memory, size_t bytes, void* stream, lpq_weight** weight) {
  return guarded([&] {
    argument(weight != nullptr, "weight is NULL");
    *weight = nullptr;
    const ExpertModules of = device_experts(artifact, desc);
    argument(activations == LPQ_F16 || activations == LPQ_BF16, "activations is neither LPQ_F16 nor LPQ_BF16");
    argument(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 16 == 0,
             "memory is NULL or does not start at a multiple of 16 bytes");
    const size_t needed = experts_bytes(of);
    argument(bytes >= needed,
             "memory has " + std::to_string(bytes) + " bytes, and the experts take " + std::to_string(needed));
    const Current current(context);
    const Module& first = of.first();
    const Parts parts = parts_of(first);
    auto* to = static_cast<std::byte*>(memory);
    std::map<const StoredTensor*, std::byte*> places;  // of the first module's tensors
    for (const Kind& kind : kKinds)
      if (const StoredTensor* tensor = parts.*kind.tensor)
        places[tensor] = to, to += placed(of.modules.size() * tensor->bytes);
    lpq_weight_desc d = describe(first, activations, parts, [&](const StoredTensor* tensor) -> const void* {
      return tensor ? places.at(tensor) : nullptr;
    });
    // What one module holds, before what all of them are said to be.
    const auto [op, call] = cuda::product_call(product_of(d), {}, -1, nullptr);
    for (const Module* m : of.modules) require_shapes(parts_of(*m), call);
    d.n = of.gated ? first.n : of.rows(), d.n_padded = 0, d.gated = of.gated;
    d.experts = static_cast<int>(of.experts), d.bias = first.bias ? to : nullptr;
    std::unique_ptr<lpq_weight> made = make_weight(context, d);
    const auto on = static_cast<cuda::CUstream>(stream);
    const auto copy = [&](std::byte* there, const void* here, size_t count) {
      if (count)
        cuda::check(cuda::driver().copy_to_device(reinterpret_cast<cuda::CUdeviceptr>(there), here, count, on),
                    "copying experts to the device");
    };
    const int64_t runs = of.gated ? of.rows_a_part() / ops::GemmPacked::kBlockN : 1;
    for (const Kind& kind : kKinds) {
      if (!(parts.*kind.tensor)) continue;
      std::byte* const there = places.at(parts.*kind.tensor);
      for (int64_t i = 0; i < of.experts * of.parts * runs; ++i) {
        const int64_t run = i % runs, p = i / runs % of.parts, e = i / runs / of.parts;
        const StoredTensor* tensor = parts_of(of.at(e, p)).*kind.tensor;
        const size_t size = tensor->bytes / static_cast<size_t>(runs);
        copy(there + static_cast<size_t>(place_of_run(of, e, p, run, runs)) * size,
             tensor->data + static_cast<size_t>(run) * size, size);
      }
    }
    const std::vector<std::byte> biases = biases_of(of, activations);
    copy(to, biases.data(), biases.size());
    if (of.gated) interleave(context, made->product, made->call, on);
    cuda::check(cuda::driver().stream_wait(on), "copying experts to the device");
    *weight = made.release();
  });
}
}
