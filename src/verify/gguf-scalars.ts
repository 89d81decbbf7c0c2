import { scalarsOf } from '../../formats/gguf/scalars.js';
import { typed } from '../../native/binding.js';
import type { GgufContext } from './gguf-context.js';
import type { Entry } from './gguf-header.js';

/**
 * Lists of numbers that the checkpoint has a tensor of in every block: those of the checkpoint, or without one what the file has in the
 * right form, which nothing proves then.
 */
export async function expectedScalars({ recorder, file, model, carried }: GgufContext): Promise<readonly Entry[]> {
  const entries: Entry[] = [];
  for (const [key, list] of scalarsOf(model.names, model.plan.blocks.length)) {
    const value: number[] = [];
    if (carried) for (const { name } of list) value.push(await firstNumber(carried.tensor(name)));
    else {
      const stored = file.metadata.get(key);
      if (stored?.type === 'f32s' && stored.value.length === list.length) value.push(...stored.value);
      recorder.unproved.push(`the list '${key}' of numbers that the checkpoint has as tensors`);
    }
    entries.push([key, { type: 'f32s', value }]);
  }
  return entries;
}

/** The first number of a float tensor, as f32 has it. */
async function firstNumber(loading: Promise<Parameters<typeof typed>[0]>): Promise<number> {
  const tensor = await loading;
  const [bits = 0] = tensor.dtype === 'bf16' || tensor.dtype === 'f16' ? typed<Uint16Array>(tensor) : [];
  const number =
    tensor.dtype === 'bf16'
      ? (new Float32Array(Uint32Array.of(bits * 65_536).buffer)[0] as number)
      : tensor.dtype === 'f16'
        ? halfOf(bits)
        : (typed<Float32Array>(tensor)[0] as number);
  tensor.dispose();
  return Math.fround(number);
}

/** IEEE 754's half precision. */
function halfOf(bits: number): number {
  const [exponent, fraction] = [(bits >> 10) & 31, bits & 1023];
  const size = exponent === 0 ? fraction * 2 ** -24 : (1024 + fraction) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}
