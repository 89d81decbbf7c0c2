// Compiles native/cuda/**/*.cu into native/build/lpq_kernels.fatbin; needs nvcc >= 12.0, no GPU. Files that did not change
// are not compiled again. LPQ_CUDA_ARCHS=90a limits the machine code (default 80,86,89,90a and PTX for 80).
import { spawn, spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const native = path.join(root, 'native');
const build = process.env.LPQ_BUILD_DIR ?? path.join(native, 'build');
const objects = path.join(build, 'cuda');

function fail(what, remedy) {
  console.error(`LPQ_BUILD_TOOL: ${what}\n  remedy: ${remedy}`);
  process.exit(1);
}

const homes = [process.env.CUDA_HOME, process.env.CUDA_PATH, '/usr/local/cuda'].filter(Boolean);
const nvcc = [process.env.NVCC, 'nvcc', ...homes.map((home) => path.join(home, 'bin', 'nvcc'))]
  .filter(Boolean)
  .find((name) => spawnSync(name, ['--version']).status === 0);
if (!nvcc) fail('nvcc was not found', 'install the CUDA toolkit (12.0 or newer), or set NVCC or CUDA_HOME');
const release = /release (\d+)\.(\d+)/.exec(spawnSync(nvcc, ['--version'], { encoding: 'utf8' }).stdout);
if (!release || Number(release[1]) < 12)
  fail(`nvcc is ${release?.[0] ?? 'of an unknown version'}`, 'install CUDA 12.0 or newer');

const archs = (process.env.LPQ_CUDA_ARCHS ?? '80,86,89,90a,ptx80').split(',').filter(Boolean);
const code = archs.map((arch) =>
  arch.startsWith('ptx')
    ? `-gencode=arch=compute_${arch.slice(3)},code=compute_${arch.slice(3)}`
    : `-gencode=arch=compute_${arch},code=sm_${arch}`,
);
// -fmad=false: a product and a sum fuse only where the kernel says fma, as on the CPU.
const flags = ['-std=c++17', '-O3', '-fmad=false', '-I', native, '-I', path.join(native, 'include'), ...code];

const files = (directory, suffixes) =>
  readdirSync(directory, { recursive: true })
    .filter((file) => suffixes.some((suffix) => file.endsWith(suffix)))
    .map((file) => path.join(directory, file))
    .sort();
const sources = files(path.join(native, 'cuda'), ['.cu']);
if (sources.length === 0) fail('there are no kernels under native/cuda', 'restore the source tree');
// Any header counts for every kernel: they are few and small.
const headers = Math.max(0, ...files(path.join(native, 'cuda'), ['.cuh', '.h']).map((file) => statSync(file).mtimeMs));

const object = (source) =>
  path.join(objects, `${path.relative(path.join(native, 'cuda'), source).replaceAll(path.sep, '.')}.fatbin`);
const stamp = path.join(objects, 'flags.txt');
mkdirSync(objects, { recursive: true });
const line = [nvcc, release[0], ...flags].join(' ');
if (!existsSync(stamp) || readFileSync(stamp, 'utf8') !== line) {
  rmSync(objects, { recursive: true, force: true });
  mkdirSync(objects, { recursive: true });
  writeFileSync(stamp, line);
}

function compile(source) {
  const target = object(source);
  if (existsSync(target) && statSync(target).mtimeMs > Math.max(headers, statSync(source).mtimeMs))
    return Promise.resolve();
  return new Promise((resolve) => {
    const started = performance.now();
    const child = spawn(nvcc, [...flags, '-fatbin', '-o', `${target}.part`, source], {
      stdio: ['ignore', 'inherit', 'inherit'],
    });
    child.on('close', (status) => {
      if (status !== 0)
        fail(`nvcc could not compile ${path.relative(root, source)}`, "see the compiler's message above");
      renameSync(`${target}.part`, target);
      console.log(`${path.relative(root, source)} ${((performance.now() - started) / 1000).toFixed(1)} s`);
      resolve();
    });
  });
}

const waiting = [...sources];
const jobs = Math.max(1, Number(process.env.LPQ_BUILD_JOBS ?? availableParallelism()));
await Promise.all(
  Array.from({ length: jobs }, async () => {
    for (let source = waiting.shift(); source; source = waiting.shift()) await compile(source);
  }),
);

// The file that registry.cpp reads: "LPQFAT1\0", u32 count, {u32 length, name, u64 offset, u64 bytes}, images.
const images = sources.map((source) => ({ name: path.relative(native, source), bytes: readFileSync(object(source)) }));
const headBytes = images.reduce((sum, { name }) => sum + 4 + Buffer.byteLength(name) + 16, 12);
const align = (at) => Math.ceil(at / 64) * 64;
const parts = [];
let at = align(headBytes);
const head = Buffer.alloc(at);
let cursor = head.write('LPQFAT1\0', 0, 'latin1');
cursor = head.writeUInt32LE(images.length, cursor);
for (const { name, bytes } of images) {
  cursor = head.writeUInt32LE(Buffer.byteLength(name), cursor);
  cursor += head.write(name, cursor);
  cursor = head.writeBigUInt64LE(BigInt(at), cursor);
  cursor = head.writeBigUInt64LE(BigInt(bytes.length), cursor);
  const padding = align(bytes.length) - bytes.length;
  parts.push(bytes, Buffer.alloc(padding));
  at += bytes.length + padding;
}
const result = path.join(build, 'lpq_kernels.fatbin');
writeFileSync(`${result}.part`, Buffer.concat([head, ...parts]));
renameSync(`${result}.part`, result);
console.log(
  `${path.relative(root, result)}: ${images.length} files, ${(at / 2 ** 20).toFixed(1)} MiB, ${archs.join(' ')}`,
);
