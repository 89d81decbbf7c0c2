// Work of the addon's own on several threads, while JavaScript waits.
#pragma once
#include <algorithm>
#include <cstdint>
#include <system_error>
#include <thread>
#include <vector>

namespace lpq::addon {

// Parts of [0, count) on so many threads, cut at multiples of `unit`.
template <class Part>
void in_parts(int64_t count, int64_t unit, int64_t threads, const Part& part) {
  const int64_t units = (count + unit - 1) / unit, parts = std::min(threads, units);
  const auto own = [&](int64_t i) { part(i * units / parts * unit, std::min(count, (i + 1) * units / parts * unit)); };
  std::vector<std::thread> others;
  for (int64_t i = 1; i < parts; ++i) {
    try {
      others.emplace_back(own, i);
    } catch (const std::system_error&) {
      own(i);  // no thread to be had
    }
  }
  if (parts > 0) own(0);
  for (std::thread& other : others) other.join();
}

}  // namespace lpq::addon
