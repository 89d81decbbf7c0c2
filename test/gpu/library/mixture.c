/* A whole mixture of experts of lpq_kernels.h beside plain C in double: `mixture DIR E` takes gate, up and down of an expert from modules e0.gate,
   e0.up, e0.down, ... of an artifact (i4 or u4, layout tilus). Prints 'N checks, F failed'. */
#include "matrix.h"

enum { TOKENS = 23, PROMPT = 400, PLACES = 3, MOST = 16 };

typedef struct mixture {
  lpq_artifact *artifact;
  int count;
  matrix gate[MOST], up[MOST], down[MOST];
  const char *pairs[2 * MOST], *downs[MOST];
  int32_t ids[PROMPT * PLACES];
  float weights[PROMPT * PLACES];
  uint16_t x[PROMPT * 1024];
} mixture;

static const char *name_of(int expert, const char *part) {
  char *name = malloc(32);
  snprintf(name, 32, "e%d.%s", expert, part);
  return name;
}

static mixture *opened(const char *directory, int count) {
  mixture *of = calloc(1, sizeof *of);
  int i;
  GIVES(LPQ_OK, lpq_artifact_open(directory, &of->artifact));
  if (!of->artifact || count > MOST) exit(1);
  of->count = count;
  for (i = 0; i < count; ++i) {
    of->pairs[2 * i] = name_of(i, "gate"), of->pairs[2 * i + 1] = name_of(i, "up"), of->downs[i] = name_of(i, "down");
    of->gate[i] = matrix_of(of->artifact, of->pairs[2 * i]), of->up[i] = matrix_of(of->artifact, of->pairs[2 * i + 1]);
    of->down[i] = matrix_of(of->artifact, of->downs[i]);
  }
  for (i = 0; i < PROMPT * of->gate[0].k; ++i) of->x[i] = half_bits(((int)(next_word() % 2047) - 1023) / 16384.0);
  for (i = 0; i < PROMPT * PLACES; ++i) of->weights[i] = (float)(next_word() % 1024) / 1024;
  return of;
}

/* Experts of every token; the last is chosen by nobody. `none`: some are of no expert, all of the second token. */
static void choose(mixture *of, int none) {
  int i;
  for (i = 0; i < PROMPT * PLACES; ++i) of->ids[i] = (int32_t)(next_word() % (unsigned)(of->count - 1));
  for (i = 0; i < PROMPT * PLACES && none; ++i)
    if (i % 5 == 2 || i / PLACES == 1) of->ids[i] = of->count;
}

/* A product of a row, and how far one of a kernel that rounds to f16 may be: sums are cut off by 2^-23 at each step, x is off by `off`. */
static double product(const matrix *w, int64_t n, const double *x, const double *off, double *bound) {
  double sum = w->bias[n], size = fabs(sum), above = 0;
  int64_t k;
  for (k = 0; k < w->k; ++k) {
    sum += x[k] * w->weight[n * w->k + k], size += (fabs(x[k]) + (off ? off[k] : 0)) * w->size[n * w->k + k];
    above += off ? off[k] * fabs(w->weight[n * w->k + k]) : 0;
  }
  *bound = above + (double)(w->k + 8) * ldexp(1, -23) * size;
  *bound += ldexp(1, -11) * (fabs(sum) + *bound) + ldexp(1, -25);
  return sum;
}

static double largest_share(const mixture *of, int tokens, const uint16_t *y) {
  const int64_t k = of->gate[0].k, inner = of->gate[0].n, n = of->down[0].n;
  double *x = calloc((size_t)k, sizeof *x), *h = calloc((size_t)inner, sizeof *h), *off = calloc((size_t)inner, sizeof *off), worst = 0;
  double *sum = calloc((size_t)n, sizeof *sum), *bound = calloc((size_t)n, sizeof *bound);
  int t, j;
  int64_t i;
  for (t = 0; t < tokens; ++t) {
    for (i = 0; i < k; ++i) x[i] = half_value(of->x[t * k + i]);
    for (i = 0; i < n; ++i) sum[i] = bound[i] = 0;
    for (j = 0; j < PLACES; ++j) {
      const int e = of->ids[t * PLACES + j];
      const double share = of->weights[t * PLACES + j];
      if (e == of->count) continue;
      for (i = 0; i < inner; ++i) {
        double g_off, u_off;
        const double g = product(&of->gate[e], i, x, NULL, &g_off), u = product(&of->up[e], i, x, NULL, &u_off), silu = g / (1 + exp(-g));
        h[i] = silu * u;
        /* The slope of SiLU is below 1.1; it is computed within some units of the last place of f32, and rounded to f16. */
        off[i] = 1.1 * g_off * (fabs(u) + u_off) + fabs(silu) * u_off;
        off[i] += (ldexp(1, -11) + ldexp(1, -20)) * (fabs(h[i]) + off[i]) + ldexp(1, -25);
      }
      for (i = 0; i < n; ++i) {
        double d_off;
        const double d = product(&of->down[e], i, h, off, &d_off);
        sum[i] += share * d, bound[i] += fabs(share) * (d_off + PLACES * ldexp(1, -23) * fabs(d));
      }
    }
    for (i = 0; i < n; ++i) {
      const double most = bound[i] + ldexp(1, -11) * (fabs(sum[i]) + bound[i]) + ldexp(1, -25), part = fabs(half_value(y[t * n + i]) - sum[i]) / most;
      worst = part > worst || isnan(part) ? (isnan(part) ? INFINITY : part) : worst;
    }
  }
  return worst;
}

static lpq_weight *uploaded(lpq_context *context, const mixture *of, const char *const *modules, int parts) {
  lpq_experts_desc desc;
  lpq_weight *weight = NULL;
  size_t bytes = 0;
  void *memory;
  LPQ_INIT(desc);
  desc.experts = of->count, desc.parts = parts, desc.modules = modules;
  GIVES(LPQ_OK, lpq_experts_bytes(of->artifact, &desc, &bytes));
  memory = device_bytes(NULL, bytes);
  GIVES(LPQ_OK, lpq_experts_upload(context, of->artifact, &desc, LPQ_F16, memory, bytes, stream, &weight));
  if (!weight) exit(1);
  return weight;
}

/* More rows than one block groups. */
static void prompt(const mixture *of, lpq_context *context, const lpq_mixture_desc *desc, const void *ids, const void *x, const void *weights) {
  const size_t outputs = sizeof(uint16_t) * (size_t)(PROMPT * of->down[0].n);
  size_t scratch_bytes = 0, bytes = 0;
  uint16_t *got = malloc(outputs);
  void *scratch, *workspace, *y = device_bytes(NULL, outputs);
  double worst;
  GIVES(LPQ_OK, lpq_mixture_sizes(desc, PROMPT, &scratch_bytes, &bytes));
  scratch = device_bytes(NULL, scratch_bytes), workspace = device_bytes(NULL, bytes);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  GIVES(LPQ_OK, lpq_mixture(desc, PROMPT, x, ids, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 0));
  TRUE(to_host(got, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  worst = largest_share(of, PROMPT, got);
  TRUE(worst <= 1);
  printf("TIME a prompt: the largest difference is %.3f of the bound\n", worst);
  free(got);
}

static void with_gpu(mixture *of) {
  const size_t outputs = sizeof(uint16_t) * (size_t)(TOKENS * of->down[0].n);
  uint16_t *got = malloc(outputs), *again = malloc(outputs);
  lpq_context *context = NULL;
  lpq_mixture_desc desc, wrong;
  size_t scratch_bytes = 0, bytes = 0, few = 0;
  void *scratch, *workspace, *x, *y, *ids, *weights;
  int none;
  open_device();
  GIVES(LPQ_OK, lpq_context_open(NULL, &context));
  if (!context) exit(1);
  LPQ_INIT(desc);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&desc, 1, &scratch_bytes, &bytes));
  NAMES("gate_up or down is NULL");
  desc.gate_up = uploaded(context, of, of->pairs, 2), desc.down = uploaded(context, of, of->downs, 1), desc.places = PLACES;
  GIVES(LPQ_OK, lpq_mixture_sizes(&desc, TOKENS, &scratch_bytes, &bytes));
  GIVES(LPQ_OK, lpq_mixture_sizes(&desc, 1, &few, NULL));
  TRUE(few > 0 && few < scratch_bytes && bytes >= 262656);
  wrong = desc, wrong.down = desc.gate_up;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("each from a multiple of 32 on");
  wrong = desc, wrong.activation = 3;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("LPQ_SILU");
  wrong = desc, wrong.places = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("places");
  wrong = desc, wrong.size = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("LPQ_INIT");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&desc, -1, NULL, NULL));
  scratch = device_bytes(NULL, scratch_bytes), workspace = device_bytes(NULL, bytes), x = device_bytes(of->x, sizeof of->x);
  y = device_bytes(NULL, outputs), weights = device_bytes(of->weights, sizeof of->weights), ids = device_bytes(NULL, sizeof of->ids);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  for (none = 0; none < 2; ++none) {
    double worst;
    choose(of, none);
    copy_in(ids, of->ids, sizeof of->ids);
    desc.some_none = none;
    GIVES(LPQ_OK, lpq_mixture_sizes(&desc, TOKENS, &few, NULL));
    TRUE(few <= scratch_bytes);
    GIVES(LPQ_OK, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, few, workspace, bytes, stream, none ? LPQ_GEMM_SETTLED : 0));
    TRUE(to_host(got, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
    GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
    worst = largest_share(of, TOKENS, got);
    TRUE(worst <= 1);
    printf("TIME %s: the largest difference is %.3f of the bound\n", none ? "some of no expert" : "all of experts", worst);
    GIVES(LPQ_OK, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 0));
    TRUE(to_host(again, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
    TRUE(memcmp(got, again, outputs) == 0);
  }
  prompt(of, context, &desc, ids, x, weights);
  desc.some_none = 0; /* ids of no expert are bad data then */
  GIVES(LPQ_OK, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_workspace_check(context, workspace, stream));
  NAMES("an id of no expert");
  GIVES(LPQ_OK, lpq_mixture(&desc, 0, NULL, NULL, NULL, NULL, NULL, 0, NULL, 0, stream, 0));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture(&desc, TOKENS, x, NULL, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 0));
  NAMES("ids is NULL");
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 8));
  NAMES("no such flag");
  GIVES(LPQ_ERROR_WORKSPACE, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, scratch_bytes - 1024, workspace, bytes, stream, 0));
  NAMES("scratch has");
  GIVES(LPQ_ERROR_WORKSPACE, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, scratch_bytes, workspace, 4096, stream, 0));
  lpq_weight_destroy((lpq_weight *)desc.gate_up), lpq_weight_destroy((lpq_weight *)desc.down);
  lpq_context_close(context);
}

int main(int count, char **arguments) {
  if (count == 3) {
    mixture *of = opened(arguments[1], atoi(arguments[2]));
    with_gpu(of);
    lpq_artifact_close(of->artifact);
  }
  printf("%d checks, %d failed\n", checks, failed);
  return failed > 0;
}
