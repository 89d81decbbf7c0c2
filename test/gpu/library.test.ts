import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { fileURLToPath } from 'node:url';
import { gpus, gpuTest } from './gpu.js';

// liblpq_kernels.so as other programs use it. Where this runs from a bundle, the header lies elsewhere.
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const build = path.join(root, 'native', 'build');
const include = ['native/library', 'include'].map((dir) => path.join(root, dir)).find((dir) => existsSync(dir));
const work = mkdtempSync(path.join(tmpdir(), 'lpq-gpu-library-'));
after(() => rmSync(work, { recursive: true, force: true }));

const env = { ...process.env, LD_LIBRARY_PATH: build, LPQ_KERNELS: path.join(build, 'liblpq_kernels.so.1') };
const compiler = ['cc', 'gcc', 'clang'].find((name) => spawnSync(name, ['--version']).status === 0);

function compiled(source: string): string {
  const program = path.join(work, path.basename(source, '.c'));
  const files = ['-I', include as string, '-o', program, path.join(root, source), '-L', build, '-llpq_kernels'];
  const run = spawnSync(compiler as string, ['-std=c99', '-O2', ...files, '-lm', '-ldl'], { encoding: 'utf8' });
  assert.equal(run.status, 0, run.stderr);
  return program;
}

/** The tiny model in a type, packed for each of these targets. */
function artifacts(type: readonly string[], targets: readonly string[]): Map<string, string> {
  const lpq = (...args: string[]) => {
    const run = spawnSync(process.execPath, [path.join(root, 'bin/lpq.js'), ...args, '--quiet'], { encoding: 'utf8' });
    assert.equal(run.status, 0, run.stderr);
  };
  const quantized = path.join(work, type.join(''));
  const method = type.includes('--method') ? [] : ['--method', 'rtn'];
  const model = path.join(root, 'share/tiny-llama');
  if (!existsSync(quantized)) lpq('quantize', model, '-o', quantized, '--device', 'cpu', ...method, ...type);
  return new Map(
    targets.map((target) => {
      const dir = `${quantized}-${target}`;
      if (!existsSync(dir)) lpq('pack', quantized, '--target', target, '-o', dir);
      return [target, dir];
    }),
  );
}

const MODULES = ['model.layers.0.mlp.down_proj', 'model.layers.1.self_attn.q_proj'];

gpuTest('the contract of lpq_kernels.h', (t) => {
  if (!compiler) return t.skip('SKIPPED: no C compiler was found');
  const run = spawnSync(compiled('test/gpu/library/contract.c'), ['gpu'], { encoding: 'utf8', env });
  for (const line of run.stdout.matchAll(/^TIME (.*)$/gm)) t.diagnostic(line[1] as string);
  assert.equal(run.status, 0, run.stdout + run.stderr);
});

gpuTest('the example in C computes layers as plain C does', (t) => {
  if (!compiler) return t.skip('SKIPPED: no C compiler was found');
  const program = compiled('examples/c/layer.c');
  for (const [target, ...type] of [
    ['tilus', '--bits', '4', '--group-size', '128'],
    ['tilus', '--dtype', 'u8', '--asym', '--group-size', '32'],
    ['sparse_marlin', '--bits', '4', '--sparsity', '2:4'],
    ['comet', '--bits', '4', '--method', 'fmpq', '--samples', '4', '--seq-len', '64'],
  ] as const) {
    if (target === 'comet' && gpus[0]?.arch !== 90) continue;
    for (const dir of artifacts(type, [target]).values())
      for (const [module, tokens] of MODULES.flatMap((name) => ['1', '16', '70'].map((m) => [name, m] as const))) {
        const run = spawnSync(program, [dir, module, tokens], { encoding: 'utf8', env });
        assert.equal(run.status, 0, `${dir} ${module} ${tokens}: ${run.stdout}${run.stderr}`);
        assert.match(run.stdout, /the largest difference is 0\.\d+ of the bound/);
      }
  }
});

gpuTest('the example in Python agrees with torch, through graphs too', (t) => {
  const script = path.join(root, 'examples/python/layer.py');
  const python = (...args: string[]) => spawnSync('python3', [script, ...args], { encoding: 'utf8', env });
  const four = artifacts(['--bits', '4', '--group-size', '128'], ['tilus', 'marlin', 'turbomind']);
  const runs: string[][] = [...four.values()].map((dir) => [
    dir,
    MODULES[0] as string,
    '--codes',
    four.get('tilus') as string,
  ]);
  runs.push([four.get('tilus') as string, MODULES[1] as string, '--dtype', 'bf16']);
  for (const type of [
    ['--dtype', 'f6e3m2', '--group-size', '64'],
    ['--dtype', 'u3', '--asym', '--group-size', '32'],
  ])
    runs.push([artifacts(type, ['tilus']).get('tilus') as string, MODULES[0] as string]);
  for (const args of runs) {
    const run = python(...args);
    if (run.error) return t.skip('SKIPPED: there is no python3');
    if (run.status === 77) return t.skip(`SKIPPED: ${run.stdout.trim()}`);
    assert.equal(run.status, 0, `${args.join(' ')}: ${run.stdout}${run.stderr}`);
  }
});
