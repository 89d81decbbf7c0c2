import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { existsSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { events, lpq, model, root, scratch } from '../src/cli/lpq.js';
import { gpuTest } from './gpu.js';

const DEVICE = process.env.LPQ_TEST_RESUME_DEVICE ?? 'cuda:0';
const FLAGS = ['--bits', '4', '--group-size', '64', '--samples', '32', '--seq-len', '256', '--device', DEVICE];

const manifest = (dir: string) => JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as Manifest;
interface Manifest {
  readonly modules: Record<string, { readonly sha256: unknown }>;
}
const hashes = (dir: string) => Object.entries(manifest(dir).modules).map(([name, { sha256 }]) => [name, sha256]);

/** Leaves a partial output: the run is killed as soon as its journal has a finished block. */
async function stopped(output: string, args: readonly string[]): Promise<void> {
  const journal = path.join(`${output}.partial`, 'journal.ndjson');
  const command = [path.join(root, 'bin', 'lpq.js'), 'quantize', model, '-o', output, ...args];
  const child = spawn(process.execPath, command, { cwd: root, stdio: 'ignore' });
  const timer = setInterval(() => {
    if (existsSync(journal) && readFileSync(journal, 'utf8').split('\n').length > 2) child.kill('SIGKILL');
  }, 1);
  const code = await new Promise((resolve) => child.on('close', resolve));
  clearInterval(timer);
  assert.equal(code, null, 'the run was not killed');
}

for (const method of [[], ['--tune', '40'], ['--method', 'fmpq', '--group-size', '128']])
  gpuTest(
    `a run on a device goes on where it was killed, to the same bytes: ${method.join(' ') || 'gptq'}`,
    async (t) => {
      const dir = scratch(t);
      const [whole, output] = [path.join(dir, 'whole'), path.join(dir, 'killed')];
      const args = [...FLAGS, ...method, '--no-eval'];
      const ran = await lpq(['quantize', model, '-o', whole, ...args]);
      assert.equal(ran.code, 0, ran.stderr);
      await stopped(output, args);
      const resumed = await lpq(['quantize', model, '-o', output, ...args, '--resume', '--json']);
      assert.equal(resumed.code, 0, resumed.stderr);
      assert.ok(events(resumed).some(({ event }) => event === 'result'));
      assert.deepEqual(hashes(output), hashes(whole));
    },
  );

gpuTest(
  'blocks are trained with two devices, and the same command gives the same bytes',
  async (t) => {
    const dir = scratch(t);
    const made: unknown[] = [];
    for (const name of ['first', 'again']) {
      const output = path.join(dir, name);
      const args = [...FLAGS.slice(0, -1), 'cuda:0,cuda:1', '--tune', '40', '--no-eval'];
      const ran = await lpq(['quantize', model, '-o', output, ...args]);
      assert.equal(ran.code, 0, ran.stderr);
      made.push(hashes(output));
    }
    assert.deepEqual(made[1], made[0]);
  },
  2,
);
