// libFuzzer: native operations that read bytes of files (decoders, unpacking, dequantization, emulators), with any
// tensors and parameters. Each either runs or throws Failure; AddressSanitizer and UndefinedBehaviorSanitizer see the
// rest. scripts/fuzz-native.mjs builds and runs it.
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lpq/exec.h"
#include "lpq/failure.h"

namespace {

using namespace lpq;

// Takes what the fuzzer gives from the front; zeros once it is used up.
class Input {
 public:
  Input(const uint8_t* data, size_t size) : data_(data), size_(size) {}
  uint8_t byte() {
    if (size_ == 0) return 0;
    --size_;
    return *data_++;
  }
  int64_t below(int64_t bound) { return (byte() * 256 + byte()) % bound; }
  bool coin() { return (byte() & 1) != 0; }
  void fill(std::byte* to, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) to[i] = static_cast<std::byte>(byte());
  }

 private:
  const uint8_t* data_;
  size_t size_;
};

const char* const OPS[] = {
    "verify_compare",       "verify_decode_awq",        "verify_gguf_values", "verify_gguf_fields",
    "verify_decode_sparse", "verify_decode_gptq",       "verify_decode_ct",   "verify_decode_zeros",
    "verify_decode_tiles",  "verify_decode_parameters", "verify_split_pairs", "verify_dequantize",
    "verify_transpose",     "verify_convert_exact",     "unpack_codes",       "pack_codes",
    "dequantize",           "gguf_encode_blocks",       "gguf_take_rows",     "sparse_compress",
    "fuse_scale_zero",      "prune_magnitude"};
const char* const INTEGERS[] = {
    "add",     "bias",           "bits",     "flip",   "k",      "stream",   "kp",        "np",        "pad",
    "down",    "constant",       "gp",       "blockK", "blockN", "exponent", "mantissa",  "hasGlobal", "hasGroup",
    "hasMask", "hasPermutation", "hasZeros", "signed", "rows",   "group",    "groupSize", "zero",      "global"};
const char* const KINDS[] = {"int", "float"};
const char* const SPECIALS[] = {"none", "ieee", "fn", "finite"};
const char* const TYPES[] = {"q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_k",
                             "q3_k", "q4_k", "q5_k", "q6_k", "f16",  "nonsense"};
const char* const FORMS[] = {"marlin", "marlin8", "turbomind", "turbomind_sm70",
                             "tilus",  "scales",  "zeros",     "nonsense"};
const DType DTYPES[] = {DType::u8,  DType::u8,  DType::u16, DType::u32,     DType::i32,     DType::f16, DType::bf16,
                        DType::f32, DType::f64, DType::i16, DType::f8_e4m3, DType::f8_e8m0, DType::i64};
// Dimensions that layouts have, their neighbours, and nothing.
const int64_t DIMENSIONS[] = {0,  1,  2,  3,  4,  7,   8,   16,  18,  20,  22, 24,
                              31, 32, 34, 64, 84, 110, 128, 144, 176, 210, 256};

template <class T, size_t N>
const T& pick(Input& in, const T (&list)[N]) {
  return list[static_cast<size_t>(in.below(N))];
}

Tensor tensor(Input& in) {
  std::vector<int64_t> shape(static_cast<size_t>(in.below(4)));
  int64_t elements = 1;
  for (int64_t& dim : shape) {
    dim = pick(in, DIMENSIONS);
    if (elements * dim > 1 << 16) dim = 1;
    elements *= dim;
  }
  Tensor made = allocate(pick(in, DTYPES), shape);
  std::memset(made.raw(), 0, made.bytes());
  in.fill(made.raw(), std::min<size_t>(made.bytes(), 512));
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static ThreadPool pool(1);
  static std::atomic<int64_t> done, total;
  Input in(data, size);
  const auto found = op_table().find(pick(in, OPS));
  if (found == op_table().end()) __builtin_trap();  // an operation was renamed: name it here too
  Exec exec{pool, done, total};
  Call call;
  std::map<std::string, Params::Value> params;
  for (const char* name : INTEGERS) {
    // Parameters come from lpq's own tables and from checked manifests, never from a file as they are.
    const bool small = in.below(16) < 8;
    // A type is one of those that have a name: its fields are small.
    const bool field = !std::strcmp(name, "bits") || !std::strcmp(name, "exponent") || !std::strcmp(name, "mantissa");
    const int64_t value =
        field || small ? (field ? in.below(8) + !std::strcmp(name, "bits") : 1 + in.below(8)) : pick(in, DIMENSIONS);
    params.insert_or_assign(name, static_cast<double>(value));
  }
  params.insert_or_assign("kind", std::string(pick(in, KINDS)));
  params.insert_or_assign("special", std::string(pick(in, SPECIALS)));
  params.insert_or_assign("type", std::string(pick(in, TYPES)));
  params.insert_or_assign("form", std::string(pick(in, FORMS)));
  const int64_t inputs = in.below(7), outputs = in.below(4);
  try {
    for (int64_t i = 0; i < inputs; ++i) call.in.push_back(tensor(in));
    for (int64_t i = 0; i < outputs; ++i) call.out.push_back(tensor(in));
    // An operation refuses parameters that it does not know before it runs: without each that it names, once more.
    static std::map<std::string, std::set<std::string>> unknown;
    std::set<std::string>& left_out = unknown[found->first];
    for (;;) {
      Call known{call.in, call.out, {}};
      for (const auto& [name, value] : params)
        if (!left_out.count(name)) known.params.set(name, value);
      try {
        found->second(known, exec);
        break;
      } catch (const Failure& failure) {
        const std::string what = failure.what();
        const size_t at = what.find(" is called '");
        if (at == std::string::npos || !left_out.insert(what.substr(at + 12, what.size() - at - 13)).second) break;
      }
    }
  } catch (const Failure&) {
  } catch (const std::out_of_range&) {  // Tensor::dim of an axis that is not there; the queue reports it too
  }
  return 0;
}
