// Every form and cut of the kernels that are cut by scaled_plan.h, as settings of their operations.
#pragma once
#include <string>

#include "harness.h"

namespace lpq::test {

struct CutForm {
  int tokens, width;  // of a tile; packed blocks of a strip
};
constexpr CutForm kScaledCuts[] = {{32, 8}, {64, 8},  {96, 8},  {128, 8}, {32, 4}, {64, 4},
                                   {96, 4}, {128, 4}, {160, 4}, {192, 4}, {256, 4}};
constexpr CutForm kAct8Cuts[] = {{16, 8}, {32, 8}, {64, 8},  {96, 8},  {128, 8}, {16, 4}, {32, 4},
                                 {64, 4}, {96, 4}, {128, 4}, {160, 4}, {192, 4}, {256, 4}};

// f(name, settings) for each of these forms with every number of blocks that share an item; tiles of few tokens of
// many are left out.
template <class Forms, class F>
void for_each_cut(const char* kernel, const Forms& forms, int multiprocessors, int64_t n, int64_t m, const F& f) {
  for (const auto& [tokens, width] : forms) {
    if ((tokens >= 2 * m && tokens > forms[0].tokens) || tokens * 16 < m) continue;
    const int64_t items = (n + 32 * width - 1) / (32 * width) * ((m + tokens - 1) / tokens);
    const std::string form = std::to_string(tokens) + "x" + std::to_string(width);
    const Params wish = params({{"kernel", std::string(kernel)}, {"tokens", double(tokens)}, {"width", double(width)}});
    f(form, wish);
    const int64_t at_once = width == 4 && tokens <= 64 ? 2 * multiprocessors : multiprocessors;
    const auto cut = [&](const std::string& how, int64_t blocks, const char* reduce) {
      Params with = wish;
      with.set("blocks", double(blocks));
      with.set("reduce", std::string(reduce));
      f(form + "/" + how, with);
    };
    for (int64_t sharers = 1; sharers <= 12 && items * sharers <= at_once; ++sharers) {
      cut(std::to_string(sharers), items * sharers, "global");
      if (sharers > 1 && sharers <= 8) cut("c" + std::to_string(sharers), items * sharers, "cluster");
    }
    for (int64_t blocks = multiprocessors; blocks <= at_once; blocks += multiprocessors)
      if (items % blocks) cut(blocks > multiprocessors ? "all2" : "all", blocks, "global");
  }
}

}  // namespace lpq::test
