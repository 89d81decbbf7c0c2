/* What lpq_kernels.h promises, tried: `contract` needs no GPU, `contract gpu` does (`contract gpu one`: with little memory). Prints
   'N checks, F failed'. */
#include "checks.h"
#include <time.h>

static lpq_weight_desc u4(int64_t k, int64_t n) {
  lpq_weight_desc d;
  LPQ_INIT(d);
  d.layout = LPQ_LAYOUT_TILUS;
  d.type = "u4";
  d.k = k, d.n = n;
  d.group = 128;
  d.activations = d.scale_type = LPQ_F16;
  d.zero = 8;
  return d;
}

static lpq_weight_desc sparse(int64_t k, int64_t n) {
  lpq_weight_desc d = u4(k, n);
  d.layout = LPQ_LAYOUT_SPARSE_MARLIN;
  return d;
}

static lpq_weight_desc comet(int64_t k, int64_t n) {
  lpq_weight_desc d = u4(k, n);
  d.layout = LPQ_LAYOUT_COMET;
  d.type = "i4";
  d.scale_type = LPQ_F32;
  d.eight_bit_blocks = k / 128 / 4;
  return d;
}

static void without_gpu(void) {
  char text[4096], small[16];
  size_t needed = 0;
  lpq_weight_desc d = u4(4096, 4096);
  lpq_artifact *artifact = (lpq_artifact *)text;
  lpq_tensor tensor;
  TRUE(lpq_abi_version() == LPQ_ABI_VERSION);
  TRUE(strlen(lpq_version()) >= 5);
  TRUE(strcmp(lpq_status_name(LPQ_ERROR_WORKSPACE), "LPQ_ERROR_WORKSPACE") == 0);
  TRUE(strcmp(lpq_status_name(99), "unknown") == 0 && strcmp(lpq_status_name(-1), "unknown") == 0);
  GIVES(LPQ_OK, lpq_explain("h200", &d, 16, text, sizeof text, &needed));
  TRUE(strncmp(text, "lpq_gemm_int4_f16_", 18) == 0 && needed == strlen(text) + 1);
  GIVES(LPQ_OK, lpq_explain("h200", &d, 16, small, sizeof small, &needed));
  TRUE(strlen(small) == sizeof small - 1 && strncmp(small, text, sizeof small - 1) == 0);
  GIVES(LPQ_OK, lpq_explain("h200", &d, 16, NULL, 0, NULL));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 16, NULL, 5, NULL));
  GIVES(LPQ_ERROR_DEVICE, lpq_explain("v100", &d, 16, text, sizeof text, NULL));
  NAMES("v100");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 0, text, sizeof text, NULL));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", NULL, 1, text, sizeof text, NULL));
  d.size = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  NAMES("LPQ_INIT");
  d = u4(4096, 4096), d.type = "u9";
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  NAMES("u9");
  d = u4(4096, 4096), d.layout = 77;
  GIVES(LPQ_ERROR_UNSUPPORTED, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  d = u4(4096, 4096), d.group = 48;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  d = u4(0, 4096);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  d = u4(INT64_MAX, 4096);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  d = u4(4096, 4096), d.n_padded = 1024;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  d = u4(4096, 4096), d.layout = LPQ_LAYOUT_MARLIN, d.type = "f4e2m1";
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 1, text, sizeof text, NULL));
  d = u4(4096, 4096), d.layout = LPQ_LAYOUT_MARLIN, d.type = "i8";
  GIVES(LPQ_OK, lpq_explain("a100", &d, 100, text, sizeof text, NULL));
  TRUE(strncmp(text, "lpq_marlin_u8_f16_t8", 20) == 0);
  d = u4(4096, 4096), d.layout = LPQ_LAYOUT_TURBOMIND, d.zero_type = LPQ_U8;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("a100", &d, 1, text, sizeof text, NULL));
  d = sparse(4096, 4096);
  GIVES(LPQ_OK, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  TRUE(strncmp(text, "lpq_sparse_u4_f16_", 18) == 0);
  d.group = 64;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  d = sparse(4096, 4096), d.zero_type = LPQ_I32;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  d = comet(4096, 4000);
  GIVES(LPQ_OK, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  TRUE(strncmp(text, "lpq_quantize_blocks_f16: ", 25) == 0 && strstr(text, "\nlpq_gemm_few_t") != NULL);
  GIVES(LPQ_ERROR_UNSUPPORTED, lpq_explain("a100", &d, 16, text, sizeof text, NULL));
  NAMES("9.0");
  d.eight_bit_blocks = 33;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  NAMES("eight_bit_blocks");
  d = comet(4000, 4096);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  d = comet(4096, 4096), d.scale_type = LPQ_F16;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 16, text, sizeof text, NULL));
  GIVES(LPQ_ERROR_FILE, lpq_artifact_open("/nowhere/at/all", &artifact));
  TRUE(artifact == NULL);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_artifact_open(NULL, &artifact));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_artifact_open("/", NULL));
  LPQ_INIT(tensor);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_artifact_tensor(NULL, "x", &tensor));
  TRUE(lpq_artifact_tensors(NULL) == 0 && lpq_artifact_modules(NULL) == 0);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm(NULL, 1, text, text, text, 1, NULL, 0));
  lpq_artifact_close(NULL);
  lpq_weight_destroy(NULL);
  lpq_context_close(NULL);
}

/* ---- With a GPU ---- */

typedef unsigned long long device_memory;
static void *library;

static void *symbol(const char *name) {
  void *found = dlsym(library, name);
  if (!found) printf("the driver has no %s\n", name), exit(2);
  return found;
}

static void *allocated(size_t bytes) {
  int (*alloc)(device_memory *, size_t);
  int (*fill)(device_memory, unsigned char, size_t);
  device_memory memory = 0;
  *(void **)&alloc = symbol("cuMemAlloc_v2");
  *(void **)&fill = symbol("cuMemsetD8_v2");
  if (alloc(&memory, bytes) || fill(memory, 0x11, bytes)) printf("no %zu bytes on the device\n", bytes), exit(1);
  return (void *)(uintptr_t)memory;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Products over weights that together are beyond any L2: microseconds of the device, and of the host that launches. */
static void time_calls(lpq_weight **weights, int count, int64_t m, void *x, void *y, void *workspace, size_t bytes, void *stream, unsigned flags, const char *what) {
  int (*event)(void **, unsigned), (*record)(void *, void *), (*wait)(void *), (*elapsed)(float *, void *, void *);
  void *begin, *end;
  float milliseconds = 0;
  double from, launched = 0;
  int i, round, times = 64;
  *(void **)&event = symbol("cuEventCreate");
  *(void **)&record = symbol("cuEventRecord");
  *(void **)&wait = symbol("cuEventSynchronize");
  *(void **)&elapsed = symbol("cuEventElapsedTime");
  event(&begin, 0);
  event(&end, 0);
  for (round = 0; round < 3; ++round) {
    record(begin, stream);
    from = seconds();
    for (i = 0; i < times; ++i)
      if (lpq_gemm(weights[i % count], m, x, y, workspace, bytes, stream, flags) != LPQ_OK) printf("FAIL %s\n", lpq_last_error()), ++failed;
    launched = seconds() - from;
    record(end, stream);
    wait(end);
    elapsed(&milliseconds, begin, end);
  }
  printf("TIME M=%lld %s: %.1f us a product on the device, %.1f us to launch\n", (long long)m, what, milliseconds * 1000 / (float)times, launched * 1e6 / times);
}

/* 2:4 weights, and W4Ax: every fourth block of activations has 8 bits. */
static void other_layouts(lpq_context *context, int arch, int computes, void *x, void *y, void *stream) {
  enum { K = 4096, N = 4000, BLOCKS = K / 128 };
  static const int64_t tokens[] = {1, 17, 200};
  int (*copy)(device_memory, const void *, size_t), (*wait)(void *);
  uint8_t bits[BLOCKS];
  int32_t places[BLOCKS];
  float clips[BLOCKS];
  int i, eights = 0, fours = 0;
  size_t bytes = 0;
  void *workspace, *codes = allocated((size_t)K * 4096 / 2), *scales = allocated((size_t)BLOCKS * 4096 * 4), *tables[3];
  lpq_weight *weight = NULL;
  lpq_weight_desc d = sparse(K, N);
  *(void **)&copy = symbol("cuMemcpyHtoD_v2");
  *(void **)&wait = symbol("cuStreamSynchronize");
  d.weights = codes, d.scales = scales;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_weight_create(context, &d, &weight));
  NAMES("metadata is NULL");
  d.metadata = allocated((size_t)K / 32 * 2 * 4096 * 2);
  GIVES(LPQ_OK, lpq_weight_create(context, &d, &weight));
  GIVES(LPQ_OK, lpq_gemm_workspace(weight, 1, 200, &bytes));
  workspace = allocated(bytes);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  for (i = 0; i < 3; ++i) GIVES(LPQ_OK, lpq_gemm(weight, tokens[i], x, y, workspace, bytes, stream, i == 1 ? LPQ_GEMM_SETTLED : 0));
  TRUE(wait(stream) == 0);
  lpq_weight_destroy(weight);
  for (i = 0; i < BLOCKS; ++i) {
    bits[i] = i % 4 ? 4 : 8;
    places[i] = i % 4 ? ~fours++ : eights++;
    clips[i] = 1;
  }
  tables[0] = allocated(sizeof bits), tables[1] = allocated(sizeof clips), tables[2] = allocated(sizeof places);
  copy((device_memory)(uintptr_t)tables[0], bits, sizeof bits);
  copy((device_memory)(uintptr_t)tables[1], clips, sizeof clips);
  copy((device_memory)(uintptr_t)tables[2], places, sizeof places);
  TRUE(wait(NULL) == 0); /* a copy may return before it has arrived, and does not order streams of the library's users */
  d = comet(K, N);
  d.weights = codes, d.scales = scales;
  d.block_bits = tables[0], d.block_clip = tables[1];
  if (arch != 90) {
    d.blocks = tables[2];
    GIVES(LPQ_ERROR_UNSUPPORTED, lpq_weight_create(context, &d, &weight));
    return;
  }
  GIVES(LPQ_ERROR_ARGUMENT, lpq_weight_create(context, &d, &weight));
  NAMES("blocks is NULL");
  d.blocks = tables[2];
  GIVES(LPQ_OK, lpq_weight_create(context, &d, &weight));
  GIVES(LPQ_OK, lpq_gemm_workspace(weight, 1, 200, &bytes));
  workspace = allocated(bytes);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  for (i = 0; i < 3; ++i) {
    size_t least = 0;
    GIVES(LPQ_OK, lpq_gemm_workspace(weight, tokens[i], tokens[i], &least));
    GIVES(LPQ_OK, lpq_gemm(weight, tokens[i], x, y, workspace, least, stream, 0));
    GIVES(LPQ_ERROR_WORKSPACE, lpq_gemm(weight, tokens[i], x, y, workspace, least - 512, stream, 0));
  }
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  if (computes) {
    /* NaN has no code. */
    static const uint16_t nan = 0x7e00;
    copy((device_memory)(uintptr_t)x, &nan, sizeof nan);
    TRUE(wait(NULL) == 0);
    GIVES(LPQ_OK, lpq_gemm(weight, 1, x, y, workspace, bytes, stream, 0));
    GIVES(LPQ_ERROR_ARGUMENT, lpq_workspace_check(context, workspace, stream));
    NAMES("NaN");
    GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  }
  lpq_weight_destroy(weight);
}

static void with_gpu(int count) {
  enum { COUNT = 8 };
  const int64_t k = 4096, n = 28672, most = 256;
  int (*init)(unsigned), (*device)(int *, int), (*retain)(void **, int), (*select)(void *), (*make)(void **, unsigned), (*wait)(void *);
  void *current, *stream, *x, *y, *workspace, *scales;
  int ordinal, i;
  size_t bytes = 0, one = 0, three = 0;
  double from;
  lpq_context *context = NULL;
  lpq_context_options options;
  lpq_device_info info;
  lpq_weight *weights[COUNT], *bad = NULL;
  lpq_weight_desc d;
  LPQ_INIT(info);
  LPQ_INIT(options);
  library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) {
    GIVES(LPQ_ERROR_DRIVER, lpq_context_open(NULL, &context));
    printf("no GPU: %s\n", dlerror());
    exit(2);
  }
  *(void **)&init = symbol("cuInit");
  *(void **)&device = symbol("cuDeviceGet");
  *(void **)&retain = symbol("cuDevicePrimaryCtxRetain");
  *(void **)&select = symbol("cuCtxSetCurrent");
  *(void **)&make = symbol("cuStreamCreate");
  *(void **)&wait = symbol("cuStreamSynchronize");
  if (init(0) || device(&ordinal, 0) || retain(&current, ordinal)) printf("no GPU\n"), exit(2);
  GIVES(LPQ_ERROR_DEVICE, lpq_context_open(NULL, &context));
  NAMES("current CUDA context");
  select(current);
  options.kernels = "/nowhere/lpq_kernels.fatbin";
  GIVES(LPQ_ERROR_KERNELS, lpq_context_open(&options, &context));
  TRUE(context == NULL);
  from = seconds();
  GIVES(LPQ_OK, lpq_context_open(NULL, &context));
  printf("TIME opening: %.0f ms\n", 1e3 * (seconds() - from));
  if (!context) exit(1);
  GIVES(LPQ_OK, lpq_context_device(context, &info));
  TRUE(info.arch >= 80 && info.multiprocessors > 0);
  make(&stream, 1);
  scales = allocated((size_t)(n * k / 128 * 2));
  x = allocated((size_t)(most * k * 2));
  y = allocated((size_t)(most * n * 2));
  d = u4(k, n);
  d.scales = scales;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_weight_create(context, &d, &bad));
  NAMES("weights is NULL");
  d.weights = (const char *)scales + 2;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_weight_create(context, &d, &bad));
  NAMES("16 bytes");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_weight_create(NULL, &d, &bad));
  for (i = 0; i < count; ++i) {
    d.weights = allocated((size_t)(n * k / 2));
    GIVES(LPQ_OK, lpq_weight_create(context, &d, &weights[i]));
  }
  from = seconds();
  GIVES(LPQ_OK, lpq_gemm_workspace(weights[0], 1, most, &bytes));
  printf("TIME workspace of 1 to %lld tokens: %.2f ms, %zu bytes\n", (long long)most, 1e3 * (seconds() - from), bytes);
  GIVES(LPQ_OK, lpq_gemm_workspace(weights[0], 1, 1, &one));
  GIVES(LPQ_OK, lpq_gemm_workspace(weights[0], 96, 96, &three));
  TRUE(one <= bytes && three <= bytes && one >= 262656);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_workspace(weights[0], 3, 2, &one));
  workspace = allocated(bytes);
  GIVES(LPQ_ERROR_WORKSPACE, lpq_workspace_init(context, workspace, 100, stream));
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  GIVES(LPQ_OK, lpq_gemm(weights[0], 0, NULL, NULL, NULL, 0, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm(weights[0], -1, x, y, workspace, bytes, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm(weights[0], 1, NULL, y, workspace, bytes, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm(weights[0], 1, (char *)x + 2, y, workspace, bytes, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm(weights[0], 1, x, y, workspace, bytes, stream, 2));
  GIVES(LPQ_ERROR_WORKSPACE, lpq_gemm(weights[0], 1, x, y, workspace, 4096, stream, 0));
  {
    /* The least that lpq_gemm_workspace() names is enough, and where it is more than the head, less is refused. */
    static const int64_t tokens[] = {1, 8, 16, 17, 64, 65, 96, 256};
    for (i = 0; i < (int)(sizeof tokens / sizeof *tokens); ++i) {
      size_t least = 0;
      GIVES(LPQ_OK, lpq_gemm_workspace(weights[0], tokens[i], tokens[i], &least));
      GIVES(LPQ_OK, lpq_gemm(weights[0], tokens[i], x, y, workspace, least, stream, 0));
      if (least > 262656) GIVES(LPQ_ERROR_WORKSPACE, lpq_gemm(weights[0], tokens[i], x, y, workspace, least - 512, stream, 0));
      GIVES(LPQ_OK, lpq_gemm(weights[0], tokens[i], x, y, workspace, least, stream, LPQ_GEMM_SETTLED));
    }
  }
  TRUE(wait(stream) == 0);
  GIVES(LPQ_OK, lpq_gemm(weights[0], 4, x, y, workspace, bytes, NULL, 0)); /* the default stream */
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, NULL));
  /* A thread whose context is another, or none. */
  select(NULL);
  GIVES(LPQ_OK, lpq_gemm(weights[0], 4, x, y, workspace, bytes, stream, 0));
  select(current);
  TRUE(wait(stream) == 0);
  for (i = 0; i < 3; ++i) {
    static const int64_t tokens[] = {1, 16, 64};
    time_calls(weights, count, tokens[i], x, y, workspace, bytes, stream, 0, "4096x28672 u4");
    time_calls(weights, count, tokens[i], x, y, workspace, bytes, stream, LPQ_GEMM_SETTLED, "4096x28672 u4, settled");
  }
  for (i = 0; i < count; ++i) lpq_weight_destroy(weights[i]);
  other_layouts(context, info.arch, count > 1, x, y, stream);
  lpq_context_close(context);
}

int main(int count, char **arguments) {
  without_gpu();
  if (count > 1 && strcmp(arguments[1], "gpu") == 0) with_gpu(count > 2 ? 1 : 8);
  printf("%d checks, %d failed\n", checks, failed);
  return failed > 0;
}
