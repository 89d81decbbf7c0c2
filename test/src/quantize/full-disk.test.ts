import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { scratch } from '../../formats/scratch.js';
import { CALIB } from '../cli/lpq.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..');
const dir = scratch();

/**
 * `lpq quantize` of the bundled model by a process whose files may not grow beyond `blocks` of 512 bytes: writes beyond
 * fail with EFBIG (Node ignores the signal), as those of a full disk do with ENOSPC.
 */
function limited(blocks: number, ...options: string[]): { status: number | null; code: string; stdout: string } {
  const run = spawnSync(
    'sh',
    [
      '-c',
      `ulimit -f ${blocks}; exec "$@"`,
      'sh',
      process.execPath,
      path.join(root, 'bin', 'lpq.js'),
      'quantize',
      path.join(root, 'share', 'tiny-llama'),
      '-o',
      path.join(dir, 'out'),
      '--bits',
      '4',
      '--device',
      'cpu',
      '--json',
      ...options,
    ],
    { encoding: 'utf8' },
  );
  const last = JSON.parse(run.stdout.trim().split('\n').at(-1) || '{}') as { code: string };
  return { status: run.status, code: last.code, stdout: run.stdout };
}

for (const method of [['rtn'], ['gptq', '--samples', '2', '--seq-len', '64', ...CALIB]])
  test(`${method[0]}: files that cannot grow, among parallel writes, end the run and leave nothing`, () => {
    // Too small for what is copied first; for the header of the shard; for the tensors written at once.
    for (const blocks of [1, 16, 128, 1024]) {
      const { status, code, stdout } = limited(blocks, '--method', ...(method as string[]));
      assert.notEqual(status, 0);
      assert.equal(code, 'LPQ_OUTPUT_WRITE', `${blocks} blocks: ${stdout.slice(-600)}`);
      assert.deepEqual(readdirSync(dir), [], `${blocks} blocks`);
    }
  });
