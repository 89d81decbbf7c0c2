import assert from 'node:assert/strict';
import {
  existsSync,
  lstatSync,
  mkdirSync,
  readdirSync,
  readFileSync,
  readlinkSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import type { DownloadPlan } from '../../../src/hub/snapshot.js';
import { COMMIT, gitSha1, type Served, sha256 } from './server.js';
import { bench, differing, noise, sharded, TAKEN, WEIGHTS } from './setup.js';

const SHARD = 'model-00001-of-00002.safetensors';

function filesBelow(dir: string): string[] {
  return readdirSync(dir, { recursive: true, withFileTypes: true })
    .filter((entry) => !entry.isDirectory())
    .map((entry) => path.relative(dir, path.join(entry.parentPath, entry.name)))
    .sort();
}

test('downloads what lpq reads, in the layout that Python reads, and nothing else', async (t) => {
  const { hub, get, repository, home } = await bench(t);
  let plan: DownloadPlan | undefined;
  let last = 0;
  const found = await get('main', {
    onPlan: (it) => {
      plan = it;
    },
    onProgress: (done) => {
      last = done;
    },
  });
  assert.equal(found.dir, path.join(repository, 'snapshots', COMMIT));
  assert.equal(found.commit, COMMIT);
  assert.deepEqual(filesBelow(found.dir), TAKEN);
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
  for (const name of TAKEN) {
    const { bytes, large } = hub.files.get(name) as Served;
    const up = '../'.repeat(name.split('/').length + 1);
    assert.equal(readlinkSync(path.join(found.dir, name)), `${up}blobs/${large ? sha256(bytes) : gitSha1(bytes)}`);
  }
  assert.equal(readFileSync(path.join(repository, 'refs', 'main'), 'utf8'), COMMIT);
  assert.equal(readdirSync(path.join(repository, 'blobs')).length, TAKEN.length);
  assert.ok(existsSync(path.join(repository, '.no_exist', COMMIT, 'generation_config.json')));
  assert.ok(!existsSync(path.join(repository, '.no_exist', COMMIT, 'model.safetensors.index.json')));
  const tree = JSON.parse(readFileSync(path.join(repository, 'trees', `${COMMIT}.json`), 'utf8'));
  assert.equal(Object.keys(tree.files).length, hub.files.size);
  const index = (hub.files.get('model.safetensors.index.json') as Served).bytes.length;
  const total = TAKEN.reduce((sum, name) => sum + (hub.files.get(name) as Served).bytes.length, 0);
  assert.equal(plan?.bytes, total - index);
  assert.equal(last, plan?.bytes);
  assert.equal(found.downloaded, total);
  assert.deepEqual(readdirSync(path.join(home, 'hub')).sort(), ['.locks', path.basename(repository)]);
});

test('what is there is not downloaded again; a commit that is there needs no request at all', async (t) => {
  const { hub, get } = await bench(t);
  const first = await get();
  hub.seen.length = 0;
  const second = await get();
  assert.deepEqual({ ...second }, { ...first, downloaded: 0 });
  assert.deepEqual(
    hub.seen.map(({ path: place }) => place),
    ['/api/models/acme/tiny/revision/main'],
  );
  hub.seen.length = 0;
  await get(COMMIT);
  await get('main', {}, { HF_HUB_OFFLINE: '1' });
  assert.deepEqual(hub.seen, []);
  // A tag of the same commit costs one request and no download.
  hub.refs.set('v1.0', COMMIT);
  assert.equal((await get('v1.0')).downloaded, 0);
  hub.refs.set('refs/pr/1', COMMIT);
  assert.equal((await get('refs/pr/1')).dir, first.dir);
  assert.equal((await get('refs/pr/1', {}, { HF_HUB_OFFLINE: 'yes' })).dir, first.dir);
});

test('a cache that older versions of Python filled has no listing, and serves all the same', async (t) => {
  const { hub, get, repository } = await bench(t);
  await get();
  rmSync(path.join(repository, 'trees'), { recursive: true });
  rmSync(path.join(repository, '.no_exist'), { recursive: true });
  hub.seen.length = 0;
  await get('main', {}, { HF_HUB_OFFLINE: '1' });
  await get(COMMIT);
  assert.deepEqual(hub.seen, []);
  rmSync(path.join(repository, 'snapshots', COMMIT, SHARD));
  await assert.rejects(get('main', {}, { HF_HUB_OFFLINE: '1' }), {
    code: 'LPQ_HUB_OFFLINE',
    got: `without ${SHARD}`,
    exitCode: 3,
  });
});

test('while the Hub is away, the branch as it was last seen serves, with a warning', async (t) => {
  const { hub, get } = await bench(t);
  const first = await get();
  const warnings: string[] = [];
  const onWarning = (message: string) => warnings.push(message);
  hub.behave = () => ({ status: 503 });
  assert.equal((await get('main', { onWarning })).dir, first.dir);
  assert.match(warnings[0] ?? '', /last known commit of .* \(0123456789ab\).*answered/);
  await hub.close();
  assert.equal((await get('main', { onWarning })).dir, first.dir);
  assert.match(warnings[1] ?? '', /cannot be reached/);
  // Not so for a branch that never was.
  await assert.rejects(get('other'), { code: 'LPQ_HUB_UNREACHABLE' });
});

test('offline: nothing is asked, and what is missing is named', async (t) => {
  const { hub, get, repository } = await bench(t);
  const offline = { HF_HUB_OFFLINE: '1' };
  await assert.rejects(get('main', {}, offline), { code: 'LPQ_HUB_OFFLINE', message: /does not hold acme\/tiny/ });
  assert.deepEqual(hub.seen, []);
  await get();
  const blob = path.join(repository, 'blobs', sha256((hub.files.get(SHARD) as Served).bytes));
  truncateSync(blob, 10);
  await assert.rejects(get('main', {}, offline), { code: 'LPQ_HUB_OFFLINE', got: `without ${SHARD}` });
  // With a network the damaged blob is replaced, and only that.
  hub.seen.length = 0;
  const found = await get();
  assert.equal(hub.downloads().length, 1);
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
});

test('goes on with what a stopped run left, in ranges that ask for no other version', async (t) => {
  const { hub, get, repository } = await bench(t);
  const { bytes } = hub.files.get(SHARD) as Served;
  const blob = path.join(repository, 'blobs', sha256(bytes));
  mkdirSync(path.dirname(blob), { recursive: true });
  writeFileSync(`${blob}.incomplete`, bytes.subarray(0, 123_456));
  const found = await get();
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
  const [request] = hub.seen.filter(({ host, path: place }) => host === 'cdn' && place === `/${sha256(bytes)}`);
  assert.equal(request?.headers.range, `bytes=123456-${WEIGHTS - 1}`);
  assert.ok(!existsSync(`${blob}.incomplete`));
});

test('a remainder of something else is found out, and the file downloaded from its beginning', async (t) => {
  const { hub, get, repository } = await bench(t);
  const { bytes } = hub.files.get(SHARD) as Served;
  const blob = path.join(repository, 'blobs', sha256(bytes));
  mkdirSync(path.dirname(blob), { recursive: true });
  for (const left of [noise(5000, 99), noise(WEIGHTS, 99), noise(WEIGHTS + 1, 99)]) {
    rmSync(path.join(repository, 'snapshots'), { recursive: true, force: true });
    rmSync(blob, { force: true });
    writeFileSync(`${blob}.incomplete`, left);
    let last = 0;
    let total = 0;
    const found = await get('main', {
      onPlan: ({ bytes: all }) => {
        total = all;
      },
      onProgress: (done) => {
        last = done;
      },
    });
    assert.deepEqual(differing(hub, found.dir, [SHARD]), []);
    assert.equal(last, total);
  }
});

test('a connection that breaks off again and again is taken up each time, where it moves on', async (t) => {
  const { hub, get } = await bench(t);
  hub.behave = ({ host }) => (host === 'cdn' ? { cutAfter: 40_000 } : undefined);
  const found = await get();
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
  const shard = hub.seen.filter(({ path: place }) => place === `/${sha256((hub.files.get(SHARD) as Served).bytes)}`);
  assert.ok(shard.length >= Math.ceil(WEIGHTS / 40_000));
  // Once an answer has come, and not only its beginning before the cut, the host's own tag says which version is meant.
  const tags = shard.map(({ headers }) => headers['if-range']);
  const known = tags.indexOf('"tag-of-the-cdn"');
  assert.ok(known >= 1 && known <= 3, `${tags}`);
  assert.ok(tags.slice(0, known).every((tag) => tag === undefined) && new Set(tags.slice(known)).size === 1, `${tags}`);
});

test('a server without ranges gives the whole file again', async (t) => {
  const { hub, get } = await bench(t);
  hub.behave = ({ host }, nth) =>
    host === 'cdn' ? { ignoreRange: true, ...(nth === 0 && { cutAfter: 1000 }) } : undefined;
  assert.deepEqual(differing(hub, (await get()).dir, TAKEN), []);
});

test('large files come in parts', async (t) => {
  const { hub, get } = await bench(t);
  const found = await get('main', { partBytes: 100_000 });
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
  const shard = hub.seen.filter(({ path: place }) => place === `/${sha256((hub.files.get(SHARD) as Served).bytes)}`);
  assert.deepEqual(
    shard.map(({ headers }) => headers.range),
    ['bytes=0-99999', 'bytes=100000-199999', 'bytes=200000-299999'],
  );
});

test('a slow server is waited for as long as it sends', async (t) => {
  const { hub, get } = await bench(t);
  hub.behave = ({ host }) => (host === 'cdn' ? { trickle: 3000 } : { delayMs: 50 });
  const found = await get('main', {}, { HF_HUB_DOWNLOAD_TIMEOUT: '0.5', HF_HUB_ETAG_TIMEOUT: '0.5' });
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
});

test('a single file is taken before an index, one file of any name where there is no other', async (t) => {
  const both = await bench(t, { ...sharded(), 'model.safetensors': { bytes: noise(50, 8), large: true } });
  const found = await both.get();
  const weights = filesBelow(found.dir).filter((name) => name.includes('safetensors'));
  assert.deepEqual(weights, ['model.safetensors']);
  const named = await bench(t, {
    'config.json': { bytes: Buffer.from('{}') },
    'gptq_model-4bit.safetensors': { bytes: noise(50, 9), large: true },
  });
  assert.deepEqual(filesBelow((await named.get()).dir), ['config.json', 'gptq_model-4bit.safetensors']);
});

test('the same bytes under two names, and a file of no bytes', async (t) => {
  const bytes = noise(5000, 12);
  const { hub, get } = await bench(t, {
    'model.safetensors': { bytes: noise(50, 1), large: true },
    'config.json': { bytes: Buffer.from('{}') },
    'tokenizer_config.json': { bytes: Buffer.from('{}') },
    'vocab.json': { bytes, large: true },
    'vocab2.json': { bytes, large: true },
    'merges.txt': { bytes: Buffer.alloc(0) },
  });
  const found = await get();
  assert.deepEqual(differing(hub, found.dir, [...hub.files.keys()]), []);
  assert.equal(hub.downloads().length, 3); // two pairs of one content each, and nothing for nothing
});

test('a blob that Python keeps in its shared store counts as there', async (t) => {
  const { hub, get, repository, home } = await bench(t);
  const { bytes } = hub.files.get(SHARD) as Served;
  const store = path.join(home, 'hub', 'blobs', 'ab');
  mkdirSync(store, { recursive: true });
  mkdirSync(path.join(repository, 'blobs'), { recursive: true });
  writeFileSync(path.join(store, 'abc'), bytes);
  const blob = path.join(repository, 'blobs', sha256(bytes));
  symlinkSync('../../blobs/ab/abc', blob);
  const found = await get();
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
  assert.ok(lstatSync(blob).isSymbolicLink());
  assert.ok(!hub.seen.some(({ path: place }) => place === `/${sha256(bytes)}`));
  // A link to nothing is replaced.
  rmSync(path.join(store, 'abc'));
  assert.deepEqual(differing(hub, (await get()).dir, TAKEN), []);
  assert.ok(lstatSync(blob).isFile());
});

test('two runs at once download each file once', async (t) => {
  const { hub, get } = await bench(t);
  hub.behave = ({ host }) => (host === 'cdn' ? { trickle: 20_000 } : undefined);
  const [one, two] = await Promise.all([get(), get()]);
  assert.equal(one.dir, two.dir);
  assert.deepEqual(differing(hub, one.dir, TAKEN), []);
  assert.equal(hub.seen.filter(({ host }) => host === 'cdn').length, 3);
});

test('an interrupt ends a download at once, and what has come stays', async (t) => {
  const { hub, get, repository } = await bench(t);
  hub.behave = ({ host }) => (host === 'cdn' ? { trickle: 500, stallAfter: 200_000 } : undefined);
  const stop = new AbortController();
  let stopped = Number.POSITIVE_INFINITY;
  const onProgress = (_: number, file: string) => {
    if (file !== SHARD || stop.signal.aborted) return;
    stopped = performance.now();
    stop.abort();
  };
  await assert.rejects(get('main', { signal: stop.signal, onProgress }), { code: 'LPQ_ABORTED', exitCode: 130 });
  assert.ok(performance.now() - stopped < 2000);
  const left = readdirSync(path.join(repository, 'blobs')).filter((name) => name.endsWith('.incomplete'));
  assert.ok(left.length > 0);
  assert.ok(!existsSync(path.join(repository, 'refs', 'main')));
  hub.behave = () => undefined;
  assert.deepEqual(differing(hub, (await get()).dir, TAKEN), []);
  assert.ok(hub.seen.some(({ headers }) => /^bytes=[1-9]\d*-299999$/.test(headers.range ?? '')));
});
