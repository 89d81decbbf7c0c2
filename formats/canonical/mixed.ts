import { allocate, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { quantType } from '../../src/core/quant-type.js';
import { unpackModuleCodes } from './dequantize.js';
import type { CanonicalCheckpoint } from './read.js';
import type { CanonicalModule } from './schema.js';

/** The operands of a W4Ax product: codes I8 [N,K] and scales f32 [N,K/128], and how the linear reads its input. */
export interface MixedModule {
  readonly codes: Tensor;
  readonly scales: Tensor;
  readonly form: {
    readonly order?: Int32Array;
    readonly blocks: { readonly bits: Uint8Array; readonly clip: Float32Array };
  };
}

/**
 * A module with `activations` as integers: columns as stored, for the permutation moves the input's channels instead. The
 * caller disposes of its tensors. Throws what reading the module throws.
 */
export async function mixedModule(
  rt: NativeRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
): Promise<MixedModule> {
  const module = checkpoint.module(name);
  const { bits, clip } = module.activations as NonNullable<CanonicalModule['activations']>;
  const raw = await unpackModuleCodes(rt, checkpoint, name);
  const codes = allocate('i8', module.shape);
  const shift = 32 - quantType(module.type).bits;
  const [from, to] = [typed<Uint8Array>(raw), typed<Int8Array>(codes)];
  for (let i = 0; i < from.length; i++) to[i] = ((from[i] as number) << shift) >> shift; // two's complement
  raw.dispose();
  const stored = checkpoint.require(name, 'scales');
  const scales = allocate('f32', stored.shape);
  ops.cast(rt, stored, scales);
  await rt.sync();
  stored.dispose();
  const permutation = checkpoint.part(name, 'permutation');
  const order = permutation && typed<Int32Array>(permutation).slice();
  permutation?.dispose();
  return {
    codes,
    scales,
    form: { ...(order && { order }), blocks: { bits: Uint8Array.from(bits), clip: Float32Array.from(clip) } },
  };
}
