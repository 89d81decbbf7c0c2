// Functions of the addon about the choice of kernel (binding.ts: explainKernel, kernelTuning).
#pragma once
#include <napi.h>

namespace lpq::addon {

Napi::Value explain_kernel_js(const Napi::CallbackInfo& info);
Napi::Value kernel_tuning_js(const Napi::CallbackInfo& info);

}  // namespace lpq::addon
