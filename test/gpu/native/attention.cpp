// kv_decode, kv_pack and kv_append on a device: every form against double precision within the bound of
// attention_case.h, outputs full of NaN before; packed bytes, with fitted ends too, against codes made one by one; a
// thousand appended tokens against everything packed and computed anew; what is bad is told. attention [--quick |
// --small] [--dims 64 | 128 | 256 | 512 | none]: the sweep of these dims alone, or everything but the sweep.
#include <algorithm>
#include <cstring>

#include "../../native/pack_case.h"
#include "harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

Params form(const KvCase& c, int page_tokens) {
  Params p = params({{"bits", double(c.bits)},
                     {"valueBits", double(c.of_values())},
                     {"headDim", double(c.own())},
                     {"kvHeads", double(c.kv_heads)},
                     {"keyGroup", double(c.key_group)},
                     {"valueGroup", double(c.value_group)},
                     {"pageTokens", double(page_tokens)},
                     {"outer", double(c.outer)}});
  if (c.words()) p.set("form", std::string("turbomind"));
  if (c.by_token()) p.set("granularity", std::string("token"));
  if (c.fit) p.set("fit", 1.0);
  return p;
}

std::string name_of(const KvCase& c) {
  char name[128];
  std::snprintf(name, sizeof(name), "k%d v%d d%d g%d%s%s heads %d/%d%s splits %d queries %d", c.bits, c.of_values(),
                c.own(), c.key_group, c.fit ? " fitted" : "",
                c.words()      ? " words"
                : c.by_token() ? " by token"
                               : "",
                c.heads, c.kv_heads, c.outer ? " outer" : "", c.splits, c.queries);
  return name;
}

std::vector<Tensor> pages_of(const KvCase& c, const KvData& d) {
  const Tensor keys = of(DType::u8, {d.pages, d.keys_page}, d.keys);
  if (c.words()) return {keys, keys, keys, keys};
  return {keys, of(DType::u8, {d.pages, d.key_numbers_page}, d.key_numbers),
          of(DType::u8, {d.pages, d.values_page}, d.values),
          of(DType::u8, {d.pages, d.value_numbers_page}, d.value_numbers)};
}

// Uploads, so that one tensor given four times is one on the device.
std::vector<Tensor> up(Device& device, const std::vector<Tensor>& list) {
  std::vector<Tensor> out;
  for (size_t i = 0; i < list.size(); ++i) {
    size_t same = i;
    for (size_t n = 0; n < i; ++n)
      if (list[n].raw() == list[i].raw()) same = n;
    out.push_back(same < i ? out[same] : device.backend().upload(list[i]));
  }
  return out;
}
void run(Device& device, const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
         const Params& p) {
  Call call;
  call.in = in, call.out = out, call.params = p;
  device.queue().enqueue(op, std::move(call));
}
void settled(Device& device) {
  const Queue::Outcome outcome = device.settle();
  if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
}

// Largest share of the bound, or infinity.
double compare(const KvCase& c, const KvData& d, const Tensor& y) {
  double worst = 0;
  std::vector<double> want, bound;
  for (int b = 0; b < c.sequences; ++b)
    for (int query = 0; query < c.queries; ++query)
      for (int h = 0; h < c.heads; ++h) {
        kv_expected(c, d, b, h, unit(y.dtype), want, bound, query, c.queries > 1);
        for (int i = 0; i < c.own(); ++i) {
          const double share = std::fabs(get(y, ((int64_t{b} * c.queries + query) * c.heads + h) * c.own() + i) -
                                         want[static_cast<size_t>(i)]) /
                               (bound[static_cast<size_t>(i)] + least(y.dtype));
          worst = std::isnan(share) ? INFINITY : std::max(worst, share);
        }
      }
  return worst;
}

void check(Device& device, Report& report, const KvCase& c, DType out,
           std::initializer_list<std::pair<const char*, Params::Value>> more = {}, bool sinks = false) {
  KvCase with = c;
  if (with.splits == 0) with.splits = 1;
  KvData d(with, lpq::test::random()());
  const int64_t width = c.kv_heads * c.own();
  // With sinks queries are of bf16, too.
  std::vector<uint16_t> narrow;
  if (sinks) {
    for (uint16_t& x : d.q) {
      narrow.push_back(lpq::f32_to_bf16(lpq::f16_to_f32(x)));
      x = lpq::f32_to_f16(lpq::bf16_to_f32(narrow.back()));
    }
    for (int h = 0; h < c.heads; ++h) d.sinks.push_back(static_cast<float>(h % 5));
  }
  std::vector<Tensor> in = {
      of(sinks ? DType::bf16 : DType::f16, {c.sequences * c.queries, c.heads * c.own()}, sinks ? narrow : d.q)};
  for (const Tensor& t : pages_of(c, d)) in.push_back(t);
  for (const Tensor& t :
       {of(DType::i32, {c.sequences, d.table_pages}, d.table), of(DType::i32, {c.sequences}, d.lengths),
        of(DType::f16, {c.sequences, d.room, width}, d.tail_keys),
        of(DType::f16, {c.sequences, d.room, width}, d.tail_values), of(DType::i32, {c.sequences}, d.tails)})
    in.push_back(t);
  if (sinks) in.push_back(of(DType::f32, {c.heads}, d.sinks));
  Params p = form(c, d.page_tokens);
  p.set("heads", double(c.heads)), p.set("scale", 1.0 / std::sqrt(c.own()));
  if (c.splits) p.set("splits", double(c.splits));
  if (c.queries > 1) p.set("queries", double(c.queries));
  for (const auto& [name, value] : more) p.set(name, value);
  const std::vector<Tensor> there = up(device, in);
  Tensor y[2];
  for (Tensor& each : y) {
    each = device.backend().upload(poisoned(out, {c.sequences * c.queries, c.heads * c.own()}));
    run(device, "kv_decode", there, {each}, p);
    settled(device);
    each = device.download(each);
  }
  const double worst = compare(with, d, y[0]);
  ++report.checks;
  // Scores and weights err by far less than their worst cases together: what lies wrong shows beyond a twentieth.
  const bool same = std::memcmp(y[0].raw(), y[1].raw(), y[0].bytes()) == 0,
             ok = worst <= (out == DType::f32 ? 0.05 : 1) && same;
  if (!ok) ++report.failures;
  std::printf("%s  decode %-64s %.4f of the bound%s\n", ok ? "ok  " : "FAIL", name_of(c).c_str(), worst,
              same ? "" : ", other bytes the second time");
}

void check_pack(Device& device, Report& report, KvCase c) {
  c.sequences = 1, c.packed_blocks = {c.words() ? 200 : 3}, c.tails = {0};
  const KvData d(c, lpq::test::random()());
  const int64_t width = c.kv_heads * c.own();
  const int first = c.words() ? 37 : d.block, tokens = c.words() ? 101 : 2 * d.block;
  KvPages want(d);
  std::vector<Tensor> x;
  for (const bool value : {false, true}) {
    const auto halves = pack_input(c, tokens, lpq::test::random()());
    pack_expected(c, d, want, halves.data(), tokens, value, 0, first);
    x.push_back(of(DType::f16, {tokens, width}, halves));
  }
  x.push_back(of(DType::i32, {d.table_pages}, d.table));
  Params p = form(c, d.page_tokens);
  p.set("first", double(first));
  const std::vector<Tensor> pages = up(device, pages_of(c, d)), in = up(device, x);
  run(device, "kv_pack", in, pages, p);
  settled(device);
  const std::vector<uint8_t>* const wants[4] = {&want.keys, &want.key_numbers, &want.values, &want.value_numbers};
  bool same = true;
  for (size_t i = 0; i < (c.words() ? 1u : 4u); ++i)
    same = same && std::memcmp(device.download(pages[i]).raw(), wants[i]->data(), wants[i]->size()) == 0;
  report.that("pack " + name_of(c), same);
}

// Tokens one by one: what is appended and attended to, against everything packed and computed anew; bytes of the cache
// in the end too.
void check_steps(Device& device, Report& report, KvCase c, int steps) {
  const int block = c.block(), width = c.kv_heads * c.own(), room = c.words() ? 1 : block;
  c.packed_blocks.assign(static_cast<size_t>(c.sequences), c.words() ? steps : steps / block + 1),
      c.tails.assign(static_cast<size_t>(c.sequences), 0);
  KvData d(c, lpq::test::random()());
  KvPages want(d);
  std::vector<std::vector<uint16_t>> k, v;  // of sequences
  for (int b = 0; b < c.sequences; ++b)
    k.push_back(pack_input(c, steps, lpq::test::random()())), v.push_back(pack_input(c, steps, lpq::test::random()()));
  const std::vector<Tensor> pages = up(device, pages_of(c, d));
  const auto zeros = [&](DType dtype, std::vector<int64_t> shape) {
    return device.backend().upload(filled(dtype, std::move(shape), [](int64_t) { return 0; }));
  };
  const Tensor table = device.backend().upload(of(DType::i32, {c.sequences, d.table_pages}, d.table)),
               lengths = zeros(DType::i32, {c.sequences}), tails = zeros(DType::i32, {c.sequences});
  const Tensor tail_keys = zeros(DType::f16, {c.sequences, room, width}),
               tail_values = zeros(DType::f16, {c.sequences, room, width});
  Params p = form(c, d.page_tokens), asks = form(c, d.page_tokens);
  asks.set("heads", double(c.heads)), asks.set("scale", 1.0 / std::sqrt(c.own()));
  double worst = 0, exact = 0;
  for (int t = 0; t < steps; ++t) {
    std::vector<Tensor> given;
    for (const auto* x : {&k, &v}) {
      Tensor step = allocate(DType::f16, {c.sequences, width});
      for (int b = 0; b < c.sequences; ++b)
        std::memcpy(step.data<uint16_t>() + b * width, (*x)[static_cast<size_t>(b)].data() + t * width,
                    static_cast<size_t>(2 * width));
      given.push_back(step);
    }
    std::vector<Tensor> in = up(device, given), out = pages;
    in.push_back(table);
    for (const Tensor& each : {lengths, tails, tail_keys, tail_values}) out.push_back(each);
    run(device, "kv_append", in, out, p);
    const int packed = c.words() ? t + 1 : (t / block) * block;  // what the step that fills a tail reads is still exact
    if (t % 97 && (t + 1) % block > 2 && t + 1 < steps) continue;
    const Tensor q = gaussian(DType::f16, {c.sequences, c.heads * c.own()}),
                 y = device.backend().upload(poisoned(DType::f32, {c.sequences, c.heads * c.own()}));
    std::vector<Tensor> reads = {device.backend().upload(q)};
    for (const Tensor& each : pages) reads.push_back(each);
    for (const Tensor& each : {table, lengths, tail_keys, tail_values, tails}) reads.push_back(each);
    run(device, "kv_decode", reads, {y}, asks);
    settled(device);
    // The same cache at once: the packed tokens by the rule, the others in a tail.
    KvCase now = c;
    now.splits = 1, now.tails.assign(static_cast<size_t>(c.sequences), t + 1 - packed);
    KvData all = d;
    KvPages bytes(d);
    for (int b = 0; b < c.sequences; ++b)
      pack_expected(c, d, bytes, k[static_cast<size_t>(b)].data(), packed, false, b, 0),
          pack_expected(c, d, bytes, v[static_cast<size_t>(b)].data(), packed, true, b, 0);
    all.keys = bytes.keys, all.key_numbers = bytes.key_numbers, all.values = bytes.values,
    all.value_numbers = bytes.value_numbers;
    all.q.assign(q.data<uint16_t>(), q.data<uint16_t>() + q.elements());
    all.lengths.assign(static_cast<size_t>(c.sequences), packed), all.tails = now.tails, all.room = t + 1 - packed;
    all.tail_keys.clear(), all.tail_values.clear();
    for (int b = 0; b < c.sequences; ++b)
      for (int side = 0; side < 2; ++side) {
        const auto& x = side ? v[static_cast<size_t>(b)] : k[static_cast<size_t>(b)];
        auto& tail = side ? all.tail_values : all.tail_keys;
        tail.insert(tail.end(), x.begin() + static_cast<int64_t>(packed) * width,
                    x.begin() + static_cast<int64_t>(t + 1) * width);
      }
    all.read(now);
    const double share = compare(now, all, device.download(y));
    // Of exact tokens alone the bound is how weights are rounded, and one or two of them come near it.
    (packed ? worst : exact) = std::max(packed ? worst : exact, share);
  }
  const int packed = c.words() ? steps : (steps - 1) / block * block;
  for (int b = 0; b < c.sequences; ++b)
    pack_expected(c, d, want, k[static_cast<size_t>(b)].data(), packed, false, b, 0),
        pack_expected(c, d, want, v[static_cast<size_t>(b)].data(), packed, true, b, 0);
  bool same = std::memcmp(device.download(pages[0]).raw(), want.keys.data(), want.keys.size()) == 0;
  if (!c.words())
    same = same &&
           std::memcmp(device.download(pages[1]).raw(), want.key_numbers.data(), want.key_numbers.size()) == 0 &&
           std::memcmp(device.download(pages[2]).raw(), want.values.data(), want.values.size()) == 0 &&
           std::memcmp(device.download(pages[3]).raw(), want.value_numbers.data(), want.value_numbers.size()) == 0;
  std::printf("%d steps, %.4f of the bound, of exact tokens alone %.4f\n", steps, worst, exact);
  report.that("steps " + name_of(c), same && worst <= 0.05 && exact <= 1);
}

// What is bad on the device is told, and nothing else is read for it.
void check_faults(Device& device, Report& report) {
  KvCase c{4, 128, 128, 128, 1, 4, 2, 1, false, 1, {2}, {3}};
  const auto decode = [&](const std::function<void(KvData&)>& spoil) {
    return [&, spoil] {
      KvData d(c, 7);
      spoil(d);
      Params p = form(c, d.page_tokens);
      p.set("heads", 4.0), p.set("scale", 0.1);
      std::vector<Tensor> in = {of(DType::f16, {1, 512}, d.q)};
      for (const Tensor& t : pages_of(c, d)) in.push_back(t);
      for (const Tensor& t : {of(DType::i32, {1, d.table_pages}, d.table), of(DType::i32, {1}, d.lengths),
                              of(DType::f16, {1, d.room, 256}, d.tail_keys),
                              of(DType::f16, {1, d.room, 256}, d.tail_values), of(DType::i32, {1}, d.tails)})
        in.push_back(t);
      run(device, "kv_decode", up(device, in), {device.backend().upload(poisoned(DType::f32, {1, 512}))}, p);
      settled(device);
    };
  };
  report.fails("decode: a page that is none", "LPQ_NATIVE_ARGUMENT", decode([](KvData& d) { d.table[1] = d.pages; }));
  report.fails("decode: a negative page", "LPQ_NATIVE_ARGUMENT", decode([](KvData& d) { d.table[0] = -1; }));
  report.fails("decode: half a tile", "LPQ_NATIVE_ARGUMENT", decode([](KvData& d) { d.lengths[0] = 64; }));
  report.fails("decode: longer than its pages", "LPQ_NATIVE_ARGUMENT", decode([](KvData& d) { d.lengths[0] = 384; }));
  report.fails("decode: a tail beyond its room", "LPQ_NATIVE_ARGUMENT", decode([](KvData& d) { d.tails[0] = 4; }));
  const auto many = [&] {
    KvCase asks = c;
    asks.queries = 2;
    KvData d(asks, 7);
    Params p = form(c, d.page_tokens);
    p.set("heads", 4.0), p.set("scale", 0.1), p.set("queries", 2.0);
    std::vector<Tensor> in = {of(DType::f16, {2, 512}, d.q)};
    for (const Tensor& t : pages_of(c, d)) in.push_back(t);
    for (const Tensor& t : {of(DType::i32, {1, d.table_pages}, d.table), of(DType::i32, {1}, std::vector<int>{64}),
                            of(DType::f16, {1, d.room, 256}, d.tail_keys),
                            of(DType::f16, {1, d.room, 256}, d.tail_values), of(DType::i32, {1}, d.tails)})
      in.push_back(t);
    run(device, "kv_decode", up(device, in), {device.backend().upload(poisoned(DType::f32, {2, 512}))}, p);
    settled(device);
  };
  report.fails("many queries: half a tile", "LPQ_NATIVE_ARGUMENT", many);
  const auto append = [&](int packed, int tail) {
    return [&, packed, tail] {
      KvData d(c, 7);
      Params p = form(c, d.page_tokens);
      const Tensor x = of(DType::f16, {1, 256}, pack_input(c, 1, 9)),
                   room = filled(DType::f16, {1, 128, 256}, [](int64_t) { return 1; });
      std::vector<Tensor> in = up(device, {x, x, of(DType::i32, {1, d.table_pages}, d.table)}),
                          out = up(device, pages_of(c, d));
      for (const Tensor& t :
           up(device, {of(DType::i32, {1}, std::vector<int>{packed}), of(DType::i32, {1}, std::vector<int>{tail}), room,
                       filled(DType::f16, {1, 128, 256}, [](int64_t) { return 1; })}))
        out.push_back(t);
      run(device, "kv_append", in, out, p);
      settled(device);
    };
  };
  report.fails("append: half a block", "LPQ_NATIVE_ARGUMENT", append(64, 128));
  report.fails("append: no page for what is packed", "LPQ_NATIVE_ARGUMENT", append(256, 128));
  report.fails("append: a tail beyond its room", "LPQ_NATIVE_ARGUMENT", append(0, 129));
  const auto pack = [&](uint16_t bad, int page) {
    return [&, bad, page] {
      KvData d(c, 8);
      auto x = pack_input(c, 256, 9);
      if (bad) x[777] = bad;
      if (page != 99) d.table[1] = page;
      run(device, "kv_pack",
          up(device, {of(DType::f16, {256, 256}, x), of(DType::f16, {256, 256}, pack_input(c, 256, 10)),
                      of(DType::i32, {2}, d.table)}),
          up(device, pages_of(c, d)), form(c, d.page_tokens));
      settled(device);
    };
  };
  report.fails("pack: NaN", "LPQ_NATIVE_NUMERICS", pack(0x7e01, 99));
  report.fails("pack: infinity", "LPQ_NATIVE_NUMERICS", pack(0xfc00, 99));
  report.fails("pack: a page that is none", "LPQ_NATIVE_ARGUMENT", pack(0, 2));
}

// Heads that are stored as the next size, queries one and many, with and without sinks.
void check_padded(Device& device, Report& report, int own, int stored) {
  using F = cuda::KvForm;
  for (const int queries : {1, 40}) {
    const auto of_form = [&](int bits, int group, F f, int value_bits) {
      const bool words = f == F::kWords;
      const int of = words ? stored : group;
      return KvCase{bits,
                    stored,
                    of,
                    std::min(of, stored),
                    2,
                    6,
                    2,
                    0,
                    !words,
                    1,
                    words ? std::vector<int>{131, 64} : std::vector<int>{3, 1},
                    words ? std::vector<int>{0, 0} : std::vector<int>{45, 0},
                    value_bits,
                    f,
                    queries,
                    own};
    };
    for (const KvCase& each : {of_form(4, 128, F::kWide, 4), of_form(2, 32, F::kFine, 2), of_form(8, 64, F::kTokens, 4),
                               of_form(4, 0, F::kWords, 4)}) {
      check(device, report, each, DType::f32, {}, queries > 1);
      if (queries != 1) continue;
      check_pack(device, report, each);
      KvCase fitted = each;
      fitted.fit = true;
      check_pack(device, report, fitted);
    }
  }
}

// Heads of 512 dims: many queries of a kv head, heads of fewer dims, warps given, appended tokens.
void check_widest(Device& device, Report& report, bool quick) {
  using F = cuda::KvForm;
  for (const int heads : {1, 8, 16, 20}) {
    check(device, report, {4, 512, 128, 128, 2, heads, 1, 0, false, 1, {11, 2}, {20, 0}}, DType::f32);
    check(device, report, {2, 512, 32, 32, 1, 2 * heads, 2, 2, true, 1, {5}, {7}, 2, F::kFine}, DType::f32, {}, true);
  }
  for (const double warps : {2.0, 4.0})
    check(device, report, {4, 512, 128, 128, 1, 16, 1, 2, true, 1, {13}, {20}}, DType::f32, {{"warps", warps}});
  KvCase many{4, 512, 128, 128, 1, 16, 1, 0, false, 1, {quick ? 2 : 32}, {64}, 0, F::kWide, quick ? 20 : 200};
  check(device, report, many, DType::bf16);
  report.fails("decode: warps that share units, an odd number", "LPQ_NATIVE_ARGUMENT", [&] {
    check(device, report, {4, 512, 128, 128, 1, 2, 1, 1, false, 1, {1}, {0}}, DType::f32, {{"warps", 1.0}});
  });
  for (const int own : {264, 320, 504}) check_padded(device, report, own, 512);
  check_steps(device, report, {4, 512, 128, 128, 2, 16, 1, 0, false, 1, {}, {}}, quick ? 140 : 1000);
  check_steps(device, report, {8, 512, 512, 512, 1, 8, 1, 0, false, 2, {}, {}, 4, F::kWords}, quick ? 140 : 1000);
}

// Shapes beyond the sweep: page sizes, groups of query heads, heads that are stored as the next size, faults, steps.
void check_others(Device& device, Report& report, bool small) {
  using F = cuda::KvForm;
  check(device, report, {4, 128, 128, 128, 1, 2, 2, 3, false, 1, {40}, {1}}, DType::f16);
  check(device, report, {4, 128, 128, 128, 1, 2, 2, 3, false, 1, {40}, {1}}, DType::bf16);
  check(device, report, {4, 128, 128, 128, 2, 6, 2, 1, false, 1, {1, 0}, {70, 3}, 0, F::kWide, 30}, DType::bf16);
  check(device, report, {2, 128, 32, 32, 1, 20, 1, 0, false, 1, {6}, {0}, 2, F::kFine}, DType::f32);
  check(device, report, {4, 128, 128, 128, 1, 8, 2, 0, false, 1, {32}, {64}, 0, F::kWide, 64}, DType::f32);
  check(device, report, {4, 128, 64, 64, 1, 2, 1, 0, true, 1, {3}, {127}, 0, F::kFine, 500}, DType::bf16);
  check(device, report, {4, 64, 128, 64, 3, 2, 1, 2, false, 1, {0, 0, 1}, {0, 1, 127}}, DType::f16);
  for (const double warps : {1.0, 3.0, 8.0})
    check(device, report, {4, 128, 128, 128, 1, 4, 1, 2, true, 1, {13}, {20}}, DType::f32, {{"warps", warps}});
  // Pages of three blocks.
  check(device, report, {4, 128, 128, 128, 2, 4, 2, 3, false, 3, {11, 7}, {20, 0}}, DType::f32, {{"warps", 2.0}});
  check(device, report, {8, 64, 64, 64, 2, 4, 2, 2, false, 3, {700, 65}, {0, 0}, 4, F::kWords}, DType::f32,
        {{"warps", 2.0}});
  // Query heads of a kv head: blocks of 4, of 8 and of 16, the last one full or not.
  for (const int heads : {1, 3, 8, 12, 16, 32, 64}) {
    check(device, report, {4, 128, 128, 128, 2, heads, 1, 0, false, 1, {11, 2}, {20, 0}}, DType::f32);
    check(device, report, {2, 64, 32, 32, 1, 2 * heads, 2, 2, true, 1, {5}, {7}, 2, F::kFine}, DType::f32, {}, true);
  }
  for (const auto& [own, stored] : {std::pair{80, 128}, {96, 128}, {192, 256}, {136, 256}})
    check_padded(device, report, own, stored);
  check(device, report, {4, 128, 128, 128, 2, 6, 2, 0, false, 1, {1, 0}, {70, 3}, 0, F::kWide, 30}, DType::f32, {},
        true);
  check(device, report, {4, 128, 128, 128, 1, 4, 2, 3, false, 1, {9}, {70}, 0, F::kWide, 9}, DType::f16, {}, true);
  check_faults(device, report);
  const int steps = small ? 140 : 1000;
  check_steps(device, report, {4, 128, 128, 128, 2, 8, 2, 0, false, 1, {}, {}}, steps);
  if (!small) {
    KvCase fitted{4, 64, 32, 32, 2, 8, 2, 0, false, 1, {}, {}, 4, F::kFine};
    fitted.fit = true;
    check_steps(device, report, fitted, steps);
    fitted = {8, 128, 128, 128, 2, 4, 2, 0, false, 2, {}, {}, 4, F::kWords}, fitted.fit = true;
    check_steps(device, report, fitted, steps);
    check_steps(device, report, {2, 64, 32, 32, 1, 4, 2, 0, true, 1, {}, {}, 2, F::kFine}, steps);
    check_steps(device, report, {8, 128, 64, 64, 1, 4, 1, 0, false, 2, {}, {}, 4, F::kTokens}, steps);
    check_steps(device, report, {8, 128, 128, 128, 2, 4, 2, 0, false, 1, {}, {}, 8, F::kWords}, steps);
    check_steps(device, report, {4, 128, 128, 128, 2, 8, 2, 0, false, 1, {}, {}, 4, F::kWide, 1, 80}, steps);
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool quick = false, small = false;
  int only = 0;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--quick") quick = true;
    else if (arg == "--small") quick = small = true;  // for compute-sanitizer
    else if (arg == "--dims" && i + 1 < argc) only = std::strcmp(argv[++i], "none") ? std::atoi(argv[i]) : -1;
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Device device;
  Report report;
  using F = cuda::KvForm;
  for (const int dims : {64, 128, 256, 512}) {
    if ((small && !only && dims != 128) || (only && dims != only)) continue;
    for (const auto& [bits, value_bits] : {std::pair{4, 4}, {2, 2}, {8, 8}, {8, 4}})
      for (const F f : {F::kWide, F::kFine, F::kTokens, F::kWords})
        for (const int group : {32, 64, 128}) {
          if (bits == 2 && f == F::kWords) continue;
          if (f == F::kWords ? group != 64 : f == F::kWide ? group != 128 : f == F::kFine ? group == 128 : group > dims)
            continue;
          if (quick && f != F::kWide && group != (f == F::kTokens ? 128 : 64) && dims != 64) continue;
          const int of = f == F::kWords ? dims : group, values = std::min(of, dims);
          const bool words = f == F::kWords;
          KvCase c{bits,
                   dims,
                   of,
                   values,
                   2,
                   8,
                   2,
                   2,
                   false,
                   1,
                   words ? std::vector<int>{131, 64} : std::vector<int>{3, 1},
                   {5, 0},
                   value_bits,
                   f};
          check(device, report, c, DType::f32);
          if (!quick) {
            KvCase other{bits,
                         dims,
                         of,
                         values,
                         3,
                         4,
                         4,
                         0,
                         !words,
                         2,
                         words ? std::vector<int>{700, 0, 1} : std::vector<int>{9, 0, 4},
                         {100, 1, 0},
                         value_bits,
                         f};
            check(device, report, other, DType::f16);
          }
          c.sequences = 1, c.heads = 2, c.splits = 1, c.outer = group == 32;
          check_pack(device, report, c);
          c.fit = true;
          check_pack(device, report, c);
          KvCase many{bits,
                      dims,
                      of,
                      values,
                      2,
                      6,
                      2,
                      1,
                      false,
                      1,
                      words ? std::vector<int>{131, 1} : std::vector<int>{1, 0},
                      {words ? 0 : 70, words ? 0 : 3},
                      value_bits,
                      f,
                      30};
          if (!small || f == F::kTokens) check(device, report, many, DType::f32);
          if (quick) continue;
          // More rows than a block has, tokens in splits, given and chosen; a sequence without a token.
          KvCase cut{bits,
                     dims,
                     of,
                     values,
                     1,
                     4,
                     1,
                     3,
                     !words,
                     2,
                     words ? std::vector<int>{1000} : std::vector<int>{5},
                     {words ? 0 : 33},
                     value_bits,
                     f,
                     71};
          check(device, report, cut, DType::f32);
          cut.sequences = 3, cut.kv_heads = 4, cut.splits = 0, cut.queries = 5;
          cut.packed_blocks = words ? std::vector<int>{65, 0, 300} : std::vector<int>{2, 0, 1},
          cut.tails = words ? std::vector<int>{0, 0, 0} : std::vector<int>{5, 0, 0};
          check(device, report, cut, DType::f16);
        }
  }
  if ((only == 0 && !small) || only == 512) check_widest(device, report, quick);
  if (only <= 0) check_others(device, report, small);
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures ? 1 : 0;
}
