// The wheels of a list by pip, which compares their hashes with the list's.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, rmSync, writeFileSync } from 'node:fs';
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
  const lines = said.split('\n').filter((line) => /error/i.test(line));
  return fail(
    `pip could not download the wheels: ${lines.at(-1)?.trim() ?? said.trim().slice(-300)}`,
    'LPQ_PYTHON names another Python with pip',
  );
}

/** Paths of the wheels, in the list's order, in `folder`; what lies there already is kept. */
export function downloaded(list, wheels, folder) {
  mkdirSync(folder, { recursive: true });
  const work = mkdtempSync(path.join(os.tmpdir(), 'lpq-wheels-'));
  const requirements = path.join(work, 'requirements.txt');
  const lines = wheels.map(({ name, version, sha256 }) => `${name}==${version} --hash=sha256:${sha256}\n`);
  writeFileSync(requirements, lines.join(''));
  const abi = `cp${list.python.replace('.', '')}`;
  const host = [
    '--python-version',
    list.python,
    '--implementation',
    'cp',
    '--abi',
    abi,
    '--abi',
    'abi3',
    '--abi',
    'none',
  ];
  try {
    const pip = spawnSync(
      process.env.LPQ_PYTHON ?? 'python3',
      [
        ...['-m', 'pip', 'download', '--no-deps', '--only-binary=:all:', '--require-hashes', '--quiet'],
        ...['--disable-pip-version-check', '--find-links', folder, '--dest', folder, '-r', requirements],
        ...host,
        ...platforms(list.glibc).flatMap((platform) => ['--platform', platform]),
      ],
      { encoding: 'utf8', maxBuffer: 1 << 28 },
    );
    if (pip.error) fail(`no Python to run pip with: ${pip.error.message}`, 'set LPQ_PYTHON');
    if (pip.status !== 0) failure(pip.stdout + pip.stderr);
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
  const files = readdirSync(folder).filter((file) => file.endsWith('.whl'));
  return wheels.map(({ name, version }) => {
    const wanted = `${normal(name)}==${version}`;
    const found = files.find((file) => head(file) === wanted);
    if (found === undefined) fail(`pip left no wheel of ${wanted}`, `look into ${folder}`);
    return path.join(folder, found);
  });
}
