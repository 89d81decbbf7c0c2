// Tries a tarball of `npm run release` as its reader will: installed by npm where no compiler is found, in a root that holds Node.js, a
// shell and nothing else; there the tutorial's commands run from top to bottom. Needs a way to change the root (root, or user
// namespaces); npm fetches the dependencies.
import { spawnSync } from 'node:child_process';
import {
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  realpathSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { tutorialSteps } from './release/tutorial.mjs';

const tarball = path.resolve(process.argv[2] ?? '');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-release-'));
process.on('exit', () => rmSync(work, { recursive: true, force: true }));

function fail(what) {
  console.error(`LPQ_RELEASE  ${what}`);
  process.exit(1);
}

/** Where the system has a program. */
function found(name) {
  const dir = ['/bin', '/usr/bin'].find((each) => existsSync(path.join(each, name)));
  return dir ? path.join(dir, name) : fail(`${name} was not found`);
}

/** Copies a program and the libraries that it names into the root. */
function copyProgram(file, to) {
  mkdirSync(path.dirname(path.join(work, to)), { recursive: true });
  copyFileSync(realpathSync(file), path.join(work, to));
  const { stdout } = spawnSync('ldd', [file], { encoding: 'utf8' });
  for (const [, library] of stdout.matchAll(/(?:=> )?(\/\S+) \(0x/g)) {
    const place = path.join(work, library);
    if (existsSync(place)) continue;
    mkdirSync(path.dirname(place), { recursive: true });
    copyFileSync(realpathSync(library), place);
  }
}

const PROGRAMS = ['sh', 'cp', 'head', 'printf', 'dd', 'dirname', 'readlink', 'env', 'ls', 'cat'];
for (const name of PROGRAMS) copyProgram(found(name), `bin/${name}`);
copyProgram(process.execPath, 'bin/node');
mkdirSync(path.join(work, 'usr'), { recursive: true });
if (!existsSync(path.join(work, 'usr', 'bin'))) symlinkSync('../bin', path.join(work, 'usr', 'bin'));
for (const dir of ['tmp', 'home', 'proc', 'dev']) mkdirSync(path.join(work, dir), { recursive: true });
writeFileSync(path.join(work, 'dev', 'null'), '');

// npm runs outside of the root, with a PATH that has Node.js and a shell.
const bin = path.join(work, 'npm-path');
mkdirSync(bin);
for (const [name, file] of [
  ['node', process.execPath],
  ['sh', found('sh')],
])
  symlinkSync(file, path.join(bin, name));
const npm = spawnSync('sh', ['-c', 'command -v npm'], { encoding: 'utf8' }).stdout.trim();
const started = performance.now();
const install = spawnSync(
  process.execPath,
  [
    realpathSync(npm),
    'install',
    '--global',
    '--prefix',
    path.join(work, 'usr', 'local'),
    '--no-audit',
    '--no-fund',
    '--prefer-offline',
    tarball,
  ],
  { cwd: work, env: { PATH: bin, HOME: process.env.HOME ?? work, ...registryOf(process.env) }, encoding: 'utf8' },
);
if (install.status !== 0) fail(`npm install failed\n${install.stdout}${install.stderr}`);
console.log(
  `ok  ${((performance.now() - started) / 1000).toFixed(1)} s  npm install --global ${path.basename(tarball)}`,
);

/** What npm is told by the environment: registries, proxies, certificates. */
function registryOf(env) {
  return Object.fromEntries(
    Object.entries(env).filter(
      ([key]) => /^npm_config_|proxy$|^NODE_EXTRA_CA_CERTS$/i.test(key) && !/build_from_source|prefix|global/.test(key),
    ),
  );
}

// Node.js reads /proc; a mount namespace takes its mount along when it ends.
const user = process.getuid?.() === 0 ? [] : ['-r'];
const enter = 'mount --rbind /proc "$1/proc" && exec chroot "$1" /bin/sh -c "$2"';
const env = { PATH: '/usr/local/bin:/bin', HOME: '/home', NO_COLOR: '1' };
for (const { script, status } of tutorialSteps()) {
  const begun = performance.now();
  const args = [...user, '-m', 'sh', '-c', enter, 'sh', work, `cd /home && ${script}`];
  const run = spawnSync('unshare', args, { env: { ...env, PATH: `${env.PATH}:/usr/sbin:/usr/bin` }, encoding: 'utf8' });
  const title = script.split('\n')[0];
  if (run.status !== status) fail(`${title}: exit ${run.status ?? run.error?.message}\n${run.stdout}${run.stderr}`);
  console.log(`ok  ${((performance.now() - begun) / 1000).toFixed(1)} s  ${title}`);
}
console.log('installed and run in a root without compilers');
