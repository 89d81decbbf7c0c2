import assert from 'node:assert/strict';
import { existsSync, mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { ALL } from '../sample.js';
import { root } from '../src/cli/lpq.js';
import { writeWidened } from '../src/model/fixtures.js';
import { FORMATS } from './cells.js';
import { directoryOf, run } from './directories.js';
import { ENGINES } from './engines.js';
import { boundOf, IDS, logprobsOf, pythonOf, unpackedWheel } from './run.js';

/** The server of `vllm serve ARTIFACT`, asked over HTTP as OpenAI's clients do: processes of its own, threads bound, whatever vLLM does by default. */

const engine = ENGINES.find(({ environment, plugin }) => environment === 'engines/vllm' && plugin)!;
const format = FORMATS.find(({ name }) => name === '3 bits, sm90')!;
const found = pythonOf(engine);
const skip = 'skip' in found && found.skip;
const more = skip || (ALL ? false : 'SKIPPED: this serving takes a minute more; LPQ_TEST_ALL=1 runs it');

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address() as { port: number };
  await new Promise((done) => server.close(done));
  return port;
}

interface Served {
  readonly packed: string;
  readonly prompt: string | readonly number[];
  readonly ids: readonly number[];
  readonly depth?: { readonly blocks: number; readonly columns: number };
}

async function tiny(dir: string): Promise<Served> {
  return { packed: (await directoryOf(format, dir))!, prompt: IDS, ids: IDS };
}

/** A pack whose tensors are those of two ranks. */
async function forRanks(dir: string): Promise<Served> {
  const shared = FORMATS.find(({ packing }) => packing?.includes('--tp'))!;
  return { packed: (await directoryOf(shared, dir))!, prompt: IDS, ids: IDS };
}

/** SmolLM2-135M in 3 bits. */
async function smol(dir: string): Promise<Served> {
  const [quantized, packed] = [path.join(dir, 'q'), path.join(dir, 'packed')];
  await run('quantize', smollm2!, '-o', quantized, '--no-report', ...format.options);
  await run('pack', quantized, '--target', format.target, '-o', packed);
  const prompt = 'The capital of France is Paris, and the capital of Italy is';
  const ids = [...(await (await openTokenizer(smollm2!))(prompt))];
  return { packed, prompt, ids, depth: { blocks: 30, columns: 1536 } };
}

const smollm2 = process.env.LPQ_SMOLLM2;
const absent = smollm2 && existsSync(smollm2) ? skip : 'SKIPPED: LPQ_SMOLLM2 names no checkpoint of SmolLM2-135M';
const CASES = [
  { name: 'tiny-llama on one rank', ranks: 1, made: tiny, skip },
  { name: 'tiny-llama on two ranks', ranks: 2, made: tiny, skip: more },
  { name: 'a pack of --tp 2 on two ranks', ranks: 2, made: forRanks, skip: more },
  { name: 'SmolLM2 in 3 bits', ranks: 1, made: smol, skip: absent },
];

/** The server over a directory, on `ranks` processors, its output kept. `dir` is for the wheel. */
function started(
  python: string,
  packed: string,
  dir: string,
  ranks: number,
  port: number,
  more: readonly string[] = [],
  env: Readonly<Record<string, string>> = {},
) {
  const options = ['--dtype', 'float32', '--max-model-len', '64', '--max-num-seqs', '1', '--enforce-eager', ...more];
  if (ranks > 1) options.push('--tensor-parallel-size', String(ranks));
  // The server of `vllm serve`, whose command asks for a distribution's name that the build for the CPU does not have.
  const server = ['-m', 'vllm.entrypoints.openai.api_server', '--model', packed, '--host', '127.0.0.1'];
  return execa(python, [...server, '--port', String(port), ...options], {
    env: {
      ...env,
      PYTHONPATH: unpackedWheel(python, dir),
      LPQ_KERNELS: '',
      LPQ_COMMAND: `${process.execPath} ${path.join(root, 'bin', 'lpq.js')}`,
      VLLM_CPU_KVCACHE_SPACE: '1',
      // Two ranks on a machine of one node of memory: vLLM asks for the processors of each.
      ...(ranks > 1 ? { VLLM_CPU_OMP_THREADS_BIND: '0|1' } : {}),
      VLLM_NO_USAGE_STATS: '1',
      HF_HUB_OFFLINE: '1',
    },
    reject: false,
    all: true,
    forceKillAfterDelay: 20_000,
  });
}

for (const { name, ranks, made, skip } of CASES)
  test(`vLLM serves ${name}, and answers with the logprobs of lpq logits`, { skip }, async (t) => {
    assert.ok('python' in found);
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-serve-'));
    const { packed, prompt, ids, depth } = await made(dir);
    const port = await freePort();
    const server = started(found.python, packed, dir, ranks, port);
    t.after(async () => {
      server.kill('SIGTERM');
      await server;
      rmSync(dir, { recursive: true, force: true });
    });
    const at = `http://127.0.0.1:${port}`;
    const deadline = Date.now() + (depth ? 1_800_000 : 540_000);
    let ended = false;
    void server.then(() => (ended = true));
    while (
      !(await fetch(`${at}/health`)
        .then(({ ok }) => ok)
        .catch(() => false))
    ) {
      if (ended) assert.fail(`vllm serve ended: ${(await server).all?.slice(-4000)}`);
      assert.ok(Date.now() < deadline, 'vllm serve was not up in time');
      await sleep(500);
    }
    const answer = await fetch(`${at}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: packed, prompt, max_tokens: 4, temperature: 0, prompt_logprobs: 0 }),
    });
    assert.equal(answer.status, 200);
    const { choices } = (await answer.json()) as {
      choices: { text: string; prompt_logprobs: (Record<string, { logprob: number }> | null)[] }[];
    };
    const { rows, ...sizes } = await logprobsOf(packed, ids);
    const told = choices[0]!.prompt_logprobs.slice(1).map((place, i) => place![String(ids[i + 1])]!.logprob);
    assert.equal(told.length, ids.length - 1);
    const off = Math.max(...told.map((value, i) => Math.abs(value - rows[i]![ids[i + 1]!]!)));
    assert.ok(off <= boundOf('float32', sizes, depth), `a logprob is ${off} off`);
    assert.ok(choices[0]!.text.length > 0);
    t.diagnostic(`a logprob is at most ${off.toPrecision(2)} off; the answer is ${JSON.stringify(choices[0]!.text)}`);
  });

/** What a server that refuses prints besides vLLM's own notes: one line of the package, and no trace. */
async function refusal(packed: string, dir: string, ranks: number, env: Readonly<Record<string, string>> = {}) {
  assert.ok('python' in found);
  const ended = await started(found.python, packed, dir, ranks, await freePort(), ['--skip-tokenizer-init'], env);
  assert.notEqual(ended.exitCode, 0);
  assert.doesNotMatch(ended.all, /Traceback/);
  const told = ended.all.split('\n').filter((line) => line.startsWith('lpq_kernels: '));
  assert.equal(told.length, 1, ended.all.slice(-4000));
  assert.ok(ended.all.trimEnd().endsWith(told[0]!), ended.all.slice(-4000));
  return told[0]!;
}

/** A model whose down_proj has three groups of 128 inputs: of two ranks, each would have one and a half. */
async function unshareable(dir: string, target: string): Promise<string> {
  const [model, quantized, packed] = ['model', 'q', `packed-${target}`].map((name) => path.join(dir, name)) as [
    string,
    string,
    string,
  ];
  if (!existsSync(model)) {
    await writeWidened('llama', model, { vocab_size: 320, intermediate_size: 384 });
    const options = ['--method', 'rtn', '--bits', '3', '--group-size', '128'];
    await run('quantize', model, '-o', quantized, '--no-report', ...options);
  }
  await run('pack', quantized, '--target', target, '-o', packed);
  return packed;
}

interface Refused {
  readonly name: string;
  readonly sentence: RegExp;
  readonly env?: Readonly<Record<string, string>>;
  readonly skip: string | boolean;
}

const DAMAGED: readonly Refused[] = [
  { name: '3 bits, sm90, cut short', sentence: /does not open: .* ends beyond the file$/, skip },
  {
    ...{ name: '3 bits, sm90, a byte changed, hashes checked', env: { LPQ_CHECK_HASHES: '1' }, skip: more },
    sentence: /does not open: tensor '.*' is not what lpq\.json was written for: its SHA-256 differs$/,
  },
  {
    ...{ name: '3 bits, sm90, a byte changed, verified first', env: { LPQ_REQUIRE_VERIFY: '1' }, skip: more },
    sentence: /does not open: lpq verify does not pass it: .* have changed since they were packed/,
  },
  { name: '3 bits, sm90, a type that there is none of', sentence: /'q3' is no quantized type/, skip: more },
];

for (const { name, sentence, env = {}, skip } of DAMAGED)
  test(`${name}: vLLM's server ends with one sentence`, { skip }, async (t) => {
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-serve-'));
    t.after(() => rmSync(dir, { recursive: true, force: true }));
    const packed = await directoryOf(FORMATS.find((each) => each.name === name)!, dir);
    assert.match(await refusal(packed!, dir, 1, env), sentence);
  });

test("what two ranks cannot share ends vLLM's server with one sentence", { skip: more }, async (t) => {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-serve-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  for (const target of ['sm90', 'gptq'])
    assert.match(
      await refusal(await unshareable(dir, target), dir, 2),
      /2 ranks cannot share the 384 inputs of '.*down_proj': 384\/2 is no whole number of groups of 128/,
    );
});
