// Packing keys and values, and appending a token to every sequence (native/cuda/attention/kv_pack.cuh), run on the host
// by threads that
// the host plays: bytes compared with codes made one by one, of every form, with fitted ends and without; nothing else
// may change. NaN and bad pages are told.
#include <cstdio>
#include <string>

#include "asynchronous.h"
#include "cuda/attention/kv_pack.cuh"
#include "pack_case.h"

using namespace lpq::cuda;
using namespace lpq::test;

namespace {

long long checks = 0, failures = 0;
uint64_t seed = 1;

void fail(const KvCase& c, const char* what) {
  if (++failures <= 20)
    std::printf("FAIL k%d v%d d%d of %d g%d form %d%s%s: %s\n", c.bits, c.of_values(), c.own(), c.dims, c.key_group,
                static_cast<int>(c.form), c.outer ? " outer" : "", c.fit ? " fitted" : "", what);
}

struct Told {
  unsigned number = 0, page = 0;
};

KvPackArgs arguments(const KvCase& c, KvData& d, Told& told) {
  KvPackArgs a{};
  const auto own = [](const unsigned char* p) { return const_cast<unsigned char*>(p); };
  a.table = d.table.data(), a.places = d.args, a.block = c.block(), a.dims = c.dims, a.fault = &told.number,
  a.fault_page = &told.page;
  a.keys = own(d.args.keys), a.key_numbers = own(d.args.key_numbers), a.values = own(d.args.values),
  a.value_numbers = own(d.args.value_numbers);
  return a;
}

template <int KEYS, int VALUES, int CHUNK, KvForm FORM>
void launch(const KvCase& c, const KvPackArgs& a, int numbers) {
  const int chunks = FORM == KvForm::kWords ? 1 : c.dims / CHUNK;
  const int threads = pack_threads(CHUNK, FORM),
            most = FORM == KvForm::kWords ? c.dims : std::max(c.key_group, c.value_group),
            shared = c.fit ? kv_fit_shared(threads, most)
                           : kv_pack_shared(CHUNK, c.block(), c.key_group, FORM == KvForm::kTokens);
  simt::run(2 * chunks * c.kv_heads * numbers, threads, 1, shared, ++seed, [&] {
    if (c.fit && a.lengths) kv_pack<0, 0, CHUNK, FORM, true, true>(a);
    else if (c.fit) kv_pack<0, 0, CHUNK, FORM, false, true>(a);
    else if (a.lengths) kv_pack<KEYS, VALUES, CHUNK, FORM, true>(a);
    else kv_pack<KEYS, VALUES, CHUNK, FORM, false>(a);
  });
}

void same(const KvCase& c, const KvData& d, const KvPages& want) {
  if (d.keys != want.keys) fail(c, "keys");
  if (d.key_numbers != want.key_numbers) fail(c, "numbers of keys");
  if (d.values != want.values) fail(c, "values");
  if (d.value_numbers != want.value_numbers) fail(c, "numbers of values");
}

template <int KEYS, int VALUES, int CHUNK, KvForm FORM>
void packed(int dims, int group, bool outer, bool faults = false, int head_dims = 0, bool fit = false) {
  constexpr bool words = FORM == KvForm::kWords;
  KvCase c{KEYS, dims, group, std::min(group, dims), 1, 2, 2, 1, outer, 2, {words ? 200 : 3}, {0}, VALUES, FORM};
  c.head_dims = head_dims, c.fit = fit;
  if (FORM == KvForm::kWide && group != 128) c.form = KvForm::kFine;
  KvData d(c, ++seed);
  KvPages want(d);
  const int first = words ? 37 : d.block, tokens = words ? 101 : 2 * d.block;
  std::vector<uint16_t> x[2] = {pack_input(c, tokens, ++seed), pack_input(c, tokens, ++seed)};
  for (const bool value : {false, true}) pack_expected(c, d, want, x[value].data(), tokens, value, 0, first);
  Told told;
  KvPackArgs a = arguments(c, d, told);
  a.k = x[0].data(), a.v = x[1].data(), a.first = first, a.tokens = tokens;
  ++checks;
  try {
    launch<KEYS, VALUES, CHUNK, FORM>(c, a, words ? 2 : 2);
  } catch (const std::exception& error) {
    return fail(c, error.what());
  }
  same(c, d, want);
  if (told.number || told.page) fail(c, "a fault is told");
  if (!faults) return;
  checks += 2;
  x[1][static_cast<size_t>(5 * c.own() + 3)] = 0x7e01;
  launch<KEYS, VALUES, CHUNK, FORM>(c, a, 2);
  if (!told.number) fail(c, "NaN is not told");
  d.table[0] = d.pages;
  launch<KEYS, VALUES, CHUNK, FORM>(c, a, 2);
  if (!told.page) fail(c, "a page that is none is not told");
}

// Three sequences: a full tail, one with room for one, one that is empty.
template <int KEYS, int VALUES, int CHUNK, KvForm FORM>
void appended(int dims, int group, int head_dims = 0, bool fit = false) {
  constexpr bool words = FORM == KvForm::kWords;
  KvCase c{KEYS, dims, group, std::min(group, dims), 3, 2, 2, 1, false, 1, {}, {}, VALUES, FORM};
  c.head_dims = head_dims, c.fit = fit;
  if (FORM == KvForm::kWide && group != 128) c.form = KvForm::kFine;
  const int residual = c.block();
  c.packed_blocks = words ? std::vector<int>{64, 100, 1} : std::vector<int>{2, 1, 0};
  c.tails = words ? std::vector<int>{0, 0, 0} : std::vector<int>{residual, residual - 1, 0};
  KvData d(c, ++seed);
  if (words) d.lengths[0] = 63, d.lengths[2] = 0;  // pages have room
  else d.lengths[0] = residual;
  KvPages want(d);
  const size_t width = static_cast<size_t>(c.kv_heads * c.own());
  const std::vector<uint16_t> x[2] = {pack_input(c, 3, ++seed), pack_input(c, 3, ++seed)};
  std::vector<uint16_t> tails[2] = {d.tail_keys, d.tail_values};
  Told told;
  std::vector<unsigned> counters(3, 0);
  KvPackArgs a = arguments(c, d, told);
  a.k = x[0].data(), a.v = x[1].data(), a.lengths = d.lengths.data(), a.tails = d.tails.data(),
  a.tail_keys = d.tail_keys.data(), a.tail_values = d.tail_values.data();
  a.residual = words ? 0 : residual, a.counters = counters.data(), a.places.room = d.room;
  std::vector<int> lengths = d.lengths, counts = d.tails;
  for (int b = 0; b < 3; ++b) {
    const size_t s = static_cast<size_t>(b);
    for (const bool value : {false, true}) {
      uint16_t* const tail = tails[value].data() + s * static_cast<size_t>(d.room) * width;
      if (words) pack_expected(c, d, want, x[value].data() + s * width, 1, value, b, lengths[s]);
      else if (counts[s] == residual) pack_expected(c, d, want, tail, residual, value, b, lengths[s]);
      if (!words)
        std::copy_n(x[value].data() + s * width, width,
                    tail + (counts[s] == residual ? 0 : static_cast<size_t>(counts[s]) * width));
    }
    if (words) lengths[s] += 1;
    else if (counts[s] == residual) lengths[s] += residual, counts[s] = 1;
    else counts[s] += 1;
  }
  // Whether it ran; the pages are compared.
  const auto stored = [&] {
    ++checks;
    try {
      launch<KEYS, VALUES, CHUNK, FORM>(c, a, 3);
    } catch (const std::exception& error) {
      fail(c, error.what());
      return false;
    }
    same(c, d, want);
    return true;
  };
  if (!stored()) return;
  if (d.tail_keys != tails[0] || d.tail_values != tails[1]) fail(c, "tails");
  if (d.lengths != lengths || d.tails != counts) fail(c, "lengths");
  if (told.number || told.page) fail(c, "a fault is told");
  for (const unsigned count : counters)
    if (count) fail(c, "a counter is left");
  if (words) return;
  // What is packed ends within a block: told, and nothing is stored.
  for (int b = 0; b < 3; ++b)
    d.lengths[static_cast<size_t>(b)] = residual / 2, d.tails[static_cast<size_t>(b)] = residual;
  tails[0] = d.tail_keys, tails[1] = d.tail_values, lengths = d.lengths, counts = d.tails;
  if (!stored()) return;
  if (!told.page) fail(c, "a length that is no whole blocks is not told");
  if (d.tail_keys != tails[0] || d.tail_values != tails[1] || d.lengths != lengths || d.tails != counts)
    fail(c, "something is stored for a length that is none");
}

}  // namespace

int main() {
  using F = KvForm;
  packed<4, 4, 128, F::kWide>(128, 128, false, true);
  packed<4, 4, 128, F::kWide>(256, 32, true);
  packed<2, 2, 128, F::kWide>(128, 32, true);
  packed<2, 2, 64, F::kWide>(64, 128, false);
  packed<8, 8, 64, F::kWide>(64, 128, false);
  packed<8, 8, 128, F::kWide>(128, 64, true);
  packed<8, 4, 128, F::kWide>(128, 128, false);
  packed<4, 4, 128, F::kTokens>(128, 128, false, true);
  packed<2, 2, 128, F::kTokens>(128, 32, true);
  packed<8, 8, 64, F::kTokens>(64, 64, false);
  packed<8, 4, 128, F::kTokens>(256, 64, true);
  packed<4, 4, 128, F::kWords>(128, 128, false, true);
  packed<8, 8, 128, F::kWords>(64, 64, false);
  packed<8, 4, 128, F::kWords>(256, 256, false);
  appended<4, 4, 128, F::kWide>(128, 128);
  appended<2, 2, 64, F::kTokens>(64, 32);
  appended<8, 4, 128, F::kWide>(128, 128);
  appended<8, 4, 128, F::kWords>(128, 128);
  // Heads that are stored as the next size, zeros behind; of two chunks the second is in part, or not at all, their
  // own.
  packed<4, 4, 128, F::kWide>(128, 128, false, true, 80);
  packed<2, 2, 128, F::kWide>(128, 32, true, false, 96);
  packed<8, 4, 128, F::kTokens>(256, 64, true, false, 192);
  packed<4, 4, 128, F::kWords>(128, 128, false, true, 120);
  appended<4, 4, 128, F::kWide>(256, 128, 136);
  appended<2, 2, 128, F::kTokens>(128, 32, 72);
  appended<8, 4, 128, F::kWords>(256, 256, 192);
  // Four chunks; of turbomind two eights of dims a lane.
  packed<4, 4, 128, F::kWide>(512, 128, false, true);
  packed<2, 2, 128, F::kTokens>(512, 32, true, false, 264);
  packed<4, 4, 512, F::kWords>(512, 512, false, true, 504);
  packed<8, 8, 512, F::kWords>(512, 512, false);
  appended<4, 4, 128, F::kWide>(512, 128, 320);
  appended<8, 4, 512, F::kWords>(512, 512);
  // Fitted ends: of every form and width, of padded heads, of tails.
  packed<4, 4, 64, F::kWide>(64, 32, false, true, 0, true);
  packed<2, 2, 128, F::kWide>(128, 128, true, false, 80, true);
  packed<8, 4, 128, F::kTokens>(128, 64, false, false, 0, true);
  packed<8, 4, 128, F::kWords>(128, 128, false, true, 120, true);
  appended<4, 4, 128, F::kWide>(128, 64, 0, true);
  appended<2, 2, 64, F::kTokens>(64, 32, 0, true);
  appended<8, 4, 128, F::kWords>(128, 128, 0, true);
#ifdef LPQ_ALL_FORMS
  packed<8, 8, 64, F::kWide>(64, 64, true, false, 0, true), packed<4, 4, 128, F::kWide>(256, 32, false, false, 0, true),
      packed<2, 2, 128, F::kTokens>(512, 32, true, false, 264, true),
      packed<4, 4, 512, F::kWords>(512, 512, false, false, 504, true), appended<8, 4, 128, F::kWide>(128, 128, 0, true),
      appended<4, 4, 512, F::kWords>(512, 512, 0, true);
  for (const int group : {32, 64, 128}) {
    packed<2, 2, 64, F::kWide>(64, group, true), packed<2, 2, 128, F::kWide>(256, group, false),
        packed<4, 4, 64, F::kWide>(64, group, false), packed<8, 8, 128, F::kWide>(256, group, false);
    packed<8, 4, 64, F::kWide>(64, group, false), packed<8, 8, 128, F::kTokens>(128, group, false),
        packed<4, 4, 128, F::kTokens>(256, group, true), packed<2, 2, 128, F::kTokens>(256, group, false);
    appended<8, 8, 128, F::kWide>(128, group), appended<2, 2, 128, F::kWide>(128, group);
    packed<2, 2, 128, F::kWide>(512, group, false), packed<8, 8, 128, F::kTokens>(512, group, true);
    packed<8, 4, 128, F::kWide>(512, group, true), appended<4, 4, 128, F::kTokens>(512, group, 384);
  }
  packed<4, 4, 64, F::kTokens>(64, 32, false), packed<8, 4, 64, F::kTokens>(64, 64, true),
      packed<2, 2, 64, F::kTokens>(64, 64, false);
#endif
  std::printf("%lld packings, %lld failures\n", checks, failures);
  return failures ? 1 : 0;
}
