#!/usr/bin/env node
// The command line. All of it is compiled from src/cli; this file only finds it.
import { existsSync } from 'node:fs';
import { fileURLToPath } from 'node:url';

const main = new URL('../dist/src/cli/main.js', import.meta.url);
const load = async () => {
  if (!existsSync(fileURLToPath(main))) throw new Error('dist/src/cli/main.js is missing');
  return import(main.href);
};
const loaded = await load().catch((error) => ({ error }));
if (loaded.run) await loaded.run(process.argv.slice(2));
else {
  const [reason] = String(loaded.error?.message).split('\n');
  process.stderr.write(
    `LPQ_BUILD  lpq is not compiled: ${reason}\n  hint      Run npm ci (or npm run build) in the directory of lpq.\n`,
  );
  process.exitCode = 3;
}
