// Weights into blocks of GGUF by search: every part of a super-block gets the scale (and minimum) of least squared
// error among some trial grids, each refitted to its own codes in closed form; then the grid of scales is chosen in the
// same way, with all codes rounded anew for each trial, and at last every part tries the neighbours of its scale and
// minimum.
//
// One thread does a row; sums run in the order of the elements in f32 and nothing fuses, so that the bytes depend on
// the weights alone.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cpu/quant/gguf_blocks.h"
#include "lpq/exec.h"
#include "lpq/half.h"
#include "ops/arguments.h"

namespace lpq::gguf {
namespace {

constexpr float kInfinite = std::numeric_limits<float>::infinity();

// rint for |x| < 2^22, with ties to even, in any instruction set.
inline float rounded(float x) {
  constexpr float kRint = 0x1.8p23f;
  return (x + kRint) - kRint;
}
inline float clamped(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

// Squared error of x against scale * q - min, each weighted by w, each q the nearest of [low, high]; codes (plus
// `bias`) to q unless null.
float round_part(const float* x, const float* w, int n, float scale, float min, float low, float high, int bias,
                 uint8_t* q) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  float error = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float steps = clamped((x[i] + min) * inverse, -1e6f, 1e6f);
    const float code = std::isfinite(inverse) ? clamped(rounded(steps), low, high) : 0.0f;
    const float back = scale * code - min;
    const float d = x[i] - back;
    error += w[i] * (d * d);
    if (q) q[i] = static_cast<uint8_t>(static_cast<int>(code) + bias);
  }
  return error;
}

struct Fit {
  float scale = 0.0f, min = 0.0f;
};

// x ~ scale * q, q in [-half, half - 1].
Fit fit_symmetric(const float* x, const float* w, int n, int half) {
  float extreme = 0.0f;
  for (int i = 0; i < n; ++i)
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  Fit best;
  if (extreme == 0.0f) return best;
  const float low = static_cast<float>(-half), high = static_cast<float>(half - 1);
  float least = kInfinite;
  for (int side = 0; side < 2; ++side)
    for (int j = -8; j <= 8; ++j) {
      const float reach = (side == 0 ? low : high) + (side == 0 ? -0.1f : 0.1f) * static_cast<float>(j);
      const float inverse = reach / extreme;
      if (!std::isfinite(inverse)) continue;
      float xq = 0.0f, qq = 0.0f;
      for (int i = 0; i < n; ++i) {
        const float q = clamped(rounded(x[i] * inverse), low, high);
        xq += w[i] * (x[i] * q);
        qq += w[i] * (q * q);
      }
      if (qq == 0.0f) continue;
      const float scale = xq / qq, error = round_part(x, w, n, scale, 0.0f, low, high, 0, nullptr);
      if (error < least) least = error, best.scale = scale;
    }
  return best;
}

// x ~ scale * q - min, q in [0, high], scale and min at least 0.
Fit fit_affine(const float* x, const float* w, int n, float high) {
  float low = 0.0f, top = 0.0f;
  for (int i = 0; i < n; ++i) low = std::min(low, x[i]), top = std::max(top, x[i]);
  Fit best;
  if (top == low) return best;
  float least = kInfinite;
  for (int j = -6; j <= 10; ++j) {
    float scale = (top - low) / (high + 0.15f * static_cast<float>(j) * (high < 4.0f ? 0.5f : 1.0f)), min = -low;
    for (int turn = 0; turn < 2; ++turn) {
      const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
      if (!std::isfinite(inverse)) break;
      float sx = 0.0f, sq = 0.0f, xq = 0.0f, qq = 0.0f, count = 0.0f;
      for (int i = 0; i < n; ++i) {
        const float q = clamped(rounded((x[i] + min) * inverse), 0.0f, high);
        sx += w[i] * x[i], sq += w[i] * q, xq += w[i] * (x[i] * q), qq += w[i] * (q * q), count += w[i];
      }
      const float det = count * qq - sq * sq;
      if (det > 0.0f) {
        scale = (count * xq - sq * sx) / det;
        min = (scale * sq - sx) / count;
      }
      if (!(det > 0.0f) || min < 0.0f) min = 0.0f, scale = qq > 0.0f ? xq / qq : 0.0f;
      if (!(scale > 0.0f)) break;
      const float error = round_part(x, w, n, scale, min, 0.0f, high, 0, nullptr);
      if (error < least) least = error, best = {scale, min};
    }
  }
  if (least == kInfinite) {  // every weight is the same negative number, or the part is too small for f32 products
    best = {0.0f, -low};
    if (low == 0.0f) best.scale = top / high, best.min = 0.0f;
  }
  return best;
}

struct Block {
  uint8_t q[256], sc[16], mn[16];
  uint16_t d = 0, dmin = 0;
  float error = kInfinite;
};

// q3_k, q6_k: sixteen parts of 16, signed scales in [-steps, steps - 1].
Block search_symmetric(const float* x, const float* w, int half, int steps) {
  Fit fits[16];
  float extreme = 0.0f;
  for (int p = 0; p < 16; ++p) {
    fits[p] = fit_symmetric(x + 16 * p, w + 16 * p, 16, half);
    if (std::fabs(fits[p].scale) > std::fabs(extreme)) extreme = fits[p].scale;
  }
  const float low = static_cast<float>(-half), high = static_cast<float>(half - 1);
  const float least = static_cast<float>(-steps), most = static_cast<float>(steps - 1);
  float scales[16] = {};
  Block best;
  for (int side = 0; side < 2; ++side)
    for (int j = -2; j <= 2; ++j) {
      const float reach = (side == 0 ? least : most) * (1.0f + 0.02f * static_cast<float>(j));
      const uint16_t bits = f32_to_f16(extreme / reach);
      const float d = f16_to_f32(bits);
      const float inverse = d != 0.0f ? 1.0f / d : 0.0f;
      float error = 0.0f, tried[16];
      for (int p = 0; p < 16; ++p) {
        tried[p] = clamped(rounded(clamped(fits[p].scale * inverse, -1e6f, 1e6f)), least, most);
        error += round_part(x + 16 * p, w + 16 * p, 16, d * tried[p], 0.0f, low, high, 0, nullptr);
      }
      if (error < best.error) {
        best.error = error, best.d = bits;
        std::copy(tried, tried + 16, scales);
      }
    }
  const float d = f16_to_f32(best.d);
  for (int p = 0; p < 16; ++p) {
    const float middle = scales[p];
    float error = round_part(x + 16 * p, w + 16 * p, 16, d * middle, 0.0f, low, high, 0, nullptr);
    for (int step = -1; step <= 1; step += 2) {
      const float other = middle + static_cast<float>(step);
      if (other < least || other > most) continue;
      const float trial = round_part(x + 16 * p, w + 16 * p, 16, d * other, 0.0f, low, high, 0, nullptr);
      if (trial < error) error = trial, scales[p] = other;
    }
    round_part(x + 16 * p, w + 16 * p, 16, d * scales[p], 0.0f, low, high, half, best.q + 16 * p);
    best.sc[p] = static_cast<uint8_t>(static_cast<int>(scales[p]));
  }
  return best;
}

// q2_k: sixteen parts of 16; q4_k, q5_k: eight of 32. Scales and minima in [0, steps].
Block search_affine(const float* x, const float* w, int parts, float high, float steps) {
  const int n = 256 / parts;
  Fit fits[16];
  float most_scale = 0.0f, most_min = 0.0f;
  for (int p = 0; p < parts; ++p) {
    fits[p] = fit_affine(x + n * p, w + n * p, n, high);
    most_scale = std::max(most_scale, fits[p].scale);
    most_min = std::max(most_min, fits[p].min);
  }
  float sc[16] = {}, mn[16] = {};
  Block best;
  for (int i = -1; i <= 1; ++i)
    for (int j = -1; j <= 1; ++j) {
      const uint16_t d_bits = f32_to_f16(most_scale / (steps * (1.0f + 0.03f * static_cast<float>(i))));
      const uint16_t m_bits = f32_to_f16(most_min / (steps * (1.0f + 0.03f * static_cast<float>(j))));
      const float d = f16_to_f32(d_bits), dmin = f16_to_f32(m_bits);
      const float inverse_d = d > 0.0f ? 1.0f / d : 0.0f, inverse_m = dmin > 0.0f ? 1.0f / dmin : 0.0f;
      float error = 0.0f, s[16], m[16];
      for (int p = 0; p < parts; ++p) {
        s[p] = clamped(rounded(clamped(fits[p].scale * inverse_d, 0.0f, 1e6f)), 0.0f, steps);
        m[p] = clamped(rounded(clamped(fits[p].min * inverse_m, 0.0f, 1e6f)), 0.0f, steps);
        error += round_part(x + n * p, w + n * p, n, d * s[p], dmin * m[p], 0.0f, high, 0, nullptr);
      }
      if (error < best.error) {
        best.error = error, best.d = d_bits, best.dmin = m_bits;
        std::copy(s, s + parts, sc);
        std::copy(m, m + parts, mn);
      }
    }
  const float d = f16_to_f32(best.d), dmin = f16_to_f32(best.dmin);
  for (int p = 0; p < parts; ++p) {
    const float scale = sc[p], min = mn[p];
    float least = round_part(x + n * p, w + n * p, n, d * scale, dmin * min, 0.0f, high, 0, nullptr);
    for (int i = -1; i <= 1; ++i)
      for (int j = -1; j <= 1; ++j) {
        const float s = scale + static_cast<float>(i), m = min + static_cast<float>(j);
        if (s < 0.0f || s > steps || m < 0.0f || m > steps) continue;
        const float error = round_part(x + n * p, w + n * p, n, d * s, dmin * m, 0.0f, high, 0, nullptr);
        if (error < least) least = error, sc[p] = s, mn[p] = m;
      }
    round_part(x + n * p, w + n * p, n, d * sc[p], dmin * mn[p], 0.0f, high, 0, best.q + n * p);
    best.sc[p] = static_cast<uint8_t>(sc[p]);
    best.mn[p] = static_cast<uint8_t>(mn[p]);
  }
  return best;
}

// What the block means, as readers compute it: (d * scale) * q - dmin * min, products and difference rounded to f32.
void mean_block(Type type, const Block& b, float* y) {
  const float d = f16_to_f32(b.d), dmin = f16_to_f32(b.dmin);
  const bool sixteen = type == Type::q2_k || type == Type::q3_k || type == Type::q6_k;
  for (int e = 0; e < 256; ++e) {
    const int p = e / (sixteen ? 16 : 32);
    if (type == Type::q3_k || type == Type::q6_k) {
      const float step = d * static_cast<float>(static_cast<int8_t>(b.sc[p]));
      y[e] = step * static_cast<float>(static_cast<int>(b.q[e]) - (type == Type::q3_k ? 4 : 32));
    } else {
      const float step = d * static_cast<float>(b.sc[p]), min = dmin * static_cast<float>(b.mn[p]);
      const float product = step * static_cast<float>(b.q[e]);
      y[e] = product - min;
    }
  }
}

Block search_block(Type type, const float* x, const float* w) {
  switch (type) {
    case Type::q2_k: return search_affine(x, w, 16, 3.0f, 15.0f);
    case Type::q3_k: return search_symmetric(x, w, 4, 32);
    case Type::q4_k: return search_affine(x, w, 8, 15.0f, 63.0f);
    case Type::q5_k: return search_affine(x, w, 8, 31.0f, 63.0f);
    default: return search_symmetric(x, w, 32, 128);
  }
}

// 32 weights as q8_0: the largest magnitude is code 127 or -127.
void search_q8(const float* x, uint8_t* out, float* y, bool& over) {
  float most = 0.0f;
  for (int i = 0; i < 32; ++i) most = std::max(most, std::fabs(x[i]));
  const uint16_t bits = f32_to_f16(most / 127.0f);
  over = over || (bits & 0x7c00u) == 0x7c00u;
  const float d = f16_to_f32(bits);
  uint8_t q[32];
  round_part(x, x, 32, d, 0.0f, -128.0f, 127.0f, 0, q);  // its error is not asked for
  put_block32(Type::q8_0, q, bits, 0, out);
  for (int i = 0; i < 32; ++i) y[i] = static_cast<float>(static_cast<int8_t>(q[i])) * d;
}

// w F32 [N, K], order I32 [N], perhaps what squared errors of each column weigh, F32 [K] above 0 -> blocks U8 [N,
// K/block*bytes], row r of which is row order[r] of w; mean F32 [N, K]: what the blocks stand for, in w's order of
// rows; stats F64 [N, 4]: of each row of w, the squared error, the squared norm, weights that are not finite and blocks
// whose scale f16 does not hold.
void search(Call& call, Exec& exec) {
  Arguments a(call, "gguf_search");
  const TypeFacts facts = type_facts(a.text("type"));
  require(facts.type == Type::q8_0 || facts.block == 256, "the search is for q8_0 and the K types");
  const Tensor& w = a.input("w", {DType::f32}, {-1, -1});
  const int64_t n = w.dim(0), k = w.dim(1), count = k / facts.block, row_bytes = count * facts.bytes;
  require(k % facts.block == 0, "K is a multiple of the block");
  const Tensor &order = a.input("order", {DType::i32}, {n}), *weights = a.last_input("weights", {DType::f32}, {k}),
               &blocks = a.output("blocks", {DType::u8}, {n, row_bytes}),
               &mean = a.output("mean", {DType::f32}, w.shape), &stats = a.output("stats", {DType::f64}, {n, 4});
  a.done();
  const auto* x = w.data<float>();
  const auto* rows = order.data<int32_t>();
  for (int64_t r = 0; r < n; ++r) require(rows[r] >= 0 && rows[r] < n, "order stays inside N");
  const std::vector<float> alike(weights ? 0 : 256, 1.0f);
  for (int64_t i = 0; weights && i < k; ++i) {
    const float weight = weights->data<float>()[i];
    require(weight > 0.0f && std::isfinite(weight), "weights of errors are above 0");
  }
  auto* out = blocks.data<uint8_t>();
  auto* y = mean.data<float>();
  auto* sums = stats.data<double>();
  exec.total = n;
  exec.pool.parallel_for(n, 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = rows[r];
      const float* from = x + row * k;
      float* back = y + row * k;
      double error = 0.0, norm = 0.0, broken = 0.0, over = 0.0;
      for (int64_t i = 0; i < k; ++i) broken += std::isfinite(from[i]) ? 0.0 : 1.0;
      if (broken == 0.0)
        for (int64_t b = 0; b < count; ++b) {
          uint8_t* to = out + r * row_bytes + b * facts.bytes;
          bool large = false;
          if (facts.type == Type::q8_0) search_q8(from + b * 32, to, back + b * 32, large);
          else {
            const float* weigh = weights ? weights->data<float>() + b * 256 : alike.data();
            const Block block = search_block(facts.type, from + b * 256, weigh);
            large = (block.d & 0x7c00u) == 0x7c00u || (block.dmin & 0x7c00u) == 0x7c00u || block.error == kInfinite;
            if (facts.type == Type::q3_k) {
              uint8_t biased[16];
              for (int p = 0; p < 16; ++p) biased[p] = static_cast<uint8_t>(static_cast<int8_t>(block.sc[p]) + 32);
              put_block256(facts.type, block.q, biased, block.mn, block.d, block.dmin, to);
            } else put_block256(facts.type, block.q, block.sc, block.mn, block.d, block.dmin, to);
            mean_block(facts.type, block, back + b * 256);
          }
          over += large ? 1.0 : 0.0;
        }
      for (int64_t i = 0; i < k && broken == 0.0; ++i) {
        const double d = static_cast<double>(from[i]) - back[i];
        error += d * d;
        norm += static_cast<double>(from[i]) * from[i];
      }
      sums[row * 4] = error, sums[row * 4 + 1] = norm, sums[row * 4 + 2] = broken, sums[row * 4 + 3] = over;
    }
    exec.done += end - begin;
  });
}
LPQ_OP(search, "gguf_search");

}  // namespace
}  // namespace lpq::gguf
