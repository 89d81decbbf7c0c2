/* Products of rows sorted by expert, of lpq_kernels.h: `experts` needs neither a GPU nor files; `experts cpu DIR E P` multiplies by the modules
   e0.p0, e0.p1, ... of an artifact (i4 or u4, layout tilus) on the CPU and compares with plain C in double; `experts gpu DIR E P` does so on a
   device. Prints 'N checks, F failed'. */
#include "matrix.h"

static void *room(size_t bytes) {
  void *made = NULL;
  if (posix_memalign(&made, 4096, bytes ? bytes : 1)) exit(1);
  return made;
}

static lpq_weight_desc four(int64_t experts, int64_t k, int64_t n) {
  lpq_weight_desc d;
  LPQ_INIT(d);
  d.layout = LPQ_LAYOUT_TILUS, d.type = "u4";
  d.k = k, d.n = n, d.group = 128, d.zero = 8;
  d.activations = d.scale_type = LPQ_F16;
  d.experts = (int)experts;
  return d;
}

/* What is said of products that are described, and products of plain codes on the CPU. */
static void without_files(void) {
  enum { E = 3, N = 40, K = 96, M = 9 };
  static const char *types[E] = {"u4", "i3", "u8"};
  static const int32_t offsets[E + 1] = {1, 4, 4, 8};
  char text[4096];
  lpq_weight_desc d = four(64, 2048, 1536);
  lpq_experts_desc of;
  uint8_t codes[N * K], *blocks;
  float scales[N], x[M * K], y[M * N];
  size_t bytes[E], total = 0, at = 0;
  int e, m, n, k, wrong = 0;
  static double weights[E][N * K];
  GIVES(LPQ_OK, lpq_explain("h200", &d, 128, text, sizeof text, NULL));
  TRUE(strncmp(text, "lpq_experts_int4_f16_", 21) == 0);
  GIVES(LPQ_OK, lpq_explain("a100", &d, 1, text, sizeof text, NULL));
  TRUE(strncmp(text, "lpq_experts_int4_f16_t2", 23) == 0);
  d.experts = 4097;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 128, text, sizeof text, NULL));
  NAMES("4097 experts");
  d = four(8, 2048, 1536), d.layout = LPQ_LAYOUT_MARLIN;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 128, text, sizeof text, NULL));
  NAMES("only tilus and turbomind have a form for experts");
  d = four(64, 2048, 768), d.gated = 1, d.n_padded = 768;
  GIVES(LPQ_OK, lpq_explain("h200", &d, 128, text, sizeof text, NULL));
  TRUE(strncmp(text, "lpq_experts_int4_f16_", 21) == 0);
  d.experts = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 128, text, sizeof text, NULL));
  NAMES("gated is of experts in layout tilus alone");
  d = four(8, 2048, 1536), d.n_padded = 2048;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_explain("h200", &d, 128, text, sizeof text, NULL));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_experts(NULL, 1, text, offsets, text, text, 1, NULL, 0));
  NAMES("weight is NULL");
  LPQ_INIT(of);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_bytes(NULL, &of, &total));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_bytes(NULL, NULL, &total));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_experts_bytes(NULL, &of, &total));

  for (e = 0; e < E; ++e) {
    lpq_cpu_codes given;
    LPQ_INIT(given);
    given.type = types[e], given.n = N, given.k = K, given.codes = codes, given.scales = scales;
    GIVES(LPQ_OK, lpq_cpu_codes_bytes(&given, &bytes[e]));
    total += bytes[e];
  }
  blocks = room(total);
  for (e = 0; e < E; ++e) {
    const int bits = types[e][1] - '0';
    lpq_cpu_codes given;
    LPQ_INIT(given);
    given.type = types[e], given.n = N, given.k = K, given.codes = codes, given.scales = scales;
    for (n = 0; n < N; ++n) scales[n] = (float)(next_word() % 64 + 1) / 256;
    for (n = 0; n < N * K; ++n) {
      codes[n] = (uint8_t)(next_word() % (1u << bits));
      weights[e][n] = (types[e][0] == 'i' && codes[n] >> (bits - 1) ? codes[n] - (1 << bits) : codes[n]) * (double)scales[n / K];
    }
    GIVES(LPQ_OK, lpq_cpu_codes_pack(&given, blocks + at, bytes[e], 1));
    at += bytes[e];
  }
  for (m = 0; m < M * K; ++m) x[m] = (float)((int)(next_word() % 2047) - 1023) / 256;
  for (m = 0; m < M * N; ++m) y[m] = -7777;
  GIVES(LPQ_OK, lpq_cpu_gemm_experts(blocks, total, E, M, LPQ_F32, x, offsets, y, 2));
  for (e = -1; e <= E; ++e)
    for (m = e < 0 ? 0 : offsets[e]; m < (e == E ? M : offsets[e + 1]); ++m)
      for (n = 0; n < N; ++n) {
        double sum = 0, size = 0;
        if (e < 0 || e == E) {
          wrong += y[m * N + n] != -7777; /* rows that no expert has */
          continue;
        }
        for (k = 0; k < K; ++k) sum += x[m * K + k] * weights[e][n * K + k], size += fabs(x[m * K + k] * weights[e][n * K + k]);
        /* A chain of fma over K, a scale and a rounding, each 2^-24 of what was added up until then. */
        wrong += !(fabs(y[m * N + n] - sum) <= (K + 3) * ldexp(1, -24) * size);
      }
  TRUE(wrong == 0);
  GIVES(LPQ_OK, lpq_cpu_gemm_experts(blocks, total, 2, 4, LPQ_F32, x, offsets, y, 1));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_gemm_experts(blocks, total, E, 7, LPQ_F32, x, offsets, y, 1));
  NAMES("offsets[3] is 8: they are to ascend from 0 or more to at most 7");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_gemm_experts(blocks, total, E + 1, M, LPQ_F32, x, offsets, y, 1));
  NAMES("the block of expert 3 is missing");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_gemm_experts(blocks, total - 64, E, M, LPQ_F32, x, offsets, y, 1));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_gemm_experts(blocks, total, 0, M, LPQ_F32, x, offsets, y, 1));
  NAMES("0 experts");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_gemm_experts(blocks, total, E, M, LPQ_F32, x, NULL, y, 1));
  NAMES("offsets is NULL");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_gemm_experts(blocks, total, E, M, LPQ_U8, x, offsets, y, 1));
  free(blocks);
}

enum { ROWS = 75, MOST = 64 };

typedef struct experts {
  lpq_artifact *artifact;
  int count, parts;
  lpq_experts_desc desc;
  const char *names[MOST];
  matrix all[MOST];
  int64_t k, each, n; /* rows of W of a part, and of all */
  int32_t offsets[MOST + 1];
  uint16_t x[ROWS * 4096];
} experts;

static experts *opened(const char *directory, int count, int parts) {
  experts *made = calloc(1, sizeof *made);
  int i;
  GIVES(LPQ_OK, lpq_artifact_open(directory, &made->artifact));
  if (!made->artifact) exit(1);
  made->count = count, made->parts = parts;
  LPQ_INIT(made->desc);
  made->desc.experts = count, made->desc.parts = parts == 1 ? 0 : parts, made->desc.modules = made->names;
  for (i = 0; i < count * parts; ++i) {
    char *name = malloc(32);
    snprintf(name, 32, "e%d.p%d", i / parts, i % parts);
    made->names[i] = name;
    made->all[i] = matrix_of(made->artifact, name);
  }
  made->k = made->all[0].k, made->each = (made->all[0].n + 31) / 32 * 32, made->n = (parts - 1) * made->each + made->all[0].n;
  /* Two rows before the first expert, some behind the last; experts of none, of few and of many. */
  made->offsets[0] = 2;
  for (i = 0; i < count; ++i) made->offsets[i + 1] = made->offsets[i] + (i % 4 == 1 ? 0 : i % 4 == 2 ? 40 : 1 + i);
  if (made->offsets[count] > ROWS) exit(1);
  for (i = 0; i < ROWS * made->k; ++i) made->x[i] = half_bits(((int)(next_word() % 2047) - 1023) / 256.0);
  return made;
}

/* The largest share of the bound by which y [ROWS, n] differs from double precision. `steps`: roundings of sums, each of 2^-23 of what was added up
   (tensor cores cut sums off). Infinite where a row that no expert has was touched. */
static double largest_share(const experts *of, const uint16_t *y, uint16_t poison, int steps) {
  double worst = 0;
  int64_t n, k;
  int e, m;
  for (m = 0; m < of->offsets[0]; ++m)
    for (n = 0; n < of->n; ++n) worst = y[m * of->n + n] == poison ? worst : INFINITY;
  for (m = of->offsets[of->count]; m < ROWS; ++m)
    for (n = 0; n < of->n; ++n) worst = y[m * of->n + n] == poison ? worst : INFINITY;
  for (e = 0; e < of->count; ++e)
    for (m = of->offsets[e]; m < of->offsets[e + 1]; ++m)
      for (n = 0; n < of->n; ++n) {
        const matrix *part = &of->all[e * of->parts + n / of->each];
        const int64_t row = n % of->each;
        double sum = 0, size = 0, bound, share;
        if (row >= part->n) continue; /* between the parts */
        for (k = 0; k < of->k; ++k) {
          const double x = half_value(of->x[m * of->k + k]);
          sum += x * part->weight[row * of->k + k], size += fabs(x) * part->size[row * of->k + k];
        }
        sum += part->bias[row], size += fabs(part->bias[row]);
        bound = (steps + 8) * ldexp(1, -23) * size;
        /* y is rounded to f16 once; a bias that f16 does not hold, too. */
        bound += ldexp(1, -11) * (fabs(sum) + bound + fabs(part->bias[row])) + ldexp(1, -25);
        share = fabs(half_value(y[m * of->n + n]) - sum) / bound;
        worst = share > worst || isnan(share) ? (isnan(share) ? INFINITY : share) : worst;
      }
  return worst;
}

static void on_the_processor(const experts *of) {
  size_t bytes = 0, i;
  double worst;
  uint16_t *y = room(sizeof *y * (size_t)(ROWS * of->n));
  lpq_experts_desc wrong = of->desc;
  const char *none[] = {"nobody"};
  void *block;
  GIVES(LPQ_OK, lpq_cpu_experts_bytes(of->artifact, &of->desc, &bytes));
  block = room(bytes);
  GIVES(LPQ_OK, lpq_cpu_experts_pack(of->artifact, &of->desc, block, bytes, 2));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_experts_pack(of->artifact, &of->desc, block, bytes - 64, 2));
  for (i = 0; i < (size_t)(ROWS * of->n); ++i) y[i] = 0x7e01;
  GIVES(LPQ_OK, lpq_cpu_experts_pack(of->artifact, &of->desc, block, bytes, 2));
  GIVES(LPQ_OK, lpq_cpu_gemm_experts(block, bytes, of->count, ROWS, LPQ_F16, of->x, of->offsets, y, 2));
  worst = largest_share(of, y, 0x7e01, (int)of->k);
  TRUE(worst <= 1);
  printf("TIME on the processor: the largest difference is %.3f of the bound\n", worst);
  wrong.modules = none, wrong.experts = wrong.parts = 1;
  GIVES(LPQ_ERROR_NOT_FOUND, lpq_cpu_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("nobody");
  wrong = of->desc, wrong.size = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("LPQ_INIT");
  free(y), free(block);
}

/* Modules besides: `taller` has other outputs, `other` another type. */
static void which_differ(const experts *of) {
  const char *pair[2] = {of->names[0], "taller"};
  lpq_experts_desc wrong = of->desc;
  size_t bytes = 0;
  wrong.experts = 2, wrong.parts = 1, wrong.modules = pair;
  GIVES(LPQ_ERROR_UNSUPPORTED, lpq_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("'e0.p0' and 'taller' differ in their sizes");
  GIVES(LPQ_ERROR_UNSUPPORTED, lpq_cpu_experts_bytes(of->artifact, &wrong, &bytes));
  pair[1] = "other";
  GIVES(LPQ_ERROR_UNSUPPORTED, lpq_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("'e0.p0' and 'other' differ in their types");
  GIVES(LPQ_OK, lpq_cpu_experts_bytes(of->artifact, &wrong, &bytes));
  wrong.experts = 1, wrong.parts = 2;
  GIVES(LPQ_ERROR_UNSUPPORTED, lpq_cpu_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("types");
  wrong.parts = -1;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("parts");
  wrong.parts = 1, wrong.experts = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_bytes(of->artifact, &wrong, &bytes));
  NAMES("0 experts");
}

/* ---- On a device ---- */

static void on_a_device(const experts *of) {
  const size_t outputs = sizeof(uint16_t) * (size_t)(ROWS * of->n);
  void *memory, *workspace, *x, *y;
  int32_t *offsets, bad[MOST + 1];
  uint16_t *got = malloc(outputs), *again = malloc(outputs);
  size_t bytes = 0, needed = 0, text = 0;
  double worst;
  lpq_context *context = NULL;
  lpq_weight *weight = NULL, *plain = NULL;
  open_device();
  GIVES(LPQ_OK, lpq_context_open(NULL, &context));
  if (!context) exit(1);
  GIVES(LPQ_OK, lpq_experts_bytes(of->artifact, &of->desc, &bytes));
  memory = device_bytes(NULL, bytes);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_upload(context, of->artifact, &of->desc, LPQ_F16, memory, bytes - 256, stream, &weight));
  NAMES("the experts take");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_upload(context, of->artifact, &of->desc, LPQ_F32, memory, bytes, stream, &weight));
  GIVES(LPQ_OK, lpq_experts_upload(context, of->artifact, &of->desc, LPQ_F16, memory, bytes, stream, &weight));
  if (!weight) exit(1);
  GIVES(LPQ_OK, lpq_gemm_workspace(weight, 1, ROWS, &needed));
  workspace = device_bytes(NULL, needed);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, needed, stream));
  x = device_bytes(of->x, sizeof(uint16_t) * (size_t)(ROWS * of->k)), y = device_bytes(NULL, outputs);
  offsets = (int32_t *)device_bytes(of->offsets, sizeof of->offsets);
  GIVES(LPQ_OK, lpq_gemm_explain(weight, ROWS, NULL, 0, &text));
  TRUE(text > 40);
  GIVES(LPQ_OK, lpq_gemm_experts(weight, 0, NULL, NULL, NULL, NULL, 0, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm(weight, ROWS, x, y, workspace, needed, stream, 0));
  NAMES("lpq_gemm_experts()");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_experts(weight, ROWS, x, NULL, y, workspace, needed, stream, 0));
  NAMES("offsets is NULL");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_experts(weight, ROWS, x, (int32_t *)((char *)offsets + 2), y, workspace, needed, stream, 0));
  NAMES("offsets does not start at a multiple of 4 bytes");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_experts(weight, ROWS, x, offsets, y, workspace, needed, stream, 2));
  GIVES(LPQ_ERROR_WORKSPACE, lpq_gemm_experts(weight, ROWS, x, offsets, y, workspace, 4096, stream, 0));
  GIVES(LPQ_OK, lpq_gemm_experts(weight, ROWS, x, offsets, y, workspace, needed, stream, 0));
  TRUE(to_host(got, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  worst = largest_share(of, got, 0xffff, (int)of->k);
  TRUE(worst <= 1);
  printf("TIME on the device: the largest difference is %.3f of the bound\n", worst);
  GIVES(LPQ_OK, lpq_gemm_experts(weight, ROWS, x, offsets, y, workspace, needed, stream, LPQ_GEMM_SETTLED));
  TRUE(to_host(again, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
  TRUE(memcmp(got, again, outputs) == 0);
  memcpy(bad, of->offsets, sizeof bad);
  bad[of->count] = ROWS + 1;
  copy_in(offsets, bad, sizeof bad);
  GIVES(LPQ_OK, lpq_gemm_experts(weight, ROWS, x, offsets, y, workspace, needed, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_workspace_check(context, workspace, stream));
  NAMES("offsets of experts that do not ascend inside x");
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  TRUE(to_host(again, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
  TRUE(memcmp(got, again, outputs) == 0);
  lpq_weight_destroy(weight);
  GIVES(LPQ_OK, lpq_module_bytes(of->artifact, of->names[0], &bytes));
  GIVES(LPQ_OK, lpq_module_upload(context, of->artifact, of->names[0], LPQ_F16, memory, bytes, stream, &plain));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_experts(plain, ROWS, x, offsets, y, workspace, needed, stream, 0));
  NAMES("the weight is not of experts");
  lpq_weight_destroy(plain);
  lpq_context_close(context);
}

int main(int count, char **arguments) {
  if (count == 1) without_files();
  if (count == 5) {
    experts *of = opened(arguments[2], atoi(arguments[3]), atoi(arguments[4]));
    if (strcmp(arguments[1], "gpu") == 0) on_a_device(of);
    else on_the_processor(of), which_differ(of);
    lpq_artifact_close(of->artifact);
  }
  printf("%d checks, %d failed\n", checks, failed);
  return failed > 0;
}
