/* A whole mixture of experts of lpq_kernels.h beside plain C in double: `mixture DIR E FORM` takes gate, up and down of an expert from modules
   e0.gate, e0.up, e0.down, ... of an artifact (i4 or u4, layout tilus). FORM: `gated`, the first product gates; `apart`, a launch does. Prints
   'N checks, F failed'. */
#include "matrix.h"

enum { TOKENS = 23, PROMPT = 400, PLACES = 3, MOST = 16 };

/* What stands between the products. The limits lie inside of what the modules of a mixture make. */
typedef struct between {
  int activation;
  double alpha, limit;
} between;
static const between CHOICES[] = {{LPQ_SILU, 0, 0},  {LPQ_GELU, 0, 0},       {LPQ_GELU_TANH, 0, 0}, {LPQ_RELU, 0, 0},
                                   {LPQ_RELU2, 0, 0}, {LPQ_QUICK_GELU, 0, 0}, {LPQ_SIGMOID, 0, 0},   {LPQ_SILU, 0, 1},
                                   {LPQ_CLAMPED, 1.702, 1}};
enum { ACTIVATIONS = 7, WITH_LIMITS = 9 }; /* of another product than a gated one, of all */

typedef struct mixture {
  lpq_artifact *artifact;
  int count, gated;
  between act;
  int64_t clamped; /* numbers that a limit changed */
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

static mixture *opened(const char *directory, int count, int gated) {
  mixture *of = calloc(1, sizeof *of);
  int i;
  of->gated = gated;
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

/* A product of a row, and how far one of a kernel may be: sums are cut off by 2^-23 at each step, x is off by `off`; a bias was rounded to f16.
   `rounded`: the sum is, too. */
static double product(const matrix *w, int64_t n, const double *x, const double *off, int rounded, double *bound) {
  double sum = w->bias[n], size = fabs(sum), above = 0;
  int64_t k;
  for (k = 0; k < w->k; ++k) {
    sum += x[k] * w->weight[n * w->k + k], size += (fabs(x[k]) + (off ? off[k] : 0)) * w->size[n * w->k + k];
    above += off ? off[k] * fabs(w->weight[n * w->k + k]) : 0;
  }
  *bound = above + (double)(w->k + 8) * ldexp(1, -23) * size + ldexp(1, -11) * fabs(w->bias[n]);
  if (rounded) *bound += ldexp(1, -11) * (fabs(sum) + *bound) + ldexp(1, -25);
  return sum;
}

/* act(gate) up, and how far it may be with gate and up off by so much. */
static double gated(mixture *of, double gate, double up, double gate_off, double up_off, double *bound) {
  const double root = sqrt(2 / 3.14159265358979323846), limit = of->act.limit;
  const double x = limit > 0 && gate > limit ? limit : gate;
  double line = limit > 0 ? fmin(fmax(up, -limit), limit) : up, value, slope, off = ldexp(1, -20) * fabs(x);
  of->clamped += x != gate || line != up;
  /* The slopes of x s(a x) are below 1.1, those of both forms of GELU below 1.14. Kernels compute x s within some units of the last place of f32, of
     GELU within 3.1e-6. */
  switch (of->act.activation) {
    case LPQ_GELU: value = x / 2 * (1 + erf(x / sqrt(2))), slope = 1.14, off += 3.1e-6; break;
    case LPQ_GELU_TANH: value = x / 2 * (1 + tanh(root * (x + 0.044715 * x * x * x))), slope = 1.14; break;
    case LPQ_RELU: value = x > 0 ? x : 0, slope = 1; break;
    case LPQ_RELU2: value = x > 0 ? x * x : 0, slope = 2 * (fabs(x) + gate_off), off *= 3 * fabs(x); break;
    case LPQ_QUICK_GELU: value = x / (1 + exp(-1.702 * x)), slope = 1.1; break;
    case LPQ_SIGMOID: value = 1 / (1 + exp(-x)), slope = 0.25, off = ldexp(1, -20); break;
    case LPQ_CLAMPED: value = x / (1 + exp(-of->act.alpha * x)), slope = 1.1, line += 1; break;
    default: value = x / (1 + exp(-x)), slope = 1.1;
  }
  *bound = (slope * gate_off + off) * (fabs(line) + up_off) + fabs(value) * up_off;
  *bound += (ldexp(1, -11) + ldexp(1, -22)) * (fabs(value * line) + *bound) + ldexp(1, -25);
  return value * line;
}

static double largest_share(mixture *of, int tokens, const uint16_t *y) {
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
        const double g = product(&of->gate[e], i, x, NULL, !of->gated, &g_off), u = product(&of->up[e], i, x, NULL, !of->gated, &u_off);
        h[i] = gated(of, g, u, g_off, u_off, &off[i]);
      }
      for (i = 0; i < n; ++i) {
        double d_off;
        const double d = product(&of->down[e], i, h, off, 1, &d_off);
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

static lpq_weight *uploaded(lpq_context *context, const mixture *of, const char *const *modules, int parts, int turns) {
  lpq_experts_desc desc;
  lpq_weight *weight = NULL;
  size_t bytes = 0;
  void *memory;
  LPQ_INIT(desc);
  desc.experts = of->count, desc.parts = parts, desc.modules = modules, desc.gated = turns;
  GIVES(LPQ_OK, lpq_experts_bytes(of->artifact, &desc, &bytes));
  memory = device_bytes(NULL, bytes);
  GIVES(LPQ_OK, lpq_experts_upload(context, of->artifact, &desc, LPQ_F16, memory, bytes, stream, &weight));
  if (!weight) exit(1);
  return weight;
}

/* Gate and up by lpq_weight_create(): blocks of 32 rows by turns, put there by the host. */
static lpq_weight *by_hand(lpq_context *context, const mixture *of) {
  static const char *const kinds[] = {"packed", "scales", "zeros"};
  const int64_t blocks = (of->gate[0].n + 31) / 32;
  const size_t biases = sizeof(uint16_t) * (size_t)(of->count * blocks * 64);
  const void *there[3];
  uint16_t *bias = calloc(1, biases);
  lpq_weight *weight = NULL;
  lpq_weight_desc d;
  int i, kind;
  int64_t n;
  for (kind = 0; kind < 3; ++kind) {
    const size_t size = tensor_of(of->artifact, of->pairs[0], kinds[kind]).bytes / (size_t)blocks, all = size * (size_t)(2 * of->count * blocks);
    char *turns = malloc(all);
    for (i = 0; i < 2 * of->count; ++i)
      for (n = 0; n < blocks; ++n)
        memcpy(turns + size * (size_t)((i / 2 * blocks + n) * 2 + i % 2),
               (const char *)tensor_of(of->artifact, of->pairs[i], kinds[kind]).data + size * (size_t)n, size);
    there[kind] = device_bytes(turns, all);
    free(turns);
  }
  for (i = 0; i < 2 * of->count; ++i)
    for (n = 0; n < of->gate[0].n; ++n)
      bias[((i / 2 * blocks + n / 32) * 2 + i % 2) * 32 + n % 32] = half_bits((i % 2 ? of->up : of->gate)[i / 2].bias[n]);
  LPQ_INIT(d);
  d.layout = LPQ_LAYOUT_TILUS, d.type = "u4", d.n = of->gate[0].n, d.k = of->gate[0].k, d.group = 32, d.experts = of->count, d.gated = 1;
  d.activations = d.scale_type = LPQ_F16, d.zero_type = LPQ_U8;
  d.weights = there[0], d.scales = there[1], d.zeros = there[2], d.bias = device_bytes(bias, biases);
  GIVES(LPQ_OK, lpq_gates_interleave(context, &d, stream));
  GIVES(LPQ_OK, lpq_weight_create(context, &d, &weight));
  free(bias);
  if (!weight) exit(1);
  return weight;
}

/* More rows than one block groups. */
static void prompt(mixture *of, lpq_context *context, const lpq_mixture_desc *desc, const void *ids, const void *x, const void *weights) {
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

/* alpha and limit that an activation does not have, or that need a gated weight. */
static void which_limits(const lpq_mixture_desc *desc, int turns) {
  lpq_mixture_desc wrong = *desc;
  wrong.activation = LPQ_GELU, wrong.limit = 1;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("only LPQ_SILU and LPQ_CLAMPED have one");
  wrong.activation = LPQ_SILU, wrong.alpha = 1;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("only LPQ_CLAMPED has one");
  wrong.activation = LPQ_CLAMPED, wrong.limit = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("alpha and limit above 0");
  wrong.activation = LPQ_SILU, wrong.alpha = 0, wrong.limit = NAN;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("limit is negative or NaN");
  wrong.limit = 1;
  GIVES(turns ? LPQ_OK : LPQ_ERROR_UNSUPPORTED, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  if (!turns) NAMES("only a gated product clamps");
}

/* What gated weights are not, and what they save. A header without the field has weights apart. */
static void which_weights(lpq_context *context, const mixture *of, const lpq_mixture_desc *desc, size_t scratch_bytes) {
  lpq_mixture_desc apart = *desc, wrong = *desc;
  lpq_experts_desc parts;
  lpq_weight_desc plain;
  size_t bytes = 0;
  apart.gate_up = uploaded(context, of, of->pairs, 2, 0);
  GIVES(LPQ_OK, lpq_mixture_sizes(&apart, TOKENS, &bytes, NULL));
  TRUE(bytes >= scratch_bytes + (size_t)(TOKENS * PLACES * (96 + 71) * 2));
  wrong.down = apart.gate_up;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  LPQ_INIT(parts);
  parts.experts = of->count, parts.parts = 1, parts.modules = of->downs, parts.gated = 1;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_experts_bytes(of->artifact, &parts, &bytes));
  NAMES("desc.gated is of two parts, gate and up, and there are 1");
  parts.parts = 2, parts.modules = of->pairs;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_cpu_experts_bytes(of->artifact, &parts, &bytes));
  NAMES("desc.gated is of weights on a device");
  parts.size = offsetof(lpq_experts_desc, gated);
  GIVES(LPQ_OK, lpq_cpu_experts_bytes(of->artifact, &parts, &bytes));
  LPQ_INIT(plain);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gates_interleave(context, &plain, stream));
  NAMES("desc is not gated");
  plain.gated = 1, plain.layout = LPQ_LAYOUT_TILUS, plain.type = "u4", plain.n = 64, plain.k = 128, plain.activations = plain.scale_type = LPQ_F16;
  plain.weights = plain.scales = (const void *)(uintptr_t)4096;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_gates_interleave(context, &plain, stream));
  NAMES("gated is of experts in layout tilus alone");
  lpq_weight_destroy((lpq_weight *)apart.gate_up);
}

static void with_gpu(mixture *of) {
  const size_t outputs = sizeof(uint16_t) * (size_t)(TOKENS * of->down[0].n);
  uint16_t *got = malloc(outputs), *again = malloc(outputs);
  lpq_context *context = NULL;
  lpq_mixture_desc desc, wrong;
  size_t scratch_bytes = 0, bytes = 0, few = 0;
  void *scratch, *workspace, *x, *y, *ids, *weights;
  const int count = of->gated ? WITH_LIMITS : ACTIVATIONS;
  int none, i;
  open_device();
  GIVES(LPQ_OK, lpq_context_open(NULL, &context));
  if (!context) exit(1);
  LPQ_INIT(desc);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&desc, 1, &scratch_bytes, &bytes));
  NAMES("gate_up or down is NULL");
  desc.gate_up = uploaded(context, of, of->pairs, 2, of->gated), desc.down = uploaded(context, of, of->downs, 1, 0), desc.places = PLACES;
  GIVES(LPQ_OK, lpq_mixture_sizes(&desc, TOKENS, &scratch_bytes, &bytes));
  if (of->gated) which_weights(context, of, &desc, scratch_bytes);
  GIVES(LPQ_OK, lpq_mixture_sizes(&desc, 1, &few, NULL));
  TRUE(few > 0 && few < scratch_bytes && bytes >= 262656);
  wrong = desc, wrong.down = desc.gate_up;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  if (of->gated) NAMES("gate_up makes 71 outputs, and down takes 160");
  else NAMES("each from a multiple of 32 on");
  wrong = desc, wrong.activation = 8;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_mixture_sizes(&wrong, 1, NULL, NULL));
  NAMES("LPQ_SILU");
  which_limits(&desc, of->gated);
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
  for (i = 0; i < count; ++i) {
    double worst;
    none = (count - i) % 2, of->act = CHOICES[i], of->clamped = 0;
    desc.activation = of->act.activation, desc.alpha = of->act.alpha, desc.limit = of->act.limit;
    choose(of, none);
    memset(got, 0xff, outputs);
    copy_in(y, got, outputs);
    copy_in(ids, of->ids, sizeof of->ids);
    desc.some_none = none;
    GIVES(LPQ_OK, lpq_mixture_sizes(&desc, TOKENS, &few, NULL));
    TRUE(few <= scratch_bytes);
    GIVES(LPQ_OK, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, few, workspace, bytes, stream, none ? LPQ_GEMM_SETTLED : 0));
    TRUE(to_host(got, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
    GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
    worst = largest_share(of, TOKENS, got);
    TRUE(worst <= 1);
    TRUE((of->clamped > 0) == (desc.limit > 0));
    printf("TIME activation %d, %s: the largest difference is %.3f of the bound\n", desc.activation, none ? "some of no expert" : "all of experts", worst);
    GIVES(LPQ_OK, lpq_mixture(&desc, TOKENS, x, ids, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 0));
    TRUE(to_host(again, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
    TRUE(memcmp(got, again, outputs) == 0);
  }
  if (of->gated) {
    wrong = desc, wrong.gate_up = by_hand(context, of);
    GIVES(LPQ_OK, lpq_mixture(&wrong, TOKENS, x, ids, weights, y, scratch, scratch_bytes, workspace, bytes, stream, 0));
    TRUE(to_host(again, (device_memory)(uintptr_t)y, outputs, stream) == 0 && wait_for(stream) == 0);
    TRUE(memcmp(got, again, outputs) == 0);
    lpq_weight_destroy((lpq_weight *)wrong.gate_up);
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
  if (of->gated) {
    GIVES(LPQ_ERROR_ARGUMENT, lpq_gemm_experts(desc.gate_up, TOKENS, x, ids, y, workspace, bytes, stream, 0));
    NAMES("rows of gate and up stand by turns, as lpq_mixture() alone takes them");
  }
  lpq_weight_destroy((lpq_weight *)desc.gate_up), lpq_weight_destroy((lpq_weight *)desc.down);
  lpq_context_close(context);
}

int main(int count, char **arguments) {
  if (count == 4) {
    mixture *of = opened(arguments[1], atoi(arguments[2]), strcmp(arguments[3], "gated") == 0);
    with_gpu(of);
    lpq_artifact_close(of->artifact);
  }
  printf("%d checks, %d failed\n", checks, failed);
  return failed > 0;
}
