// The solver's operations: gptq_factor, gptq_correction, gptq_target, gptq_clip, gptq_solve, gptq_descend, gptq_refit,
// gptq_prune, gptq_sparse_solve, gptq_sparse_descend, gptq_encode, gptq_store_scales, module_error.
//
// Everything between factor and encode is in solving order: column j of T, U, M and level is input feature order[j],
// and group[j] the scale group of the j-th solved column. H and D are f64, on CUDA f32 too. `type` stands for the
// parameters of typeParams() (src/core/quant-type.ts). An order or a group that names what is not there:
// LPQ_NATIVE_ARGUMENT.
#pragma once
#include "ops/linalg.h"
#include "ops/quant.h"

namespace lpq::ops {

inline constexpr Types kMoments = {DType::f64, DType::f32};

// H [K,K] symmetric, order I32 [K] -> U f32 [K,K] upper, U^T U = (P H P^T + damp)^-1; M f32 [K,K] = P H P^T + damp;
// dead U8 [K], 1 where H[k][k] = 0 (original order); info f64 [3] = {damp fraction used, attempts, floored columns}.
// damp: fraction of mean(diag H), between 0 and 10. splitFrom, on CUDA: columns from which on products are of f16
// planes. What cannot be factored: LPQ_NATIVE_NUMERICS.
struct GptqFactor {
  const Tensor &h, &order, &u, &m, &dead, &info;
  double damp;
  int64_t split_from;

  static GptqFactor parse(const Call& call) {
    Arguments a(call, "gptq_factor");
    const Tensor& h = square(a.input("H"), "H", kMoments);
    const int64_t k = h.dim(0);
    require(k > 0, "H is empty");
    const GptqFactor of{h,
                        a.input("order", {DType::i32}, {k}),
                        a.output("U", {DType::f32}, h.shape),
                        a.output("M", {DType::f32}, h.shape),
                        a.output("dead", {DType::u8}, {k}),
                        a.output("info", {DType::f64}, {3}),
                        a.number("damp"),
                        a.integer("splitFrom", 3072)};
    require(of.damp > 0 && of.damp < 10, "damp must be between 0 and 10");
    return a.done(), of;
  }
};

// B f32 [K,K] = P D P^T U^T U of D [K,K] = sum (xf - xq) xqT (cross_drift), order I32 [K] and U f32 [K,K]: GPTAQ's
// correction of one feed, worth it from K rows on.
struct GptqCorrection {
  const Tensor &drift, &order, &u, &matrix;

  static GptqCorrection parse(const Call& call) {
    Arguments a(call, "gptq_correction");
    const Tensor& drift = square(a.input("D"), "D", kMoments);
    const GptqCorrection of{drift, a.input("order", {DType::i32}, {drift.dim(0)}),
                            a.input("U", {DType::f32}, drift.shape), a.output("B", {DType::f32}, drift.shape)};
    return a.done(), of;
  }
};

// The weights that the codes should reproduce: W f32, f16 or bf16 [N,K], order I32 [K], dead U8 [K] -> T f32 [N,K],
// column j = input feature order[j], 0 where dead; bad f64 [2] = {weights that are NaN or infinite, the first one's
// flat index in W}. With alpha > 0 (0) also D [K,K] and U f32 [K,K], or B of gptq_correction instead of both: quantized
// predecessors change a layer's input from xf to xq. ||W Xf - Q Xq||^2 is least at Q = W C H^-1 with C = sum xf xqT,
// which equals W + W D H^-1; GPTAQ (Li et al. 2025) goes the fraction alpha of that way, since D is noisy. H^-1 = U^T U
// is the damped one.
struct GptqTarget {
  const Tensor &w, &order, &dead, &t, &bad;
  const Tensor *drift, *u, *matrix;  // D and U, or B, or none
  double alpha;

  static GptqTarget parse(const Call& call) {
    Arguments a(call, "gptq_target");
    const Tensor& w = a.input("W", kFloats, {-1, -1});
    const int64_t k = w.dim(1);
    const Tensor &order = a.input("order", {DType::i32}, {k}), &dead = a.input("dead", {DType::u8}, {k});
    const bool finished = a.left() == 1, parts = a.left() > 1;
    const Tensor *matrix = a.input_if(finished, "B", {DType::f32}, {k, k}),
                 *drift = a.input_if(parts, "D", kMoments, {k, k}), *u = a.input_if(parts, "U", {DType::f32}, {k, k});
    const GptqTarget of{w,
                        order,
                        dead,
                        a.output("T", {DType::f32}, w.shape),
                        a.output("bad", {DType::f64}, {2}),
                        drift,
                        u,
                        matrix,
                        a.number("alpha", 0)};
    require(of.alpha == 0 || finished || parts, "alpha needs D and U, or B");
    return a.done(), of;
  }
};

// What the solver's walks share: T f32 [N,K], a matrix f32 [K,K], scale and zero f32 [N,G], group I32 [K].
struct GptqProblem {
  const Tensor &t, &matrix, &scale, &zero, &group;
  int64_t n, k, groups;

  static GptqProblem make(const Tensor& t, const Tensor& matrix, const Tensor& scale, const Tensor& zero,
                          const Tensor& group) {
    require_tensor(t, "T", DType::f32, {-1, -1});
    const int64_t n = t.dim(0), k = t.dim(1);
    require_tensor(matrix, "the matrix", DType::f32, {k, k});
    require_tensor(scale, "scale", DType::f32, {n, -1});
    require_tensor(zero, "zero", DType::f32, scale.shape);
    require_tensor(group, "group", DType::i32, {k});
    return {t, matrix, scale, zero, group, n, k, scale.dim(1)};
  }
  static GptqProblem read(Arguments& a) {
    const Tensor &t = a.input("T"), &matrix = a.input("the matrix"), &scale = a.input("scale"), &zero = a.input("zero"),
                 &group = a.input("group");
    return make(t, matrix, scale, zero, group);
  }
};

// A scale and a zero point for every group, by search in the Hessian's metric: T f32 [N,K], M f32 [K,K], group I32 [K]
// -> scale, zero f32 [N,G]. type; symmetric; constantZero (0), used when symmetric; steps, shrink (0.01): candidates p
// = 1 - i*shrink, i < steps; bothSigns: a symmetric integer grid has one more level on the negative side, so a negative
// scale is tried as well; scaleDtype (f32): the coarse types f8_e8m0 and f8_e4m3 get only candidates that they can
// hold, the others are searched in fp32 and rounded at the end (rounding first flips ties); scaleUnit (1): the global
// factor that stored e4m3 scales are multiplied by.
struct GptqClip {
  GptqProblem problem;
  QuantType type;
  bool symmetric, both_signs;
  float constant_zero, unit;
  int steps;
  double shrink;
  DType scale_dtype;

  static GptqClip parse(const Call& call) {
    Arguments a(call, "gptq_clip");
    const Tensor &t = a.input("T"), &m = a.input("the matrix"), &group = a.input("group"), &scale = a.output("scale"),
                 &zero = a.output("zero");
    const QuantType type = a.quant_type();
    const GptqClip of{GptqProblem::make(t, m, scale, zero, group),
                      type,
                      a.number("symmetric") != 0,
                      a.flag("bothSigns"),
                      a.real("constantZero", 0),
                      a.real("scaleUnit", 1),
                      static_cast<int>(a.integer("steps")),
                      a.number("shrink", 0.01),
                      a.has("scaleDtype") ? dtype_from_name(a.text("scaleDtype")) : DType::f32};
    require(of.steps >= 1 && of.steps * of.shrink < 1.0, "steps times shrink must stay below 1");
    return a.done(), of;
  }
};

// gptq_solve: T, U, scale, zero, group -> level f32 [N,K]. GPTQ's walk: round a column, push its error onto the columns
// not yet rounded. gptq_sparse_solve also writes keep f32 [N,K], 1 where a weight stays, else 0, and level is the zero
// where pruned; K a multiple of 4, columns 4i .. 4i+3 are neighbours in the stored weight; fixed: keep, of two ones in
// every four, is given and stays. type. passes of the dense one on CUDA (3), 1 or 3: planes of 16 bits.
struct GptqSolve {
  GptqProblem problem;
  const Tensor& level;
  const Tensor* keep;
  QuantType type;
  bool fixed;
  int64_t passes;

  static GptqSolve parse(const Call& call) { return parse(call, "gptq_solve", false); }
  static GptqSolve parse_sparse(const Call& call) { return parse(call, "gptq_sparse_solve", true); }

 private:
  static GptqSolve parse(const Call& call, const char* op, bool sparse) {
    Arguments a(call, op);
    const GptqProblem p = GptqProblem::read(a);
    const Tensor& level = a.output("level", {DType::f32}, p.t.shape);
    const Tensor* keep = sparse ? &a.output("keep", {DType::f32}, p.t.shape) : nullptr;
    require(!sparse || p.k % 4 == 0, "2:4 needs K divisible by 4");
    const QuantType type = a.quant_type();
    const GptqSolve of{p, level, keep, type, sparse && a.flag("fixed"), sparse ? 1 : a.integer("passes", 3)};
    require(of.passes == 1 || of.passes == 3, "passes is 1 or 3");
    return a.done(), of;
  }
};

// gptq_descend: T, M, scale, zero, group; level f32 [N,K] (in place) -> changed f64 [1] = codes that moved, summed over
// `sweeps`. Each code to its best value given all others, in the metric M: never increases (What - T) M (What - T)^T;
// stops when a sweep moves nothing. gptq_sparse_descend: keep in and out too; pairs change where that lowers the sum;
// fixed as of gptq_sparse_solve. type; passes of the dense one on CUDA: 1.
struct GptqDescend {
  GptqProblem problem;
  const Tensor &level, &changed;
  const Tensor* keep;
  QuantType type;
  bool fixed;
  int64_t sweeps, passes;

  static GptqDescend parse(const Call& call) { return parse(call, "gptq_descend", false); }
  static GptqDescend parse_sparse(const Call& call) { return parse(call, "gptq_sparse_descend", true); }

 private:
  static GptqDescend parse(const Call& call, const char* op, bool sparse) {
    Arguments a(call, op);
    const GptqProblem p = GptqProblem::read(a);
    const Tensor &level = a.output("level", {DType::f32}, p.t.shape), &changed = a.output("changed", {DType::f64}, {1});
    const Tensor* keep = sparse ? &a.output("keep", {DType::f32}, p.t.shape) : nullptr;
    require(!sparse || p.k % 4 == 0, "2:4 needs K divisible by 4");
    const QuantType type = a.quant_type();
    const GptqDescend of{p,
                         level,
                         changed,
                         keep,
                         type,
                         sparse && a.flag("fixed"),
                         a.integer("sweeps"),
                         sparse ? 1 : a.integer("passes", 1)};
    require(of.passes == 1 || of.passes == 3, "passes is 1 or 3");
    return a.done(), of;
  }
};

// The scales that fit fixed codes best: T, M, level f32 [N,K], zero f32 [N,G], group; scale f32 [N,G] (in place) ->
// refitted f64 [1] = rows that improved. With v_g the row's (level - zero) inside group g, the row's error is the
// quadratic s^T A s - 2 b^T s + const, A_gh = v_g M v_h^T, b_g = v_g M t^T: G equations a row. A row keeps its old
// scales when the solution is no improvement, or when a scale would change sign or by more than a factor of 4.
struct GptqRefit {
  GptqProblem problem;
  const Tensor &level, &refitted;

  static GptqRefit parse(const Call& call) {
    Arguments a(call, "gptq_refit");
    const Tensor &t = a.input("T"), &m = a.input("the matrix"), &level = a.input("level"), &zero = a.input("zero"),
                 &group = a.input("group"), &scale = a.output("scale");
    const GptqRefit of{GptqProblem::make(t, m, scale, zero, group), level, a.output("refitted", {DType::f64}, {1})};
    require_tensor(level, "level", DType::f32, t.shape);
    return a.done(), of;
  }
};

// 2:4 (SparseGPT, Frantar and Alistarh 2023, section 3, whose saliency w^2 / U_jj^2 is here the exact price of each
// pair that may stay): T f32 [N,K], U f32 [K,K] -> pruned f32 [N,K], not rounded; keep f32 [N,K], 1 where a weight
// stays, else 0. K a multiple of 4.
struct GptqPrune {
  const Tensor &t, &u, &pruned, &keep;

  static GptqPrune parse(const Call& call) {
    Arguments a(call, "gptq_prune");
    const Tensor &t = a.input("T", {DType::f32}, {-1, -1}), &u = a.input("U", {DType::f32}, {t.dim(1), t.dim(1)});
    require(t.dim(1) % 4 == 0, "2:4 needs K divisible by 4");
    const GptqPrune of{t, u, a.output("pruned", {DType::f32}, t.shape), a.output("keep", {DType::f32}, t.shape)};
    return a.done(), of;
  }
};

// level f32 [N,K], order I32 [K] -> codes U8 [N,K], original order, raw bit patterns of `type`.
struct GptqEncode {
  const Tensor &level, &order, &codes;
  QuantType type;

  static GptqEncode parse(const Call& call) {
    Arguments a(call, "gptq_encode");
    const Tensor& level = a.input("level", {DType::f32}, {-1, -1});
    const GptqEncode of{level, a.input("order", {DType::i32}, {level.dim(1)}),
                        a.output("codes", {DType::u8}, level.shape), a.quant_type()};
    return a.done(), of;
  }
};

// scale f32 -> stored f32, f16, bf16, f8_e8m0 or f8_e4m3, rounded f32 as stored (times `unit`, the global factor, 1),
// of one shape; info f64 [2] = {overflows, underflows}: scales that became infinite, or lie below what the dtype holds
// precisely (cpu/quant/scale.h).
struct GptqStoreScales {
  const Tensor &scale, &stored, &rounded, &info;
  float unit;

  static GptqStoreScales parse(const Call& call) {
    Arguments a(call, "gptq_store_scales");
    const Tensor& scale = a.input("scale");
    require_dtype(scale, "scale", {DType::f32});
    const GptqStoreScales of{scale, a.output("stored", kScaleTypes, scale.shape),
                             a.output("rounded", {DType::f32}, scale.shape), a.output("info", {DType::f64}, {2}),
                             a.real("unit", 1)};
    return a.done(), of;
  }
};

// sums f64 [2] = tr(D H D^T), tr(W H W^T), D = W - Wq; weight, quantized f32 (on CUDA f16 or bf16 too) [N,K], H [K,K].
struct ModuleError {
  const Tensor &weight, &quantized, &h, &sums;

  static ModuleError parse(const Call& call) {
    Arguments a(call, "module_error");
    const Tensor &w = a.input("weight", kFloats, {-1, -1}), &q = a.input("quantized", kFloats, w.shape);
    const ModuleError of{w, q, a.input("H", kMoments, {w.dim(1), w.dim(1)}), a.output("sums", {DType::f64}, {2})};
    return a.done(), of;
  }
};

}  // namespace lpq::ops
