// Lists of pinned wheels, scripts/wheels/NAME.txt. A line a wheel, `name==version sha256:HEX`, or a rule:
//   target PYTHON GLIBC       first: the host's Python and glibc, `target 3.12 2.39`
//   drop PATTERN              files that are not carried; `*` stands for any characters
//   strip PATTERN             shared libraries to strip of symbols that loading does not need
//   code ARCH PATTERN         shared libraries to keep the machine code of one GPU of, `code 90 pkg/*.so`
//   source                    the hash is that of the source archive, of which a wheel is built here; only after a wheel
// A rule that stands after a wheel and is indented is for that wheel, the others are for all. `#` begins a comment.
import { readFileSync } from 'node:fs';
import { fail } from './fail.mjs';

const WHEEL = /^([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9][A-Za-z0-9.+!-]*)\s+sha256:([0-9a-f]{64})$/;

/** A name as the index compares names. */
export const normal = (name) => name.toLowerCase().replaceAll(/[-_.]+/g, '-');

/** `*` for any characters, all else for itself. */
export const matcher = (pattern) =>
  new RegExp(`^${pattern.replaceAll(/[.+?^${}()|[\]\\]/g, '\\$&').replaceAll('*', '.*')}$`, 's');

const ruled = () => ({ drop: [], strip: [], code: [], source: false });

function addRule(rules, words, where, ofWheel) {
  const [kind, ...rest] = words;
  if ((kind === 'drop' || kind === 'strip') && rest.length === 1) rules[kind].push(rest[0]);
  else if (kind === 'source' && rest.length === 0 && ofWheel) rules.source = true;
  else if (kind === 'code' && rest.length === 2 && /^\d{2,3}$/.test(rest[0]))
    rules.code.push({ arch: Number(rest[0]), pattern: rest[1] });
  else
    fail(
      `${where} is no rule: '${words.join(' ')}'`,
      'drop PATTERN, strip PATTERN, code ARCH PATTERN, source (indented, after a wheel), or name==version sha256:HEX',
    );
}

/** What a list holds: { python, glibc, rules, wheels: [{ name, version, sha256, rules }] }. */
export function readList(file) {
  let text;
  try {
    text = readFileSync(file, 'utf8');
  } catch (error) {
    fail(`the list ${file} cannot be read: ${error.message}`, 'the lists lie in scripts/wheels');
  }
  const list = { python: '3.12', glibc: '2.39', rules: ruled(), wheels: [] };
  for (const [i, line] of text.split('\n').entries()) {
    const bare = line.replace(/(^|\s)#.*$/, '').trimEnd();
    if (bare.trim() === '') continue;
    const where = `line ${i + 1} of ${file}`;
    const words = bare.trim().split(/\s+/);
    const wheel = WHEEL.exec(bare);
    const last = list.wheels.at(-1);
    if (wheel) {
      const [, name, version, sha256] = wheel;
      const twin = list.wheels.find((other) => normal(other.name) === normal(name));
      if (twin) fail(`${where} names ${name} again, as ${twin.version} and ${version}`, 'keep one version of each');
      list.wheels.push({ name, version, sha256, rules: ruled() });
    } else if (words[0] === 'target' && /^3\.\d+$/.test(words[1]) && /^2\.\d+$/.test(words[2]) && words.length === 3)
      [, list.python, list.glibc] = words;
    else if (words[0].includes('==')) fail(`${where} has no sha256: '${bare.trim()}'`, 'name==version sha256:HEX');
    else {
      const ofWheel = /^\s/.test(bare) && last !== undefined;
      addRule(ofWheel ? last.rules : list.rules, words, where, ofWheel);
    }
  }
  if (list.wheels.length === 0) fail(`${file} names no wheel`, 'name==version sha256:HEX, a line each');
  return list;
}

/** Which wheels of a list the host lacks; `present` has lines `name==version`, or `name` for whatever version. */
export function absent(wheels, present) {
  const there = new Map();
  for (const line of present.split('\n')) {
    const [name, version] = line
      .replace(/#.*$/, '')
      .trim()
      .split(/==|\s@\s/);
    if (name) there.set(normal(name), version);
  }
  return wheels.filter(({ name, version }) => {
    const has = there.has(normal(name)) ? (there.get(normal(name)) ?? version) : undefined;
    return has !== version;
  });
}
