// Operations over packed codes.
#include <vector>

#include "cpu/checks.h"
#include "cpu/packed/form.h"
#include "cpu/quant/scale.h"
#include "ops/coded.h"

namespace lpq::packed {
namespace {

Form coded_form(const ops::CodedWeight& a) {
  return form_of(a.type, a.n, a.k, a.groups() == 1 ? 0 : a.group, a.has_zeros ? 0 : a.zero, a.has_zeros, a.ordered,
                 false);
}

// Codes one a byte, with the scales and zero points of a quantized checkpoint.
class Bytes : public Elements {
 public:
  explicit Bytes(const ops::LayCodes& a) : a_(a) {
    type = a.type, n = a.n, k = a.k, groups = a.groups(), group_size = groups == 1 ? 0 : a.group;
    grouped_zeros = a.has_zeros, constant = a.zero;
    if (!a.order) return;
    for (int64_t i = 0; i < 2 * k; ++i)
      require(column(i) >= 0 && column(i) < k, "the order names a column that is not there");
    // Where packing looks for the columns of x.
    inputs_ = *a.order;
    inputs_.shape = {k};
    inputs_.offset += static_cast<size_t>(k) * 4;
    permutation = &inputs_;
  }
  void codes(int64_t row_n, uint8_t* row) const override {
    const uint8_t* from = a_.codes.data<uint8_t>() + row_n * k;
    for (int64_t at = 0; at < k; ++at) {
      row[at] = from[a_.order ? column(at) : at];
      require(row[at] < type.codes(), "code " + std::to_string(row[at]) + " of output " + std::to_string(row_n) +
                                          " is beyond " + std::to_string(type.bits) + " bits");
    }
  }
  float scale(int64_t row_n, int64_t g) const override { return number(a_.scales, row_n, g) * a_.global; }
  float zero(int64_t row_n, int64_t g) const override { return a_.zeros ? number(*a_.zeros, row_n, g) : constant; }

 private:
  int64_t column(int64_t at) const { return a_.order->data<int32_t>()[at]; }
  float number(const Tensor& of, int64_t row_n, int64_t g) const {
    return read_number(of.dtype, of.raw(), row_n * groups + g);
  }
  const ops::LayCodes& a_;
  Tensor inputs_;
};

void coded_bytes(Call& call, Exec&) {
  const ops::CodedBytes a(call);
  *a.bytes.data<int64_t>() = coded_form(a).bytes;
}

void lay_codes(Call& call, Exec& exec) {
  const ops::LayCodes a(call);
  const Form form = coded_form(a);
  require_shape(a.block, "block", {form.bytes});
  pack(form, Bytes(a), nullptr, a.block.raw(), exec.pool);
}

void linear_codes(Call& call, Exec& exec) {
  const ops::LinearCodes a(call);
  const Form& form = opened(a.block.raw(), a.block.bytes());
  require_shape(a.x, "x", {-1, form.k});
  require_shape(a.y, "y", {-1, form.n});
  multiply(form, a.x.dim(0), DType::f32, a.x.raw(), a.y.raw(), exec.pool, a.bias ? a.bias->data<float>() : nullptr);
}

}  // namespace
LPQ_OP(coded_bytes, "coded_bytes");
LPQ_OP(lay_codes, "lay_codes");
LPQ_OP(linear_codes, "linear_codes");
}  // namespace lpq::packed
