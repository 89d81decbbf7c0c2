// What JavaScript asks about the choice of kernel, and where tunings lie.
#include "cuda/gemm/chooser.h"

#include "addon/choice.h"
#include "addon/handles.h"
#include "cuda/device.h"
#include "cuda/gemm/tuning.h"

namespace lpq::addon {
namespace {

ops::GemmProduct product_from(const Napi::Object& from) {
  const auto text = [&](const char* name) { return from.Get(name).ToString().Utf8Value(); };
  const auto number = [&](const char* name) { return from.Get(name).ToNumber().Int64Value(); };
  ops::GemmProduct p;
  p.layout = text("layout");
  p.type = text("type");
  p.m = number("m"), p.n = number("n"), p.k = number("k"), p.group_size = number("group");
  p.x = dtype_from_name(text("activations"));
  p.scales = from.Has("scales") ? dtype_from_name(text("scales")) : p.x;
  if (from.Has("zeros")) p.zeros = dtype_from_name(text("zeros"));
  if (from.Has("zero")) p.zero = from.Get("zero").ToNumber().DoubleValue();
  p.bias = from.Has("bias") && from.Get("bias").ToBoolean();
  return p;
}

// Read once; none where they were not built, which counts as all of them.
const std::optional<std::set<std::string>>& built_kernels() {
  static const std::optional<std::set<std::string>> names = []() -> std::optional<std::set<std::string>> {
    try {
      return cuda::kernel_names(cuda::kernels_path());
    } catch (const Failure&) {
      return std::nullopt;
    }
  }();
  return names;
}

}  // namespace

Napi::Value explain_kernel_js(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const auto wish = info[0].As<Napi::Object>();
    const ops::GemmProduct product = product_from(wish);
    const bool asked = wish.Get("device").IsNumber();
    cuda::DeviceFacts facts = asked ? cuda::device_facts(wish.Get("device").ToNumber().Int32Value())
                                    : cuda::described_device(wish.Get("device").ToString().Utf8Value());
    const cuda::Tuning* const tuning = asked ? &cuda::tuning_of(facts) : nullptr;
    // What planners keep about a device that was asked must not come from here.
    if (asked) facts.ordinal = -1000 - facts.ordinal;
    const std::optional<std::set<std::string>>& names = built_kernels();
    const cuda::Choice choice = cuda::choose_kernel(facts, nullptr, product, tuning, names ? &*names : nullptr);
    auto out = Napi::Object::New(env);
    out.Set("device", facts.name);
    out.Set("tuned", choice.tuned);
    out.Set("workspace", static_cast<double>(choice.workspace));
    auto launches = Napi::Array::New(env), reasons = Napi::Array::New(env);
    for (const cuda::Launch& launch : choice.launches) {
      auto row = Napi::Object::New(env);
      row.Set("kernel", launch.kernel);
      row.Set("grid", static_cast<double>(launch.grid.x) * launch.grid.y * launch.grid.z);
      row.Set("threads", static_cast<double>(launch.block.x));
      row.Set("shared", static_cast<double>(launch.shared));
      row.Set("cluster", launch.cluster);
      row.Set("text", cuda::launch_text(launch));
      launches.Set(launches.Length(), row);
    }
    for (const std::string& reason : choice.reasons) reasons.Set(reasons.Length(), Napi::String::New(env, reason));
    out.Set("launches", launches);
    out.Set("reasons", reasons);
    return out;
  });
}

Napi::Value kernel_tuning_js(const Napi::CallbackInfo& info) {
  Napi::Env env = info.Env();
  return guarded(env, [&]() -> Napi::Value {
    const cuda::DeviceFacts facts = cuda::device_facts(info[0].ToNumber().Int32Value());
    const int version = cuda::driver().version;
    auto out = Napi::Object::New(env);
    out.Set("device", facts.name);
    out.Set("driver", version);
    out.Set("path", cuda::tuning_path(facts.name, version));
    return out;
  });
}

}  // namespace lpq::addon
