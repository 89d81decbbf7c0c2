// C++ and CUDA sources against .clang-format: names the files that differ, or with --write formats them.
import { spawnSync } from 'node:child_process';
import { fileURLToPath } from 'node:url';

const root = fileURLToPath(new URL('..', import.meta.url));
const git = (...args) => spawnSync('git', args, { cwd: root, encoding: 'utf8' });

const listed = git(
  'ls-files',
  '--cached',
  '--others',
  '--exclude-standard',
  '-z',
  '--',
  '*.h',
  '*.inc',
  '*.cpp',
  '*.cu',
  '*.cuh',
);
if (listed.status !== 0) {
  console.error(`clang-format: git lists no files: ${listed.stderr.trim()}`);
  process.exit(1);
}
const files = listed.stdout.split('\0').filter((file) => file !== '' && !file.startsWith('test/fixtures/'));
const how = process.argv.includes('--write') ? ['-i'] : ['--dry-run', '-Werror', '--ferror-limit=1'];
const run = spawnSync('npx', ['--no-install', 'clang-format', ...how, ...files], {
  cwd: root,
  encoding: 'utf8',
  stdio: ['ignore', 'inherit', 'pipe'],
});
if (run.error || run.status !== 0) {
  const differing = new Set([...run.stderr.matchAll(/^(\S+?):\d+:\d+: (?:error|warning)/gm)].map((match) => match[1]));
  if (differing.size === 0) console.error(run.error?.message ?? run.stderr);
  else console.error(`clang-format: ${differing.size} files differ (npm run format):\n${[...differing].join('\n')}`);
  process.exit(1);
}
