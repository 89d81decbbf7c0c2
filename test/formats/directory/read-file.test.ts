import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { readRegularText } from '../../../formats/directory/read-file.js';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { designed, scratch } from '../scratch.js';

test('a named pipe in place of a file is refused rather than waited for', () => {
  const dir = scratch();
  for (const name of ['lpq.json', 'model.safetensors', 'model.safetensors.index.json'])
    execFileSync('mkfifo', [path.join(dir, name)]);
  assert.throws(() => readRegularText(path.join(dir, 'lpq.json')), /^Error: it is a pipe; write it to a file first$/);
  mkdirSync(path.join(dir, 'folder'));
  assert.throws(() => readRegularText(path.join(dir, 'folder')), /^Error: it is a directory$/);
  assert.throws(
    () => Checkpoint.open(dir),
    designed('LPQ_FILE', 'model.safetensors cannot be read: not a regular file'),
  );
  rmSync(path.join(dir, 'model.safetensors'));
  assert.throws(() => Checkpoint.open(dir), designed('LPQ_SAFETENSORS_INDEX', 'it is a pipe'));
});
