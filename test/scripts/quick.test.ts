import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { ROOT } from '../src/model/fixtures.js';

/** What test:quick leaves out: files that take more than five seconds of two cores, and simulated kernels. */
const slow = readFileSync(path.join(ROOT, 'test', 'slow.txt'), 'utf8')
  .trim()
  .split('\n');

test('test/slow.txt names files that are there, once each and in order', () => {
  assert.deepEqual(slow, [...new Set(slow)].sort());
  assert.deepEqual(
    slow.filter((file) => !existsSync(path.join(ROOT, file))),
    [],
  );
});

test('test:quick runs something of every room', () => {
  const folders = (room: string) =>
    readdirSync(path.join(ROOT, room), { withFileTypes: true })
      .filter((entry) => entry.isDirectory())
      .map(({ name }) => path.join('test', room, name));
  const rooms = [...folders('src'), ...folders('formats'), 'test/bench', 'test/native'].filter((room) =>
    existsSync(path.join(ROOT, room)),
  );
  assert.ok(rooms.length > 20);
  for (const room of rooms) {
    const files = readdirSync(path.join(ROOT, room), { recursive: true, encoding: 'utf8' });
    const tests = files.filter((file) => file.endsWith('.test.ts')).map((file) => path.join(room, file));
    assert.ok(
      tests.some((file) => !slow.includes(file)),
      `${room}: all of its tests are slow`,
    );
  }
});
