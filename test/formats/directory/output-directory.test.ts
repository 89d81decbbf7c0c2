import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { refuseExisting, refuseInside } from '../../../formats/directory/place.js';
import { writeError } from '../../../formats/directory/write-error.js';
import { designed, scratch } from '../scratch.js';

const root = scratch();
let count = 0;
function fresh(): string {
  const dir = path.join(root, String(count++));
  mkdirSync(dir);
  return dir;
}

test('commit makes it appear at once, complete; abort afterwards is harmless', async () => {
  const dir = fresh();
  const target = path.join(dir, 'out');
  const output = await OutputDirectory.create(target);
  await output.writeJson('a.json', { x: 1 });
  await output.writeFile('sub/b.txt', 'b');
  assert.deepEqual(readdirSync(dir), [`.out.lpq-tmp-${process.pid}`]);
  assert.deepEqual(await output.files(), ['a.json', 'sub/b.txt']);
  await output.commit();
  await output.abort();
  output.abortSync();
  assert.deepEqual(readdirSync(dir), ['out']);
  assert.equal(readFileSync(path.join(target, 'a.json'), 'utf8'), '{\n  "x": 1\n}\n');
  await assert.rejects(output.commit(), designed('LPQ_INTERNAL', /committed or aborted/));
});

test('abort, both ways, leaves nothing, made parents included', async () => {
  for (const how of ['abort', 'abortSync'] as const) {
    const dir = fresh();
    const output = await OutputDirectory.create(path.join(dir, 'p', 'q', 'out'));
    await output.writeFile('x', 'x');
    await output[how]();
    await output[how]();
    assert.deepEqual(readdirSync(dir), []);
  }
});

test('a parent that cannot be made, or a name that is too long, leaves no parents and does not hang', async () => {
  const dir = fresh();
  await assert.rejects(
    OutputDirectory.create(path.join(dir, 'p', 'q', 'x'.repeat(256), 'out')),
    designed('LPQ_USAGE', /too long/),
  );
  assert.deepEqual(readdirSync(dir), []);
  await assert.rejects(OutputDirectory.create('/proc/lpq/out'), designed('LPQ_OUTPUT_WRITE', /\/proc\/lpq/));
});

test('abort keeps a made parent that somebody else uses by now', async () => {
  const dir = fresh();
  const output = await OutputDirectory.create(path.join(dir, 'p', 'out'));
  writeFileSync(path.join(dir, 'p', 'theirs'), '');
  await output.abort();
  assert.deepEqual(readdirSync(path.join(dir, 'p')), ['theirs']);
});

test('refused: an existing directory, file or dangling link; before anything is written', async () => {
  const dir = fresh();
  mkdirSync(path.join(dir, 'd'));
  writeFileSync(path.join(dir, 'f'), '');
  symlinkSync('nowhere', path.join(dir, 'l'));
  for (const name of ['d', 'f', 'l'])
    await assert.rejects(
      OutputDirectory.create(path.join(dir, name)),
      designed('LPQ_OUTPUT_EXISTS', /never overwrites/),
    );
  assert.deepEqual(readdirSync(dir), ['d', 'f', 'l']);
});

test('refused: a target that appeared meanwhile, even when empty', async () => {
  const dir = fresh();
  const output = await OutputDirectory.create(path.join(dir, 'out'));
  mkdirSync(path.join(dir, 'out'));
  await assert.rejects(output.commit(), designed('LPQ_OUTPUT_EXISTS', /out already exists/));
  assert.deepEqual(readdirSync(dir), ['out']);
});

test('two outputs of one name in one process do not share a place', async () => {
  const dir = fresh();
  const first = await OutputDirectory.create(path.join(dir, 'out'));
  const second = await OutputDirectory.create(path.join(dir, 'out'));
  assert.notEqual(first.path, second.path);
  await first.commit();
  await assert.rejects(second.commit(), designed('LPQ_OUTPUT_EXISTS', /out already exists/));
  assert.deepEqual(readdirSync(dir), ['out']);
});

test('a parent that is a file', async () => {
  const dir = fresh();
  writeFileSync(path.join(dir, 'f'), '');
  await assert.rejects(
    OutputDirectory.create(path.join(dir, 'f', 'out')),
    designed('LPQ_OUTPUT_WRITE', /f is not a directory/),
  );
});

test('errno to designed error', () => {
  for (const code of ['ENOSPC', 'EDQUOT'])
    assert.equal(writeError('x', Object.assign(new Error('m'), { code })).code, 'LPQ_DISK_FULL');
  assert.equal(writeError('x', Object.assign(new Error('m'), { code: 'EROFS' })).code, 'LPQ_OUTPUT_WRITE');
  assert.equal(writeError('x', Object.assign(new Error('m'), { code: 'LPQ_NATIVE_DISPOSED' })).code, 'LPQ_INTERNAL');
  assert.equal(writeError('x', new TypeError('m')).code, 'LPQ_INTERNAL');
});

test('carry takes all but weights, hidden files and stray links, and says what it skipped', async () => {
  const source = fresh();
  const put = (name: string, text = name) => {
    mkdirSync(path.dirname(path.join(source, name)), { recursive: true });
    writeFileSync(path.join(source, name), text);
  };
  const kept = [
    'chat_template.jinja',
    'code/modeling_x.py',
    'code/deep/y.json',
    'config.json',
    'golden.txt',
    'tokenizer.model',
  ];
  const weights = [
    'a.bin',
    'b.pt',
    'c.pth',
    'd.ckpt',
    'e.msgpack',
    'f.h5',
    'm.onnx',
    'model.safetensors',
    'original/g.00.pth',
    'h.gguf',
  ];
  const all = [
    ...kept,
    ...weights,
    'model.safetensors.index.json',
    '.gitattributes',
    '.cache/z',
    'lpq.json',
    'q4/lpq.json',
    'q4/config.json',
  ];
  for (const name of all) put(name);
  symlinkSync('tokenizer.model', path.join(source, 'inside'));
  symlinkSync('/etc/hostname', path.join(source, 'outside'));
  symlinkSync('nothing', path.join(source, 'dangling'));
  symlinkSync('code', path.join(source, 'linked'));
  const dir = fresh();
  const output = await OutputDirectory.create(path.join(dir, 'out'));
  const { carried, skipped } = await output.carryFrom(source, { except: ['lpq.json'] });
  assert.deepEqual([...carried].sort(), [...kept, 'inside'].sort());
  assert.deepEqual(await output.files(), [...kept, 'inside'].sort());
  assert.deepEqual(
    skipped.map(({ file }) => file).sort(),
    [...weights, 'model.safetensors.index.json', 'dangling', 'linked', 'outside', 'q4'].sort(),
  );
  await output.commit();
  assert.equal(readFileSync(path.join(dir, 'out', 'inside'), 'utf8'), 'tokenizer.model');
});

test('carry follows the links of a Hugging Face cache', async () => {
  const cache = fresh();
  mkdirSync(path.join(cache, 'blobs'));
  mkdirSync(path.join(cache, 'snapshots', 'abc'), { recursive: true });
  writeFileSync(path.join(cache, 'blobs', '12'), 'tok');
  symlinkSync('../../blobs/12', path.join(cache, 'snapshots', 'abc', 'tokenizer.json'));
  symlinkSync('../../../secret', path.join(cache, 'snapshots', 'abc', 'stray.json'));
  writeFileSync(path.join(path.dirname(cache), 'secret'), 's');
  const output = await OutputDirectory.create(path.join(fresh(), 'out'));
  const { carried, skipped } = await output.carryFrom(path.join(cache, 'snapshots', 'abc'));
  assert.deepEqual(carried, ['tokenizer.json']);
  assert.deepEqual(skipped, [{ file: 'stray.json', reason: 'a link out of the model directory' }]);
  await output.abort();
  assert.equal(existsSync(output.path), false);
});

test('carry follows them on into the store that a cache shares between its repositories', async () => {
  const cache = fresh();
  const repository = path.join(cache, 'models--org--name');
  for (const dir of [
    path.join(cache, 'blobs', 'ab'),
    path.join(repository, 'blobs'),
    path.join(repository, 'snapshots', 'abc'),
  ])
    mkdirSync(dir, { recursive: true });
  writeFileSync(path.join(cache, 'blobs', 'ab', 'abc'), 'tok');
  symlinkSync('../../blobs/ab/abc', path.join(repository, 'blobs', '12'));
  symlinkSync('../../blobs/12', path.join(repository, 'snapshots', 'abc', 'tokenizer.json'));
  writeFileSync(path.join(cache, 'token'), 'hf_');
  symlinkSync('../../../token', path.join(repository, 'snapshots', 'abc', 'stray.json'));
  const output = await OutputDirectory.create(path.join(fresh(), 'out'));
  const { carried, skipped } = await output.carryFrom(path.join(repository, 'snapshots', 'abc'));
  assert.deepEqual(carried, ['tokenizer.json']);
  assert.deepEqual(skipped, [{ file: 'stray.json', reason: 'a link out of the model directory' }]);
  await output.abort();
});

test('carry from nowhere', async () => {
  const output = await OutputDirectory.create(path.join(fresh(), 'out'));
  await assert.rejects(output.carryFrom(path.join(root, 'missing')), designed('LPQ_FILE', /missing/));
  await output.abort();
});

test('what a killed run left is removed and named; what a live one holds stays', async () => {
  const dir = fresh();
  const target = path.join(dir, 'out');
  const live = await OutputDirectory.create(target);
  // A process that is killed while it writes; its id may be anybody's by now.
  const script = `const { OutputDirectory } = await import(${JSON.stringify(new URL('../../../formats/directory/output-directory.js', import.meta.url).href)});
    const output = await OutputDirectory.create(${JSON.stringify(target)});
    await output.writeFile('half', 'half');
    process.kill(process.pid, 'SIGKILL');`;
  const killed = spawnSync(process.execPath, ['--input-type=module', '-e', script]);
  assert.equal(killed.signal, 'SIGKILL', String(killed.stderr));
  const left = readdirSync(dir).filter((name) => name !== path.basename(live.root));
  assert.equal(left.length, 1);
  // Not lpq's, and one of another output.
  mkdirSync(path.join(dir, '.out.lpq-tmp-1'));
  mkdirSync(path.join(dir, '.out.lpq-tmp-x'));
  mkdirSync(path.join(dir, '.out2.lpq-tmp-1'));
  const next = await OutputDirectory.create(target);
  assert.deepEqual(next.cleared, [path.join(dir, left[0] as string)]);
  assert.ok(existsSync(live.path) && !existsSync(path.join(dir, left[0] as string)));
  await live.writeFile('x', 'x');
  await next.abort();
  await live.commit();
  assert.deepEqual(readdirSync(dir), ['.out.lpq-tmp-1', '.out.lpq-tmp-x', '.out2.lpq-tmp-1', 'out']);
  assert.deepEqual(readdirSync(target), ['x']);
});

test('an output inside what it is carried from is refused, by any path; beside it is fine', async () => {
  const dir = fresh();
  const source = path.join(dir, 'in');
  mkdirSync(path.join(source, 'sub'), { recursive: true });
  writeFileSync(path.join(source, 'config.json'), '{}');
  symlinkSync('in', path.join(dir, 'link'));
  symlinkSync(path.join(source, 'sub'), path.join(dir, 'deep'));
  for (const target of ['in/out', 'in/sub/x/out', 'link/out', 'deep/out', 'in/../in/out']) {
    const place = path.join(dir, target);
    for (const named of [source, path.join(dir, 'link')])
      assert.throws(() => refuseInside(place, named), designed('LPQ_USAGE', /lies inside/), target);
    for (const how of ['create', 'createPartial'] as const) {
      const output = await OutputDirectory[how](place);
      await assert.rejects(output.carryFrom(source), designed('LPQ_USAGE', /lies inside/));
      await output.abort();
    }
  }
  for (const target of ['out', 'in-out', 'in.partial', '..in', 'sub/in']) refuseInside(path.join(dir, target), source);
  // What a restart would discard.
  mkdirSync(path.join(dir, 'out.partial', 'output'), { recursive: true });
  assert.throws(
    () => refuseInside(path.join(dir, 'out'), path.join(dir, 'out.partial', 'output')),
    designed('LPQ_USAGE', /unfinished output/),
  );
  assert.deepEqual(readdirSync(path.join(source, 'sub')), []);
});

test('a place that takes no output is refused before any work, and the reason is its own', () => {
  const dir = fresh();
  writeFileSync(path.join(dir, 'f'), '');
  for (const [target, code, reason] of [
    ['', 'LPQ_USAGE', /no name/],
    [path.join(dir, 'x'.repeat(221)), 'LPQ_USAGE', /too long.*221 bytes/],
    [path.join(dir, 'ü'.repeat(111)), 'LPQ_USAGE', /too long.*222 bytes/],
    [path.join(dir, 'f', 'out'), 'LPQ_OUTPUT_WRITE', /f is not a directory/],
    ['/dev/null/x', 'LPQ_OUTPUT_WRITE', /\/dev\/null is not a directory/],
  ] as const)
    assert.throws(() => refuseExisting(target), designed(code, reason), target);
  refuseExisting(path.join(dir, 'x'.repeat(220)));
});

test('a name of the greatest length goes through, with all that is made beside it', async () => {
  const dir = fresh();
  for (const how of ['create', 'createPartial'] as const) {
    const output = await OutputDirectory[how](path.join(dir, how[how.length - 1]?.repeat(220) as string));
    await output.writeFile('x', 'x');
    await output.commit();
  }
  assert.equal(readdirSync(dir).length, 2);
});
