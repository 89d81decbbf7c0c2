import { type IntegerForm, integerForm } from './integer-form.js';
import type { PackedModel, PackTarget } from './target.js';

/** A module as a reader sees it. */
export interface Written {
  readonly layout: string;
  readonly expert: boolean;
  /** Of a mixture whose plain checkpoints have the experts of a block in one tensor. */
  readonly fused: boolean;
  /** Of integers. */
  readonly form: IntegerForm | undefined;
  readonly actOrder: boolean;
  readonly scaleDtype: string;
}

/** Where a program that reads a format differs from the format. */
export interface ReaderLimit {
  applies(module: Written, model: { readonly dtype: unknown }): boolean;
  /** One sentence: the program, what it does, and what to do instead. docs/who-loads-what.md repeats each. */
  readonly says: string;
}

const wide = ({ form }: Written) => form !== undefined && form.bits !== 4 && form.bits !== 8;

/** From versions of 2026; docs/who-loads-what.md says which, and whether they ran. Targets and layouts name theirs. */
export const SYMMETRIC_GPTQ: ReaderLimit = {
  applies: ({ form }) => form?.symmetric === false,
  says: 'vLLM refuses asymmetric GPTQ at start: for vLLM, pack this checkpoint for awq (4 bits) or compressed-tensors.',
};

export const V1_ZEROS: ReaderLimit = {
  applies: () => true,
  says: 'LMDeploy adds 1 to the zero points of gptq_v2 and computes wrong weights without an error: for LMDeploy, pack for awq, or for gptq if all modules are symmetric.',
};

export const GPTQ_WIDTHS: ReaderLimit = {
  applies: wide,
  says: 'vLLM loads GPTQ in 4 and 8 bits only: for vLLM, pack for compressed-tensors, or quantize to 4 or 8 bits.',
};

export const NO_EXPERTS: ReaderLimit = {
  applies: ({ expert }) => expert,
  says: 'transformers 5 does not read experts in GPTQ or AWQ: for transformers, pack for compressed-tensors.',
};

export const COMPRESSED: readonly ReaderLimit[] = [
  {
    applies: ({ fused }) => fused,
    says: 'transformers 5 expects the experts of this architecture in one tensor per block and leaves quantized ones at random without an error: load this checkpoint with vLLM.',
  },
  {
    applies: (module) => wide(module) && module.form?.symmetric === false,
    says: 'vLLM loads zero points in 4 and 8 bits only: for vLLM, quantize without --asym, or to 4 or 8 bits.',
  },
  {
    applies: ({ expert, form }) => expert && form?.symmetric === false,
    says: 'transformers 5 does not read zero points of experts and stops: for transformers, quantize without --asym.',
  },
  {
    applies: ({ expert, actOrder }) => expert && actOrder,
    says: 'transformers 5 ignores g_idx of experts and computes wrong weights without an error: quantize with --order static.',
  },
];

export const NVFP4_EXPERTS: ReaderLimit = {
  applies: ({ expert }) => expert,
  says: 'transformers 5 ignores the second level of scales of NVFP4 experts and computes wrong weights without an error: for transformers, quantize them to mxfp4 or to 4-bit integers.',
};

export const INT8_EXPERTS: ReaderLimit = {
  applies: ({ expert }) => expert,
  says: 'transformers 5 does not read INT8 experts and stops: for transformers, pack for compressed-tensors, or quantize them to f8e4m3.',
};

export const FP8_EXPERTS: ReaderLimit = {
  applies: ({ expert }) => expert,
  says: 'vLLM does not load FP8 experts without FP8 activations: for vLLM, pack for compressed-tensors-w8a8.',
};

export const MODELOPT_EXPERTS: ReaderLimit = {
  applies: ({ expert }) => expert,
  says: 'vLLM reads FP8 experts of ModelOpt only with one scale per tensor, and these have one scale per row: for vLLM, pack for compressed-tensors-w8a8.',
};

export const HALF_SCALES: ReaderLimit = {
  applies: ({ scaleDtype }, { dtype }) => scaleDtype === 'f16' && dtype === 'bfloat16',
  says: 'The model computes in bfloat16, and vLLM rounds these f16 scales to it (by up to 2^-9 of their size): quantize with --scale-dtype bf16, which solves the weights for bf16 scales.',
};

/** Warnings: where readers differ from what this artifact says. */
export function readerLimits({ limits = [] }: PackTarget, model: PackedModel): string[] {
  const { config } = model.checkpoint;
  const text = config.text_config as { dtype?: unknown; torch_dtype?: unknown } | undefined;
  const dtype = config.dtype ?? config.torch_dtype ?? text?.dtype ?? text?.torch_dtype;
  const written = [...writtenModules(model)];
  return limits.filter(({ applies }) => written.some((module) => applies(module, { dtype }))).map(({ says }) => says);
}

function* writtenModules({ checkpoint, decisions, roles }: PackedModel): Generator<Written> {
  for (const [name, decision] of decisions) {
    if (decision.action === 'fallback') continue;
    const module = checkpoint.module(name);
    const form = integerForm(module, { zeroRange: [0, 0] });
    yield {
      layout: decision.layout,
      expert: roles.isExpert(name),
      fused: roles.isExpert(name) && roles.storedFused,
      form: 'bits' in form ? form : undefined,
      actOrder: module.groupIndex,
      scaleDtype: module.scales.dtype,
    };
  }
}
