import { LpqError } from '../../src/core/error.js';
import { textOf } from '../../src/core/text-of.js';
import { autoRoundModules } from '../auto-round/modules.js';
import { awqModules } from '../awq/modules.js';
import { compressedModules } from '../compressed-tensors/modules.js';
import { fp8Modules } from '../fp8-block/modules.js';
import { gptqModules } from '../gptq/modules.js';
import { modelOptModules } from '../modelopt/modules.js';
import { mxfp4Modules } from '../mxfp4-source/modules.js';
import type { TensorReader } from '../safetensors/read.js';
import type { ForeignContext, ForeignModules } from './module.js';
import { type ForeignSettings, READ_METHODS } from './settings.js';

const READERS: Readonly<Record<string, (ctx: ForeignContext) => ForeignModules>> = {
  gptq: gptqModules,
  awq: awqModules,
  'compressed-tensors': compressedModules,
  fp8: fp8Modules,
  mxfp4: mxfp4Modules,
  'auto-round': autoRoundModules,
  modelopt: modelOptModules,
};

/** Every module that another tool quantized. Throws LPQ_CONFIG for a method that lpq does not read, or bad settings. */
export function readModules(ctx: ForeignContext, method: string): ForeignModules {
  const reader = READERS[method];
  if (reader) return reader(ctx);
  if (method === 'lpq')
    throw new LpqError('LPQ_CANONICAL', `${ctx.dir} was written by lpq, but its lpq.json is missing`, {
      hint: 'Restore lpq.json, or quantize again.',
    });
  throw new LpqError('LPQ_CONFIG', `${ctx.dir} is already quantized, with a method that lpq does not read`, {
    got: method,
    expected: READ_METHODS.join(', '),
    hint: 'Start from the unquantized checkpoint.',
  });
}

/** What readers are given of an opened directory. */
export function foreignContext(
  dir: string,
  weights: TensorReader,
  config: Readonly<Record<string, unknown>>,
  { settings, where }: Pick<ForeignSettings, 'settings' | 'where'>,
): ForeignContext {
  return { dir, weights, settings, where, modelDtype: modelDtype(config) };
}

/** config.json's dtype (torch_dtype before transformers 5), of the text model where there are several. */
function modelDtype(config: Readonly<Record<string, unknown>>): 'F32' | 'F16' | 'BF16' {
  const text = config.text_config as { dtype?: unknown; torch_dtype?: unknown } | undefined;
  switch (textOf(config.dtype ?? config.torch_dtype ?? text?.dtype ?? text?.torch_dtype).replace('torch.', '')) {
    case 'float32':
      return 'F32';
    case 'float16':
    case 'half':
      return 'F16';
    default:
      return 'BF16';
  }
}
