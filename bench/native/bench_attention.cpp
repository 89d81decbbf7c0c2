// Times kv_decode, kv_pack and kv_append on a device: bench_attention [--json FILE] CASE ..., a case being "name=value
// name=value ...": op, bits, valueBits, dims, group, B, tokens, heads, kv, tail, queries, form, granularity;
// torch=MICROSECONDS of a peer; all else goes to the operation as a parameter. Caches at random, pages of a block in
// random order, rotated past L2; graphs, medians of nine replays.
#include <fstream>
#include <map>
#include <sstream>

#include "act_harness.h"

using namespace lpq;
using namespace lpq::test;

namespace {

struct Case {
  std::map<std::string, std::string> words;
  explicit Case(const std::string& text) {
    std::stringstream stream(text);
    for (std::string word; stream >> word;) {
      const size_t at = word.find('=');
      if (at == std::string::npos) throw Failure("BENCH", word + " is no name=value");
      words[word.substr(0, at)] = word.substr(at + 1);
    }
  }
  std::string take(const std::string& name, const std::string& fallback) {
    const auto found = words.find(name);
    if (found == words.end()) return fallback;
    const std::string value = found->second;
    words.erase(found);
    return value;
  }
  int64_t number(const std::string& name, int64_t fallback) { return std::stoll(take(name, std::to_string(fallback))); }
};

struct Bench {
  Device device;
  Timer timer{device};
  cuda::CudaExec& exec = timer.exec();
  Tensor bytes, numbers;
  Bench() {
    Tensor host = allocate(DType::u64, {2 << 20});
    uint64_t* const words = host.data<uint64_t>();
    for (int64_t i = 0; i < host.elements(); ++i) words[i] = lpq::test::random()();
    bytes = device.backend().upload(host);
    for (int64_t i = 0; i < host.elements(); ++i) words[i] = (words[i] & 0x83ff83ff83ff83ffull) | 0x2c002c002c002c00ull;
    numbers = device.backend().upload(host);
    device.settle();
  }
  // Random codes, or f16 numbers of a sane size.
  Tensor noise(const Tensor& from, DType dtype, std::vector<int64_t> shape) {
    Tensor t = exec.allocate(dtype, std::move(shape));
    for (size_t at = 0; at < t.bytes();) {
      const size_t count = std::min(t.bytes() - at, from.bytes() - 4096);
      exec.copy(t.raw() + at, from.raw() + (at / from.bytes()) % 8 * 512, count);
      at += count;
    }
    return t;
  }
};

template <class T>
Tensor of(DType dtype, std::vector<int64_t> shape, const std::vector<T>& data) {
  Tensor t = allocate(dtype, std::move(shape));
  std::memcpy(t.raw(), data.data(), t.bytes());
  return t;
}

void run(Bench& b, std::ostream* json, const std::string& text) {
  Case c(text);
  const std::string op = c.take("op", "kv_decode"), form = c.take("form", ""), granularity = c.take("granularity", "");
  const int64_t bits = c.number("bits", 4), value_bits = c.number("valueBits", bits), D = c.number("dims", 128),
                group = c.number("group", 128), B = c.number("B", 1);
  const int64_t tokens = c.number("tokens", 32768), heads = c.number("heads", 32), H = c.number("kv", 8),
                tail = c.number("tail", 64), queries = c.number("queries", 1);
  const int64_t length = c.number("length", tokens), count = c.number("count", 4);
  const double torch = std::stod(c.take("torch", "0"));
  const bool words = form == "turbomind", by_token = granularity == "token";
  const int64_t value_group = std::min(group, D), key_group = by_token ? value_group : group, width = H * D;
  const int64_t block = words ? 64 : std::max(std::max(512 / bits, 512 / value_bits), by_token ? 1 : key_group),
                page = c.number("page", block), each = tokens / page, pages = B * each;
  const auto up = [&](const Tensor& t) { return b.device.backend().upload(t); };
  std::vector<int64_t> sizes{page * width * bits / 8,
                             by_token ? D / key_group * H * page * 4 : page / key_group * width * 4,
                             page * width * value_bits / 8, D / value_group * H * page * 4};
  if (words) sizes = {page * width * (bits + value_bits) / 8 + H * 2 * page * 4};
  double total = 0;
  for (const int64_t size : sizes)
    total += static_cast<double>(size * pages) * static_cast<double>(length) / static_cast<double>(tokens);
  const size_t copies =
      op == "kv_decode"
          ? std::max<size_t>(1,
                             static_cast<size_t>(8.0 * static_cast<double>(b.exec.device().l2_bytes) / (total + 1) + 1))
          : 1;
  std::vector<int> order(static_cast<size_t>(pages));
  for (int64_t i = 0; i < pages; ++i) order[static_cast<size_t>(i)] = static_cast<int>(i);
  std::shuffle(order.begin(), order.end(), lpq::test::random());
  Params p = params({{"bits", double(bits)},
                     {"headDim", double(D)},
                     {"kvHeads", double(H)},
                     {"keyGroup", double(words ? D : key_group)},
                     {"valueGroup", double(words ? D : value_group)},
                     {"pageTokens", double(page)}});
  if (value_bits != bits) p.set("valueBits", double(value_bits));
  if (!form.empty()) p.set("form", form);
  if (!granularity.empty()) p.set("granularity", granularity);
  for (const auto& [name, value] : c.words) p.set(name, std::stod(value));
  std::vector<Call> calls(std::min<size_t>(copies, 12));
  const Tensor table = up(of(DType::i32, {op == "kv_pack" ? 1 : B, op == "kv_pack" ? pages : each}, order));
  const int64_t room = std::max<int64_t>({block, tail, 1});
  for (Call& call : calls) {
    std::vector<Tensor> cache;
    for (size_t i = 0; i < 4; ++i)
      cache.push_back(i < sizes.size() ? b.noise(i % 2   ? b.numbers
                                                 : words ? b.numbers
                                                         : b.bytes,
                                                 DType::u8, {pages, sizes[i]})
                                       : cache[0]);
    const Tensor tail_keys = b.noise(b.numbers, DType::f16, {B, room, width}),
                 tail_values = b.noise(b.numbers, DType::f16, {B, room, width});
    const auto ints = [&](int64_t v) {
      return up(filled(DType::i32, {B}, [&](int64_t) { return static_cast<double>(v); }));
    };
    call.params = p;
    if (op == "kv_pack") {
      Tensor row = table;
      row.shape = {pages};
      const Tensor x = b.noise(b.numbers, DType::f16, {B * length, width});
      call.in = {x, b.noise(b.numbers, DType::f16, {B * length, width}), row};
      call.out = cache;
      total = 4.0 * static_cast<double>(B * length * width) + total;
    } else if (op == "kv_append") {
      call.in = {b.noise(b.numbers, DType::f16, {B, width}), b.noise(b.numbers, DType::f16, {B, width}), table};
      call.out = cache;
      for (const Tensor& t : {ints(0), ints(tail), tail_keys, tail_values}) call.out.push_back(t);
    } else {
      call.params.set("heads", double(heads)), call.params.set("scale", 1 / std::sqrt(static_cast<double>(D)));
      if (queries > 1) call.params.set("queries", double(queries));
      call.in = {b.noise(b.numbers, DType::f16, {B * queries, heads * D}),
                 cache[0],
                 cache[1],
                 cache[2],
                 cache[3],
                 table,
                 ints(length),
                 tail_keys,
                 tail_values,
                 ints(tail)};
      call.out = {b.exec.allocate(DType::f16, {B * queries, heads * D})};
    }
  }
  b.device.settle();
  const auto run = cuda::cuda_op_table().at(op);
  const double us = b.timer.time(
      static_cast<int>(std::max<size_t>(static_cast<size_t>(count), calls.size())),
      [&](int i) { run(calls[static_cast<size_t>(i) % calls.size()], b.exec); }, 9);
  std::printf("%-84s %9.2f us %7.0f GB/s", text.c_str(), us, total / us / 1e3);
  if (torch > 0) std::printf("  torch %.1f: %.2f times", torch, torch / us);
  std::printf("\n");
  std::fflush(stdout);
  if (json)
    *json << (json->tellp() > 2 ? ",\n  " : "\n  ") << "{\"case\": \"" << text << "\", \"us\": " << us
          << ", \"bytes\": " << total << "}";
}

}  // namespace

int main(int argc, char** argv) try {
  std::string out;
  std::vector<std::string> cases;
  for (int i = 1; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--json" && i + 1 < argc) out = argv[++i];
    else cases.push_back(word);
  }
  Bench b;
  std::ostringstream json;
  json << "[ ";
  for (const std::string& each : cases) try {
      run(b, &json, each);
    } catch (const Failure& failure) {
      std::printf("%-84s %s\n", each.c_str(), failure.what());
    }
  // A copy's bandwidth, bytes read and written, as the measure of all.
  const Tensor from = b.noise(b.bytes, DType::u8, {512 << 20}), to = b.noise(b.bytes, DType::u8, {512 << 20});
  const double copy = b.timer.time(3, [&](int) { b.exec.copy(to.raw(), from.raw(), from.bytes()); });
  std::printf("%s: a copy of %zu MiB %.1f us, %.0f GB/s\n", b.exec.device().name.c_str(), from.bytes() >> 20, copy,
              2.0 * static_cast<double>(from.bytes()) / copy / 1e3);
  if (!out.empty())
    std::ofstream(out) << "{\"device\": \"" << b.exec.device().name
                       << "\", \"copy_gbps\": " << 2.0 * static_cast<double>(from.bytes()) / copy / 1e3
                       << ", \"cases\": " << json.str() << "\n]}\n";
  return 0;
} catch (const std::exception& error) {
  std::printf("%s\n", error.what());
  return 1;
}
