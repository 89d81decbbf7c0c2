// Reads and writes blocks of GGUF with the functions that node-llama-cpp's libggml-base.so exports; nothing of lpq is
// in here.
//   ggml_blocks LIB read TYPE            blocks on stdin, f32 on stdout
//   ggml_blocks LIB write TYPE COLUMNS   f32 on stdin, blocks on stdout, found by llama.cpp's own search
#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

struct Type {
  const char* name;
  int id;
  size_t bytes, size;
};

const Type kTypes[] = {{"q4_0", 2, 18, 32},    {"q4_1", 3, 20, 32},    {"q5_0", 6, 22, 32},    {"q5_1", 7, 24, 32},
                       {"q8_0", 8, 34, 32},    {"q2_K", 10, 84, 256},  {"q3_K", 11, 110, 256}, {"q4_K", 12, 144, 256},
                       {"q5_K", 13, 176, 256}, {"q6_K", 14, 210, 256}, {"mxfp4", 39, 17, 32}};

std::vector<uint8_t> everything() {
  std::vector<uint8_t> bytes;
  uint8_t chunk[1 << 16];
  while (size_t got = fread(chunk, 1, sizeof chunk, stdin)) bytes.insert(bytes.end(), chunk, chunk + got);
  return bytes;
}

void* symbol(void* library, const std::string& name) {
  void* found = dlsym(library, name.c_str());
  if (!found) {
    fprintf(stderr, "%s is not exported\n", name.c_str());
    exit(3);
  }
  return found;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  void* library = dlopen(argv[1], RTLD_NOW);
  if (!library) {
    fprintf(stderr, "%s\n", dlerror());
    return 3;
  }
  const Type* type = nullptr;
  for (const Type& each : kTypes)
    if (strcmp(each.name, argv[3]) == 0) type = &each;
  if (!type) return 2;
  const std::vector<uint8_t> input = everything();
  if (strcmp(argv[2], "read") == 0) {
    const int64_t count = static_cast<int64_t>(input.size() / type->bytes * type->size);
    std::vector<float> values(count);
    using Read = void (*)(const void*, float*, int64_t);
    reinterpret_cast<Read>(symbol(library, std::string("dequantize_row_") + type->name))(input.data(), values.data(),
                                                                                         count);
    fwrite(values.data(), sizeof(float), values.size(), stdout);
    return 0;
  }
  if (argc < 5) return 2;
  const int64_t columns = atoll(argv[4]);
  const int64_t rows = static_cast<int64_t>(input.size() / sizeof(float)) / columns;
  std::vector<float> values(rows * columns);
  memcpy(values.data(), input.data(), values.size() * sizeof(float));
  std::vector<uint8_t> blocks(values.size() / type->size * type->bytes);
  using Write = size_t (*)(const float*, void*, int64_t, int64_t, const float*);
  const auto write = reinterpret_cast<Write>(symbol(library, std::string("quantize_") + type->name));
  if (write(values.data(), blocks.data(), rows, columns, nullptr) != blocks.size()) return 4;
  fwrite(blocks.data(), 1, blocks.size(), stdout);
  return 0;
}
