/* Opens a damaged copy of an artifact again and again: `library-fuzz DIRECTORY SHARD ROUNDS`. Whatever a few changed bytes make of it,
   it is refused with a code and a sentence, or all that it shows can be read. Writes to the copy, and restores it. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lpq_kernels.h"

static uint32_t state = 12345;
static uint32_t draw(uint32_t below) {
  state = state * 1664525u + 1013904223u;
  return (uint32_t)((uint64_t)(state >> 8) * below >> 24);
}

static unsigned long sum = 0;

static void touch(const lpq_tensor *tensor) {
  const unsigned char *bytes = tensor->data;
  sum += strlen(tensor->name);
  if (tensor->bytes) sum += (unsigned long)bytes[0] + bytes[tensor->bytes - 1];
}

int main(int count, char **arguments) {
  char names[2][4096];
  unsigned char *good[2];
  long sizes[2];
  int round, opened = 0, refused = 0, which, i;
  const int rounds = count > 3 ? atoi(arguments[3]) : 0;
  snprintf(names[0], sizeof names[0], "%s/lpq.json", arguments[1]);
  snprintf(names[1], sizeof names[1], "%s/%s", arguments[1], arguments[2]);
  for (which = 0; which < 2; ++which) {
    FILE *file = fopen(names[which], "rb");
    if (!file) return 2;
    fseek(file, 0, SEEK_END);
    sizes[which] = ftell(file);
    rewind(file);
    good[which] = malloc((size_t)sizes[which]);
    if (fread(good[which], 1, (size_t)sizes[which], file) != (size_t)sizes[which]) return 2;
    fclose(file);
  }
  for (round = 0; round < rounds; ++round) {
    /* Of the shard, its header and its length. */
    static const char kinds[] = "0123456789[]{},:\"-eE.FUI\\ntu";
    uint64_t header = 0;
    long places[4], room;
    lpq_artifact *artifact = NULL;
    lpq_status status;
    const int changes = 1 + (int)draw(4);
    FILE *file;
    which = (int)draw(2);
    for (i = 7; i >= 0; --i) header = header << 8 | good[1][i];
    room = which ? 8 + (long)header : sizes[0];
    file = fopen(names[which], "r+b");
    for (i = 0; i < changes; ++i) {
      places[i] = (long)draw((uint32_t)room);
      fseek(file, places[i], SEEK_SET);
      fputc(draw(4) ? kinds[draw(sizeof kinds - 1)] : (int)draw(256), file);
    }
    fclose(file);
    status = lpq_artifact_open(arguments[1], &artifact);
    if (status == LPQ_OK) {
      lpq_tensor tensor;
      lpq_module_info info;
      int64_t t, m;
      ++opened;
      LPQ_INIT(tensor);
      LPQ_INIT(info);
      for (t = 0; t < lpq_artifact_tensors(artifact); ++t)
        if (lpq_artifact_tensor_at(artifact, t, &tensor) == LPQ_OK) touch(&tensor);
      for (m = 0; m < lpq_artifact_modules(artifact); ++m) {
        size_t bytes = 0;
        if (lpq_artifact_module_at(artifact, m, &info) != LPQ_OK) return 1;
        if (lpq_module_bytes(artifact, info.name, &bytes) != LPQ_OK || bytes == 0) return 1;
        for (t = 0; t < info.tensors; ++t)
          if (lpq_artifact_module_tensor(artifact, info.name, t, &tensor) == LPQ_OK) touch(&tensor);
      }
      lpq_artifact_close(artifact);
    } else {
      ++refused;
      if ((status != LPQ_ERROR_ARTIFACT && status != LPQ_ERROR_FILE) || !*lpq_last_error() || artifact) {
        printf("status %d: %s\n", status, lpq_last_error());
        return 1;
      }
    }
    file = fopen(names[which], "r+b");
    for (i = 0; i < changes; ++i) {
      fseek(file, places[i], SEEK_SET);
      fputc(good[which][places[i]], file);
    }
    fclose(file);
  }
  printf("%d opened, %d refused\n", opened, refused);
  return sum == 0;
}
