// kv_decode and kv_pack on a device: every kernel against double precision within the bound of attention_case.h, outputs full of NaN
// before; packed bytes against codes made one by one; then, with --time, seconds of decoding and packing, in random data.
// attention [--quick] [--time] [--json FILE].
#include <algorithm>
#include <cstring>

#include "../../native/attention_case.h"
#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

template <class T>
Tensor of(DType dtype, std::vector<int64_t> shape, const std::vector<T>& data) {
  Tensor t = allocate(dtype, std::move(shape));
  std::memcpy(t.raw(), data.data(), t.bytes());
  return t;
}

Params form(const KvCase& c, int page_tokens) {
  return params({{"bits", double(c.bits)}, {"headDim", double(c.dims)}, {"heads", double(c.heads)}, {"kvHeads", double(c.kv_heads)}, {"keyGroup", double(c.key_group)},
                 {"valueGroup", double(c.value_group)}, {"pageTokens", double(page_tokens)}, {"outer", double(c.outer)}, {"scale", 1.0 / std::sqrt(c.dims)}});
}

std::string name_of(const KvCase& c) {
  char name[96];
  std::snprintf(name, sizeof(name), "u%d d%d g%d heads %d/%d%s splits %d", c.bits, c.dims, c.key_group, c.heads, c.kv_heads, c.outer ? " outer" : "", c.splits);
  return name;
}

void check(Device& device, Report& report, const KvCase& c, DType out) {
  KvCase with = c;
  if (with.splits == 0) with.splits = 1;
  KvData d(with, lpq::test::random()());
  const int64_t width = c.kv_heads * c.dims;
  std::vector<Tensor> in = {of(DType::f16, {c.sequences, c.heads * c.dims}, d.q),
                            of(DType::u8, {d.pages, d.args.keys_page}, d.keys),
                            of(DType::u8, {d.pages, d.args.key_numbers_page}, d.key_numbers),
                            of(DType::u8, {d.pages, d.args.values_page}, d.values),
                            of(DType::u8, {d.pages, d.args.value_numbers_page}, d.value_numbers),
                            of(DType::i32, {c.sequences, d.table_pages}, d.table),
                            of(DType::i32, {c.sequences}, d.lengths),
                            of(DType::f16, {c.sequences, d.room, width}, d.tail_keys),
                            of(DType::f16, {c.sequences, d.room, width}, d.tail_values),
                            of(DType::i32, {c.sequences}, d.tails)};
  Params p = form(c, d.page_tokens);
  if (c.splits) p.set("splits", double(c.splits));
  const Tensor y = device.run("kv_decode", in, {poisoned(out, {c.sequences, c.heads * c.dims})}, p)[0];
  const Tensor again = device.run("kv_decode", in, {poisoned(out, {c.sequences, c.heads * c.dims})}, p)[0];
  double worst = 0;
  std::vector<double> want, bound;
  for (int b = 0; b < c.sequences; ++b)
    for (int h = 0; h < c.heads; ++h) {
      kv_expected(with, d, b, h, unit(out), want, bound);
      for (int i = 0; i < c.dims; ++i) {
        const double share = std::fabs(get(y, (int64_t{b} * c.heads + h) * c.dims + i) - want[static_cast<size_t>(i)]) / (bound[static_cast<size_t>(i)] + least(out));
        worst = std::isnan(share) ? INFINITY : std::max(worst, share);
      }
    }
  ++report.checks;
  const bool same = std::memcmp(y.raw(), again.raw(), y.bytes()) == 0, ok = worst <= 1 && same;
  if (!ok) ++report.failures;
  std::printf("%s  decode %-52s %.3f of the bound%s\n", ok ? "ok  " : "FAIL", name_of(c).c_str(), worst, same ? "" : ", other bytes the second time");
}

void check_pack(Device& device, Report& report, const KvCase& c) {
  KvData d(c, lpq::test::random()());
  const int64_t width = c.kv_heads * c.dims, tokens = 2 * d.block;
  const Tensor x[2] = {gaussian(DType::f16, {tokens, width}), gaussian(DType::f16, {tokens, width}, 3)};
  const std::vector<Tensor> pages = {of(DType::u8, {d.pages, d.args.keys_page}, d.keys), of(DType::u8, {d.pages, d.args.key_numbers_page}, d.key_numbers),
                                     of(DType::u8, {d.pages, d.args.values_page}, d.values), of(DType::u8, {d.pages, d.args.value_numbers_page}, d.value_numbers)};
  Params p = form(c, d.page_tokens);
  p.set("first", double(d.block));
  const std::vector<Tensor> got = device.run("kv_pack", {x[0], x[1], of(DType::i32, {d.table_pages}, d.table)}, pages, p);
  std::vector<uint8_t> want[4] = {d.keys, d.key_numbers, d.values, d.value_numbers};
  const auto set16 = [](std::vector<uint8_t>& v, long long at, uint16_t w) { v[static_cast<size_t>(at)] = static_cast<uint8_t>(w), v[static_cast<size_t>(at + 1)] = static_cast<uint8_t>(w >> 8); };
  const int top = (1 << c.bits) - 1;
  for (int side = 0; side < 2; ++side)
    for (int t = 0; t < tokens; ++t)
      for (int h = 0; h < c.kv_heads; ++h)
        for (int i = 0; i < c.dims; ++i) {
          const auto at = [&](int token, int dim) { return static_cast<float>(get(x[side], (int64_t{token} * c.kv_heads + h) * c.dims + dim)); };
          float low = INFINITY, high = -INFINITY;
          for (int n = 0; n < (side ? c.value_group : c.key_group); ++n) {
            const float v = side ? at(t, i / c.value_group * c.value_group + n) : at(t / c.key_group * c.key_group + n, i);
            low = std::min(low, v), high = std::max(high, v);
          }
          const uint16_t scale = f32_to_f16((high - low) / static_cast<float>(top));
          const float s = f16_to_f32(scale);
          const int code = s > 0 ? static_cast<int>(std::nearbyint(std::min((at(t, i) - low) / s, static_cast<float>(top)))) : 0;
          const int page = d.table[static_cast<size_t>((t + d.block) / d.page_tokens)], in = (t + d.block) % d.page_tokens;
          const KvPlace place = side ? value_place(c, d.args, page, in, h, i) : key_place(c, d.args, page, in, h, i);
          set16(want[2 * side], place.word, static_cast<uint16_t>((word_at(want[2 * side], place.word) & ~(top << c.bits * place.place)) | code << c.bits * place.place));
          set16(want[2 * side + 1], place.number, scale), set16(want[2 * side + 1], place.number + place.zero, f32_to_f16(low));
        }
  const char* const names[4] = {"keys", "numbers of keys", "values", "numbers of values"};
  for (size_t i = 0; i < 4; ++i) report.that("pack " + name_of(c) + ": " + names[i], std::memcmp(got[i].raw(), want[i].data(), want[i].size()) == 0);
}

struct Setting {
  int sequences, tokens, heads, kv_heads, bits, group;
  double torch;  // microseconds of torch's fp16 flash decode on an H200
};

// Median seconds of `passes` passes.
double median(Device& device, const std::string& op, const Call& call, int passes) {
  std::vector<std::pair<std::string, Call>> calls{{op, call}};
  std::vector<double> seconds;
  device.queue().enqueue(op, [&] { seconds = device.backend().time(calls, Timing{passes, 0, true}); });
  const Queue::Outcome outcome = device.settle();
  if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

// Random codes, numbers of a sane size; a page table in random order.
void time(Device& device, FILE* json, const Setting& s, int splits) {
  const int D = 128, block = std::max(512 / s.bits, s.group), value_group = s.group == 32 ? 32 : 128, page = block, pages_each = s.tokens / page, pages = s.sequences * pages_each;
  const int64_t width = s.kv_heads * D;
  const auto bytes = [&](int64_t each, bool numbers) {
    Tensor t = allocate(DType::u8, {pages, each});
    uint64_t* words = reinterpret_cast<uint64_t*>(t.raw());
    uint64_t state = 88172645463325252ull;
    for (size_t i = 0; i < t.bytes() / 8; ++i) {
      state ^= state << 13, state ^= state >> 7, state ^= state << 17;
      words[i] = numbers ? (state & 0x03ff03ff03ff03ffull) | 0x2c002c002c002c00ull : state;
    }
    return device.backend().upload(t);
  };
  std::vector<int> order(static_cast<size_t>(pages));
  for (int i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = i;
  std::shuffle(order.begin(), order.end(), lpq::test::random());
  const int64_t codes = int64_t{page} * width * s.bits / 8, key_numbers = int64_t{page} / s.group * width * 4, value_numbers = int64_t{D} / value_group * s.kv_heads * page * 4;
  const std::vector<Tensor> cache = {bytes(codes, false), bytes(key_numbers, true), bytes(codes, false), bytes(value_numbers, true)};
  const auto up = [&](const Tensor& t) { return device.backend().upload(t); };
  Call call;
  call.in = {up(gaussian(DType::f16, {s.sequences, s.heads * D})), cache[0], cache[1], cache[2], cache[3], up(of(DType::i32, {s.sequences, pages_each}, order)),
             up(filled(DType::i32, {s.sequences}, [&](int64_t) { return s.tokens; })), up(gaussian(DType::f16, {s.sequences, 128, width})), up(gaussian(DType::f16, {s.sequences, 128, width})),
             up(filled(DType::i32, {s.sequences}, [&](int64_t) { return 64; }))};
  call.out = {up(poisoned(DType::f16, {s.sequences, s.heads * D}))};
  KvCase c{s.bits, D, s.group, value_group, s.sequences, s.heads, s.kv_heads, 0, false, 1, {}, {}};
  call.params = form(c, page);
  if (splits) call.params.set("splits", double(splits));
  const double us = 1e6 * median(device, "kv_decode", call, 30), total = static_cast<double>(pages) * static_cast<double>(2 * codes + key_numbers + value_numbers);
  std::printf("decode u%d g%-3d B%-2d %6d tokens %2d/%-2d heads splits %-2d %8.1f us  %6.0f GB/s  torch %5.0f us  %.2f times\n", s.bits, s.group, s.sequences, s.tokens, s.heads, s.kv_heads, splits, us, total / us / 1e3,
              s.torch, s.torch / us);
  if (json)
    std::fprintf(json, "{\"op\":\"kv_decode\",\"bits\":%d,\"group\":%d,\"sequences\":%d,\"tokens\":%d,\"heads\":%d,\"kvHeads\":%d,\"splits\":%d,\"us\":%.2f,\"bytes\":%.0f}\n", s.bits, s.group, s.sequences, s.tokens, s.heads,
                 s.kv_heads, splits, us, total);
  std::fflush(stdout);
}

void time_pack(Device& device, FILE* json, int bits, int group, int tokens) {
  const int D = 128, H = 8, block = std::max(512 / bits, group), value_group = group == 32 ? 32 : 128, pages = tokens / block;
  const auto up = [&](const Tensor& t) { return device.backend().upload(t); };
  std::vector<int> order(static_cast<size_t>(pages));
  for (int i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = i;
  Tensor x = allocate(DType::f16, {tokens, H * D});
  for (int64_t i = 0; i < x.elements(); ++i) x.data<uint16_t>()[i] = static_cast<uint16_t>(0x3000 + (static_cast<uint64_t>(i) * 2654435761u >> 7 & 0x8bff));
  const auto page = [&](int64_t each) { return up(allocate(DType::u8, {pages, each})); };
  Call call;
  call.in = {up(x), up(x), up(of(DType::i32, {pages}, order))};
  call.out = {page(int64_t{block} * H * D * bits / 8), page(int64_t{block} / group * H * D * 4), page(int64_t{block} * H * D * bits / 8), page(int64_t{D} / value_group * H * block * 4)};
  call.params = form({bits, D, group, value_group, 1, 32, H, 0, false, 1, {}, {}}, block);
  double total = 2.0 * static_cast<double>(x.bytes());
  for (const Tensor& t : call.out) total += static_cast<double>(t.bytes());
  const double us = 1e6 * median(device, "kv_pack", call, 20);
  std::printf("pack   u%d g%-3d %6d tokens 8 heads %8.1f us  %6.0f GB/s\n", bits, group, tokens, us, total / us / 1e3);
  if (json) std::fprintf(json, "{\"op\":\"kv_pack\",\"bits\":%d,\"group\":%d,\"tokens\":%d,\"us\":%.2f,\"bytes\":%.0f}\n", bits, group, tokens, us, total);
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, timed = false;
  FILE* json = nullptr;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick") quick = true;
    else if (arg == "--time") timed = true;
    else if (arg == "--json" && i + 1 < argc) json = std::fopen(argv[++i], "w");
  }
  Device device;
  Report report;
  for (const int dims : {64, 128, 256})
    for (const int bits : {4, 2, 8})
      for (const int group : {128, 32}) {
        const int values = group == 32 ? 32 : std::min(dims, 128);
        check(device, report, {bits, dims, group, values, 2, 8, 2, 2, false, 1, {3, 1}, {5, 0}}, DType::f32);
        if (!quick) check(device, report, {bits, dims, group, values, 3, 4, 4, 0, true, 2, {9, 0, 4}, {100, 1, 0}}, DType::f16);
        check_pack(device, report, {bits, dims, group, values, 1, 2, 2, 1, group == 32, 1, {3}, {0}});
      }
  check(device, report, {4, 128, 128, 128, 1, 2, 2, 3, false, 1, {40}, {1}}, DType::f16);
  check(device, report, {2, 128, 32, 32, 1, 20, 1, 0, false, 1, {6}, {0}}, DType::f32);
  check(device, report, {4, 64, 128, 64, 3, 2, 1, 2, false, 1, {0, 0, 1}, {0, 1, 127}}, DType::f16);
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  if (timed) {
    const double t1 = 161, t8 = 259, t32 = 407;
    for (const int splits : {0, 8, 32}) time(device, json, {1, 131072, 32, 8, 4, 128, t1}, splits);
    for (const int splits : {0, 1, 4}) time(device, json, {8, 32768, 32, 8, 4, 128, t8}, splits);
    for (const int splits : {0, 2}) time(device, json, {32, 8192, 32, 8, 4, 128, t32}, splits);
    for (const int group : {32}) time(device, json, {8, 32768, 32, 8, 4, group, t8}, 0);
    time(device, json, {8, 32768, 32, 8, 2, 128, t8}, 0), time(device, json, {32, 8192, 32, 8, 2, 128, t32}, 0), time(device, json, {1, 131072, 32, 8, 2, 128, t1}, 0);
    time(device, json, {8, 32768, 32, 8, 2, 32, t8}, 0);
    time(device, json, {8, 32768, 32, 8, 8, 128, t8}, 0);
    time(device, json, {2, 32768, 32, 32, 4, 128, 0}, 0), time(device, json, {32, 32768, 32, 1, 4, 128, 0}, 0);
    time_pack(device, json, 4, 128, 131072), time_pack(device, json, 2, 32, 131072);
  }
  if (json) std::fclose(json);
  return report.failures ? 1 : 0;
}
