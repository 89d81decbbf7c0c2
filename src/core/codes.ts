import type { ExitCode } from './error.js';

/**
 * Every error code lpq prints, with its exit code and what it means. docs/errors.md is checked against this table.
 * Keep it sorted by name.
 */
export const CODES = {
  LPQ_ABORTED: row(130, 'The run was interrupted (Ctrl-C, SIGTERM).'),
  LPQ_ARCH_UNKNOWN: row(4, 'config.json names an architecture that lpq has no table for.'),
  LPQ_ARTIFACT: row(4, 'A packed artifact or its manifest is malformed.'),
  LPQ_BUDGET: row(4, 'A pattern, tokenizer or chat template of a model takes more time or memory than it is given.'),
  LPQ_BUILD: row(3, 'lpq is not compiled, or a tool that builds it is missing or failed.'),
  LPQ_CALIBRATION_TEXT: row(
    4,
    'The calibration or evaluation text cannot be used, for example because it is too short.',
  ),
  LPQ_CANONICAL: row(4, 'A quantized checkpoint or its manifest is malformed.'),
  LPQ_CONFIG: row(4, 'config.json, the tokenizer or another model file is missing or malformed.'),
  LPQ_CONTEXT: row(2, 'A prompt and its answer are longer than the model takes.'),
  LPQ_CUDA: row(3, 'A call of the CUDA driver failed.'),
  LPQ_CUDA_DRIVER: row(3, 'There is no NVIDIA driver, it is too old, or it does not start.'),
  LPQ_CUDA_KERNELS: row(3, 'The CUDA kernels were not built, or have no code for this device.'),
  LPQ_CUDA_LIBRARY: row(3, 'cuBLAS or cuSOLVER was not found, or failed.'),
  LPQ_CUDA_LOST: row(3, 'The CUDA device stopped working during the run.'),
  LPQ_CUDA_MEMORY: row(3, 'There is not enough device memory, or --vram-limit is too low.'),
  LPQ_DEVICE: row(3, 'The requested device is not available on this machine.'),
  LPQ_DISK_FULL: row(3, 'The output could not be written because the disk is full.'),
  LPQ_DTYPE: row(4, 'A tensor has a dtype that the operation does not take.'),
  LPQ_FILE: row(4, 'A file could not be read.'),
  LPQ_FOREIGN: row(4, 'A checkpoint that another tool quantized contradicts itself or its settings.'),
  LPQ_GROUP_SIZE: row(2, 'The group size does not divide the input features of a module.'),
  LPQ_HOST_MEMORY: row(3, 'There is not enough host memory to keep what does not fit on the device.'),
  LPQ_HUB_ACCESS: row(3, 'The Hub does not give out a model: it is gated or private, or the token is wrong.'),
  LPQ_HUB_CHECKSUM: row(4, 'A downloaded file is not what the Hub says it is; nothing of it is kept.'),
  LPQ_HUB_CUT_OFF: row(3, 'The connection to the Hub broke off again and again.'),
  LPQ_HUB_NOT_FOUND: row(4, 'The Hub has no such model, revision or file, or the model has no safetensors.'),
  LPQ_HUB_OFFLINE: row(3, 'HF_HUB_OFFLINE is set, and the cache does not hold the whole model.'),
  LPQ_HUB_PICKLE: row(4, 'A model of the Hub has its weights only as pickles, which lpq never opens.'),
  LPQ_HUB_RATE_LIMIT: row(3, 'The Hub limits the rate of requests.'),
  LPQ_HUB_RESPONSE: row(4, "A server's answer is none of the Hub's."),
  LPQ_HUB_SERVER: row(3, 'The Hub failed to answer.'),
  LPQ_HUB_TIMEOUT: row(3, 'The Hub was silent for too long.'),
  LPQ_HUB_UNREACHABLE: row(3, 'The Hub cannot be reached.'),
  LPQ_INTERNAL: row(3, 'A defect in lpq itself; please report it.'),
  LPQ_JOURNAL: row(4, 'The journal of a stopped run is malformed.'),
  LPQ_KERNEL_TUNING: row(4, 'Stored settings of kernels are malformed, or of another device, driver or version.'),
  LPQ_LAYOUT: row(4, 'A layout was declared or combined wrongly.'),
  LPQ_MEMORY: row(3, 'There is not enough memory.'),
  LPQ_MODULE_NUMERICS: row(4, 'A tensor, or the activations of a module, hold NaN or infinity.'),
  LPQ_NATIVE_MISSING: row(3, 'The native addon was not built or cannot be loaded.'),
  LPQ_OUTPUT_EXISTS: row(2, 'The output path exists already; lpq never overwrites.'),
  LPQ_OUTPUT_WRITE: row(3, 'The output could not be written.'),
  LPQ_PACK: row(4, 'A tensor cannot be laid out for the requested target.'),
  LPQ_PARTIAL_EXISTS: row(2, 'A stopped run left a partial output, which is neither resumed nor discarded unasked.'),
  LPQ_PARTIAL_IN_USE: row(2, 'Another run is writing this output.'),
  LPQ_RECIPE: row(2, 'A recipe file is malformed.'),
  LPQ_REDO: row(2, 'The checkpoint given with --from cannot be gone on from, or --redo matches nothing.'),
  LPQ_REPORT: row(4, 'A report of a run is malformed.'),
  LPQ_RESUME: row(2, 'A stopped run cannot be resumed with other options than its own.'),
  LPQ_SAFETENSORS: row(4, 'A safetensors file breaks a rule of the format.'),
  LPQ_SAFETENSORS_INDEX: row(4, 'A sharded checkpoint has a broken index.'),
  LPQ_SCALE_RANGE: row(4, 'Scales do not fit the requested scale type.'),
  LPQ_SHARDS: row(4, 'Shards of an output are missing, damaged, or not of one run.'),
  LPQ_SOURCE: row(4, 'The model given with --source is not the one that was quantized.'),
  LPQ_SPARSITY: row(2, 'Sparsity (2:4) does not go with this type or shape.'),
  LPQ_STATISTICS: row(4, 'Saved calibration statistics are damaged, incomplete, or of another model.'),
  LPQ_TARGET: row(2, 'No such pack target, or it does not take this type.'),
  LPQ_TENSOR_MISSING: row(4, 'The checkpoint lacks a tensor that the architecture needs.'),
  LPQ_TENSOR_SHAPE: row(4, 'A tensor has another shape than the architecture says.'),
  LPQ_TYPE: row(2, 'No such quantized type.'),
  LPQ_USAGE: row(2, 'An option or argument is wrong.'),
  LPQ_VERIFY: row(1, 'Verification found a difference.'),
} as const;

export type ErrorCode = keyof typeof CODES;

function row(exit: ExitCode, meaning: string): { readonly exit: ExitCode; readonly meaning: string } {
  return { exit, meaning };
}
