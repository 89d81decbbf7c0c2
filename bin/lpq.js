#!/usr/bin/env node
// The command line. All of it is compiled from src/cli; this file only finds it.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const main = new URL('../dist/src/cli/main.js', import.meta.url);
if (existsSync(fileURLToPath(main))) {
  const { run } = await import(main.href);
  await run(process.argv.slice(2));
} else {
  process.stderr.write(
    'LPQ_BUILD  lpq is not compiled: dist/src/cli/main.js is missing\n  hint      Run npm ci (or npm run build) in the directory of lpq.\n',
  );
  process.exitCode = 3;
}
