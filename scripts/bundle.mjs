// Packs lpq for a host without Node.js, compiler or network: build/bundle/NAME and NAME.tar.xz. Run by `npm run bundle`,
// after the build. Options: --no-archive, --no-check (see check-bundle.mjs), --level 0-9 of xz (default 9e).
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { closure, isBundled, packagesOf } from './bundle/imports.mjs';
import { newestGlibc } from './bundle/symbols.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const LIMIT_BYTES = 40e6;
const { values: options } = parseArgs({
  options: {
    'no-archive': { type: 'boolean', default: false },
    'no-check': { type: 'boolean', default: false },
    level: { type: 'string', default: '9e' },
  },
});

function fail(what, remedy) {
  console.error(`LPQ_BUNDLE: ${what}\n  remedy: ${remedy}`);
  process.exit(1);
}

function need(file, remedy) {
  if (!existsSync(path.join(root, file))) fail(`${file} is missing`, remedy);
}

function tool(command, args, remedy, settings = {}) {
  const run = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 1 << 28, ...settings });
  if (run.error || run.status !== 0) fail(`${command} failed: ${run.error?.message ?? run.stderr}`, remedy);
  return run.stdout;
}

need('dist/src/cli/main.js', 'npm run build');
need('native/build/lpq.node', 'npm run build:native');
if (process.platform !== 'linux' || process.arch !== 'x64')
  fail(`this is ${process.platform} ${process.arch}`, 'make the bundle on Linux on x86-64');

const { version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));
const name = `lpq-${version}-linux-x64`;
const folder = path.join(root, 'build', 'bundle');
const target = path.join(folder, name);
rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });

/** Copies a file (a path from the root) to the same place, or another, of the bundle. */
function put(from, to = from, mode = 0o644) {
  const place = path.join(target, to);
  mkdirSync(path.dirname(place), { recursive: true });
  copyFileSync(path.resolve(root, from), place);
  chmodSync(place, mode);
}

function write(to, text, mode = 0o644) {
  mkdirSync(path.dirname(path.join(target, to)), { recursive: true });
  writeFileSync(path.join(target, to), text, { mode });
}

function filesBelow(dir) {
  if (!existsSync(path.join(root, dir))) return [];
  return readdirSync(path.join(root, dir), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)))
    .sort();
}

// What main.js, the process that it starts for tokenizers, the GPU tests and the comparison with peers reach, and nothing else.
const tests = filesBelow('dist/test/gpu').filter((file) => file.endsWith('.test.js'));
const reached = closure(root, [
  'dist/src/cli/main.js',
  'dist/src/calibrate/confined/guest.js',
  'scripts/test-gpu.mjs',
  'dist/test/gpu/gpu.js',
  'dist/bench/peers/run.js',
  ...tests,
]);
for (const file of reached.files) put(file);
put('bin/lpq.js');
put('bench/quantize-shape/run.mjs');
for (const file of filesBelow('bench/peers')) if (/\.(py|sh)$/.test(file)) put(file);

const packages = packagesOf(root, reached.packages);
for (const { dir } of packages) {
  const nested = new Set(packages.map((other) => other.dir).filter((other) => other.startsWith(`${dir}/`)));
  for (const file of filesBelow(dir)) {
    const inside = file.slice(dir.length + 1);
    if (inside.startsWith('node_modules/') && ![...nested].some((other) => file.startsWith(`${other}/`))) continue;
    if (isBundled(inside)) put(file);
  }
}

put('native/build/lpq.node', 'native/build/lpq.node', 0o755);
const kernels = existsSync(path.join(root, 'native/build/lpq_kernels.fatbin'));
if (kernels) put('native/build/lpq_kernels.fatbin');
// The library for other programs, beside its kernels; what includes it, and how it is used.
const library = readdirSync(path.join(root, 'native/build')).find((file) => /^liblpq_kernels\.so\.\d+$/.test(file));
if (!library) fail('native/build/liblpq_kernels.so is missing', 'npm run build:native');
put(`native/build/${library}`, `native/build/${library}`, 0o755);
symlinkSync(library, path.join(target, 'native/build/liblpq_kernels.so'));
put('native/library/lpq_kernels.h', 'include/lpq_kernels.h');
for (const file of [...filesBelow('examples'), ...filesBelow('test/gpu/library')])
  if (/\.(c|py)$/.test(file)) put(file);
// What the text of compiled programs of tiles includes.
for (const file of filesBelow('native/cuda/ptx')) if (file.endsWith('.cuh')) put(file);
// What the GPU tests read.
for (const file of filesBelow('test/fixtures/architectures')) if (!file.endsWith('.py')) put(file);
const config = readFileSync(path.join(root, 'scripts/bundle/lpq_kernels.pc'), 'utf8');
write('native/build/pkgconfig/lpq_kernels.pc', config.replace('@VERSION@', version));
for (const file of filesBelow('share')) put(file);
put('LICENSE');

put(process.execPath, 'runtime/node', 0o755);
const home = path.dirname(path.dirname(process.execPath));
const licence = [path.join(home, 'LICENSE'), path.join(home, 'share/doc/nodejs/LICENSE')].find((file) =>
  existsSync(file),
);
if (!licence) fail(`the licence of ${process.execPath} was not found`, `put it in ${home}/LICENSE`);
put(licence, 'runtime/LICENSE');
const binaries = ['runtime/node', 'native/build/lpq.node', `native/build/${library}`].map((file) =>
  path.join(target, file),
);
for (const file of binaries) tool('strip', ['--strip-all', file], 'install binutils');
if (spawnSync(binaries[0], ['--version']).status !== 0) fail('the stripped node does not run', 'try another strip');
const glibc = newestGlibc(binaries);

const launcher = readFileSync(path.join(root, 'scripts/bundle/lpq.sh'), 'utf8');
write('bin/lpq', launcher.replaceAll('@SCRIPT@', 'bin/lpq.js'), 0o755);
write('bin/lpq-test-gpu', launcher.replaceAll('@SCRIPT@', 'scripts/test-gpu.mjs'), 0o755);
write('package.json', `${JSON.stringify({ name: 'lpq', version, type: 'module', license: 'Apache-2.0' }, null, 2)}\n`);
const facts = {
  VERSION: version,
  NAME: name,
  NODE: process.version,
  GLIBC: glibc,
  KERNELS: kernels
    ? 'cuBLAS and cuSOLVER come from the CUDA toolkit or from the nvidia-* wheels of Python; `LPQ_CUDA_LIBS` names their directory.'
    : 'This bundle was made without CUDA kernels: it computes on the CPU only.',
};
const readme = readFileSync(path.join(root, 'scripts/bundle/README.md'), 'utf8');
write(
  'README.md',
  readme.replace(/@(\w+)@/g, (_, key) => facts[key]),
);
const commit = spawnSync('git', ['rev-parse', 'HEAD'], { cwd: root, encoding: 'utf8' }).stdout?.trim() || null;
const manifest = {
  version,
  commit,
  node: process.version,
  glibc,
  kernels,
  gpuTests: tests.length,
  packages: packages.map(({ name: title, version: number }) => `${title}@${number}`),
};
write('bundle.json', `${JSON.stringify(manifest, null, 2)}\n`);

const all = readdirSync(target, { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile())
  .map((entry) => path.relative(target, path.join(entry.parentPath, entry.name)))
  .sort();
const sums = all.map((file) => {
  const hash = createHash('sha256').update(readFileSync(path.join(target, file)));
  return `${hash.digest('hex')}  ${file}\n`;
});
write('SHA256SUMS', sums.join(''));
const unpacked = all.reduce((sum, file) => sum + statSync(path.join(target, file)).size, 0);
const mb = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;
console.log(
  `${path.relative(process.cwd(), target)}  ${all.length} files, ${mb(unpacked)}, glibc >= ${glibc}, kernels ${kernels ? 'included' : 'not built'}`,
);
if (options['no-archive']) process.exit(0);

// The same files give the same archive: names sorted, one time, no owner.
const archive = `${target}.tar.xz`;
const tar = ['--sort=name', '--owner=0', '--group=0', '--numeric-owner', '--mtime=@0', '--mode=go=u-w'];
tool('tar', [...tar, '-cf', `${target}.tar`, '-C', folder, name], 'install GNU tar');
const filters = ['--x86', `--lzma2=preset=${options.level}${/[789]/.test(options.level) ? ',dict=128MiB' : ''}`];
tool('xz', ['--force', '--threads=1', ...filters, `${target}.tar`], 'install xz-utils');
const { size } = statSync(archive);
console.log(`${path.relative(process.cwd(), archive)}  ${mb(size)}`);
if (size > LIMIT_BYTES)
  fail(`the archive is larger than ${mb(LIMIT_BYTES)}`, 'look for what grew: tar -tvf ARCHIVE | sort -k3n');
if (!options['no-check']) {
  const check = spawnSync(process.execPath, [path.join(root, 'scripts/check-bundle.mjs'), archive], {
    stdio: 'inherit',
  });
  process.exitCode = check.status ?? 1;
}
