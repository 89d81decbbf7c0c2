// Tests how a CUDA runtime keeps memory and order, and times copies: runtime [--small] [--bench JSON]. --small: for a
// memory checker. Contents are integers, so that every comparison is exact.
#include <chrono>
#include <fstream>
#include <map>
#include <thread>

#include "cuda/libraries.h"
#include "harness.h"
#include "lpq/row_scale.h"

using namespace lpq;
using namespace lpq::test;

namespace {

constexpr size_t kMiB = size_t{1} << 20;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

// A runtime as JavaScript has it.
class Rt {
 public:
  explicit Rt(int ordinal, size_t vram = 0, size_t host = 0)
      : backend_(new cuda::CudaBackend(ordinal, vram, host)), queue_(std::unique_ptr<Backend>(backend_)) {}
  cuda::CudaBackend& backend() { return *backend_; }
  Tensor make(DType dtype, std::vector<int64_t> shape) {
    return cuda::with_room(queue_, [&] { return backend_->allocate(dtype, shape); });
  }
  Tensor upload(const Tensor& host) {
    return cuda::with_room(queue_, [&] { return backend_->upload(host); });
  }
  void op(const std::string& name, std::vector<Tensor> in, std::vector<Tensor> out, const Params& p = {}) {
    Call call;
    call.in = std::move(in);
    call.out = std::move(out);
    call.params = p;
    queue_.enqueue(name, std::move(call));
  }
  Tensor park(const Tensor& t) {
    return enqueue("park", cuda::with_room(queue_, [&] { return backend_->park(t); }));
  }
  Tensor restore(const Tensor& t) {
    return enqueue("restore", cuda::with_room(queue_, [&] { return backend_->restore(t); }));
  }
  Tensor copy_from(const Tensor& t) {
    return enqueue("copy", cuda::with_room(queue_, [&] { return backend_->copy_from(t); }));
  }
  std::future<Outcome> mark() {
    auto told = std::make_shared<std::promise<Outcome>>();
    queue_.mark([told](Outcome outcome) { told->set_value(std::move(outcome)); });
    return told->get_future();
  }
  Outcome settle() {
    std::promise<Outcome> told;
    queue_.on_settled([&](Outcome outcome) { told.set_value(std::move(outcome)); });
    return told.get_future().get();
  }
  void sync() {
    const Outcome outcome = settle();
    if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
  }
  Tensor download(const Tensor& device) {
    Tensor host = allocate(device.dtype, device.shape);
    std::promise<Outcome> told;
    queue_.on_settled([&](Outcome outcome) {
      if (!outcome.ok) return told.set_value(std::move(outcome));
      backend_->download(device, host, [&](Outcome end) { told.set_value(std::move(end)); });
    });
    const Outcome outcome = told.get_future().get();
    if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
    return host;
  }

 private:
  Tensor enqueue(const char* what, cuda::CudaBackend::Copy copy) {
    queue_.enqueue(what, std::move(copy.launch));
    return std::move(copy.result);
  }
  cuda::CudaBackend* backend_;
  Queue queue_;
};

Tensor constant(int64_t count, float value) {
  Tensor t = allocate(DType::f32, {count});
  std::fill_n(t.data<float>(), count, value);
  return t;
}

bool all_are(const Tensor& host, float value) {
  const float* data = host.data<float>();
  for (int64_t i = 0; i < host.elements(); ++i)
    if (data[i] != value) {
      std::printf("      element %lld of %lld is %g, not %g\n", static_cast<long long>(i),
                  static_cast<long long>(host.elements()), data[i], value);
      return false;
    }
  return true;
}

// Blocks of random sizes, each full of a word of its own: none may share bytes, also where granules moved.
void allocator_stress(Report& report, Rt& rt, bool pages, int steps, size_t limit, size_t largest) {
  auto& exec = rt.backend().exec();
  auto allocator = std::make_shared<cuda::Allocator>(exec.context(), 0, limit, exec.stream(), pages);
  struct Live {
    std::byte* data;
    size_t words;
    uint32_t id;
  };
  std::vector<Live> live;
  uint32_t next = 1;
  int refused = 0;
  bool ok = true;
  auto drop = [&](size_t i) {
    const Live block = live[i];
    live[i] = live.back();
    live.pop_back();
    for (const size_t at : {size_t{0}, block.words / 3, block.words / 2, block.words - 1}) {
      uint32_t word = 0;
      exec.read_back(&word, block.data + 4 * at, 4);
      ok = ok && word == block.id;
    }
    allocator->give(block.data);
  };
  for (int step = 0; step < steps; ++step) {
    const double exponent =
        std::uniform_real_distribution<double>(2, std::log2(static_cast<double>(largest)))(lpq::test::random());
    const size_t bytes = static_cast<size_t>(std::exp2(exponent)) / 4 * 4;
    try {
      const Live block{allocator->take(bytes), bytes / 4, next++};
      cuda::check(cuda::driver().fill_words(reinterpret_cast<cuda::CUdeviceptr>(block.data), block.id, block.words,
                                            exec.stream()),
                  "filling");
      live.push_back(block);
    } catch (const Failure& failure) {
      if (failure.code != "LPQ_CUDA_MEMORY") throw;
      ++refused;
      while (live.size() > 3 && between(0, 3) != 0)
        drop(static_cast<size_t>(between(0, static_cast<int64_t>(live.size()) - 1)));
    }
    if (live.size() > 40) drop(static_cast<size_t>(between(0, 39)));
    const auto usage = allocator->usage();
    ok = ok && usage.reserved <= limit && usage.used <= usage.reserved;
  }
  while (!live.empty()) drop(0);
  ok = ok && allocator->usage().used == 0;
  allocator->trim();
  ok = ok && allocator->usage().reserved == 0;
  std::printf("      %d of %d requests were refused\n", refused, steps);
  report.that(std::string("blocks keep apart, limits hold: ") + (pages ? "pages" : "segments"), ok);
}

// Every other block free: no hole is large, yet half of the memory must be had at once.
void fragmentation(Report& report, Rt& rt, size_t unit) {
  auto& exec = rt.backend().exec();
  const size_t count = 24;
  for (const bool pages : {true, false}) {
    auto allocator = std::make_shared<cuda::Allocator>(exec.context(), 0, count * unit, exec.stream(), pages);
    std::vector<std::byte*> blocks;
    for (size_t i = 0; i < 2 * count; ++i) blocks.push_back(allocator->take(unit / 2));
    for (size_t i = 0; i < blocks.size(); i += 2) allocator->give(blocks[i]);
    const double begin = now();
    if (pages) {
      std::byte* large = allocator->take(count / 2 * unit);
      std::printf("      %zu MiB out of %zu holes in %.2f ms\n", count / 2 * unit / kMiB, count, 1e3 * (now() - begin));
      report.that("pages: half of the memory out of holes", large && allocator->usage().reserved == count * unit);
      report.fails("pages: not more than there is", "LPQ_CUDA_MEMORY", [&] { allocator->take(2 * kMiB); });
      allocator->give(large);
    } else if (unit / 2 >= 2 * kMiB) {
      // Segments of their own are given back whole, so this works too; parts of one are not.
      std::byte* large = allocator->take(count / 2 * unit);
      allocator->give(large);
      allocator->trim();
      std::byte *first = allocator->take(count / 4 * unit), *second = nullptr;
      allocator->give(first);
      second = allocator->take(unit / 2);
      report.fails("segments: a large one that is begun is lost", "LPQ_CUDA_MEMORY",
                   [&] { allocator->take(count / 2 * unit); });
      allocator->give(second);
    }
    for (size_t i = 1; i < blocks.size(); i += 2) allocator->give(blocks[i]);
  }
}

void marks(Report& report, Rt& rt) {
  const int64_t count = 1 << 22;
  Tensor ones = rt.upload(constant(count, 1)), x = rt.upload(constant(count, 0));
  std::vector<std::future<Outcome>> told;
  for (int i = 0; i < 200; ++i) {
    rt.op("add", {x, ones}, {x});
    if (i % 10 == 0) told.push_back(rt.mark());
  }
  bool ok = true;
  for (auto& mark : told) ok = ok && mark.get().ok;
  report.that("marks settle while the queue runs on", ok && all_are(rt.download(x), 200));

  Tensor ids = allocate(DType::i32, {2}), table = constant(8, 0);
  table.shape = {4, 2};
  ids.data<int32_t>()[0] = 1;
  ids.data<int32_t>()[1] = 9;
  Tensor y = rt.make(DType::f32, {2, 2}), there = rt.upload(ids), rows = rt.upload(table);
  auto before = rt.mark();
  rt.op("embedding", {there, rows}, {y});
  auto behind = rt.mark();
  ok = before.get().ok;
  const Outcome bad = behind.get(), sync = rt.settle();
  report.that("a mark tells what a kernel met, and sync does too", ok && !bad.ok && bad.code == "LPQ_NATIVE_ARGUMENT" &&
                                                                       bad.op == "embedding" && !sync.ok &&
                                                                       sync.op == "embedding");
  report.that("then all is well again", rt.mark().get().ok && rt.settle().ok);

  // More words for faults than one bank has, without a sync.
  ids.data<int32_t>()[1] = 2;
  there = rt.upload(ids);
  for (int i = 0; i < 2500; ++i) rt.op("embedding", {there, rows}, {y});
  report.that("a thousand checks and more between syncs", rt.mark().get().ok && rt.settle().ok);
  ids.data<int32_t>()[1] = 7;
  Tensor wrong = rt.upload(ids);
  rt.op("embedding", {wrong, rows}, {y});
  for (int i = 0; i < 2500; ++i) rt.op("embedding", {there, rows}, {y});
  report.that("and an early one of them is not lost", !rt.settle().ok && rt.settle().ok);
}

// Tensors that are added to, parked, restored and let go of at random, under a limit that makes blocks change hands all
// the time, beside products that keep the device busy.
void park_under_load(Report& report, int steps, int64_t largest, size_t limit) {
  Rt rt(0, limit);
  struct Item {
    Tensor tensor;  // on the device or parked
    bool parked = false;
    float value = 0;
  };
  std::vector<Item> items;
  const int64_t side = largest >= (1 << 20) ? 1536 : 64;
  Tensor ones = rt.upload(constant(largest, 1));
  Tensor a = rt.make(DType::bf16, {side, side}), b = rt.make(DType::bf16, {side, side});
  rt.op("zero", {}, {a});
  size_t device_bytes = 0;
  auto ones_of = [&](const Tensor& t) {
    Tensor view = ones;
    view.shape = t.shape;
    return view;
  };
  bool ok = true;
  int parks = 0, restores = 0;
  for (int step = 0; step < steps; ++step) {
    const int64_t action = between(0, 9);
    if (items.size() < 12 && (action < 3 || items.empty()) && device_bytes < limit / 3) {
      const float value = static_cast<float>(between(1, 1000));
      Item item{rt.upload(constant(between(1, largest), value)), false, value};
      device_bytes += item.tensor.bytes();
      items.push_back(std::move(item));
      continue;
    }
    if (items.empty()) continue;
    const auto i = static_cast<size_t>(between(0, static_cast<int64_t>(items.size()) - 1));
    Item& item = items[i];
    if (action < 5) {  // park, or bring back
      if (item.parked) {
        if (device_bytes + item.tensor.bytes() > limit / 3) continue;
        item.tensor = rt.restore(item.tensor);
        device_bytes += item.tensor.bytes();
        ++restores;
      } else {
        Tensor device = item.tensor;
        item.tensor = rt.park(device);
        device_bytes -= device.bytes();
        ++parks;
        if (between(0, 1)) rt.op("add", {device, ones_of(device)}, {device});  // later than the copy
      }
      item.parked = !item.parked;
    } else if (action < 7 && !item.parked) {
      rt.op("add", {item.tensor, ones_of(item.tensor)}, {item.tensor});
      item.value += 1;
    } else if (action == 7) {  // poison what was let go of
      Tensor junk = rt.make(DType::f32, {between(1, largest)});
      rt.op("add", {ones_of(junk), ones_of(junk)}, {junk}, params({{"scale", -5000.0}}));
    } else if (action == 8) {
      rt.op("linear", {a, a}, {b});
    } else if (items.size() > 4) {
      ok = ok && all_are(item.parked ? rt.download(rt.restore(item.tensor)) : rt.download(item.tensor), item.value);
      if (!item.parked) device_bytes -= item.tensor.bytes();
      items[i] = std::move(items.back());
      items.pop_back();
    }
  }
  for (Item& item : items)
    ok = ok && all_are(item.parked ? rt.download(rt.restore(item.tensor)) : rt.download(item.tensor), item.value);
  const size_t parked = rt.backend().pinned().usage().peak_parked;
  items.clear();
  ones = a = b = {};
  rt.sync();
  std::printf("      %d parks, %d restores, at most %zu MiB parked, %zu MiB reserved\n", parks, restores, parked / kMiB,
              rt.backend().allocator().usage().peak_reserved / kMiB);
  report.that("parked contents survive load and reuse", ok);
  report.that("everything comes back",
              rt.backend().pinned().usage().parked == 0 && rt.backend().allocator().usage().peak_reserved <= limit);
}

void failures(Report& report) {
  Rt rt(0, 64 * kMiB, 8 * kMiB);
  rt.sync();
  const size_t base = rt.backend().allocator().usage().used;
  {
    Tensor x = rt.upload(constant(1 << 20, 3));
    rt.op("no_such", {}, {});
    Tensor parked = rt.park(x);
    report.that("parking behind a failure is dropped",
                rt.settle().code == "LPQ_NATIVE_OP" && !parked.storage->arrival->landed());
    Tensor back = rt.restore(parked);
    report.fails("restoring what never left", "LPQ_NATIVE_ARGUMENT", [&] { rt.sync(); });
    rt.op("add", {back, x}, {x});
    report.fails("using what was never restored", "LPQ_NATIVE_ARGUMENT", [&] { rt.sync(); });
    report.that("the source is whole", all_are(rt.download(x), 3));
    report.fails("pinned memory has a limit", "LPQ_HOST_MEMORY", [&] {
      std::vector<Tensor> kept;
      for (int i = 0; i < 3; ++i) kept.push_back(rt.park(x));
    });
    rt.sync();
    Tensor again = rt.park(x);  // those are free again
    report.that("and what was let go of is used again", all_are(rt.download(rt.restore(again)), 3));
    report.fails("device memory has a limit", "LPQ_CUDA_MEMORY",
                 [&] { rt.make(DType::u8, {static_cast<int64_t>(65 * kMiB)}); });
    // The product's scratch memory does not fit, and nothing of it is left behind.
    Tensor m = rt.make(DType::bf16, {128, 128}), p = rt.make(DType::bf16, {128, 128});
    rt.op("linear", {m, m}, {p});
    report.fails("no room for an operation's scratch memory", "LPQ_CUDA_MEMORY", [&] { rt.sync(); });
    m = p = {};
    Tensor most = rt.make(DType::u8, {static_cast<int64_t>(40 * kMiB)});
    report.fails("a full device", "LPQ_CUDA_MEMORY", [&] { rt.make(DType::u8, {static_cast<int64_t>(40 * kMiB)}); });
  }
  rt.sync();
  report.that("after failures all memory comes back", rt.backend().allocator().usage().used == base);
  Tensor all = rt.make(DType::u8, {static_cast<int64_t>(56 * kMiB)});
  report.that("and can be had at once", all.raw() != nullptr);
  // A parked tensor, let go of, makes room while its copy still runs.
  all = {};
  bool ok = true;
  for (int i = 0; i < 20; ++i) {
    Tensor x = rt.upload(constant(6 << 18, static_cast<float>(i)));  // 6 MiB
    Tensor parked = rt.park(x);
    x = {};
    Tensor wide = rt.make(DType::u8, {static_cast<int64_t>(58 * kMiB)});
    rt.op("zero", {}, {wide});
    wide = {};
    ok = ok && all_are(rt.download(rt.restore(parked)), static_cast<float>(i));
  }
  report.that("room is waited for while copies hold it", ok);
}

void two_runtimes(Report& report, int second, int64_t count) {
  const std::string pair = "cuda:0 and cuda:" + std::to_string(second) + ": ";
  Rt a(0), b(second);
  bool ok = true;
  for (int i = 0; i < 20; ++i) {
    const int64_t size = between(1, count);
    Tensor x = a.upload(constant(size, static_cast<float>(i)));
    Tensor ones = b.upload(constant(size, 1));
    a.op("add", {x, x}, {x});
    a.sync();
    Tensor y = b.copy_from(x);
    x = {};
    Tensor junk = a.make(DType::f32, {size});
    a.op("zero", {}, {junk});
    b.op("add", {y, ones}, {y});
    ok = ok && all_are(b.download(y), static_cast<float>(2 * i + 1));
    Tensor parked = b.park(y);
    y = {};
    Tensor home = a.restore(parked);
    a.op("add", {home, home}, {home});
    ok = ok && all_are(a.download(home), static_cast<float>(4 * i + 2));
    Tensor twin = a.copy_from(home);
    a.op("zero", {}, {home});
    ok = ok && all_are(a.download(twin), static_cast<float>(4 * i + 2));
  }
  report.that(pair + "copies both ways", ok);
  Tensor foreign = a.make(DType::f32, {4}), own = b.make(DType::f32, {4});
  b.op("add", {own, foreign}, {own});
  report.fails(pair + "another's tensor is refused", "LPQ_NATIVE_ARGUMENT", [&] { b.sync(); });
  // Two threads of JavaScript's kind at once.
  std::vector<std::thread> threads;
  std::atomic<bool> all{true};
  for (Rt* rt : {&a, &b})
    threads.emplace_back([rt, count, &all] {
      try {
        for (int i = 0; i < 10; ++i) {
          Tensor x = rt->upload(constant(count, 1)), y = rt->upload(constant(count, 2));
          for (int j = 0; j < 10; ++j) rt->op("add", {x, y}, {x});
          Tensor parked = rt->park(x);
          x = {};
          if (!all_are(rt->download(rt->restore(parked)), 21)) all = false;
        }
      } catch (const Failure& failure) {
        std::printf("      %s\n", failure.what());
        all = false;
      }
    });
  for (auto& thread : threads) thread.join();
  report.that(pair + "at work at once", all);
}

// Of the contract alone: the power of two by trying, the rounding in double precision.
uint16_t round_to_f16(double value) {
  const double size = std::fabs(value);
  int exponent = 0;
  std::frexp(size, &exponent);
  const double unit = std::ldexp(1.0, std::max(exponent - 11, -24));
  const double rounded = std::nearbyint(size / unit) * unit;  // ties to even
  uint16_t bits = 0;
  if (rounded >= 0x1p-14) {
    const double fraction = std::frexp(rounded, &exponent);
    bits = static_cast<uint16_t>(((exponent + 14) << 10) + static_cast<int>(fraction * 2048) - 1024);
  } else {
    bits = static_cast<uint16_t>(rounded * 0x1p24);
  }
  return static_cast<uint16_t>(bits | (std::signbit(value) ? 0x8000 : 0));
}
double from_f16(uint16_t bits) {
  const int power = (bits >> 10) & 31, fraction = bits & 1023;
  const double size = power ? std::ldexp(1024 + fraction, power - 25) : std::ldexp(fraction, -24);
  return bits & 0x8000 ? -size : size;
}

void pack_rows(Report& report, Rt& rt, int64_t rows, int64_t width) {
  Tensor x = allocate(DType::f32, {rows, width});
  float* data = x.data<float>();
  for (int64_t t = 0; t < rows; ++t) {
    const int power = static_cast<int>(between(-148, 124)), spread = static_cast<int>(between(0, 40));
    for (int64_t c = 0; c < width; ++c)
      data[t * width + c] = static_cast<float>(std::ldexp(normal(), power - static_cast<int>(between(0, spread))));
    if (t % 7 == 0) data[t * width + between(0, width - 1)] = std::ldexp(2.0f - 0x1p-12f, std::min(power + 3, 126));
    if (t % 11 == 0) std::fill_n(data + t * width, width, 0.0f);
    if (t % 5 == 0) data[t * width + between(0, width - 1)] = t % 2 ? INFINITY : -INFINITY;
  }
  Tensor y = rt.upload(poisoned(DType::f16, {rows, width})), scales = rt.upload(poisoned(DType::f32, {rows})),
         back = rt.upload(poisoned(DType::f32, {rows, width}));
  rt.op("pack_rows", {rt.upload(x)}, {y, scales});
  rt.op("unpack_rows", {y, scales}, {back});
  const Tensor got = rt.download(y), factor = rt.download(scales), whole = rt.download(back);
  bool ok = true;
  for (int64_t t = 0; t < rows && ok; ++t) {
    double largest = 0, scale = 1;
    for (int64_t c = 0; c < width; ++c)
      if (std::isfinite(data[t * width + c]))
        largest = std::max(largest, std::fabs(static_cast<double>(data[t * width + c])));
    if (largest > 0)
      for (scale = 0x1p127; largest * scale >= 0x1p16 || from_f16(round_to_f16(largest * scale)) >= 0x1p15;) scale /= 2;
    ok = factor.data<float>()[t] == static_cast<float>(scale);
    for (int64_t c = 0; c < width && ok; ++c) {
      const float value = data[t * width + c];
      const uint16_t bits = got.data<uint16_t>()[t * width + c];
      const uint16_t want = std::isfinite(value) ? round_to_f16(value * scale) : value > 0 ? 0x7c00 : 0xfc00;
      const double again = std::isfinite(value) ? from_f16(want) / scale : static_cast<double>(value);
      ok = bits == want && static_cast<double>(whole.data<float>()[t * width + c]) == again;
    }
    if (!ok)
      std::printf("      row %lld, scale %g, not %g\n", static_cast<long long>(t), factor.data<float>()[t], scale);
  }
  // NaN patterns: the CPU's operation gives the same bytes.
  for (int64_t i = 0; i < x.elements(); i += 3) {
    const uint32_t bits = static_cast<uint32_t>(lpq::test::random()());
    std::memcpy(data + i, &bits, 4);
  }
  Tensor cpu_y = allocate(DType::f16, {rows, width}), cpu_scales = allocate(DType::f32, {rows}),
         cpu_back = allocate(DType::f32, {rows, width});
  Queue cpu(2);
  Call pack, unpack;
  pack.in = {x};
  pack.out = {cpu_y, cpu_scales};
  unpack.in = {cpu_y, cpu_scales};
  unpack.out = {cpu_back};
  cpu.enqueue("pack_rows", pack);
  cpu.enqueue("unpack_rows", unpack);
  std::promise<Outcome> told;
  cpu.on_settled([&](Outcome outcome) { told.set_value(std::move(outcome)); });
  ok = ok && told.get_future().get().ok;
  rt.op("pack_rows", {rt.upload(x)}, {y, scales});
  rt.op("unpack_rows", {y, scales}, {back});
  auto same = [&](const Tensor& device, const Tensor& host) {
    return std::memcmp(rt.download(device).raw(), host.raw(), host.bytes()) == 0;
  };
  const bool equal = same(y, cpu_y) && same(scales, cpu_scales) && same(back, cpu_back);
  report.that("pack_rows " + std::to_string(rows) + " x " + std::to_string(width) + ": contract, CPU's bytes",
              ok && equal);
}

// --- timings ---------------------------------------------------------------------------------------------------------

struct Json {
  std::string text;
  void row(const std::string& name, double value, const char* unit) {
    std::printf("%-46s %10.2f %s\n", name.c_str(), value, unit);
    char line[160];
    std::snprintf(line, sizeof(line), "%s\n    {\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}",
                  text.empty() ? "" : ",", name.c_str(), value, unit);
    text += line;
  }
};

void bench(Json& json, int devices) {
  Rt rt(0);
  const int64_t count = int64_t{128} << 20;  // 512 MiB of f32
  const double gb = 4e-9 * static_cast<double>(count);
  const int n = 6;
  std::vector<Tensor> device, parked;
  double begin = now();
  for (int i = 0; i < 2 * n; ++i) device.push_back(rt.make(DType::f32, {count}));
  json.row("device memory, first taken", 1e3 * (now() - begin) / (2 * n * gb), "ms/GB");
  for (Tensor& t : device) rt.op("zero", {}, {t});
  rt.sync();
  begin = now();
  for (int i = 0; i < 2 * n; ++i) parked.push_back(rt.park(device[static_cast<size_t>(i)]));
  json.row("pinned memory, first taken", (now() - begin) / (2 * n * gb), "s/GB");
  rt.sync();
  auto park = [&] {
    for (int i = 0; i < n; ++i) parked[static_cast<size_t>(i)] = {};
    for (int i = 0; i < n; ++i) parked[static_cast<size_t>(i)] = rt.park(device[static_cast<size_t>(i)]);
  };
  auto restore = [&] {
    for (int i = n; i < 2 * n; ++i) device[static_cast<size_t>(i)] = {};
    for (int i = n; i < 2 * n; ++i) device[static_cast<size_t>(i)] = rt.restore(parked[static_cast<size_t>(i)]);
  };
  auto timed = [&](auto body) {
    double best = 1e9;
    for (int pass = 0; pass < 3; ++pass) {
      rt.sync();
      const double start = now();
      body();
      rt.sync();
      best = std::min(best, now() - start);
    }
    return best;
  };
  json.row("park", n * gb / timed(park), "GB/s");
  json.row("restore", n * gb / timed(restore), "GB/s");
  json.row("park and restore at once, each way", n * gb / timed([&] { park(), restore(); }), "GB/s");

  // Products of 8192 cubed take about 1.5 ms each.
  Tensor a = rt.make(DType::bf16, {8192, 8192}), b = rt.make(DType::bf16, {8192, 8192}),
         c = rt.make(DType::bf16, {8192, 8192});
  Tensor source = gaussian(DType::bf16, {8192 * 64});
  for (const Tensor& t : {a, b}) {
    Tensor part = t;
    part.shape = source.shape;
    rt.op("cast", {rt.upload(source)}, {part});
    for (int64_t rows = 64; rows < 8192; rows *= 2) {  // the rest of it, doubling
      Tensor first = t, next = t;
      first.shape = next.shape = {rows * 8192};
      next.offset += static_cast<size_t>(rows * 8192) * 2;
      rt.op("cast", {first}, {next});
    }
  }
  const int products = 120;
  auto multiply = [&] {
    for (int i = 0; i < products; ++i) rt.op("linear", {a, b}, {c});
  };
  rt.backend().take_profile();
  const double flops = 2.0 * 8192 * 8192 * 8192 * products;
  const double alone = timed(multiply);
  json.row("products alone", flops / alone * 1e-12, "TFLOP/s");
  double beside = 1e9, compute = 0;
  for (int pass = 0; pass < 3; ++pass) {
    rt.sync();
    rt.backend().take_profile();
    const double start = now();
    park(), restore();
    multiply();
    auto told = rt.mark();
    told.get();
    beside = std::min(beside, now() - start);
    compute = rt.backend().take_profile()["linear"].second;
  }
  rt.sync();
  compute += rt.backend().take_profile()["linear"].second;
  json.row("products beside park and restore", flops / compute * 1e-12, "TFLOP/s");
  json.row("both and products, wall over products alone", beside / alone, "x");

  // The gap that waiting leaves on the device: steps of 8 short products, told of by sync() or by mark() one step late.
  Tensor small = rt.make(DType::bf16, {2048, 2048}), out = rt.make(DType::bf16, {2048, 2048});
  rt.op("zero", {}, {small});
  auto steps = [&](auto wait) {
    return timed([&] {
      for (int step = 0; step < 100; ++step) {
        for (int i = 0; i < 8; ++i) rt.op("linear", {small, small}, {out});
        wait();
      }
    });
  };
  const double none = steps([] {});
  json.row("a step of 8 short products, never waited for", 1e4 * none, "us");
  json.row("waited for with sync", 1e4 * steps([&] { rt.sync(); }), "us");
  std::deque<std::future<Outcome>> behind;
  json.row("waited for with mark, one step late", 1e4 * steps([&] {
                                                    behind.push_back(rt.mark());
                                                    if (behind.size() > 1) {
                                                      behind.front().get();
                                                      behind.pop_front();
                                                    }
                                                  }),
           "us");
  behind.clear();

  device.clear();
  parked.clear();
  for (const int64_t width : {4096, 14336}) {
    const int64_t rows = (int64_t{1} << 29) / width / 4 * 4;
    Tensor x = rt.make(DType::f32, {rows, width}), y = rt.make(DType::f16, {rows, width}),
           s = rt.make(DType::f32, {rows});
    rt.op("zero", {}, {x});
    const double bytes = 6.0 * static_cast<double>(rows * width);
    auto rate = [&](const char* name, std::vector<Tensor> in, std::vector<Tensor> to) {
      rt.op(name, in, to);
      rt.sync();
      rt.backend().take_profile();
      for (int i = 0; i < 5; ++i) rt.op(name, in, to);
      rt.sync();
      const auto [calls, seconds] = rt.backend().take_profile()[name];
      json.row(std::string(name) + ", width " + std::to_string(width),
               bytes * static_cast<double>(calls) / seconds * 1e-9, "GB/s");
    };
    rate("pack_rows", {x}, {y, s});
    rate("unpack_rows", {y, s}, {x});
  }

  // Granules that move: a fifth of the memory of a limit, out of holes.
  {
    auto& exec = rt.backend().exec();
    auto allocator = std::make_shared<cuda::Allocator>(exec.context(), 0, size_t{8} << 30, exec.stream());
    std::vector<std::byte*> blocks;
    begin = now();
    for (int i = 0; i < 128; ++i) blocks.push_back(allocator->take(64 * kMiB));
    json.row("memory taken of a limit of 8 GiB", 1e3 * (now() - begin) / 8.59, "ms/GB");
    for (size_t i = 0; i < blocks.size(); i += 2) allocator->give(blocks[i]);
    begin = now();
    std::byte* large = allocator->take(size_t{4} << 30);
    json.row("4 GiB out of 64 holes", 1e3 * (now() - begin), "ms");
    allocator->give(large);
    begin = now();
    large = allocator->take(size_t{4} << 30);
    json.row("and once more", 1e6 * (now() - begin), "us");
    allocator->give(large);
    for (size_t i = 1; i < blocks.size(); i += 2) allocator->give(blocks[i]);
  }
  rt.backend().allocator().trim();
  for (int other = 0; other < std::min(devices, 2); ++other) {
    Rt peer(other);
    std::vector<Tensor> from, to(n);
    for (int i = 0; i < n; ++i) {
      from.push_back(rt.make(DType::f32, {count}));
      rt.op("zero", {}, {from.back()});
    }
    rt.sync();
    double best = 1e9;
    for (int pass = 0; pass < 3; ++pass) {
      for (Tensor& t : to) t = {};
      peer.sync();
      const double start = now();
      for (int i = 0; i < n; ++i) to[static_cast<size_t>(i)] = peer.copy_from(from[static_cast<size_t>(i)]);
      peer.sync();
      best = std::min(best, now() - start);
    }
    json.row("copy to another runtime on cuda:" + std::to_string(other), n * gb / best, "GB/s");
  }
}

}  // namespace

int main(int argc, char** argv) {
  bool small = false;
  std::string file;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    if (arg == "--small") small = true;
    if (arg == "--bench" && i + 1 < argc) file = argv[++i];
  }
  Report report;
  try {
    const auto devices = cuda::cuda_devices();
    {
      Rt rt(0);
      allocator_stress(report, rt, true, small ? 150 : 4000, (small ? 48 : 2048) * kMiB, (small ? 12 : 700) * kMiB);
      allocator_stress(report, rt, false, small ? 150 : 1500, (small ? 48 : 2048) * kMiB, (small ? 12 : 700) * kMiB);
      fragmentation(report, rt, (small ? 4 : 64) * kMiB);
      marks(report, rt);
      for (int i = 0; i < (small ? 2 : 8); ++i)
        pack_rows(report, rt, between(1, small ? 9 : 60), between(1, small ? 700 : 3000));
      pack_rows(report, rt, 5, 4096);
      pack_rows(report, rt, 3, small ? 8200 : 14336);
    }
    for (int i = 0; i < (small ? 1 : 4); ++i)
      park_under_load(report, small ? 120 : 1200, small ? 1 << 14 : 3 << 20, (small ? 96 : 400) * kMiB);
    failures(report);
    two_runtimes(report, 0, small ? 1 << 12 : 5 << 20);
    if (devices.size() > 1) two_runtimes(report, 1, small ? 1 << 12 : 5 << 20);
    else std::printf("      one device: copies between devices were not tested\n");
    if (!file.empty()) {
      Json json;
      bench(json, static_cast<int>(devices.size()));
      std::ofstream(file) << "{\n  \"device\": \"" << devices[0].name << "\",\n  \"devices\": " << devices.size()
                          << ",\n  \"rows\": [" << json.text << "\n  ]\n}\n";
    }
  } catch (const Failure& failure) {
    std::printf("FAIL  %s: %s\n", failure.code.c_str(), failure.what());
    return 1;
  }
  std::printf("%d checks, %d failures\n", report.checks, report.failures);
  return report.failures ? 1 : 0;
}
