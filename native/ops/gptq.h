// The solver's operations: gptq_factor, gptq_correction, gptq_target, gptq_clip, gptq_solve, gptq_descend, gptq_refit,
// gptq_prune, gptq_sparse_solve, gptq_sparse_descend, gptq_encode, gptq_store_scales, module_error.
//
// Everything between factor and encode is in solving order: column j of T, U, M and level is input feature order[j],
// and group[j] the scale group of the j-th solved column. H and D are f64, on CUDA f32 too. `type` stands for the
// parameters of typeParams() (src/core/quant-type.ts). An order or a group that names what is not there:
// LPQ_NATIVE_ARGUMENT.
#pragma once
#include <vector>

#include "ops/linalg.h"
#include "ops/quant.h"

namespace lpq::ops {

inline constexpr Types kMoments = {f64, f32};

// H [K,K] symmetric, order I32 [K] -> U f32 [K,K] upper, U^T U = (P H P^T + damp)^-1; M f32 [K,K] = P H P^T + damp;
// dead U8 [K], 1 where H[k][k] = 0 (original order); info f64 [3] = {damp fraction used, attempts, floored columns}.
// damp: fraction of mean(diag H), between 0 and 10. splitFrom, on CUDA: columns from which on products are of f16
// planes. What cannot be factored: LPQ_NATIVE_NUMERICS.
struct GptqFactor : Arguments {
  const Tensor& h = square(input("H", kMoments), "H");
  const Tensor& order = input("order", {i32}, {h.dim(0)});
  const Tensor& u = output("U", {f32}, h.shape);
  const Tensor& m = output("M", {f32}, h.shape);
  const Tensor& dead = output("dead", {u8}, {h.dim(0)});
  const Tensor& info = output("info", {f64}, {3});
  double damp = number("damp");
  int64_t split_from = integer("splitFrom", 3072);

  explicit GptqFactor(const Call& call) : Arguments(call, "gptq_factor") {
    require(h.dim(0) > 0, "H is empty");
    require(damp > 0 && damp < 10, "damp must be between 0 and 10");
    done();
  }
};

// B f32 [K,K] = P D P^T U^T U of D [K,K] = sum (xf - xq) xqT (cross_drift), order I32 [K] and U f32 [K,K]: GPTAQ's
// correction of one feed, worth it from K rows on.
struct GptqCorrection : Arguments {
  const Tensor& drift = square(input("D", kMoments), "D");
  const Tensor& order = input("order", {i32}, {drift.dim(0)});
  const Tensor& u = input("U", {f32}, drift.shape);
  const Tensor& matrix = output("B", {f32}, drift.shape);

  explicit GptqCorrection(const Call& call) : Arguments(call, "gptq_correction") { done(); }
};

// The weights that the codes should reproduce: W f32, f16 or bf16 [N,K], order I32 [K], dead U8 [K] -> T f32 [N,K],
// column j = input feature order[j], 0 where dead; bad f64 [2] = {weights that are NaN or infinite, the first one's
// flat index in W}. With alpha > 0 (0) also D [K,K] and U f32 [K,K], or B of gptq_correction instead of both: quantized
// predecessors change a layer's input from xf to xq. ||W Xf - Q Xq||^2 is least at Q = W C H^-1 with C = sum xf xqT,
// which equals W + W D H^-1; GPTAQ (Li et al. 2025) goes the fraction alpha of that way, since D is noisy. H^-1 = U^T U
// is the damped one.
struct GptqTarget : Arguments {
  const Tensor& w = input("W", kFloats, {-1, -1});
  int64_t k = w.dim(1);
  const Tensor& order = input("order", {i32}, {k});
  const Tensor& dead = input("dead", {u8}, {k});
  bool finished = left() == 1, parts = left() > 1;
  const Tensor* matrix = input_if(finished, "B", {f32}, {k, k});  // D and U, or B, or none
  const Tensor* drift = input_if(parts, "D", kMoments, {k, k});
  const Tensor* u = input_if(parts, "U", {f32}, {k, k});
  const Tensor& t = output("T", {f32}, w.shape);
  const Tensor& bad = output("bad", {f64}, {2});
  double alpha = number("alpha", 0);

  explicit GptqTarget(const Call& call) : Arguments(call, "gptq_target") {
    require(alpha == 0 || finished || parts, "alpha needs D and U, or B");
    done();
  }
};

// What the solver's walks share: T f32 [N,K], a matrix f32 [K,K], scale and zero f32 [N,G], group I32 [K].
struct GptqProblem {
  const Tensor &t, &matrix, &scale, &zero, &group;
  int64_t n, k, groups;

  GptqProblem(const Tensor& t, const Tensor& matrix, const Tensor& scale, const Tensor& zero, const Tensor& group)
      : t(t), matrix(matrix), scale(scale), zero(zero), group(group) {
    require_tensor(t, "T", f32, {-1, -1});
    n = t.dim(0), k = t.dim(1);
    require_tensor(matrix, "the matrix", f32, {k, k});
    require_tensor(scale, "scale", f32, {n, -1});
    require_tensor(zero, "zero", f32, scale.shape);
    require_tensor(group, "group", i32, {k});
    groups = scale.dim(1);
  }
  static GptqProblem read(Arguments& a) {
    return {a.input("T"), a.input("the matrix"), a.input("scale"), a.input("zero"), a.input("group")};
  }
};

// A scale and a zero point for every group, by search in the Hessian's metric: T f32 [N,K], M f32 [K,K], group I32 [K]
// -> scale, zero f32 [N,G]. type; symmetric; constantZero (0), used when symmetric; steps, shrink (0.01): candidates p
// = 1 - i*shrink, i < steps; bothSigns: a symmetric integer grid has one more level on the negative side, so a negative
// scale is tried as well; scaleDtype (f32): the coarse types f8_e8m0 and f8_e4m3 get only candidates that they can
// hold, the others are searched in fp32 and rounded at the end (rounding first flips ties); scaleUnit (1): the global
// factor that stored e4m3 scales are multiplied by; bf16: on the CPU, a first look at the costs takes products in bf16
// (linalg.h), and fp32 decides among the cheapest.
struct GptqClip : Arguments {
  const Tensor &t = input("T"), &m = input("the matrix"), &group = input("group");
  const Tensor &scale = output("scale"), &zero = output("zero");
  QuantType type = quant_type();
  GptqProblem problem{t, m, scale, zero, group};
  bool symmetric = number("symmetric") != 0, both_signs = flag("bothSigns"), bf16 = flag("bf16");
  float constant_zero = real("constantZero", 0), unit = real("scaleUnit", 1);
  int steps = static_cast<int>(integer("steps"));
  double shrink = number("shrink", 0.01);
  DType scale_dtype = has("scaleDtype") ? dtype_from_name(text("scaleDtype")) : f32;

  explicit GptqClip(const Call& call) : Arguments(call, "gptq_clip") {
    require(steps >= 1 && steps * shrink < 1.0, "steps times shrink must stay below 1");
    done();
  }
};

// gptq_solve: T, U, scale, zero, group -> level f32 [N,K]. GPTQ's walk: round a column, push its error onto the columns
// not yet rounded. gptq_sparse_solve also writes keep f32 [N,K], 1 where a weight stays, else 0, and level is the zero
// where pruned; K a multiple of 4, columns 4i .. 4i+3 are neighbours in the stored weight; fixed: keep, of two ones in
// every four, is given and stays. type. passes of the dense one on CUDA (3), 1 or 3: planes of 16 bits.
struct GptqSolve : Arguments {
  bool sparse;
  GptqProblem problem = GptqProblem::read(*this);
  const Tensor& level = output("level", {f32}, problem.t.shape);
  const Tensor* keep = output_if(sparse, "keep", {f32}, problem.t.shape);
  QuantType type = quant_type();
  bool fixed = sparse && flag("fixed");
  int64_t passes = sparse ? 1 : integer("passes", 3);

  explicit GptqSolve(const Call& call, bool is_sparse = false)
      : Arguments(call, is_sparse ? "gptq_sparse_solve" : "gptq_solve"), sparse(is_sparse) {
    require(!sparse || problem.k % 4 == 0, "2:4 needs K divisible by 4");
    require(passes == 1 || passes == 3, "passes is 1 or 3");
    done();
  }
};

// gptq_descend: T, M, scale, zero, group; level f32 [N,K] (in place) -> changed f64 [1] = codes that moved, summed over
// `sweeps`. Each code to its best value given all others, in the metric M: never increases (What - T) M (What - T)^T;
// stops when a sweep moves nothing. Several problems of one type may be given, one's inputs behind the other's and
// their levels in that order: a device walks through them side by side, with the codes that each alone would get.
// bf16: on the CPU, gradients are products in bf16 (linalg.h). gptq_sparse_descend: one problem, keep in and out too;
// pairs change where that lowers the sum; fixed as of gptq_sparse_solve. type; passes of the dense one on CUDA: 1.
struct GptqDescend : Arguments {
  bool sparse;
  std::vector<GptqProblem> problems = all_problems();
  std::vector<const Tensor*> levels = all_levels();
  const Tensor& changed = output("changed", {f64}, {1});
  const Tensor* keep = output_if(sparse, "keep", {f32}, problems[0].t.shape);
  QuantType type = quant_type();
  bool fixed = sparse && flag("fixed"), bf16 = flag("bf16");
  int64_t sweeps = integer("sweeps"), passes = sparse ? 1 : integer("passes", 1);

  explicit GptqDescend(const Call& call, bool is_sparse = false)
      : Arguments(call, is_sparse ? "gptq_sparse_descend" : "gptq_descend"), sparse(is_sparse) {
    require(!sparse || problems[0].k % 4 == 0, "2:4 needs K divisible by 4");
    require(passes == 1 || passes == 3, "passes is 1 or 3");
    done();
  }

 private:
  std::vector<GptqProblem> all_problems() {
    std::vector<GptqProblem> all;
    do all.push_back(GptqProblem::read(*this));
    while (!sparse && left() > 0);
    return all;
  }
  std::vector<const Tensor*> all_levels() {
    std::vector<const Tensor*> all;
    for (const GptqProblem& problem : problems) all.push_back(&output("level", {f32}, problem.t.shape));
    return all;
  }
};

// The scales that fit fixed codes best: T, M, level f32 [N,K], zero f32 [N,G], group; scale f32 [N,G] (in place) ->
// refitted f64 [1] = rows that improved. With v_g the row's (level - zero) inside group g, the row's error is the
// quadratic s^T A s - 2 b^T s + const, A_gh = v_g M v_h^T, b_g = v_g M t^T: G equations a row. A row keeps its old
// scales when the solution is no improvement, or when a scale would change sign or by more than a factor of 4. TM f32
// [N,K] (optional): T M, which rounds of refits share on the CPU. twoLevel: f16 or f32; scales of a row are one number
// times whole factors (two_level_scales, ops/quant.h), exact in that dtype, and stay so. bf16: on the CPU, A is of
// products in bf16 (linalg.h), which hold integer codes exactly.
struct GptqRefit : Arguments {
  const Tensor &t = input("T"), &m = input("the matrix"), &level = input("level");
  const Tensor &zero = input("zero"), &group = input("group"), &scale = output("scale");
  GptqProblem problem{t, m, scale, zero, group};
  const Tensor& refitted = output("refitted", {f64}, {1});
  const Tensor* tm = last_input("TM", {f32}, t.shape);
  bool two_level = has("twoLevel"), bf16 = flag("bf16");
  DType dtype = two_level ? dtype_from_name(text("twoLevel")) : f32;

  explicit GptqRefit(const Call& call) : Arguments(call, "gptq_refit") {
    require_tensor(level, "level", f32, t.shape);
    done();
  }
};

// 2:4 (SparseGPT, Frantar and Alistarh 2023, section 3, whose saliency w^2 / U_jj^2 is here the exact price of each
// pair that may stay): T f32 [N,K], U f32 [K,K] -> pruned f32 [N,K], not rounded; keep f32 [N,K], 1 where a weight
// stays, else 0. K a multiple of 4.
struct GptqPrune : Arguments {
  const Tensor& t = input("T", {f32}, {-1, -1});
  const Tensor& u = input("U", {f32}, {t.dim(1), t.dim(1)});
  const Tensor& pruned = output("pruned", {f32}, t.shape);
  const Tensor& keep = output("keep", {f32}, t.shape);

  explicit GptqPrune(const Call& call) : Arguments(call, "gptq_prune") {
    require(t.dim(1) % 4 == 0, "2:4 needs K divisible by 4");
    done();
  }
};

// level f32 [N,K], order I32 [K] -> codes U8 [N,K], original order, raw bit patterns of `type`.
struct GptqEncode : Arguments {
  const Tensor& level = input("level", {f32}, {-1, -1});
  const Tensor& order = input("order", {i32}, {level.dim(1)});
  const Tensor& codes = output("codes", {u8}, level.shape);
  QuantType type = quant_type();

  explicit GptqEncode(const Call& call) : Arguments(call, "gptq_encode") { done(); }
};

// scale f32 -> stored f32, f16, bf16, f8_e8m0 or f8_e4m3, rounded f32 as stored (times `unit`, the global factor, 1),
// of one shape; info f64 [2] = {overflows, underflows}: scales that became infinite, or lie below what the dtype holds
// precisely (cpu/quant/scale.h).
struct GptqStoreScales : Arguments {
  const Tensor& scale = input("scale", {f32});
  const Tensor& stored = output("stored", kScaleTypes, scale.shape);
  const Tensor& rounded = output("rounded", {f32}, scale.shape);
  const Tensor& info = output("info", {f64}, {2});
  float unit = real("unit", 1);

  explicit GptqStoreScales(const Call& call) : Arguments(call, "gptq_store_scales") { done(); }
};

// sums f64 [2] = tr(D H D^T), tr(W H W^T), D = W - Wq; weight, quantized f32 (on CUDA f16 or bf16 too) [N,K], H [K,K].
struct ModuleError : Arguments {
  const Tensor& weight = input("weight", kFloats, {-1, -1});
  const Tensor& quantized = input("quantized", kFloats, weight.shape);
  const Tensor& h = input("H", kMoments, {weight.dim(1), weight.dim(1)});
  const Tensor& sums = output("sums", {f64}, {2});

  explicit ModuleError(const Call& call) : Arguments(call, "module_error") { done(); }
};

}  // namespace lpq::ops
