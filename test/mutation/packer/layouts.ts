import { type Mutant, mutants } from './mutant.js';

const MARLIN = ['marlin'];
const SPARSE = ['sparse_marlin'];
const TURBOMIND = ['turbomind'];
const GPTQ = ['gptq', 'gptq_v2'];

/** Faults in where codes, scales and zero points go, in biases, conventions and padding. */
export const LAYOUT_MUTANTS: readonly Mutant[] = [
  ...mutants('src/pack/layouts/marlin', MARLIN, [
    ['reorderLocals(MARLIN_WARP_TILE, WORD_75316420)', 'MARLIN_WARP_TILE', '4-bit codes are not interleaved in words'],
    ['reorderLocals(MARLIN_WARP_TILE, WORD_3120)', 'MARLIN_WARP_TILE', '8-bit codes are not interleaved in words'],
    ['[tile.bits, across * tile.bits]', '[(k / 16) * tile.bits, tile.bits]', 'tiles run along k first'],
    [
      'stride: 4 },\n            { size: 2, stride: 16 },\n        ]',
      'stride: 8 },\n            { size: 2, stride: 4 },\n        ]',
      '4-bit zero points are in order in their words',
    ],
    [
      '{ size: 2, stride: 8 },\n            { size: 2, stride: 16 },',
      '{ size: 2, stride: 16 },\n            { size: 2, stride: 8 },',
      '8-bit zero points lie otherwise in their words',
    ],
    [
      '{ size: 8, stride: 16 },\n            { size: 8, stride: 8 * 16 },',
      '{ size: 8, stride: 8 * 16 },\n            { size: 8, stride: 16 },',
      'grouped scales are not permuted',
    ],
    [
      '{ size: 4, stride: 2 * 16 },\n            { size: 4, stride: 8 * 16 },',
      '{ size: 4, stride: 8 * 16 },\n            { size: 4, stride: 2 * 16 },',
      'per-channel scales are in another order',
    ],
  ]),
  ...mutants('src/pack/layouts/marlin', MARLIN, [
    ['pad: symmetric ? 2 ** (bits - 1) : 0', 'pad: 0', 'padding has code 0 instead of the zero point'],
    ['            bias,\n', '            bias: 0,\n', 'codes stay signed'],
    ['groups === 1), scales', 'false), scales', 'per-channel scales are in the order of grouped ones'],
    ['...(order && { order }),', '', 'columns stay where they were although a permutation is written'],
    [
      'const permutation = order ?? operands.permutation;',
      'const permutation = order && fromIdentity(order);\n        function fromIdentity(t) { const c = allocate("i32", t.shape); new Int32Array(c.bytes().buffer, c.bytes().byteOffset, t.shape[0]).forEach((_, i, a) => { a[i] = i; }); return c; }',
      'the permutation is written as the identity',
    ],
    ['const STEP_N = 256;', 'const STEP_N = 64;', 'N is padded to 64 instead of 256'],
  ]),
  ...mutants('src/pack/layouts/sparse-marlin', SPARSE, [
    ['bits === 4 ? [8, 32, 4, 16]', 'bits === 4 ? [4, 32, 8, 16]', 'codes of a word change places'],
    [
      '{ size: 2, stride: 64 * half },\n            { size: 2, stride: 4 * half },',
      '{ size: 2, stride: 4 * half },\n            { size: 2, stride: 64 * half },',
      'metadata of the products change places',
    ],
    [
      '{ size: 8, stride: 8 * half },\n            { size: 2, stride: half },',
      '{ size: 2, stride: half },\n            { size: 8, stride: 8 * half },',
      'metadata of the rows of a product change places',
    ],
    [
      '{ size: 2, stride: 16 },\n            { size: 4, stride: 2 * 16 },',
      '{ size: 2, stride: 4 * 16 },\n            { size: 4, stride: 16 },',
      'scales are not permuted',
    ],
  ]),
  ...mutants('src/pack/layouts/sparse-marlin', SPARSE, [
    ['const NO_WEIGHTS = 0xeeee', 'const NO_WEIGHTS = 0x4444', 'padding has metadata (0, 1)'],
    ['{ bias, pad: middle }', '{ bias, pad: 0 }', 'padding has code 0'],
    ['{ bias, pad: middle }', '{ bias: 0, pad: middle }', 'kept codes stay signed'],
  ]),
  ...mutants('src/pack/layouts/turbomind', TURBOMIND, [
    ["b: [TENSOR_CORES[80], 'b', 2]", "b: [TENSOR_CORES[80], 'b', 1]", 'one fragment a store instead of two'],
    [
      '{ size: 2, stride: bits },\n            { size: 8, stride: 2 * bits },',
      '{ size: 2, stride: 8 * bits },\n            { size: 8, stride: bits },',
      'scales are in order',
    ],
    ["order === 'n-major' || form === 'sm70'", "form === 'sm70'", "experts' tiles run along n first"],
  ]),
  ...mutants(
    'src/pack/layouts/turbomind',
    ['turbomind_sm70'],
    [
      [
        '? [{ size: n, stride: bits }]',
        '? [{ size: n / 2, stride: bits }, { size: 2, stride: (n / 2) * bits }]',
        'scales of sm70 are in another order',
      ],
      ["order === 'n-major' || form === 'sm70'", "order === 'n-major'", 'tiles of sm70 run along n first'],
    ],
  ),
  ...mutants(
    'src/pack/layouts/turbomind',
    [...TURBOMIND, 'sm86'],
    [
      [
        'const zeros = offsetZeros(operands, form);',
        'const zeros = offsetZeros(operands, { ...form, bias: form.bias + 1 });',
        'zero points are one too large in {s, -z s}',
      ],
      ["kind === 'fused' ? 'b' : 'a'", "'b'", 'floats are stored as operand B'],
      [
        'const STEP_N = 64;',
        'const STEP_N = 256;',
        'N is padded to 256',
        'more padding, which decodes to 0 like the rest of it',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/tilus',
    ['tilus'],
    [
      ['local(16, 1), local(1, 4)', 'local(1, 4), local(16, 1)', "a lane's codes run along n first"],
      ['wordOrder: pairWords(bits),', '', 'codes follow one another in words'],
      [
        '{ size: 4, stride: bits },\n            { size: 8, stride: 4 * bits },',
        '{ size: 4, stride: 8 * bits },\n            { size: 8, stride: bits },',
        'scales are in order',
      ],
      [
        'order.push(32 * word + 16 * half + at)',
        'order.push(32 * word + 16 * (1 - half) + at)',
        'the codes of a pair are exchanged',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/tilus',
    ['tilus'],
    [
      [
        'const permutation = order ?? operands.permutation;',
        "let permutation = order ?? operands.permutation; if (permutation) permutation = fromTyped('i32', permutation.shape, Int32Array.from({ length: permutation.shape[0] }, (_, i) => i));",
        'the permutation is written as the identity',
      ],
      ["zeros.dtype === 'u8' ? 'U8' : 'F16'", "'F16'", 'whole zero points are stored as f16'],
    ],
  ),
  ...mutants(
    'src/pack/layouts/comet',
    ['comet'],
    [
      ['reorderLocals(product(', '((tile) => tile)(product(', "a chunk's codes are not interleaved"],
      ['[along * tile.bits, tile.bits]', '[tile.bits, (n / COMET_N) * tile.bits]', 'blocks run along n first'],
      [
        'const rows = [{ size: n, stride: 32 }];',
        'const rows = [{ size: n / 2, stride: 32 }, { size: 2, stride: (n / 2) * 32 }];',
        'scales are in another order',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/comet',
    ['comet'],
    [
      ['Uint8Array.from(bits)', 'Uint8Array.from(bits, () => 8)', 'all blocks are said to have activations of 8 bits'],
      ['Float32Array.from(clip)', 'new Float32Array(clip.length).fill(1)', 'clipping of activations is lost'],
      [
        'each === 8 ? count[8]++ : ~count[4]++',
        'each === 8 ? count[8]++ : count[4]++',
        'blocks of 4 bits are numbered as those of 8',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/w4a8',
    ['w4a8'],
    [
      ['to.rows[row] = largest / m', 'to.rows[row] = largest', 'scales of rows are the largest of their groups'],
      ['to.multiples[g * pitch + row]', 'to.multiples[row * groups + g]', 'multiples lie row by row'],
      ['to.multiples.fill(0)', 'to.multiples.fill(1)', 'multiples of padding are 1'],
    ],
  ),
  ...mutants(
    'src/pack/layouts/awq',
    ['awq'],
    [
      [
        '{ size: 4, stride: 4 },\n            { size: 2, stride: 16 },',
        '{ size: 4, stride: 8 },\n            { size: 2, stride: 4 },',
        'nibbles are in order',
      ],
      [
        '{ size: 4, stride: 4 },\n            { size: 2, stride: 16 },',
        '{ size: 2, stride: 4 },\n            { size: 2, stride: 8 },\n            { size: 2, stride: 16 },',
        'nibbles are in another order',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/awq',
    ['awq'],
    [
      [
        '{ streamColumns: k, bias: form.bias }',
        '{ streamColumns: k, bias: (form.bias + 8) % 16 }',
        'codes have another bias',
      ],
      [
        "pack(rt, awqWords(n, groups), zeros, at('qzeros'));",
        "pack(rt, awqWords(n, groups), zeros, at('qzeros'), { bias: 15 });",
        'zero points are stored minus one',
      ],
    ],
  ),
  ...mutants('src/pack/layouts/gptq', GPTQ, [
    ["convention === 'v1' ? 2 ** bits - 1 : 0", '0', 'v1 stores zero points as they are'],
    ["convention === 'v1' ? 2 ** bits - 1 : 0", '2 ** bits - 1', 'v2 stores zero points minus one'],
    ["at('qweight'), { streamColumns: k, bias }", "at('qweight'), { streamColumns: k }", 'codes stay signed'],
  ]),
  ...mutants(
    'src/pack/operands',
    [...GPTQ, 'compressed-tensors', 'marlin'],
    [
      [
        'Math.floor(feature / length)',
        'Math.floor((feature + 1) / length) % Math.ceil(k / length)',
        'g_idx is one feature off',
      ],
      [
        'tensor.bytes().fill(form.zero)',
        'tensor.bytes().fill(form.zero - 1)',
        'constant zero points are one too small',
      ],
      ['(value) => value + form.bias', '(value) => value + form.bias + 1', 'stored zero points are one too large'],
      ['if (stored)\n        return stored.view(stored.shape);', '', 'g_idx of the checkpoint is replaced by runs'],
      [
        'groups[a] - groups[b] || a - b',
        'groups[a] - groups[b] || b - a',
        'features of a group are in descending order',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/stream',
    [...GPTQ, 'compressed-tensors'],
    [
      [
        'columns: [{ size: columns, stride: bits, stream: true }],',
        'columns: [{ size: columns / 2, stride: bits, stream: true }, { size: 2, stride: (columns / 2) * bits, stream: true }],',
        'codes of a column are in another order',
      ],
      [
        'rows: [{ size: rows, stride: words * WORD }],\n        columns: [{ size: columns, stride: bits }],',
        'rows: rows % 2 ? [{ size: rows, stride: words * WORD }] : [{ size: rows / 2, stride: words * WORD }, { size: 2, stride: (rows / 2) * words * WORD }],\n        columns: [{ size: columns, stride: bits }],',
        'rows are in another order',
      ],
      [
        'rows: [{ size: rows, stride: bits }],\n        columns: [{ size: columns, stride: rows * bits }],',
        'rows: [{ size: rows, stride: columns * bits }],\n        columns: [{ size: columns, stride: bits }],',
        'scales are not transposed',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/pack-quantized',
    ['compressed-tensors'],
    [
      ['BigInt64Array.of(BigInt(n), BigInt(k))', 'BigInt64Array.of(BigInt(k), BigInt(n))', 'weight_shape is [K, N]'],
      ['codes, packed, { streamColumns: k, bias }', 'codes, packed, { streamColumns: k }', 'codes stay signed'],
    ],
  ),
  ...mutants(
    'src/pack/layouts/fp4',
    ['compressed-tensors'],
    [
      [
        'Float32Array.of(own ? divisor : 1 / factor)',
        'Float32Array.of(own ? divisor : factor)',
        'the second level multiplies instead of dividing',
      ],
    ],
  ),
  ...mutants(
    'src/pack/layouts/whole-bytes',
    ['compressed-tensors-w8a8'],
    [['if (quantType(module.type).signed)', 'if (!quantType(module.type).signed)', 'signed bytes are turned by 128']],
  ),
  ...mutants(
    'src/pack/parallel',
    ['marlin/alike'],
    [
      [
        '(rows / split.count) * columns * rank',
        '(rows / split.count) * columns * (split.count - 1 - rank)',
        'ranks have their rows in reverse order',
      ],
      [
        '(columns / split.count) * rank, columns',
        '(columns / split.count) * (split.count - 1 - rank), columns',
        'ranks have their columns in reverse order',
      ],
    ],
  ),
];
