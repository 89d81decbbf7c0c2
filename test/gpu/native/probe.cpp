// Prints what the hardware's registers hold (native/cuda/probe) as JSON: probe [FILE]. test/fixtures/probe-*.json are
// its outputs.
#include <cstdio>

#include "cuda/launch.h"
#include "harness.h"

using namespace lpq;
using namespace lpq::test;

int main(int argc, char** argv) try {
  Device d;
  std::FILE* out = argc > 1 ? std::fopen(argv[1], "w") : stdout;
  if (!out) return 2;
  std::fprintf(out, "{\n  \"device\": \"%s\",\n  \"maps\": {", d.backend().exec().device().name.c_str());
  struct Map {
    const char *instruction, *operand;
    int64_t lanes, elements, coordinates;
  };
  const Map maps[] = {{"ldmatrix.x1", "", 32, 2, 3},          {"ldmatrix.x2", "", 32, 4, 3},
                      {"ldmatrix.x4", "", 32, 8, 3},          {"ldmatrix.x1.trans", "", 32, 2, 3},
                      {"ldmatrix.x2.trans", "", 32, 4, 3},    {"ldmatrix.x4.trans", "", 32, 8, 3},
                      {"m16n8k16.f16", "a", 32, 8, 2},        {"m16n8k16.f16", "b", 32, 4, 2},
                      {"m16n8k16.f16", "c", 32, 4, 2},        {"m16n8k16.bf16", "a", 32, 8, 2},
                      {"m16n8k16.bf16", "b", 32, 4, 2},       {"m16n8k16.bf16", "c", 32, 4, 2},
                      {"m16n8k8.f16", "a", 32, 4, 2},         {"m16n8k8.f16", "b", 32, 2, 2},
                      {"m16n8k8.f16", "c", 32, 4, 2},         {"m16n8k32.s8", "a", 32, 16, 2},
                      {"m16n8k32.s8", "b", 32, 8, 2},         {"m16n8k32.s8", "c", 32, 4, 2},
                      {"m16n8k64.s4", "a", 32, 32, 2},        {"m16n8k64.s4", "b", 32, 16, 2},
                      {"m16n8k64.s4", "c", 32, 4, 2},         {"sp.m16n8k32.f16", "a", 32, 8, 2},
                      {"sp.m16n8k32.f16", "b", 32, 8, 2},     {"sp.m16n8k32.f16", "c", 32, 4, 2},
                      {"sp.m16n8k32.f16", "e", 32, 8, 2},     {"wgmma.m64n8k16.f16", "a", 128, 8, 2},
                      {"wgmma.m64n8k16.f16", "c", 128, 4, 2}, {"wgmma.m64n8k16.bf16", "a", 128, 8, 2},
                      {"wgmma.m64n8k16.bf16", "c", 128, 4, 2}};
  bool first = true;
  for (const Map& m : maps) {
    if (m.lanes == 128 && d.backend().exec().device().arch != 90) continue;
    const Tensor got =
        d.run("probe_map", {}, {poisoned(DType::i32, {m.lanes, m.elements, m.coordinates})},
              params({{"instruction", std::string(m.instruction)}, {"operand", std::string(m.operand)}}))[0];
    std::fprintf(out, "%s\n    \"%s%s%s\": [", first ? "" : ",", m.instruction, m.operand[0] ? " " : "", m.operand);
    first = false;
    for (int64_t lane = 0; lane < m.lanes; ++lane) {
      std::fprintf(out, "%s\n      [", lane ? "," : "");
      for (int64_t e = 0; e < m.elements; ++e) {
        std::fprintf(out, "%s[", e ? "," : "");
        for (int64_t i = 0; i < m.coordinates; ++i)
          std::fprintf(out, "%s%d", i ? "," : "", got.data<int32_t>()[(lane * m.elements + e) * m.coordinates + i]);
        std::fprintf(out, "]");
      }
      std::fprintf(out, "]");
    }
    std::fprintf(out, "\n    ]");
  }
  std::fprintf(out, "\n  }\n}\n");
  if (argc > 1) std::fclose(out);
  std::printf("%zu maps\n", sizeof(maps) / sizeof(maps[0]));
  return 0;
} catch (const Failure& failure) {
  std::printf("%s: %s\n", failure.code.c_str(), failure.what());
  return 1;
}
