// What FMPQ decides by (native/cuda/quant/search.cuh, native/cuda/attention/simulate_kv.cuh), run on the host by
// threads that the host plays, against the definitions of native/ops/w4ax.h in plain loops, bit for bit: rows and
// columns with tails, orders that leave channels out, every number of choices, sequences of several runs and empty
// ones, faults. Outputs are full of NaN before.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <string>

#include "asynchronous.h"
#define __shared__ static  // blocks run one after another

#include "cuda/attention/simulate_kv.cuh"
#include "cuda/quant/search.cuh"

using namespace lpq::cuda;

namespace {

int checks = 0, failures = 0;
std::mt19937_64 lot(11);

std::vector<float> normals(int64_t count, double scale) {
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> list(static_cast<size_t>(count));
  for (float& x : list) x = static_cast<float>(normal(lot));
  return list;
}

template <class T>
void same(const std::string& what, const std::vector<T>& got, const std::vector<T>& want) {
  ++checks;
  for (size_t i = 0; i < want.size(); ++i)
    if (std::memcmp(&got[i], &want[i], sizeof(T)) != 0) {
      ++failures;
      std::printf("FAIL %s has %.17g at %zu, not %.17g\n", what.c_str(), static_cast<double>(got[i]), i,
                  static_cast<double>(want[i]));
      return;
    }
}
void told(const std::string& what, const std::string& wrong) {
  if (wrong.empty()) return;
  ++failures;
  std::printf("FAIL %s: %s\n", what.c_str(), wrong.c_str());
}
void faulty(const std::string& what, uint32_t fault, bool wanted) {
  ++checks;
  if ((fault != 0) == wanted) return;
  ++failures;
  std::printf("FAIL %s: %s\n", what.c_str(), wanted ? "no fault" : "a fault");
}

// Nearest integer, ties to even.
float even(float v) { return std::nearbyintf(v); }

void errors(int rows, int k, int blocks, const std::vector<std::pair<int, float>>& choices) {
  const std::string what = "errors of " + std::to_string(rows) + " x " + std::to_string(k);
  std::vector<float> x = normals(int64_t{rows} * k, 3), weight = normals(k, 1);
  for (float& w : weight) w = std::fabs(w);
  for (int i = 0; i < std::min(k, 128); ++i) x[static_cast<size_t>(i)] *= rows > 1 ? 1e-40f : 0.0f;
  std::vector<int32_t> order(static_cast<size_t>(blocks) * 128);
  for (int32_t& c : order) c = static_cast<int32_t>(lot() % static_cast<uint64_t>(k));
  const size_t count = choices.size();
  std::vector<double> got(static_cast<size_t>(blocks) * count, NAN), want(got.size(), 0.0);
  uint32_t fault = 0;
  BlockErrorsArgs a{x.data(), weight.data(),           order.data(), got.data(), rows,
                    k,        static_cast<int>(count), {},           {},         &fault};
  for (size_t c = 0; c < count; ++c) {
    a.top[c] = choices[c].first == 4 ? 7.0f : 127.0f;
    a.ratio[c] = choices[c].second / a.top[c];
  }
  told(what, simt::try_run(blocks, kSearchThreads, 1, 16, static_cast<uint64_t>(checks) + 1, [&] { block_errors(a); }));
  faulty(what, fault, false);
  for (int b = 0; b < blocks; ++b)
    for (int t = 0; t < rows; ++t) {
      const auto value = [&](int i) { return x[static_cast<size_t>(t) * k + order[static_cast<size_t>(b) * 128 + i]]; };
      float most = 0;
      for (int i = 0; i < 128; ++i) most = std::max(most, std::fabs(value(i)));
      for (size_t c = 0; c < count; ++c) {
        const float top = choices[c].first == 4 ? 7.0f : 127.0f, ratio = choices[c].second / top;
        float scale = most * ratio;
        if (scale < 0x1p-126f) scale = 0;
        const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
        double sum = 0;
        for (int l = 0; l < 16; ++l) {
          float part = 0;
          for (int i = l; i < 128; i += 16) {
            const float code = even(std::min(std::max(value(i) * inverse, -top), top)), off = code * scale - value(i);
            part += weight[static_cast<size_t>(order[static_cast<size_t>(b) * 128 + i])] * (off * off);
          }
          sum += static_cast<double>(part);
        }
        want[static_cast<size_t>(b) * count + c] += sum;
      }
    }
  same(what, got, want);
  order[5] = k;
  simt::try_run(blocks, kSearchThreads, 1, 16, 1, [&] { block_errors(a); });
  faulty(what + " of a column that is not there", fault, true);
}

template <class T>
void statistics(int rows, int k, T (*round)(float)) {
  const std::string what = "statistics of " + std::to_string(rows) + " x " + std::to_string(k);
  std::vector<T> x;
  for (const float v : normals(int64_t{rows} * k, 2)) x.push_back(round(v));
  std::vector<float> most = normals(k, 1), want_most = most;
  for (size_t c = 0; c < most.size(); ++c) want_most[c] = most[c] = std::fabs(most[c]);
  std::vector<double> moments(static_cast<size_t>(k), 0.5), want(moments);
  for (int t = 0; t < rows; ++t)
    for (int c = 0; c < k; ++c) {
      const float v = lpq::widen(x[static_cast<size_t>(t) * k + c]);
      want_most[static_cast<size_t>(c)] = std::max(want_most[static_cast<size_t>(c)], std::fabs(v));
      want[static_cast<size_t>(c)] += static_cast<double>(v) * static_cast<double>(v);
    }
  uint32_t fault = 0;
  const auto run = [&] {
    told(what, simt::try_run((k + 127) / 128, 128, 1, 16, 3,
                             [&] { channel_statistics<T>(x.data(), most.data(), moments.data(), rows, k, &fault); }));
  };
  run();
  faulty(what, fault, false);
  same(what, most, want_most), same(what, moments, want);
  if (rows == 0) return;
  x.back() = round(INFINITY);
  run();
  faulty(what + " with infinity", fault, true);
}

float half(float v) { return lpq::f16_to_f32(lpq::f32_to_f16(v)); }

template <class T>
void simulated(const std::vector<int>& lengths, int width, int group, int bits, bool clip, T (*round)(float)) {
  std::vector<int32_t> starts{0};
  for (const int length : lengths) starts.push_back(starts.back() + length);
  const int tokens = starts.back(), sequences = static_cast<int>(lengths.size());
  const std::string what = "a cache of " + std::to_string(tokens) + " x " + std::to_string(width);
  const float top = static_cast<float>((1 << bits) - 1);
  std::vector<T> x;
  for (const float v : normals(int64_t{tokens} * width, 3)) x.push_back(round(v));
  std::vector<T> got(x.size(), round(NAN)), want(x.size(), round(NAN));
  for (int s = 0; s < sequences; ++s)
    for (int first = starts[static_cast<size_t>(s)]; first < starts[static_cast<size_t>(s) + 1]; first += group)
      for (int c = 0; c < width; ++c) {
        const int end = std::min(first + group, starts[static_cast<size_t>(s) + 1]);
        const auto place = [&](int t) { return static_cast<size_t>(t) * width + c; };
        const auto value = [&](int t) { return lpq::widen(x[place(t)]); };
        float low = value(first), high = low;
        for (int t = first; t < end; ++t) low = std::min(low, value(t)), high = std::max(high, value(t));
        const auto back = [&](float from, float to, float v) {
          const float zero = half(from), scale = half((to - zero) / top), inverse = scale > 0 ? 1.0f / scale : 0.0f;
          return std::fma(even(std::min(std::max((v - zero) * inverse, 0.0f), top)), scale, zero);
        };
        int chosen = 0;
        double least = INFINITY;
        const auto drawn = [&](int i) { return 0.025f * static_cast<float>(i) * (high - low); };
        for (int i = 0; clip && i < 8; ++i) {
          double error = 0;
          for (int t = first; t < end; ++t) {
            const double off =
                static_cast<double>(value(t)) - static_cast<double>(back(low + drawn(i), high - drawn(i), value(t)));
            error += off * off;
          }
          if (error < least) least = error, chosen = i;
        }
        for (int t = first; t < end; ++t)
          want[place(t)] = round(back(low + drawn(chosen), high - drawn(chosen), value(t)));
      }
  uint32_t fault = 0;
  const auto run = [&] {
    for (int index = 0; index < tokens / group + sequences; ++index)
      told(what, simt::try_run((width + 127) / 128, 128, 1, 16, 5, [&] {
             simulate_kv<T>(x.data(), starts.data(), got.data(), sequences, tokens, width, group, top, clip, index,
                            &fault);
           }));
  };
  run();
  faulty(what, fault, false);
  std::vector<float> wide, expected;
  for (size_t i = 0; i < got.size(); ++i) wide.push_back(lpq::widen(got[i])), expected.push_back(lpq::widen(want[i]));
  same(what, wide, expected);
  starts.back() -= 1;
  run();
  faulty(what + " that starts do not cover", fault, true);
}

float as_f32(float v) { return v; }
lpq::f16 as_f16(float v) { return __float2half_rn(v); }
lpq::bf16 as_bf16(float v) { return __float2bfloat16_rn(v); }

}  // namespace

int main() {
  errors(1, 128, 1, {{4, 0.9f}});
  errors(17, 300, 2, {{8, 1.0f}, {4, 1.0f}, {4, 0.8f}});
  errors(64, 256, 3, {{4, 0.7f}});
  std::vector<std::pair<int, float>> all;
  for (int i = 0; i < kMostChoices; ++i) all.push_back({i % 3 == 0 ? 8 : 4, 1 - 0.03f * static_cast<float>(i)});
  errors(33, 384, 3, all);
  statistics<float>(37, 130, as_f32);
  statistics<lpq::f16>(8, 5, as_f16);
  statistics<lpq::bf16>(3, 257, as_bf16);
  statistics<float>(0, 7, as_f32);
  simulated<float>({33, 0, 17}, 24, 16, 4, false, as_f32);
  simulated<float>({33, 0, 17}, 24, 16, 4, true, as_f32);
  simulated<lpq::f16>({7, 64, 1}, 130, 64, 2, true, as_f16);
  simulated<lpq::bf16>({5}, 3, 5, 8, true, as_bf16);
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
