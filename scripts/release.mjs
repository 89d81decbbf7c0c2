// Makes the packages that people install: lpq with addons compiled for Linux on x86-64 and arm64, and lpq-cuda with the kernels for NVIDIA
// GPUs, as tarballs in build/release. Run by `npm run release`. Options: --output DIR; --addon ARCH=FILE, an addon that was
// compiled on another machine (with -DLPQ_PREBUILT=ON); --arch LIST, for which to compile (default: this machine's, and
// arm64 where aarch64-linux-gnu-g++ is installed); --no-check (scripts/check-release.mjs).
import { spawnSync } from 'node:child_process';
import { copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { OLDEST_GLIBC } from './prebuilt.mjs';
import { arm64Lack } from './release/arm64.mjs';
import { newestWanted } from './release/elf.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
/** Most that a package with its addons may take, packed. */
const LIMIT_BYTES = 15e6;
const CROSS = {
  arm64: { processor: 'aarch64', compiler: 'aarch64-linux-gnu-g++' },
  x64: { processor: 'x86_64', compiler: 'x86_64-linux-gnu-g++' },
};
const { values: options } = parseArgs({
  options: {
    output: { type: 'string', default: path.join(root, 'build', 'release') },
    addon: { type: 'string', multiple: true, default: [] },
    arch: { type: 'string' },
    'no-check': { type: 'boolean', default: false },
  },
});

function fail(what, remedy) {
  console.error(`LPQ_RELEASE  ${what}\n  hint      ${remedy}`);
  process.exit(1);
}

function tool(command, args, settings = {}) {
  const run = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 1 << 28, ...settings });
  if (run.error || run.status !== 0)
    fail(`${command} failed`, `${run.error?.message ?? ''}${run.stdout ?? ''}${run.stderr ?? ''}`);
  return run.stdout;
}

const runs = (command) => spawnSync(command, ['--version']).status === 0;

/** Compiles the addon for `arch` and returns its file. */
function compile(arch) {
  const own = arch === process.arch;
  const { processor, compiler } = CROSS[arch] ?? fail(`no addon is made for ${arch}`, 'Use x64 or arm64.');
  if (!own && !runs(compiler))
    fail(`${compiler} was not found`, `Install g++ for ${arch}, or give --addon ${arch}=FILE.`);
  const require = createRequire(import.meta.url);
  const includes = [require('node-api-headers').include_dir, path.dirname(require.resolve('node-addon-api/napi.h'))];
  const build = path.join(root, 'native', `build-${arch}`);
  const cross = own
    ? []
    : [`-DCMAKE_SYSTEM_NAME=Linux`, `-DCMAKE_SYSTEM_PROCESSOR=${processor}`, `-DCMAKE_CXX_COMPILER=${compiler}`];
  const generator = !existsSync(build) && runs('ninja') ? ['-G', 'Ninja'] : [];
  const settings = ['-DCMAKE_BUILD_TYPE=Release', '-DLPQ_PREBUILT=ON', `-DNAPI_INCLUDE=${includes.join(';')}`];
  console.log(`compiling the addon for ${arch}`);
  tool('cmake', ['-S', path.join(root, 'native'), '-B', build, ...generator, ...settings, ...cross]);
  tool('cmake', ['--build', build, '--parallel', '--target', 'lpq_addon']);
  return path.join(build, 'lpq.node');
}

const { name, version } = JSON.parse(readFileSync(path.join(root, 'package.json'), 'utf8'));
const given = new Map(options.addon.map((each) => each.split(/=(.*)/s).slice(0, 2)));
const wanted = options.arch?.split(',') ?? [process.arch, ...(runs(CROSS.arm64.compiler) ? ['arm64'] : [])];
const addons = new Map(
  [...new Set([...given.keys(), ...wanted])].map((arch) => [arch, given.get(arch) ?? compile(arch)]),
);

const prebuilds = path.join(root, 'prebuilds');
rmSync(prebuilds, { recursive: true, force: true });
process.on('exit', () => rmSync(prebuilds, { recursive: true, force: true }));
mkdirSync(options.output, { recursive: true });
for (const [arch, file] of addons) {
  const newest = newestWanted(file, 'GLIBC');
  const minor = Number(newest.split('.')[1]);
  if (minor > Number(OLDEST_GLIBC.split('.')[1]))
    fail(
      `the addon for ${arch} needs glibc ${newest}`,
      `Wrap what is newer than ${OLDEST_GLIBC} in native/addon/old_glibc.cpp.`,
    );
  if (newestWanted(file, 'GLIBCXX') !== undefined)
    fail(`the addon for ${arch} needs a libstdc++ of the machine`, 'Link it statically (native/CMakeLists.txt).');
  const place = path.join(prebuilds, `linux-${arch}`);
  mkdirSync(place, { recursive: true });
  copyFileSync(file, path.join(place, 'lpq.node'));
  console.log(`linux-${arch}: ${(statSync(file).size / 1e6).toFixed(1)} MB, glibc ${newest} and later`);
}

/** Packs a directory and returns the tarball. */
function pack(dir) {
  const [{ filename, size, unpackedSize }] = JSON.parse(
    tool('npm', ['pack', '--json', '--ignore-scripts', '--pack-destination', path.resolve(options.output)], {
      cwd: dir,
    }),
  );
  console.log(`${filename}: ${(size / 1e6).toFixed(1)} MB packed, ${(unpackedSize / 1e6).toFixed(1)} MB unpacked`);
  return { file: path.join(options.output, filename), size };
}

const main = pack(root);
if (main.size > LIMIT_BYTES)
  fail(`${name} takes ${main.size} bytes packed`, `At most ${LIMIT_BYTES}: look at "files" of package.json.`);

const kernels = path.join(root, 'native', 'build', 'lpq_kernels.fatbin');
if (existsSync(kernels)) {
  const stage = path.join(options.output, 'lpq-cuda');
  rmSync(stage, { recursive: true, force: true });
  mkdirSync(stage);
  copyFileSync(kernels, path.join(stage, 'lpq_kernels.fatbin'));
  copyFileSync(path.join(root, 'LICENSE'), path.join(stage, 'LICENSE'));
  const facts = {
    ...{ name: 'lpq-cuda', version, license: 'Apache-2.0', os: ['linux'], peerDependencies: { [name]: version } },
    description: "lpq's kernels for NVIDIA GPUs, CUDA 12 and newer",
    files: ['lpq_kernels.fatbin'],
  };
  writeFileSync(path.join(stage, 'package.json'), `${JSON.stringify(facts, null, 2)}\n`);
  pack(stage);
  rmSync(stage, { recursive: true });
} else console.log('lpq-cuda: left out, npm run build:cuda makes its kernels');

if (!options['no-check'] && addons.has('arm64')) {
  const lack = arm64Lack();
  if (lack === undefined) {
    const arm64 = path.join(root, 'scripts', 'release', 'arm64.mjs');
    if (spawnSync(process.execPath, [arm64, main.file], { stdio: 'inherit' }).status !== 0) process.exit(1);
  } else console.log(`the addon for arm64 was not run: ${lack}`);
}
if (!options['no-check'] && addons.has(process.arch)) {
  const check = path.join(root, 'scripts', 'check-release.mjs');
  if (spawnSync(process.execPath, [check, main.file], { stdio: 'inherit' }).status !== 0) process.exit(1);
}
