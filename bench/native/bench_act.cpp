// Times products of low-bit activations: bench_act [--json FILE] [--m LIST] [--kinds LIST] [--tune]. cuBLAS fp16, int8
// and fp8 in the same run. Weights rotate among copies that exceed the L2 cache eight times; graphs, medians of seven
// replays.
#include <fstream>
#include <map>
#include <sstream>

#include "act_harness.h"
#include "cuts.h"

using namespace lpq;
using namespace lpq::test;

namespace {

struct Shape {
  int64_t k, n;
};
const Shape kShapes[] = {{4096, 4096}, {4096, 6144},  {4096, 28672}, {14336, 4096},
                         {8192, 8192}, {8192, 10240}, {8192, 57344}, {28672, 8192}};

struct Bench {
  Device device;
  Timer timer{device};
  cuda::CudaExec& exec = timer.exec();
  int most = 0;  // launches of a graph, where not as many as there are copies
  CublasLt lt{exec};
  Tensor bytes, halves, ones, small;  // small: bytes from 1 to 16
  Bench() {
    Tensor host = allocate(DType::u64, {8 << 20});
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<uint64_t>()[i] = lpq::test::random()() & 0xbfbfbfbfbfbfbfbfull;
    bytes = device.backend().upload(host);
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<uint64_t>()[i] = (lpq::test::random()() & 0x87ff87ff87ff87ffull) | 0x3800380038003800ull;
    halves = device.backend().upload(host);
    for (int64_t i = 0; i < host.elements(); ++i)
      host.data<uint64_t>()[i] = (lpq::test::random()() & 0x0f0f0f0f0f0f0f0full) + 0x0101010101010101ull;
    small = device.backend().upload(host);
    ones = device.backend().upload(filled(DType::f32, {1 << 20}, [](int64_t i) { return 0.001 * (1 + i % 7); }));
    device.settle();
  }
  Tensor noise(const Tensor& from, DType dtype, std::vector<int64_t> shape, size_t shift) {
    Tensor t = exec.allocate(dtype, std::move(shape));
    for (size_t at = 0; at < t.bytes();) {
      const size_t begin = shift * 4096 % (from.bytes() / 2), count = std::min(t.bytes() - at, from.bytes() - begin);
      exec.copy(t.raw() + at, from.raw() + begin, count);
      at += count;
    }
    return t;
  }
  std::vector<Tensor> copies(const Tensor& from, DType dtype, const std::vector<int64_t>& shape) {
    std::vector<Tensor> list{noise(from, dtype, shape, 1)};
    const size_t most = 8 * exec.device().l2_bytes;
    while (list.size() < 2 || list.size() * list[0].bytes() < most)
      list.push_back(noise(from, dtype, shape, list.size() + 1));
    return list;
  }
  Tensor first_ones(int64_t count) const {
    Tensor t = ones;
    t.shape = {count};
    return t;
  }
  int count(int64_t m, size_t copies_) const {
    return most ? most : m >= 1024 ? 6 : static_cast<int>(std::max<size_t>(12, std::min<size_t>(copies_, 40)));
  }
};

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> words;
  std::stringstream stream(text);
  for (std::string word; std::getline(stream, word, ',');) words.push_back(word);
  return words;
}

// Of kinds: weights of 4 bits. i8, f8: codes of 8 bits; r4, g4: 4 bits times int8, one scale a row, factors of groups;
// w4, w4f8: f32 scales of groups, times int8 and e4m3; w4axN: N percent of the activations' blocks of 4 bits; g4axN:
// the same by weights with factors of groups.
bool nibbles_of(const std::string& kind) { return kind[0] == 'w' || kind[0] == 'r' || kind[0] == 'g'; }

}  // namespace

int main(int argc, char** argv) try {
  std::string out;
  std::vector<std::string> ms = {"16", "64", "256", "1024", "4096"}, kinds = {"i8", "f8", "w4", "w4f8", "w4ax84"};
  bool tune = false, vendor = true;
  int launches = 0;
  std::vector<Shape> shapes(std::begin(kShapes), std::end(kShapes));
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json" && i + 1 < argc) out = argv[++i];
    else if (word == "--m" && i + 1 < argc) ms = split(argv[++i]);
    else if (word == "--kinds" && i + 1 < argc) kinds = split(argv[++i]);
    else if (word == "--shapes" && i + 1 < argc) {
      shapes.clear();
      for (const std::string& shape : split(argv[++i]))
        shapes.push_back({std::stoll(shape), std::stoll(shape.substr(shape.find('x') + 1))});
    } else if (word == "--tune") tune = true;
    else if (word == "--no-vendor") vendor = false;
    else if (word == "--launches" && i + 1 < argc) launches = std::stoi(argv[++i]);
  }
  Bench b;
  b.most = launches;
  std::ostringstream json;
  std::printf("%s\n%-12s %5s %9s %9s %9s %9s", b.exec.device().name.c_str(), "K x N", "M", "fp16", "int8", "fp8",
              "fp8fast");
  for (const auto& kind : kinds) std::printf(" %9s /16 /8  ", kind.c_str());
  std::printf("  (us, times of cuBLAS over it)\n");
  std::map<std::string, std::vector<double>> logs;
  const auto op = cuda::cuda_op_table().at("gemm_act"), comet = cuda::cuda_op_table().at("gemm_comet");
  for (const auto& [k, n] : shapes) {
    const auto w8 = b.copies(b.bytes, DType::i8, {n, k});
    std::vector<Tensor> w4;
    for (const auto& kind : kinds)
      if (nibbles_of(kind) && w4.empty()) w4 = b.copies(b.bytes, DType::u8, {n / 16, k / 128, 1024});
    std::vector<Tensor> w16;
    if (vendor) w16 = b.copies(b.halves, DType::f16, {n, k});
    const Tensor sw = b.first_ones(n);
    // Scales of groups come from memory, as weights do.
    std::vector<Tensor> groups;
    for (size_t i = 0; i < w4.size(); ++i) groups.push_back(b.noise(b.ones, DType::f32, {k / 128, n}, i));
    std::vector<Tensor> factors;
    for (size_t i = 0; i < w4.size(); ++i) factors.push_back(b.noise(b.small, DType::i8, {k / 128, n}, i));
    for (const auto& m_text : ms) {
      const int64_t m = std::stoll(m_text);
      const Tensor x8 = b.noise(b.bytes, DType::i8, {m, k}, 99), x16 = b.noise(b.halves, DType::f16, {m, k}, 99),
                   y = b.exec.allocate(DType::f16, {m, n}), y32 = b.exec.allocate(DType::f32, {m, n});
      const Tensor sx = b.first_ones(m);
      double fp16 = 0, int8 = 0, fp8 = 0, fast = 0;
      if (vendor) {
        fp16 = b.timer.time(b.count(m, w16.size()), [&](int i) {
          cuda::Gemm g;
          g.m = m, g.n = n, g.k = k, g.a = x16.raw(), g.b = w16[static_cast<size_t>(i) % w16.size()].raw(),
          g.c = y.raw(), g.ab = g.out = DType::f16, g.transpose_b = true;
          b.exec.gemm(g);
        });
        const auto vendor_time = [&](CublasLt::Kind kind) {
          try {
            const auto run = b.lt.product(b.exec, kind, m, n, k);
            return b.timer.time(b.count(m, w8.size()), [&](int i) {
              run(x8.raw(), w8[static_cast<size_t>(i) % w8.size()].raw(),
                  kind == CublasLt::kInt8 ? y32.raw() : y.raw());
            });
          } catch (const Failure& failure) {
            std::printf("%s\n", failure.what());
            return 0.0;
          }
        };
        int8 = vendor_time(CublasLt::kInt8), fp8 = vendor_time(CublasLt::kFp8), fast = vendor_time(CublasLt::kFp8Fast);
      }
      std::printf("%5lldx%-6lld %5lld %9.2f %9.2f %9.2f %9.2f", (long long)k, (long long)n, (long long)m, fp16, int8,
                  fp8, fast);
      json << (json.tellp() > 0 ? ",\n  " : "\n  ") << "{\"k\": " << k << ", \"n\": " << n << ", \"m\": " << m
           << ", \"cublas_fp16_us\": " << fp16 << ", \"cublas_int8_us\": " << int8 << ", \"cublas_fp8_us\": " << fp8
           << ", \"cublas_fp8_fast_us\": " << fast;
      // w4ax75:act8 names the kernel.
      for (const auto& named_kind : kinds) {
        const std::string kind = named_kind.substr(0, named_kind.find(':'));
        const bool nibbles = nibbles_of(kind), of_groups = kind.rfind("w4", 0) == 0;
        const DType dtype = kind == "f8" || kind == "w4f8" ? DType::f8_e4m3 : DType::i8;
        const auto& w = nibbles ? w4 : w8;
        Tensor x = x8;
        x.dtype = dtype;
        std::vector<Call> calls(w.size());
        // W4Ax: w4ax0, w4ax75, g4ax100: that many of a hundred blocks have activations of 4 bits; from 17 tokens on in
        // bytes, as models have them (src/model/kernels/comet.ts).
        const bool mixed = kind.substr(1, 3) == "4ax", two_level = kind[0] == 'g', in_bytes = mixed && m > 16;
        const int64_t kb = k / 128, fours = mixed ? kb * std::stoi(kind.substr(4)) / 100 : 0, pitch = (m + 3) / 4 * 4;
        Tensor x_8, x_4, x_scales, blocks;
        if (mixed) {
          Tensor host = allocate(DType::i32, {kb}), bits = allocate(DType::u8, {kb});
          // Those of 8 bits spread out, as a kernel meets them.
          int four = 0, eight = 0;
          for (int64_t b = 0; b < kb; ++b) {
            const bool few = (b + 1) * fours / kb > b * fours / kb;
            host.data<int32_t>()[b] = few && !in_bytes ? ~four++ : eight++;
            bits.data<uint8_t>()[b] = few ? 4 : 8;
          }
          const auto there = [&](const Tensor& tensor) {
            Tensor uploaded = b.device.backend().upload(tensor);
            uploaded.storage->arrival->await_host();  // operations called by themselves wait for no copy
            return uploaded;
          };
          blocks = there(host);
          x_8 = b.exec.allocate(DType::i8, {m, 128 * eight}), x_4 = b.exec.allocate(DType::u8, {m, 64 * four}),
          x_scales = b.noise(b.ones, DType::f32, {kb, pitch}, 0);
          Call made;
          made.in = {x16, there(bits), there(filled(DType::f32, {kb}, [](int64_t) { return 1.0; })), blocks};
          made.out = {x_8, x_4, x_scales};
          cuda::cuda_op_table().at("quantize_comet")(made, b.exec);
        }
        for (size_t i = 0; i < w.size(); ++i) {
          if (mixed) {
            calls[i].in = {x_8, x_4, x_scales, blocks, w[i], two_level ? sw : groups[i]};
            if (two_level) calls[i].in.push_back(factors[i]);
            calls[i].out = {y};
            continue;
          }
          Tensor weights = w[i];
          if (!nibbles) weights.dtype = dtype;
          calls[i].in = {x, sx, weights, of_groups ? groups[i] : sw};
          if (two_level) calls[i].in.push_back(factors[i]);
          calls[i].out = {y};
        }
        const auto timed = [&](Params params, int replays = 7) {
          if (two_level) params.set("groupScales", 1.0);
          for (Call& call : calls) call.params = params;
          return b.timer.time(
              b.count(m, w.size()),
              [&](int i) { (mixed ? comet : op)(calls[static_cast<size_t>(i) % calls.size()], b.exec); }, replays);
        };
        Params named;
        if (named_kind != kind) named.set("kernel", named_kind.substr(kind.size() + 1));
        double t = timed(named);
        json << ", \"" << named_kind << "_us\": " << t;
        std::string what = "chosen";
        if (tune && named_kind == kind)
          for_each_cut("act8", kAct8Cuts, b.exec.device().multiprocessors, n, m,
                       [&](const std::string& how, const Params& wish) {
                         double other;
                         try {
                           other = timed(wish, 3);
                         } catch (const Failure& failure) {
                           if (failure.code != "LPQ_NATIVE_ARGUMENT") throw;
                           return;
                         }
                         json << ", \"" << named_kind << " " << how << "\": " << other;
                         if (other < t) t = other, what = how;
                       });
        const double own = dtype == DType::f8_e4m3 ? fast : int8;
        std::printf(" %9.2f %4.2f %4.2f %s", t, fp16 / t, own / t, tune ? what.c_str() : "");
        logs[named_kind + " M=" + m_text + " over fp16"].push_back(std::log(fp16 / t));
        logs[named_kind + " M=" + m_text + " over its own of cuBLAS"].push_back(std::log(own / t));
      }
      json << "}";
      std::printf("\n");
      std::fflush(stdout);
    }
  }
  for (const auto& [what, list] : logs) {
    double sum = 0;
    for (double l : list) sum += l;
    std::printf("%s: %.2f\n", what.c_str(), std::exp(sum / static_cast<double>(list.size())));
  }
  if (!out.empty())
    std::ofstream(out) << "{\"device\": \"" << b.exec.device().name << "\", \"rows\": [" << json.str() << "\n]}\n";
  return 0;
} catch (const Failure& failure) {
  std::printf("FAIL %s: %s\n", failure.code.c_str(), failure.what());
  return 1;
}
