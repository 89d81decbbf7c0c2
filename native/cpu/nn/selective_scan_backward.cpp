// selective_scan_backward. With S+ = a S + d B x, y = C S+ + skip x and D the gradient of S+ (C dy of this token beside
// what later ones leave): dC = dy S+, dB = d x D, dx = d B D + skip dy, the step's = B x D + rate a S D, and a D goes
// on to the token before.
#include "cpu/math.h"
#include "cpu/nn/selective_scan.h"
#include "ops/backward_recurrent.h"

namespace lpq::nn {
namespace {

constexpr int64_t kSpan = 64;  // tokens whose states are held at once

struct Facts {
  const ops::SelectiveScanBackward& a;
  std::vector<float> step, rate, skip, slope;  // slope: of the step with respect to what it is made of
  std::vector<double> db, dc;                  // sums of all heads of a group
};

// Some neighbouring columns of one head's states, in a sequence.
class Columns {
 public:
  Columns(Facts& by, int64_t head, int64_t first)
      : by_(by), a_(by.a), head_(head), from_(head * a_.head_dim + first), first_(first) {
    columns_ = std::min<int64_t>(kStateColumns, a_.head_dim - first);
    group_ = head / (a_.heads / a_.groups) * a_.size;
    const int64_t parts = (a_.head_dim + kStateColumns - 1) / kStateColumns;
    rates_ = by.rate.data() + (a_.by_channel ? (head * parts + first / kStateColumns) * a_.size * kStateColumns : head);
  }

  void run(int64_t begin, int64_t count) {
    const size_t size = static_cast<size_t>(a_.size * kStateColumns);
    std::vector<float> state(size, 0.0f), later(size, 0.0f);
    std::vector<std::vector<float>> kept;  // in front of every span
    for (int64_t t = 0; t < count; ++t) {
      if (t % kSpan == 0) kept.push_back(state);
      advance(begin + t, state.data());
    }
    std::vector<std::vector<float>> states(kSpan + 1, std::vector<float>(size));
    for (int64_t span = static_cast<int64_t>(kept.size()) - 1; span >= 0; --span) {
      const int64_t from = span * kSpan, end = std::min(count, from + kSpan);
      states[0] = kept[static_cast<size_t>(span)];
      for (int64_t t = from; t < end; ++t) {
        const size_t at = static_cast<size_t>(t - from);
        states[at + 1] = states[at];
        advance(begin + t, states[at + 1].data());
      }
      for (int64_t t = end - 1; t >= from; --t) {
        const size_t at = static_cast<size_t>(t - from);
        back(begin + t, states[at].data(), states[at + 1].data(), later.data());
      }
    }
  }

 private:
  float step(int64_t t, int64_t i) const { return by_.step[place(t, i)]; }
  size_t place(int64_t t, int64_t i) const {
    return static_cast<size_t>(a_.by_channel ? t * a_.step.dim(1) + from_ + i : t * a_.heads + head_);
  }
  // a of a row and a column, and its rate.
  float rate(int64_t row, int64_t i) const { return a_.by_channel ? rates_[row * kStateColumns + i] : rates_[0]; }

  void advance(int64_t t, float* s) const {
    const float *b = a_.b.data<float>() + t * a_.b.dim(1) + group_, *x = a_.x.data<float>() + t * a_.x.dim(1) + from_;
    const float decay = a_.by_channel ? 0.0f : exp_f32(rates_[0] * step(t, 0));
    for (int64_t n = 0; n < a_.size; ++n)
      for (int64_t i = 0; i < columns_; ++i) {
        const float d = step(t, i), kept = a_.by_channel ? exp_f32(rate(n, i) * d) : decay;
        float& at = s[n * kStateColumns + i];
        at = std::fma(kept, at, b[n] * (d * x[i]));
      }
  }

  void back(int64_t t, const float* before, const float* after, float* later) {
    const int64_t width = a_.b.dim(1), channels = a_.x.dim(1);
    const float *b = a_.b.data<float>() + t * width + group_, *c = a_.c.data<float>() + t * width + group_;
    const float *x = a_.x.data<float>() + t * channels + from_, *dy = a_.dy.data<float>() + t * channels + from_;
    double* const db = by_.db.data() + t * width + group_;
    double* const dc = by_.dc.data() + t * width + group_;
    const float decay = a_.by_channel ? 0.0f : exp_f32(rates_[0] * step(t, 0));
    float dx[kStateColumns] = {}, ds[kStateColumns] = {}, own[kStateColumns];
    for (int64_t i = 0; i < columns_; ++i) own[i] = step(t, i);
    for (int64_t n = 0; n < a_.size; ++n) {
      double into = 0, out = 0;
      for (int64_t i = 0; i < columns_; ++i) {
        const int64_t at = n * kStateColumns + i;
        const float kept = a_.by_channel ? exp_f32(rate(n, i) * own[i]) : decay;
        const float slope = std::fma(c[n], dy[i], later[at]);
        out += static_cast<double>(dy[i] * after[at]);
        into += static_cast<double>(slope * (own[i] * x[i]));
        dx[i] = std::fma(slope, b[n], dx[i]);
        ds[i] += slope * (rate(n, i) * kept) * before[at];
        later[at] = kept * slope;
      }
      db[n] += into;
      dc[n] += out;
    }
    double sum = 0;
    for (int64_t i = 0; i < columns_; ++i) {
      const size_t skip = static_cast<size_t>(a_.by_channel ? from_ + i : head_);
      const float made = ds[i] + dx[i] * x[i];
      a_.dx.data<float>()[t * channels + from_ + i] = std::fma(own[i], dx[i], by_.skip[skip] * dy[i]);
      if (a_.by_channel) a_.dstep.data<float>()[place(t, i)] = made * by_.slope[place(t, i)];
      else sum += static_cast<double>(made);
    }
    if (a_.by_channel) return;
    float& dstep = a_.dstep.data<float>()[place(t, 0)];
    dstep = (first_ == 0 ? 0.0f : dstep) + static_cast<float>(sum) * by_.slope[place(t, 0)];
  }

  Facts& by_;
  const ops::SelectiveScanBackward& a_;
  int64_t head_, from_, first_, columns_, group_;
  const float* rates_;
};

// Of min(max(softplus(step + bias), least), most).
std::vector<float> slopes(const ops::SelectiveScanBackward& a) {
  const int64_t width = a.step.dim(1);
  const std::vector<float> bias = widened(a.bias);
  std::vector<float> made(static_cast<size_t>(a.step.elements()));
  for (size_t i = 0; i < made.size(); ++i) {
    const double at =
        static_cast<double>(a.step.data<float>()[i]) + static_cast<double>(bias[i % static_cast<size_t>(width)]);
    const double step = softplus(at);
    made[i] = step < a.least || step > a.most ? 0.0f : static_cast<float>(1 / (1 + std::exp(-at)));
  }
  return made;
}

void selective_scan_backward(Call& call, Exec& exec) {
  const ops::SelectiveScanBackward a(call);
  const std::vector<Run> all = runs({a.starts}, a.x.dim(0));
  const std::vector<double> none(static_cast<size_t>(a.b.elements()), 0.0);
  Facts by{a, scan_steps(a, exec), scan_rates(a), widened(a.skip), slopes(a), none, none};
  // A sequence's heads of one group are a task, which takes them in order.
  exec.pool.for_each(static_cast<int64_t>(all.size()) * a.groups, 1, [&](int64_t task) {
    const Run& run = all[static_cast<size_t>(task / a.groups)];
    const int64_t share = a.heads / a.groups, group = task % a.groups;
    for (int64_t head = group * share; head < (group + 1) * share; ++head)
      for (int64_t first = 0; first < a.head_dim; first += kStateColumns)
        Columns(by, head, first).run(run.first, run.count);
  });
  const auto narrow = [](const std::vector<double>& from, const Tensor& to) {
    std::transform(from.begin(), from.end(), to.data<float>(), [](double value) { return static_cast<float>(value); });
  };
  narrow(by.db, a.db);
  narrow(by.dc, a.dc);
}

}  // namespace
LPQ_OP(selective_scan_backward, "selective_scan_backward");
}  // namespace lpq::nn
