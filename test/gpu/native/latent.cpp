// latent_decode, latent_pack and latent_append on a device: every width, group and kernel against double precision
// within the bound of latent_case.h, outputs full of NaN before and the same bytes twice; packed and appended bytes
// against bytes packed one by one; what is bad is told. latent [--small] [--time] [--json FILE]: --time then times
// decoding for 16, 64 and 128 heads over 1 x 128K, 8 x 32K and 32 x 8K tokens with 4, 8 and 2 bits beside 16 bits by
// the same kernels, and packing (pages in random order, caches rotated past L2, graphs, medians of nine replays).
#include <cstring>
#include <fstream>
#include <sstream>

#include "../../native/latent_case.h"
#include "act_harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

Params form(const LatentCase& c) {
  return params({{"bits", double(c.bits)},
                 {"group", double(c.group)},
                 {"latent", double(c.latent)},
                 {"rotary", double(c.rotary)},
                 {"pageTokens", double(c.page_tokens)}});
}
Tensor pages_of(const LatentCase& c, const LatentData& d) {
  return of(DType::u8, {d.page_count, c.page_bytes()}, d.pages);
}
Tensor table_of(const LatentCase& c, const LatentData& d) {
  return of(DType::i32, {c.sequences(), d.table_pages}, d.table);
}

Params asked(const LatentCase& c, int rows = 0) {
  Params p = form(c);
  p.set("heads", double(c.heads)), p.set("scale", 1 / std::sqrt(double(c.width())));
  if (c.queries > 1) p.set("queries", double(c.queries));
  if (c.splits) p.set("splits", double(c.splits));
  if (rows) p.set("rows", double(rows));
  return p;
}

// rows: of a block, or 0 for the choice.
void check(Device& device, Report& report, const LatentCase& c, DType out, int rows = 0) {
  LatentData d(c, lpq::test::random()());
  const std::vector<int64_t> shape{int64_t{c.sequences()} * c.queries, int64_t{c.heads} * c.latent};
  const std::vector<Tensor> in{of(c.bf16 ? DType::bf16 : DType::f16, {shape[0], int64_t{c.heads} * c.width()}, d.q),
                               pages_of(c, d), table_of(c, d), of(DType::i32, {c.sequences()}, c.lengths)};
  Tensor y[2];
  for (Tensor& each : y) each = device.run("latent_decode", in, {poisoned(out, shape)}, asked(c, rows))[0];
  double worst = 0;
  std::vector<double> want, bound;
  for (int b = 0; b < c.sequences(); ++b)
    for (int row = 0; row < c.rows(); ++row) {
      latent_expected(c, d, b, row, unit(out), want, bound);
      for (int i = 0; i < c.latent; ++i) {
        const size_t at = static_cast<size_t>(i);
        const double got = get(y[0], (int64_t{b} * c.rows() + row) * c.latent + i),
                     share = std::fabs(got - want[at]) / (bound[at] + least(out));
        worst = std::isnan(share) ? INFINITY : std::max(worst, share);
      }
    }
  const bool same = std::memcmp(y[0].raw(), y[1].raw(), y[0].bytes()) == 0, ok = worst <= 1 && same;
  ++report.checks;
  if (!ok) ++report.failures;
  std::printf("%s  %s, rows %d, %d sequences: %.4f of the bound%s\n", ok ? "ok  " : "FAIL", c.name().c_str(), rows,
              c.sequences(), worst, same ? "" : ", other bytes the second time");
}

void check_pack(Device& device, Report& report, const LatentCase& c) {
  LatentData d(c, lpq::test::random()()), want = d;
  // The first tokens at once from token 3 on, the last three one by one.
  const int first = 3, tokens = c.lengths[0] - first, appended = 3, at_once = tokens - appended;
  const auto latents = latent_halves_of(static_cast<size_t>(tokens * c.latent), lpq::test::random()()),
             rotary = latent_halves_of(static_cast<size_t>(tokens * c.rotary), lpq::test::random()());
  for (int i = 0; i < tokens; ++i)
    want.at(c, d.table[static_cast<size_t>((first + i) / c.page_tokens)])
        .pack((first + i) % c.page_tokens, latents.data() + i * c.latent, rotary.data() + i * c.rotary);
  const auto rows = [&](const std::vector<uint16_t>& x, int width, int from, int count) {
    return of(DType::f16, {count, width},
              std::vector<uint16_t>(x.begin() + from * width, x.begin() + (from + count) * width));
  };
  Params p = form(c);
  p.set("first", double(first));
  Tensor pages = device.run("latent_pack",
                            {rows(latents, c.latent, 0, at_once), rows(rotary, c.rotary, 0, at_once),
                             of(DType::i32, {d.table_pages}, d.table)},
                            {pages_of(c, d)}, p)[0];
  Tensor lengths = of(DType::i32, {1}, std::vector<int>{first + at_once});
  for (int i = at_once; i < tokens; ++i) {
    const auto out =
        device.run("latent_append", {rows(latents, c.latent, i, 1), rows(rotary, c.rotary, i, 1), table_of(c, d)},
                   {pages, lengths}, form(c));
    pages = out[0], lengths = out[1];
  }
  report.that("pack " + c.name(), std::memcmp(pages.raw(), want.pages.data(), want.pages.size()) == 0 &&
                                      lengths.data<int32_t>()[0] == c.lengths[0]);
}

void check_faults(Device& device, Report& report) {
  const LatentCase c{4, 128, 512, 64, 4, 1, 1, 32, {40}};
  const auto decode = [&](int length, int page) {
    return [&, length, page] {
      LatentData d(c, 7);
      if (page != 99) d.table[1] = page;
      device.run("latent_decode",
                 {of(DType::f16, {1, 4 * c.width()}, d.q), pages_of(c, d), table_of(c, d),
                  of(DType::i32, {1}, std::vector<int>{length})},
                 {poisoned(DType::f32, {1, 4 * c.latent})}, asked(c));
    };
  };
  report.fails("decode: a page that is none", "LPQ_NATIVE_ARGUMENT", decode(40, 2));
  report.fails("decode: a negative page", "LPQ_NATIVE_ARGUMENT", decode(40, -1));
  report.fails("decode: longer than its pages", "LPQ_NATIVE_ARGUMENT", decode(65, 99));
  const auto pack = [&](uint16_t bad, int page) {
    return [&, bad, page] {
      LatentData d(c, 8);
      auto x = latent_halves_of(40 * 512, 9);
      if (bad) x[777] = bad;
      if (page != 99) d.table[1] = page;
      device.run("latent_pack",
                 {of(DType::f16, {40, 512}, x), of(DType::f16, {40, 64}, latent_halves_of(40 * 64, 10)),
                  of(DType::i32, {2}, d.table)},
                 {pages_of(c, d)}, form(c));
    };
  };
  report.fails("pack: NaN", "LPQ_NATIVE_NUMERICS", pack(0x7e01, 99));
  report.fails("pack: infinity", "LPQ_NATIVE_NUMERICS", pack(0xfc00, 99));
  report.fails("pack: a page that is none", "LPQ_NATIVE_ARGUMENT", pack(0, 2));
}

void check_all(Device& device, Report& report, bool small) {
  for (const int bits : {4, 8, 2, 16})
    for (const int rows : {16, 64, 32}) {
      check(device, report, {bits, 128, 512, 64, 5, 1, 1, 32, {70}}, DType::f32, rows);
      check(device, report, {bits, 32, 256, 64, 16, 1, 2, 64, {33, 1}}, DType::f16, rows);
      check(device, report, {bits, 64, 192, 48, 6, 3, 2, 32, {65, 2}, true}, DType::bf16, rows);
      if (small) continue;
      check(device, report, {bits, 64, 64, 16, 3, 2, 3, 32, {0, 97, 32}}, DType::f32, rows);
      check(device, report, {bits, 128, 512, 64, 128, 1, 0, 64, {300, 1000}}, DType::f32, rows);
    }
  check(device, report, {4, 128, 512, 64, 128, 1, 0, 64, {513}}, DType::f16);
  check(device, report, {8, 64, 512, 64, 16, 1, 0, 64, {700, 3}}, DType::f32);
  check(device, report, {4, 128, 512, 64, 70, 2, 5, 32, {3, 200}}, DType::f32);
  if (!small) {
    check(device, report, {4, 128, 512, 64, 16, 1, 0, 64, {9000}}, DType::f32);
    check(device, report, {8, 128, 512, 64, 16, 33, 0, 64, {600, 40}}, DType::f16);  // a prompt over a packed cache
    check(device, report, {4, 128, 512, 64, 1, 1, 300, 32, {2100}}, DType::f32);     // more splits than tiles
  }
  for (const int bits : {2, 4, 8, 16}) {
    check_pack(device, report, {bits, 128, 512, 64, 1, 1, 1, 64, {200}});
    check_pack(device, report, {bits, 32, 64, 16, 1, 1, 1, 32, {90}});
    check_pack(device, report, {bits, 64, 320, 32, 1, 1, 1, 32, {131}});
  }
  check_faults(device, report);
}

struct Bench {
  Device& device;
  Timer timer{device};
  cuda::CudaExec& exec = timer.exec();
  Tensor numbers;
  std::ostringstream json;
  explicit Bench(Device& device) : device(device) {
    // Halves of a sane size, which are codes, too.
    Tensor host = allocate(DType::u64, {2 << 20});
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<uint64_t>()[i] = (lpq::test::random()() & 0x83ff83ff83ff83ffull) | 0x2c002c002c002c00ull;
    numbers = device.backend().upload(host);
    device.settle();
  }
  Tensor noise(DType dtype, std::vector<int64_t> shape) {
    Tensor t = exec.allocate(dtype, std::move(shape));
    for (size_t at = 0; at < t.bytes();) {
      const size_t count = std::min(t.bytes() - at, numbers.bytes());
      exec.copy(t.raw() + at, numbers.raw(), count);
      at += count;
    }
    return t;
  }
  void row(const char* op, int64_t bits, int64_t heads, int64_t B, int64_t tokens, double bytes, double us) {
    char line[256];
    std::snprintf(line, sizeof(line),
                  "{\"op\": \"%s\", \"bits\": %lld, \"heads\": %lld, \"B\": %lld, \"tokens\": %lld, \"us\": %.2f, "
                  "\"bytes\": %.0f, \"gbps\": %.0f}",
                  op, (long long)bits, (long long)heads, (long long)B, (long long)tokens, us, bytes, bytes / us / 1e3);
    std::printf("%s\n", line);
    std::fflush(stdout);
    json << (json.tellp() > 0 ? ",\n  " : "  ") << line;
  }
};

void time_decode(Bench& b, int64_t bits, int64_t heads, int64_t B, int64_t tokens) {
  const int64_t page = 64, each = tokens / page, pages = B * each, latent = 512, rotary = 64,
                bytes = page * (latent * bits / 8 + (bits == 16 ? 0 : 16) + 2 * rotary);
  const double total = double(pages * bytes) + 2.0 * double(B * heads * (2 * latent + rotary));
  const size_t copies = std::clamp<size_t>(size_t(8.0 * double(b.exec.device().l2_bytes) / total) + 1, 2, 12);
  std::vector<int> order(static_cast<size_t>(pages));
  for (int64_t i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), lpq::test::random());
  const Tensor table = b.device.backend().upload(of(DType::i32, {B, each}, order)),
               lengths = b.device.backend().upload(
                   filled(DType::i32, {B}, [&](int64_t) { return static_cast<double>(tokens); }));
  std::vector<Call> calls(copies);
  for (Call& call : calls) {
    call.params = params({{"bits", double(bits)},
                          {"group", 128.0},
                          {"latent", double(latent)},
                          {"rotary", double(rotary)},
                          {"pageTokens", double(page)},
                          {"heads", double(heads)},
                          {"scale", 0.04}});
    call.in = {b.noise(DType::f16, {B, heads * (latent + rotary)}), b.noise(DType::u8, {pages, bytes}), table, lengths};
    call.out = {b.exec.allocate(DType::f16, {B, heads * latent})};
  }
  b.device.settle();
  const auto run = cuda::cuda_op_table().at("latent_decode");
  const double us = b.timer.time(
      static_cast<int>(std::max<size_t>(4, copies)), [&](int i) { run(calls[size_t(i) % copies], b.exec); }, 9);
  b.row("latent_decode", bits, heads, B, tokens, total, us);
}

void time_pack(Bench& b, int64_t bits) {
  const int64_t page = 64, tokens = 65536, pages = tokens / page, latent = 512, rotary = 64,
                bytes = page * (latent * bits / 8 + (bits == 16 ? 0 : 16) + 2 * rotary);
  std::vector<int> order(static_cast<size_t>(pages));
  for (int64_t i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), lpq::test::random());
  Call call;
  call.params = params({{"bits", double(bits)},
                        {"group", 128.0},
                        {"latent", double(latent)},
                        {"rotary", double(rotary)},
                        {"pageTokens", double(page)}});
  call.in = {b.noise(DType::f16, {tokens, latent}), b.noise(DType::f16, {tokens, rotary}),
             b.device.backend().upload(of(DType::i32, {pages}, order))};
  call.out = {b.exec.allocate(DType::u8, {pages, bytes})};
  b.device.settle();
  const auto run = cuda::cuda_op_table().at("latent_pack");
  const double us = b.timer.time(4, [&](int) { run(call, b.exec); }, 9);
  b.row("latent_pack", bits, 0, 1, tokens, double(pages * bytes) + 2.0 * double(tokens * (latent + rotary)), us);
}

void time_all(Device& device, const std::string& out) {
  Bench b(device);
  for (const int64_t heads : {16, 64, 128})
    for (const auto& [B, tokens] : {std::pair<int64_t, int64_t>{1, 128 << 10}, {8, 32 << 10}, {32, 8 << 10}})
      for (const int64_t bits : {16, 8, 4, 2}) time_decode(b, bits, heads, B, tokens);
  for (const int64_t bits : {16, 8, 4, 2}) time_pack(b, bits);
  const Tensor from = b.noise(DType::u8, {512 << 20}), to = b.noise(DType::u8, {512 << 20});
  const double copy = b.timer.time(3, [&](int) { b.exec.copy(to.raw(), from.raw(), from.bytes()); }),
               gbps = 2.0 * static_cast<double>(from.bytes()) / copy / 1e3;
  std::printf("%s: a copy of 512 MiB %.1f us, %.0f GB/s\n", b.exec.device().name.c_str(), copy, gbps);
  if (!out.empty())
    std::ofstream(out) << "{\"device\": \"" << b.exec.device().name << "\", \"copy_gbps\": " << gbps
                       << ", \"cases\": [\n"
                       << b.json.str() << "\n]}\n";
}

}  // namespace

int main(int argc, char** argv) try {
  bool small = false, time = false;
  std::string out;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--small") small = true;  // for compute-sanitizer
    else if (arg == "--time") time = true;
    else if (arg == "--json" && i + 1 < argc) out = argv[++i];
  }
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  Device device;
  Report report;
  check_all(device, report, small);
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  if (time) time_all(device, out);
  return report.failures ? 1 : 0;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
