// Runs one operation on a CUDA queue from host tensors, and compares with references in double precision that the test
// computes itself.
#pragma once
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <future>
#include <random>
#include <string>
#include <vector>

#include "cuda/backend.h"
#include "lpq/arguments.h"
#include "lpq/exec.h"
#include "lpq/half.h"

namespace lpq::test {

// What a program reads of parameters that it made: a number (0: none), a word (empty: none), the type of weights.
inline double number(const Params& params, const std::string& name) {
  const int at = params.place(name);
  return at < 0 ? 0 : std::get<double>(params.value(static_cast<size_t>(at)));
}
inline std::string word(const Params& params, const std::string& name) {
  const int at = params.place(name);
  return at < 0 ? "" : std::get<std::string>(params.value(static_cast<size_t>(at)));
}
inline QuantType type_of(const Params& params) {
  Call call;
  call.params = params;
  Arguments arguments(call, "a test");
  return QuantType::from(arguments);
}

inline std::mt19937_64& random() {
  static std::mt19937_64 engine(20240229);
  return engine;
}
inline double normal() { return std::normal_distribution<double>()(random()); }
inline int64_t between(int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random());
}

inline double get(const Tensor& t, int64_t i) {
  switch (t.dtype) {
    case DType::f64: return t.data<double>()[i];
    case DType::f32: return t.data<float>()[i];
    case DType::f16: return f16_to_f32(t.data<uint16_t>()[i]);
    case DType::bf16: return bf16_to_f32(t.data<uint16_t>()[i]);
    case DType::i32: return t.data<int32_t>()[i];
    default: return t.data<uint8_t>()[i];
  }
}
inline void set(const Tensor& t, int64_t i, double v) {
  switch (t.dtype) {
    case DType::f64: t.data<double>()[i] = v; break;
    case DType::f32: t.data<float>()[i] = static_cast<float>(v); break;
    case DType::f16: t.data<uint16_t>()[i] = f32_to_f16(static_cast<float>(v)); break;
    case DType::bf16: t.data<uint16_t>()[i] = f32_to_bf16(static_cast<float>(v)); break;
    case DType::i32: t.data<int32_t>()[i] = static_cast<int32_t>(v); break;
    default: t.data<uint8_t>()[i] = static_cast<uint8_t>(v);
  }
}
inline Tensor filled(DType dtype, std::vector<int64_t> shape, const std::function<double(int64_t)>& value) {
  Tensor t = allocate(dtype, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) set(t, i, value(i));
  return t;
}
template <class T>
Tensor of(DType dtype, std::vector<int64_t> shape, const std::vector<T>& data) {
  Tensor t = allocate(dtype, std::move(shape));
  std::memcpy(t.raw(), data.data(), t.bytes());
  return t;
}
inline Tensor gaussian(DType dtype, std::vector<int64_t> shape, double size = 1) {
  return filled(dtype, std::move(shape), [&](int64_t) { return size * normal(); });
}
// What an output holds before the operation: anything unwritten is seen.
inline Tensor poisoned(DType dtype, std::vector<int64_t> shape) {
  return filled(dtype, std::move(shape), [&](int64_t) { return dtype == DType::i32 ? -7777 : NAN; });
}
inline std::vector<double> values(const Tensor& t) {
  std::vector<double> list(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < list.size(); ++i) list[i] = get(t, static_cast<int64_t>(i));
  return list;
}
// Half a unit in the last place of `dtype`, relative.
inline double unit(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : dtype == DType::f32 ? 0x1p-24 : 0x1p-53;
}
// Half the distance of its smallest numbers.
inline double least(DType dtype) { return dtype == DType::f16 ? 0x1p-25 : 1e-40; }

class Device {
 public:
  explicit Device(size_t limit = 0)
      : backend_(new cuda::CudaBackend(0, limit)), queue_(std::unique_ptr<Backend>(backend_)) {}
  cuda::CudaBackend& backend() { return *backend_; }
  Queue& queue() { return queue_; }

  Queue::Outcome settle() {
    std::promise<Queue::Outcome> told;
    queue_.on_settled([&](Queue::Outcome outcome) { told.set_value(std::move(outcome)); });
    return told.get_future().get();
  }
  Tensor download(const Tensor& device) {
    Tensor host = allocate(device.dtype, device.shape);
    std::promise<Queue::Outcome> told;
    queue_.on_settled([&](Queue::Outcome outcome) {
      if (!outcome.ok) return told.set_value(std::move(outcome));
      backend_->download(device, host, [&](Queue::Outcome end) { told.set_value(std::move(end)); });
    });
    const Queue::Outcome outcome = told.get_future().get();
    if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
    return host;
  }
  // Uploads everything, runs, and downloads the outputs. An output given also as input is the same tensor on the
  // device.
  std::vector<Tensor> run(const std::string& op, const std::vector<Tensor>& in, const std::vector<Tensor>& out,
                          const Params& params = {}) {
    Call call;
    call.params = params;
    for (const Tensor& t : in) call.in.push_back(backend_->upload(t));
    for (const Tensor& t : out) {
      Tensor device;
      for (size_t i = 0; i < in.size(); ++i)
        if (in[i].raw() == t.raw() && t.elements() > 0) device = call.in[i];
      call.out.push_back(device.storage ? device : backend_->upload(t));
    }
    std::vector<Tensor> results = call.out;
    queue_.enqueue(op, std::move(call));
    const Queue::Outcome outcome = settle();
    if (!outcome.ok) throw Failure(outcome.code, outcome.op + ": " + outcome.detail);
    for (Tensor& t : results) t = download(t);
    return results;
  }

 private:
  cuda::CudaBackend* backend_;
  Queue queue_;
};

inline Params params(std::initializer_list<std::pair<const char*, Params::Value>> list) {
  Params p;
  for (const auto& [name, value] : list) p.set(name, value);
  return p;
}

struct Report {
  int checks = 0, failures = 0;
  // |got - want| <= absolute + relative |want| everywhere; `worst`: the largest share of the allowance that was used.
  void close(const std::string& what, const Tensor& got, const std::vector<double>& want, double absolute,
             double relative) {
    double worst = 0;
    int64_t at = -1;
    for (int64_t i = 0; i < got.elements(); ++i) {
      const double g = get(got, i), w = want[static_cast<size_t>(i)];
      const double share = std::isnan(g) ? INFINITY
                           : g == w      ? 0
                                         : std::fabs(g - w) / (absolute + relative * std::fabs(w));
      if (share > worst) {
        worst = share;
        at = i;
      }
    }
    finish(what, worst <= 1, worst, at, at < 0 ? 0 : get(got, at), at < 0 ? 0 : want[static_cast<size_t>(at)]);
  }
  void that(const std::string& what, bool ok) { finish(what, ok, 0, -1, 0, 0); }
  void fails(const std::string& what, const std::string& code, const std::function<void()>& body) {
    std::string got = "nothing";
    try {
      body();
    } catch (const Failure& failure) {
      got = failure.code;
      if (got == code) std::printf("ok    %-58s %s\n", what.c_str(), failure.what());
    }
    ++checks;
    if (got != code) {
      ++failures;
      std::printf("FAIL  %-58s threw %s, not %s\n", what.c_str(), got.c_str(), code.c_str());
    }
  }

 private:
  void finish(const std::string& what, bool ok, double worst, int64_t at, double got, double want) {
    ++checks;
    if (!ok) ++failures;
    if (ok) std::printf("ok    %-58s %.2f of the bound\n", what.c_str(), worst);
    else
      std::printf("FAIL  %-58s %.3g of the bound at %lld: got %.9g, want %.9g\n", what.c_str(), worst,
                  static_cast<long long>(at), got, want);
  }
};

}  // namespace lpq::test
