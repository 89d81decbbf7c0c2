// The kernels of latent attention's packed cache (native/cuda/attention/latent.cuh, latent_pack.cuh), run on the host
// by threads that the host plays: all bits, groups and sizes of latents, one query and several, few heads and many,
// splits, pages out of order, sequences of any length; against double precision, elementwise, and against bytes packed
// one by one. Shared memory and outputs are full of NaN before, and so is what lies behind the last token.
#include <cstdio>
#include <string>

#include "asynchronous.h"
#include "cuda/attention/latent.cuh"
#include "cuda/attention/latent_pack.cuh"
#include "cuda/attention/latent_sm90.cuh"
#include "latent_case.h"

using namespace lpq::cuda;
using namespace lpq::test;

namespace {

long long checks = 0, failures = 0;
double worst = 0;
uint64_t seed = 1;

void fail(const LatentCase& c, const std::string& what) {
  if (++failures <= 20) std::printf("FAIL %s: %s\n", c.name().c_str(), what.c_str());
}
int shift_of(int group) { return group == 32 ? 5 : group == 64 ? 6 : 7; }

template <class Args>
void tell(const LatentCase& c, const LatentData& d, Args& a) {
  a.page_bytes = c.page_bytes(), a.numbers = c.page_tokens * c.latent * c.bits / 8;
  a.rope = a.numbers + c.page_tokens * c.number_bytes(), a.number_row = c.number_bytes(), a.latent = c.latent;
  a.rotary = c.rotary, a.page_tokens = c.page_tokens, a.table_pages = d.table_pages, a.page_count = d.page_count;
}

struct Run {
  LatentData data;
  LatentArgs a{};
  std::vector<float> y, partial;
  unsigned fault = 0;
  Run(const LatentCase& c, int rows, int record) : data(c, ++seed) {
    tell(c, data, a);
    a.q = data.q.data(), a.pages = data.pages.data(), a.table = data.table.data(), a.lengths = c.lengths.data();
    a.bits = c.bits, a.group_shift = shift_of(c.group), a.heads = c.heads, a.queries = c.queries, a.rows = c.rows();
    a.row_tiles = (c.rows() + rows - 1) / rows, a.splits = c.splits, a.store = kKvStoreF32, a.bf16_queries = c.bf16;
    a.scale = data.scale * 1.44269504f;
    y.assign(static_cast<size_t>(c.sequences() * c.rows() * c.latent), NAN);
    partial.assign(static_cast<size_t>(c.sequences() * a.row_tiles * c.splits * record), NAN);
    a.partial = partial.data(), a.fault = &fault, a.y = y.data();
  }
};

template <class T>
std::string launch(const LatentCase& c, const LatentArgs& a) {
  const int tiles = c.sequences() * a.row_tiles;
  simt::begin(++seed);
  std::string error;
  if constexpr (std::is_same_v<T, LatentHopper>)
    error = simt::try_run(tiles * c.splits, T::kThreads, 1, T::kBytes, seed, [&] { latent_decode_sm90(a); });
  else
    error = simt::try_run(tiles * c.splits, kLatentThreads, 1, T::shared(c.bits, c.bits == 16 ? 32 : c.group), seed,
                          [&] { latent_decode<T>(a); });
  if (error.empty() && c.splits > 1)
    error = simt::try_run(tiles * T::kRows * kLatentDims / 4 / kLatentThreads, kLatentThreads, 1, 0, seed,
                          [&] { latent_join<T>(a); });
  return error;
}

template <class T>
void decoded(const LatentCase& c) {
  Run run(c, T::kRows, T::kRecord);
  ++checks;
  const std::string error = launch<T>(c, run.a);
  if (!error.empty()) return fail(c, error);
  if (run.fault) return fail(c, "a fault is told");
  std::vector<double> want, bound;
  for (int b = 0; b < c.sequences(); ++b)
    for (int row = 0; row < c.rows(); ++row) {
      latent_expected(c, run.data, b, row, 0x1p-24, want, bound);
      for (int d = 0; d < c.latent; ++d) {
        const size_t i = static_cast<size_t>(d);
        const double got = run.y[static_cast<size_t>((b * c.rows() + row) * c.latent + d)],
                     share = std::fabs(got - want[i]) / bound[i];
        if (!(share <= 1))
          return fail(c, "sequence " + std::to_string(b) + ", row " + std::to_string(row) + ", dim " +
                             std::to_string(d) + " is " + std::to_string(got) + ", not " + std::to_string(want[i]) +
                             " within " + std::to_string(bound[i]));
        worst = std::max(worst, share);
      }
    }
}

// By every kernel that takes it.
void all(const LatentCase& c) {
  decoded<LatentFew>(c), decoded<LatentMany>(c), decoded<LatentSmall>(c);
  if (c.latent == kLatentDims) decoded<LatentHopper>(c);
}

// A length and a page that are none: told, and nothing is read for them.
void bad() {
  for (const bool page : {false, true}) {
    const LatentCase c{4, 128, 128, 16, 2, 1, 1, 32, {40}};
    LatentCase told = c;
    if (!page) told.lengths[0] = 65;
    Run run(c, LatentFew::kRows, LatentFew::kRecord);
    if (page) run.data.table[1] = run.data.page_count;
    run.a.lengths = told.lengths.data();
    ++checks;
    const std::string error = launch<LatentFew>(c, run.a);
    if (!error.empty()) fail(c, error);
    if (!run.fault) fail(c, page ? "a page that is none is not told" : "a length beyond its pages is not told");
  }
}

void launch_pack(int bits, const LatentPackArgs& a) {
  simt::begin(++seed);
  simt::run((a.tokens + 3) / 4, kLatentThreads, 1, 0, seed, [&] {
    if (bits == 2) latent_pack<2>(a);
    else if (bits == 4) latent_pack<4>(a);
    else if (bits == 8) latent_pack<8>(a);
    else latent_pack<16>(a);
  });
}

// Tokens of a prompt, or one of each sequence.
void packed(const LatentCase& c, bool appends) {
  LatentData d(c, ++seed), want = d;
  const int first = appends ? 0 : 3, tokens = appends ? c.sequences() : c.lengths[0] - first;
  const std::vector<uint16_t> rotary = latent_halves_of(static_cast<size_t>(tokens * c.rotary), ++seed);
  std::vector<uint16_t> latents = latent_halves_of(static_cast<size_t>(tokens * c.latent), ++seed);
  // A group of one number, of zeros of both signs, and of the largest and smallest.
  for (int d0 = 0; d0 < c.group; ++d0) latents[static_cast<size_t>(d0)] = 0x3c01;
  for (int d0 = 0; d0 < c.group; ++d0) latents[static_cast<size_t>(c.latent + d0)] = d0 % 2 ? 0 : 0x8000;
  for (int d0 = 0; d0 < 4; ++d0) latents[static_cast<size_t>(2 * c.latent + d0)] = d0 % 2 ? 0x7bff : 0xfbff;
  for (int d0 = 0; d0 < c.group; ++d0) latents[static_cast<size_t>(3 * c.latent - c.group + d0)] = d0 % 3 ? 2 : 0x8003;
  std::vector<int> lengths;
  for (const int length : c.lengths) lengths.push_back(length - 1);  // the last is packed again, or anew
  for (int i = 0; i < tokens; ++i) {
    const int t = appends ? lengths[static_cast<size_t>(i)] : first + i, table = appends ? i * d.table_pages : 0;
    want.at(c, d.table[static_cast<size_t>(table + t / c.page_tokens)])
        .pack(t % c.page_tokens, latents.data() + i * c.latent, rotary.data() + i * c.rotary);
  }
  LatentPackArgs a{};
  tell(c, d, a);
  unsigned number = 0, page = 0;
  a.c = latents.data(), a.rotary_dims = rotary.data(), a.table = d.table.data(), a.pages = d.pages.data();
  a.lengths = appends ? lengths.data() : nullptr, a.fault = &number, a.fault_page = &page, a.group = c.group;
  a.first = first, a.tokens = tokens;
  ++checks;
  launch_pack(c.bits, a);
  if (number || page) fail(c, "packing tells a fault");
  if (d.pages != want.pages) fail(c, "packed bytes");
  if (appends && lengths != c.lengths) fail(c, "lengths do not grow");
  if (appends) return;
  latents[7] = 0x7e01;
  launch_pack(c.bits, a);
  if (!number) fail(c, "NaN is not told");
  d.table[0] = d.page_count;
  launch_pack(c.bits, a);
  if (!page) fail(c, "a page that is none is not told");
}

}  // namespace

int main() {
  for (const int bits : {2, 4, 8, 16}) {
    packed({bits, 128, 512, 64, 1, 1, 1, 32, {37}}, false), packed({bits, 32, 64, 16, 1, 1, 1, 64, {9}}, false);
    packed({bits, 64, 320, 32, 1, 1, 1, 32, {33, 1, 64, 32, 5}}, true);
    all({bits, 128, 512, 64, 5, 1, 1, 32, {70}});
    all({bits, 32, 256, 64, 16, 1, 2, 64, {33, 1}});
    decoded<LatentMany>({bits, 64, 192, 48, 6, 3, 2, 32, {65, 2}, true});
    decoded<LatentFew>({bits, 64, 64, 16, 3, 2, 3, 32, {0, 97, 32}});
  }
  for (const int bits : {2, 4, 8, 16}) {
    decoded<LatentHopper>({bits, 64, 512, 48, 6, 13, 2, 32, {65, 2, 330}, true});
    decoded<LatentHopper>({bits, 32, 512, 64, 64, 1, 1, 32, {0, 260}});
  }
  decoded<LatentHopper>({4, 128, 512, 64, 128, 1, 5, 64, {300}});
  decoded<LatentMany>({4, 128, 512, 64, 64, 1, 1, 64, {90}});
  decoded<LatentMany>({8, 64, 512, 64, 128, 1, 2, 32, {64}});
  decoded<LatentMany>({4, 128, 512, 64, 70, 2, 5, 32, {3, 200}});  // a full tile of rows, splits without tokens
  decoded<LatentFew>({4, 128, 512, 64, 16, 1, 9, 64, {300}});
  decoded<LatentSmall>({8, 32, 512, 64, 128, 1, 3, 32, {50}});
  bad();
  std::printf("%lld checks, %lld failures, at most %.4f of the bound\n", checks, failures, worst);
  return failures ? 1 : 0;
}
