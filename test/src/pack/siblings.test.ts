import assert from 'node:assert/strict';
import { test } from 'node:test';
import { planPack } from '../../../src/pack/plan.js';
import { scratch } from '../../formats/scratch.js';
import { checkpointOf, made } from './checkpoint.js';

test('siblings get one layout of a device, the first that takes all of them; others keep their best', async () => {
  const attention = 'model.layers.0.self_attn';
  const i4 = { type: 'i4', k: 256, group: 64 } as const;
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', {
    // k and v are no whole tiles of MARLIN's.
    [`${attention}.q_proj`]: made({ ...i4, n: 256 }),
    [`${attention}.k_proj`]: made({ ...i4, n: 128 }),
    [`${attention}.v_proj`]: made({ ...i4, n: 128 }),
    [`${attention}.o_proj`]: made({ ...i4, n: 256 }),
    // Of TurboMind's neither.
    'model.layers.0.mlp.gate_proj': made({ ...i4, n: 256 }),
    'model.layers.0.mlp.up_proj': made({ ...i4, n: 40 }),
    // Another type cannot be joined anyway.
    'model.layers.1.mlp.gate_proj': made({ ...i4, n: 256 }),
    'model.layers.1.mlp.up_proj': made({ ...i4, type: 'i8', n: 256 }),
  });
  const layouts = (target: string) =>
    [...planPack(input, target).decisions.values()].map((decision) =>
      decision.action === 'fallback' ? decision.form : decision.layout,
    );
  const turbomind = ['turbomind', 'turbomind', 'turbomind'];
  assert.deepEqual(
    layouts('sm80').toSorted(),
    [...turbomind, 'marlin', 'marlin', 'tilus', 'tilus', 'tilus'].toSorted(),
  );
  const { decisions, notes, target } = planPack(input, 'sm80');
  const of = (name: string) => {
    const decision = decisions.get(name);
    return decision && decision.action !== 'fallback' ? decision.layout : undefined;
  };
  assert.deepEqual(
    ['q_proj', 'k_proj', 'v_proj'].map((last) => of(`${attention}.${last}`)),
    turbomind,
  );
  assert.deepEqual([of(`${attention}.o_proj`), of('model.layers.1.mlp.gate_proj')], ['marlin', 'marlin']);
  assert.deepEqual([of('model.layers.0.mlp.gate_proj'), of('model.layers.1.mlp.up_proj')], ['tilus', 'tilus']);
  assert.deepEqual([target.name, notes], ['sm80', []]);
  assert.deepEqual(new Set(layouts('sm90')), new Set(['tilus']));
  input.close();
});
