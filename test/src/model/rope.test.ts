import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { typed } from '../../../native/binding.js';
import { Config } from '../../../src/model/config.js';
import { dependsOnLength, frequencies, type RopeSpec, ropeSpec } from '../../../src/model/rope.js';
import { ropeTables, ropeTablesByToken } from '../../../src/model/rope-tables.js';

const spec = (scaling: Record<string, unknown>, config: Record<string, unknown> = {}, headDim = 64): RopeSpec =>
  ropeSpec(
    new Config({ rope_theta: 10_000, rope_scaling: scaling, max_position_embeddings: 4096, ...config }, 'config.json'),
    { style: 'half', theta: 10_000 },
    headDim,
  );
const close = (got: number, want: number, relative = 1e-12) =>
  assert.ok(Math.abs(got - want) <= relative * Math.abs(want), `${got} is not ${want}`);

test('default: pair i of d/2 turns by theta^(-2i/d) a position', () => {
  frequencies(spec({ rope_type: 'default' })).forEach((frequency, i) => {
    close(frequency, Math.exp(-((2 * i) / 64) * Math.log(10_000)));
  });
});

test('linear: every frequency divided by the factor', () => {
  const plain = frequencies(spec({ rope_type: 'default' }));
  frequencies(spec({ rope_type: 'linear', factor: 8 })).forEach((frequency, i) => {
    close(frequency, plain[i]! / 8);
  });
});

test('llama3: short wavelengths kept, long ones divided, and the ramp is between and monotonic', () => {
  const plain = frequencies(spec({ rope_type: 'default' }));
  const scaled = frequencies(
    spec({
      rope_type: 'llama3',
      factor: 8,
      low_freq_factor: 1,
      high_freq_factor: 4,
      original_max_position_embeddings: 1024,
    }),
  );
  let ramp = 0;
  scaled.forEach((frequency, i) => {
    const wavelength = (2 * Math.PI) / plain[i]!;
    if (wavelength < 1024 / 4) close(frequency, plain[i]!);
    else if (wavelength > 1024 / 1) close(frequency, plain[i]! / 8);
    else {
      ramp++;
      assert.ok(frequency > plain[i]! / 8 && frequency < plain[i]!);
    }
    if (i > 0) assert.ok(frequency < scaled[i - 1]!);
  });
  assert.ok(ramp > 0);
});

test('yarn: ends of the ramp, attention factor, and its overrides', () => {
  const plain = frequencies(spec({ rope_type: 'default' }));
  const base = { rope_type: 'yarn', factor: 4, original_max_position_embeddings: 1024 };
  const scaled = frequencies(spec(base));
  // d ln(L / (2 pi b)) / (2 ln theta): d = 64, L = 1024, theta = 1e4 gives 5.65 for b = 32 and 17.69 for b = 1.
  scaled.forEach((frequency, i) => {
    if (i <= 5) close(frequency, plain[i]!);
    else if (i >= 18) close(frequency, plain[i]! / 4);
    else {
      const slow = (i - 5) / (18 - 5);
      close(frequency, plain[i]! * (1 - slow + slow / 4));
    }
  });
  const attention = (extra: Record<string, unknown>) => {
    const { scaling } = spec({ ...base, ...extra });
    assert.ok(scaling.kind === 'yarn');
    return scaling.attention;
  };
  close(attention({}), 0.1 * Math.log(4) + 1);
  close(attention({ attention_factor: 1.5 }), 1.5);
  close(attention({ mscale: 0.7, mscale_all_dim: 0.7 }), 1);
  close(attention({ mscale: 1, mscale_all_dim: 0.5 }), (0.1 * Math.log(4) + 1) / (0.05 * Math.log(4) + 1));
  close(attention({ factor: 1 }), 1);
  // Without rounding of its ends the ramp starts at 5.65: pair 5 is kept, pair 6 has hardly begun.
  const smooth = frequencies(spec({ ...base, truncate: false }));
  close(smooth[5]!, plain[5]!);
  assert.ok(smooth[6]! > scaled[6]!);
  // Without a factor it is the ratio of the lengths.
  const { scaling } = spec({ rope_type: 'yarn', original_max_position_embeddings: 1024 });
  assert.ok(scaling.kind === 'yarn' && scaling.factor === 4);
});

test('tables hold the cosine and sine of position times frequency', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 32 }), fc.integer({ min: 2, max: 600 }), (half, positions) => {
      const { cos, sin } = ropeTables(spec({ rope_type: 'default' }, {}, 2 * half), positions);
      const [c, s] = [typed(cos), typed(sin)];
      assert.deepEqual(cos.shape, [positions, half]);
      for (const position of [0, 1, positions - 1])
        for (let i = 0; i < half; i++) {
          const angle = position * 10_000 ** (-i / half);
          // Frequency and angle are rounded to f32: together at most 2^-23 of the angle; the result once more.
          const tolerance = 2 ** -23 * angle + 2 ** -24;
          assert.ok(Math.abs(c[position * half + i]! - Math.cos(angle)) <= tolerance);
          assert.ok(Math.abs(s[position * half + i]! - Math.sin(angle)) <= tolerance);
        }
    }),
    { numRuns: 20 },
  );
});

test('yarn multiplies both tables by its attention factor', () => {
  const { cos, sin } = ropeTables(spec({ rope_type: 'yarn', factor: 4, attention_factor: 2 }), 4);
  assert.equal(typed(cos)[0], 2);
  close(Math.hypot(typed(cos)[40]!, typed(sin)[40]!), 2, 1e-6);
});

test('a partial rotary factor rotates the first dimensions only', () => {
  const partly = (parameters: Record<string, unknown>, rest: Record<string, unknown> = {}, partial = true) =>
    ropeSpec(
      new Config({ rope_parameters: parameters, ...rest }, 'config.json'),
      { style: 'half', theta: 1e4, partial },
      64,
    );
  assert.equal(partly({ rope_type: 'default', partial_rotary_factor: 0.5 }).rotary, 32);
  assert.equal(partly({ rope_type: 'default' }, { partial_rotary_factor: 0.25 }).rotary, 16);
  assert.equal(partly({ rope_type: 'linear', factor: 2 }, { partial_rotary_factor: 0.25 }).rotary, 16);
  // A class that does not read the key rotates all of them, and cannot scale.
  assert.equal(partly({ rope_type: 'default', partial_rotary_factor: 0.5 }, {}, false).rotary, 64);
  assert.throws(
    () => partly({ rope_type: 'linear', factor: 2, partial_rotary_factor: 0.5 }, {}, false),
    /partial_rotary/,
  );
});

test('dynamic scaling is the default up to the trained length, and a larger theta for each longer sequence', () => {
  const dynamic = spec({ rope_type: 'dynamic', factor: 2 }, { max_position_embeddings: 32 });
  const plain = frequencies(spec({ rope_type: 'default' }));
  assert.deepEqual(frequencies(dynamic, 32), plain);
  assert.ok(!dependsOnLength(dynamic, 32) && dependsOnLength(dynamic, 33));
  // theta' = theta (s L / L0 - (s - 1))^(d / (d - 2)): for s = 2, L = 48, L0 = 32 the bracket is 2.
  frequencies(dynamic, 48).forEach((frequency, i) => {
    close(frequency, Math.exp(-((2 * i) / 64) * (Math.log(10_000) + (64 / 62) * Math.log(2))));
  });
});

test('longrope divides pair by pair, with other divisors beyond the original length', () => {
  const short_factor = Array.from({ length: 32 }, (_, i) => 1 + i / 100);
  const long_factor = Array.from({ length: 32 }, (_, i) => 2 + i);
  const scaling = { type: 'longrope', short_factor, long_factor };
  const long = spec(scaling, { original_max_position_embeddings: 1024 });
  const plain = frequencies(spec({ rope_type: 'default' }));
  frequencies(long, 1024).forEach((frequency, i) => {
    close(frequency, plain[i]! / short_factor[i]!);
  });
  frequencies(long, 1025).forEach((frequency, i) => {
    close(frequency, plain[i]! / long_factor[i]!);
  });
  // Positions grew from 1024 to 4096: sqrt(1 + ln 4 / ln 1024) = sqrt(1.2).
  assert.ok(long.scaling.kind === 'longrope');
  close(long.scaling.attention, Math.sqrt(1.2));
  const stated = spec({ ...scaling, attention_factor: 1.25 }, { original_max_position_embeddings: 1024 });
  close(typed(ropeTables(stated, 4).cos)[0]!, 1.25);
  assert.deepEqual(spec({ ...scaling, type: 'su' }, { original_max_position_embeddings: 1024 }), long);
});

test('proportional: the first share of the pairs of a whole head turns', () => {
  const half = spec({ rope_type: 'proportional', partial_rotary_factor: 0.25 });
  assert.equal(half.rotary, 64);
  const plain = frequencies(spec({ rope_type: 'default' }));
  frequencies(half).forEach((frequency, i) => {
    if (i < 8) close(frequency, plain[i]!);
    else assert.equal(frequency, 0);
  });
});

test('tables by token restart for every sequence, each with the frequencies of its length', () => {
  const dynamic = spec({ rope_type: 'dynamic', factor: 2 }, { max_position_embeddings: 32 });
  const { cos, positions } = ropeTablesByToken(dynamic, [3, 40]);
  assert.equal(positions, 43);
  const table = typed(cos);
  // Frequency and angle are rounded to f32 as in the test above.
  for (const [row, position, length] of [
    [2, 2, 3],
    [3, 0, 40],
    [42, 39, 40],
  ] as const)
    for (const i of [0, 5, 31])
      assert.ok(
        Math.abs(table[row * 32 + i]! - Math.cos(position * frequencies(dynamic, length)[i]!)) <= 40 * 2 ** -23,
        `row ${row}`,
      );
});

test('thetas of blocks with a window: an object each, or a local theta without scaling', () => {
  const table = { style: 'half', theta: 1e6, local: { keys: ['rope_local_base_freq'], otherwise: 1e4 } } as const;
  const read = (config: Record<string, unknown>) =>
    [false, true].map((sliding) => {
      const { theta, scaling } = ropeSpec(new Config(config, 'config.json'), table, 64, sliding);
      return [theta, scaling.kind];
    });
  assert.deepEqual(read({}), [
    [1e6, 'default'],
    [1e4, 'default'],
  ]);
  assert.deepEqual(
    read({ rope_theta: 5e5, rope_local_base_freq: 3e4, rope_scaling: { rope_type: 'linear', factor: 8 } }),
    [
      [5e5, 'linear'],
      [3e4, 'default'],
    ],
  );
  assert.deepEqual(
    read({
      rope_parameters: {
        full_attention: { rope_type: 'linear', factor: 8, rope_theta: 2e6 },
        sliding_attention: { rope_type: 'default', rope_theta: 2e4 },
      },
    }),
    [
      [2e6, 'linear'],
      [2e4, 'default'],
    ],
  );
});
