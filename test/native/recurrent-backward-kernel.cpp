// Gradients of layers with a state (native/cuda/recurrent/gated_delta_backward.cuh, selective_scan_backward.cuh), run
// on the host by threads that the host plays: every shape that is compiled, with tails of rows and columns, sequences
// of several spans and empty ones, states kept by sequences and by tokens, rates of heads and of channels; against the
// same steps in double precision. Outputs, kept states and shared memory are full of NaN before.
//
// The bound: 2e-5 of the largest element of a tensor, as of gradients.ts: fp32 sums of some 64 products and states of
// 150 tokens that decay err by some 1e-6 of it.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>

#include "asynchronous.h"
#include "cuda/recurrent/gated_delta_backward.cuh"
#include "cuda/recurrent/selective_scan_backward.cuh"
#include "memory.h"

using namespace lpq::cuda;

namespace {

using Floats = std::vector<float>;
using Doubles = std::vector<double>;

int checks = 0, failures = 0;
double worst = 0;
std::mt19937_64 lot(7);

Floats normals(int count) {
  std::normal_distribution<double> normal;
  Floats list(static_cast<size_t>(count));
  for (float& x : list) x = static_cast<float>(normal(lot));
  return list;
}
Floats between(int count, double least, double most) {
  std::uniform_real_distribution<double> uniform(least, most);
  Floats list(static_cast<size_t>(count));
  for (float& x : list) x = static_cast<float>(uniform(lot));
  return list;
}
Floats poisoned(int64_t count) { return Floats(static_cast<size_t>(count), NAN); }
size_t at(int64_t i) { return static_cast<size_t>(i); }

void compare(const std::string& what, const Floats& got, const Doubles& want) {
  ++checks;
  double most = 0;
  for (const double x : want) most = std::max(most, std::fabs(x));
  for (size_t i = 0; i < want.size(); ++i) {
    const double share = std::fabs(static_cast<double>(got[i]) - want[i]) / (2e-5 * most);
    if (share <= 1) {
      worst = std::max(worst, share);
      continue;
    }
    if (++failures <= 20)
      std::printf("FAIL %s has %.9g at %zu, not %.9g\n", what.c_str(), static_cast<double>(got[i]), i, want[i]);
    return;
  }
}

// Sums of `each` blocks in a row of [blocks, T, width], as [T, blocks / each, width].
Floats together(const Floats& from, int tokens, int blocks, int each, int width) {
  Floats made(at(static_cast<int64_t>(tokens) * (blocks / each) * width), 0.0f);
  for (int b = 0; b < blocks; ++b)
    for (int t = 0; t < tokens; ++t)
      for (int i = 0; i < width; ++i)
        made[at((t * (blocks / each) + b / each) * width + i)] += from[at((b * tokens + t) * width + i)];
  return made;
}

struct Sequences {
  std::vector<int> starts{0};
  unsigned fault = 0;
  explicit Sequences(const std::vector<int>& lengths) {
    for (const int length : lengths) starts.push_back(starts.back() + length);
  }
  int count() const { return static_cast<int>(starts.size()) - 1; }
  int tokens() const { return starts.back(); }
  Past past() { return {starts.data(), nullptr, nullptr, nullptr, count(), tokens(), 0, &fault}; }
};

template <int R, class Gradient>
std::string run(Sequences& of, int blocks, size_t room, bool by_tokens, Gradient gradient) {
  const int groups = by_tokens ? of.tokens() / kGroup<R> + of.count() : of.count() * (kSpan / kGroup<R>),
            spans = of.tokens() / kSpan + of.count();
  Floats span_states = poisoned(int64_t{256} * R * blocks * spans),
         group_states = poisoned(int64_t{256} * R * blocks * groups);
  const KeptStates kept{span_states.data(), group_states.data(), spans, groups, by_tokens};
  for (int s = 0; s < of.count(); ++s) {
    simt::begin(static_cast<uint64_t>(s) + 1);
    const std::string told = simt::try_run(blocks, kColumnThreads, 1, static_cast<int>(room),
                                           static_cast<uint64_t>(s) + 1, [&] { gradient(of.past(), kept, s); });
    if (!told.empty()) return told;
  }
  return of.fault ? "a fault" : "";
}

template <int R, bool CHANNELS>
void delta(int heads, int key_heads, int key_dim, int value_dim, const std::vector<int>& lengths, bool by_tokens) {
  Sequences of(lengths);
  const int tokens = of.tokens(), per = CHANNELS ? key_dim : 1, parts = (value_dim + 31) / 32, blocks = heads * parts;
  Memory<float> q(normals(tokens * key_heads * key_dim)), k(normals(tokens * key_heads * key_dim)),
      v(normals(tokens * heads * value_dim)), dy(normals(tokens * heads * value_dim)),
      factor(between(tokens * heads * per, 0.3, 1)), weight(between(tokens * heads, 0, 1)),
      errors(poisoned(tokens * heads * value_dim));
  for (int i = 0; i < tokens * key_heads; ++i)
    for (float* each : {q.data() + i * key_dim, k.data() + i * key_dim}) {
      double squares = 0;
      for (int j = 0; j < key_dim; ++j) squares += static_cast<double>(each[j]) * each[j];
      for (int j = 0; j < key_dim; ++j) each[j] = static_cast<float>(each[j] / std::sqrt(squares));
    }
  Floats of_q = poisoned(blocks * tokens * key_dim), of_k = of_q, of_decay = poisoned(blocks * tokens * per),
         of_beta = poisoned(blocks * tokens);
  const DeltaGradient a{q.data(),
                        k.data(),
                        factor.data(),
                        weight.data(),
                        v.data(),
                        dy.data(),
                        errors.data(),
                        errors.data(),
                        of_q.data(),
                        of_k.data(),
                        of_decay.data(),
                        of_beta.data(),
                        tokens,
                        0,
                        heads,
                        key_heads,
                        key_dim,
                        value_dim,
                        key_dim % 4 == 0 && value_dim % 4 == 0};
  const std::string name = "delta " + std::to_string(key_dim) + "x" + std::to_string(value_dim);
  const std::string told =
      run<R>(of, blocks, sizeof(DeltaRoom<R, CHANNELS>), by_tokens, [&](Past past, KeptStates kept, int s) {
        delta_backward<R, CHANNELS>(a, past, kept, s, *reinterpret_cast<DeltaRoom<R, CHANNELS>*>(simt::own_shared()));
      });
  if (!told.empty()) ++failures, std::printf("FAIL %s: %s\n", name.c_str(), told.c_str());

  Doubles dq(at(tokens * heads * key_dim)), dk = dq, dv(at(tokens * heads * value_dim)),
                                            ddecay(at(tokens * heads * per), 0.0), dbeta(at(tokens * heads), 0.0);
  for (int s = 0; s < of.count(); ++s)
    for (int h = 0; h < heads; ++h) {
      const int first = of.starts[at(s)], count = of.starts[at(s + 1)] - first;
      std::vector<Doubles> states{Doubles(at(key_dim * value_dim), 0.0)}, errors_of;
      const auto key = [&](int t) { return (t * key_heads + h / (heads / key_heads)) * key_dim; };
      const auto decay = [&](int t, int i) {
        return static_cast<double>(factor.data()[(t * heads + h) * per + (CHANNELS ? i : 0)]);
      };
      for (int t = first; t < first + count; ++t) {
        Doubles state = states.back(), e(at(value_dim));
        for (int c = 0; c < value_dim; ++c) {
          e[at(c)] = v.data()[(t * heads + h) * value_dim + c];
          for (int i = 0; i < key_dim; ++i) {
            state[at(i * value_dim + c)] *= decay(t, i);
            e[at(c)] -= k.data()[key(t) + i] * state[at(i * value_dim + c)];
          }
          for (int i = 0; i < key_dim; ++i)
            state[at(i * value_dim + c)] +=
                static_cast<double>(weight.data()[t * heads + h]) * k.data()[key(t) + i] * e[at(c)];
        }
        states.push_back(state), errors_of.push_back(e);
      }
      Doubles later(at(key_dim * value_dim), 0.0);
      for (int t = first + count - 1; t >= first; --t) {
        const Doubles &before = states[at(t - first)], &after = states[at(t - first + 1)],
                      &e = errors_of[at(t - first)];
        const int row = (t * heads + h) * value_dim;
        const double beta = weight.data()[t * heads + h];
        for (int c = 0; c < value_dim; ++c) {
          double u = 0;
          for (int i = 0; i < key_dim; ++i) {
            double& d = later[at(i * value_dim + c)];
            d += static_cast<double>(q.data()[key(t) + i]) * dy.data()[row + c];
            u += k.data()[key(t) + i] * d;
          }
          dv[at(row + c)] = beta * u, dbeta[at(t * heads + h)] += u * e[at(c)];
          for (int i = 0; i < key_dim; ++i) {
            const size_t place = at(i * value_dim + c), to = at((t * heads + h) * key_dim + i);
            if (c == 0) dq[to] = dk[to] = 0;
            dq[to] += after[place] * dy.data()[row + c];
            dk[to] += later[place] * beta * e[at(c)] - decay(t, i) * before[place] * beta * u;
            later[place] -= k.data()[key(t) + i] * beta * u;
            ddecay[at((t * heads + h) * per + (CHANNELS ? i : 0))] += later[place] * before[place];
            later[place] *= decay(t, i);
          }
        }
      }
    }
  compare(name + " dq", together(of_q, tokens, blocks, parts, key_dim), dq);
  compare(name + " dk", together(of_k, tokens, blocks, parts, key_dim), dk);
  compare(name + " dv", Floats(errors.data(), errors.data() + dv.size()), dv);
  compare(name + " ddecay", together(of_decay, tokens, blocks, parts, per), ddecay);
  compare(name + " dbeta", together(of_beta, tokens, blocks, parts, 1), dbeta);
}

template <int R, bool CHANNELS>
void scan(int heads, int groups, int head_dim, int size, const std::vector<int>& lengths, bool by_tokens) {
  Sequences of(lengths);
  const int tokens = of.tokens(), parts = (head_dim + 31) / 32, blocks = heads * parts, channels = heads * head_dim,
            width = CHANNELS ? channels : heads;
  Memory<float> x(normals(tokens * channels)), b(normals(tokens * groups * size)), c(normals(tokens * groups * size)),
      dy(normals(tokens * channels)), step(between(tokens * width, 0.1, 1));
  const Floats rate = between(CHANNELS ? channels * size : heads, -1, 0.5), skip = normals(width);
  Floats dx = poisoned(tokens * channels), of_b = poisoned(blocks * tokens * size), of_c = of_b,
         of_step = poisoned(CHANNELS ? tokens * channels : blocks * tokens);
  const ScanGradient a{x.data(),       b.data(),    c.data(),  step.data(), dy.data(),
                       rate.data(),    skip.data(), dx.data(), of_b.data(), of_c.data(),
                       of_step.data(), tokens,      0,         heads,       head_dim,
                       groups,         size,        0,         0,           head_dim % 4 == 0 && size % 4 == 0};
  const std::string name = "scan " + std::to_string(size) + "x" + std::to_string(head_dim);
  const std::string told =
      run<R>(of, blocks, sizeof(ScanRoom<R, CHANNELS>), by_tokens, [&](Past past, KeptStates kept, int s) {
        scan_backward<R, CHANNELS>(a, past, kept, s, *reinterpret_cast<ScanRoom<R, CHANNELS>*>(simt::own_shared()));
      });
  if (!told.empty()) ++failures, std::printf("FAIL %s: %s\n", name.c_str(), told.c_str());

  Doubles want_x(at(tokens * channels)), db(at(tokens * heads * size), 0.0), dc = db, dstep(at(tokens * width), 0.0);
  for (int s = 0; s < of.count(); ++s)
    for (int h = 0; h < heads; ++h)
      for (int p = 0; p < head_dim; ++p) {
        const int first = of.starts[at(s)], end = of.starts[at(s + 1)], channel = h * head_dim + p,
                  own = CHANNELS ? channel : h, group = h / (heads / groups) * size;
        const auto by = [&](int n) {
          return -std::exp(static_cast<double>(rate[at(CHANNELS ? channel * size + n : h)]));
        };
        std::vector<Doubles> states{Doubles(at(size), 0.0)};
        for (int t = first; t < end; ++t) {
          const double d = step.data()[t * width + own];
          Doubles state = states.back();
          for (int n = 0; n < size; ++n)
            state[at(n)] = std::exp(by(n) * d) * state[at(n)] +
                           d * b.data()[t * groups * size + group + n] * x.data()[t * channels + channel];
          states.push_back(state);
        }
        Doubles later(at(size), 0.0);
        for (int t = end - 1; t >= first; --t) {
          const double d = step.data()[t * width + own], in = x.data()[t * channels + channel],
                       out = dy.data()[t * channels + channel];
          double along = 0;
          for (int n = 0; n < size; ++n) {
            const double bn = b.data()[t * groups * size + group + n], factor = std::exp(by(n) * d),
                         slope = later[at(n)] + c.data()[t * groups * size + group + n] * out;
            dc[at((t * heads + h) * size + n)] += out * states[at(t - first + 1)][at(n)];
            db[at((t * heads + h) * size + n)] += d * in * slope;
            along += slope * bn;
            dstep[at(t * width + own)] += slope * (bn * in + by(n) * factor * states[at(t - first)][at(n)]);
            later[at(n)] = factor * slope;
          }
          want_x[at(t * channels + channel)] = d * along + static_cast<double>(skip[at(own)]) * out;
        }
      }
  compare(name + " dx", dx, want_x);
  compare(name + " db", together(of_b, tokens, blocks, parts, size), db);
  compare(name + " dc", together(of_c, tokens, blocks, parts, size), dc);
  compare(name + " dstep", CHANNELS ? of_step : together(of_step, tokens, blocks, parts, 1), dstep);
}

}  // namespace

int main() {
  delta<4, false>(2, 1, 20, 36, {9, 0, 70}, false);
  delta<4, true>(2, 2, 5, 7, {1, 8, 65}, true);
  delta<8, false>(2, 2, 61, 33, {12}, true);
  delta<8, true>(1, 1, 64, 32, {130}, false);
  delta<16, false>(2, 1, 128, 32, {10, 7}, true);
  delta<16, true>(1, 1, 100, 16, {10}, false);
  delta<32, false>(1, 1, 256, 8, {70}, false);
  delta<32, true>(1, 1, 131, 8, {6}, true);
  scan<2, false>(4, 2, 3, 5, {5, 0, 70}, false);
  scan<2, true>(1, 1, 40, 16, {6, 9}, true);
  scan<4, false>(2, 1, 36, 32, {20}, false);
  scan<4, true>(1, 1, 5, 17, {130}, true);
  scan<8, false>(2, 1, 32, 64, {9}, true);
  scan<8, true>(1, 1, 8, 40, {9}, false);
  scan<16, false>(2, 2, 33, 128, {17}, false);
  scan<16, true>(1, 1, 8, 128, {4}, true);
  scan<32, false>(1, 1, 8, 256, {66}, true);
  scan<32, true>(1, 1, 8, 200, {5}, false);
  std::printf("%d gradients, %d failures, at most %.2f of the bound\n", checks, failures, worst);
  return failures > 0;
}
