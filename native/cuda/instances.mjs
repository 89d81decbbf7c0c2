// The kernels that are made of templates: for each file that the build compiles, the header that declares them and the calls of
// its macros. Files of one header compile side by side. scripts/build-cuda.mjs writes each row out as native/build/cuda/NAME.cu.
//   { name, header, headers, needs, defines, calls }  headers: where there are several; needs: 'sm_90a' where no other device can run any of its kernels,
//   'portable' where devices with wgmma run others.

/** Codes of packed products; `wide`: with the kernel of wide strips. */
const CODES = [
  ...[1, 2, 3, 4, 5, 6, 7, 8].map((bits) => ({ kind: 'int', bits, wide: bits === 4 })),
  ...[3, 4, 5, 6, 7, 8].map((bits) => ({ kind: 'float', bits })),
];
/** Activations of 16 bits. */
const ACTIVATIONS = [
  { dtype: 'f16', bf16: false },
  { dtype: 'bf16', bf16: true },
];
const codesAndActivations = CODES.flatMap((code) => ACTIVATIONS.map((activations) => ({ ...code, ...activations })));
const call = (macro, ...args) => `${macro}(${args.join(', ')})`;

/** Up to 64 tokens without wgmma: tiles of 8 tokens, and threads. */
const PACKED = [
  [1, 512],
  [2, 512],
  [4, 256],
  [8, 256],
];
const streams = (name, bits, bf16, cast, split) =>
  [
    ['s', 1, true],
    ['s', 2, true],
    ['x', 1, false],
    ['x', 2, false],
  ].map(([letter, tiles, lean]) => call('LPQ_GEMM_STREAM', name, letter, tiles, bits, lean, bf16, cast, split));
const packedHeaders = ['packed', 'packed_sm90', 'stream', 'wide'].map((name) => `cuda/gemm/kernels/${name}.cuh`);

/** Few tokens, and portable tiles: the type of the codes times the type of the activations. Wide: _o, one group a packed block; _g, any. */
const packed = codesAndActivations.map(({ kind, bits, wide, dtype, bf16 }) => {
  const [name, cast] = [`${kind}${bits}_${dtype}`, kind === 'int' ? 'IntCast' : 'FloatCast'];
  return {
    name: `gemm_packed_${name}`,
    header: packedHeaders[0],
    headers: packedHeaders,
    defines: { LPQ_WEIGHTS_BF16: bf16 },
    calls: [
      call('LPQ_CAST_PAIRS', name, bits, cast),
      ...PACKED.slice(0, 2).map((sizes) => call('LPQ_GEMM_PORTABLE', name, ...sizes, bits, bf16, cast)),
      ...[1, 2, 4, 8].map((tiles) => call('LPQ_GEMM_HOPPER', name, tiles, bits, bf16, cast)),
      ...streams(name, bits, bf16, cast, false),
      ...['_o', '_g'].flatMap((form) =>
        (wide ? [2, 4, 8, 16] : []).map((tiles) =>
          call('LPQ_GEMM_WIDE', name, tiles, bits, bf16, cast, form, form === '_o'),
        ),
      ),
    ],
  };
});

/** f16 activations times floats whose exponents f16 does not hold: both as bf16, the activations in two parts. */
const split = [7, 8].map((bits) => ({
  name: `gemm_packed_float${bits}_split`,
  header: packedHeaders[0],
  headers: packedHeaders,
  defines: { LPQ_WEIGHTS_BF16: true },
  calls: [
    call('LPQ_CAST_PAIRS', `float${bits}_wide`, bits, 'FloatCast'),
    ...PACKED.map((sizes) => call('LPQ_GEMM_PACKED', `float${bits}_wide`, ...sizes, bits, false, 'FloatCast')),
    ...streams(`float${bits}_wide`, bits, true, 'FloatCast', true),
  ],
}));

/**
 * Experts: tiles of 16 and of 64 rows, of every type that gemm_packed takes; of 4 and 8 bits, and integers of 2 and 3, tiles of 32 and 64
 * as wide; of 4 and 8 bits tiles of 128 of rounded weights, as scaled.
 */
const expertHeaders = ['experts', 'experts_sm90', 'experts_wide', 'experts_scaled'].map(
  (name) => `cuda/gemm/kernels/${name}.cuh`,
);
const EXPERTS = PACKED.filter(([tiles]) => tiles === 2 || tiles === 8);
const experts = [
  ...codesAndActivations.map(({ kind, bits, dtype, bf16 }) => {
    const [name, cast] = [`${kind}${bits}_${dtype}`, kind === 'int' ? 'IntCast' : 'FloatCast'];
    return {
      name: `experts_${name}`,
      header: expertHeaders[0],
      headers: expertHeaders,
      defines: { LPQ_WEIGHTS_BF16: bf16 },
      calls: [
        ...EXPERTS.flatMap(([tiles, threads]) => [
          call('LPQ_EXPERTS_PORTABLE', name, tiles, threads, bits, bf16, cast),
          call('LPQ_EXPERTS_HOPPER', name, tiles, bits, bf16, cast),
        ]),
        ...(bits % 4 === 0 || (kind === 'int' && (bits === 2 || bits === 3)) ? ['_o', '_g'] : []).flatMap((form) =>
          [2, 4, 8].map((tiles) => call('LPQ_EXPERTS_WIDE', name, tiles, bits, bf16, cast, form, form === '_o')),
        ),
        ...(bits % 4 === 0 ? (kind === 'int' ? ['c', 'z'] : ['c']) : []).map((zeros) =>
          call('LPQ_EXPERTS_SCALED', name, zeros, 16, 2, bits, zeros === 'z', bf16, kind === 'int'),
        ),
      ],
    };
  }),
  ...[7, 8].map((bits) => ({
    name: `experts_float${bits}_split`,
    header: expertHeaders[0],
    defines: { LPQ_WEIGHTS_BF16: true },
    calls: EXPERTS.map((sizes) => call('LPQ_EXPERTS', `float${bits}_wide`, ...sizes, bits, false, 'FloatCast')),
  })),
];

/** Many tokens by wgmma: c without zero points, z with; tiles of 8 tokens, 16-row halves a warp, pairs of warpgroups. */
const scaled = codesAndActivations.map(({ kind, bits, dtype, bf16 }) => {
  const int4 = kind === 'int' && bits === 4;
  const few = kind === 'int' && bits >= 2 && bits <= 4; // their casts fit beside more tiles
  const tiles = [
    ['c', 16, 2, 1],
    ...(few ? [4, 8, 12] : [4, 8]).map((count) => ['c', count, 1, 2]),
    ...(few ? [4, 8, 12, 16, 20, 24].map((count) => ['c', count, 1, 1]) : []),
    ['c', 32, 1, 1],
    ...(kind === 'int' ? [['z', 16, 2, 1]] : []),
    ...(int4 ? [...[4, 8, 12].map((count) => ['z', count, 1, 2]), ['z', 32, 1, 1]] : []),
  ];
  return {
    name: `gemm_scaled_${kind}${bits}_${dtype}`,
    header: 'cuda/gemm/kernels/scaled.cuh',
    needs: 'sm_90a',
    calls: tiles.map(([letter, count, halves, pairs]) =>
      call(
        'LPQ_GEMM_SCALED',
        `${kind}${bits}_${dtype}`,
        letter,
        count,
        halves,
        pairs,
        bits,
        letter === 'z',
        bf16,
        kind === 'int',
      ),
    ),
  };
});

/**
 * Many tokens by mma.sync. On 9.0 wgmma's kernels are chosen instead: of LPQ_LARGE the largest tile stays there for device checks, which
 * force it (`kernel: large`), of LPQ_LARGE_ELSEWHERE nothing.
 */
const large = [1, 2, 3, 4, 5, 6, 7, 8].map((bits) => ({
  name: `gemm_large_${bits}bit`,
  header: 'cuda/gemm/kernels/large.cuh',
  calls: codesAndActivations
    .filter((row) => row.bits === bits)
    .map(({ kind, dtype, bf16 }) => {
      const here = [4, 8].includes(bits) || (kind === 'int' && (bits <= 3 || !bf16));
      const cast = kind === 'int' ? 'WholeIntCast' : 'FloatCast';
      return call(here ? 'LPQ_LARGE' : 'LPQ_LARGE_ELSEWHERE', `${kind}${bits}_${dtype}`, bits, bf16, cast);
    }),
}));

/** MARLIN's and TurboMind's layouts, in stripes over K: codes with a zero point in the middle or of their own, floats. */
const stripes = ACTIVATIONS.flatMap(({ dtype, bf16 }) =>
  [4, 8].flatMap((bits) => [
    {
      name: `gemm_marlin_u${bits}_${dtype}`,
      header: 'cuda/gemm/kernels/marlin.cuh',
      calls: [false, true].map((zeros) =>
        call('LPQ_MARLIN', `marlin_u${bits}${zeros ? 'z' : ''}_${dtype}`, bits, bf16, zeros),
      ),
    },
    {
      name: `gemm_turbomind_${bits}bit_${dtype}`,
      header: 'cuda/gemm/kernels/turbomind.cuh',
      calls: [
        call('LPQ_TURBOMIND', `turbomind_u${bits}_${dtype}`, 'TurboMindInteger', bits, bf16),
        call('LPQ_TURBOMIND', `turbomind_f${bits}_${dtype}`, 'TurboMindFloat', bits, bf16),
      ],
    },
  ]),
);

const sparse = [4, 8].map((bits) => ({
  name: `gemm_sparse_u${bits}`,
  header: 'cuda/gemm/kernels/sparse.cuh',
  calls: ACTIVATIONS.map(({ dtype, bf16 }) => call('LPQ_SPARSE', `u${bits}_${dtype}`, bits, bf16)),
}));

/** Activations in codes: bytes times bytes, and weights of 4 bits times bytes or (W4Ax) blocks of either. */
const activations = [
  // Tiles of 8 tokens, pairs of warpgroups.
  ...[
    ['Int8Bytes', 'i8', false],
    ['Fp8Bytes', 'f8', true],
    ['Int8Rows', 'r4', false],
    ['Int8Groups', 'g4', false],
    ['Int8Scaled', 'w4', true],
    ['Int8Blocks', 'w4x', true],
    ['Int8GroupBlocks', 'g4x', true, true],
    ['Fp8Scaled', 'w4f8', true],
  ].map(([source, name, promoted, units]) => ({
    name: `gemm_act8_${name}`,
    header: 'cuda/gemm/kernels/act8.cuh',
    needs: 'sm_90a',
    calls: [
      // Sums of 128 of k and those of all of K share the registers. Units: the former of a part of the tokens at a time.
      ...(promoted ? [2, 4, 8] : [2, 4, 8, 12, 16]).map((tiles) => [tiles, 2]),
      ...(promoted ? [2, 4, 8, 12, 16, ...(units ? [24, 32] : [])] : [2, 4, 8, 12, 16, 20, 24, 32]).map((tiles) => [
        tiles,
        1,
      ]),
    ].map((form) => call('LPQ_GEMM_ACT8', source, name, ...form)),
  })),
  {
    name: 'gemm_few',
    header: 'cuda/gemm/kernels/w4ax_few.cuh',
    needs: 'sm_90a',
    // Tiles of 8 tokens, rows of 8 weights a warp, buffers in depth.
    calls: [
      [1, 2, 2],
      [1, 4, 1],
      [2, 2, 2],
      [2, 4, 1],
    ].map((sizes) => call('LPQ_GEMM_FEW', ...sizes)),
  },
  {
    name: 'gemm_mixed',
    header: 'cuda/gemm/kernels/w4ax_mixed.cuh',
    calls: [2, 8, 16].map((tiles) => call('LPQ_GEMM_MIXED', tiles)),
  },
];

/** Bits of keys and of values, and the forms of their scales. */
const CACHES = [
  { name: '2', keys: 2, values: 2 },
  { name: '4', keys: 4, values: 4 },
  { name: '8', keys: 8, values: 8 },
  { name: '84', keys: 8, values: 4 },
];
/** Many queries over a cache: sizes of groups are told at run time. */
const prefills = (macro, { name, keys, values }) =>
  [64, 128, 256, 512].flatMap((dims) =>
    [['kFine', 'channel'], ['kTokens', 'token'], ...(name === '2' ? [] : [['kWords', 'word']])].map(([form, word]) =>
      call(macro, keys, values, dims, form, `${name}_${word}`),
    ),
  );
const attention = [
  ...ACTIVATIONS.map(({ dtype, bf16 }) => ({
    name: `cached_${dtype}`,
    header: 'cuda/attention/cached.cuh',
    calls: [64, 128, 256].map((dims) => call('LPQ_CACHED', dtype, bf16, dims)),
  })),
  ...CACHES.map(({ name, keys, values }) => ({
    name: `kv_decode_${name}`,
    header: 'cuda/attention/kv_decode.cuh',
    // Of as many queries of a kv head as a block takes, as far as registers go (kv_plan.h).
    calls: [64, 128, 256, 512].flatMap((dims) =>
      (dims >= 256 ? [8] : [8, 16]).flatMap((queries) =>
        [['kWide', 'wide'], ['kFine', 'fine'], ['kTokens', 'token'], ...(name === '2' ? [] : [['kWords', 'word']])].map(
          ([form, word]) => call('LPQ_KV_DECODE', keys, values, dims, form, queries, `${name}_${word}`),
        ),
      ),
    ),
  })),
  // The one for devices without wgmma, and the one for those with it.
  ...CACHES.flatMap((cache) => [
    {
      name: `kv_prefill_${cache.name}`,
      header: 'cuda/attention/kv_prefill.cuh',
      needs: 'portable',
      calls: prefills('LPQ_KV_PREFILL', cache),
    },
    {
      name: `kv_prefill_sm90_${cache.name}`,
      header: 'cuda/attention/kv_prefill_sm90.cuh',
      needs: 'sm_90a',
      calls: prefills('LPQ_KV_PREFILL_SM90', cache),
    },
  ]),
  {
    name: 'latent_sm90',
    header: 'cuda/attention/latent_sm90.cuh',
    needs: 'sm_90a',
    calls: [call('LPQ_LATENT_SM90', 'sm90')],
  },
  {
    name: 'kv_pack_fit',
    header: 'cuda/attention/kv_pack.cuh',
    calls: [
      [64, 'kWide', 'channel'],
      [64, 'kTokens', 'token'],
      [128, 'kWide', 'channel'],
      [128, 'kTokens', 'token'],
      [128, 'kWords', 'word'],
      [512, 'kWords', 'word'],
    ].map(([dims, form, word]) => call('LPQ_KV_PACK_FIT', dims, form, word)),
  },
  {
    name: 'kv_pack',
    header: 'cuda/attention/kv_pack.cuh',
    calls: CACHES.flatMap(({ name, keys, values }) =>
      [
        [64, 'kWide', 'channel'],
        [64, 'kTokens', 'token'],
        [128, 'kWide', 'channel'],
        [128, 'kTokens', 'token'],
        ...(name === '2' ? [] : [128, 512].map((dims) => [dims, 'kWords', 'word'])),
      ].map(([dims, form, word]) => call('LPQ_KV_PACK', keys, values, dims, form, `${name}_${word}`)),
    ),
  },
];

export const INSTANCES = [
  ...packed,
  ...split,
  ...experts,
  ...scaled,
  ...large,
  ...stripes,
  ...sparse,
  ...activations,
  ...attention,
];

/** A row as CUDA C++. */
export function sourceOf({ header, headers = [header], defines = {}, calls }) {
  const includes = headers.map((each) => `#include "${each}"\n`);
  const settings = Object.entries(defines).map(([name, value]) => `#define ${name} ${value}\n`);
  return `${includes.join('')}\n${settings.join('')}${calls.join('\n')}\n`;
}
