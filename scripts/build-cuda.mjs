// Compiles native/cuda/**/*.cu and the rows of native/cuda/instances.mjs into native/build/lpq_kernels.fatbin; needs nvcc >= 12.0, no GPU. A file is compiled again when
// its text, a header of this project that it includes, or its flags have changed. LPQ_CUDA_ARCHS=90a limits the machine code (default 80,86,89,90a and PTX for 80).
import { spawn, spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { existsSync, mkdirSync, readdirSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { INSTANCES, sourceOf } from '../native/cuda/instances.mjs';

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
const release = /release (\d+)\.(\d+), V[\d.]+/.exec(spawnSync(nvcc, ['--version'], { encoding: 'utf8' }).stdout);
if (!release || Number(release[1]) < 12)
  fail(`nvcc is ${release?.[0] ?? 'of an unknown version'}`, 'install CUDA 12.0 or newer');

const archs = (process.env.LPQ_CUDA_ARCHS ?? '80,86,89,90a,ptx80').split(',').filter(Boolean);
// Machine code for sm_80 runs on 8.6 and 8.9 too. For the many kernels of packed products and caches (native/cuda/gemm,
// attention) that has to do: code of their own there would double the build and the bundle.
const packed = ['gemm', 'attention'].map((room) => path.join('cuda', room) + path.sep);
const archsOf = ({ header, needs }) => {
  if (needs === 'sm_90a') return archs.filter((arch) => arch === '90a');
  const portable = needs === 'portable' ? archs.filter((arch) => arch !== '90a') : archs;
  const shared = packed.some((room) => header.startsWith(room)) && archs.includes('80');
  return shared ? portable.filter((arch) => arch !== '86' && arch !== '89') : portable;
};
const codeOf = (unit) =>
  archsOf(unit).map((arch) =>
    arch.startsWith('ptx')
      ? `-gencode=arch=compute_${arch.slice(3)},code=compute_${arch.slice(3)}`
      : `-gencode=arch=compute_${arch},code=sm_${arch}`,
  );
// -fmad=false: a product and a sum fuse only where the kernel says fma, as on the CPU.
const flags = ['-std=c++17', '-O3', '-fmad=false', '-I', native, '-I', path.join(native, 'include')];

const files = (directory, suffixes) =>
  readdirSync(directory, { recursive: true })
    .filter((file) => suffixes.some((suffix) => file.endsWith(suffix)))
    .map((file) => path.join(directory, file))
    .sort();
mkdirSync(path.join(objects, 'instances'), { recursive: true });
// What is compiled: `name` goes into the kernels' file, `source` is its text.
const written = files(path.join(native, 'cuda'), ['.cu']).map((source) => {
  const name = path.relative(native, source);
  return { name, header: name, source };
});
const made = INSTANCES.map((row) => {
  const source = path.join(objects, 'instances', `${row.name}.cu`);
  const text = sourceOf(row);
  if (!existsSync(source) || readFileSync(source, 'utf8') !== text) writeFileSync(source, text);
  return { ...row, name: `${path.dirname(row.header)}/${row.name}.cu`, source, text };
});
const units = [...written, ...made]
  .filter((unit) => archsOf(unit).length > 0)
  .sort((a, b) => (a.name < b.name ? -1 : 1));
const object = ({ name }) => path.join(objects, `${path.relative('cuda', name).replaceAll(path.sep, '.')}.fatbin`);
const current = new Set(units.map((unit) => path.basename(object(unit))));
for (const file of readdirSync(objects))
  if (file.includes('.fatbin') && !current.has(`${file.split('.fatbin')[0]}.fatbin`))
    rmSync(path.join(objects, file), { recursive: true });

// What an object was made of: the compiler, its flags, and the bytes of every file of native/ that it read. Bytes rather than
// times, so that a copied or freshly checked out tree keeps what was compiled.
const digests = new Map();
const digestOf = (file) => {
  if (!digests.has(file)) {
    const full = path.join(native, file);
    digests.set(file, existsSync(full) ? createHash('sha256').update(readFileSync(full)).digest('hex') : 'absent');
  }
  return digests.get(file);
};
const keyOf = (unit, read) =>
  JSON.stringify([
    release[0],
    ...flags.map((flag) => flag.replaceAll(native, '.')),
    ...codeOf(unit),
    unit.text ?? '',
    ...read.map((file) => `${file} ${digestOf(file)}`),
  ]);
const record = (unit) => `${object(unit)}.made`;
function isCurrent(unit) {
  if (!existsSync(object(unit)) || !existsSync(record(unit))) return false;
  const [read, key] = JSON.parse(readFileSync(record(unit), 'utf8'));
  return keyOf(unit, read) === key;
}
// A makefile's rule, `target : file \\ file`: nvcc names absolute paths as they were included.
const readBy = (rule) =>
  [
    ...new Set(
      rule
        .slice(rule.indexOf(':') + 1)
        .replaceAll('\\\n', ' ')
        .split(/\s+/)
        .filter(Boolean)
        .map((file) => path.relative(native, path.resolve(file))),
    ),
  ]
    .filter((file) => !file.startsWith('..'))
    .sort();

function compile(unit) {
  const target = object(unit);
  if (isCurrent(unit)) return Promise.resolve();
  return new Promise((resolve) => {
    const started = performance.now();
    const kept = `${target}.keep`;
    mkdirSync(kept, { recursive: true });
    const child = spawn(
      nvcc,
      [
        ...flags,
        ...codeOf(unit),
        '--keep',
        '--keep-dir',
        kept,
        '-MMD',
        '-MF',
        path.join(kept, 'rule.d'),
        '-fatbin',
        '-o',
        `${target}.part`,
        unit.source,
      ],
      {
        stdio: ['ignore', 'inherit', 'inherit'],
      },
    );
    child.on('close', (status) => {
      if (status !== 0) fail(`nvcc could not compile ${unit.name}`, "see the compiler's message above");
      // The loader is told which file holds which kernel.
      const names = new Set();
      for (const ptx of files(kept, ['.ptx']))
        for (const [, name] of readFileSync(ptx, 'utf8').matchAll(/\.visible \.entry (\w+)/g)) names.add(name);
      if (names.size === 0) fail(`${unit.name} holds no kernel`, 'remove it, or declare its kernels extern "C"');
      writeFileSync(`${target}.names`, [...names].sort().join('\n'));
      const read = readBy(readFileSync(path.join(kept, 'rule.d'), 'utf8'));
      writeFileSync(record(unit), JSON.stringify([read, keyOf(unit, read)]));
      rmSync(kept, { recursive: true });
      renameSync(`${target}.part`, target);
      console.log(`${unit.name} ${((performance.now() - started) / 1000).toFixed(1)} s`);
      resolve();
    });
  });
}

const waiting = [...units];
const jobs = Math.max(1, Number(process.env.LPQ_BUILD_JOBS ?? availableParallelism()));
await Promise.all(
  Array.from({ length: jobs }, async () => {
    for (let unit = waiting.shift(); unit; unit = waiting.shift()) await compile(unit);
  }),
);

// The file that registry.cpp reads: "LPQFAT2\0", u32 count, {file, u32 kernels, {kernel}, u64 offset, u64 bytes}, images;
// names as u32 length, bytes.
const u32 = (value) => {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
};
const u64 = (value) => {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
};
const text = (value) => [u32(Buffer.byteLength(value)), Buffer.from(value)];
const padded = (bytes) => Buffer.concat([bytes, Buffer.alloc((64 - (bytes.length % 64)) % 64)]);
const images = units.map((unit) => ({
  name: unit.name,
  kernels: readFileSync(`${object(unit)}.names`, 'utf8')
    .split('\n')
    .filter(Boolean),
  bytes: readFileSync(object(unit)),
}));
const head = (start) => {
  let at = start;
  const rows = images.map(({ name, kernels, bytes }) => {
    const row = [...text(name), u32(kernels.length), ...kernels.flatMap(text), u64(at), u64(bytes.length)];
    at += padded(bytes).length;
    return row;
  });
  return padded(Buffer.concat([Buffer.from('LPQFAT2\0', 'latin1'), u32(images.length), ...rows.flat()]));
};
const file = Buffer.concat([head(head(0).length), ...images.map(({ bytes }) => padded(bytes))]);
const result = path.join(build, 'lpq_kernels.fatbin');
writeFileSync(`${result}.part`, file);
renameSync(`${result}.part`, result);
console.log(
  `${path.relative(root, result)}: ${images.length} files, ${(file.length / 2 ** 20).toFixed(1)} MiB, ${archs.join(' ')}`,
);
