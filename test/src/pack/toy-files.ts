import type { Touched } from '../../toy-tree.js';

/** A layout whose codes of 4 bits stand one a byte, input features first; and a target of it. */

const packing = `import { allocate, type Tensor } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { hasForm, integerForm } from '../integer-form.js';
import type { PackLayout } from '../layout.js';

/** MODULE.nibbles I8 [K, N] of two's complement codes, MODULE.steps F16 [N, G]. */
export const toyLayout: PackLayout = {
  name: 'toy',

  fit(_name, module, facts) {
    const form = integerForm(module, facts);
    if (!hasForm(form)) return form;
    if (module.type !== 'i4' || !form.symmetric || module.groupIndex || module.scales.dtype !== 'f16')
      return { reason: 'it is not of symmetric i4 codes with f16 scales in place', remedy: 'Quantize it with --bits 4.' };
    const [n, k] = module.shape;
    return {
      padded: module.shape,
      tensors: [
        { suffix: 'nibbles', dtype: 'I8', shape: [k, n] },
        { suffix: 'steps', dtype: 'F16', shape: [n, groupCount(module.granularity, k)] },
      ],
      notes: [],
    };
  },

  async pack({ module, codes, scales }) {
    const [n, k] = module.shape;
    const nibbles = allocate('i8', [k, n]);
    const [from, to] = [codes.bytes(), nibbles.bytes()];
    for (let row = 0; row < n; row++)
      for (let i = 0; i < k; i++) to[i * n + row] = ((from[(row * k + i) >> 1]! >> (4 * (i % 2))) << 28) >> 28;
    return new Map<string, Tensor>([
      ['nibbles', nibbles],
      ['steps', scales.view(scales.shape)],
    ]);
  },
};
`;

const kernel = `import { fromTyped, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { below } from './join.js';
import { common, type PackedKernel } from './kernel.js';

/** ops.linear of the weights in f32, which hold every product of a code and a scale. */
export const toyKernel: PackedKernel = {
  name: 'toy',
  tensors: ['weights', 'scales'],

  bind(binding) {
    const { module, load } = binding;
    const [n, k] = module.shape;
    const [nibbles, scales] = [load('nibbles'), load('steps')];
    const groups = scales.shape[1]!;
    const [codes, bits] = [typed<Int8Array>(nibbles), typed<Uint16Array>(scales)];
    const half = (word: number) => (1 + (word & 1023) / 1024) * 2 ** (((word >> 10) & 31) - 15);
    const weight = (at: number) => codes[(at % k) * n + Math.floor(at / k)]! * half(bits[Math.floor((at * groups) / k)]!);
    const weights = fromTyped('f32', [n, k], Float32Array.from({ length: n * k }, (_, at) => weight(at)));
    nibbles.dispose();
    return { kernel: toyKernel, ...common(binding), weights, scales };
  },

  multiply(rt, x, packed, bias, y) {
    const wide = [x, ...(bias ? [bias] : [])].map((tensor) => {
      const cast = rt.allocate('f32', tensor.shape);
      ops.cast(rt, tensor, cast);
      return cast;
    });
    const sums = rt.allocate('f32', y.shape);
    ops.linear(rt, wide[0]!, packed.weights, wide[1], sums);
    ops.cast(rt, sums, y);
    for (const tensor of [...wide, sums]) tensor.dispose();
  },

  joining: {
    tile: 1,
    rows: ({ weights }) => weights.shape[0]!,
    readAlike: () => true,
    join: (rt, parts, shape) => ({
      ...parts[0]!,
      shape,
      weights: below(rt, parts.map(({ weights }) => weights)),
      scales: below(rt, parts.map(({ scales }) => scales)),
    }),
  },
};
`;

const verifying = `import { fromTyped, typed } from '../../../native/binding.js';
import { groupCount } from '../../core/granularity.js';
import { toyKernel } from '../../model/kernels/toy.js';
import type { VerifiedLayout } from '../layout.js';

export const toy: VerifiedLayout = {
  name: 'toy',

  *problems({ type, zeros, canonical }) {
    if (type !== 'i4') yield \`layout toy has no \${type} codes\`;
    if (zeros.kind !== 'none') yield 'layout toy has no zero points';
    if (canonical.g_idx ?? canonical.permutation ?? canonical.mask) yield 'layout toy has everything in place';
  },

  tensors: ({ shape: [n, k], granularity }) => [
    { suffix: 'nibbles', dtypes: ['I8'], shape: [k, n] },
    { suffix: 'steps', dtypes: ['F16'], shape: [n, groupCount(granularity, k)] },
  ],

  decode(_rt, weights, name, { shape: [n, k] }, decoded) {
    const stored = weights.tensor(\`\${name}.nibbles\`);
    const values = typed<Int8Array>(stored);
    const codes = new Uint8Array((n * k) / 2);
    for (const [at, value] of values.entries()) {
      const place = (at % n) * k + Math.floor(at / n);
      codes[place >> 1]! |= (value & 15) << (4 * (place % 2));
    }
    stored.dispose();
    decoded.parts.set('codes', fromTyped('u8', [n, k / 2], codes));
    decoded.parts.set('scales', weights.tensor(\`\${name}.steps\`));
  },

  kernel: { binds: toyKernel },
};
`;

export const LAYOUT: readonly Touched[] = [
  { file: 'src/pack/layouts/toy.ts', text: packing },
  { file: 'src/pack/layouts/index.ts', text: "import { toyLayout } from './toy.js';\n", before: '\n/** Every layout' },
  { file: 'src/pack/layouts/index.ts', text: '  toyLayout,\n', before: '];\n' },
  { file: 'src/model/kernels/toy.ts', text: kernel },
  { file: 'src/verify/layouts/toy.ts', text: verifying },
  { file: 'src/verify/layouts/index.ts', text: "import { toy } from './toy.js';\n", before: '\n/** Every layout' },
  { file: 'src/verify/layouts/index.ts', text: '  toy,\n', before: '];\n' },
];

const target = `import { firstFit, tileTarget } from '../layout-target.js';
import { toyLayout } from '../layouts/toy.js';

export const toyTarget = tileTarget('toybox', 'codes one a byte', (name, module, facts) =>
  firstFit([toyLayout], name, module, facts),
);
`;

export const TARGET: readonly Touched[] = [
  { file: 'src/pack/targets/toybox.ts', text: target },
  {
    file: 'src/pack/targets/index.ts',
    text: "import { toyTarget } from './toybox.js';\n",
    before: '\n/** Every target',
  },
  { file: 'src/pack/targets/index.ts', text: '  toyTarget,\n', before: '];\n\n/** Programs' },
  { file: 'src/verify/targets/own.ts', text: "  own('toybox', 'toy'),\n", before: '];\n' },
];
