// The wheels of a list by pip, which compares their hashes with the list's.
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { fail } from './fail.mjs';
import { normal } from './list.mjs';

/** pip takes a platform by its exact name, so all of those that a glibc serves. */
function platforms(glibc) {
  const newest = Number(glibc.split('.')[1]);
  const numbered = Array.from({ length: newest - 4 }, (_, i) => `manylinux_2_${newest - i}_x86_64`);
  return [...numbered, 'manylinux2014_x86_64', 'manylinux2010_x86_64', 'manylinux1_x86_64', 'linux_x86_64', 'any'];
}

/** The name and version that a wheel's file name begins with. */
const head = (file) => {
  const [name, version] = file.split('-');
  return `${normal(name)}==${version}`;
};

const ESCAPE = String.fromCharCode(27); // begins a colour

/** Why pip failed, in one sentence about the wheel that it names. */
function failure(text) {
  const said = text.replaceAll(new RegExp(`${ESCAPE}\\[[0-9;]*m`, 'g'), '');
  const none = /No matching distribution found for (\S+)/.exec(said);
  if (none) {
    const other = /from versions: (none|[^)]*)/.exec(said)?.[1];
    const hint = other === 'none' || other === undefined ? 'no version of that name' : `has ${other.slice(-200)}`;
    return fail(
      `no index of pip has a wheel of ${none[1]} for this Python and glibc`,
      `${hint}; correct the name or the version`,
    );
  }
  const wrong = /(\S+==\S+) from [\s\S]*?Expected sha256 ([0-9a-f]{64})[\s\S]*?Got\s+([0-9a-f]{64})/.exec(said);
  if (wrong)
    fail(
      `${wrong[1]} is not the wheel of the list: its sha256 is ${wrong[3]}`,
      `the list says ${wrong[2]}; if the index serves another build on purpose, correct the list`,
    );
  const lines = said.split('\n').filter((line) => /error/i.test(line) && !/^\s*note:/.test(line));
  return fail(
    `pip could not download the wheels: ${lines.at(-1)?.trim() ?? said.trim().slice(-300)}`,
    'LPQ_PYTHON names another Python with pip',
  );
}

/** Runs pip with hashed requirements for some wheels; fails with what it said. */
function pip(wheels, command) {
  const work = mkdtempSync(path.join(os.tmpdir(), 'lpq-wheels-'));
  const requirements = path.join(work, 'requirements.txt');
  const lines = wheels.map(({ name, version, sha256 }) => `${name}==${version} --hash=sha256:${sha256}\n`);
  writeFileSync(requirements, lines.join(''));
  try {
    const common = ['--no-deps', '--require-hashes', '--quiet', '--disable-pip-version-check', '-r', requirements];
    const ran = spawnSync(python(), ['-m', 'pip', ...command, ...common], { encoding: 'utf8', maxBuffer: 1 << 28 });
    if (ran.error) fail(`no Python to run pip with: ${ran.error.message}`, 'set LPQ_PYTHON');
    if (ran.status !== 0) failure(ran.stdout + ran.stderr);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

const python = () => process.env.LPQ_PYTHON ?? 'python3';

/** The file of a wheel in a folder; undefined if it is not there. */
function found({ name, version }, folder) {
  const wanted = `${normal(name)}==${version}`;
  const file = (existsSync(folder) ? readdirSync(folder) : []).find(
    (each) => each.endsWith('.whl') && head(each) === wanted,
  );
  return file && path.join(folder, file);
}

function download(list, wheels, folder) {
  const abi = `cp${list.python.replace('.', '')}`;
  pip(wheels, [
    ...['download', '--only-binary=:all:', '--find-links', folder, '--dest', folder],
    ...['--python-version', list.python, '--implementation', 'cp', '--abi', abi, '--abi', 'abi3', '--abi', 'none'],
    ...platforms(list.glibc).flatMap((platform) => ['--platform', platform]),
  ]);
}

/** Builds a wheel of its source archive into a folder of the archive's hash: what compiles is for this Python and the list's alone. */
function build(list, wheel, folder) {
  const { stdout } = spawnSync(python(), ['-c', 'import sys; print("%d.%d" % sys.version_info[:2])'], {
    encoding: 'utf8',
  });
  const own = stdout?.trim();
  if (own !== list.python)
    fail(
      `${wheel.name} is built from source for Python ${list.python}, and this is ${own}`,
      'LPQ_PYTHON names another',
    );
  pip([wheel], ['wheel', '--no-binary', wheel.name, '--wheel-dir', folder]);
}

/** Paths of the wheels, in the list's order, in `folder`; what lies there already is kept. */
export function downloaded(list, wheels, folder) {
  mkdirSync(folder, { recursive: true });
  const ready = wheels.filter(({ rules }) => !rules.source);
  if (ready.length > 0) download(list, ready, folder);
  return wheels.map((wheel) => {
    const at = wheel.rules.source ? path.join(folder, `built-${wheel.sha256.slice(0, 16)}`) : folder;
    if (wheel.rules.source && !found(wheel, at)) build(list, wheel, at);
    return found(wheel, at) ?? fail(`pip left no wheel of ${wheel.name}==${wheel.version}`, `look into ${at}`);
  });
}
