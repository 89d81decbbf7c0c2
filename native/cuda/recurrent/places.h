// The table of places (places.cuh) of a call's sequences.
#pragma once
#include "cuda/recurrent/past.h"

namespace lpq::cuda {

// As in places.cuh.
struct Place {
  int first, count, earlier, slot, entry;
};

// What sequences have at most: -1 and 0 as of lpq_places.
struct PlaceBounds {
  int64_t rate = 0, entries = -1, rows = 0, room = 0;
};

class Places {
 public:
  Places(CudaExec& exec, const Past& past, const PlaceBounds& bounds)
      : room_(exec.scratch(static_cast<size_t>(past.sequences) * sizeof(Place))) {
    const int rate = static_cast<int>(bounds.rate), entries = static_cast<int>(bounds.entries),
              rows = static_cast<int>(bounds.rows), room = static_cast<int>(bounds.room);
    exec.launch("lpq_places", {1}, {1}, 0, past, rate, entries, rows, room, room_.as<Place>());
  }
  Place* get() const { return room_.as<Place>(); }

 private:
  Scratch room_;
};

// Past of attention: sequences of the call, or with slots and totals the newest tokens of theirs.
inline Past past_of(CudaExec& exec, const Tensor& starts, const Tensor* slots, const Tensor* totals, int64_t slot_count,
                    int64_t tokens) {
  Past past{};
  past.starts = starts.data<int32_t>();
  past.sequences = static_cast<int>(starts.dim(0)) - 1, past.tokens = static_cast<int>(tokens);
  past.fault = exec.fault("LPQ_NATIVE_ARGUMENT", "starts, slots, totals or what is selected names what there is not");
  if (!slots) return past;
  past.slots = slots->data<int32_t>(), past.totals = totals->data<int32_t>();
  past.slot_count = static_cast<int>(slot_count);
  return past;
}

// Rows of entries to those of their slots (lpq_append_rows).
inline void append_rows(CudaExec& exec, const Tensor& x, const Places& places, int sequences, int64_t entry_rate,
                        const Tensor& state) {
  const int width = static_cast<int>(x.dim(1)), rate = static_cast<int>(entry_rate),
            rows = static_cast<int>(state.dim(1));
  if (x.dim(0) == 0) return;
  exec.launch("lpq_append_rows", {sequences, std::min<int64_t>(x.dim(0), 1024)}, {128}, 0, x.data<float>(), width,
              places.get(), rate, state.data<float>(), rows);
}

}  // namespace lpq::cuda
