import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { isWeightFile } from '../../../formats/directory/carry.js';
import { LpqError } from '../../../src/core/error.js';
import { hubEnvironment } from '../../../src/hub/environment.js';
import { type PushRequest, pushDirectory } from '../../../src/hub/push.js';
import { lpq, model } from '../cli/lpq.js';
import { noise, scratch } from './setup.js';
import { TOKEN, type UploadHub, uploadHub } from './uploads.js';

const FILES: Readonly<Record<string, Buffer>> = {
  'README.md': Buffer.from('---\ntags: [lpq]\n---\n'),
  'lpq.json': Buffer.from('{}'),
  'config.json': Buffer.from('{"a":1}'),
  'tokenizer/empty.txt': Buffer.alloc(0),
  'model-00001-of-00002.safetensors': noise(400_000, 1),
  'model-00002-of-00002.safetensors': noise(70_000, 2),
};

async function bench(t: TestContext, token: string | undefined = TOKEN) {
  const hub = await uploadHub(t);
  const dir = scratch(t);
  for (const [name, bytes] of Object.entries(FILES)) {
    mkdirSync(path.dirname(path.join(dir, name)), { recursive: true });
    writeFileSync(path.join(dir, name), bytes);
  }
  const environment = hubEnvironment({
    HF_ENDPOINT: hub.endpoint,
    HF_HOME: scratch(t),
    ...(token !== undefined && { HF_TOKEN: token }),
  });
  const request: PushRequest = {
    dir,
    files: Object.entries(FILES).map(([name, bytes]) => ({ path: name, size: bytes.length })),
    model: { id: 'acme/out', revision: 'main' },
    private: true,
    replace: false,
    isWeight: isWeightFile,
    message: 'What was made',
  };
  const push = (more: Partial<PushRequest> = {}) =>
    pushDirectory({ ...request, ...more }, { environment, backoffMs: 1 });
  return { hub, push };
}

function requireFiles(hub: UploadHub): void {
  const { '.gitattributes': _, ...files } = Object.fromEntries(hub.files ?? []);
  assert.deepEqual(Object.keys(files).sort(), Object.keys(FILES).sort());
  for (const [name, bytes] of Object.entries(FILES)) assert.ok(files[name]?.equals(bytes), name);
  assert.deepEqual(hub.leaked, []);
}

async function refused(work: Promise<unknown>, code: string): Promise<LpqError> {
  const error = await work.then(
    () => assert.fail('nothing was refused'),
    (thrown: unknown) => thrown,
  );
  assert.ok(error instanceof LpqError, String(error));
  assert.equal(error.code, code, error.message);
  assert.ok(!`${error.message} ${error.got} ${error.hint}`.includes(TOKEN));
  return error;
}

test('a directory goes up as one commit, into a repository that is made', async (t) => {
  const { hub, push } = await bench(t);
  const pushed = await push();
  assert.deepEqual({ ...pushed, url: '' }, { commit: 'b'.repeat(40), made: true, removed: [], url: '' });
  assert.equal(hub.private, true);
  assert.deepEqual(hub.titles, ['What was made']);
  requireFiles(hub);
  // The second time nothing large is sent.
  const before = hub.seen.length;
  assert.equal((await push()).made, false);
  assert.ok(!hub.seen.slice(before).some((name) => name.startsWith('PUT')));
});

test('other weights of the repository are refused, or removed by the same commit', async (t) => {
  const { hub, push } = await bench(t);
  hub.files = new Map([
    ['model.safetensors', noise(100, 3)],
    ['notes.txt', noise(5, 4)],
  ]);
  const { got, hint } = await refused(push(), 'LPQ_HUB_CONFLICT');
  assert.equal(got, 'model.safetensors');
  assert.match(hint ?? '', /--replace/);
  assert.ok(!hub.seen.some((name) => name.startsWith('PUT')));
  assert.deepEqual((await push({ replace: true })).removed, ['model.safetensors']);
  assert.ok(hub.files.has('notes.txt'));
  hub.files.delete('notes.txt');
  requireFiles(hub);
});

test('401: a wrong token, and none', async (t) => {
  const wrong = await bench(t, 'hf_other');
  assert.match((await refused(wrong.push(), 'LPQ_HUB_ACCESS')).message, /refuses .*to this token/);
  const none = await bench(t, '');
  assert.match((await refused(none.push(), 'LPQ_HUB_ACCESS')).hint ?? '', /HF_TOKEN/);
  assert.equal(none.hub.seen.length, 0);
});

test('409 and a branch that moved: nothing is committed', async (t) => {
  const { hub, push } = await bench(t);
  hub.fault = (name) => (name.endsWith('/commit/main') ? 409 : undefined);
  await refused(push(), 'LPQ_HUB_CONFLICT');
  assert.deepEqual(hub.titles, []);
  hub.fault = (name) => {
    if (name.includes('/preupload/')) hub.commit = 'd'.repeat(40);
    return undefined;
  };
  await refused(push(), 'LPQ_HUB_CONFLICT');
  assert.deepEqual(hub.titles, []);
});

test('409 of a repository that another process makes at the same time is none', async (t) => {
  const { hub, push } = await bench(t);
  hub.fault = (name) => {
    if (name === 'POST /api/repos/create') hub.files = new Map();
    return undefined;
  };
  await push();
  requireFiles(hub);
});

test('a cut connection and a failing server are tried again, and what arrived is not sent twice', async (t) => {
  const { hub, push } = await bench(t);
  let cut = 0;
  hub.fault = (name, nth) => {
    if (name.startsWith('PUT') && cut < 2) {
      cut++;
      return 'cut';
    }
    return name.endsWith('/commit/main') && nth === 0 ? 503 : undefined;
  };
  await push();
  requireFiles(hub);
  const puts = hub.seen.filter((name) => name.startsWith('PUT'));
  assert.equal(puts.length, 4, puts.join('\n'));
  hub.stored.clear();
  hub.fault = (name) => (name.startsWith('PUT') ? 'cut' : undefined);
  const { hint } = await refused(push(), 'LPQ_HUB_CUT_OFF');
  assert.match(hint ?? '', /does not send files again/);
});

test('offline, and a branch that is not there', async (t) => {
  const { push } = await bench(t);
  await refused(push({ model: { id: 'acme/out', revision: 'other' } }), 'LPQ_HUB_NOT_FOUND');
  const environment = hubEnvironment({ HF_HUB_OFFLINE: '1', HF_TOKEN: TOKEN, HF_HOME: scratch(t) });
  const request = { dir: '.', files: [], private: false, replace: false, isWeight: () => false, message: '' };
  const work = pushDirectory({ ...request, model: { id: 'acme/out', revision: 'main' } }, { environment });
  await refused(work, 'LPQ_HUB_OFFLINE');
});

test('the command says what it would send, and sends with --yes', async (t) => {
  const hub = await uploadHub(t);
  const out = path.join(scratch(t), 'out');
  const env = { HF_ENDPOINT: hub.endpoint, HF_TOKEN: TOKEN, HF_HOME: scratch(t) };
  const made = await lpq(['quantize', model, '--bits', '4', '--method', 'rtn', '-o', out, '--quiet']);
  assert.equal(made.code, 0, made.stderr);
  const dry = await lpq(['push', out, 'acme/out'], env);
  assert.equal(dry.code, 0, dry.stderr);
  assert.match(dry.stdout, /would go to acme\/out; lpq sent nothing/);
  assert.match(dry.stdout, /README\.md/);
  assert.match(dry.stderr, /names no base model/);
  assert.deepEqual(hub.seen, []);
  const ran = await lpq(['push', out, 'acme/out', '--yes', '--json'], env);
  assert.equal(ran.code, 0, ran.stderr);
  for (const name of readdirSync(out))
    assert.ok(hub.files?.get(name)?.equals(readFileSync(path.join(out, name))), name);
  assert.equal(hub.private, false);
  for (const [args, code, says] of [
    [['push', model, 'acme/out'], 4, /not quantized or packed by lpq/],
    [['push', out, './acme'], 2, /not a name on the Hub/],
  ] as const) {
    const wrong = await lpq(args, env);
    assert.equal(wrong.code, code);
    assert.match(wrong.stderr, says);
  }
});
