/* The cache of keys and values of lpq_kernels.h: `kv` needs no GPU; `kv gpu` packs, appends and decodes on one and compares with plain C
   in double; `kv calls` does the same without looking at numbers. Prints 'N checks, F failed'. */
#include "support.h"

static lpq_kv_desc four(void) {
  lpq_kv_desc d;
  LPQ_INIT(d);
  d.key_bits = d.value_bits = 4;
  d.key_group = 128, d.value_group = 64;
  d.heads = 4, d.kv_heads = 2, d.head_dim = 64;
  return d;
}

static lpq_kv_desc words(void) {
  lpq_kv_desc d = four();
  d.form = LPQ_KV_TURBOMIND;
  d.key_bits = 8;
  d.key_group = d.value_group = 64;
  return d;
}

static lpq_kv_desc two(void) {
  lpq_kv_desc d = four();
  d.key_bits = d.value_bits = 2;
  d.key_group = d.value_group = 32;
  d.by_token = d.outer = 1;
  return d;
}

static lpq_kv_desc wide(void) {
  lpq_kv_desc d = four();
  d.heads = 8, d.kv_heads = 1, d.head_dim = 512;
  d.value_group = 128;
  return d;
}

static void without_gpu(void) {
  lpq_kv_desc d = four();
  lpq_kv_info info;
  size_t bytes = 0;
  LPQ_INIT(info);
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  TRUE(info.block == 128 && info.unit == 128);
  TRUE(info.page_bytes[0] == 8192 && info.page_bytes[1] == 512 && info.page_bytes[2] == 8192 && info.page_bytes[3] == 1024);
  d.page_tokens = 256;
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  TRUE(info.page_bytes[0] == 16384);
  d.page_tokens = 100;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  NAMES("multiple of 128");
  d = words();
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  /* 64 tokens of 2 heads: 64 bytes of keys, 32 of values, and two pairs of numbers. */
  TRUE(info.block == 1 && info.unit == 64 && info.page_bytes[0] == 64 * 2 * (64 + 32 + 8) && info.page_bytes[1] == 0);
  d = two();
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  TRUE(info.block == 256 && info.page_bytes[1] == 256 * 2 * 2 * 4);
  d.value_bits = 4;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  NAMES("value_bits");
  d = four(), d.head_dim = 100;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  d = wide();
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  TRUE(info.page_bytes[0] == 128 * 256 && info.page_bytes[1] == 2048 && info.page_bytes[3] == 128 * 4 * 4);
  d.head_dim = 520;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  NAMES("from 64 to 512");
  d = four(), d.heads = 5;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  d = four(), d.value_group = 32;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  d = words(), d.key_bits = 2;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  d = four(), d.form = 7;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  d = four(), d.size = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, &info));
  NAMES("LPQ_INIT");
  d = four();
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(&d, NULL));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_describe(NULL, &info));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_workspace(NULL, &d, NULL, 1, &bytes));
}

/* ---- With a GPU ---- */

static lpq_context *context;

/* Numbers that f16 holds: multiples of 2^-8 below 4. */
static double draw(void) { return ((int)(next_word() % 2047) - 1023) / 256.0; }

enum { SEQUENCES = 2, PAGES_EACH = 4, COUNT = SEQUENCES * PAGES_EACH };
static const int32_t TABLE[SEQUENCES * PAGES_EACH] = {5, 0, 3, 6, 1, 4, 2, 7};

/* One sequence as numbers: k and v as they came, and what codes stand for: step[t] + zero[t]. */
typedef struct tokens {
  int count, packed;
  double *x[2], *step[2], *zero[2];
} tokens;

static void quantize(const lpq_kv_desc *d, tokens *s, int first, int count) {
  const int width = d->kv_heads * d->head_dim;
  int side, t, c, i, j;
  for (side = 0; side < 2; ++side) {
    const int channel = side == 0 && !d->by_token && d->form == LPQ_KV_BITDECODING, group = side ? d->value_group : d->key_group;
    const int rows = channel ? group : 1, columns = channel ? 1 : group;
    const float top = (float)((1 << (side ? d->value_bits : d->key_bits)) - 1);
    for (t = first; t < first + count; t += rows)
      for (c = 0; c < width; c += columns) {
        float low = INFINITY, high = -INFINITY, scale;
        for (i = 0; i < rows; ++i)
          for (j = 0; j < columns; ++j) {
            const float x = (float)s->x[side][(t + i) * width + c + j];
            low = x < low ? x : low, high = x > high ? x : high;
          }
        scale = (float)half_value(half_bits((high - low) / top));
        for (i = 0; i < rows; ++i)
          for (j = 0; j < columns; ++j) {
            const int at = (t + i) * width + c + j;
            const float above = scale > 0 ? ((float)s->x[side][at] - low) / scale : 0;
            s->step[side][at] = rint(above < top ? above : top) * scale, s->zero[side][at] = low;
          }
      }
  }
}

/* y of a query over the first `count` tokens, and how far a kernel may be: half-precision operands, sums in fp32
   (native/cpu/verify/kv_attention.cpp derives it). */
static double largest_share(const lpq_kv_desc *d, const tokens *s, int count, const double *q, const uint16_t *got, double scale) {
  const int D = d->head_dim, width = d->kv_heads * D, group = d->heads / d->kv_heads, top = (1 << d->key_bits) - 1;
  double worst = 0, *score = malloc(sizeof(double) * (size_t)(count + 1)), *error = malloc(sizeof(double) * (size_t)(count + 1));
  int h, t, i;
  for (h = 0; h < d->heads; ++h) {
    const int at = h / group * D;
    const double sums = count / 16.0 * 17 * ldexp(1, -23) + count * ldexp(1, -24) + (count / 16.0 + 4) * ldexp(1, -21);
    double most = -INFINITY, total = 0, below = 0;
    for (t = 0; t < count; ++t) {
      double sum = 0, size = 0, small = 0;
      for (i = 0; i < D; ++i) {
        const double step = s->step[0][t * width + at + i], zero = s->zero[0][t * width + at + i], x = q[h * D + i];
        sum += x * (step + zero), size += fabs(x) * (fabs(step) + fabs(zero)), small += top + fabs(x);
      }
      score[t] = sum * scale;
      error[t] = scale * (size * ldexp(1, -11) + small * ldexp(1, -25) + size * (D / 16.0 * 17 * ldexp(1, -23) + (D + 4) * ldexp(1, -24)));
      most = score[t] > most ? score[t] : most;
    }
    for (t = 0; t < count; ++t) {
      error[t] = expm1(error[t] + ldexp(1, -21) + 8 * ldexp(1, -24) * (fabs(score[t]) + fabs(most)));
      total += score[t] = exp(score[t] - most);
    }
    for (t = 0; t < count; ++t) score[t] /= total, below += score[t] * ((1 + error[t]) * (1 + sums) - 1);
    for (i = 0; i < D; ++i) {
      double y = 0, above = 0, bound, share;
      for (t = 0; t < count; ++t) {
        const double step = s->step[1][t * width + at + i], zero = s->zero[1][t * width + at + i];
        y += score[t] * (step + zero);
        above += score[t] * (fabs(step) + fabs(zero)) * ((1 + error[t]) * (1 + sums) * (1 + ldexp(1, -10)) - 1) + ldexp(1, -25) * (top + fabs(step + zero) + 1) / total;
      }
      bound = (above + fabs(y) * below) / (1 - below);
      bound += ldexp(1, -10) * (fabs(y) + bound) + ldexp(1, -25);
      share = fabs(half_value(got[h * D + i]) - y) / bound;
      worst = share > worst || isnan(share) ? (isnan(share) ? INFINITY : share) : worst;
    }
  }
  free(score), free(error);
  return worst;
}

static tokens new_tokens(int most, int width) {
  tokens s;
  int side;
  s.count = s.packed = 0;
  for (side = 0; side < 2; ++side) {
    s.x[side] = calloc((size_t)(most * width), sizeof(double));
    s.step[side] = calloc((size_t)(most * width), sizeof(double));
    s.zero[side] = calloc((size_t)(most * width), sizeof(double));
  }
  return s;
}

/* A token, or several, of one sequence: drawn, kept as numbers, exact until they are packed; returns its f16 in `to`. */
static void add_tokens(tokens *s, int width, int count, uint16_t *const to[2]) {
  int side, i;
  for (side = 0; side < 2; ++side)
    for (i = 0; i < count * width; ++i) {
      const double x = draw();
      s->x[side][s->count * width + i] = s->zero[side][s->count * width + i] = x;
      to[side][i] = half_bits(x);
    }
  s->count += count;
}

static void with_gpu(lpq_kv_desc d, const char *name, int numbers) {
  enum { QUERIES = 3 };
  const int width = d.kv_heads * d.head_dim, outputs = d.heads * d.head_dim;
  const double scale = 0.125;
  lpq_kv_info info;
  lpq_kv_pages pages;
  lpq_kv_batch batch;
  tokens all[SEQUENCES];
  uint16_t *host[2], *queries = malloc(sizeof(uint16_t) * (size_t)(SEQUENCES * QUERIES * outputs)), *y = malloc(sizeof(uint16_t) * (size_t)(SEQUENCES * QUERIES * outputs));
  double *q = malloc(sizeof(double) * (size_t)(SEQUENCES * QUERIES * outputs)), worst = 0;
  int32_t counts[2 * SEQUENCES + 1] = {0}, table[SEQUENCES * PAGES_EACH + 1], *at;
  void *memory[4] = {NULL, NULL, NULL, NULL}, *workspace, *k, *v, *to_q, *to_y;
  size_t bytes = 0;
  int i, b, step, prompt, residual, steps;
  LPQ_INIT(info), LPQ_INIT(pages), LPQ_INIT(batch);
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  d.page_tokens = info.unit;
  residual = info.block == 1 ? 0 : (int)info.block, prompt = 2 * (int)info.unit, steps = (residual ? residual : 64) + 3;
  host[0] = malloc(sizeof(uint16_t) * (size_t)(prompt * width)), host[1] = malloc(sizeof(uint16_t) * (size_t)(prompt * width));
  for (i = 0; i < 4; ++i)
    if (info.page_bytes[i]) memory[i] = device_bytes(NULL, COUNT * info.page_bytes[i]);
  pages.count = COUNT;
  pages.keys = memory[0], pages.key_numbers = memory[1], pages.values = memory[2], pages.value_numbers = memory[3];
  for (b = 0; b < SEQUENCES; ++b) all[b] = new_tokens(prompt + steps, width);
  counts[1] = prompt;
  batch.sequences = SEQUENCES, batch.table_pages = PAGES_EACH, batch.tail_room = residual;
  /* Integers may begin at any multiple of 4 bytes, as slices of larger arrays do. */
  memcpy(table + 1, TABLE, sizeof TABLE), table[0] = -1;
  batch.table = (int32_t *)device_bytes(table, sizeof table) + 1;
  at = device_bytes(counts, sizeof counts);
  batch.lengths = at + 1, batch.tails = at + 1 + SEQUENCES;
  if (residual) batch.tail_keys = device_bytes(NULL, (size_t)(SEQUENCES * residual * width) * 2), batch.tail_values = device_bytes(NULL, (size_t)(SEQUENCES * residual * width) * 2);
  GIVES(LPQ_OK, lpq_kv_workspace(context, &d, &batch, QUERIES, &bytes));
  TRUE(bytes >= 262656);
  if (bytes < 262656) return;
  workspace = device_bytes(NULL, bytes);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  /* The first sequence's prompt. */
  add_tokens(&all[0], width, prompt, host);
  quantize(&d, &all[0], 0, prompt), all[0].packed = prompt;
  k = device_bytes(host[0], (size_t)(prompt * width) * 2), v = device_bytes(host[1], (size_t)(prompt * width) * 2);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_pack(context, &d, prompt, k, NULL, 0, batch.table, PAGES_EACH, &pages, workspace, bytes, stream));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_pack(context, &d, prompt, k, v, 0, batch.table, 1, &pages, workspace, bytes, stream));
  NAMES("too few pages");
  if (residual) GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_pack(context, &d, 1, k, v, 0, batch.table, PAGES_EACH, &pages, workspace, bytes, stream));
  GIVES(LPQ_ERROR_WORKSPACE, lpq_kv_pack(context, &d, prompt, k, v, 0, batch.table, PAGES_EACH, &pages, workspace, 100, stream));
  GIVES(LPQ_OK, lpq_kv_pack(context, &d, 0, NULL, NULL, 0, NULL, 0, NULL, NULL, 0, stream));
  GIVES(LPQ_OK, lpq_kv_pack(context, &d, prompt, k, v, 0, batch.table, PAGES_EACH, &pages, workspace, bytes, stream));
  to_q = device_bytes(NULL, (size_t)(SEQUENCES * QUERIES * outputs) * 2), to_y = device_bytes(NULL, (size_t)(SEQUENCES * QUERIES * outputs) * 2);
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_decode(context, &d, 0, to_q, to_y, LPQ_F16, scale, &pages, &batch, workspace, bytes, stream));
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_decode(context, &d, 1, to_q, to_y, LPQ_U8, scale, &pages, &batch, workspace, bytes, stream));
  batch.query_type = LPQ_F32;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_decode(context, &d, 1, to_q, to_y, LPQ_F16, scale, &pages, &batch, workspace, bytes, stream));
  NAMES("query_type");
  batch.query_type = 0;
  GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_decode(context, &d, 1, (char *)to_q + 2, to_y, LPQ_F16, scale, &pages, &batch, workspace, bytes, stream));
  NAMES("16 bytes");
  GIVES(LPQ_ERROR_WORKSPACE, lpq_kv_decode(context, &d, 1, to_q, to_y, LPQ_F16, scale, &pages, &batch, workspace, 512, stream));
  if (residual) GIVES(LPQ_ERROR_ARGUMENT, lpq_kv_append(context, &d, k, v, residual + 1, &pages, &batch, workspace, bytes, stream));
  for (step = 0; step < steps; ++step) {
    /* A token of each sequence; a tail that was full is packed first. */
    const int count = step == steps - 1 ? QUERIES : 1;
    for (b = 0; b < SEQUENCES; ++b) {
      uint16_t *const to[2] = {host[0] + b * width, host[1] + b * width};
      if (residual && all[b].count - all[b].packed == residual) quantize(&d, &all[b], all[b].packed, residual), all[b].packed += residual;
      add_tokens(&all[b], width, 1, to);
      if (!residual) quantize(&d, &all[b], all[b].packed, 1), all[b].packed += 1;
    }
    copy_in(k, host[0], (size_t)(SEQUENCES * width) * 2);
    copy_in(v, host[1], (size_t)(SEQUENCES * width) * 2);
    if (lpq_kv_append(context, &d, k, v, residual, &pages, &batch, workspace, bytes, stream) != LPQ_OK) expect(0, "lpq_kv_append", __LINE__);
    if (step > 1 && step < steps - 5 && step % 50) continue;
    for (i = 0; i < SEQUENCES * count * outputs; ++i) q[i] = draw() / 16, queries[i] = half_bits(q[i]);
    copy_in(to_q, queries, (size_t)(SEQUENCES * count * outputs) * 2);
    GIVES(LPQ_OK, lpq_kv_decode(context, &d, count, to_q, to_y, LPQ_F16, scale, &pages, &batch, workspace, bytes, stream));
    TRUE(to_host(y, (device_memory)(uintptr_t)to_y, (size_t)(SEQUENCES * count * outputs) * 2, stream) == 0 && wait_for(stream) == 0);
    for (b = 0; b < SEQUENCES && numbers; ++b)
      for (i = 0; i < count; ++i) {
        const int row = (b * count + i) * outputs;
        const double share = largest_share(&d, &all[b], all[b].count - count + 1 + i, q + row, y + row, scale);
        worst = share > worst ? share : worst;
      }
  }
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
  if (numbers) {
    TRUE(worst <= 1);
    printf("TIME %s: %d tokens appended, the largest difference is %.3f of the bound\n", name, steps, worst);
  }
}

/* Fitted ends: the bytes that the CPU packs of the same two blocks. */
static void fitted(lpq_kv_desc d, const char *name, int numbers) {
  static const int32_t table[2] = {1, 0};
  const int width = d.kv_heads * d.head_dim;
  lpq_kv_info info;
  lpq_kv_pages here, there;
  lpq_kv_batch batch;
  uint16_t *x[2];
  void *own[4] = {NULL, NULL, NULL, NULL}, *memory[4] = {NULL, NULL, NULL, NULL}, *workspace, *k, *v;
  size_t bytes = 0;
  int i, side, tokens;
  LPQ_INIT(info), LPQ_INIT(here), LPQ_INIT(there), LPQ_INIT(batch);
  d.fit = 1;
  GIVES(LPQ_OK, lpq_kv_describe(&d, &info));
  d.page_tokens = info.unit, tokens = 2 * (int)info.unit;
  for (side = 0; side < 2; ++side) {
    x[side] = malloc(sizeof(uint16_t) * (size_t)(tokens * width));
    for (i = 0; i < tokens * width; ++i) x[side][i] = half_bits(draw());
  }
  for (i = 0; i < 4; ++i)
    if (info.page_bytes[i]) own[i] = calloc(2, info.page_bytes[i]), memory[i] = device_bytes(own[i], 2 * info.page_bytes[i]);
  here.count = there.count = 2;
  here.keys = own[0], here.key_numbers = own[1], here.values = own[2], here.value_numbers = own[3];
  there.keys = memory[0], there.key_numbers = memory[1], there.values = memory[2], there.value_numbers = memory[3];
  batch.sequences = 1, batch.table_pages = 2, batch.tail_room = info.block == 1 ? 0 : (int)info.block;
  GIVES(LPQ_OK, lpq_kv_workspace(context, &d, &batch, 1, &bytes));
  workspace = device_bytes(NULL, bytes);
  GIVES(LPQ_OK, lpq_workspace_init(context, workspace, bytes, stream));
  k = device_bytes(x[0], (size_t)(tokens * width) * 2), v = device_bytes(x[1], (size_t)(tokens * width) * 2);
  GIVES(LPQ_OK, lpq_cpu_kv_pack(&d, tokens, x[0], x[1], 0, table, 2, &here, 2));
  GIVES(LPQ_OK, lpq_kv_pack(context, &d, tokens, k, v, 0, device_bytes(table, sizeof table), 2, &there, workspace, bytes, stream));
  for (i = 0; i < 4 && numbers; ++i)
    if (info.page_bytes[i]) {
      void *got = malloc(2 * info.page_bytes[i]);
      TRUE(to_host(got, (device_memory)(uintptr_t)memory[i], 2 * info.page_bytes[i], stream) == 0 && wait_for(stream) == 0);
      expect(memcmp(got, own[i], 2 * info.page_bytes[i]) == 0, name, __LINE__);
      free(got);
    }
  GIVES(LPQ_OK, lpq_workspace_check(context, workspace, stream));
}

int main(int count, char **arguments) {
  int numbers;
  without_gpu();
  if (count > 1) {
    numbers = strcmp(arguments[1], "gpu") == 0;
    open_device();
    GIVES(LPQ_OK, lpq_context_open(NULL, &context));
    if (!context) exit(1);
    with_gpu(four(), "4 bits by channel", numbers);
    with_gpu(two(), "2 bits by token, heads outside", numbers);
    with_gpu(wide(), "4 bits by channel, heads of 512 dims", numbers);
    with_gpu(words(), "turbomind, keys of 8 bits and values of 4", numbers);
    fitted(four(), "fitted: 4 bits by channel", numbers);
    fitted(two(), "fitted: 2 bits by token, heads outside", numbers);
    fitted(words(), "fitted: turbomind", numbers);
    lpq_context_close(context);
  }
  printf("%d checks, %d failed\n", checks, failed);
  return failed > 0;
}
