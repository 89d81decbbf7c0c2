// node scripts/engines.mjs: the environments of test/engines, build/engines/vllm (vLLM's build for the CPU, 3 GB) beside build/consumers.
// --table runs every engine over every format then (LPQ_TEST_ALL=1), and writes test/engines/expected.json and docs/who-loads-what.md.
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { pythonEnvironment } from './python-environment.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const { values } = parseArgs({ options: { table: { type: 'boolean' } } });

const made = [
  ['consumers', path.join('consumers', 'requirements.txt')],
  [path.join('engines', 'vllm'), path.join('engines', 'vllm.txt')],
].every(([place, list]) => pythonEnvironment(path.join(root, 'build', place), path.join(root, 'test', list)));
if (!made) {
  console.error(
    'an environment of test/engines could not be installed: its packages are pinned in test/engines/vllm.txt',
  );
  process.exit(1);
}
if (values.table) {
  const { status } = spawnSync(process.execPath, [path.join(root, 'scripts', 'test.mjs'), 'test/engines'], {
    cwd: root,
    stdio: 'inherit',
    env: { ...process.env, LPQ_TEST_ALL: '1', LPQ_ENGINES_WRITE: '1' },
  });
  process.exit(status ?? 1);
}
