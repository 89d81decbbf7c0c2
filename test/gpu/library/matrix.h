/* Modules of an artifact as plain numbers, by the closed forms of docs/internals/layouts/tilus.md. */
#include "support.h"

typedef struct matrix {
  int64_t n, k;
  double *weight, *size; /* (code - zero) * scale; (|code| + |zero|) * |scale| */
  double* bias;
} matrix;

static lpq_tensor tensor_of(const lpq_artifact* artifact, const char* module, const char* last) {
  char name[256];
  lpq_tensor tensor;
  LPQ_INIT(tensor);
  snprintf(name, sizeof name, "%s.%s", module, last);
  if (lpq_artifact_tensor(artifact, name, &tensor) != LPQ_OK) tensor.data = NULL;
  return tensor;
}

static double number(const lpq_tensor* tensor, int64_t i) {
  uint16_t half;
  float single;
  if (tensor->dtype == LPQ_U8) return ((const uint8_t*)tensor->data)[i];
  if (tensor->dtype == LPQ_F32) return memcpy(&single, (const char*)tensor->data + 4 * i, 4), single;
  memcpy(&half, (const char*)tensor->data + 2 * i, 2);
  if (tensor->dtype == LPQ_F16) return half_value(half);
  const uint32_t whole = (uint32_t)half << 16;
  return memcpy(&single, &whole, 4), single;
}

static matrix matrix_of(const lpq_artifact* artifact, const char* module) {
  matrix made = {0, 0, NULL, NULL, NULL};
  lpq_module_info info;
  lpq_tensor packed, scales, zeros, bias;
  int64_t n, k, groups;
  LPQ_INIT(info);
  GIVES(LPQ_OK, lpq_artifact_module(artifact, module, &info));
  packed = tensor_of(artifact, module, "packed"), scales = tensor_of(artifact, module, "scales");
  zeros = tensor_of(artifact, module, "zeros"), bias = tensor_of(artifact, module, "bias");
  made.n = info.n, made.k = info.k;
  made.weight = calloc((size_t)(info.n * info.k), sizeof(double)),
  made.size = calloc((size_t)(info.n * info.k), sizeof(double));
  made.bias = calloc((size_t)info.n, sizeof(double));
  groups = info.group ? (info.k + info.group - 1) / info.group : 1;
  for (n = 0; n < info.n; ++n) {
    if (bias.data) made.bias[n] = number(&bias, n);
    for (k = 0; k < info.k; ++k) {
      const int64_t block = n / 32 * ((info.k + 127) / 128) + k / 128,
                    side = (n / 32 * groups + (info.group ? k / info.group : 0)) * 32 + 4 * (n % 8) + n % 32 / 8;
      const int lane = (int)(4 * (n % 8) + k % 8 / 2), pair = (int)(4 * (k % 32 / 8) + n % 32 / 8),
                word = 4 * (int)(k % 128 / 32) + pair / 4;
      const double zero = zeros.data ? number(&zeros, side) : info.zero, scale = number(&scales, side);
      uint32_t bits;
      int code;
      memcpy(&bits, (const char*)packed.data + block * 2048 + 512 * (word / 4) + 16 * lane + 4 * (word % 4), 4);
      code = (int)(bits >> (16 * (int)(k % 2) + 4 * (pair % 4)) & 15);
      if (info.type[0] == 'i' && code > 7) code -= 16;
      made.weight[n * info.k + k] = (code - zero) * scale;
      made.size[n * info.k + k] = (abs(code) + fabs(zero)) * fabs(scale);
    }
  }
  return made;
}
