/*
 * lpq_kernels.h - products of packed weights on NVIDIA GPUs, and the artifacts of `lpq pack` that hold the weights.
 * C99.
 *
 *   y [M,N] = x [M,K] W^T + bias      W [N,K] packed in 1 to 8 bits, as docs/internals/layouts says; in
 * W4Ax x becomes codes first
 *
 * Shapes and strides  x, y and bias are f16 or bf16 (all the same; a bias of comet is f32), dense, row-major: x has K
 * elements a row, y has N. x, y and every tensor of the weight start at multiples of 16 bytes, the workspace at one of
 * 512. M is any number from 0 on. N and K are below 2^31 - 1024. Memory              All pointers but strings and
 * structs are device memory of the caller's, in the context's CUDA context (the driver's, or the runtime's and
 * PyTorch's, which is the device's primary context). The library allocates none, frees none, and keeps only the
 * pointers of a weight until lpq_weight_destroy(). Streams             lpq_gemm() launches on the given CUstream (=
 * cudaStream_t; 0: the default stream) and returns. It never waits, so it may be recorded into a CUDA graph, once
 * lpq_gemm_workspace() was asked for that weight and M (which loads the kernels). The same call on the same device
 * gives the same bytes. Blocks of a product may wait for one another's sums, so all of them must get multiprocessors:
 * no two streams of unequal priority may run lpq_gemm() at once, nor a context with a part of the device. Workspace
 * lpq_gemm_workspace() says how many bytes; lpq_workspace_init() once before the first use. One workspace serves any
 * number of weights, one after another; calls that may run at the same time need one each. Errors              Every
 * function that can fail returns an lpq_status; lpq_last_error() is then a sentence, of the calling thread. A failed
 * lpq_gemm() leaves y undefined and the workspace usable. Faults of kernels (a bad address) come, as everywhere in
 * CUDA, with a later call. Threads             A context, its weights and an artifact may be used from several threads
 * at once; opening, closing and destroying not while another uses the same object. Close a context after its weights.
 * Versions            lpq_abi_version() is LPQ_ABI_VERSION for as long as what is written here holds. Structs begin
 * with their size (LPQ_INIT), enumerations grow at their ends. soname: liblpq_kernels.so.ABI.
 */
#ifndef LPQ_KERNELS_H
#define LPQ_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define LPQ_API __attribute__((visibility("default")))
#else
#define LPQ_API
#endif

#define LPQ_ABI_VERSION 1

/* Zeroes a struct and notes its size: lpq_weight_desc desc; LPQ_INIT(desc); */
#define LPQ_INIT(object) lpq_init(&(object), sizeof(object))

typedef enum lpq_status {
  LPQ_OK = 0,
  LPQ_ERROR_ARGUMENT = 1,    /* what was passed breaks the contract above */
  LPQ_ERROR_UNSUPPORTED = 2, /* no kernel takes this layout, type, group or device */
  LPQ_ERROR_DRIVER = 3,      /* no NVIDIA driver, one older than CUDA 12, or a call of it that failed */
  LPQ_ERROR_DEVICE = 4,      /* no current CUDA context, another than the context's, or a device older than 8.0 */
  LPQ_ERROR_KERNELS = 5,     /* lpq_kernels.fatbin is missing, damaged, or of another version */
  LPQ_ERROR_WORKSPACE = 6,   /* the workspace is too small */
  LPQ_ERROR_FILE = 7,        /* a file cannot be opened or read */
  LPQ_ERROR_ARTIFACT = 8,    /* lpq.json or a safetensors file is malformed, or they do not belong together */
  LPQ_ERROR_NOT_FOUND = 9,   /* no module or tensor of that name or number */
  LPQ_ERROR_MEMORY = 10,     /* host memory is exhausted */
  LPQ_ERROR_INTERNAL = 11
} lpq_status;

typedef enum lpq_dtype {
  LPQ_NONE = 0, /* not there */
  LPQ_F16 = 1,
  LPQ_BF16 = 2,
  LPQ_F32 = 3,
  LPQ_F64 = 4,
  LPQ_F8_E4M3 = 5,
  LPQ_F8_E5M2 = 6,
  LPQ_F8_E8M0 = 7,
  LPQ_I8 = 8,
  LPQ_I16 = 9,
  LPQ_I32 = 10,
  LPQ_I64 = 11,
  LPQ_U8 = 12,
  LPQ_U16 = 13,
  LPQ_U32 = 14,
  LPQ_U64 = 15,
  LPQ_BOOL = 16
} lpq_dtype;

/* Layouts of lpq_weight_desc. An artifact may hold others, which have names only (lpq_module_info). */
typedef enum lpq_layout {
  LPQ_LAYOUT_OTHER = 0,
  LPQ_LAYOUT_TILUS = 1,         /* lpq's own, for every type: docs/internals/layouts/tilus.md */
  LPQ_LAYOUT_MARLIN = 2,        /* u4, u8 */
  LPQ_LAYOUT_TURBOMIND = 3,     /* u4, u8, f4e2m1, f8e4m3 */
  LPQ_LAYOUT_SPARSE_MARLIN = 4, /* u4, u8, two of every four stored: docs/internals/layouts/sparse-marlin.md */
  LPQ_LAYOUT_COMET = 5          /* i4 for activations of 4 and 8 bits (W4Ax: docs/fmpq.md), on 9.0 */
} lpq_layout;

typedef struct lpq_context lpq_context;
typedef struct lpq_weight lpq_weight;
typedef struct lpq_artifact lpq_artifact;

LPQ_API int lpq_abi_version(void);
LPQ_API const char* lpq_version(void);           /* of lpq: "0.1.0" */
LPQ_API const char* lpq_last_error(void);        /* of this thread's last call that failed; never NULL */
LPQ_API const char* lpq_status_name(int status); /* "LPQ_ERROR_ARGUMENT" */
LPQ_API void lpq_init(void* object, size_t size);

/* ---- A device ---- */

typedef struct lpq_context_options {
  size_t size;
  const char*
      kernels; /* path of lpq_kernels.fatbin; NULL: $LPQ_CUDA_FATBIN, else beside this library, else in lpq/ there */
  const char* tuning; /* path of stored settings (lpq bench kernels --export); "": none; NULL: where lpq keeps them */
} lpq_context_options;

typedef struct lpq_device_info {
  size_t size;
  char name[128];
  int ordinal;
  int arch; /* 10 * major + minor of the compute capability */
  int multiprocessors;
  int driver; /* CUDA version that the driver speaks: 12080 */
} lpq_device_info;

/* Opens the calling thread's current CUDA context and loads the kernels. `options` may be NULL. */
LPQ_API lpq_status lpq_context_open(const lpq_context_options* options, lpq_context** context);
/* Unloads the kernels; whatever was launched with them must have ended, and its weights and artifacts must be closed.
 * NULL does nothing. */
LPQ_API void lpq_context_close(lpq_context* context);
LPQ_API lpq_status lpq_context_device(const lpq_context* context, lpq_device_info* info);

/* ---- A weight ---- */

typedef struct lpq_weight_desc {
  size_t size;
  int layout; /* lpq_layout */
  const char*
      type; /* u1-u8, i2-i8, or a float such as f4e2m1; marlin, sparse_marlin and turbomind store i4 as u4, i8 as u8 */
  int64_t n, k;               /* of y and of x */
  int64_t n_padded, k_padded; /* as stored; 0: as lpq pack pads */
  int group; /* inputs that share a scale: 32, 64, 128 (sparse_marlin, comet: 128); 0: one scale a row (not turbomind,
                comet) */
  int activations; /* lpq_dtype of x, y and bias */
  const void* weights;
  const void* scales;
  int scale_type; /* tilus: f16, bf16; marlin, sparse_marlin: f16; comet: f32; turbomind: f16 {s, t} pairs of integers,
                     u8 (2^(e-127)) of f4e2m1, f16 or bf16 of f8e4m3 */
  int zero_type;  /* tilus: u8 or f16; marlin: i32; else LPQ_NONE */
  const void* zeros;
  double zero;                /* tilus without zeros: the constant. W = (code - zero) * scale */
  const int32_t* permutation; /* marlin, comet: [K], the column of x of each stored row; or NULL */
  const void* bias;           /* [N], or NULL */
  int experts;                /* tilus: so many (to 4096), each tensor of all of them, one expert after the other, for
                                 lpq_gemm_experts(); 0: none. turbomind: not 0: stored along K first */
  const void* metadata;       /* sparse_marlin: i16 [K'/32, 2N'], where the stored weights stand */
  const uint8_t* block_bits;  /* comet, each [K/128], what blocks of 128 columns of x become: 4 or 8 bits a code, */
  const float* block_clip;    /*   the share of a token's largest magnitude in the block that codes reach, */
  const int32_t* blocks;      /*   the block's number among those of 8 bits, or ~ its number among those of 4 */
  int64_t eight_bit_blocks;   /* comet: how many blocks have 8 bits */
  int gated; /* of experts. Not 0: gate and up of lpq_mixture(), which then gates in the product. n is of gate, as of
                up. Blocks of 32 rows stand by turns in weights, scales, zeros and bias: the first of gate, the first of
                up, the second of gate; rows beyond n are there, too (bias [experts, 2 N'], N' = N rounded up to 32);
                and lpq_gates_interleave() moved rows inside each pair of blocks */
} lpq_weight_desc;

LPQ_API lpq_status lpq_weight_create(lpq_context* context, const lpq_weight_desc* desc, lpq_weight** weight);
LPQ_API void lpq_weight_destroy(lpq_weight* weight);
/* Moves the rows of a described weight, which is gated, to where its kernels read them: on the stream, in place, once,
   after what writes its tensors. No lpq_weight need be there. */
LPQ_API lpq_status lpq_gates_interleave(lpq_context* context, const lpq_weight_desc* desc, void* stream);

/* ---- A product ---- */

/* The call's weight, scales and zero points were written before the last operation on the stream began, as those of a
   loaded model were: the kernel may then begin to read them while that operation still runs. */
#define LPQ_GEMM_SETTLED 1u

/* Bytes that a product of `first` to `last` tokens needs at most. Tries every M between: some 0.01 ms each. */
LPQ_API lpq_status lpq_gemm_workspace(const lpq_weight* weight, int64_t first, int64_t last, size_t* bytes);
/* Zeroes what must be zero before the first call, on the stream. */
LPQ_API lpq_status lpq_workspace_init(lpq_context* context, void* workspace, size_t bytes, void* stream);
/* Waits for the stream, and fails with LPQ_ERROR_ARGUMENT if a call since the last check met bad data: a permutation
   that names a column which x does not have; offsets of experts that do not ascend inside x, an id of no expert; in
   W4Ax also NaN or infinity in x, or block_bits and blocks that contradict each other; a cache that breaks its
   contract. */
LPQ_API lpq_status lpq_workspace_check(lpq_context* context, void* workspace, void* stream);
LPQ_API lpq_status lpq_gemm(const lpq_weight* weight, int64_t m, const void* x, void* y, void* workspace, size_t bytes,
                            void* stream, unsigned flags);

/* Rows of x sorted by expert, each times the weight of its expert, in one launch: y[m] = x[m] W_e^T + bias_e for
   offsets[e] <= m < offsets[e + 1]. `weight` is of experts. `offsets`, [experts + 1] on the device, are 0 or more,
   ascend, and are at most M; the operation before may write them. Rows of y that no expert has stay as they are.
   Offsets that break this: nothing is multiplied, and lpq_workspace_check() tells. Else as lpq_gemm(), which refuses
   such weights; lpq_gemm_workspace() and lpq_gemm_explain() take them, with M = the rows of all experts. The same
   offsets give the same bytes. A gated weight: LPQ_ERROR_ARGUMENT, lpq_mixture() alone takes it. */
LPQ_API lpq_status lpq_gemm_experts(const lpq_weight* weight, int64_t m, const void* x, const int32_t* offsets, void* y,
                                    void* workspace, size_t bytes, void* stream, unsigned flags);

/* Which kernels a product of M tokens runs and why, a line each, ended by a zero; cut to `size` bytes. *needed: all of
 * it. */
LPQ_API lpq_status lpq_gemm_explain(const lpq_weight* weight, int64_t m, char* text, size_t size, size_t* needed);
/* The same without a GPU. `device`: h200, h100, a100, rtx4090 or rtx3090. Pointers of `desc` may be NULL; bias, zeros
   and permutation count as there when zero_type says so, and when they are not NULL. Of another device's W4Ax than 9.0:
   LPQ_ERROR_UNSUPPORTED. */
LPQ_API lpq_status lpq_explain(const char* device, const lpq_weight_desc* desc, int64_t m, char* text, size_t size,
                               size_t* needed);

/* ---- A cache of keys and values in few bits (docs/kv-cache.md; its bytes: formats/kv/spec.md) ----

   A layer's cache is pages, each of page_tokens tokens of all kv heads, and of every sequence a tail: its newest
   tokens, in f16. Keys are those after rotary embedding. What a page holds beyond a sequence's tokens is never read. A
   table names the pages of a sequence in order, in any order of memory; pages may be shared between sequences. Calls
   launch on a stream and never wait. A page, length or tail that is none, and NaN or infinity among keys and values,
   set a word that lpq_workspace_check() tells of. */

typedef enum lpq_kv_form {
  LPQ_KV_BITDECODING = 0, /* packed in whole blocks, newest tokens exact */
  LPQ_KV_TURBOMIND = 1    /* every token packed as it comes, one scale a token and head */
} lpq_kv_form;

typedef struct lpq_kv_desc {
  size_t size;
  int form;                 /* lpq_kv_form */
  int key_bits, value_bits; /* 2, 4 or 8, both the same, or 8 and 4; turbomind: not 2 */
  int by_token; /* scales of bitdecoding's keys: 0, a channel over key_group tokens; 1, a token over key_group dims */
  int key_group, value_group; /* 32, 64 or 128, and of dims min(key_group, stored dims); turbomind: stored dims */
  int heads, kv_heads;        /* of queries, a multiple, and of keys and values */
  int head_dim;               /* a multiple of 8, 64 to 512; stored as 64, 128, 256 or 512, the least that suffice */
  int outer;                  /* 1: in a page heads stand outside tokens */
  int64_t page_tokens;        /* a multiple of lpq_kv_info.unit */
  int fit;                    /* 1: ends of groups are fitted as they are packed */
} lpq_kv_desc;

typedef struct lpq_kv_info {
  size_t size;
  int64_t block;        /* tokens that are packed together */
  int64_t unit;         /* page_tokens is a multiple of it */
  size_t page_bytes[4]; /* of keys, their numbers, values, theirs; turbomind: of the one block, then 0 */
} lpq_kv_info;

/* Pages of a layer: page p begins p * page_bytes after each pointer, all at multiples of 16. */
typedef struct lpq_kv_pages {
  size_t size;
  int64_t count;
  void* keys; /* turbomind: the blocks; the others are NULL */
  void* key_numbers;
  void* values;
  void* value_numbers;
} lpq_kv_pages;

/* Sequences that decode together; all pointers are device memory. */
typedef struct lpq_kv_batch {
  size_t size;
  int64_t sequences, table_pages, tail_room;
  const int32_t* table; /* [sequences, table_pages] */
  int32_t* lengths;     /* [sequences], packed tokens: whole blocks */
  int32_t* tails;       /* [sequences], tokens of the tail, at most tail_room */
  void* tail_keys;      /* f16 [sequences, tail_room, kv_heads, head_dim]; NULL where tail_room is 0 */
  void* tail_values;
  const void* sinks; /* of lpq_kv_decode(): NULL, or [heads], a logit a head that has no value */
  int sinks_type;    /* LPQ_F16, LPQ_BF16 or LPQ_F32 */
  int query_type;    /* of q: 0, which is LPQ_F16, or LPQ_BF16 */
} lpq_kv_batch;

/* Needs no GPU. `desc->page_tokens` may be 0: page_bytes are then of `unit` tokens. */
LPQ_API lpq_status lpq_kv_describe(const lpq_kv_desc* desc, lpq_kv_info* info);
/* Bytes of a workspace for the calls below over such a batch (its pointers are not looked at), of 1 and of `queries`
   queries a sequence. Loads their kernels. The workspace is one as of lpq_gemm(). */
LPQ_API lpq_status lpq_kv_workspace(lpq_context* context, const lpq_kv_desc* desc, const lpq_kv_batch* batch,
                                    int64_t queries, size_t* bytes);
/* Quantizes k and v, f16 [tokens, kv_heads, head_dim], whole blocks, and packs them as tokens first .. of the sequence
   whose pages `table`, [table_pages], names. */
LPQ_API lpq_status lpq_kv_pack(lpq_context* context, const lpq_kv_desc* desc, int64_t tokens, const void* k,
                               const void* v, int64_t first, const int32_t* table, int64_t table_pages,
                               const lpq_kv_pages* pages, void* workspace, size_t bytes, void* stream);
/* A step's token of every sequence, k and v f16 [sequences, kv_heads, head_dim]. bitdecoding: a tail that is full
   (`residual` tokens, whole blocks up to tail_room) is packed first, lengths grows by residual and tails becomes 0;
   then the token goes to the tail. turbomind: the token is packed, lengths grows by 1. */
LPQ_API lpq_status lpq_kv_append(lpq_context* context, const lpq_kv_desc* desc, const void* k, const void* v,
                                 int64_t residual, const lpq_kv_pages* pages, const lpq_kv_batch* batch,
                                 void* workspace, size_t bytes, void* stream);
/* Attention of the `queries` newest tokens of every sequence, which are in the cache already: y = softmax(q k^T scale)
   v, each query over tokens up to its own. q f16 [sequences * queries, heads, head_dim] (batch->query_type), y of that
   shape, `type` LPQ_F16, LPQ_BF16 or LPQ_F32; 0 where a query sees no token. */
LPQ_API lpq_status lpq_kv_decode(lpq_context* context, const lpq_kv_desc* desc, int64_t queries, const void* q, void* y,
                                 int type, double scale, const lpq_kv_pages* pages, const lpq_kv_batch* batch,
                                 void* workspace, size_t bytes, void* stream);

/* ---- A cache of latents (MLA) in few bits (docs/kv-cache.md; its bytes: formats/kv/spec.md, "latent") ----

   A layer's cache is pages of page_tokens tokens. A token is its latent c, which is key and value of all heads, and its
   rotary key, turned, which stays f16. Attention runs in the space of the latent: multiply queries by W_uk before, and
   results by W_uv after. Tables, streams and faults are as above; there are no tails, every token is packed as it
   comes. Zeros behind fewer dims make latents and rotary keys of the sizes below. */

typedef struct lpq_latent_desc {
  size_t size;
  int bits;            /* 2, 4, 8, or 16: latents as they are */
  int group;           /* dims that share a scale and a zero: 32, 64 or 128, a divisor of latent; of 16 bits any */
  int latent;          /* dims: a multiple of 64, 64 to 512 */
  int rotary;          /* of the rotary key: a multiple of 16, 16 to 64 */
  int heads;           /* of queries */
  int64_t page_tokens; /* a multiple of 32 */
} lpq_latent_desc;

typedef struct lpq_latent_info {
  size_t size;
  int64_t unit;      /* page_tokens is a multiple of it */
  size_t page_bytes; /* of a page */
} lpq_latent_info;

/* Pages of a layer: page p begins p * page_bytes after `data`, a multiple of 16. */
typedef struct lpq_latent_pages {
  size_t size;
  int64_t count;
  void* data;
} lpq_latent_pages;

/* Sequences that decode together; all pointers are device memory. */
typedef struct lpq_latent_batch {
  size_t size;
  int64_t sequences, table_pages;
  const int32_t* table; /* [sequences, table_pages] */
  int32_t* lengths;     /* [sequences], tokens */
  int query_type;       /* of q: 0, which is LPQ_F16, or LPQ_BF16 */
} lpq_latent_batch;

/* Needs no GPU. `desc->page_tokens` may be 0: page_bytes is then of `unit` tokens. */
LPQ_API lpq_status lpq_latent_describe(const lpq_latent_desc* desc, lpq_latent_info* info);
/* Bytes of a workspace for the calls below over such a batch of up to batch->sequences sequences (its pointers are not
   looked at), of 1 and of `queries` queries a sequence. Loads their kernels. The workspace is one as of lpq_gemm(). */
LPQ_API lpq_status lpq_latent_workspace(lpq_context* context, const lpq_latent_desc* desc,
                                        const lpq_latent_batch* batch, int64_t queries, size_t* bytes);
/* Quantizes c f16 [tokens, latent] and packs it with rotary f16 [tokens, rotary] as tokens first .. of the sequence
   whose pages `table`, [table_pages], names. */
LPQ_API lpq_status lpq_latent_pack(lpq_context* context, const lpq_latent_desc* desc, int64_t tokens, const void* c,
                                   const void* rotary, int64_t first, const int32_t* table, int64_t table_pages,
                                   const lpq_latent_pages* pages, void* workspace, size_t bytes, void* stream);
/* A step's token of every sequence, c f16 [sequences, latent] and rotary f16 [sequences, rotary], packed at its end;
   lengths grows by 1. */
LPQ_API lpq_status lpq_latent_append(lpq_context* context, const lpq_latent_desc* desc, const void* c,
                                     const void* rotary, const lpq_latent_pages* pages, const lpq_latent_batch* batch,
                                     void* workspace, size_t bytes, void* stream);
/* Attention of the `queries` newest tokens of every sequence, which are in the cache already: y = softmax(q k^T scale)
   c, where k is a token's latent and then its rotary key, each query over tokens up to its own. q f16 [sequences *
   queries, heads, latent + rotary] (batch->query_type), y [sequences * queries, heads, latent], `type` LPQ_F16,
   LPQ_BF16 or LPQ_F32; 0 where a query sees no token. */
LPQ_API lpq_status lpq_latent_decode(lpq_context* context, const lpq_latent_desc* desc, int64_t queries, const void* q,
                                     void* y, int type, double scale, const lpq_latent_pages* pages,
                                     const lpq_latent_batch* batch, void* workspace, size_t bytes, void* stream);

/* ---- An artifact: a directory that `lpq pack` wrote ---- */

#define LPQ_MAX_RANK 8

typedef struct lpq_tensor {
  size_t size;
  const char* name; /* names and data live as long as the artifact */
  int dtype;        /* lpq_dtype */
  int rank;
  int64_t shape[LPQ_MAX_RANK];
  size_t bytes;
  const void* data; /* host memory, mapped read-only; at any alignment */
} lpq_tensor;

typedef struct lpq_module_info {
  size_t size;
  const char* name;        /* model.layers.0.mlp.down_proj */
  const char* layout_name; /* "tilus", "marlin", "gptq", ... */
  int layout;              /* lpq_layout; LPQ_LAYOUT_OTHER where this library has no kernel for the module */
  const char* type;
  int64_t n, k, n_padded, k_padded;
  int group;       /* 0: one scale a row */
  int64_t tensors; /* of its own, MODULE.* */
  int bias;        /* there is a MODULE.bias, too */
  double zero;     /* the constant zero point, where there are none of groups */
} lpq_module_info;

/* Reads lpq.json and the headers of the safetensors files beside it, and maps these. Checks all that offsets, shapes
   and names claim; hashes are `lpq verify`'s business. The files must not change while they are open. */
LPQ_API lpq_status lpq_artifact_open(const char* directory, lpq_artifact** artifact);
LPQ_API void lpq_artifact_close(lpq_artifact* artifact);
LPQ_API int64_t lpq_artifact_tensors(const lpq_artifact* artifact); /* in order of their names */
LPQ_API int64_t lpq_artifact_modules(const lpq_artifact* artifact);
LPQ_API lpq_status lpq_artifact_tensor_at(const lpq_artifact* artifact, int64_t i, lpq_tensor* tensor);
LPQ_API lpq_status lpq_artifact_tensor(const lpq_artifact* artifact, const char* name, lpq_tensor* tensor);
LPQ_API lpq_status lpq_artifact_module_at(const lpq_artifact* artifact, int64_t i, lpq_module_info* info);
LPQ_API lpq_status lpq_artifact_module(const lpq_artifact* artifact, const char* name, lpq_module_info* info);
LPQ_API lpq_status lpq_artifact_module_tensor(const lpq_artifact* artifact, const char* module, int64_t i,
                                              lpq_tensor* tensor);

/* Device bytes that a module's tensors take, its bias in f16 or bf16 (comet: f32) included. */
LPQ_API lpq_status lpq_module_bytes(const lpq_artifact* artifact, const char* module, size_t* bytes);
/* Copies them to `memory` (16-byte aligned, of that many bytes) on the stream, and describes the weight. Returns when
   the host's bytes were read, so that the artifact may then be closed. */
LPQ_API lpq_status lpq_module_upload(lpq_context* context, const lpq_artifact* artifact, const char* module,
                                     int activations, void* memory, size_t bytes, void* stream, lpq_weight** weight);

/* The experts of a projection, each a module, or several whose outputs stand below one another (gate, up). */
typedef struct lpq_experts_desc {
  size_t size;
  int64_t experts;            /* 1 to 4096 */
  int64_t parts;              /* modules of an expert, all [N, K]; 0: 1. Output n of part p is column
                                 p * (N rounded up to 32) + n of y, which ends with that of the last part */
  const char* const* modules; /* [experts, parts] */
  int gated;                  /* not 0: parts are 2, gate and up; the upload makes a gated weight, for lpq_mixture()
                                 alone. Of a device: lpq_cpu_experts_pack() refuses it */
} lpq_experts_desc;

/* As of a module, for lpq_gemm_experts(). On a device all modules are of layout tilus and of one type, group and kind
   of zero points and biases; else LPQ_ERROR_UNSUPPORTED, with the names of two that differ. */
LPQ_API lpq_status lpq_experts_bytes(const lpq_artifact* artifact, const lpq_experts_desc* desc, size_t* bytes);
LPQ_API lpq_status lpq_experts_upload(lpq_context* context, const lpq_artifact* artifact, const lpq_experts_desc* desc,
                                      int activations, void* memory, size_t bytes, void* stream, lpq_weight** weight);

/* A whole mixture of experts: y[t] = sum over j < places of weights[t, j] down(act(gate(x[t])) * up(x[t])) of expert
   ids[t, j]. On the stream rows are grouped by expert, multiplied, gated, multiplied and added up, expert by expert; no
   call waits, whatever the ids, so a graph may record it. Of a gated weight the first product gates in f32 what it adds
   up, in one launch and without memory for gate and up; of another one they are rounded, and gated by a launch. */
typedef enum lpq_activation {
  LPQ_SILU = 0,
  LPQ_GELU = 1,
  LPQ_GELU_TANH = 2,
  LPQ_RELU = 3,
  LPQ_RELU2 = 4,      /* max(x, 0)^2 */
  LPQ_QUICK_GELU = 5, /* x sigmoid(1.702 x) */
  LPQ_SIGMOID = 6,
  LPQ_CLAMPED = 7 /* of GPT-OSS: g sigmoid(alpha g) (clamp(up, -limit, limit) + 1), g = min(gate, limit) */
} lpq_activation;

typedef struct lpq_mixture_desc {
  size_t size;
  const lpq_weight* gate_up; /* of experts: gated, or gate and up below one another, as lpq_experts_desc has them */
  const lpq_weight* down;    /* of as many experts, with as many inputs as gate has outputs */
  int activation;            /* lpq_activation */
  int64_t places;            /* experts of a token, 1 to 1024 */
  int some_none;             /* not 0: an id that is the number of experts is of none, and adds nothing */
  double alpha;              /* LPQ_CLAMPED: above 0; else 0 */
  double limit;              /* LPQ_CLAMPED: above 0; LPQ_SILU: 0, or min(gate, limit) and clamp(up, -limit, limit) are
                                what it reads; else 0. Where it is not 0, gate_up is gated, or LPQ_ERROR_UNSUPPORTED */
} lpq_mixture_desc;

/* Bytes of memory that a call of so many tokens needs besides, and of a workspace for 1 to so many; either may be NULL.
   For the workspace every number of tokens is tried. */
LPQ_API lpq_status lpq_mixture_sizes(const lpq_mixture_desc* desc, int64_t tokens, size_t* scratch, size_t* workspace);
/* x [tokens, K of gate_up] and y [tokens, N of down] as of the weights; ids i32 and weights f32 [tokens, places];
   `scratch` at a multiple of 512, undefined before and after. What lies between the steps is of the type of x; sums of
   tokens are f32. An id that is none: lpq_workspace_check() tells, and y is undefined. */
LPQ_API lpq_status lpq_mixture(const lpq_mixture_desc* desc, int64_t tokens, const void* x, const int32_t* ids,
                               const float* weights, void* y, void* scratch, size_t scratch_bytes, void* workspace,
                               size_t bytes, void* stream, unsigned flags);

/* ---- The same products on a processor ----

   No device is needed, and no context: AVX-512, AVX2 or plain C++, whichever the processor has, give the same bytes.
   A weight is packed into one block of memory of the caller's, at a multiple of 64 bytes, which may be moved, written
   to a file and read again by this ABI: its pointers are offsets. Of an artifact: layouts tilus (permuted ones, too),
   marlin, sparse_marlin and turbomind, whatever their type; what ranks share is the whole, of which others have shares.
   `threads`: how many share a call, the calling one among them; 0: as many as the machine has processors. Calls of
   several threads take turns. */

typedef struct lpq_cpu_codes {
  size_t size;
  const char* type;     /* u1-u8, i2-i8, or a float such as f4e2m1 */
  int64_t n, k;         /* of y and of x */
  int group;            /* a multiple of 32; 0: one scale a row */
  const uint8_t* codes; /* [N, K], a code a byte */
  const float* scales;  /* [N, G], G = ceil(K / group), or 1. W = (code - zero) * scale */
  const float* zeros;   /* [N, G], or NULL: `zero` for all */
  double zero;
  const int32_t* permutation; /* [K], the column of x of each k, or NULL */
  const float* bias;          /* [N], or NULL */
} lpq_cpu_codes;

typedef struct lpq_cpu_info {
  size_t size;
  int64_t n, k;
  int bits, group;
  int bias;
  size_t bytes; /* of the block */
} lpq_cpu_info;

/* Bytes of the block of an artifact's module, or of plain codes (whose pointers are asked only whether they are NULL).
 */
LPQ_API lpq_status lpq_cpu_module_bytes(const lpq_artifact* artifact, const char* module, size_t* bytes);
LPQ_API lpq_status lpq_cpu_codes_bytes(const lpq_cpu_codes* codes, size_t* bytes);
LPQ_API lpq_status lpq_cpu_module_pack(const lpq_artifact* artifact, const char* module, void* block, size_t bytes,
                                       int threads);
/* A share of a module, as ranks of tensor parallelism have it: `n_count` outputs from `n` on, or `k_count` inputs from
   `k` on, which are whole groups. Shares of inputs whose `k` is not 0 leave the bias to the one that begins at 0. */
typedef struct lpq_cpu_share {
  size_t size;
  int64_t n, n_count, k, k_count;
} lpq_cpu_share;
LPQ_API lpq_status lpq_cpu_share_bytes(const lpq_artifact* artifact, const char* module, const lpq_cpu_share* share,
                                       size_t* bytes);
LPQ_API lpq_status lpq_cpu_share_pack(const lpq_artifact* artifact, const char* module, const lpq_cpu_share* share,
                                      void* block, size_t bytes, int threads);
LPQ_API lpq_status lpq_cpu_codes_pack(const lpq_cpu_codes* codes, void* block, size_t bytes, int threads);
LPQ_API lpq_status lpq_cpu_block(const void* block, size_t bytes, lpq_cpu_info* info);
/* y [M, N] = x [M, K] W^T + bias, both `type`: LPQ_F32, LPQ_F16 or LPQ_BF16. Sums are f32: a chain of fma over the
   columns of a group, then scales, in ascending order. */
LPQ_API lpq_status lpq_cpu_gemm(const void* block, size_t bytes, int64_t m, int type, const void* x, void* y,
                                int threads);
/* The experts of a projection are one block: those of all experts one after the other, as the calls above pack them, of
   one N and K; types may differ from expert to expert, not among an expert's parts. */
LPQ_API lpq_status lpq_cpu_experts_bytes(const lpq_artifact* artifact, const lpq_experts_desc* desc, size_t* bytes);
LPQ_API lpq_status lpq_cpu_experts_pack(const lpq_artifact* artifact, const lpq_experts_desc* desc, void* block,
                                        size_t bytes, int threads);
/* lpq_gemm_experts() here: rows of y that no expert has stay as they are. Offsets that do not ascend inside x:
   LPQ_ERROR_ARGUMENT, and nothing is multiplied. */
LPQ_API lpq_status lpq_cpu_gemm_experts(const void* block, size_t bytes, int64_t experts, int64_t m, int type,
                                        const void* x, const int32_t* offsets, void* y, int threads);
/* y [count, K] = rows of W, as an embedding reads them; `type` of y. */
LPQ_API lpq_status lpq_cpu_rows(const void* block, size_t bytes, int64_t count, const int64_t* rows, int type, void* y,
                                int threads);
/* The cache of keys and values above in the host's memory, without a workspace: the bytes of lpq_kv_pack() and
   lpq_kv_append(), and attention summed in f64. A page, length or tail that is none, and NaN or infinity among what is
   packed, end in LPQ_ERROR_ARGUMENT; what was to be packed is then undefined. */
LPQ_API lpq_status lpq_cpu_kv_pack(const lpq_kv_desc* desc, int64_t tokens, const void* k, const void* v, int64_t first,
                                   const int32_t* table, int64_t table_pages, const lpq_kv_pages* pages, int threads);
LPQ_API lpq_status lpq_cpu_kv_append(const lpq_kv_desc* desc, const void* k, const void* v, int64_t residual,
                                     const lpq_kv_pages* pages, const lpq_kv_batch* batch, int threads);
LPQ_API lpq_status lpq_cpu_kv_decode(const lpq_kv_desc* desc, int64_t queries, const void* q, void* y, int type,
                                     double scale, const lpq_kv_pages* pages, const lpq_kv_batch* batch, int threads);
/* The cache of latents likewise: the bytes of lpq_latent_pack() and lpq_latent_append(), and attention in f64. */
LPQ_API lpq_status lpq_cpu_latent_pack(const lpq_latent_desc* desc, int64_t tokens, const void* c, const void* rotary,
                                       int64_t first, const int32_t* table, int64_t table_pages,
                                       const lpq_latent_pages* pages, int threads);
LPQ_API lpq_status lpq_cpu_latent_append(const lpq_latent_desc* desc, const void* c, const void* rotary,
                                         const lpq_latent_pages* pages, const lpq_latent_batch* batch, int threads);
LPQ_API lpq_status lpq_cpu_latent_decode(const lpq_latent_desc* desc, int64_t queries, const void* q, void* y, int type,
                                         double scale, const lpq_latent_pages* pages, const lpq_latent_batch* batch,
                                         int threads);

#ifdef __cplusplus
}
#endif
#endif
