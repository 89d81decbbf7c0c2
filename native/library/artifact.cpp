#include "library/artifact.h"

#include <dirent.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>

#include "cuda/driver.h"
#include "library/context.h"
#include "library/status.h"
#include "lpq/half.h"
#include "lpq/json.h"

namespace lpq::library {
namespace {

using Kind = Json::Kind;

[[noreturn]] void malformed(const std::string& what) { throw Failure("LPQ_ARTIFACT", "lpq.json: " + what); }

const Json& member(const Json& object, const char* name, Kind kind, const std::string& where) {
  const Json* found = object.find(name);
  if (!found || !found->is(kind)) malformed(where + " lacks '" + name + "', or it is of another kind");
  return *found;
}

std::pair<int64_t, int64_t> pair_of(const Json& object, const char* name, const std::string& where) {
  const Json& list = member(object, name, Kind::list, where);
  if (list.items().size() == 2) {
    const auto a = list.items()[0].natural(), b = list.items()[1].natural();
    if (a && b && *a > 0 && *b > 0) return {*a, *b};
  }
  malformed(where + ": '" + name + "' is not [N, K]");
}

// NAME of a mixture's expert: (^|.)experts.NUMBER.
bool is_expert(const std::string& name) {
  for (size_t at = name.find("experts."); at != std::string::npos; at = name.find("experts.", at + 1)) {
    if (at > 0 && name[at - 1] != '.') continue;
    size_t digit = at + 8;
    while (digit < name.size() && name[digit] >= '0' && name[digit] <= '9') ++digit;
    if (digit > at + 8 && digit < name.size() && name[digit] == '.') return true;
  }
  return false;
}

// Which kernel takes a module, or why none does.
void place(Module& m) {
  const auto other = [&](std::string why) { m.layout = LPQ_LAYOUT_OTHER, m.why_other = std::move(why); };
  const bool permuted = m.own("permutation") != nullptr;
  const auto has = [&](std::initializer_list<const char*> suffixes) {
    for (const char* suffix : suffixes)
      if (!m.own(suffix)) return other(std::string("its tensor '") + suffix + "' is missing"), false;
    return true;
  };
  if (m.layout_name == "tilus") {
    if (!has({"packed", "scales"})) return;
    if (m.stored_zeros && !m.own("zeros")) return other("its tensor 'zeros' is missing");
    m.cpu_layout = LPQ_LAYOUT_TILUS;
    if (permuted) return other("its columns are in another order, for which tilus has no kernel");
    m.layout = LPQ_LAYOUT_TILUS;
  } else if (m.layout_name == "marlin") {
    if (!has({"B", "s"})) return;
    // Without zero points the layout's own is the middle of unsigned codes.
    const double middle = m.type[0] == 'u' ? std::ldexp(1.0, m.type[1] - '1') : 0;
    if (!m.own("zp") && (m.stored_zeros || m.zero != middle)) return other("its tensor 'zp' is missing");
    m.layout = LPQ_LAYOUT_MARLIN;
  } else if (m.layout_name == "turbomind") {
    if (!m.own("packed") || !(m.own("scales") || m.own("scales_zeros")))
      return other("its tensors 'packed' and 'scales' are missing");
    if (m.k_padded != m.k) return other("its K is padded");
    m.experts = m.type[0] != 'f' && is_expert(m.name);
    m.layout = LPQ_LAYOUT_TURBOMIND;
  } else if (m.layout_name == "sparse_marlin") {
    if (!has({"B", "meta", "s"})) return;
    m.layout = LPQ_LAYOUT_SPARSE_MARLIN;
  } else if (m.layout_name == "comet") {
    if (!has({"packed", "scales", "bits", "clip", "blocks"})) return;
    m.layout = LPQ_LAYOUT_COMET;
  } else {
    other("its layout '" + m.layout_name + "' has no kernel in this library");
  }
}

// The parts of what ranks share. Their tensors are checked against each other as any module's are.
void read_ranks(Module& m, const Json& ranks, const std::string& where) {
  if (!ranks.is(Kind::object)) malformed(where + ": its ranks are no object");
  const auto count = member(ranks, "count", Kind::number, where).natural();
  const std::string& split = member(ranks, "split", Kind::string, where).text();
  m.along_inputs = split == "k";
  if (!count || *count < 2 || *count > 1024 || (split != "n" && split != "k") ||
      (m.along_inputs ? m.k : m.n) % *count != 0 || (m.along_inputs && m.group && m.k / *count % m.group != 0))
    malformed(where + ": its ranks cannot share [" + std::to_string(m.n) + ", " + std::to_string(m.k) + "]");
  for (int64_t rank = 0; rank < *count; ++rank) {
    Module part = m;
    part.ranks.clear(), part.tensors.clear();
    part.name = m.name + ".rank" + std::to_string(rank), part.bias = nullptr;
    (m.along_inputs ? part.k : part.n) /= *count;
    for (const StoredTensor* tensor : m.tensors)
      if (tensor->name.rfind(part.name + ".", 0) == 0) part.tensors.push_back(tensor);
    place(part);
    if (part.layout != LPQ_LAYOUT_COMET && part.layout != LPQ_LAYOUT_OTHER) part.cpu_layout = part.layout;
    if (rank == 0) m.cpu_layout = part.cpu_layout, m.why_other = part.why_other;
    if (part.cpu_layout != m.cpu_layout) malformed(where + ": the parts of its ranks are of several layouts");
    m.ranks.push_back(std::move(part));
  }
  m.layout = LPQ_LAYOUT_OTHER;
  if (m.cpu_layout != LPQ_LAYOUT_OTHER) m.why_other = "it is shared out over ranks";
}

void read_module(lpq_artifact& artifact, const std::string& name, const Json& entry) {
  const std::string where = "module '" + name + "'";
  if (!entry.is(Kind::object)) malformed(where + " is no object");
  if (name.find('\0') != std::string::npos) malformed("a module's name holds a zero byte");
  Module m;
  m.name = name;
  m.layout_name = member(entry, "layout", Kind::string, where).text();
  m.type = member(entry, "type", Kind::string, where).text();
  try {
    ops::type_named(m.type);
  } catch (const Failure& failure) {
    malformed(where + ": " + failure.what());
  }
  std::tie(m.n, m.k) = pair_of(entry, "shape", where);
  std::tie(m.n_padded, m.k_padded) = pair_of(entry, "padded", where);
  const Json& granularity = member(entry, "granularity", Kind::object, where);
  const std::string& kind = member(granularity, "kind", Kind::string, where).text();
  if (kind == "group") {
    const auto size = member(granularity, "size", Kind::number, where).natural();
    if (!size || *size == 0 || *size > (1 << 30)) malformed(where + ": its group size is no whole number above 0");
    m.group = static_cast<int>(*size);
  } else if (kind != "channel") {
    malformed(where + ": its granularity is '" + kind + "'");
  }
  const Json& zeros = member(entry, "zeros", Kind::object, where);
  const std::string& zeros_kind = member(zeros, "kind", Kind::string, where).text();
  m.stored_zeros = zeros_kind == "int" || zeros_kind == "float";
  if (zeros_kind == "const") m.zero = member(zeros, "value", Kind::number, where).number();
  const Json& tensors = member(entry, "tensors", Kind::object, where);
  for (const std::string& tensor : tensors.names()) {
    const auto found = artifact.tensors.find(tensor);
    if (found == artifact.tensors.end()) malformed(where + " lists tensor '" + tensor + "', which no file holds");
    m.tensors.push_back(&found->second);
  }
  std::sort(m.tensors.begin(), m.tensors.end(),
            [](const StoredTensor* a, const StoredTensor* b) { return a->name < b->name; });
  if (const auto bias = artifact.tensors.find(name + ".bias"); bias != artifact.tensors.end()) m.bias = &bias->second;
  if (const Json* ranks = entry.find("ranks")) {
    read_ranks(m, *ranks, where);
  } else {
    place(m);
    if (m.layout != LPQ_LAYOUT_COMET && m.layout != LPQ_LAYOUT_OTHER) m.cpu_layout = m.layout;
  }
  artifact.modules.emplace(name, std::move(m));
}

std::vector<std::string> shards_of(const std::string& directory) {
  DIR* folder = ::opendir(directory.c_str());
  if (!folder) throw Failure("LPQ_FILE", directory + " is no directory that can be read");
  std::vector<std::string> names;
  while (const dirent* entry = ::readdir(folder)) {
    const std::string name = entry->d_name;
    constexpr std::string_view ending = ".safetensors";
    if (name.size() > ending.size() && name.compare(name.size() - ending.size(), ending.size(), ending) == 0)
      names.push_back(name);
  }
  ::closedir(folder);
  std::sort(names.begin(), names.end());
  return names;
}

std::unique_ptr<lpq_artifact> open_artifact(const std::string& directory) {
  auto artifact = std::make_unique<lpq_artifact>();
  const Mapping manifest(directory + "/lpq.json");
  Json root;
  try {
    root = Json::parse(manifest.bytes());
  } catch (const Failure& failure) {
    malformed(std::string("it is not valid JSON: ") + failure.what());
  }
  if (!root.is(Kind::object)) malformed("it is no object");
  const std::string& format = member(root, "format", Kind::string, "it").text();
  if (format != "lpq-artifact") malformed("its format is '" + format + "', not lpq-artifact: `lpq pack` makes one");
  if (const auto version = member(root, "version", Kind::number, "it").natural(); version != 1)
    malformed("its version is not 1");
  for (const std::string& name : shards_of(directory)) {
    artifact->files.emplace_back(directory + "/" + name);
    for (StoredTensor& tensor : read_safetensors(artifact->files.back())) {
      const std::string key = tensor.name;
      if (!artifact->tensors.emplace(key, std::move(tensor)).second)
        throw Failure("LPQ_ARTIFACT", "tensor '" + key + "' is in two files of " + directory);
    }
  }
  if (artifact->files.empty()) throw Failure("LPQ_FILE", directory + " holds no .safetensors file");
  const Json& modules = member(root, "modules", Kind::object, "it");
  for (size_t i = 0; i < modules.names().size(); ++i) read_module(*artifact, modules.names()[i], modules.items()[i]);
  for (const auto& [name, tensor] : artifact->tensors) artifact->tensor_list.push_back(&tensor);
  for (const auto& [name, module] : artifact->modules) artifact->module_list.push_back(&module);
  return artifact;
}

}  // namespace

const Module& module_called(const lpq_artifact* artifact, const char* name) {
  argument(artifact != nullptr && name != nullptr, "artifact or name is NULL");
  const auto found = artifact->modules.find(std::string_view(name));
  if (found == artifact->modules.end())
    throw Failure("LPQ_NOT_FOUND", std::string("no module is called '") + name + "'");
  return found->second;
}

namespace {

template <class T>
const T* nth(const std::vector<const T*>& list, int64_t i, const std::string& none) {
  if (i < 0 || i >= static_cast<int64_t>(list.size()))
    throw Failure("LPQ_NOT_FOUND", none + " of number " + std::to_string(i));
  return list[static_cast<size_t>(i)];
}

void give_tensor(const StoredTensor& stored, lpq_tensor* to) {
  lpq_tensor tensor{};
  tensor.name = stored.name.c_str();
  tensor.dtype = stored.dtype;
  tensor.rank = static_cast<int>(stored.shape.size());
  std::copy(stored.shape.begin(), stored.shape.end(), tensor.shape);
  tensor.bytes = stored.bytes;
  tensor.data = stored.data;
  hand_out(tensor, to, "tensor");
}

void give_module(const Module& m, lpq_module_info* to) {
  lpq_module_info info{};
  info.name = m.name.c_str();
  info.layout_name = m.layout_name.c_str();
  info.layout = m.layout;
  info.type = m.type.c_str();
  info.n = m.n, info.k = m.k, info.n_padded = m.n_padded, info.k_padded = m.k_padded;
  info.group = m.group;
  info.tensors = static_cast<int64_t>(m.tensors.size());
  info.bias = m.bias != nullptr;
  info.zero = m.zero;
  hand_out(info, to, "info");
}

// Bytes of a bias: comet's is f32.
size_t bias_bytes(const Module& m) {
  return m.bias ? static_cast<size_t>(m.n) * (m.layout == LPQ_LAYOUT_COMET ? 4 : 2) : 0;
}

size_t module_bytes(const Module& m) {
  size_t bytes = m.bias ? placed(bias_bytes(m)) : 0;
  for (const StoredTensor* tensor : m.tensors) bytes += placed(tensor->bytes);
  return bytes;
}

// How many blocks of 128 columns have activations of 8 bits; that each block is numbered among those of its precision.
int64_t eight_bit_blocks(const Module& m) {
  const StoredTensor &bits = *m.own("bits"), &blocks = *m.own("blocks");
  const auto count = static_cast<size_t>(m.k / 128);
  if (bits.dtype != LPQ_U8 || bits.bytes != count || blocks.dtype != LPQ_I32 || blocks.bytes != 4 * count)
    throw Failure("LPQ_ARTIFACT", "tensors '" + bits.name + "' and '" + blocks.name + "' are not of " +
                                      std::to_string(count) + " blocks");
  int32_t eights = 0, fours = 0;
  for (size_t b = 0; b < count; ++b) {
    int32_t place = 0;
    std::memcpy(&place, blocks.data + 4 * b, 4);
    const auto width = static_cast<int>(bits.data[b]);
    if (width != 4 && width != 8)
      throw Failure("LPQ_ARTIFACT", "tensor '" + bits.name + "' holds " + std::to_string(width) + ", not 4 or 8");
    if (place != (width == 8 ? eights++ : ~fours++))
      throw Failure("LPQ_ARTIFACT", "tensor '" + blocks.name + "' does not number the blocks of each precision");
  }
  return eights;
}

// The tensors of a module in the order in which Layer's calls, and then the bias, have them, and what these take.
std::vector<std::pair<const char*, const Tensor*>> layer_tensors(const Layer& layer, bool permutation) {
  const auto &codes = layer.codes.in, &product = layer.product.in;
  std::vector<std::pair<const char*, const Tensor*>> list = {{"bits", &codes[1]},
                                                             {"clip", &codes[2]},
                                                             {"blocks", &codes[3]},
                                                             {"packed", &product[4]},
                                                             {"scales", &product[5]}};
  if (permutation) list.push_back({"permutation", &codes[4]});
  return list;
}

// What the kernels are told must be what the file holds: an operation checks shapes against its own, and a tensor's
// bytes are counted here.
void require_shape(const StoredTensor& stored, const Tensor& wanted) {
  if (stored.bytes != wanted.bytes())
    throw Failure("LPQ_ARTIFACT", "tensor '" + stored.name + "' has " + std::to_string(stored.bytes) +
                                      " bytes, and its kernel reads " + std::to_string(wanted.bytes()));
}

}  // namespace

std::vector<std::byte> module_bias(const Module& m, int activations) {
  const StoredTensor& bias = *m.bias;
  const int dtype = bias.dtype;
  if (bias.shape != std::vector<int64_t>{m.n} || (dtype != LPQ_F16 && dtype != LPQ_BF16 && dtype != LPQ_F32))
    throw Failure("LPQ_ARTIFACT",
                  "tensor '" + bias.name + "' is no bias of " + std::to_string(m.n) + " numbers in f16, bf16 or f32");
  std::vector<std::byte> out(bias_bytes(m));
  for (size_t i = 0; i < static_cast<size_t>(m.n); ++i) {
    float value = 0;
    if (dtype == LPQ_F32) {
      std::memcpy(&value, bias.data + 4 * i, 4);
    } else {
      uint16_t half = 0;
      std::memcpy(&half, bias.data + 2 * i, 2);
      value = dtype == LPQ_F16 ? f16_to_f32(half) : bf16_to_f32(half);
    }
    if (m.layout == LPQ_LAYOUT_COMET) {
      std::memcpy(&out[4 * i], &value, 4);
    } else {
      const uint16_t half = activations == LPQ_F16 ? f32_to_f16(value) : f32_to_bf16(value);
      std::memcpy(&out[2 * i], &half, 2);
    }
  }
  return out;
}

Parts parts_of(const Module& m) {
  Parts parts;
  parts.weights = m.own("packed"), parts.scales = m.own("scales"), parts.permutation = m.own("permutation");
  if (m.layout_name == "marlin") parts.weights = m.own("B"), parts.scales = m.own("s"), parts.zeros = m.own("zp");
  if (m.layout_name == "tilus") parts.zeros = m.own("zeros");
  if (m.layout_name == "turbomind" && m.own("scales_zeros")) parts.scales = m.own("scales_zeros");
  if (m.layout_name == "sparse_marlin")
    parts.weights = m.own("B"), parts.scales = m.own("s"), parts.metadata = m.own("meta");
  return parts;
}

lpq_weight_desc describe(const Module& m, int activations, const Parts& parts,
                         const std::function<const void*(const StoredTensor*)>& at) {
  lpq_weight_desc d{};
  d.size = sizeof d;
  d.layout = m.layout;
  d.type = m.type.c_str();
  d.n = m.n, d.k = m.k, d.n_padded = m.n_padded, d.k_padded = m.k_padded;
  d.group = m.group;
  d.activations = activations;
  d.zero = m.layout_name == "tilus" ? m.zero : 0;
  d.experts = m.experts;
  d.weights = at(parts.weights), d.metadata = at(parts.metadata), d.scales = at(parts.scales);
  d.zeros = at(parts.zeros), d.permutation = static_cast<const int32_t*>(at(parts.permutation));
  d.scale_type = parts.scales->dtype;
  d.zero_type = parts.zeros ? parts.zeros->dtype : LPQ_NONE;
  return d;
}

void require_shapes(const Parts& parts, const Call& call) {
  size_t next = 1;  // after x
  for (const StoredTensor* tensor : {parts.weights, parts.metadata, parts.scales, parts.zeros, parts.permutation})
    if (tensor) require_shape(*tensor, call.in[next++]);
}

const StoredTensor* Module::own(const char* suffix) const {
  const std::string wanted = name + "." + suffix;
  for (const StoredTensor* tensor : tensors)
    if (tensor->name == wanted) return tensor;
  return nullptr;
}

}  // namespace lpq::library

using namespace lpq;
using namespace lpq::library;

extern "C" {

lpq_status lpq_artifact_open(const char* directory, lpq_artifact** artifact) {
  return guarded([&] {
    argument(directory != nullptr && artifact != nullptr, "directory or artifact is NULL");
    *artifact = nullptr;
    *artifact = open_artifact(directory).release();
  });
}

void lpq_artifact_close(lpq_artifact* artifact) { delete artifact; }

int64_t lpq_artifact_tensors(const lpq_artifact* artifact) {
  return artifact ? static_cast<int64_t>(artifact->tensor_list.size()) : 0;
}

int64_t lpq_artifact_modules(const lpq_artifact* artifact) {
  return artifact ? static_cast<int64_t>(artifact->module_list.size()) : 0;
}

lpq_status lpq_artifact_tensor_at(const lpq_artifact* artifact, int64_t i, lpq_tensor* tensor) {
  return guarded([&] {
    argument(artifact != nullptr, "artifact is NULL");
    give_tensor(*nth(artifact->tensor_list, i, "there is no tensor"), tensor);
  });
}

lpq_status lpq_artifact_tensor(const lpq_artifact* artifact, const char* name, lpq_tensor* tensor) {
  return guarded([&] {
    argument(artifact != nullptr && name != nullptr, "artifact or name is NULL");
    const auto found = artifact->tensors.find(std::string_view(name));
    if (found == artifact->tensors.end())
      throw Failure("LPQ_NOT_FOUND", std::string("no tensor is called '") + name + "'");
    give_tensor(found->second, tensor);
  });
}

lpq_status lpq_artifact_module_at(const lpq_artifact* artifact, int64_t i, lpq_module_info* info) {
  return guarded([&] {
    argument(artifact != nullptr, "artifact is NULL");
    give_module(*nth(artifact->module_list, i, "there is no module"), info);
  });
}

lpq_status lpq_artifact_module(const lpq_artifact* artifact, const char* name, lpq_module_info* info) {
  return guarded([&] { give_module(module_called(artifact, name), info); });
}

lpq_status lpq_artifact_module_tensor(const lpq_artifact* artifact, const char* module, int64_t i, lpq_tensor* tensor) {
  return guarded([&] {
    const Module& m = module_called(artifact, module);
    give_tensor(*nth(m.tensors, i, "module '" + m.name + "' has no tensor"), tensor);
  });
}

lpq_status lpq_module_bytes(const lpq_artifact* artifact, const char* module, size_t* bytes) {
  return guarded([&] {
    argument(bytes != nullptr, "bytes is NULL");
    *bytes = module_bytes(module_called(artifact, module));
  });
}

lpq_status lpq_module_upload(lpq_context* context, const lpq_artifact* artifact, const char* module, int activations,
                             void* memory, size_t bytes, void* stream, lpq_weight** weight) {
  return guarded([&] {
    argument(weight != nullptr, "weight is NULL");
    *weight = nullptr;
    const Module& m = module_called(artifact, module);
    if (m.layout == LPQ_LAYOUT_OTHER) throw Failure("LPQ_UNSUPPORTED", "module '" + m.name + "': " + m.why_other);
    argument(activations == LPQ_F16 || activations == LPQ_BF16, "activations is neither LPQ_F16 nor LPQ_BF16");
    argument(memory != nullptr && reinterpret_cast<uintptr_t>(memory) % 16 == 0,
             "memory is NULL or does not start at a multiple of 16 bytes");
    argument(bytes >= module_bytes(m),
             "memory has " + std::to_string(bytes) + " bytes, and the module takes " + std::to_string(module_bytes(m)));
    const Current current(context);
    std::map<std::string, void*> places;
    auto* to = static_cast<std::byte*>(memory);
    for (const StoredTensor* tensor : m.tensors) places[tensor->name] = to, to += placed(tensor->bytes);
    const auto at = [&](const StoredTensor* tensor) -> void* { return tensor ? places.at(tensor->name) : nullptr; };
    const Parts parts = parts_of(m);
    lpq_weight_desc d = describe(m, activations, parts, at);
    if (m.layout == LPQ_LAYOUT_COMET) {
      d.block_bits = static_cast<const uint8_t*>(at(m.own("bits")));
      d.block_clip = static_cast<const float*>(at(m.own("clip")));
      d.blocks = static_cast<const int32_t*>(at(m.own("blocks")));
      d.eight_bit_blocks = eight_bit_blocks(m);
    }
    d.bias = m.bias ? to : nullptr;
    std::unique_ptr<lpq_weight> made = make_weight(context, d);
    if (!made->layer) require_shapes(parts, made->call);
    else
      for (const auto& [suffix, wanted] : layer_tensors(*made->layer, d.permutation != nullptr))
        require_shape(*m.own(suffix), *wanted);
    const auto on = static_cast<cuda::CUstream>(stream);
    const auto copy = [&](void* there, const void* here, size_t count) {
      if (count)
        cuda::check(cuda::driver().copy_to_device(reinterpret_cast<cuda::CUdeviceptr>(there), here, count, on),
                    "copying a weight to the device");
    };
    for (const StoredTensor* tensor : m.tensors) copy(places.at(tensor->name), tensor->data, tensor->bytes);
    std::vector<std::byte> bias;
    if (m.bias) {
      bias = module_bias(m, activations);
      copy(to, bias.data(), bias.size());
    }
    cuda::check(cuda::driver().stream_wait(on), "copying a weight to the device");
    *weight = made.release();
  });
}
}
