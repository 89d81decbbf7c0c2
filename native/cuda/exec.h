// What a CUDA operation may use: one stream, scratch memory, launches by kernel name, and the vendor's libraries.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/allocator.h"
#include "cuda/driver.h"
#include "cuda/features.h"
#include "cuda/libraries.h"
#include "cuda/pinned.h"
#include "cuda/registry.h"
#include "lpq/exec.h"
#include "lpq/tensor.h"

namespace lpq::cuda {

class Arena;
class Plans;
struct Rehearsal;
struct Tuning;

struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
  Dim3(int64_t x_ = 1, int64_t y_ = 1, int64_t z_ = 1)
      : x(static_cast<unsigned>(x_)), y(static_cast<unsigned>(y_)), z(static_cast<unsigned>(z_)) {}
};

// Scratch of one operation. It goes back when this object does, which may be right after the launch that uses it: the
// next user launches on the same stream, hence later.
class Scratch {
 public:
  Scratch(Allocator& allocator, size_t bytes) : allocator_(&allocator), data_(allocator.take(bytes)), bytes_(bytes) {}
  Scratch(Arena& arena, size_t bytes);
  Scratch(Scratch&& other) noexcept
      : allocator_(other.allocator_),
        arena_(other.arena_),
        data_(std::exchange(other.data_, nullptr)),
        bytes_(other.bytes_) {}
  Scratch& operator=(Scratch&&) = delete;
  ~Scratch() {
    if (data_) give();
  }
  template <class T>
  T* as(size_t byte_offset = 0) const {
    return reinterpret_cast<T*>(data_ + byte_offset);
  }
  size_t bytes() const { return bytes_; }

 private:
  void give() noexcept;
  Allocator* allocator_ = nullptr;
  Arena* arena_ = nullptr;
  std::byte* data_;
  size_t bytes_;
};

struct DeviceFacts {
  int ordinal = 0;
  int arch = 0;  // 10 * major + minor: 80, 86, 89, 90
  Features features;
  int multiprocessors = 0;
  int shared_per_block = 0;  // the most a kernel may ask for
  size_t l2_bytes = 0, memory_bytes = 0;
  std::string name;
};

// C = alpha op(A) op(B) + beta C, row-major: C [m,n], op(A) [m,k], op(B) [k,n]; transposed operands are stored [k,m]
// and [n,k]. ld*: elements from one row to the next as stored; 0: dense. A and B share a type: bf16, f16, f32 or f64; C
// is that type, or f32 for 16-bit ones. 16-bit operands multiply exactly and accumulate in fp32; f32 is plain fp32
// unless `tf32`. Runs on the operation's stream and gives the same bytes for the same call on the same device.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  DType ab = DType::f32, out = DType::f32;
  bool transpose_a = false, transpose_b = false;
  int64_t lda = 0, ldb = 0, ldc = 0;
  double alpha = 1, beta = 0;
  bool tf32 = false;
  // A row of C has the same bits however many rows there are.
  bool rows_alone = false;
};

class CudaExec {
 public:
  // For what the executor has no function for. Who takes it may put anything on it.
  CUstream stream() {
    forget_written();
    return stream_;
  }
  CUcontext context() const { return context_; }
  const DeviceFacts& device() const { return facts_; }
  Allocator& allocator() const { return *allocator_; }

  // Who owns the memory of this executor's tensors (Storage::owner).
  const void* owner() const { return owner_ ? owner_ : allocator_.get(); }
  // Launches are written down, not launched (hosted.h), and so are sentences that say why they are what they are.
  bool rehearsing() const { return rehearsal_ != nullptr; }
  Rehearsal* rehearsal() const { return rehearsal_; }
  void because(std::string reason);
  // Settings of products that were timed on this device (gemm/tuning.h), or null.
  void tune(const Tuning* tuning) { tuning_ = tuning; }
  const Tuning* tuning() const { return tuning_; }
  // Plans of one product that its calls share (gemm/family.h), or null.
  void share(Plans* plans) { plans_ = plans; }
  Plans* plans() const { return plans_; }

  Scratch scratch(size_t bytes) { return arena_ ? Scratch(*arena_, bytes) : Scratch(*allocator_, bytes); }
  Tensor allocate(DType dtype, std::vector<int64_t> shape) { return allocator_->allocate(dtype, std::move(shape)); }

  // Launches extern "C" __global__ `kernel`. The arguments must have exactly the types of its parameters (pointers as
  // T*, of Tensor::data<T>() or Scratch::as<T>()). An empty grid launches nothing.
  template <class... Args>
  void launch(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, const Args&... args) {
    void* pointers[sizeof...(Args) + 1] = {const_cast<void*>(static_cast<const void*>(&args))...};
    launch_raw(kernel, grid, block, shared, pointers, false);
  }
  // As launch, all blocks resident at once (grid-wide barriers); fails when they do not fit.
  template <class... Args>
  void launch_cooperative(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, const Args&... args) {
    void* pointers[sizeof...(Args) + 1] = {const_cast<void*>(static_cast<const void*>(&args))...};
    launch_raw(kernel, grid, block, shared, pointers, true);
  }
  // As launch, of a kernel of the cubin at this path, which is read at the first launch (LPQ_CUDA_KERNELS, as
  // Kernels::load).
  void launch_loaded(const std::string& cubin, const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared,
                     void** arguments);
  // As launch, `cluster` blocks in a row a cluster; `overlap`: it may start while the operation before still runs,
  // which the kernel waits for by itself (griddepcontrol.wait) before it touches what that one writes. Needs a device
  // of 9.0.
  template <class... Args>
  void launch_clusters(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, int cluster, bool overlap,
                       const Args&... args) {
    void* pointers[sizeof...(Args) + 1] = {const_cast<void*>(static_cast<const void*>(&args))...};
    launch_raw(kernel, grid, block, shared, pointers, cluster, overlap);
  }
  // As launch of a kernel that begins with griddepcontrol_wait_and_launch() (ptx/griddepcontrol.cuh): on devices of 9.0
  // it may start while the launch before still runs, where the newest thing on the stream is one.
  template <class... Args>
  void launch_after(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, const Args&... args) {
    void* pointers[sizeof...(Args) + 1] = {const_cast<void*>(static_cast<const void*>(&args))...};
    if (launched_ && follows()) launch_raw(kernel, grid, block, shared, pointers, 1, true);
    else launch_raw(kernel, grid, block, shared, pointers, false);
  }
  // As launch_after of a kernel that begins with griddepcontrol_launch_and_wait(), so that the next may start while
  // those before this one still run: what they touch counts as touched by this one, too.
  template <class... Args>
  void launch_through(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, const Args&... args) {
    std::optional<std::vector<Touched>> before;
    if (launched_) before.emplace(std::move(touched_));
    const bool reads = reads_known_;
    launch_after(kernel, grid, block, shared, args...);
    before_ = std::move(before), reads_before_ = reads;
  }
  // What an overlapping launch reads before it waits must not come from the operation before. Known to be so if that
  // was a launch that said by wrote() what it writes, nothing else was put on the stream since (all that does so
  // forgets), and `tensor` lies elsewhere.
  template <class... More>
  void wrote(const More&... tensors) {
    touched_.clear();
    if (!launched_ || (before_ && before_->empty())) return;
    reads_before_ = !before_ || reads_before_;
    if (before_) touched_ = std::move(*before_);
    before_.reset();
    (touch(tensors, Touch::kWritten), ...);
  }
  // After wrote(): caches of which it wrote the rows of new tokens alone.
  template <class... More>
  void wrote_new_rows(const More&... caches) {
    if (!touched_.empty()) (touch(caches, Touch::kNewRows), ...);
  }
  // After wrote(): all else that it reads, so that the next may even write early.
  template <class... More>
  void read(const More&... tensors) {
    if (touched_.empty()) return;
    (touch(tensors, Touch::kRead), ...);
    reads_known_ = reads_before_;
  }
  bool follows_untouched(const Tensor& weights) const {
    return settled_ || untouched(weights, {Touch::kWritten, Touch::kNewRows});
  }
  // Of what operations write, too: a cache, and the tables that say where it lies. `older_rows`: of all but the rows of
  // new tokens.
  bool follows_untouched_cache(const Tensor& tensor, bool older_rows = false) const {
    return older_rows ? untouched(tensor, {Touch::kWritten}) : untouched(tensor, {Touch::kWritten, Touch::kNewRows});
  }
  // Whether nothing that still runs reads or writes the tensor.
  bool follows_apart(const Tensor& tensor) const {
    return reads_known_ && untouched(tensor, {Touch::kWritten, Touch::kNewRows, Touch::kRead});
  }
  void forget_written() {
    touched_.clear();
    before_.reset();
    launched_ = reads_known_ = false;
  }
  // Clusters of `kernel` that the device holds at once. The driver is asked once.
  int resident_clusters(const std::string& kernel, int threads, unsigned shared, int cluster);
  bool has_kernel(const std::string& kernel) const;
  // Blocks of `kernel` that one multiprocessor holds at once.
  int occupancy(const std::string& kernel, int threads, unsigned shared);

  void fill_zero(void* data, size_t bytes);
  void copy(void* to, const void* from, size_t bytes);             // device to device
  void read_back(void* host, const void* device, size_t bytes);    // small; waits for the stream
  void write_small(void* device, const void* host, size_t bytes);  // copies `host` before it returns

  void gemm(const Gemm& product);
  // Handles on this stream, taken as stream() is; Failure("LPQ_CUDA_LIBRARY") when the library is not there.
  Cublas& blas();
  const Cusolver& solver();

  // A word of device memory, 0 now. A kernel that meets bad data stores anything else there (several may), and the
  // next wait for the queue fails with this code and sentence. Nothing waits here.
  uint32_t* fault(std::string code, std::string detail);

  // `count` words of device memory that are 0 between operations: kernels that count in them leave them at 0.
  uint32_t* counters(size_t count);

  // Work units for progress polling.
  std::atomic<int64_t>* done = nullptr;
  std::atomic<int64_t>* total = nullptr;

 private:
  friend class CudaBackend;
  friend class Hosted;
  friend class Branches;
  bool rehearse(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, int cluster, bool overlap);
  uint32_t* hosted_counters(size_t count);
  enum class Touch { kWritten, kNewRows, kRead };
  struct Touched {
    const std::byte *first, *last;
    Touch how;
  };
  void touch(const Tensor& tensor, Touch how) {
    touched_.push_back({tensor.raw(), tensor.raw() + tensor.bytes(), how});
  }
  bool untouched(const Tensor& tensor, std::initializer_list<Touch> ways) const {
    for (const Touched& t : touched_)
      if (std::find(ways.begin(), ways.end(), t.how) != ways.end() && tensor.raw() + tensor.bytes() > t.first &&
          t.last > tensor.raw())
        return false;
    return !touched_.empty();
  }
  bool follows();  // whether the device and its driver start such kernels early
  void launch_raw(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, void** arguments,
                  bool cooperative);
  void launch_raw(const std::string& kernel, Dim3 grid, Dim3 block, unsigned shared, void** arguments, int cluster,
                  bool overlap);
  // Words are asked for in one bank while the other's are on their way back, so that nobody waits for the device.
  struct Fault {
    std::string code, detail, op;
  };
  struct Bank {
    std::optional<Scratch> words;
    uint32_t* host = nullptr;  // pinned
    CUevent copied = nullptr;
    std::vector<Fault> asked;
    bool returning = false;
  };
  static void judge(const std::vector<Fault>& asked,
                    const uint32_t* words);  // throws OpFailure for the first word that is set
  void send_back(Bank& bank);
  void settle(Bank& bank);
  void check_faults();  // waits for the stream
  // The words asked for so far, copied to pinned memory in stream order, and what they stand for; undefined when none.
  std::function<void()> watch_faults();
  CUstream stream_ = nullptr;
  CUcontext context_ = nullptr;
  DeviceFacts facts_;
  std::shared_ptr<Allocator> allocator_;
  Kernels* kernels_ = nullptr;
  std::shared_ptr<PinnedPool> pinned_;
  std::optional<Scratch> counters_;
  std::unique_ptr<Scratch> blas_workspace_;
  std::unique_ptr<Cublas> blas_;
  // Streams beside stream_ (branches.h), with what multiplies there; made when first needed.
  struct Branch {
    CUstream stream = nullptr;
    CUevent ended = nullptr;
    std::unique_ptr<Scratch> blas_workspace;
    std::unique_ptr<Cublas> blas;
  };
  std::vector<Branch> branches_;
  std::unique_ptr<Cusolver> solver_;
  Bank banks_[2];
  int bank_ = 0;
  std::string op_;  // that runs now
  const void* owner_ = nullptr;
  Arena* arena_ = nullptr;          // instead of an allocator
  std::byte* head_ = nullptr;       // and what its memory begins with
  Rehearsal* rehearsal_ = nullptr;  // instead of a device
  const Tuning* tuning_ = nullptr;
  Plans* plans_ = nullptr;
  std::optional<bool> follows_;
  bool recording_ = false;        // launches go into a graph (timing.cpp)
  bool launched_ = false;         // the newest thing on the stream is a launch of a kernel of ours
  bool settled_ = false;          // whatever came before, it has not written weights
  std::vector<Touched> touched_;  // by the newest launch, and what may still run beside it, if it is known
  std::optional<std::vector<Touched>> before_;      // touched_ before launch_through(), where a launch came before
  bool reads_known_ = false, reads_before_ = true;  // touched_ and before_ have what is read, too
};

// The tensor lies on this device. Throws Failure("LPQ_NATIVE_ARGUMENT").
void require_device(const CudaExec& exec, const Tensor& tensor, const char* name);

}  // namespace lpq::cuda
