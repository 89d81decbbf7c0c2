import assert from 'node:assert/strict';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { clearFinished, journalPath, partialPath, refusePartial } from '../../../formats/directory/partial.js';
import { designed, scratch } from '../scratch.js';

const root = scratch();
let count = 0;
function fresh(): string {
  const dir = path.join(root, String(count++));
  mkdirSync(dir);
  return dir;
}

test('a partial output becomes the output, without its journal', async () => {
  const dir = fresh();
  const target = path.join(dir, 'out');
  const output = await OutputDirectory.createPartial(target);
  assert.deepEqual(readdirSync(dir), ['out.partial']);
  assert.equal(output.root, partialPath(target));
  writeFileSync(journalPath(output.root), '{}\n');
  await output.writeFile('a.txt', 'a');
  output.keep = true;
  await output.commit();
  await output.abort();
  assert.deepEqual(readdirSync(dir), ['out']);
  assert.deepEqual(readdirSync(target), ['a.txt']);
});

for (const how of ['abort', 'abortSync'] as const)
  test(`${how} removes it with the parents it made, or keeps it for a later run`, async () => {
    const dir = fresh();
    const target = path.join(dir, 'p', 'out');
    const first = await OutputDirectory.createPartial(target);
    await first[how]();
    assert.deepEqual(readdirSync(dir), []);

    const second = await OutputDirectory.createPartial(target);
    await second.writeFile('a.txt', 'a');
    await assert.rejects(
      OutputDirectory.createPartial(target, 'resume'),
      designed('LPQ_PARTIAL_IN_USE', /process \d+/),
    );
    second.keep = true;
    await second[how]();
    await assert.rejects(OutputDirectory.createPartial(target), designed('LPQ_PARTIAL_EXISTS', /--resume.*--restart/));
    const third = await OutputDirectory.createPartial(target, 'resume');
    assert.ok(third.keep);
    assert.deepEqual(await third.files(), ['a.txt']);
    await third.removeAllBut([]);
    assert.deepEqual(await third.files(), []);
    await third[how]();
    const fourth = await OutputDirectory.createPartial(target, 'restart');
    assert.ok(!fourth.keep);
    await fourth[how]();
    assert.deepEqual(readdirSync(path.join(dir, 'p')), []);
  });

test('the owner is a process, not a number: one that has ended, or another of its number, is no owner', async () => {
  const dir = fresh();
  const target = path.join(dir, 'out');
  const output = await OutputDirectory.createPartial(target);
  const file = path.join(output.root, 'owner.json');
  const owner = JSON.parse(readFileSync(file, 'utf8')) as Record<string, unknown>;
  assert.throws(() => refusePartial(target, 'restart'), designed('LPQ_PARTIAL_IN_USE', String(process.pid)));
  for (const change of [{ started: '1' }, { pid: 2 ** 22 + 1 }, { boot: 'another' }, { host: 'another' }]) {
    writeFileSync(file, JSON.stringify({ ...owner, ...change }));
    refusePartial(target, 'restart');
    assert.throws(() => refusePartial(target, 'new'), designed('LPQ_PARTIAL_EXISTS', /stopped run/));
  }
  writeFileSync(file, '{"pid":');
  refusePartial(target, 'resume');
  await output.abort();
});

test('what is not of lpq is neither resumed nor discarded', async () => {
  const dir = fresh();
  const target = path.join(dir, 'out');
  const strange = designed('LPQ_PARTIAL_EXISTS', /not a partial output of lpq/);
  symlinkSync(dir, `${target}.partial`);
  await assert.rejects(OutputDirectory.createPartial(target, 'restart'), strange);
  for (const name of ['file', 'directory']) {
    const place = path.join(dir, name);
    if (name === 'file') writeFileSync(`${place}.partial`, 'x');
    else {
      mkdirSync(`${place}.partial`);
      writeFileSync(path.join(`${place}.partial`, 'mine'), 'x');
    }
    for (const mode of ['restart', 'resume'] as const)
      await assert.rejects(OutputDirectory.createPartial(place, mode), strange);
  }
  assert.ok(existsSync(path.join(dir, 'directory.partial', 'mine')));
});

test('only what a finished run left is cleared away', async () => {
  const dir = fresh();
  const target = path.join(dir, 'out');
  assert.equal(await clearFinished(target), false);
  mkdirSync(target);
  assert.equal(await clearFinished(target), false);
  mkdirSync(path.join(`${target}.partial`, 'output'), { recursive: true });
  assert.equal(await clearFinished(target), false);
  const done = path.join(dir, 'done');
  mkdirSync(done);
  mkdirSync(`${done}.partial`);
  writeFileSync(journalPath(`${done}.partial`), '');
  assert.equal(await clearFinished(done), true);
  assert.ok(!existsSync(`${done}.partial`) && existsSync(done));
});
