import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../../model/fixtures.js';
import { events, lpq, model, scratch } from '../lpq.js';

const glm = path.join(ROOT, 'test', 'fixtures', 'prediction', 'glm4_moe');
const RTN = ['--bits', '4', '--group-size', '32', '--method', 'rtn', '--device', 'cpu', '--json', '--dry-run'];

interface Plan {
  readonly modules: readonly { name: string; action: string }[];
  readonly carried: readonly string[];
}

async function planOf(source: string, out: string, ...more: string[]): Promise<Plan> {
  const ran = await lpq(['quantize', source, '-o', out, ...RTN, ...more]);
  return events(ran).find(({ dryRun }) => dryRun === true) as unknown as Plan;
}

test('a dry run has the linears of multi-token prediction with --mtp, of an index alone too, and else carries them', async (t) => {
  const dir = scratch(t);
  const bare = path.join(dir, 'bare');
  mkdirSync(bare);
  copyFileSync(path.join(glm, 'config.json'), path.join(bare, 'config.json'));
  const [asked, plain] = [await planOf(glm, path.join(dir, 'out'), '--mtp'), await planOf(glm, path.join(dir, 'out'))];
  const weights = [...asked.carried, ...asked.modules.map(({ name }) => `${name}.weight`)];
  writeFileSync(
    path.join(bare, 'model.safetensors.index.json'),
    JSON.stringify({ weight_map: Object.fromEntries(weights.map((name) => [name, 'model.safetensors'])) }),
  );
  const indexed = await planOf(bare, path.join(dir, 'out'), '--mtp');
  const inside = (plan: Plan) => plan.modules.filter(({ name }) => name.startsWith('model.layers.2.'));
  // q, k, v, o; three linears of four experts and of the shared one.
  assert.equal(inside(asked).length, 4 + 3 * 5);
  assert.ok(inside(asked).every(({ action }) => action === 'quantize'));
  assert.deepEqual(inside(indexed), inside(asked));
  assert.deepEqual(inside(plain), []);
  assert.ok(asked.carried.includes('model.layers.2.eh_proj.weight'));
  assert.ok(plain.carried.includes('model.layers.2.self_attn.q_proj.weight'));
});

test('--mtp is refused where it has no effect: on a model without such layers, and beside fmpq', async (t) => {
  const out = path.join(scratch(t), 'out');
  const none = await lpq(['quantize', model, '-o', out, '--bits', '4', '--method', 'rtn', '--mtp']);
  assert.equal(none.code, 2);
  assert.match(none.stderr, /LPQ_USAGE +--mtp has no effect on .*, which has no layers of multi-token prediction/);
  const fmpq = await lpq(['quantize', glm, '-o', out, '--bits', '4', '--method', 'fmpq', '--mtp']);
  assert.equal(fmpq.code, 2);
  assert.match(fmpq.stderr, /LPQ_USAGE +--mtp does not go with --method fmpq/);
});
