import assert from 'node:assert/strict';
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, readdirSync, readFileSync, readlinkSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { ID, type Served, sha256 } from './server.js';
import { bench, differing, TAKEN } from './setup.js';

// The oracle of the layout is Python's own library: LPQ_HF_PYTHON is an interpreter that has it.
const python = process.env.LPQ_HF_PYTHON ?? 'python3';
const probe = spawnSync(python, ['-c', 'import huggingface_hub; print(huggingface_hub.__version__)'], {
  encoding: 'utf8',
});
const skip =
  probe.status === 0
    ? false
    : 'SKIPPED: no Python with huggingface_hub (set LPQ_HF_PYTHON to an interpreter that has it)';

/** Everything below a repository of the cache: links with their targets, files with their bytes. */
function layout(repository: string): Record<string, string> {
  const rows = readdirSync(repository, { recursive: true, withFileTypes: true })
    .filter((entry) => !entry.isDirectory())
    .map((entry) => {
      const file = path.join(entry.parentPath, entry.name);
      const name = path.relative(repository, file);
      if (entry.isSymbolicLink()) return [name, `-> ${readlinkSync(file)}`];
      return [name, name.startsWith('blobs') ? sha256(readFileSync(file)) : readFileSync(file, 'utf8')];
    });
  return Object.fromEntries(rows.sort(([a], [b]) => ((a as string) < (b as string) ? -1 : 1)));
}

async function run(home: string, endpoint: string, code: string, env: Record<string, string> = {}): Promise<string> {
  const { stdout } = await execa(python, ['-c', code], {
    env: {
      HF_HOME: home,
      HF_ENDPOINT: endpoint,
      HF_TOKEN: '',
      HF_HUB_DISABLE_XET: '1',
      HF_HUB_DISABLE_TELEMETRY: '1',
      HF_HUB_DISABLE_PROGRESS_BARS: '1',
      NO_PROXY: '127.0.0.1,127.0.0.2',
      ...env,
    },
    stdin: 'ignore',
  });
  return stdout;
}

test('Python finds what lpq downloaded, without a network', { skip }, async (t) => {
  const { hub, home, get } = await bench(t);
  const { dir } = await get();
  await hub.close();
  const text = await run(
    home,
    hub.endpoint,
    `
import json
from huggingface_hub import hf_hub_download, scan_cache_dir, snapshot_download, try_to_load_from_cache, _CACHED_NO_EXIST
taken = json.loads('${JSON.stringify(TAKEN)}')
info = scan_cache_dir()
repository = next(iter(info.repos))
print(json.dumps({
  'files': [hf_hub_download('${ID}', name) for name in taken],
  'loaded': try_to_load_from_cache('${ID}', 'config.json'),
  'absent': try_to_load_from_cache('${ID}', 'generation_config.json') is _CACHED_NO_EXIST,
  'dir': snapshot_download('${ID}', allow_patterns=taken),
  'repos': [r.repo_id for r in info.repos],
  'refs': sorted(ref for r in repository.revisions for ref in r.refs),
  'count': repository.nb_files,
  'warnings': [str(w) for w in info.warnings],
}))`,
    { HF_HUB_OFFLINE: '1' },
  );
  assert.deepEqual(JSON.parse(text), {
    files: TAKEN.map((name) => path.join(dir, name)),
    loaded: path.join(dir, 'config.json'),
    absent: true,
    dir,
    repos: [ID],
    refs: ['main'],
    count: TAKEN.length,
    warnings: [],
  });
});

test('lpq finds what Python downloaded, without a network, and would have laid it out alike', { skip }, async (t) => {
  const { hub, home, get, repository } = await bench(t);
  await run(
    home,
    hub.endpoint,
    `
import json
from huggingface_hub import snapshot_download
snapshot_download('${ID}', allow_patterns=json.loads('${JSON.stringify(TAKEN)}'))`,
  );
  const theirs = layout(repository);
  assert.ok(Object.keys(theirs).length > 2 * TAKEN.length);
  hub.seen.length = 0;
  const found = await get('main', {}, { HF_HUB_OFFLINE: '1' });
  assert.deepEqual(hub.seen, []);
  assert.deepEqual(differing(hub, found.dir, TAKEN), []);
  const ours = await bench(t);
  await ours.get();
  const mine = Object.entries(layout(ours.repository)).filter(([name]) => !name.startsWith('.no_exist'));
  assert.deepEqual(Object.fromEntries(mine), theirs);
});

test("lpq waits for a download of Python's", { skip }, async (t) => {
  const { hub, home, get } = await bench(t);
  const etag = sha256((hub.files.get('tokenizer.json') as Served).bytes);
  const lock = path.join(home, 'hub', '.locks', `models--${ID.replace('/', '--')}`, `${etag}.lock`);
  mkdirSync(path.dirname(lock), { recursive: true });
  const code = `
from huggingface_hub.utils import WeakFileLock
import sys
with WeakFileLock(sys.argv[1]):
  print('held', flush=True)
  sys.stdin.read()`;
  const holder = spawn(python, ['-c', code, lock], { stdio: ['pipe', 'pipe', 'inherit'] });
  await once(holder.stdout, 'data');
  let ended = false;
  const getting = get().finally(() => {
    ended = true;
  });
  await sleep(1000);
  assert.equal(ended, false);
  assert.ok(!hub.seen.some(({ path: place }) => place === `/${etag}`));
  holder.stdin.end();
  assert.deepEqual(differing(hub, (await getting).dir, TAKEN), []);
});
