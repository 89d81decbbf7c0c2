/* Plans that a weight keeps from call to call, on a driver that launches nothing (fake-cuda). For each layout and M: a call that plans ("first"),
   the same again ("again"), and a weight of its own ("fresh"), each under its heading on stderr, where the driver tells its launches. `time`
   prints what a call costs the host. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "lpq_kernels.h"

enum { K = 4096, N = 4096 };

static void need(lpq_status status, const char *what) {
  if (status == LPQ_OK) return;
  fprintf(stderr, "%s: %s\n", what, lpq_last_error());
  exit(1);
}

static void *room(size_t bytes) {
  void *made = NULL;
  if (posix_memalign(&made, 4096, bytes)) exit(1);
  memset(made, 0, bytes);
  return made;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static lpq_weight *weight_of(lpq_context *context, int layout, void *weights, void *scales) {
  lpq_weight_desc d;
  lpq_weight *made = NULL;
  LPQ_INIT(d);
  d.layout = layout;
  d.type = "u4";
  d.k = K, d.n = N, d.group = 128;
  d.activations = d.scale_type = LPQ_F16;
  d.zero = layout == LPQ_LAYOUT_TILUS ? 8 : 0;
  d.weights = weights, d.scales = scales;
  need(lpq_weight_create(context, &d, &made), "lpq_weight_create");
  return made;
}

int main(int count, char **arguments) {
  static const int layouts[] = {LPQ_LAYOUT_TILUS, LPQ_LAYOUT_MARLIN, LPQ_LAYOUT_TURBOMIND};
  static const int64_t tokens[] = {1, 5, 16, 17, 33, 64, 100, 256, 1000};
  const int timed = count > 1 && strcmp(arguments[1], "time") == 0;
  lpq_context *context = NULL;
  void *driver = dlopen("libcuda.so.1", RTLD_NOW), *current = NULL;
  int (*retain)(void **, int), (*select)(void *), (*init)(unsigned);
  void *weights = room((size_t)K * N), *scales = room((size_t)K * N / 16), *x = room((size_t)1024 * K * 2), *y = room((size_t)1024 * N * 2);
  const size_t bytes = (size_t)64 << 20;
  void *workspace = room(bytes);
  if (!driver) return 2;
  *(void **)&init = dlsym(driver, "cuInit");
  *(void **)&retain = dlsym(driver, "cuDevicePrimaryCtxRetain");
  *(void **)&select = dlsym(driver, "cuCtxSetCurrent");
  if (init(0) || retain(&current, 0) || select(current)) return 2;
  need(lpq_context_open(NULL, &context), "lpq_context_open");
  need(lpq_workspace_init(context, workspace, bytes, NULL), "lpq_workspace_init");
  for (size_t l = 0; l < sizeof layouts / sizeof *layouts; ++l) {
    lpq_weight *weight = weight_of(context, layouts[l], weights, scales);
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; ++i) {
      lpq_weight *fresh = weight_of(context, layouts[l], weights, scales);
      const struct {
        const char *what;
        lpq_weight *weight;
      } calls[] = {{"first", weight}, {"again", weight}, {"fresh", fresh}};
      for (int c = 0; c < 3; ++c) {
        fprintf(stderr, "# %d %d %s\n", layouts[l], (int)tokens[i], calls[c].what);
        need(lpq_gemm(calls[c].weight, tokens[i], x, y, workspace, bytes, NULL, LPQ_GEMM_SETTLED), "lpq_gemm");
      }
      lpq_weight_destroy(fresh);
      if (timed) {
        double least = 1e9;
        for (int round = 0; round < 200; ++round) {
          const double from = seconds();
          for (int call = 0; call < 100; ++call) lpq_gemm(weight, tokens[i], x, y, workspace, bytes, NULL, LPQ_GEMM_SETTLED);
          const double took = (seconds() - from) / 100;
          if (took < least) least = took;
        }
        printf("layout %d, M = %d: %.2f us\n", layouts[l], (int)tokens[i], 1e6 * least);
      }
    }
    lpq_weight_destroy(weight);
  }
  lpq_context_close(context);
  return 0;
}
