// Tables of sequences and rows that are kept of them.
#include "cuda/recurrent/places.cuh"
#include "cuda/types.cuh"

using namespace lpq;
using namespace lpq::cuda;

// places [sequences] by one thread; there are `entries` of `rate` tokens (0: no entries) in all (-1: any number), and a
// slot holds `rows` tokens and `room` entries (0: any number). A sequence that is none has no tokens.
extern "C" __global__ void lpq_places(Past past, int rate, int entries, int rows, int room, Place* places) {
  int entry = 0, at = 0;
  for (int s = 0; s < past.sequences; ++s) {
    Run run = run_of(past, s);
    for (int other = 0; past.slots && other < s; ++other)
      if (past.slots[other] == past.slots[s]) *past.fault = 1;
    const int total = run.earlier + run.count, made = rate > 0 ? total / rate - run.earlier / rate : 0;
    if ((rows > 0 && total > rows) || (room > 0 && rate > 0 && total / rate > room) ||
        (entries >= 0 && entry + made > entries)) {
      *past.fault = 1;
      run = {at, 0, 0, -1};
    }
    places[s] = {run.count > 0 ? run.first : at, run.count, run.earlier, run.slot, entry};
    if (run.count > 0) entry += made, at = run.first + run.count;
  }
  if (entries >= 0 && entry != entries) *past.fault = 1;
}

// state[slot][row] = x[entry]: the rows of entries that end in new tokens, behind those before. grid: (sequences, any).
extern "C" __global__ void lpq_append_rows(const float* x, int width, const Place* places, int rate, float* state,
                                           int rows) {
  const Place place = places[blockIdx.x];
  if (place.slot < 0) return;
  const int before = place.before(rate), made = place.after(rate) - before;
  for (int i = blockIdx.y; i < made; i += gridDim.y)
    for (int c = threadIdx.x; c < width; c += blockDim.x)
      state[(static_cast<index_t>(place.slot) * rows + before + i) * width + c] =
          x[static_cast<index_t>(place.entry + i) * width + c];
}
