/* The cache of latents of lpq_kernels.h: `latent` needs no GPU, and compares the calls on the host with plain C in double; `latent gpu` does the
   same with one; `latent calls` without looking at numbers. Prints 'N checks, F failed'. */
#include "support.h"

enum { SEQUENCES = 2, PAGES_EACH = 3, COUNT = SEQUENCES * PAGES_EACH, PROMPT = 40, STEPS = 30, QUERIES = 3, MOST = PROMPT + STEPS };
static const int32_t TABLE[COUNT] = {5, 0, 3, 1, 4, 2};

static lpq_context *context;

static lpq_latent_desc described(int bits, int group, int latent, int rotary, int heads) {
  lpq_latent_desc d;
  LPQ_INIT(d);
  d.bits = bits, d.group = group, d.latent = latent, d.rotary = rotary, d.heads = heads, d.page_tokens = 32;
  return d;
}

static void without_gpu(void) {
  lpq_latent_desc d = described(4, 128, 512, 64, 128);
  lpq_latent_info info;
  size_t bytes = 0;
  LPQ_INIT(info);
  GIVES(LPQ_OK, lpq_latent_describe(&d, &info));
  TRUE(info.unit == 32 && info.page_bytes == 32 * 400);
  d.page_tokens = 0, d.bits = 16;
  GIVES(LPQ_OK, lpq_latent_describe(&d, &info));
  TRUE(info.page_bytes == 32 * 1152);
  d.page_tokens = 48;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("multiple of 32");
  d = described(3, 128, 512, 64, 128);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("bits is not");
  d = described(4, 128, 448, 64, 128);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("does not divide latent");
  d = described(4, 64, 576, 64, 128);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("from 64 to 512");
  d = described(4, 64, 512, 72, 128);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("from 16 to 64");
  d = described(4, 64, 512, 64, 0);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("heads");
  d = described(4, 64, 512, 64, 1), d.size = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, &info));
  NAMES("LPQ_INIT");
  d = described(4, 64, 512, 64, 1);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_describe(&d, NULL));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_latent_workspace(NULL, &d, NULL, 1, &bytes));
}

/* A sequence as numbers: what attention reads of each token, latent and rotary key. */
typedef struct tokens {
  int count;
  double *row;
} tokens;

/* Numbers that f16 holds: multiples of 2^-8 below 4. */
static double draw(void) { return ((int)(next_word() % 2047) - 1023) / 256.0; }

/* A token, drawn: its f16 in c and rotary, what it is read as behind the others. */
static void add_token(const lpq_latent_desc *d, tokens *s, uint16_t *c, uint16_t *rotary) {
  const int width = d->latent + d->rotary;
  double *row = s->row + s->count++ * width;
  int i, g;
  for (i = 0; i < d->latent; ++i) row[i] = draw(), c[i] = half_bits(row[i]);
  for (i = 0; i < d->rotary; ++i) row[d->latent + i] = draw(), rotary[i] = half_bits(row[d->latent + i]);
  if (d->bits == 16) return;
  for (g = 0; g < d->latent; g += d->group) {
    const float top = (float)((1 << d->bits) - 1);
    float low = INFINITY, high = -INFINITY, scale;
    for (i = g; i < g + d->group; ++i) low = (float)row[i] < low ? (float)row[i] : low, high = (float)row[i] > high ? (float)row[i] : high;
    scale = (float)half_value(half_bits((high - low) / top));
    for (i = g; i < g + d->group; ++i) {
      const float above = scale > 0 ? ((float)row[i] - low) / scale : 0;
      row[i] = half_value(half_bits(rint(above < top ? above : top) * (double)scale + low));
    }
  }
}

/* y of a query over the first `count` tokens, and how far it may be. On the host sums are f64, and y is rounded to f16 once; a kernel has
   operands of f16 and sums in fp32 (native/cpu/verify/kv_attention.cpp derives its bound). */
static double largest_share(const lpq_latent_desc *d, const tokens *s, int count, const double *q, const uint16_t *got, double scale, int exact) {
  const int width = d->latent + d->rotary;
  const double sums = exact ? 0 : count / 16.0 * 17 * ldexp(1, -23) + count * ldexp(1, -24) + (count / 16.0 + 4) * ldexp(1, -21);
  double worst = 0, *score = malloc(sizeof(double) * (size_t)(count + 1)), *error = malloc(sizeof(double) * (size_t)(count + 1));
  int h, t, i;
  for (h = 0; h < d->heads; ++h) {
    double most = -INFINITY, total = 0, below = 0;
    for (t = 0; t < count; ++t) {
      double sum = 0, size = 0;
      for (i = 0; i < width; ++i) sum += q[h * width + i] * s->row[t * width + i], size += fabs(q[h * width + i] * s->row[t * width + i]);
      score[t] = sum * scale;
      error[t] = exact ? 0 : scale * size * (width / 16.0 * 17 * ldexp(1, -23) + (width + 4) * ldexp(1, -24));
      most = score[t] > most ? score[t] : most;
    }
    for (t = 0; t < count; ++t) {
      error[t] = exact ? ldexp(1, -40) : expm1(2 * error[t] + ldexp(1, -21) + 8 * ldexp(1, -24) * (fabs(score[t]) + fabs(most)));
      total += score[t] = exp(score[t] - most);
    }
    for (t = 0; t < count; ++t) score[t] /= total, below += score[t] * ((1 + error[t]) * (1 + sums) - 1);
    for (i = 0; i < d->latent; ++i) {
      double y = 0, above = 0, bound, share;
      for (t = 0; t < count; ++t) {
        const double v = s->row[t * width + i];
        y += score[t] * v;
        above += score[t] * fabs(v) * ((1 + error[t]) * (1 + sums) * (exact ? 1 : 1 + ldexp(1, -11)) - 1) + (exact ? 0 : ldexp(1, -25) * (fabs(v) + 1) / total);
      }
      bound = (above + fabs(y) * below) / (1 - below);
      bound += ldexp(1, -11) * (fabs(y) + bound) + ldexp(1, -25);
      share = fabs(half_value(got[h * d->latent + i]) - y) / bound;
      worst = share > worst || isnan(share) ? (isnan(share) ? INFINITY : share) : worst;
    }
  }
  free(score), free(error);
  return worst;
}

/* Where a run lies: on a device, or in the host's memory. */
static int on_device;
static void *memory(const void *from, size_t bytes) {
  void *made;
  if (on_device) return device_bytes(from, bytes);
  made = malloc(bytes); /* at a multiple of 16 */
  memset(made, 0xff, bytes);
  if (from) memcpy(made, from, bytes);
  return made;
}
static void put(void *to, const void *from, size_t bytes) {
  if (on_device) copy_in(to, from, bytes);
  else memcpy(to, from, bytes);
}

static void run(lpq_latent_desc d, const char *name, int numbers) {
  const int width = d.latent + d.rotary, asked = d.heads * width, outputs = d.heads * d.latent;
  const double scale = 0.125;
  lpq_latent_info info;
  lpq_latent_pages pages;
  lpq_latent_batch batch;
  tokens all[SEQUENCES];
  uint16_t *host_c = malloc(2u * (size_t)(PROMPT * d.latent)), *host_r = malloc(2u * (size_t)(PROMPT * d.rotary)), *queries = malloc(2u * (size_t)(SEQUENCES * QUERIES * asked)),
           *y = malloc(2u * (size_t)(SEQUENCES * QUERIES * outputs));
  double *q = malloc(sizeof(double) * (size_t)(SEQUENCES * QUERIES * asked)), worst = 0;
  int32_t counts[SEQUENCES + 1] = {-1, PROMPT, 0}, table[COUNT + 1];
  void *workspace = NULL, *c, *r, *to_q, *to_y;
  size_t bytes = 0;
  int i, b, step;
  LPQ_INIT(info), LPQ_INIT(pages), LPQ_INIT(batch);
  GIVES(LPQ_OK, lpq_latent_describe(&d, &info));
  pages.count = COUNT, pages.data = memory(NULL, COUNT * info.page_bytes);
  for (b = 0; b < SEQUENCES; ++b) all[b].count = 0, all[b].row = malloc(sizeof(double) * (size_t)(MOST * width));
  memcpy(table + 1, TABLE, sizeof TABLE), table[0] = -1;
  batch.sequences = SEQUENCES, batch.table_pages = PAGES_EACH;
  batch.table = (int32_t *)memory(table, sizeof table) + 1, batch.lengths = (int32_t *)memory(counts, sizeof counts) + 1;
  c = memory(NULL, 2u * (size_t)(PROMPT * d.latent)), r = memory(NULL, 2u * (size_t)(PROMPT * d.rotary));
  to_q = memory(NULL, 2u * (size_t)(SEQUENCES * QUERIES * asked)), to_y = memory(NULL, 2u * (size_t)(SEQUENCES * QUERIES * outputs));
  for (i = 0; i < PROMPT; ++i) add_token(&d, &all[0], host_c + i * d.latent, host_r + i * d.rotary);
  put(c, host_c, 2u * (size_t)(PROMPT * d.latent)), put(r, host_r, 2u * (size_t)(PROMPT * d.rotary));
#define PACK(tokens, c, r, first, table_pages)                                                                                               \
  (on_device ? lpq_latent_pack(context, &d, tokens, c, r, first, batch.table, table_pages, &pages, workspace, bytes, stream)                  \
             : lpq_cpu_latent_pack(&d, tokens, c, r, first, batch.table, table_pages, &pages, 2))
#define APPEND(c, r)                                                                                                                         \
  (on_device ? lpq_latent_append(context, &d, c, r, &pages, &batch, workspace, bytes, stream) : lpq_cpu_latent_append(&d, c, r, &pages, &batch, 2))
#define DECODE(count, q, type)                                                                                                               \
  (on_device ? lpq_latent_decode(context, &d, count, q, to_y, type, scale, &pages, &batch, workspace, bytes, stream)                          \
             : lpq_cpu_latent_decode(&d, count, q, to_y, type, scale, &pages, &batch, 2))
  if (on_device) {
    GIVES(LPQ_OK, lpq_latent_workspace(context, &d, &batch, QUERIES, &bytes));
    TRUE(bytes >= 262656);
    workspace = device_bytes(NULL, bytes);
    GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
    GIVES(LPQ_ERROR_WORKSPACE, lpq_latent_pack(context, &d, PROMPT, c, r, 0, batch.table, PAGES_EACH, &pages, workspace, 100, stream));
  }
  GIVES(LPQ_ERROR_ARGUMENT, PACK(PROMPT, c, NULL, 0, PAGES_EACH));
  NAMES("rotary is NULL");
  GIVES(LPQ_ERROR_ARGUMENT, PACK(PROMPT, c, r, 0, 1));
  NAMES("too few pages");
  GIVES(LPQ_OK, PACK(0, NULL, NULL, 0, 0));
  GIVES(LPQ_OK, PACK(PROMPT, c, r, 0, PAGES_EACH));
  GIVES(LPQ_ERROR_ARGUMENT, DECODE(0, to_q, LPQ_F16));
  GIVES(LPQ_ERROR_ARGUMENT, DECODE(1, to_q, LPQ_U8));
  GIVES(LPQ_ERROR_ARGUMENT, DECODE(1, (char *)to_q + 2, LPQ_F16));
  NAMES("16 bytes");
  batch.query_type = LPQ_F32;
  GIVES(LPQ_ERROR_ARGUMENT, DECODE(1, to_q, LPQ_F16));
  NAMES("query_type");
  batch.query_type = 0;
  for (step = 0; step < STEPS; ++step) {
    const int count = step == STEPS - 1 ? QUERIES : 1;
    for (b = 0; b < SEQUENCES; ++b) add_token(&d, &all[b], host_c + b * d.latent, host_r + b * d.rotary);
    put(c, host_c, 2u * (size_t)(SEQUENCES * d.latent)), put(r, host_r, 2u * (size_t)(SEQUENCES * d.rotary));
    if (APPEND(c, r) != LPQ_OK) expect(0, "appending", __LINE__);
    if (step > 1 && step < STEPS - 1 && step % 13) continue;
    for (i = 0; i < SEQUENCES * count * asked; ++i) q[i] = draw() / 16, queries[i] = half_bits(q[i]);
    put(to_q, queries, 2u * (size_t)(SEQUENCES * count * asked));
    GIVES(LPQ_OK, DECODE(count, to_q, LPQ_F16));
    if (on_device) TRUE(to_host(y, (device_memory)(uintptr_t)to_y, 2u * (size_t)(SEQUENCES * count * outputs), stream) == 0 && wait_for(stream) == 0);
    else memcpy(y, to_y, 2u * (size_t)(SEQUENCES * count * outputs));
    for (b = 0; b < SEQUENCES && numbers; ++b)
      for (i = 0; i < count; ++i) {
        const double share = largest_share(&d, &all[b], all[b].count - count + 1 + i, q + (b * count + i) * asked, y + (b * count + i) * outputs, scale, !on_device);
        worst = share > worst ? share : worst;
      }
  }
  if (on_device) GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  else {
    /* On the host a page that is none is said at once. */
    batch.lengths[0] = 32 * PAGES_EACH;
    GIVES(LPQ_ERROR_ARGUMENT, APPEND(c, r));
    NAMES("too few pages");
    ((uint16_t *)c)[3] = 0x7e00;
    GIVES(LPQ_ERROR_ARGUMENT, PACK(1, c, r, 0, PAGES_EACH));
    NAMES("NaN");
  }
  if (numbers) {
    TRUE(worst <= 1);
    printf("TIME %s, %s: the largest difference is %.3f of the bound\n", name, on_device ? "device" : "host", worst);
  }
}

static void every(int numbers) {
  run(described(4, 128, 128, 32, 20), "4 bits, 20 heads", numbers);
  run(described(8, 64, 192, 16, 3), "8 bits, 3 heads", numbers);
  run(described(2, 32, 64, 64, 2), "2 bits, 2 heads", numbers);
  run(described(16, 0, 64, 16, 2), "16 bits, 2 heads", numbers);
  if (!on_device || !getenv("LPQ_SIMULATED")) run(described(4, 128, 512, 64, 32), "4 bits, latents of 512 dims", numbers);
}

int main(int count, char **arguments) {
  without_gpu();
  every(1);
  if (count > 1) {
    open_device();
    on_device = 1;
    GIVES(LPQ_OK, lpq_context_open(NULL, &context));
    if (!context) exit(1);
    every(strcmp(arguments[1], "gpu") == 0);
    lpq_context_close(context);
  }
  printf("%d checks, %d failed\n", checks, failed);
  return failed > 0;
}
