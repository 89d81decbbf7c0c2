// Products over packed codes on the CPU, of the C interface.
#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "cpu/packed/form.h"
#include "cuda/gemm/chooser.h"
#include "library/artifact.h"
#include "library/context.h"
#include "library/experts.h"
#include "library/status.h"
#include "library/threads.h"
#include "lpq/half.h"
#include "ops/gemm_experts.h"

namespace lpq::library {
namespace {

// A module's elements, with the memory that they look at.
struct Stored {
  std::vector<Tensor> copies;
  Call call;
  Tensor order;
};

// The bytes of a file may start anywhere; elements are read as numbers.
const void* aligned_copy(Stored& stored, const StoredTensor* tensor) {
  if (!tensor) return nullptr;
  Tensor copy = allocate(DType::u8, {static_cast<int64_t>(tensor->bytes)});
  if (tensor->bytes) std::memcpy(copy.raw(), tensor->data, tensor->bytes);
  stored.copies.push_back(copy);
  return copy.raw();
}

float bias_at(const StoredTensor& bias, int64_t i) {
  float value = 0;
  uint16_t half = 0;
  if (bias.dtype == LPQ_F32) {
    std::memcpy(&value, bias.data + 4 * i, 4);
    return value;
  }
  std::memcpy(&half, bias.data + 2 * i, 2);
  return bias.dtype == LPQ_F16 ? f16_to_f32(half) : bf16_to_f32(half);
}

void require_layout(const Module& m) {
  if (m.cpu_layout == LPQ_LAYOUT_OTHER)
    throw Failure("LPQ_UNSUPPORTED", "module '" + m.name + "': " +
                                         (m.layout == LPQ_LAYOUT_COMET
                                              ? "W4Ax, whose activations become codes, has no product on a CPU here"
                                              : m.why_other));
}

std::unique_ptr<Stored> stored_of(const Module& m) {
  auto stored = std::make_unique<Stored>();
  const Parts parts = parts_of(m);
  lpq_weight_desc d =
      describe(m, LPQ_F16, parts, [&](const StoredTensor* tensor) { return aligned_copy(*stored, tensor); });
  d.layout = m.cpu_layout;
  ops::GemmProduct product = product_of(d);
  product.m = 0;
  // tilus has an order of columns here, which its kernels on a device do not know.
  const bool ordered = m.cpu_layout == LPQ_LAYOUT_TILUS && parts.permutation;
  if (ordered) product.permutation = false;
  cuda::Addresses at;
  at.weights = d.weights, at.metadata = d.metadata, at.scales = d.scales, at.zeros = d.zeros,
  at.permutation = d.permutation;
  auto [op, call] = cuda::product_call(product, at, -1, nullptr);
  stored->call = std::move(call);
  Parts shapes = parts;
  if (ordered) shapes.permutation = nullptr;
  require_shapes(shapes, stored->call);
  if (ordered) {
    if (parts.permutation->bytes != 4 * static_cast<size_t>(m.k) || parts.permutation->dtype != LPQ_I32)
      throw Failure("LPQ_ARTIFACT", "tensor '" + parts.permutation->name + "' is no order of " + std::to_string(m.k) +
                                        " columns in i32");
    stored->order = cuda::tensor_at(d.permutation, 0, DType::i32, {m.k}, -1, nullptr);
  }
  return stored;
}

std::vector<float> bias_of(const Module& m) {
  std::vector<float> bias;
  if (!m.bias) return bias;
  if (m.bias->shape != std::vector<int64_t>{m.n} ||
      (m.bias->dtype != LPQ_F16 && m.bias->dtype != LPQ_BF16 && m.bias->dtype != LPQ_F32))
    throw Failure("LPQ_ARTIFACT", "tensor '" + m.bias->name + "' is no bias of " + std::to_string(m.n) +
                                      " numbers in f16, bf16 or f32");
  for (int64_t i = 0; i < m.n; ++i) bias.push_back(bias_at(*m.bias, i));
  return bias;
}

// The form of what `elements` has, with the bias and the order that stand beside it.
packed::Form form_with(const Elements& e, bool bias) {
  return packed::form_of(e.type, e.n, e.k, e.groups == 1 ? 0 : e.group_size, e.grouped_zeros ? 0 : e.constant,
                         e.grouped_zeros, e.permutation != nullptr, bias);
}

// Of the caller's codes.
class Plain : public Elements {
 public:
  explicit Plain(const lpq_cpu_codes& given) : given_(given) {
    argument(given.type != nullptr, "type is NULL");
    argument(given.n >= 1 && given.k >= 1 && given.n < ops::kMostRows && given.k < ops::kMostRows,
             "N or K is 0, negative, or 2^31 or more");
    argument(given.group >= 0 && given.group % packed::kChunk == 0, "group is neither 0 nor a multiple of 32");
    type = ops::type_named(given.type);
    n = given.n, k = given.k, group_size = given.group, groups = ops::groups_of(k, group_size);
    argument(type.kind == QuantType::Kind::integer || (!given.zeros && given.zero == 0),
             "floating-point types have no zero points");
    grouped_zeros = given.zeros != nullptr;
    constant = static_cast<float>(given.zero);
    if (!given.permutation) return;
    order_ = cuda::tensor_at(given.permutation, 0, DType::i32, {k}, -1, nullptr);
    permutation = &order_;
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    for (int64_t at = 0; at < k; ++at) {
      row[at] = given_.codes[row_n * k + at];
      argument(row[at] < type.codes(), "code " + std::to_string(row[at]) + " of output " + std::to_string(row_n) +
                                           " is beyond " + std::to_string(type.bits) + " bits");
    }
  }
  float scale(int64_t row_n, int64_t g) const override { return given_.scales[row_n * groups + g]; }
  float zero(int64_t row_n, int64_t g) const override {
    return given_.zeros ? given_.zeros[row_n * groups + g] : constant;
  }

 private:
  const lpq_cpu_codes given_;
  Tensor order_;
};

// Outputs and inputs of what has more of them. The whole must outlive it.
class Share : public Elements {
 public:
  Share(const Elements& whole, const lpq_cpu_share& of) : whole_(whole), first_n_(of.n), first_k_(of.k) {
    argument(of.n >= 0 && of.n_count >= 1 && of.n <= whole.n - of.n_count && of.k >= 0 && of.k_count >= 1 &&
                 of.k <= whole.k - of.k_count,
             "a share of [" + std::to_string(of.n_count) + ", " + std::to_string(of.k_count) + "] from " +
                 std::to_string(of.n) + ", " + std::to_string(of.k) + " on is not inside the module's [" +
                 std::to_string(whole.n) + ", " + std::to_string(whole.k) + "]");
    type = whole.type, n = of.n_count, k = of.k_count;
    grouped_zeros = whole.grouped_zeros, constant = whole.constant;
    const bool one = whole.groups == 1;  // a scale a row, whatever share of it
    group_size = one ? 0 : whole.group_size;
    groups = one ? 1 : ops::groups_of(k, group_size);
    first_group_ = one ? 0 : first_k_ / group_size;
    const bool all = k == whole.k;
    argument(all || one || (first_k_ % group_size == 0 && k % group_size == 0),
             "a share of " + std::to_string(k) + " inputs from " + std::to_string(first_k_) +
                 " on is no whole number of groups of " + std::to_string(group_size));
    argument(all || !whole.permutation, "the module's columns are permuted, so that its inputs cannot be shared out");
    permutation = whole.permutation;
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    std::vector<uint8_t> whole_row(static_cast<size_t>(whole_.k));
    whole_.codes(first_n_ + row_n, whole_row.data());
    std::copy_n(whole_row.begin() + first_k_, k, row);
  }
  float scale(int64_t row_n, int64_t g) const override { return whole_.scale(first_n_ + row_n, first_group_ + g); }
  float zero(int64_t row_n, int64_t g) const override { return whole_.zero(first_n_ + row_n, first_group_ + g); }
  float shift(int64_t row_n, int64_t g) const override { return whole_.shift(first_n_ + row_n, first_group_ + g); }

 private:
  const Elements& whole_;
  int64_t first_n_, first_k_, first_group_ = 0;
};

void require_block(const packed::Form& form, const void* block, size_t bytes) {
  argument(block != nullptr && reinterpret_cast<uintptr_t>(block) % 64 == 0,
           "block is NULL or does not start at a multiple of 64 bytes");
  argument(static_cast<int64_t>(bytes) >= form.bytes,
           "block has " + std::to_string(bytes) + " bytes, and the weight takes " + std::to_string(form.bytes));
}

DType float_type(int type) {
  argument(type == LPQ_F32 || type == LPQ_F16 || type == LPQ_BF16, "type is none of LPQ_F32, LPQ_F16 and LPQ_BF16");
  return type == LPQ_F32 ? DType::f32 : type == LPQ_F16 ? DType::f16 : DType::bf16;
}

// The parts of ranks as the whole that they share, along outputs or along inputs. The parts must outlive it.
class Joined : public Elements {
 public:
  Joined(const std::vector<const Elements*>& parts, const Module& m) : parts_(parts), along_inputs_(m.along_inputs) {
    const Elements& first = *parts[0];
    type = first.type, n = m.n, k = m.k;
    grouped_zeros = first.grouped_zeros, constant = first.constant;
    group_size = m.group, groups = ops::groups_of(k, group_size);
    permutation = first.permutation;
    for (const Elements* part : parts)
      if ((part->permutation != nullptr) != (permutation != nullptr) ||
          (permutation && std::memcmp(part->permutation->raw(), permutation->raw(), permutation->bytes()) != 0))
        throw Failure("LPQ_ARTIFACT", "module '" + m.name + "': its ranks have columns in different orders");
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    if (!along_inputs_) return of_row(row_n).codes(row_n % parts_[0]->n, row);
    for (const Elements* part : parts_) part->codes(row_n, row), row += part->k;
  }
  float scale(int64_t row_n, int64_t g) const override {
    const auto [part, at, group] = place(row_n, g);
    return part->scale(at, group);
  }
  float zero(int64_t row_n, int64_t g) const override {
    const auto [part, at, group] = place(row_n, g);
    return part->zero(at, group);
  }
  float shift(int64_t row_n, int64_t g) const override {
    const auto [part, at, group] = place(row_n, g);
    return part->shift(at, group);
  }

 private:
  const Elements& of_row(int64_t row_n) const { return *parts_[static_cast<size_t>(row_n / parts_[0]->n)]; }
  std::tuple<const Elements*, int64_t, int64_t> place(int64_t row_n, int64_t g) const {
    const Elements& first = *parts_[0];
    if (!along_inputs_) return {&of_row(row_n), row_n % first.n, g};
    // A scale a row is the same in every part.
    return {parts_[static_cast<size_t>(g / first.groups)], row_n, g % first.groups};
  }
  const std::vector<const Elements*> parts_;
  const bool along_inputs_;
};

// A module's elements, of whatever parts, and its bias.
class Opened {
 public:
  explicit Opened(const Module& m) : bias(bias_of(m)) {
    require_layout(m);
    if (m.ranks.empty()) add(m);
    for (const Module& part : m.ranks) add(part);
    std::vector<const Elements*> all;
    for (const auto& part : parts_) all.push_back(part.get());
    if (!m.ranks.empty()) joined_ = std::make_unique<Joined>(all, m);
  }
  const Elements& elements() const { return joined_ ? *joined_ : *parts_[0]; }
  const std::vector<float> bias;

 private:
  void add(const Module& m) {
    static const std::map<int, const char*> kOps = {{LPQ_LAYOUT_TILUS, "gemm_packed"},
                                                    {LPQ_LAYOUT_MARLIN, "gemm_marlin"},
                                                    {LPQ_LAYOUT_TURBOMIND, "gemm_turbomind"},
                                                    {LPQ_LAYOUT_SPARSE_MARLIN, "gemm_sparse_marlin"}};
    stored_.push_back(stored_of(m));
    Stored& stored = *stored_.back();
    parts_.push_back(elements_of(kOps.at(m.cpu_layout), stored.call));
    if (stored.order.storage) parts_.back()->permutation = &stored.order;
  }
  std::vector<std::unique_ptr<Stored>> stored_;
  std::vector<std::unique_ptr<Elements>> parts_;
  std::unique_ptr<Elements> joined_;
};

// Modules whose outputs stand below one another, each from a multiple of 32 on; outputs between are 0. They must
// outlive it.
class Below : public Elements {
 public:
  Below(const std::vector<std::unique_ptr<Opened>>& parts, const ExpertModules& of, int64_t expert) : parts_(parts) {
    const Elements& first = parts[0]->elements();
    type = first.type, n = of.rows(), k = first.k, group_size = first.group_size, groups = first.groups;
    grouped_zeros = first.grouped_zeros, constant = first.constant, permutation = first.permutation;
    each_ = of.rows_a_part();
    for (size_t p = 1; p < parts.size(); ++p) {
      const Elements& e = parts[p]->elements();
      const Module &a = of.at(expert, 0), &b = of.at(expert, static_cast<int64_t>(p));
      if (a.type != b.type) differ(a, b, "their types");
      if (e.groups != groups || e.group_size != group_size) differ(a, b, "their groups");
      if (e.grouped_zeros != grouped_zeros || e.constant != constant) differ(a, b, "their zero points");
      if (!same_order(e)) differ(a, b, "the order of their columns");
      if ((a.bias != nullptr) != (b.bias != nullptr)) differ(a, b, "their biases");
    }
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    if (const Elements* part = at(row_n)) part->codes(row_n % each_, row);
    else std::fill_n(row, k, uint8_t{0});
  }
  float scale(int64_t row_n, int64_t g) const override { return of(row_n, g, &Elements::scale); }
  float zero(int64_t row_n, int64_t g) const override { return of(row_n, g, &Elements::zero); }
  float shift(int64_t row_n, int64_t g) const override { return of(row_n, g, &Elements::shift); }
  std::vector<float> biases() const {
    std::vector<float> all(static_cast<size_t>(n));
    for (size_t p = 0; p < parts_.size(); ++p)
      std::copy(parts_[p]->bias.begin(), parts_[p]->bias.end(), all.begin() + static_cast<int64_t>(p) * each_);
    return all;
  }

 private:
  bool same_order(const Elements& e) const {
    return (e.permutation != nullptr) == (permutation != nullptr) &&
           (!permutation || std::memcmp(e.permutation->raw(), permutation->raw(), permutation->bytes()) == 0);
  }
  // Null between the parts.
  const Elements* at(int64_t row_n) const {
    const Elements& part = parts_[static_cast<size_t>(row_n / each_)]->elements();
    return row_n % each_ < part.n ? &part : nullptr;
  }
  float of(int64_t row_n, int64_t g, float (Elements::*side)(int64_t, int64_t) const) const {
    const Elements* part = at(row_n);
    return part ? (part->*side)(row_n % each_, g) : 0;
  }
  const std::vector<std::unique_ptr<Opened>>& parts_;
  int64_t each_ = 0;
};

// Calls `use` with the form of each expert, its elements and its bias.
template <class Use>
void each_expert(const lpq_artifact* artifact, const lpq_experts_desc* desc, const Use& use) {
  const ExpertModules of = expert_modules(artifact, desc);
  argument(!of.gated, "desc.gated is of weights on a device: on a processor gate and up are multiplied, then gated");
  for (int64_t e = 0; e < of.experts; ++e) {
    std::vector<std::unique_ptr<Opened>> parts;
    for (int64_t p = 0; p < of.parts; ++p) parts.push_back(std::make_unique<Opened>(of.at(e, p)));
    const Below elements(parts, of, e);
    use(form_with(elements, of.at(e, 0).bias != nullptr), elements);
  }
}

// Experts of one N and K, one after the other; where each begins. Throws Failure("LPQ_NATIVE_ARGUMENT").
std::vector<const packed::Form*> opened_experts(const void* block, size_t bytes, int64_t experts) {
  ops::GemmExperts::checked_experts(experts);
  std::vector<const packed::Form*> forms;
  const auto* at = static_cast<const std::byte*>(block);
  for (int64_t e = 0; e < experts; ++e) {
    const std::string of = "the block of expert " + std::to_string(e);
    argument(bytes > 0, of + " is missing: the memory ends before it");
    const packed::Form& form = packed::opened(at, bytes);
    if (e > 0 && (form.n != forms[0]->n || form.k != forms[0]->k))
      argument(false, of + " is [" + std::to_string(form.n) + ", " + std::to_string(form.k) +
                          "], and that of expert 0 [" + std::to_string(forms[0]->n) + ", " +
                          std::to_string(forms[0]->k) + "]");
    forms.push_back(&form);
    at += form.bytes, bytes -= static_cast<size_t>(form.bytes);
  }
  return forms;
}

}  // namespace
}  // namespace lpq::library

using namespace lpq;
using namespace lpq::library;

extern "C" {

lpq_status lpq_cpu_module_bytes(const lpq_artifact* artifact, const char* module, size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    const Module& m = module_called(artifact, module);
    *bytes = static_cast<size_t>(form_with(Opened(m).elements(), m.bias != nullptr).bytes);
  });
}

lpq_status lpq_cpu_share_bytes(const lpq_artifact* artifact, const char* module, const lpq_cpu_share* share,
                               size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    const Module& m = module_called(artifact, module);
    const lpq_cpu_share of = taken(share, "share");
    const Opened whole(m);
    *bytes = static_cast<size_t>(form_with(Share(whole.elements(), of), m.bias != nullptr && of.k == 0).bytes);
  });
}

lpq_status lpq_cpu_share_pack(const lpq_artifact* artifact, const char* module, const lpq_cpu_share* share, void* block,
                              size_t bytes, int threads) {
  return guarded([&] {
    const Module& m = module_called(artifact, module);
    const lpq_cpu_share of = taken(share, "share");
    const Opened whole(m);
    const Share elements(whole.elements(), of);
    const bool bias = m.bias != nullptr && of.k == 0;
    const packed::Form form = form_with(elements, bias);
    require_block(form, block, bytes);
    packed::pack(form, elements, bias ? whole.bias.data() + of.n : nullptr, block, Threads(threads).pool());
  });
}

lpq_status lpq_cpu_codes_bytes(const lpq_cpu_codes* codes, size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    const lpq_cpu_codes given = taken(codes, "codes");
    *bytes = static_cast<size_t>(form_with(Plain(given), given.bias != nullptr).bytes);
  });
}

lpq_status lpq_cpu_module_pack(const lpq_artifact* artifact, const char* module, void* block, size_t bytes,
                               int threads) {
  return guarded([&] {
    const Module& m = module_called(artifact, module);
    const Opened whole(m);
    const packed::Form form = form_with(whole.elements(), m.bias != nullptr);
    require_block(form, block, bytes);
    packed::pack(form, whole.elements(), whole.bias.data(), block, Threads(threads).pool());
  });
}

lpq_status lpq_cpu_codes_pack(const lpq_cpu_codes* codes, void* block, size_t bytes, int threads) {
  return guarded([&] {
    const lpq_cpu_codes given = taken(codes, "codes");
    argument(given.codes != nullptr && given.scales != nullptr, "codes or scales is NULL");
    const Plain elements(given);
    const packed::Form form = form_with(elements, given.bias != nullptr);
    require_block(form, block, bytes);
    packed::pack(form, elements, given.bias, block, Threads(threads).pool());
  });
}

lpq_status lpq_cpu_block(const void* block, size_t bytes, lpq_cpu_info* info) {
  return guarded([&] {
    const packed::Form& form = packed::opened(block, bytes);
    lpq_cpu_info facts{};
    facts.n = form.n, facts.k = form.k, facts.bits = form.bits, facts.group = static_cast<int>(form.group_size);
    facts.bias = form.bias != 0;
    facts.bytes = static_cast<size_t>(form.bytes);
    hand_out(facts, info, "info");
  });
}

lpq_status lpq_cpu_gemm(const void* block, size_t bytes, int64_t m, int type, const void* x, void* y, int threads) {
  return guarded([&] {
    const packed::Form& form = packed::opened(block, bytes);
    argument(m >= 0 && m < ops::kMostRows, "M is negative, or 2^31 or more");
    argument(m == 0 || (x != nullptr && y != nullptr), "x or y is NULL");
    packed::multiply(form, m, float_type(type), x, y, Threads(threads).pool());
  });
}

lpq_status lpq_cpu_experts_bytes(const lpq_artifact* artifact, const lpq_experts_desc* desc, size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    *bytes = 0;
    each_expert(artifact, desc,
                [&](const packed::Form& form, const Below&) { *bytes += static_cast<size_t>(form.bytes); });
  });
}

lpq_status lpq_cpu_experts_pack(const lpq_artifact* artifact, const lpq_experts_desc* desc, void* block, size_t bytes,
                                int threads) {
  return guarded([&] {
    auto* to = static_cast<std::byte*>(block);
    Threads with(threads);
    each_expert(artifact, desc, [&](const packed::Form& form, const Below& elements) {
      require_block(form, to, bytes);
      packed::pack(form, elements, elements.biases().data(), to, with.pool());
      to += form.bytes, bytes -= static_cast<size_t>(form.bytes);
    });
  });
}

lpq_status lpq_cpu_gemm_experts(const void* block, size_t bytes, int64_t experts, int64_t m, int type, const void* x,
                                const int32_t* offsets, void* y, int threads) {
  return guarded([&] {
    const std::vector<const packed::Form*> forms = opened_experts(block, bytes, experts);
    argument(m >= 0 && m < ops::kMostRows, "M is negative, or 2^31 or more");
    argument(offsets != nullptr, "offsets is NULL");
    argument(m == 0 || (x != nullptr && y != nullptr), "x or y is NULL");
    ops::GemmExperts::require_offsets(offsets, experts, m);
    const DType dtype = float_type(type);
    Threads with(threads);
    for (int64_t e = 0; e < experts; ++e) {
      const packed::Form& form = *forms[static_cast<size_t>(e)];
      const auto size = static_cast<int64_t>(dtype_bytes(dtype));
      const int64_t first = offsets[e];
      packed::multiply(form, offsets[e + 1] - first, dtype, static_cast<const std::byte*>(x) + first * form.k * size,
                       static_cast<std::byte*>(y) + first * form.n * size, with.pool());
    }
  });
}

lpq_status lpq_cpu_rows(const void* block, size_t bytes, int64_t count, const int64_t* rows, int type, void* y,
                        int threads) {
  return guarded([&] {
    const packed::Form& form = packed::opened(block, bytes);
    argument(count >= 0, "count is negative");
    argument(count == 0 || (rows != nullptr && y != nullptr), "rows or y is NULL");
    packed::rows(form, count, rows, float_type(type), y, Threads(threads).pool());
  });
}
}
