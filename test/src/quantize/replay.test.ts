import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import type { NativeRuntime } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { ShelvedState } from '../../../src/calibrate/shelf.js';
import type { BlockState } from '../../../src/model/program.js';
import { CALIB, lpq, model, scratch } from '../cli/lpq.js';

const FEW = ['--bits', '4', '--group-size', '64', '--samples', '4', '--seq-len', '64', '--device', 'cpu', ...CALIB];

/** Activations that wait are rounded to 16 bits, as on a device; a run whose journal has a finished block ends where it next waits. */
function roundedWhereItWaits(t: TestContext): { stopped: string | undefined } {
  const state: { stopped: string | undefined } = { stopped: undefined };
  const plain = ShelvedState.prototype.replace;
  t.after(() => {
    ShelvedState.prototype.replace = plain;
  });
  ShelvedState.prototype.replace = function (this: ShelvedState, next: BlockState) {
    const journal = state.stopped && path.join(`${state.stopped}.partial`, 'journal.ndjson');
    if (journal && existsSync(journal) && readFileSync(journal, 'utf8').split('\n').length > 2)
      throw new Error('stopped');
    const { rt } = this as unknown as { readonly rt: NativeRuntime };
    const half = rt.allocate('f16', next.h.shape);
    const h = rt.allocate('f32', next.h.shape);
    ops.cast(rt, next.h, half);
    ops.cast(rt, half, h);
    for (const tensor of [next.h, half]) tensor.dispose();
    plain.call(this, { ...next, h });
  };
  return state;
}

const modules = (dir: string) =>
  (JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as { modules: Record<string, { sha256: object }> })
    .modules;
const hashes = (dir: string) => Object.entries(modules(dir)).map(([name, { sha256 }]) => [name, sha256]);

for (const method of [[], ['--tune', '2']])
  test(`a run that goes on rounds activations where the whole run does: ${method.join(' ') || 'feed by feed'}`, async (t) => {
    const dir = scratch(t);
    const [whole, output] = [path.join(dir, 'whole'), path.join(dir, 'stopped')];
    const rounded = roundedWhereItWaits(t);
    const ran = await lpq(['quantize', model, '-o', whole, ...FEW, ...method]);
    assert.equal(ran.code, 0, ran.stderr);
    rounded.stopped = output;
    assert.notEqual((await lpq(['quantize', model, '-o', output, ...FEW, ...method])).code, 0);
    rounded.stopped = undefined;
    const resumed = await lpq(['quantize', model, '-o', output, ...FEW, ...method, '--resume']);
    assert.equal(resumed.code, 0, resumed.stderr);
    assert.deepEqual(hashes(output), hashes(whole));
  });
