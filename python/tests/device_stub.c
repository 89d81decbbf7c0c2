/* lpq_kernels.h's device on the host's memory: plain loops over layout tilus, read as docs/internals/layouts/tilus.md has it, in double. Linked
   to the real library, which has the rest. Counts what a caller does; fails where the contract is broken. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <lpq_kernels.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct lpq_context {
  int opened;
};
struct lpq_weight {
  lpq_weight_desc d;
  char type[16];
};

static const size_t HEAD = 512 + 262144;
static __thread const char* failed = NULL;
static struct lpq_context only;

int stub_gemms, stub_grouped, stub_mixtures, stub_interleaved, stub_inits, stub_created, stub_destroyed, stub_opened;
int64_t stub_largest;
void* stub_workspace;

static lpq_status failure(lpq_status status, const char* sentence) {
  failed = sentence;
  return status;
}

const char* lpq_last_error(void) {
  const char* (*real)(void) = (const char* (*)(void))dlsym(RTLD_NEXT, "lpq_last_error");
  const char* told = failed ? failed : real();
  failed = NULL;
  return told;
}

lpq_status lpq_context_open(const lpq_context_options* options, lpq_context** context) {
  (void)options;
  ++stub_opened;
  *context = &only;
  return LPQ_OK;
}

lpq_status lpq_weight_create(lpq_context* context, const lpq_weight_desc* desc, lpq_weight** weight) {
  if (context != &only || desc->size != sizeof *desc) return failure(LPQ_ERROR_ARGUMENT, "another context or struct");
  if (desc->layout != LPQ_LAYOUT_TILUS) return failure(LPQ_ERROR_UNSUPPORTED, "the stub has layout tilus only");
  if (desc->experts < 0 || desc->experts > 4096) return failure(LPQ_ERROR_ARGUMENT, "there are too many experts");
  if (!desc->weights || !desc->scales || (uintptr_t)desc->weights % 16 || (uintptr_t)desc->scales % 16 || (uintptr_t)desc->zeros % 16)
    return failure(LPQ_ERROR_ARGUMENT, "an address is NULL or not a multiple of 16");
  *weight = calloc(1, sizeof **weight);
  (*weight)->d = *desc;
  snprintf((*weight)->type, sizeof (*weight)->type, "%s", desc->type);
  ++stub_created;
  return LPQ_OK;
}

void lpq_weight_destroy(lpq_weight* weight) {
  ++stub_destroyed;
  free(weight);
}

lpq_status lpq_gemm_workspace(const lpq_weight* weight, int64_t first, int64_t last, size_t* bytes) {
  (void)weight;
  if (first < 0 || first > last) return failure(LPQ_ERROR_ARGUMENT, "first is negative or beyond last");
  *bytes = HEAD + 64 * (size_t)last;
  return LPQ_OK;
}

lpq_status lpq_workspace_init(lpq_context* context, void* workspace, size_t bytes, void* stream) {
  (void)stream;
  if (context != &only || (uintptr_t)workspace % 512 || bytes < HEAD) return failure(LPQ_ERROR_ARGUMENT, "a workspace that is none");
  memset(workspace, 0, HEAD);
  ++stub_inits;
  return LPQ_OK;
}

static double half(uint16_t bits, int type) {
  if (type == LPQ_BF16) {
    const uint32_t whole = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &whole, 4);
    return value;
  }
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double size = exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
  return bits >> 15 ? -size : size;
}

/* To the nearest, ties to even. */
static uint16_t rounded(double value, int type) {
  const float single = (float)value;
  uint32_t bits;
  memcpy(&bits, &single, 4);
  if (type == LPQ_BF16) return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  _Float16 small = (_Float16)single;
  uint16_t told;
  memcpy(&told, &small, 2);
  return told;
}

/* Rows as they are stored: of a gated weight whole blocks of both parts. */
static int64_t rows_of(const lpq_weight_desc* d) { return d->gated ? (d->n + 31) / 32 * 64 : d->n; }

/* Where a bit of a code lies: its byte among the words of all experts, and its number there. */
static size_t bit_of(const lpq_weight_desc* d, int bits, int64_t e, int64_t n, int64_t k, int m, int* number) {
  const int64_t across = (d->k + 127) / 128, np = n % 32, kp = k % 128;
  const size_t block = (size_t)(((e * ((rows_of(d) + 31) / 32) + n / 32) * across + k / 128) * 512 * bits);
  const int lane = (int)(4 * (np % 8) + kp % 8 / 2), upper = (int)(kp % 2), chunk = (int)(kp / 32);
  const int pair = (int)(4 * (kp % 32 / 8) + np / 8), fields = 16 / bits, left = 16 - fields * bits;
  int word = pair / fields, at = pair % fields * bits + m;
  if (pair >= fields * bits) {
    const int y = pair - fields * bits;
    if (bits == 3 || bits == 5) word = m, at = 15;
    if (bits == 6) word = m < 4 ? y : 4 + y / 2, at = m < 4 ? 16 - left + m : 16 - left + 2 * (y % 2) + m - 4;
    if (bits == 7) word = m < 6 ? 3 * y + m / 2 : 6, at = m < 6 ? 16 - left + m % 2 : 16 - left + y;
  }
  const int whole = chunk * bits + word;
  *number = at % 8;
  return block + (size_t)(512 * (whole / 4) + 16 * lane + 4 * (whole % 4) + 2 * upper + at / 8);
}

static int code_of(const lpq_weight_desc* d, int bits, int64_t e, int64_t n, int64_t k) {
  int code = 0, number;
  for (int m = 0; m < bits; ++m) {
    const size_t byte = bit_of(d, bits, e, n, k, m, &number);
    code |= (((const uint8_t*)d->weights)[byte] >> number & 1) << m;
  }
  return code;
}

static int64_t groups_of(const lpq_weight_desc* d) { return d->group ? (d->k + d->group - 1) / d->group : 1; }

/* Where the scale and the zero point of a row's group stand. */
static int64_t side_of(const lpq_weight_desc* d, int64_t e, int64_t n, int64_t g) {
  return ((e * ((rows_of(d) + 31) / 32) + n / 32) * groups_of(d) + g) * 32 + 4 * (n % 32 % 8) + n % 32 / 8;
}

/* Of an expert, 0 of a plain weight. */
static double weight_at(const lpq_weight* w, int64_t e, int64_t n, int64_t k) {
  const lpq_weight_desc* d = &w->d;
  const int bits = w->type[1] - '0', code = code_of(d, bits, e, n, k);
  const int64_t at = side_of(d, e, n, d->group ? k / d->group : 0);
  const double scale = half(((const uint16_t*)d->scales)[at], d->scale_type);
  double zero = d->zero;
  if (d->zero_type == LPQ_U8) zero = ((const uint8_t*)d->zeros)[at];
  if (d->zero_type == LPQ_F16) zero = half(((const uint16_t*)d->zeros)[at], LPQ_F16);
  const int value = w->type[0] == 'i' && code >> (bits - 1) ? code - (1 << bits) : code;
  return (value - zero) * scale;
}

static lpq_status misplaced(const void* x, const void* y, const void* workspace, size_t bytes, int64_t m) {
  if ((uintptr_t)x % 16 || (uintptr_t)y % 16 || (uintptr_t)workspace % 512) return failure(LPQ_ERROR_ARGUMENT, "x, y or the workspace is misplaced");
  if (bytes < HEAD + 64 * (size_t)m) return failure(LPQ_ERROR_WORKSPACE, "the workspace is too small: ask lpq_gemm_workspace()");
  return LPQ_OK;
}

static double sum_of(const lpq_weight* w, int64_t e, int64_t n, const uint16_t* x) {
  const lpq_weight_desc* d = &w->d;
  double sum = d->bias ? half(((const uint16_t*)d->bias)[e * rows_of(d) + n], d->activations) : 0;
  for (int64_t k = 0; k < d->k; ++k) sum += half(x[k], d->activations) * weight_at(w, e, n, k);
  return sum;
}

static void multiply(const lpq_weight* w, int64_t e, int64_t from, int64_t to, const void* x, void* y) {
  const lpq_weight_desc* d = &w->d;
  for (int64_t row = from; row < to; ++row)
    for (int64_t n = 0; n < d->n; ++n) ((uint16_t*)y)[row * d->n + n] = rounded(sum_of(w, e, n, (const uint16_t*)x + row * d->k), d->activations);
}

static void* copy_of(const void* from, size_t bytes) { return memcpy(malloc(bytes), from, bytes); }

/* Row by row and code by code: rows 16 i to 16 i + 7 are rows 8 i to 8 i + 7 of the gate, the next eight those of up. */
lpq_status lpq_gates_interleave(lpq_context* context, const lpq_weight_desc* d, void* stream) {
  (void)stream;
  if (context != &only || d->size != sizeof *d || !d->gated || d->experts < 1) return failure(LPQ_ERROR_ARGUMENT, "no gated experts are described");
  const int bits = d->type[1] - '0', size = d->zero_type == LPQ_U8 ? 1 : 2;
  const int64_t rows = rows_of(d), groups = groups_of(d), across = (d->k + 127) / 128;
  const size_t words = (size_t)(d->experts * rows / 32 * across * 512 * bits), sides = (size_t)(d->experts * rows * groups);
  lpq_weight_desc before = *d;
  before.weights = copy_of(d->weights, words), before.scales = copy_of(d->scales, 2 * sides);
  before.zeros = d->zero_type ? copy_of(d->zeros, sides * (size_t)size) : NULL;
  before.bias = d->bias ? copy_of(d->bias, (size_t)(2 * d->experts * rows)) : NULL;
  memset((void*)d->weights, 0, words);
  for (int64_t e = 0; e < d->experts; ++e)
    for (int64_t n = 0; n < rows; ++n) {
      const int64_t own = n / 16 * 8 + n % 8, from = (own / 32 * 2 + n / 8 % 2) * 32 + own % 32;
      for (int64_t k = 0; k < 128 * across; ++k)
        for (int m = 0, number; m < bits; ++m) {
          const int code = code_of(&before, bits, e, from, k);
          const size_t byte = bit_of(d, bits, e, n, k, m, &number);
          ((uint8_t*)d->weights)[byte] |= (uint8_t)((code >> m & 1) << number);
        }
      for (int64_t g = 0; g < groups; ++g) {
        const int64_t to = side_of(d, e, n, g), at = side_of(d, e, from, g);
        ((uint16_t*)d->scales)[to] = ((const uint16_t*)before.scales)[at];
        if (before.zeros) memcpy((uint8_t*)d->zeros + to * size, (const uint8_t*)before.zeros + at * size, (size_t)size);
      }
      if (before.bias) ((uint16_t*)d->bias)[e * rows + n] = ((const uint16_t*)before.bias)[e * rows + from];
    }
  free((void*)before.weights), free((void*)before.scales), free((void*)before.zeros), free((void*)before.bias);
  ++stub_interleaved;
  return LPQ_OK;
}

lpq_status lpq_gemm(const lpq_weight* w, int64_t m, const void* x, void* y, void* workspace, size_t bytes, void* stream, unsigned flags) {
  (void)stream, (void)flags;
  if (w->d.experts) return failure(LPQ_ERROR_ARGUMENT, "the weight is of experts");
  const lpq_status status = misplaced(x, y, workspace, bytes, m);
  if (status != LPQ_OK) return status;
  multiply(w, 0, 0, m, x, y);
  ++stub_gemms;
  if (m > stub_largest) stub_largest = m;
  stub_workspace = workspace;
  return LPQ_OK;
}

/* Rows that no expert has are NaN, as new memory may be. */
lpq_status lpq_gemm_experts(const lpq_weight* w, int64_t m, const void* x, const int32_t* offsets, void* y, void* workspace, size_t bytes, void* stream,
                            unsigned flags) {
  (void)stream, (void)flags;
  if (!w->d.experts) return failure(LPQ_ERROR_ARGUMENT, "the weight is not of experts");
  if (w->d.gated) return failure(LPQ_ERROR_ARGUMENT, "the weight is gated");
  const lpq_status status = misplaced(x, y, workspace, bytes, m);
  if (status != LPQ_OK) return status;
  memset(y, 0xff, (size_t)(2 * m * w->d.n));
  for (int64_t e = 0; e < w->d.experts; ++e) {
    if (offsets[e] < 0 || offsets[e] > offsets[e + 1] || offsets[e + 1] > m) return failure(LPQ_ERROR_ARGUMENT, "offsets do not ascend inside x");
    multiply(w, e, offsets[e], offsets[e + 1], x, y);
  }
  ++stub_grouped;
  return LPQ_OK;
}

lpq_status lpq_mixture_sizes(const lpq_mixture_desc* d, int64_t tokens, size_t* scratch, size_t* workspace) {
  if (d->size != sizeof *d || !d->gate_up->d.gated || d->gate_up->d.experts != d->down->d.experts || d->gate_up->d.n != d->down->d.k)
    return failure(LPQ_ERROR_ARGUMENT, "the mixture's weights do not fit");
  if (scratch) *scratch = (size_t)(tokens * (d->down->d.k + d->down->d.n) * 2 + 2);
  if (workspace) *workspace = HEAD + 64 * (size_t)(tokens * d->places);
  return LPQ_OK;
}

/* Token by token and place by place, of gated weights alone, by way of the same roundings; SiLU and both forms of GELU. */
lpq_status lpq_mixture(const lpq_mixture_desc* d, int64_t tokens, const void* x, const int32_t* ids, const float* weights, void* y, void* scratch,
                       size_t scratch_bytes, void* workspace, size_t bytes, void* stream, unsigned flags) {
  size_t needed = 0;
  lpq_status status = lpq_mixture_sizes(d, tokens, &needed, NULL);
  (void)stream, (void)flags;
  if (status == LPQ_OK) status = misplaced(x, y, workspace, bytes, tokens * d->places);
  if (status != LPQ_OK) return status;
  if (scratch_bytes < needed || (uintptr_t)scratch % 512) return failure(LPQ_ERROR_ARGUMENT, "the scratch is none");
  const lpq_weight_desc *both = &d->gate_up->d, *down = &d->down->d;
  uint16_t *inner = scratch, *lowered = inner + down->k, *to = y;
  for (int64_t t = 0; t < tokens; ++t) {
    double* sums = calloc((size_t)down->n, sizeof *sums);
    for (int64_t j = 0; j < d->places; ++j) {
      const int32_t e = ids[t * d->places + j];
      if (e < 0 || e > both->experts) return free(sums), failure(LPQ_ERROR_ARGUMENT, "an id that is none");
      if (e == both->experts) continue;
      for (int64_t i = 0; i < down->k; ++i) {
        const uint16_t* row = (const uint16_t*)x + t * both->k;
        const int64_t at = i / 8 * 16 + i % 8;
        const double g = sum_of(d->gate_up, e, at, row), u = sum_of(d->gate_up, e, at + 8, row);
        const double act[] = {g / (1 + exp(-g)), g / 2 * (1 + erf(g / sqrt(2))), g / 2 * (1 + tanh(sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g)))};
        inner[i] = rounded(act[d->activation] * u, both->activations);
      }
      multiply(d->down, e, 0, 1, inner, lowered);
      for (int64_t i = 0; i < down->n; ++i) sums[i] += half(lowered[i], both->activations) * weights[t * d->places + j];
    }
    for (int64_t i = 0; i < down->n; ++i) to[t * down->n + i] = rounded(sums[i], both->activations);
    free(sums);
  }
  ++stub_mixtures;
  return LPQ_OK;
}

lpq_status lpq_module_upload(lpq_context* context, const lpq_artifact* artifact, const char* module, int activations, void* memory, size_t bytes,
                             void* stream, lpq_weight** weight) {
  lpq_module_info info;
  lpq_weight_desc d;
  uint8_t* to = memory;
  (void)stream;
  LPQ_INIT(info), LPQ_INIT(d);
  lpq_status status = lpq_artifact_module(artifact, module, &info);
  if (status != LPQ_OK) return status;
  d.layout = info.layout, d.type = info.type, d.n = info.n, d.k = info.k, d.group = info.group, d.activations = activations, d.zero = info.zero;
  for (int64_t i = 0; i < info.tensors; ++i) {
    lpq_tensor tensor;
    LPQ_INIT(tensor);
    if ((status = lpq_artifact_module_tensor(artifact, module, i, &tensor)) != LPQ_OK) return status;
    if (to + tensor.bytes > (uint8_t*)memory + bytes) return failure(LPQ_ERROR_ARGUMENT, "memory is too small");
    memcpy(to, tensor.data, tensor.bytes);
    const char* last = strrchr(tensor.name, '.') + 1;
    if (!strcmp(last, "packed")) d.weights = to;
    if (!strcmp(last, "scales")) d.scales = to, d.scale_type = tensor.dtype;
    if (!strcmp(last, "zeros")) d.zeros = to, d.zero_type = tensor.dtype;
    to += (tensor.bytes + 15) / 16 * 16;
  }
  return lpq_weight_create(context, &d, weight);
}
