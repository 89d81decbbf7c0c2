/*
 * lpq_kernels from C: what is in an artifact, which kernel a product runs, and a layer computed on the GPU.
 *
 *     cc -std=c99 -o layer layer.c $(pkg-config --cflags --libs lpq_kernels) -ldl
 *     ./layer                                  version, and the choice of kernel for one product on an H200
 *     ./layer DIRECTORY                        modules and tensors of an artifact of `lpq pack`
 *     ./layer DIRECTORY MODULE [TOKENS]        y = x W^T + bias on the GPU; some columns are compared with plain C
 *
 * An engine has a CUDA context already. This program makes one with the driver's functions, opened at run time, so that it
 * compiles where CUDA is not installed.
 */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lpq_kernels.h"

static void need(int ok, const char *what) {
  if (ok) return;
  fprintf(stderr, "%s: %s\n", what, lpq_last_error());
  exit(1);
}
#define CHECK(call) need((call) == LPQ_OK, #call)

/* ---- The driver ---- */

typedef unsigned long long device_memory;

static struct {
  int (*init)(unsigned);
  int (*device)(int *, int);
  int (*retain)(void **, int);
  int (*select)(void *);
  int (*alloc)(device_memory *, size_t);
  int (*release)(device_memory);
  int (*to_device)(device_memory, const void *, size_t, void *);
  int (*to_host)(void *, device_memory, size_t);
  int (*stream)(void **, unsigned);
  int (*wait)(void *);
} cuda;

static void *found(void *library, const char *name) {
  void *symbol = dlsym(library, name);
  if (symbol) return symbol;
  fprintf(stderr, "the driver has no %s\n", name);
  exit(2);
}

/* POSIX lets a void * hold a function's address; C99 has no cast for it. */
#define FIND(member, name) (*(void **)&cuda.member = found(library, name))

static void start_cuda(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW), *context;
  int device;
  if (!library) {
    fprintf(stderr, "no GPU: %s\n", dlerror());
    exit(2);
  }
  FIND(init, "cuInit");
  FIND(device, "cuDeviceGet");
  FIND(retain, "cuDevicePrimaryCtxRetain");
  FIND(select, "cuCtxSetCurrent");
  FIND(alloc, "cuMemAlloc_v2");
  FIND(release, "cuMemFree_v2");
  FIND(to_device, "cuMemcpyHtoDAsync_v2");
  FIND(to_host, "cuMemcpyDtoH_v2");
  FIND(stream, "cuStreamCreate");
  FIND(wait, "cuStreamSynchronize");
  if (cuda.init(0) || cuda.device(&device, 0) || cuda.retain(&context, device) || cuda.select(context)) {
    fprintf(stderr, "no GPU: the driver does not start\n");
    exit(2);
  }
}

static void *on_device(size_t bytes) {
  device_memory memory;
  if (cuda.alloc(&memory, bytes ? bytes : 1)) {
    fprintf(stderr, "the device has no %zu bytes left\n", bytes);
    exit(1);
  }
  return (void *)(uintptr_t)memory;
}

/* ---- Numbers ---- */

static float from_f16(uint16_t h) {
  const int exponent = h >> 10 & 31, mantissa = h & 1023;
  const float size = exponent ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
  return h >> 15 ? -size : size;
}

static float from_bf16(uint16_t h) {
  const uint32_t bits = (uint32_t)h << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

/* Multiples of 1/64 below 1, which f16 holds exactly. */
static uint16_t small_f16(int i) {
  const int value = i * 37 % 127 - 63, size = abs(value);
  int exponent = 9, mantissa = size << 4;
  if (!size) return 0;
  while (mantissa < 1024) mantissa <<= 1, --exponent;
  return (uint16_t)((value < 0 ? 0x8000 : 0) | ((exponent + 6) << 10) | (mantissa & 1023));
}

/* ---- Weights of layout tilus, code by code (docs/internals/layouts/tilus.md): types of 1, 2, 4 and 8 bits ---- */

struct tilus {
  const uint8_t *codes, *scales, *zeros;
  int scale_type, zero_type, bits, is_signed, group;
  int64_t k, blocks_k, groups;
  double zero;
};

static uint16_t half_at(const uint8_t *bytes, int64_t i) {
  uint16_t half;
  memcpy(&half, bytes + 2 * i, 2);
  return half;
}

static double weight_at(const struct tilus *w, int64_t n, int64_t k) {
  const int np = (int)(n % 32), kp = (int)(k % 128), fields = 16 / w->bits;
  const int lane = 4 * (np % 8) + kp % 8 / 2, pair = 4 * (kp % 32 / 8) + np / 8;
  const int word = kp / 32 * w->bits + pair / fields, bit = 16 * (kp % 2) + pair % fields * w->bits;
  const int64_t block = n / 32 * w->blocks_k + k / 128, byte = block * 512 * w->bits + 512 * (word / 4) + 16 * lane + 4 * (word % 4) + bit / 8;
  const int64_t g = w->group ? k / w->group : 0, side = (n / 32 * w->groups + g) * 32 + 4 * (np % 8) + np / 8;
  int code = w->codes[byte] >> bit % 8 & ((1 << w->bits) - 1);
  const double scale = w->scale_type == LPQ_F16 ? from_f16(half_at(w->scales, side)) : from_bf16(half_at(w->scales, side));
  const double zero = !w->zeros ? w->zero : w->zero_type == LPQ_U8 ? w->zeros[side] : from_f16(half_at(w->zeros, side));
  if (w->is_signed && code >> (w->bits - 1)) code -= 1 << w->bits;
  return (code - zero) * scale;
}

static lpq_tensor tensor_of(const lpq_artifact *artifact, const char *module, const char *suffix) {
  char name[512];
  lpq_tensor tensor;
  LPQ_INIT(tensor);
  snprintf(name, sizeof name, "%s.%s", module, suffix);
  lpq_artifact_tensor(artifact, name, &tensor);
  return tensor;
}

/* ---- What the program does ---- */

static void show_choice(void) {
  lpq_weight_desc desc;
  char text[4096];
  LPQ_INIT(desc);
  desc.layout = LPQ_LAYOUT_TILUS;
  desc.type = "u4";
  desc.k = 4096, desc.n = 28672;
  desc.group = 128;
  desc.activations = desc.scale_type = LPQ_F16;
  desc.zero = 8;
  printf("lpq %s, ABI %d\nu4 4096 x 28672, 16 tokens:\n", lpq_version(), lpq_abi_version());
  CHECK(lpq_explain("h200", &desc, 16, text, sizeof text, NULL));
  fputs(text, stdout);
}

static void list(const lpq_artifact *artifact) {
  int64_t i, t;
  for (i = 0; i < lpq_artifact_modules(artifact); ++i) {
    lpq_module_info info;
    LPQ_INIT(info);
    CHECK(lpq_artifact_module_at(artifact, i, &info));
    printf("%s: %s in layout %s%s, %lld x %lld, group %d%s\n", info.name, info.type, info.layout_name, info.layout == LPQ_LAYOUT_OTHER ? " (no kernel here)" : "",
           (long long)info.n, (long long)info.k, info.group, info.bias ? ", bias" : "");
    for (t = 0; t < info.tensors; ++t) {
      lpq_tensor tensor;
      int axis;
      LPQ_INIT(tensor);
      CHECK(lpq_artifact_module_tensor(artifact, info.name, t, &tensor));
      printf("  %s: dtype %d, [", tensor.name, tensor.dtype);
      for (axis = 0; axis < tensor.rank; ++axis) printf("%s%lld", axis ? "," : "", (long long)tensor.shape[axis]);
      printf("], %zu bytes\n", tensor.bytes);
    }
  }
  printf("%lld modules, %lld tensors\n", (long long)lpq_artifact_modules(artifact), (long long)lpq_artifact_tensors(artifact));
}

/* ---- Layout sparse_marlin, weight by weight (docs/internals/layouts/sparse-marlin.md) ---- */

static double sparse_at(const lpq_tensor *codes, const lpq_tensor *meta, const lpq_tensor *scales, const lpq_module_info *info, int64_t n, int64_t k) {
  static const int order[8] = {0, 2, 4, 6, 1, 3, 5, 7};
  const int bits = info->type[1] - '0';
  const int64_t np = info->n_padded, c = k / 16, in64 = n % 64 / 8, below = n % 8 / 4, j = n % 4, groups = scales->shape[0];
  const int64_t word = c / 2 * 2 * np + n / 64 * 128 + 64 * (n >> 1 & 1) + 8 * in64 + 4 * (n & 1) + 2 * (c % 2) + (n >> 2 & 1);
  const int places = half_at(meta->data, word) >> (int)(4 * (k / 4 % 4)) & 15;
  int i;
  for (i = 0; i < 2; ++i) {
    const int64_t kc = k / 4 * 2 + i, kt = kc / 16, kr = kc % 16, lane = 4 * in64 + kr % 8 / 2;
    const int64_t at = bits == 4 ? kt * 2 * np + n / 64 * 128 + lane * 4 + j : kt * 4 * np + n / 64 * 256 + lane * 8 + 2 * j + below;
    const int shift = (int)(bits == 4 ? 4 * (4 * (kr & 1) + 2 * below + kr / 8) : 8 * (2 * (kr & 1) + kr / 8));
    uint32_t stored;
    if ((places >> 2 * i & 3) != k % 4) continue;
    memcpy(&stored, (const uint8_t *)codes->data + 4 * at, 4);
    return ((int)(stored >> shift & ((1u << bits) - 1)) - (1 << (bits - 1))) * (double)from_f16(half_at(scales->data, groups == 1 ? n : k / 128 * np + n / 8 * 8 + order[n % 8]));
  }
  return 0;
}

static int compare_sparse(const lpq_artifact *artifact, const lpq_module_info *info, int64_t m, const uint16_t *x, const uint16_t *y) {
  const lpq_tensor codes = tensor_of(artifact, info->name, "B"), meta = tensor_of(artifact, info->name, "meta"), scales = tensor_of(artifact, info->name, "s");
  double worst = 0;
  int64_t row, c, n, k;
  for (c = 0; c < 16; ++c) {
    n = c * (info->n - 1) / 15;
    for (row = 0; row < m; ++row) {
      double sum = 0, size = 0, off;
      for (k = 0; k < info->k; ++k) {
        const double product = sparse_at(&codes, &meta, &scales, info, n, k) * from_f16(x[row * info->k + k]);
        sum += product;
        size += fabs(product);
      }
      /* Weights and the result are rounded to f16 once (2^-11), sums of K products to fp32. */
      off = fabs(from_f16(y[row * info->n + n]) - sum) / (fabs(sum) * 0x1p-11 + size * (0x1p-11 + (double)info->k * 0x1p-24) + 0x1p-20);
      if (off > worst) worst = off;
    }
  }
  printf("16 columns against plain C: the largest difference is %.3f of the bound\n", worst);
  return worst > 1;
}

/* ---- Layout comet: what W4Ax computes (docs/fmpq.md, docs/internals/layouts/comet.md) ---- */

static int comet_code(const lpq_tensor *codes, int64_t n, int64_t k) {
  const int64_t chunk = k % 128 / 32, byte = chunk / 2 * 512 + (4 * (n % 8) + k % 16 / 4) * 16 + (chunk % 2 * 2 + n % 16 / 8) * 4 + k % 4;
  const int nibble = ((const uint8_t *)codes->data)[(n / 16 * codes->shape[1] + k / 128) * 1024 + byte] >> (k % 32 < 16 ? 0 : 4) & 15;
  return nibble < 8 ? nibble : nibble - 16;
}

/* A block of 128 columns of a token as codes; its scale is given back. The default rounding is to the nearest, ties to even. */
static float comet_block(const uint16_t *x, const int32_t *order, int64_t first, int bits, float clip, int *codes) {
  const float top = bits == 4 ? 7 : 127, share = clip / top;
  float most = 0, scale, inverse;
  int i;
  for (i = 0; i < 128; ++i) most = fmaxf(most, fabsf(from_f16(x[order ? order[first + i] : first + i])));
  scale = most * share;
  if (scale < 0x1p-126f) scale = 0;
  inverse = scale > 0 ? 1 / scale : 0;
  for (i = 0; i < 128; ++i) {
    const float value = from_f16(x[order ? order[first + i] : first + i]) * inverse;
    codes[i] = (int)nearbyintf(value < -top ? -top : value > top ? top : value);
  }
  return scale;
}

static int compare_comet(const lpq_artifact *artifact, const lpq_module_info *info, int64_t m, const uint16_t *x, const uint16_t *y) {
  const lpq_tensor codes = tensor_of(artifact, info->name, "packed"), scales = tensor_of(artifact, info->name, "scales"), bits = tensor_of(artifact, info->name, "bits");
  const lpq_tensor clip = tensor_of(artifact, info->name, "clip"), permutation = tensor_of(artifact, info->name, "permutation"), bias = tensor_of(artifact, info->name, "bias");
  const int64_t blocks = info->k / 128, padded = scales.shape[1];
  /* Tensors of a file lie at any alignment. */
  float *const clips = malloc((size_t)blocks * 4), *const weights = malloc((size_t)(blocks * padded) * 4);
  int32_t *const order = permutation.data ? malloc((size_t)info->k * 4) : NULL;
  double worst = 0;
  int64_t row, c, b;
  int i;
  memcpy(clips, clip.data, (size_t)blocks * 4);
  memcpy(weights, scales.data, (size_t)(blocks * padded) * 4);
  if (order) memcpy(order, permutation.data, (size_t)info->k * 4);
  for (row = 0; row < m; ++row)
    for (c = 0; c < 16; ++c) {
      const int64_t n = c * (info->n - 1) / 15;
      double sum = 0, size = 0, off;
      for (b = 0; b < blocks; ++b) {
        int tokens[128], part = 0;
        const float scale = comet_block(x + row * info->k, order, 128 * b, ((const uint8_t *)bits.data)[b], clips[b], tokens);
        double term;
        for (i = 0; i < 128; ++i) part += tokens[i] * comet_code(&codes, n, 128 * b + i);
        term = (double)part * scale * weights[b * padded + n];
        sum += term;
        size += fabs(term);
      }
      if (bias.data)
        sum += bias.dtype == LPQ_F32 ? ((const float *)bias.data)[n] : bias.dtype == LPQ_F16 ? from_f16(half_at(bias.data, n)) : from_bf16(half_at(bias.data, n));
      /* Sums of a block are exact. One rounding of each factor, one a block of their sum in fp32, and that of the result to f16. */
      off = fabs(from_f16(y[row * info->n + n]) - sum) / (fabs(sum) * 0x1p-11 + size * (double)(blocks + 4) * 0x1p-24 + 0x1p-24);
      if (off > worst) worst = off;
    }
  free(clips), free(weights), free(order);
  printf("16 columns against plain C: the largest difference is %.3f of the bound\n", worst);
  return worst > 1;
}

static int compare(const lpq_artifact *artifact, const lpq_module_info *info, int64_t m, const uint16_t *x, const uint16_t *y, double zero) {
  const lpq_tensor codes = tensor_of(artifact, info->name, "packed"), scales = tensor_of(artifact, info->name, "scales");
  const lpq_tensor zeros = tensor_of(artifact, info->name, "zeros"), bias = tensor_of(artifact, info->name, "bias");
  const int bits = info->type[1] - '0';
  struct tilus w;
  double worst = 0;
  int64_t row, c, n, k;
  if (info->layout == LPQ_LAYOUT_SPARSE_MARLIN && !bias.data) return compare_sparse(artifact, info, m, x, y);
  if (info->layout == LPQ_LAYOUT_COMET) return compare_comet(artifact, info, m, x, y);
  if (info->layout != LPQ_LAYOUT_TILUS || info->type[0] == 'f' || 16 % bits) {
    printf("columns were not compared: this program decodes integers of 1, 2, 4 and 8 bits in layout tilus, sparse_marlin without biases, and comet\n");
    return 0;
  }
  w.codes = codes.data, w.scales = scales.data, w.zeros = zeros.data;
  w.scale_type = scales.dtype, w.zero_type = zeros.dtype;
  w.bits = bits, w.is_signed = info->type[0] == 'i', w.group = info->group;
  w.k = info->k, w.blocks_k = info->k_padded / 128, w.groups = scales.shape[1];
  w.zero = zero;
  for (c = 0; c < 16; ++c) {
    n = c * (info->n - 1) / 15;
    for (row = 0; row < m; ++row) {
      double sum = 0, size = 0, of_x = 0, rounded = 0, off;
      for (k = 0; k < w.k; ++k) {
        const double value = from_f16(x[row * w.k + k]), product = weight_at(&w, n, k) * value;
        sum += product;
        size += fabs(product);
        of_x += fabs(value);
      }
      /* Kernels of 9.0 round weights to f16 above 16 tokens, with their zero points in three steps at most (2^-11 each; 2^-24 and as much for each
         code where f16 is subnormal). */
      if (m > 16) rounded = size * 3 * 0x1p-11 + of_x * 0x1p-24 * (double)(1 << bits);
      if (bias.data)
        sum += bias.dtype == LPQ_F32 ? ((const float *)bias.data)[n] : bias.dtype == LPQ_F16 ? from_f16(half_at(bias.data, n)) : from_bf16(half_at(bias.data, n));
      /* The result is rounded to f16 once (2^-11); K sums in fp32 add at most K 2^-24 of the sizes, of which codes and zero points
         that are multiplied apart (and cancel) make at most 2^(bits + 2). A bias was rounded to f16 too. */
      off = fabs(from_f16(y[row * info->n + n]) - sum) / (fabs(sum) * 0x1p-10 + size * (double)w.k * 0x1p-24 * (double)(4 << bits) + rounded + 0x1p-20);
      if (off > worst) worst = off;
    }
  }
  printf("16 columns against plain C: the largest difference is %.3f of the bound\n", worst);
  return worst > 1;
}

static int compute(const lpq_artifact *artifact, const char *module, int64_t m, double zero) {
  lpq_context *context;
  lpq_weight *weight;
  lpq_module_info info;
  lpq_device_info device;
  size_t weight_bytes, workspace_bytes;
  void *memory, *workspace, *stream, *x, *y;
  uint16_t *host_x, *host_y;
  char text[4096];
  int64_t i;
  int wrong;
  LPQ_INIT(info);
  LPQ_INIT(device);
  CHECK(lpq_artifact_module(artifact, module, &info));
  start_cuda();
  CHECK(lpq_context_open(NULL, &context));
  CHECK(lpq_context_device(context, &device));
  if (cuda.stream(&stream, 1)) return 1;

  /* Once, when the model is loaded. */
  CHECK(lpq_module_bytes(artifact, module, &weight_bytes));
  memory = on_device(weight_bytes);
  CHECK(lpq_module_upload(context, artifact, module, LPQ_F16, memory, weight_bytes, stream, &weight));
  CHECK(lpq_gemm_workspace(weight, m, m, &workspace_bytes));
  workspace = on_device(workspace_bytes);
  CHECK(lpq_workspace_init(context, workspace, workspace_bytes, stream));

  /* For every batch. */
  host_x = malloc((size_t)(m * info.k) * 2);
  host_y = malloc((size_t)(m * info.n) * 2);
  for (i = 0; i < m * info.k; ++i) host_x[i] = small_f16((int)(i % 100003));
  x = on_device((size_t)(m * info.k) * 2);
  y = on_device((size_t)(m * info.n) * 2);
  /* In the stream: a copy outside it may still be under way when the call has returned, and this stream waits for no other. */
  if (cuda.to_device((device_memory)(uintptr_t)x, host_x, (size_t)(m * info.k) * 2, stream)) {
    fprintf(stderr, "the device failed\n");
    return 1;
  }
  CHECK(lpq_gemm(weight, m, x, y, workspace, workspace_bytes, stream, 0));
  if (cuda.wait(stream) || cuda.to_host(host_y, (device_memory)(uintptr_t)y, (size_t)(m * info.n) * 2)) {
    fprintf(stderr, "the device failed\n");
    return 1;
  }
  CHECK(lpq_workspace_check(context, workspace, stream));
  printf("%s, %lld tokens, %zu bytes of workspace\n", device.name, (long long)m, workspace_bytes);
  CHECK(lpq_gemm_explain(weight, m, text, sizeof text, NULL));
  fputs(text, stdout);
  wrong = compare(artifact, &info, m, host_x, host_y, zero);

  cuda.release((device_memory)(uintptr_t)x);
  cuda.release((device_memory)(uintptr_t)y);
  cuda.release((device_memory)(uintptr_t)workspace);
  lpq_weight_destroy(weight);
  cuda.release((device_memory)(uintptr_t)memory);
  lpq_context_close(context);
  free(host_x);
  free(host_y);
  return wrong;
}

int main(int count, char **arguments) {
  lpq_artifact *artifact;
  int result = 0;
  if (lpq_abi_version() != LPQ_ABI_VERSION) {
    fprintf(stderr, "the library has ABI %d, this program was compiled for %d\n", lpq_abi_version(), LPQ_ABI_VERSION);
    return 1;
  }
  if (count < 2) {
    show_choice();
    return 0;
  }
  CHECK(lpq_artifact_open(arguments[1], &artifact));
  if (count == 2) {
    list(artifact);
  } else {
    lpq_module_info info;
    LPQ_INIT(info);
    CHECK(lpq_artifact_module(artifact, arguments[2], &info));
    /* info.zero: the constant of symmetric unsigned types. */
    result = compute(artifact, arguments[2], count > 3 ? atoll(arguments[3]) : 16, info.zero);
  }
  lpq_artifact_close(artifact);
  return result;
}
