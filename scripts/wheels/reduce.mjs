// A wheel without what its list drops: a wheel again, whose RECORD names what it holds.
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { onlyCodeFor } from './device-code.mjs';
import { fail } from './fail.mjs';
import { matcher } from './list.mjs';
import { readZip } from './zip.mjs';

const digest = (data) => `sha256=${createHash('sha256').update(data).digest('base64url')}`;

/** A row of RECORD: [path, digest, size]. Paths with commas stand in quotes. */
function rowsOf(text) {
  return text
    .split(/\r?\n/)
    .filter(Boolean)
    .map((line) => {
      const quoted = /^"((?:[^"]|"")*)",(.*)$/.exec(line);
      if (quoted) return [quoted[1].replaceAll('""', '"'), ...quoted[2].split(',')];
      return line.split(',');
    });
}

const cell = (name) => (/[",]/.test(name) ? `"${name.replaceAll('"', '""')}"` : name);

/** The parts of a library that loading maps, as text: what strip must leave alone. */
function segments(elf) {
  const [offset, count] = [Number(elf.readBigUInt64LE(0x20)), elf.readUInt16LE(0x38)];
  return Array.from({ length: count }, (_, i) => offset + 56 * i)
    .filter((at) => elf.readUInt32LE(at) === 1)
    .map((at) => [4, 16, 24, 32, 40].map((field) => elf.readBigUInt64LE(at + field)).join(' '))
    .join('\n');
}

/** A library without symbols; undefined where strip fails or would move what is loaded. */
function stripped(data) {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-strip-'));
  try {
    const file = path.join(dir, 'library.so');
    writeFileSync(file, data);
    if (spawnSync('strip', ['--strip-unneeded', file]).status !== 0) return undefined;
    const made = readFileSync(file);
    return made.length < data.length && segments(made) === segments(data) ? made : undefined;
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** One file's bytes after the rules, with a word for each that changed it. */
function changed(name, data, rules) {
  const done = [];
  let now = data;
  for (const { arch, matches } of rules.code) {
    const made = matches(name) ? onlyCodeFor(arch, now) : undefined;
    if (made === undefined || made.cleared === 0) continue;
    now = made.library;
    done.push(`code of sm_${arch} only`);
  }
  if (rules.strip.some((matches) => matches(name))) {
    const made = stripped(now);
    if (made !== undefined) {
      now = made;
      done.push('stripped');
    }
  }
  return { now, done };
}

const compiled = (...rules) => {
  const test = (pattern) => {
    const expression = matcher(pattern);
    return (name) => expression.test(name);
  };
  return {
    drop: rules.flatMap((each) => each.drop.map((pattern) => ({ pattern, matches: test(pattern), used: 0 }))),
    strip: rules.flatMap((each) => each.strip.map(test)),
    code: rules.flatMap((each) => each.code.map(({ arch, pattern }) => ({ arch, matches: test(pattern) }))),
  };
};

/**
 * The files of a wheel as the rules leave them, RECORD last, and what was done: { files, dropped: { pattern: [files, bytes] }, changed: { name:
 * words } }. Refuses a wheel whose files are not those of its RECORD, before and after.
 */
export function reduced(bytes, what, ...rulesets) {
  const rules = compiled(...rulesets);
  const source = readZip(bytes, what);
  const record = source.find(({ name }) => /^[^/]+\.dist-info\/RECORD$/.test(name));
  if (record === undefined) fail(`${what} has no RECORD`, 'it is no wheel');
  const rows = new Map(rowsOf(record.data().toString('utf8')).map((row) => [row[0], row]));
  const result = { files: [], dropped: {}, changed: {} };
  for (const { name, mode, data } of source) {
    if (name === record.name) continue;
    const row = rows.get(name);
    if (row === undefined) fail(`${what} holds '${name}', which its RECORD does not name`, 'download it again');
    const drop = name.includes('.dist-info/') ? undefined : rules.drop.find(({ matches }) => matches(name));
    const before = data();
    if (row[1]?.startsWith('sha256=') && row[1] !== digest(before))
      fail(`'${name}' of ${what} is not what its RECORD says`, 'download it again');
    if (drop) {
      const [files, size] = result.dropped[drop.pattern] ?? [0, 0];
      result.dropped[drop.pattern] = [files + 1, size + before.length];
      rows.delete(name);
      continue;
    }
    const { now, done } = changed(name, before, rules);
    if (done.length > 0) {
      result.changed[name] = done;
      rows.set(name, [name, digest(now), String(now.length)]);
    }
    result.files.push({ name, mode, data: now });
  }
  const held = new Set([...result.files.map(({ name }) => name), record.name]);
  for (const name of rows.keys()) {
    if (held.has(name)) continue;
    if (!name.startsWith(`${record.name}.`))
      fail(`${what} lacks '${name}', which its RECORD names`, 'download it again');
    rows.delete(name); // a signature
  }
  const text = [...rows.values()].map(([name, ...rest]) => `${[cell(name), ...rest].join(',')}\n`).join('');
  result.files.push({ name: record.name, mode: record.mode, data: Buffer.from(text) });
  return result;
}
