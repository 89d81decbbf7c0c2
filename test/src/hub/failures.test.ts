import assert from 'node:assert/strict';
import { chmodSync, existsSync, mkdirSync, readdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { ErrorCode } from '../../../src/core/codes.js';
import { hubSnapshot } from '../../../src/hub/snapshot.js';
import { COMMIT, ID, type Misbehaviour, type Seen, type Served, sha256 } from './server.js';
import { bench, differing, noise, sharded, TAKEN, WEIGHTS } from './setup.js';

const SHARD = 'model-00001-of-00002.safetensors';
const isApi = ({ path: place }: Seen) => place.startsWith('/api/');

// [what, what the server does, code, exit code, what the message names, what the hint names]
const REFUSALS: readonly (readonly [
  string,
  (seen: Seen) => Misbehaviour | undefined,
  ErrorCode,
  number,
  RegExp,
  RegExp,
])[] = [
  ['401', () => ({ status: 401 }), 'LPQ_HUB_ACCESS', 3, /acme\/tiny without a token/, /HF_TOKEN/],
  [
    'a gated model',
    () => ({ status: 401, headers: { 'x-error-code': 'GatedRepo' } }),
    'LPQ_HUB_ACCESS',
    3,
    /acme\/tiny is gated/,
    /then set HF_TOKEN/,
  ],
  ['403 of a file', (s) => (isApi(s) ? undefined : { status: 403 }), 'LPQ_HUB_ACCESS', 3, /of acme\/tiny/, /HF_TOKEN/],
  [
    'no such repository',
    () => ({ status: 404, headers: { 'x-error-code': 'RepoNotFound' } }),
    'LPQ_HUB_NOT_FOUND',
    4,
    /no the model|model acme\/tiny/,
    /spelling/,
  ],
  [
    'no such file',
    (s) => (isApi(s) ? undefined : { status: 404, headers: { 'x-error-code': 'EntryNotFound' } }),
    'LPQ_HUB_NOT_FOUND',
    4,
    /index\.json of acme\/tiny/,
    /spelling/,
  ],
  ['429', () => ({ status: 429 }), 'LPQ_HUB_RATE_LIMIT', 3, /rate/, /HF_TOKEN/],
  ['500', () => ({ status: 500 }), 'LPQ_HUB_SERVER', 3, /answered the model acme\/tiny with an error/, /later/],
  [
    '502 of a host of files',
    (s) => (s.host === 'cdn' ? { status: 502 } : undefined),
    'LPQ_HUB_SERVER',
    3,
    /of acme/,
    /later/,
  ],
  ['418', () => ({ status: 418 }), 'LPQ_HUB_RESPONSE', 4, /not one of the Hub/, /HF_ENDPOINT/],
  [
    'silence of the API',
    () => ({ delayMs: 'forever' }),
    'LPQ_HUB_TIMEOUT',
    3,
    /did not answer in time/,
    /HF_HUB_ETAG_TIMEOUT/,
  ],
  [
    'silence in the middle',
    (s) => (s.host === 'cdn' ? { stallAfter: 0 } : undefined),
    'LPQ_HUB_TIMEOUT',
    3,
    /did not answer in time.*of acme/,
    /HF_HUB_DOWNLOAD_TIMEOUT/,
  ],
  [
    'an end before the end',
    (s) => (s.host === 'cdn' ? { cutAfter: 0 } : undefined),
    'LPQ_HUB_CUT_OFF',
    3,
    /failed repeatedly.*of acme/,
    /continues/,
  ],
  ['a listing cut off', () => ({ cutAfter: 20 }), 'LPQ_HUB_CUT_OFF', 3, /failed repeatedly/, /again/],
  ['a page of HTML', () => ({ body: '<html>' }), 'LPQ_HUB_RESPONSE', 4, /no JSON/, /HF_ENDPOINT/],
  ['another JSON', () => ({ body: '[1]' }), 'LPQ_HUB_RESPONSE', 4, /acme\/tiny/, /HF_ENDPOINT/],
  ['null', () => ({ body: 'null' }), 'LPQ_HUB_RESPONSE', 4, /acme\/tiny/, /HF_ENDPOINT/],
  [
    'a commit that is a path',
    (s) => (s.path.includes('/revision/') ? { body: '{"_id":"1","id":"x","sha":"../../x"}' } : undefined),
    'LPQ_HUB_RESPONSE',
    4,
    /no commit/,
    /HF_ENDPOINT/,
  ],
  [
    'a redirect in a circle',
    () => ({ status: 302, headers: { location: '/api/again' } }),
    'LPQ_HUB_RESPONSE',
    4,
    /in a loop/,
    /^$/,
  ],
  [
    'a redirect to a file',
    () => ({ status: 302, headers: { location: 'file:///etc/passwd' } }),
    'LPQ_HUB_RESPONSE',
    4,
    /redirects/,
    /^$/,
  ],
  [
    'compressed bytes',
    (s) => (isApi(s) ? undefined : { headers: { 'content-encoding': 'gzip' } }),
    'LPQ_HUB_RESPONSE',
    4,
    /compressed/,
    /HF_ENDPOINT/,
  ],
  [
    'other bytes',
    (s) => (s.host === 'cdn' ? { body: noise(WEIGHTS, 77) } : undefined),
    'LPQ_HUB_CHECKSUM',
    4,
    /of acme\/tiny/,
    /proxy/,
  ],
  [
    'fewer bytes',
    (s) => (s.host === 'cdn' ? { body: noise(10, 77) } : undefined),
    'LPQ_HUB_CHECKSUM',
    4,
    /size/,
    /proxy/,
  ],
  [
    'other bytes of a small file',
    (s) => (s.path.endsWith('config.json') ? { body: '{"model_type":"opttt"}' } : undefined),
    'LPQ_HUB_CHECKSUM',
    4,
    /config\.json of acme\/tiny/,
    /proxy/,
  ],
];

for (const [what, behave, code, exitCode, message, hint] of REFUSALS)
  test(`${what} ends in ${code}`, async (t) => {
    const { hub, get, repository } = await bench(t);
    hub.behave = behave;
    const seconds = { HF_HUB_DOWNLOAD_TIMEOUT: '0.2', HF_HUB_ETAG_TIMEOUT: '0.2' };
    await assert.rejects(
      get('main', {}, code === 'LPQ_HUB_TIMEOUT' ? seconds : {}),
      (error: Error & { hint?: string }) => {
        assert.deepEqual(
          { code: (error as { code?: string }).code, exit: (error as { exitCode?: number }).exitCode },
          { code, exit: exitCode },
          error.stack,
        );
        assert.match(error.message, message);
        assert.match(error.hint ?? '', hint);
        return true;
      },
    );
    // No branch points to what is not there, and a wrong file is gone.
    assert.ok(!existsSync(path.join(repository, 'refs', 'main')));
    if (code === 'LPQ_HUB_CHECKSUM') {
      const blob = sha256((hub.files.get(SHARD) as Served).bytes);
      assert.ok(!existsSync(path.join(repository, 'blobs', blob)));
    }
    hub.behave = () => undefined;
    assert.deepEqual(differing(hub, (await get()).dir, TAKEN), []);
  });

test('a wrong checksum leaves nothing of the file', async (t) => {
  const { hub, get, repository } = await bench(t, {
    'model.safetensors': { bytes: noise(WEIGHTS, 1), large: true },
  });
  hub.behave = ({ host }) => (host === 'cdn' ? { body: noise(WEIGHTS, 77) } : undefined);
  await assert.rejects(get(), {
    code: 'LPQ_HUB_CHECKSUM',
    expected: sha256(noise(WEIGHTS, 1)),
    got: `sha256 ${sha256(noise(WEIGHTS, 77))}`,
  });
  assert.deepEqual(readdirSync(path.join(repository, 'blobs')), []);
});

test('a revision that does not exist is told from a model that does not', async (t) => {
  const { get } = await bench(t);
  await assert.rejects(get('v9'), { code: 'LPQ_HUB_NOT_FOUND', message: "acme/tiny has no revision 'v9' on the Hub" });
});

test('failures that pass are tried again, after the time that the server asks for', async (t) => {
  const { hub, get } = await bench(t);
  const told: number[] = [];
  hub.behave = (seen, nth) => {
    if (isApi(seen) && nth === 0) return { status: 503 };
    if (seen.host === 'cdn' && nth === 0) {
      told.push(performance.now());
      return { status: 429, headers: { 'retry-after': '1' } };
    }
    if (seen.host === 'cdn' && nth === 1) told.push(performance.now());
    return undefined;
  };
  assert.deepEqual(differing(hub, (await get()).dir, TAKEN), []);
  assert.ok(Math.max(...told) - Math.min(...told) > 950);
});

test('a wait of an hour is not waited for, but told', async (t) => {
  const { hub, get } = await bench(t);
  hub.behave = () => ({ status: 429, headers: { ratelimit: '"api";r=0;t=3600' } });
  await assert.rejects(get(), (error: { code?: string; got?: string }) => {
    assert.equal(error.code, 'LPQ_HUB_RATE_LIMIT');
    assert.match(error.got ?? '', /after 3600 s/);
    return true;
  });
  assert.equal(hub.seen.length, 1);
});

const HOSTILE: readonly (readonly [string, Record<string, unknown>, RegExp])[] = [
  ['a path upwards', { path: '../../../evil.json' }, /path out/],
  ['an absolute path', { path: '/etc/evil.json' }, /path out/],
  ['a hidden step upwards', { path: 'a/../../evil.json' }, /path out/],
  ['a backslash', { path: '..\\evil.json' }, /path out/],
  ['a NUL', { path: 'evil\0.json' }, /path out/],
  ['no path', { path: 7 }, /path out/],
  ['an object id that is a path', { path: 'evil.json', oid: '../../../../evil' }, /no object id/],
  ['a checksum that is a path', { path: 'evil.json', lfs: { oid: '../../../../evil', size: 1 } }, /no SHA-256/],
  ['a negative size', { path: 'evil.json', size: -1 }, /no size/],
  ['an absurd size', { path: 'evil.json', size: 1e300 }, /no size/],
  ['a path twice', { path: 'config.json' }, /twice/],
];

for (const [what, entry, message] of HOSTILE)
  test(`a listing with ${what} is refused, and nothing is written`, async (t) => {
    const { hub, get, home } = await bench(t);
    hub.relist = (entries) => [...entries, { type: 'file', size: 1, oid: 'a'.repeat(40), ...entry }];
    await assert.rejects(get(), { code: 'LPQ_HUB_RESPONSE', message });
    assert.deepEqual(readdirSync(home), []);
  });

test('an index that names what is not there, or lies elsewhere, is refused before the weights are fetched', async (t) => {
  for (const [shard, message] of [
    ['model-9.safetensors', /names shards that the repository does not have/],
    ['../model.safetensors', /not a \.safetensors file beside it/],
    ['pytorch_model.bin', /not a \.safetensors file beside it/],
  ] as const) {
    const index = Buffer.from(JSON.stringify({ weight_map: { a: shard } }));
    const { hub, get } = await bench(t, { ...sharded(), 'model.safetensors.index.json': { bytes: index } });
    await assert.rejects(get(), { code: 'LPQ_SAFETENSORS_INDEX', message });
    assert.equal(hub.downloads().length, 1);
  }
});

test('pickles are refused by their listing, with what to do', async (t) => {
  const { hub, get } = await bench(t, {
    'config.json': { bytes: Buffer.from('{}') },
    'pytorch_model-00001-of-00002.bin': { bytes: noise(10, 1), large: true },
    'pytorch_model-00002-of-00002.bin': { bytes: noise(10, 2), large: true },
    'pytorch_model.bin.index.json': { bytes: Buffer.from('{}') },
    'training_args.bin': { bytes: noise(10, 3), large: true },
  });
  await assert.rejects(get(), (error: { code?: string; hint?: string; got?: string }) => {
    assert.equal(error.code, 'LPQ_HUB_PICKLE');
    assert.equal(error.got, 'pytorch_model-00001-of-00002.bin, pytorch_model-00002-of-00002.bin');
    assert.match(error.hint ?? '', /acme\/tiny@refs\/pr\/N.*convert/);
    return true;
  });
  assert.deepEqual(hub.downloads(), []);
  const gguf = await bench(t, { 'model-q4.gguf': { bytes: noise(10, 1), large: true } });
  await assert.rejects(gguf.get(), { code: 'LPQ_HUB_NOT_FOUND', got: 'model-q4.gguf' });
});

test('the token goes to the endpoint and nowhere else, and into no message', async (t) => {
  const { hub, get } = await bench(t);
  const token = 'hf_topsecret';
  await get('main', {}, { HF_TOKEN: token });
  for (const { host, headers } of hub.seen)
    assert.equal(headers.authorization, host === 'hub' ? `Bearer ${token}` : undefined);
  assert.ok(hub.seen.some(({ host }) => host === 'cdn'));
  for (const status of [401, 403, 404, 418, 500]) {
    const other = await bench(t);
    other.hub.behave = ({ host }) => (host === 'cdn' ? { status } : undefined);
    await assert.rejects(other.get('main', {}, { HF_TOKEN: token }), (error: Error) => {
      const all = JSON.stringify({ ...error, message: error.message, stack: error.stack });
      assert.doesNotMatch(all, /topsecret|signature/);
      return true;
    });
  }
  // Pages of a listing that go on elsewhere do not get it either.
  const paged = await bench(t);
  paged.hub.behave = ({ path: place, host }, nth) =>
    host === 'hub' && place.includes('/tree/') && nth === 0
      ? { headers: { link: `<${paged.hub.cdn}/api/models/${ID}/tree/${COMMIT}>; rel="next"` } }
      : undefined;
  paged.hub.pageSize = 100;
  await paged.get('main', {}, { HF_TOKEN: token }).catch(() => {});
  const there = paged.hub.seen.filter(({ host, path: place }) => host === 'cdn' && place.startsWith('/api/'));
  assert.deepEqual(
    there.map(({ headers }) => headers.authorization),
    [undefined],
  );
});

test('a cache that cannot be written, and one without room', {
  skip: process.getuid?.() === 0 && 'root may write everywhere',
}, async (t) => {
  const { get, home } = await bench(t);
  chmodSync(home, 0o500);
  t.after(() => chmodSync(home, 0o700));
  await assert.rejects(get(), { code: 'LPQ_OUTPUT_WRITE' });
});

test('a cache whose place is taken by a file', async (t) => {
  const { hub, environment, home } = await bench(t);
  writeFileSync(path.join(home, 'file'), '');
  const place = environment({ HF_HUB_CACHE: path.join(home, 'file', 'hub') });
  await assert.rejects(hubSnapshot({ id: ID, revision: 'main' }, { environment: place, backoffMs: 1 }), {
    code: 'LPQ_OUTPUT_WRITE',
    message: /could not be written/,
  });
  assert.deepEqual(hub.downloads(), []);
});

test('a model that is larger than the disk is refused before it is fetched', async (t) => {
  const { hub, get } = await bench(t);
  hub.relist = (entries) =>
    entries.map((entry) => {
      const lfs = entry.lfs as { size: number } | undefined;
      return entry.path === SHARD ? { ...entry, size: 2 ** 52, lfs: { ...lfs, size: 2 ** 52 } } : entry;
    });
  await assert.rejects(get(), { code: 'LPQ_DISK_FULL', message: /no room for acme\/tiny/ });
  assert.equal(hub.downloads().length, 1); // the index, which tells what belongs to the model
});

test('a link in the place of a partial file is not followed', async (t) => {
  const { hub, get, repository, home } = await bench(t);
  const victim = path.join(home, 'victim');
  writeFileSync(victim, 'precious');
  mkdirSync(path.join(repository, 'blobs'), { recursive: true });
  symlinkSync(victim, path.join(repository, 'blobs', `${sha256((hub.files.get(SHARD) as Served).bytes)}.incomplete`));
  await assert.rejects(get(), { code: 'LPQ_OUTPUT_WRITE' });
  assert.equal(readFileSync(victim, 'utf8'), 'precious');
});

test('what is there stays when a page comes instead of the rest', async (t) => {
  const { hub, get, repository } = await bench(t);
  const { bytes } = hub.files.get(SHARD) as Served;
  const partial = path.join(repository, 'blobs', `${sha256(bytes)}.incomplete`);
  mkdirSync(path.dirname(partial), { recursive: true });
  writeFileSync(partial, bytes.subarray(0, 1000));
  hub.behave = ({ host }) => (host === 'cdn' ? { ignoreRange: true, body: '<html>log in</html>' } : undefined);
  await assert.rejects(get(), { code: 'LPQ_HUB_CHECKSUM', message: /size/ });
  assert.ok(readFileSync(partial).equals(bytes.subarray(0, 1000)));
});
