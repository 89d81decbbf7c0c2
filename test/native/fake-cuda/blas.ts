/** A libcublas.so.12 that multiplies nothing, in C: for FakeCuda.library(). */
export const BLAS = `
  int cublasCreate_v2(void** h) { return *h = (void*)16, 0; } int cublasDestroy_v2(void* h) { return (void)h, 0; }
  int cublasSetStream_v2(void* h, void* s) { return (void)h, (void)s, 0; }
  int cublasSetWorkspace_v2(void* h, void* m, unsigned long b) { return (void)h, (void)m, (void)b, 0; }
  int cublasSetMathMode(void* h, int m) { return (void)h, (void)m, 0; } int cublasGemmEx(void) { return 0; }
  int cublasGemmStridedBatchedEx(void) { return 0; } int cublasStrsm_v2(void) { return 0; } int cublasDtrsm_v2(void) { return 0; }
  int cublasSsyrk_v2(void) { return 0; } int cublasDsyrk_v2(void) { return 0; }`;
