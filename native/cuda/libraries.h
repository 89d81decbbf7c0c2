// cuBLAS and cuSOLVER, opened with dlopen when first needed, with prototypes of our own.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cuda/driver.h"

namespace lpq::cuda {

using BlasHandle = struct cublasContext*;
using SolverHandle = struct cusolverDnContext*;
using SolverParams = struct cusolverDnParams*;

// Values of the vendor's enumerations. cuBLAS and cuSOLVER are column-major: kLower of theirs is our upper triangle.
enum BlasOperation : int { kPlain = 0, kTransposed = 1 };
enum BlasFill : int { kLower = 0, kUpper = 1 };
enum BlasDiagonal : int { kNonUnit = 0, kUnit = 1 };
enum BlasType : int { kReal32 = 0, kReal64 = 1, kReal16 = 2, kBrain16 = 14 };
enum BlasCompute : int { kCompute32 = 68, kCompute64 = 70, kComputeTf32 = 77 };
constexpr int kDefaultAlgorithm = -1;

// X(member, exported name, parameters)
#define LPQ_CUBLAS_FUNCTIONS(X)                                                                                \
  X(create, cublasCreate_v2, (BlasHandle * handle))                                                            \
  X(destroy, cublasDestroy_v2, (BlasHandle handle))                                                            \
  X(set_stream, cublasSetStream_v2, (BlasHandle handle, CUstream stream))                                      \
  X(set_workspace, cublasSetWorkspace_v2, (BlasHandle handle, void* memory, size_t bytes))                     \
  X(set_math_mode, cublasSetMathMode, (BlasHandle handle, int mode))                                           \
  X(gemm, cublasGemmEx,                                                                                        \
    (BlasHandle handle, int op_a, int op_b, int m, int n, int k, const void* alpha, const void* a, int type_a, \
     int lda, const void* b, int type_b, int ldb, const void* beta, void* c, int type_c, int ldc, int compute, \
     int algorithm))

#define LPQ_CUSOLVER_FUNCTIONS(X)                                                                                      \
  X(create, cusolverDnCreate, (SolverHandle * handle))                                                                 \
  X(destroy, cusolverDnDestroy, (SolverHandle handle))                                                                 \
  X(set_stream, cusolverDnSetStream, (SolverHandle handle, CUstream stream))                                           \
  X(create_params, cusolverDnCreateParams, (SolverParams * params))                                                    \
  X(destroy_params, cusolverDnDestroyParams, (SolverParams params))                                                    \
  X(potrf_size, cusolverDnXpotrf_bufferSize,                                                                           \
    (SolverHandle handle, SolverParams params, int fill, int64_t n, int type, const void* a, int64_t lda, int compute, \
     size_t* device_bytes, size_t* host_bytes))                                                                        \
  X(potrf, cusolverDnXpotrf,                                                                                           \
    (SolverHandle handle, SolverParams params, int fill, int64_t n, int type, void* a, int64_t lda, int compute,       \
     void* device, size_t device_bytes, void* host, size_t host_bytes, int* info))                                     \
  X(trtri_size, cusolverDnXtrtri_bufferSize,                                                                           \
    (SolverHandle handle, int fill, int diagonal, int64_t n, int type, void* a, int64_t lda, size_t* device_bytes,     \
     size_t* host_bytes))                                                                                              \
  X(trtri, cusolverDnXtrtri,                                                                                           \
    (SolverHandle handle, int fill, int diagonal, int64_t n, int type, void* a, int64_t lda, void* device,             \
     size_t device_bytes, void* host, size_t host_bytes, int* info))                                                   \
  X(dpotri_size, cusolverDnDpotri_bufferSize,                                                                          \
    (SolverHandle handle, int fill, int n, double* a, int lda, int* elements))                                         \
  X(dpotri, cusolverDnDpotri,                                                                                          \
    (SolverHandle handle, int fill, int n, double* a, int lda, double* work, int elements, int* info))

// Throws Failure("LPQ_CUDA_LIBRARY") with the status and what was being done, unless it is 0.
void check_library(int status, const char* library, const char* what);

// A handle on one stream, with a workspace of its own: the same call gives the same bytes.
struct Cublas {
#define LPQ_DECLARE(member, name, parameters) int(*member) parameters = nullptr;
  LPQ_CUBLAS_FUNCTIONS(LPQ_DECLARE)
  BlasHandle handle = nullptr;
  // Throws Failure("LPQ_CUDA_LIBRARY"). The context must be current; `workspace` outlives this object.
  Cublas(CUstream stream, void* workspace, size_t workspace_bytes);
  // Whether a product's sums may be split among blocks, where it has few. cuBLAS adds such parts up in its workspace,
  // and without one it does not split; how many parts there would be depends on the rows. Throws as above.
  void may_split(bool split);
  ~Cublas();
  Cublas(const Cublas&) = delete;
  Cublas& operator=(const Cublas&) = delete;

 private:
  void* workspace_;
  size_t workspace_bytes_;
  bool splits_ = true;
};

struct Cusolver {
  LPQ_CUSOLVER_FUNCTIONS(LPQ_DECLARE)
#undef LPQ_DECLARE
  SolverHandle handle = nullptr;
  SolverParams params = nullptr;
  explicit Cusolver(CUstream stream);
  ~Cusolver();
  Cusolver(const Cusolver&) = delete;
  Cusolver& operator=(const Cusolver&) = delete;
};

// Opens one of `names` (newest first): in the folders of LPQ_CUDA_LIBS, through the system's loader, in the toolkit,
// then in the nvidia wheels of the Python environments there are. Throws Failure("LPQ_CUDA_LIBRARY") with every place
// looked at.
void* open_library(const std::vector<std::string>& names);

}  // namespace lpq::cuda
