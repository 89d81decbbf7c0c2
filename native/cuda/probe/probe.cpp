// The hardware as oracle: probe_map tells which element of an operand each register of each lane holds, found by
// running the instruction on matrices that are 0 but for ones.
//
//   params: instruction, operand. Output I32, -1 where a register holds nothing:
//   ldmatrix.x1 | x2 | x4 [.trans]: [32, 2 count, 3], the matrix, row and column of each half of each register;
//   m16n8k16.f16 | .bf16, m16n8k8.f16, m16n8k32.s8, m16n8k64.s4, sp.m16n8k32.f16, wgmma.m64n8k16.f16 | .bf16, operand
//   a, b
//     (not of wgmma: it lies in shared memory), c: [lanes, elements, 2], row and column in A [m, k], B [k, n], C [m,
//     n]; of sp's a the column among the kept ones; operand e of sp: [32, 8, 2], row and quad of k of each nibble of
//     metadata (selector 0).
//
// Rows and columns mean something only relative to memory: matrices of A (rows m) and B (rows n) in memory reach the
// registers by the map that ldmatrix was just found to have, 16 bytes of k a register, rows 0..7 before 8..15. wgmma
// reads B from memory itself.
//   c: one at (m, k = 0) of A and at (n, 0) of B: the one result that is not 0 is C(m, n).
//   a: one in a lane's element, B all ones: which row of C is not 0; B the bits of k: which column. b: likewise.
#include <functional>
#include <vector>

#include "cuda/launch.h"
#include "ops/arguments.h"

namespace lpq::cuda {
namespace {

using Words = std::vector<uint32_t>;

struct Instruction {
  const char* name;
  int kind;  // as lpq_probe_mma counts; 6 and 7: wgmma
  int bits, m, k;
  int a_words, b_words;
  uint32_t one;
  int warps = 1;
  bool sparse = false;
};
const Instruction kInstructions[] = {
    {"m16n8k16.f16", 0, 16, 16, 16, 4, 2, 0x3c00},
    {"m16n8k16.bf16", 1, 16, 16, 16, 4, 2, 0x3f80},
    {"m16n8k8.f16", 2, 16, 16, 8, 2, 1, 0x3c00},
    {"m16n8k32.s8", 3, 8, 16, 32, 4, 2, 1},
    {"m16n8k64.s4", 4, 4, 16, 64, 4, 2, 1},
    {"sp.m16n8k32.f16", 5, 16, 16, 32, 4, 4, 0x3c00, 1, true},
    {"wgmma.m64n8k16.f16", 6, 16, 64, 16, 4, 0, 0x3c00, 4},
    {"wgmma.m64n8k16.bf16", 7, 16, 64, 16, 4, 0, 0x3f80, 4},
};

constexpr uint32_t kFirstTwo = 0x44444444u,
                   kLastTwo = 0xeeeeeeeeu;  // metadata: of four k the first two are kept, or the last
constexpr int kAtOnce = 256;                // experiments of a launch

// What each half of lane's register i holds: matrix, row, column.
std::vector<int> loaded(CudaExec& exec, int count, bool trans) {
  std::vector<uint16_t> image(256);
  for (size_t i = 0; i < image.size(); ++i) image[i] = static_cast<uint16_t>(i);
  const Scratch in = exec.scratch(512), out = exec.scratch(512);
  exec.write_small(in.as<void>(), image.data(), 512);
  exec.launch("lpq_probe_ldmatrix", {1}, {32}, 0, static_cast<const uint16_t*>(in.as<uint16_t>()), out.as<uint32_t>(),
              count, static_cast<int>(trans));
  Words got(128);
  exec.read_back(got.data(), out.as<void>(), 512);
  std::vector<int> map;
  for (size_t lane = 0; lane < 32; ++lane)
    for (size_t e = 0; e < static_cast<size_t>(2 * count); ++e) {
      const int value = static_cast<int>(got[lane * 4 + e / 2] >> (16 * (e % 2)) & 0xffff);
      map.insert(map.end(), {value / 64, value / 8 % 8, value % 8});
    }
  return map;
}

class Probe {
 public:
  Probe(CudaExec& exec, const Instruction& instruction) : exec_(exec), i_(instruction), load_(loaded(exec, 4, false)) {}

  int lanes() const { return 32 * i_.warps; }
  int elements(char operand) const {
    return operand == 'c' ? 4 : operand == 'e' ? 8 : (operand == 'a' ? i_.a_words : i_.b_words) * 32 / i_.bits;
  }

  std::vector<int> map(char operand) {
    if (operand == 'e') return metadata();
    const std::vector<int> c = results();
    return operand == 'c' ? c : operand == 'a' ? first(c) : second(c);
  }

 private:
  using Matrix = std::function<bool(int row, int k)>;
  int stored_k() const { return i_.sparse ? i_.k / 2 : i_.k; }  // of A

  // Registers of a matrix whose rows of k lie in memory: `words` a lane of `blocks` eights of rows each, rows first,
  // then 16 bytes of k.
  Words registers(const Matrix& matrix, int words, int blocks) const {
    Words out(static_cast<size_t>(lanes()) * 4, 0);
    const int per_half = 16 / i_.bits;
    for (int t = 0; t < lanes(); ++t)
      for (int w = 0; w < words; ++w)
        for (int half = 0; half < 2; ++half) {
          const int* from = &load_[static_cast<size_t>(((t % 32) * 8 + 2 * (w % 4) + half) * 3)];
          const int row = 16 * (t / 32) + 8 * (w % blocks) + from[1], half_k = 8 * (w / blocks) + from[2];
          for (int e = 0; e < per_half; ++e)
            if (matrix(row, half_k * per_half + e))
              out[static_cast<size_t>(t * 4 + w)] |= i_.one << (16 * half + i_.bits * e);
        }
    return out;
  }
  Words one_hot(int lane, int element) const {
    Words out(static_cast<size_t>(lanes()) * 4, 0);
    const int per = 32 / i_.bits;
    out[static_cast<size_t>(lane * 4 + element / per)] = i_.one << (i_.bits * (element % per));
    return out;
  }
  Words a_memory(const Matrix& matrix) const { return registers(matrix, i_.a_words, 2); }
  // Of wgmma: 8 rows of 16 halves as they lie in memory.
  Words b_memory(const Matrix& matrix) const {
    if (i_.warps == 1) return registers(matrix, i_.b_words, 1);
    Words out(64, 0);
    for (int n = 0; n < 8; ++n)
      for (int k = 0; k < 16; ++k)
        if (matrix(n, k)) out[static_cast<size_t>((n * 16 + k) / 2)] |= i_.one << 16 * (k % 2);
    return out;
  }

  struct Experiment {
    Words a, b;
    Words meta = {};  // one a lane; empty: kFirstTwo everywhere
  };
  // Which results were not 0, [lanes * 4] for each.
  std::vector<Words> run(const std::vector<Experiment>& all) {
    std::vector<Words> results;
    const size_t per = static_cast<size_t>(lanes()) * 4, b_per = i_.warps == 1 ? per : 64;
    const Scratch a = exec_.scratch(kAtOnce * per * 4), b = exec_.scratch(kAtOnce * b_per * 4),
                  e = exec_.scratch(kAtOnce * 32 * 4), d = exec_.scratch(kAtOnce * per * 4);
    for (size_t begin = 0; begin < all.size(); begin += kAtOnce) {
      const size_t count = std::min<size_t>(kAtOnce, all.size() - begin);
      Words as, bs, es;
      for (size_t i = begin; i < begin + count; ++i) {
        as.insert(as.end(), all[i].a.begin(), all[i].a.end());
        bs.insert(bs.end(), all[i].b.begin(), all[i].b.end());
        if (all[i].meta.empty()) es.insert(es.end(), 32, kFirstTwo);
        else es.insert(es.end(), all[i].meta.begin(), all[i].meta.end());
      }
      exec_.write_small(a.as<void>(), as.data(), as.size() * 4);
      exec_.write_small(b.as<void>(), bs.data(), bs.size() * 4);
      exec_.write_small(e.as<void>(), es.data(), es.size() * 4);
      const auto *ap = a.as<const uint32_t>(), *bp = b.as<const uint32_t>(), *ep = e.as<const uint32_t>();
      if (i_.warps == 1)
        exec_.launch("lpq_probe_mma", {static_cast<int64_t>(count)}, {32}, 0, ap, bp, ep, d.as<uint32_t>(), i_.kind);
      else
        exec_.launch(i_.kind == 6 ? "lpq_probe_wgmma_f16" : "lpq_probe_wgmma_bf16", {static_cast<int64_t>(count)},
                     {128}, 0, ap, b.as<const uint16_t>(), d.as<uint32_t>());
      Words got(count * per);
      exec_.read_back(got.data(), d.as<void>(), got.size() * 4);
      for (size_t i = 0; i < count; ++i)
        results.emplace_back(got.begin() + static_cast<std::ptrdiff_t>(i * per),
                             got.begin() + static_cast<std::ptrdiff_t>((i + 1) * per));
    }
    return results;
  }
  [[noreturn]] void unexpected(const std::string& what) const {
    throw Failure("LPQ_CUDA", std::string(i_.name) + ": " + what);
  }

  std::vector<int> results() {
    std::vector<Experiment> all;
    for (int m = 0; m < i_.m; ++m)
      for (int n = 0; n < 8; ++n)
        all.push_back({a_memory([&](int row, int k) { return row == m && k == 0; }),
                       b_memory([&](int row, int k) { return row == n && k == 0; })});
    const std::vector<Words> got = run(all);
    std::vector<int> map(static_cast<size_t>(lanes()) * 8, -1);
    for (size_t i = 0; i < got.size(); ++i) {
      int found = 0;
      for (size_t at = 0; at < got[i].size(); ++at)
        if (got[i][at]) {
          ++found;
          if (map[2 * at] >= 0) unexpected("two elements of C are in one register");
          map[2 * at] = static_cast<int>(i / 8), map[2 * at + 1] = static_cast<int>(i % 8);
        }
      if (found != 1) unexpected("a product of two ones is in " + std::to_string(found) + " registers");
    }
    return map;
  }

  // The number of each question that a one in (lane, element) answers with yes, and the row or column of C that it
  // fills.
  struct Answer {
    std::vector<bool> yes;
    int line = -1;
  };
  std::vector<Answer> ask(char operand, const std::vector<Experiment>& questions, const std::vector<int>& c) {
    std::vector<Experiment> all;
    for (int lane = 0; lane < lanes(); ++lane)
      for (int e = 0; e < elements(operand); ++e)
        for (const Experiment& question : questions) {
          all.push_back(question);
          (operand == 'a' ? all.back().a : all.back().b) = one_hot(lane, e);
        }
    const std::vector<Words> got = run(all);
    std::vector<Answer> answers(all.size() / questions.size());
    for (size_t i = 0; i < got.size(); ++i) {
      Answer& answer = answers[i / questions.size()];
      bool any = false;
      for (size_t at = 0; at < got[i].size(); ++at) {
        if (!got[i][at]) continue;
        const int line = c[2 * at + (operand == 'a' ? 0 : 1)];
        if (answer.line >= 0 && answer.line != line) unexpected("one element of an operand is in two rows or columns");
        answer.line = line;
        any = true;
      }
      answer.yes.push_back(any);
    }
    return answers;
  }
  static int number(const std::vector<bool>& yes, size_t from, size_t count) {
    int value = 0;
    for (size_t i = 0; i < count; ++i) value |= static_cast<int>(yes[from + i]) << i;
    return value;
  }
  static size_t width(int count) {
    size_t bits = 0;
    while (1 << bits < count) ++bits;
    return bits;
  }

  std::vector<int> first(const std::vector<int>& c) {
    std::vector<Experiment> questions = {{{}, b_memory([](int, int) { return true; })}};
    const size_t bits = width(i_.k);
    for (size_t bit = 0; bit < bits; ++bit)
      questions.push_back({{}, b_memory([&](int, int k) { return (k >> bit & 1) != 0; })});
    std::vector<int> map;
    for (const Answer& answer : ask('a', questions, c)) {
      const int k = number(answer.yes, 1, bits);
      map.insert(map.end(), {answer.line, !answer.yes[0] ? -1 : i_.sparse ? 2 * (k / 4) + k % 4 : k});
    }
    return map;
  }

  std::vector<int> second(const std::vector<int>& c) {
    std::vector<Experiment> questions;
    const size_t bits = width(stored_k());
    for (uint32_t meta : {kFirstTwo, kLastTwo}) {
      questions.push_back({a_memory([](int, int) { return true; }), {}, Words(32, meta)});
      for (size_t bit = 0; bit < bits; ++bit)
        questions.push_back({a_memory([&](int, int k) { return (k >> bit & 1) != 0; }), {}, Words(32, meta)});
      if (!i_.sparse) break;
    }
    std::vector<int> map;
    for (const Answer& answer : ask('b', questions, c)) {
      int k = -1;
      if (answer.yes[0]) {
        k = number(answer.yes, 1, bits);
        if (i_.sparse) k = 4 * (k / 2) + k % 2;
      } else if (i_.sparse && answer.yes[bits + 1]) {
        k = number(answer.yes, bits + 2, bits);
        k = 4 * (k / 2) + 2 + k % 2;
      }
      map.insert(map.end(), {k, answer.line});
    }
    return map;
  }

  // One nibble says that a quad keeps its last two: B has ones at the third of one quad.
  std::vector<int> metadata() {
    const std::vector<int> c = results();
    std::vector<int> map(32 * 8 * 2, -1);
    std::vector<Experiment> all;
    for (size_t lane = 0; lane < 32; ++lane)
      for (int nibble = 0; nibble < 8; ++nibble)
        for (int quad = 0; quad < i_.k / 4; ++quad) {
          Words meta(32, kFirstTwo);
          meta[lane] ^= 0xau << 4 * nibble;
          all.push_back(
              {a_memory([](int, int) { return true; }), b_memory([&](int, int k) { return k == 4 * quad + 2; }), meta});
        }
    const std::vector<Words> got = run(all);
    for (size_t i = 0; i < got.size(); ++i)
      for (size_t at = 0; at < got[i].size(); ++at)
        if (got[i][at]) {
          const size_t to = i / static_cast<size_t>(i_.k / 4) * 2;
          const int row = c[2 * at], quad = static_cast<int>(i % static_cast<size_t>(i_.k / 4));
          if (map[to] >= 0 && (map[to] != row || map[to + 1] != quad))
            unexpected("a nibble of metadata counts in two places");
          map[to] = row, map[to + 1] = quad;
        }
    return map;
  }

  CudaExec& exec_;
  const Instruction& i_;
  std::vector<int> load_;
};

void probe_map(Call& call, CudaExec& exec) {
  Arguments a(call, "probe_map");
  const std::string instruction = a.text("instruction"), operand = a.has("operand") ? a.text("operand") : "";
  const Tensor& out = a.output("the map");
  a.done();
  std::vector<int> map;
  if (instruction.rfind("ldmatrix.x", 0) == 0) {
    const int count = instruction[10] - '0';
    const std::string rest = instruction.substr(11);
    require((count == 1 || count == 2 || count == 4) && (rest.empty() || rest == ".trans"),
            "instruction is none that the probe knows");
    require_tensor(out, "the map", DType::i32, {32, 2 * count, 3});
    map = loaded(exec, count, !rest.empty());
  } else {
    const Instruction* found = nullptr;
    for (const Instruction& known : kInstructions)
      if (instruction == known.name) found = &known;
    require(found != nullptr, "instruction is none that the probe knows");
    require(found->warps == 1 || exec.device().features.wgmma, "the device has no wgmma");
    require(
        operand == "a" || operand == "c" || (operand == "b" && found->warps == 1) || (operand == "e" && found->sparse),
        "operand is none of the instruction's");
    Probe probe(exec, *found);
    require_tensor(out, "the map", DType::i32, {probe.lanes(), probe.elements(operand[0]), 2});
    map = probe.map(operand[0]);
  }
  exec.write_small(out.raw(), map.data(), map.size() * sizeof(int));
  uint32_t settled;
  exec.read_back(&settled, out.raw(), sizeof(settled));  // `map` lives until it was copied
}
LPQ_CUDA_OP(probe_map, "probe_map");

}  // namespace
}  // namespace lpq::cuda
