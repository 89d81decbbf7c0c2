// Timed passes over a list of calls: recorded as a CUDA graph, replayed, and timed with events on the compute stream.
#include <dlfcn.h>

#include <chrono>

#include "cuda/backend.h"

namespace lpq::cuda {
namespace {

using Graph = struct CUgraph_st*;
using GraphExec = struct CUgraphExec_st*;

// Of every driver since CUDA 12, looked for when something is first timed.
struct GraphApi {
  CUresult (*begin)(CUstream, int mode);
  CUresult (*end)(CUstream, Graph*);
  CUresult (*instantiate)(GraphExec*, Graph, unsigned long long flags);
  CUresult (*launch)(GraphExec, CUstream);
  CUresult (*destroy)(GraphExec);
  CUresult (*destroy_graph)(Graph);
};

const GraphApi& graph_api() {
  static const GraphApi api = [] {
    void* library = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(library ? ::dlsym(library, name) : nullptr);
      if (!function) throw Failure("LPQ_CUDA_DRIVER", std::string("the NVIDIA driver lacks ") + name);
    };
    GraphApi found{};
    find(found.begin, "cuStreamBeginCapture_v2");
    find(found.end, "cuStreamEndCapture");
    find(found.instantiate, "cuGraphInstantiateWithFlags");
    find(found.launch, "cuGraphLaunch");
    find(found.destroy, "cuGraphExecDestroy");
    find(found.destroy_graph, "cuGraphDestroy");
    return found;
  }();
  return api;
}

constexpr int kRelaxed = 2;  // other threads may go on allocating while this one records

// What `launch` puts on the stream, ready to be replayed. Scratch that it took is free again by then; nothing else uses
// it while the queue's thread is busy replaying.
class Recording {
 public:
  // `make_room`: gives memory back to the driver, which keeps a graph in memory of its own.
  Recording(CUstream stream, const std::function<void()>& launch, const std::function<void()>& make_room) {
    const GraphApi& api = graph_api();
    check(api.begin(stream, kRelaxed), "recording operations");
    Graph graph = nullptr;
    try {
      launch();
    } catch (...) {
      api.end(stream, &graph);
      if (graph) api.destroy_graph(graph);
      throw;
    }
    check(api.end(stream, &graph), "recording operations");
    CUresult made = api.instantiate(&run_, graph, 0);
    if (made == kOutOfMemory) {
      make_room();
      made = api.instantiate(&run_, graph, 0);
    }
    api.destroy_graph(graph);
    check(made, "recording operations");
  }
  ~Recording() { graph_api().destroy(run_); }
  Recording(const Recording&) = delete;
  Recording& operator=(const Recording&) = delete;
  void replay(CUstream stream) const { check(graph_api().launch(run_, stream), "replaying operations"); }

 private:
  GraphExec run_ = nullptr;
};

// One pass under way.
struct Lap {
  CUevent begin = nullptr, end = nullptr;
  bool running = false;
  Lap() {
    check(driver().event_create(&begin, kEventDefault), "making an event");
    if (const CUresult made = driver().event_create(&end, kEventDefault); made != kSuccess) {
      driver().event_destroy(begin);
      check(made, "making an event");
    }
  }
  ~Lap() {
    driver().event_destroy(begin);
    driver().event_destroy(end);
  }
  Lap(const Lap&) = delete;
  Lap& operator=(const Lap&) = delete;
};

}  // namespace

std::vector<double> CudaBackend::time(std::vector<std::pair<std::string, Call>>& calls, const Timing& how) {
  using Clock = std::chrono::steady_clock;
  // Once as usual: checks everything, waits for uploads, and makes the memory that the operations keep.
  for (auto& [op, call] : calls) {
    const Outcome outcome = outcome_of(op, [&, &name = op, &each = call] { run(name, each); });
    if (!outcome.ok) throw OpFailure(outcome.code, outcome.detail, outcome.op);
  }
  drain();
  const CUstream stream = exec_.stream_;
  const auto launch = [&] {
    exec_.forget_written();  // a pass does not overlap the one before, from which an event or a graph's end parts it
    for (auto& [op, call] : calls) {
      exec_.op_ = op;
      cuda_op_table().at(op)(call, exec_);
    }
  };
  std::optional<Recording> recording;
  if (how.graph) {
    exec_.recording_ = true;
    const Outcome recorded =
        outcome_of("time", [&] { recording.emplace(stream, launch, [&] { exec_.allocator_->trim(); }); });
    exec_.recording_ = false;
    if (!recorded.ok) throw OpFailure(recorded.code, recorded.detail, recorded.op);
    exec_.forget_written();  // the newest thing on the stream will be the graph, whatever it ends with
  }
  // Two passes are under way, so that the device goes from one to the next without a gap. The first two do not count.
  constexpr size_t kWarm = 2;
  Lap laps[2];
  std::vector<double> times;
  size_t finished = 0;
  const auto finish = [&](Lap& lap) {
    if (!lap.running) return;
    lap.running = false;
    check(driver().event_wait(lap.end), "timing operations");
    float milliseconds = 0;
    check(driver().event_elapsed(&milliseconds, lap.begin, lap.end), "timing operations");
    if (finished++ >= kWarm) times.push_back(milliseconds * 1e-3);
  };
  const auto start = Clock::now();
  const auto more = [&](size_t begun) {
    if (how.seconds <= 0 || begun <= kWarm) return begun < static_cast<size_t>(how.passes) + kWarm;
    return std::chrono::duration<double>(Clock::now() - start).count() < how.seconds;
  };
  for (size_t begun = 0; more(begun); ++begun) {
    if (aborted()) throw Failure("LPQ_ABORTED", "stopped on request");
    Lap& lap = laps[begun % 2];
    finish(lap);
    check(driver().event_record(lap.begin, stream), "timing operations");
    if (recording) recording->replay(stream);
    else launch();
    check(driver().event_record(lap.end, stream), "timing operations");
    lap.running = true;
  }
  for (const size_t first = finished % 2, last = 1 - first; const size_t at : {first, last}) finish(laps[at]);
  return times;
}

}  // namespace lpq::cuda
