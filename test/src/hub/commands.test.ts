import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { events, lpq, model, root, scratch } from '../cli/lpq.js';
import { COMMIT, type FakeHub, fakeHub, ID, type Served, setEnvironment } from './server.js';

/** The files of a directory, but for some, on a Hub of our own, and what this process needs to find it. */
async function serve(t: TestContext, dir: string, without: readonly string[] = []) {
  const files: Record<string, Served> = {};
  for (const name of readdirSync(dir))
    if (!without.includes(name))
      files[name] = { bytes: readFileSync(path.join(dir, name)), large: /safetensors|gguf|tokenizer\.json/.test(name) };
  const hub: FakeHub = await fakeHub(t, files);
  const home = scratch(t);
  const env = {
    HF_HOME: home,
    HF_ENDPOINT: hub.endpoint,
    HF_TOKEN: '',
    HF_HUB_OFFLINE: '',
    NO_PROXY: '127.0.0.1,127.0.0.2',
  };
  setEnvironment(t, env);
  const snapshot = path.join(home, 'hub', `models--${ID.replace('/', '--')}`, 'snapshots', COMMIT);
  return { hub, snapshot };
}

async function ran(args: readonly string[]) {
  const got = await lpq(args);
  assert.equal(got.code, 0, `${args.join(' ')}: ${got.stderr}${got.stdout}`);
  return got;
}

test('what another tool quantized is diagnosed, inspected, evaluated, packed and verified against by its name', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  await ran(['quantize', model, '-o', at('q'), '--bits', '4', '--method', 'rtn']);
  await ran(['pack', at('q'), '--target', 'gptq', '-o', at('gptq')]);
  const { hub, snapshot } = await serve(t, at('gptq'), ['lpq.json']);
  const text = at('text.txt');
  writeFileSync(text, readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8').slice(0, 3000));

  // What is wrong with the command is told without a download.
  mkdirSync(at('there'));
  assert.equal((await lpq(['pack', ID, '--target', 'marlin', '-o', at('there')])).code, 2);
  assert.match((await lpq(['pack', ID, '--target', 'nobody', '-o', at('no')])).stderr, /LPQ_TARGET/);
  assert.deepEqual(hub.seen, []);

  const doctor = await ran(['doctor', ID, '--json']);
  const [diagnosis] = events(doctor) as [{ ok: boolean; dir: string; kind: string }];
  assert.deepEqual([diagnosis.ok, diagnosis.dir, diagnosis.kind], [true, snapshot, 'foreign:gptq']);
  assert.match((await ran(['inspect', ID])).stdout, /gptq/i);
  assert.equal(
    events(await ran(['pack', `${ID}@main`, '--target', 'tilus', '-o', at('x'), '--dry-run', '--json'])).length,
    1,
  );
  await ran(['pack', ID, '--target', 'marlin', '-o', at('marlin')]);
  await ran(['verify', at('marlin'), '--against', ID]);
  const perplexity = async (...args: string[]) =>
    (events(await ran(['eval', ...args, '--text', text, '--ctx', '64', '--json']))[0] as { ppl: number }).ppl;
  assert.equal(await perplexity(ID), await perplexity(at('marlin')));
  // Everything came once; later commands only ask for the commit.
  assert.equal(hub.seen.filter(({ host }) => host === 'cdn').length, 2);
});

test('what lpq packed is verified by its name, GGUF too, against a quantized checkpoint of another', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  await ran(['quantize', model, '-o', at('q'), '--bits', '4', '--group-size', '32', '--method', 'rtn']);
  for (const target of ['marlin', 'gguf']) {
    await ran(['pack', at('q'), '--target', target, '-o', at(target)]);
    await serve(t, at(target));
    const [report] = events(await ran(['verify', ID, '--against', at('q'), '--json'])) as [{ ok: boolean }];
    assert.equal(report.ok, true);
  }
  const { hub } = await serve(t, at('q'));
  await ran(['verify', at('marlin'), '--against', ID]);
  hub.behave = () => ({ status: 404 });
  const missing = await lpq(['doctor', 'acme/other']);
  assert.equal(missing.code, 4);
  assert.match(missing.stderr, /LPQ_HUB_NOT_FOUND.*there is no directory acme\/other/s);
});

test('searched types of GGUF take the model that was quantized by its name', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  await ran(['quantize', model, '-o', at('q'), '--bits', '3', '--group-size', '64', '--method', 'rtn']);
  await serve(t, model);
  await ran(['pack', at('q'), '--target', 'gguf-q4_k', '-o', at('named'), '--source', ID]);
  await ran(['pack', at('q'), '--target', 'gguf-q4_k', '-o', at('local'), '--source', model]);
  assert.ok(
    readFileSync(path.join(at('named'), 'model.gguf')).equals(readFileSync(path.join(at('local'), 'model.gguf'))),
  );
});
