// node scripts/peers.mjs [--only NAME]: what bench/peers runs beside lpq, pinned: build/peers/llmcompressor, build/peers/autoround (Python
// environments of 1 GB each), build/engines/gptqmodel, build/consumers, and build/peers/llama with llama.cpp's quantize, built of the source
// that scripts/engines.mjs has (ten minutes of a core). LPQ_GPTQMODEL_PYTHON, LPQ_LLMCOMPRESSOR_PYTHON, LPQ_AUTOROUND_PYTHON,
// LPQ_CONSUMERS_PYTHON, LPQ_LLAMA_SOURCE and LPQ_LLAMA_QUANTIZE name others.
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { pythonEnvironment } from './python-environment.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const at = (...parts) => path.join(root, ...parts);
const { values } = parseArgs({ options: { only: { type: 'string' } } });

/** Whether a command of a build succeeded; its output is shown. */
const ran = (...command) =>
  spawnSync(command[0], command.slice(1), { stdio: ['ignore', 'inherit', 'inherit'] }).status === 0;

function llamaQuantize() {
  const build = at('build', 'peers', 'llama');
  if (existsSync(path.join(build, 'bin', 'llama-quantize'))) return true;
  if (!ran(process.execPath, at('scripts', 'engines.mjs'), '--only', 'llama')) return false;
  const sources = at('build', 'engines', 'llama', 'source');
  const version = readdirSync(sources).find((name) => !name.endsWith('.gz'));
  const source = path.join(sources, version, 'llama.cpp');
  return (
    ran('cmake', '-S', source, '-B', build, '-DCMAKE_BUILD_TYPE=Release', '-DLLAMA_CURL=OFF') &&
    ran('cmake', '--build', build, '--target', 'llama-quantize', '--parallel', String(availableParallelism()))
  );
}

const own = (name) => pythonEnvironment(at('build', 'peers', name), at('bench', 'peers', `${name}.txt`));
const makers = {
  gptqmodel: () => ran(process.execPath, at('scripts', 'engines.mjs'), '--only', 'gptqmodel'),
  consumers: () => ran(process.execPath, at('scripts', 'engines.mjs'), '--only', 'consumers'),
  llmcompressor: () => own('llmcompressor'),
  autoround: () => own('autoround'),
  llama: llamaQuantize,
};
const wanted = values.only === undefined ? Object.keys(makers) : [values.only];
const failed = wanted.filter((name) => !makers[name]?.());
if (failed.length > 0) {
  console.error(`peers that could not be made: ${failed.join(', ')}`);
  process.exit(1);
}
