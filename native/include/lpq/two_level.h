// The scales of a two-level grid, for every device: of a row, one positive number times a whole factor for each group
// (QServe, Lin et al., arXiv:2405.04532, section 4.2). Factors from 1 to 16, or from -15 to -1 where a scale is
// negative, keep the product with a code from -8 to 7 within 8 bits.
#pragma once
#include <cmath>
#include <cstdint>

#include "lpq/everywhere.h"

namespace lpq {

struct TwoLevel {
  int bits;         // significant bits of a row's number, so that factors, of four, give what is stored exactly
  int least_power;  // it is a multiple of 2^least_power

  static constexpr TwoLevel f16() { return {7, -24}; }
  static constexpr TwoLevel f32() { return {20, -149}; }

  // `x`, rounded, among the factors of the sign of `like`.
  static LPQ_EVERYWHERE double factor(double x, double like) {
    const double whole = nearbyint(x), least = like < 0 ? -15.0 : 1.0, most = like < 0 ? -1.0 : 16.0;
    return whole < least ? least : whole > most ? most : whole;
  }

  // The nearest number that a row may have; never 0.
  LPQ_EVERYWHERE double channel(double x) const {
    if (!(x > 0)) return ldexp(1.0, least_power);
    const int power = ilogb(x) - bits + 1 > least_power ? ilogb(x) - bits + 1 : least_power;
    const double whole = nearbyint(ldexp(x, -power));
    return ldexp(whole > 1.0 ? whole : 1.0, power);
  }

  // The largest scale of a row becomes kFewest to kMost times its number: beyond 16 the largest are cut.
  static constexpr int kTries = 145;
  static constexpr double kFewest = 6, kStep = 0.125;

  struct Try {
    double channel, price;
  };
  // Try i of kTries near `ideal` [groups], whose largest magnitude among groups of some energy is `largest`, not 0;
  // `energy` [groups] is the price of a relative error of 1 of a scale.
  template <class Ideal, class Energy>
  LPQ_EVERYWHERE Try attempt(const Ideal* ideal, const Energy* energy, int64_t groups, double largest, int i) const {
    double c = channel(largest / (kFewest + i * kStep)), line = 0, square = 0;
    for (int64_t g = 0; g < groups; ++g) {
      if (!(energy[g] > 0)) continue;
      const double ratio = factor(ideal[g] / c, ideal[g]) / ideal[g];
      line += energy[g] * ratio;
      square += energy[g] * (ratio * ratio);
    }
    // The number that fits these factors best, whatever factors are then nearest.
    c = channel(line / square);
    double price = 0;
    for (int64_t g = 0; g < groups; ++g) {
      if (!(energy[g] > 0)) continue;
      const double off = factor(ideal[g] / c, ideal[g]) * c / ideal[g] - 1;
      price += energy[g] * (off * off);
    }
    return {c, price};
  }

  // 0 where no group has any energy.
  template <class Ideal, class Energy>
  static LPQ_EVERYWHERE double largest(const Ideal* ideal, const Energy* energy, int64_t groups) {
    double most = 0;
    for (int64_t g = 0; g < groups; ++g)
      if (energy[g] > 0 && fabs(static_cast<double>(ideal[g])) > most) most = fabs(static_cast<double>(ideal[g]));
    return most;
  }
};

}  // namespace lpq
