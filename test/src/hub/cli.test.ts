import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { createServer, request } from 'node:http';
import type { AddressInfo } from 'node:net';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { events, lpq, model, root, scratch, spawned } from '../cli/lpq.js';
import { COMMIT, type FakeHub, fakeHub, ID, type Served, setEnvironment, sha256 } from './server.js';

interface Bench {
  readonly hub: FakeHub;
  readonly home: string;
  readonly dir: string;
  readonly env: Record<string, string>;
  readonly blob: string;
}

/** The bundled model on a Hub of our own, and what a process needs to find it. */
async function bench(t: TestContext): Promise<Bench> {
  const files: Record<string, Served> = {};
  for (const name of readdirSync(model))
    files[name] = { bytes: readFileSync(path.join(model, name)), large: /safetensors|tokenizer\.json/.test(name) };
  const hub = await fakeHub(t, files);
  const home = scratch(t);
  const env = {
    HF_HOME: home,
    HF_ENDPOINT: hub.endpoint,
    HF_TOKEN: '',
    HF_HUB_OFFLINE: '',
    NO_PROXY: '127.0.0.1,127.0.0.2',
  };
  setEnvironment(t, env);
  const repository = path.join(home, 'hub', `models--${ID.replace('/', '--')}`);
  const weights = (files['model.safetensors'] as Served).bytes;
  const blob = path.join(repository, 'blobs', sha256(weights));
  return { hub, home, dir: path.join(repository, 'snapshots', COMMIT), env, blob };
}

test('quantize takes a name, and says in the checkpoint which commit it was', async (t) => {
  const { hub, home, dir } = await bench(t);
  const out = path.join(home, 'out');
  const args = ['quantize', ID, '-o', out, '--bits', '4', '--method', 'rtn', '--json'];
  const ran = await lpq(args);
  assert.equal(ran.code, 0, ran.stderr + ran.stdout);
  const all = events(ran);
  const download = all.find(({ event }) => event === 'download');
  assert.equal(download?.commit, COMMIT);
  assert.equal(all.find(({ event }) => event === 'model')?.dir, dir);
  const manifest = JSON.parse(readFileSync(path.join(out, 'lpq.json'), 'utf8'));
  const { name, revision } = manifest.provenance.source;
  assert.deepEqual({ name, revision }, { name: ID, revision: COMMIT });
  // The tokenizer comes along, through the links of the cache.
  assert.ok(readFileSync(path.join(out, 'tokenizer.json')).equals((hub.files.get('tokenizer.json') as Served).bytes));
  // From the directory itself, the same bytes.
  const again = await lpq(['quantize', dir, '-o', `${out}2`, '--bits', '4', '--method', 'rtn']);
  assert.equal(again.code, 0, again.stderr);
  for (const file of readdirSync(out))
    assert.ok(readFileSync(path.join(out, file)).equals(readFileSync(path.join(`${out}2`, file))), file);
  // What is wrong with the command is told without a download.
  hub.seen.length = 0;
  assert.equal((await lpq(args)).code, 2);
  assert.deepEqual(hub.seen, []);
});

test('eval, inspect and logits take one too, and still print one line with --json', async (t) => {
  const { hub, home, dir, env } = await bench(t);
  const text = path.join(home, 'text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 3000));
  const inspected = await lpq(['inspect', ID, '--json']);
  assert.deepEqual([inspected.code, events(inspected).length], [0, 1], inspected.stderr);
  const evaluated = await lpq(['eval', `${ID}@main`, '--text', text, '--ctx', '64', '--json']);
  assert.deepEqual([evaluated.code, events(evaluated).length], [0, 1], evaluated.stderr);
  assert.equal(events(evaluated)[0]?.dir, dir);
  await hub.close();
  const away = await lpq(['inspect', `${ID}@${COMMIT}`]);
  assert.deepEqual([away.code, away.stderr], [0, '']);
  const offline = await lpq(['inspect', ID], { ...env, HF_HUB_OFFLINE: '1' });
  assert.deepEqual([offline.code, offline.stderr], [0, '']);
});

test('a directory goes before a name; an error says that there was none', async (t) => {
  const { hub, env } = await bench(t);
  const local = await lpq(['inspect', 'share/tiny-llama']);
  assert.equal(local.code, 0, local.stderr);
  assert.deepEqual(hub.seen, []);
  const wrong = await lpq(['inspect', 'share/tiny-lama']);
  assert.equal(wrong.code, 4);
  assert.match(wrong.stderr, /LPQ_HUB_NOT_FOUND.*share\/tiny-lama.*there is no directory share\/tiny-lama/s);
  const revision = await lpq(['inspect', `${ID}@../x`]);
  assert.deepEqual([revision.code, hub.seen.length], [2, 1]);
  hub.behave = () => ({ status: 401, headers: { 'x-error-code': 'GatedRepo' } });
  const gated = await lpq(['inspect', ID, '--json'], { ...env, HF_TOKEN: 'hf_secret' });
  assert.equal(gated.code, 3);
  assert.equal(events(gated)[0]?.code, 'LPQ_HUB_ACCESS');
  assert.doesNotMatch(gated.stdout + gated.stderr, /hf_secret/);
});

/** Runs `lpq inspect` and kills it once `when` says so. */
async function killed(
  env: Record<string, string>,
  signal: NodeJS.Signals,
  when: () => boolean,
): Promise<number | null> {
  const child = spawn(process.execPath, [path.join(root, 'bin', 'lpq.js'), 'inspect', ID], {
    cwd: root,
    env: { ...process.env, ...env },
    stdio: 'ignore',
  });
  const ended = once(child, 'exit') as Promise<[number | null]>;
  while (!when() && child.exitCode === null) await sleep(10);
  child.kill(signal);
  return (await ended)[0];
}

for (const signal of ['SIGKILL', 'SIGINT'] as const)
  test(`${signal} in the middle of a download, and the next run goes on from there`, async (t) => {
    const { hub, dir, env, blob } = await bench(t);
    const size = () => (existsSync(`${blob}.incomplete`) ? statSync(`${blob}.incomplete`).size : 0);
    hub.behave = ({ host }) => (host === 'cdn' ? { stallAfter: 4_000_000 } : undefined);
    const code = await killed(env, signal, () => size() >= 3_000_000);
    assert.equal(code, signal === 'SIGKILL' ? null : 130);
    const left = size();
    assert.ok(left >= 3_000_000);
    hub.behave = () => undefined;
    hub.seen.length = 0;
    const ran = await lpq(['inspect', ID]);
    assert.equal(ran.code, 0, ran.stderr);
    const request = hub.seen.find(({ host, headers }) => host === 'cdn' && headers.range?.startsWith(`bytes=${left}-`));
    assert.ok(request, JSON.stringify(hub.seen.map(({ headers }) => headers.range)));
    assert.ok(
      readFileSync(path.join(dir, 'model.safetensors')).equals((hub.files.get('model.safetensors') as Served).bytes),
    );
  });

test('two processes at once download each file once', async (t) => {
  const { hub, env } = await bench(t);
  hub.behave = ({ host }) => (host === 'cdn' ? { trickle: 50_000 } : undefined);
  const ran = await Promise.all([spawned(['inspect', ID], env), spawned(['inspect', ID], env)]);
  assert.deepEqual(
    ran.map(({ code, stderr }) => (code === 0 ? 0 : stderr)),
    [0, 0],
  );
  assert.equal(hub.seen.filter(({ host }) => host === 'cdn').length, 2);
});

test('a process that dies with the lock leaves it free', async (t) => {
  const { hub, env, blob } = await bench(t);
  hub.behave = ({ host }) => (host === 'cdn' ? { stallAfter: 100 } : undefined);
  await killed(env, 'SIGKILL', () => existsSync(`${blob}.incomplete`));
  hub.behave = () => undefined;
  assert.equal((await lpq(['inspect', ID])).code, 0);
});

test('a proxy is used where one is named', async (t) => {
  const { hub, env } = await bench(t);
  const through: string[] = [];
  // undici asks for a tunnel, as for https.
  const proxy = createServer((from, to) => {
    through.push(from.url ?? '');
    from.pipe(
      request(from.url ?? '', { headers: from.headers, method: from.method }, (got) =>
        got.pipe(to.writeHead(got.statusCode ?? 0, got.headers)),
      ),
    );
  }).on('connect', (from, socket) => {
    through.push(from.url ?? '');
    import('node:net').then(({ connect }) => {
      const [host, port] = (from.url ?? '').split(':');
      const upstream = connect(Number(port), host, () => {
        socket.write('HTTP/1.1 200 OK\r\n\r\n');
        upstream.pipe(socket).pipe(upstream);
      });
      for (const end of [upstream, socket]) end.on('error', () => socket.destroy());
    });
  });
  await new Promise<void>((resolve) => proxy.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    proxy.closeAllConnections();
    proxy.close();
  });
  const address = `http://127.0.0.1:${(proxy.address() as AddressInfo).port}`;
  const ran = await lpq(['inspect', ID], { ...env, HTTP_PROXY: address, http_proxy: '', NO_PROXY: '', no_proxy: '' });
  assert.equal(ran.code, 0, ran.stderr);
  assert.ok(
    through.some((url) => url.includes(new URL(hub.endpoint).host)),
    through.join(),
  );
});
