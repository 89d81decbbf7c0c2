// llama.cpp over one file of GGUF, by its C interface, for drive_llama.py:
//   drive_llama run MODEL COUNT ID...   {"logprobs": [of each ID but the first], "tokens": [COUNT greedy ones]}
//   drive_llama flash MODEL COUNT ID...   the same with flash attention, which models with indexers choose keys in
//   drive_llama windows MODEL SIZE ID...   the mean of -ln p of each ID but the first of every window of SIZE
//   drive_llama tokenize MODEL < TEXT   [IDs of TEXT, without tokens around it]
// Ends with 1 and llama.cpp's first message of an error.
#include <llama.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <iterator>
#include <string>
#include <vector>

namespace {

std::string first_error;

void keep_errors(ggml_log_level level, const char* text, void*) {
  if (level == GGML_LOG_LEVEL_ERROR && first_error.empty()) first_error = text;
}

[[noreturn]] void fail(const std::string& what) {
  std::cerr << (first_error.empty() ? what : first_error) << '\n';
  std::exit(1);
}

template <class T>
void print(const std::vector<T>& values) {
  std::printf("[");
  for (size_t i = 0; i < values.size(); ++i) std::printf("%s%.9g", i ? ", " : "", static_cast<double>(values[i]));
  std::printf("]");
}

void decode(llama_context* context, const std::vector<llama_token>& ids, int first) {
  const auto count = static_cast<int32_t>(ids.size());
  llama_batch batch = llama_batch_init(count, 0, 1);
  batch.n_tokens = count;
  for (int i = 0; i < count; ++i) {
    batch.token[i] = ids[static_cast<size_t>(i)], batch.pos[i] = first + i, batch.logits[i] = 1;
    batch.n_seq_id[i] = 1, batch.seq_id[i][0] = 0;
  }
  if (llama_decode(context, batch) != 0) fail("llama_decode failed");
  llama_batch_free(batch);
}

llama_context* context_of(llama_model* model, int tokens, bool flash = false) {
  llama_context_params params = llama_context_default_params();
  params.n_ctx = params.n_batch = params.n_ubatch = static_cast<uint32_t>(std::max(64, tokens));
  params.n_threads = params.n_threads_batch = 1;
  params.type_k = params.type_v = GGML_TYPE_F32;
  params.flash_attn_type = flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  llama_context* context = llama_init_from_model(model, params);
  if (!context) fail("llama_init_from_model failed");
  return context;
}

// Of each token but the first, once the context has decoded them.
std::vector<double> logprobs_of(llama_context* context, int vocabulary, const std::vector<llama_token>& ids) {
  std::vector<double> logprobs;
  for (int i = 0; i + 1 < static_cast<int>(ids.size()); ++i) {
    const float* logits = llama_get_logits_ith(context, i);
    const double most = *std::max_element(logits, logits + vocabulary);
    double sum = 0;
    for (int v = 0; v < vocabulary; ++v) sum += std::exp(logits[v] - most);
    logprobs.push_back(logits[ids[static_cast<size_t>(i) + 1]] - most - std::log(sum));
  }
  return logprobs;
}

void windows(llama_model* model, int size, const std::vector<llama_token>& ids) {
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model));
  llama_context* context = context_of(model, size);
  double sum = 0;
  size_t tokens = 0;
  for (size_t first = 0; first + static_cast<size_t>(size) <= ids.size(); first += static_cast<size_t>(size)) {
    const auto begin = ids.begin() + static_cast<std::ptrdiff_t>(first);
    const std::vector<llama_token> window(begin, begin + size);
    llama_memory_clear(llama_get_memory(context), true);
    decode(context, window, 0);
    for (const double logprob : logprobs_of(context, vocabulary, window)) sum -= logprob, ++tokens;
  }
  std::printf("%.9g\n", sum / static_cast<double>(tokens));
  llama_free(context);
}

void run(llama_model* model, int wanted, const std::vector<llama_token>& ids, bool flash) {
  const int vocabulary = llama_vocab_n_tokens(llama_model_get_vocab(model)), count = static_cast<int>(ids.size());
  llama_context* context = context_of(model, count + wanted, flash);
  decode(context, ids, 0);
  const std::vector<double> logprobs = logprobs_of(context, vocabulary, ids);
  std::vector<llama_token> tokens;
  for (int i = 0; i < wanted; ++i) {
    const float* logits = llama_get_logits_ith(context, i ? 0 : count - 1);
    tokens.push_back(static_cast<llama_token>(std::max_element(logits, logits + vocabulary) - logits));
    if (i + 1 < wanted) decode(context, {tokens.back()}, count + i);
  }
  std::printf("{\"logprobs\": ");
  print(logprobs);
  std::printf(", \"tokens\": ");
  print(tokens);
  std::printf("}\n");
  llama_free(context);
}

void tokenize(llama_model* model) {
  const std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  std::vector<llama_token> ids(text.size() + 16);
  const int32_t count =
      llama_tokenize(llama_model_get_vocab(model), text.data(), static_cast<int32_t>(text.size()), ids.data(),
                     static_cast<int32_t>(ids.size()), /*add_special=*/false, /*parse_special=*/false);
  if (count < 0) fail("llama_tokenize failed");
  ids.resize(static_cast<size_t>(count));
  print(ids);
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 2 ? argv[1] : "";
  const bool lists = what == "run" || what == "flash" || what == "windows";
  if (what != "tokenize" && !(lists && argc > 5))
    fail("drive_llama run|flash MODEL COUNT ID ID... | windows MODEL SIZE ID ID... | tokenize MODEL");
  llama_log_set(keep_errors, nullptr);
  llama_backend_init();
  llama_model_params params = llama_model_default_params();
  params.vocab_only = what == "tokenize";
  llama_model* model = llama_model_load_from_file(argv[2], params);
  if (!model) fail("llama_model_load_from_file failed");
  if (what == "tokenize") tokenize(model);
  else {
    std::vector<llama_token> ids;
    for (int i = 4; i < argc; ++i) ids.push_back(std::atoi(argv[i]));
    if (what == "windows") windows(model, std::atoi(argv[3]), ids);
    else run(model, std::atoi(argv[3]), ids, what == "flash");
  }
  llama_model_free(model);
  return 0;
}
