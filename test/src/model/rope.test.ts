import assert from 'node:assert/strict';
import test from 'node:test';
import fc from 'fast-check';
import { typed } from '../../../native/binding.js';
import { LpqError } from '../../../src/core/error.js';
import { Config } from '../../../src/model/config.js';
import { frequencies, type RopeSpec, ropeSpec, ropeTables } from '../../../src/model/rope.js';

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
  assert.equal(spec({ rope_type: 'default', partial_rotary_factor: 0.5 }).rotary, 32);
  assert.equal(spec({ rope_type: 'default' }, { partial_rotary_factor: 0.25 }).rotary, 16);
});

test('dynamic scaling is the default up to the trained length and refused beyond', () => {
  const dynamic = spec({ rope_type: 'dynamic', factor: 2 }, { max_position_embeddings: 32 });
  assert.deepEqual(frequencies(dynamic), frequencies(spec({ rope_type: 'default' })));
  ropeTables(dynamic, 32);
  assert.throws(
    () => ropeTables(dynamic, 33),
    (error) => error instanceof LpqError && error.code === 'LPQ_CONFIG' && /dynamic/.test(error.message),
  );
});
