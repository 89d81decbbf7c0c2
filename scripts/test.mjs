// Runs the compiled tests with node:test, each file in a process of its own. Arguments filter by path.
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const filters = process.argv.slice(2);
const files = readdirSync(path.join(root, 'dist', 'test'), { recursive: true })
  .filter((file) => file.endsWith('.test.js') && !file.startsWith(`gpu${path.sep}`))
  .filter((file) => filters.length === 0 || filters.some((filter) => file.includes(filter)))
  .sort()
  .map((file) => path.join('dist', 'test', file));
if (files.length === 0) {
  console.error('no test file matches');
  process.exit(1);
}
const run = spawnSync(process.execPath, ['--test', '--enable-source-maps', ...files], { cwd: root, stdio: 'inherit' });
process.exit(run.status ?? 1);
