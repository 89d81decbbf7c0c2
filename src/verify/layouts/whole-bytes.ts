import type { PackedModule } from '../../../formats/artifact/schema.js';
import { allocate, fromTyped, type Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { quantType } from '../../core/quant-type.js';
import { w8a8Kernel } from '../../model/kernels/w8a8.js';
import { codeProblems, isSymmetric, type VerifiedLayout } from '../layout.js';
import { withInput } from './input.js';

/** Forms of compressed-tensors with a code a byte, whose scales rows, blocks or the whole tensor share. */
function wholeBytes(
  name: string,
  types: readonly string[],
  dtype: string,
  problems: (module: PackedModule) => Iterable<string>,
  form = name,
): VerifiedLayout {
  return {
    name,
    compressed: { format: form, whole: true },
    kernel: { binds: w8a8Kernel, codes: true },

    *problems(module) {
      yield* codeProblems(name, module, types);
      yield* problems(module);
      yield* sharedProblems(module);
      if (module.scales.global || module.scales.dtype.startsWith('f8'))
        yield `layout ${name} has plain scales of one level`;
    },

    tensors: (module) => [
      { suffix: 'weight', dtypes: [dtype], shape: module.shape },
      { suffix: 'weight_scale', dtypes: [module.scales.dtype.toUpperCase()], shape: sharedShape(module) },
    ],

    decode(_rt, weights, module, entry, { parts }) {
      const stored = weights.tensor(`${module}.weight`, 'u8');
      const type = quantType(entry.type);
      parts.set('codes', type.kind === 'int' && !type.signed ? unsigned(stored) : stored);
      const scales = weights.tensor(`${module}.weight_scale`, entry.scales.dtype);
      parts.set('scales', entry.scales.stored === undefined ? scales : repeated(scales, entry));
    },
  };
}

/** Symmetric, one scale per row. */
export const intQuantized = wholeBytes('int-quantized', ['i8', 'u8'], 'I8', function* (module) {
  if (!isSymmetric(module)) yield 'layout int-quantized has symmetric codes only';
  if (module.granularity.kind !== 'channel' || module.scales.block[0] !== 1)
    yield 'layout int-quantized has one scale per row';
});

function* floatProblems({ granularity, zeros, scales }: PackedModule): Generator<string> {
  if (zeros.kind !== 'none') yield 'floats have no zero points';
  if (granularity.kind === 'group' && scales.block[0] === 1 && scales.stored === undefined)
    yield 'layout float-quantized has scales of rows or of blocks';
}

export const floatQuantized = wholeBytes('float-quantized', ['f8e4m3'], 'F8_E4M3', floatProblems);

/** With the scale of the input, the codes of which are at most 448. */
export const floatStatic = withInput(
  wholeBytes('float-quantized-static', ['f8e4m3'], 'F8_E4M3', floatProblems, 'float-quantized'),
  'input_scale',
  (most) => most / 448,
);

function* sharedProblems({ shape: [, k], scales: { block, stored } }: PackedModule): Generator<string> {
  if (stored === undefined) return;
  if (block[0] !== 1) yield 'scales that blocks share are repeated for each row';
  else if (stored !== 'tensor' && stored[1] % block[1] !== 0 && stored[1] < k)
    yield `runs of ${block[1]} features cross the edges of blocks of ${stored[1]}`;
}

/** Rows (or whole blocks) by groups, or what `stored` says that scales cover. */
function sharedShape({ shape: [n, k], scales: { block, stored }, granularity }: PackedModule): number[] {
  if (stored === 'tensor') return [1];
  if (stored) return [Math.ceil(n / stored[0]), Math.ceil(k / stored[1])];
  return [n / block[0], groupCount(granularity, k)];
}

/** Two's complement as codes from 0. Takes `stored`. */
function unsigned(stored: Tensor): Tensor {
  const codes = fromTyped(
    'u8',
    stored.shape,
    stored.bytes().map((code) => code ^ 0x80),
  );
  stored.dispose();
  return codes;
}

/** One scale for each row and run of features, of those that blocks of weights or the whole tensor share. Takes `scales`. */
function repeated(scales: Tensor, { shape: [n, k], scales: { block, stored } }: PackedModule): Tensor {
  const [high, wide] = stored === 'tensor' || stored === undefined ? [n, k] : stored;
  const across = Math.ceil(k / wide);
  const runs = k / block[1];
  const size = scales.byteLength / scales.shape.reduce((a, b) => a * b, 1);
  const all = allocate(scales.dtype, [n, runs]);
  const [from, to] = [scales.bytes(), all.bytes()];
  for (let row = 0; row < n; row++)
    for (let run = 0; run < runs; run++) {
      const at = Math.trunc(row / high) * across + Math.trunc((run * block[1]) / wide);
      to.set(from.subarray(at * size, (at + 1) * size), (row * runs + run) * size);
    }
  scales.dispose();
  return all;
}
