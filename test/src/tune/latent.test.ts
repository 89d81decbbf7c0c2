import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { disposeModule } from '../../../src/quantize/result.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { dequantizeResult } from '../../../src/quantize/stored.js';
import { Latent } from '../../../src/tune/latent.js';
import { Random } from '../../native/support.js';

const rt = createRuntime(2);
const SCHEMES = [
  { bits: 4, groupSize: 32 },
  { bits: 3, groupSize: 32, asym: true },
  { bits: 2, groupSize: 'channel' },
  { bits: 1, groupSize: 32 },
  { dtype: 'mxfp4' },
  { dtype: 'nvfp4' },
  { dtype: 'f6e3m2', groupSize: 32 },
] as const;

for (const options of SCHEMES)
  test(`${JSON.stringify(options)}: training begins with the codes that it is given; a step moves weights against the gradient`, async () => {
    const [n, k] = [24, 64];
    const random = new Random(7);
    // Codes of a weight that is somewhat off, as a solver's are: many need a shift.
    const values = random.normals(n * k);
    const moved = values.map((value) => value + 0.15 * random.normal());
    const scheme = schemeFromOptions(options);
    const module = await roundWeight(rt, fromTyped('f32', [n, k], moved), scheme, 'w');
    const source = fromTyped('f32', [n, k], values);
    const latent = Latent.begin(rt, source, module);
    const given = dequantizeResult(rt, module);
    await rt.sync();
    typed(given).forEach((value, i) => {
      // (code - zero) * scale * global against (code - zero) * (scale * global): two roundings.
      assert.ok(Math.abs(typed(latent.weight)[i]! - value) <= 2.1 * 2 ** -23 * Math.abs(value), `weight ${i}`);
    });
    const same = await latent.result();
    const first = await rt.download(same.codes);
    assert.deepEqual(first.bytes(), (await rt.download(module.codes)).bytes());
    assert.deepEqual(same.scales.bytes(), module.scales.bytes());

    // A step of one grid point against the signs of a gradient, with fixed scales and zeros: away from the ends of the grid, weights of
    // integers move by their scale.
    const slopes = random.normals(n * k);
    const before = typed(latent.weight).slice();
    ops.cast(rt, fromTyped('f32', [n, k], slopes), latent.gradient);
    latent.step({ rate: 1, factorRate: 0, zeroRate: 0 });
    latent.refresh();
    const scales = rt.allocate('f32', module.scales.shape);
    if (scheme.type.kind === 'int') ops.cast(rt, module.scales, scales);
    await rt.sync();
    const groups = module.scales.shape[1]!;
    let moves = 0;
    typed(latent.weight).forEach((value, i) => {
      const change = value - before[i]!;
      assert.ok(change * slopes[i]! <= 0, `weight ${i} moves with the gradient`);
      if (change === 0) return;
      moves++;
      if (scheme.type.kind !== 'int') return;
      const scale = Math.abs(typed(scales)[Math.floor(i / k) * groups + Math.floor(((i % k) * groups) / k)]!);
      assert.ok(Math.abs(Math.abs(change) - scale) <= 1e-5 * Math.max(scale, Math.abs(value)), `weight ${i}`);
    });
    assert.ok(moves > (n * k) / 4, `${moves} weights moved`);
    latent.keep();
    const made = { ...module, ...(await latent.result()) };
    const back = dequantizeResult(rt, made);
    await rt.sync();
    typed(back).forEach((value, i) => {
      assert.ok(Math.abs(typed(latent.weight)[i]! - value) <= 2.1 * 2 ** -23 * Math.abs(value), `trained ${i}`);
    });
    disposeModule(module);
    latent.dispose();
  });
