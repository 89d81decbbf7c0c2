// node scripts/engines.mjs: the environments of test/engines, build/engines/vllm (vLLM's build for the CPU, 3 GB) and build/engines/llama
// (llama.cpp, built of pip's source), build/engines/gptqmodel and build/engines/lmdeploy beside build/consumers. --only vllm, llama,
// gptqmodel, lmdeploy or consumers makes that one.
// --table runs every engine over every format then (LPQ_TEST_ALL=1), and writes test/engines/expected.json and docs/engine-runs.md, whose
// columns of a device are those of the record that test/engines/device.ts names.
import { spawnSync } from 'node:child_process';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { llamaCpp } from './llama-cpp.mjs';
import { pythonEnvironment } from './python-environment.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const { values } = parseArgs({ options: { table: { type: 'boolean' }, only: { type: 'string' } } });

const at = (...parts) => path.join(root, ...parts);
const makers = {
  consumers: () => pythonEnvironment(at('build', 'consumers'), at('test', 'consumers', 'requirements.txt')),
  vllm: () => pythonEnvironment(at('build', 'engines', 'vllm'), at('test', 'engines', 'vllm.txt')),
  gptqmodel: () =>
    pythonEnvironment(at('build', 'engines', 'gptqmodel'), at('test', 'engines', 'gptqmodel.txt'), {
      builders: ['setuptools==84.2.1', 'wheel==0.48.0'],
      env: { BUILD_CUDA_EXT: '0' },
    }),
  lmdeploy: () => pythonEnvironment(at('build', 'engines', 'lmdeploy'), at('test', 'engines', 'lmdeploy.txt')),
  llama: () => llamaCpp(at('build', 'engines', 'llama'), at('test', 'engines', 'drive_llama.cpp')),
};
const wanted = values.only === undefined ? Object.keys(makers) : [values.only];
const failed = wanted.filter((name) => !makers[name]?.());
if (failed.length > 0) {
  console.error(
    `\nFAILED: environments of test/engines that could not be made: ${failed.join(', ')}; above stands what pip or the compiler said ` +
      `(LPQ_PYTHON: ${process.env.LPQ_PYTHON ?? 'python3'})`,
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
