/* Checks of the programs of this folder: each is counted, and says what failed. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lpq_kernels.h"

static int checks = 0, failed = 0;

static void expect(int ok, const char* what, int line) {
  ++checks;
  if (ok) return;
  ++failed;
  printf("FAIL line %d: %s (last error: %s)\n", line, what, lpq_last_error());
}
#define TRUE(condition) expect((condition), #condition, __LINE__)
#define GIVES(status, call) expect((call) == (status), #call " is not " #status, __LINE__)
#define NAMES(text) expect(strstr(lpq_last_error(), text) != NULL, "the error does not say '" text "'", __LINE__)
