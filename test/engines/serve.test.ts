import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { execa } from 'execa';
import { ALL } from '../sample.js';
import { ENGINES, FORMATS } from './cells.js';
import { directoryOf } from './directories.js';
import { boundOf, IDS, logprobsOf, pythonOf, unpackedWheel } from './run.js';

/** The server of `vllm serve ARTIFACT`, asked over HTTP as OpenAI's clients do: processes of its own, threads bound, whatever vLLM does by default. */

const engine = ENGINES.find(({ environment, plugin }) => environment === 'engines/vllm' && plugin)!;
const format = FORMATS.find(({ name }) => name === '3 bits, sm90')!;
const found = pythonOf(engine);
const skip = 'skip' in found ? found.skip : ALL ? false : 'SKIPPED: serving takes minutes; LPQ_TEST_ALL=1 runs it';

async function freePort(): Promise<number> {
  const server = createServer();
  await new Promise<void>((done) => server.listen(0, '127.0.0.1', done));
  const { port } = server.address() as { port: number };
  await new Promise((done) => server.close(done));
  return port;
}

for (const ranks of [1, 2])
  test(`vLLM serves on ${ranks === 1 ? 'one rank' : 'two ranks'}, and answers with the logprobs of lpq logits`, {
    skip,
  }, async (t) => {
    assert.ok('python' in found);
    const dir = mkdtempSync(path.join(tmpdir(), 'lpq-serve-'));
    const packed = (await directoryOf(format, dir))!;
    const port = await freePort();
    const options = ['--dtype', 'float32', '--max-model-len', '64', '--max-num-seqs', '1', '--enforce-eager'];
    if (ranks > 1) options.push('--tensor-parallel-size', String(ranks));
    const server = execa(
      found.python,
      // The server of `vllm serve`, whose command asks for a distribution's name that the build for the CPU does not have.
      [
        '-m',
        'vllm.entrypoints.openai.api_server',
        '--model',
        packed,
        '--host',
        '127.0.0.1',
        '--port',
        String(port),
        ...options,
      ],
      {
        env: {
          PYTHONPATH: unpackedWheel(found.python, dir),
          LPQ_KERNELS: '',
          VLLM_CPU_KVCACHE_SPACE: '1',
          // Two ranks on a machine of one node of memory: vLLM asks for the processors of each.
          ...(ranks > 1 ? { VLLM_CPU_OMP_THREADS_BIND: '0|1' } : {}),
          VLLM_NO_USAGE_STATS: '1',
          HF_HUB_OFFLINE: '1',
        },
        reject: false,
        all: true,
        forceKillAfterDelay: 20_000,
      },
    );
    t.after(async () => {
      server.kill('SIGTERM');
      await server;
      rmSync(dir, { recursive: true, force: true });
    });
    const at = `http://127.0.0.1:${port}`;
    const deadline = Date.now() + 540_000;
    let ended = false;
    void server.then(() => (ended = true));
    while (
      !(await fetch(`${at}/health`)
        .then(({ ok }) => ok)
        .catch(() => false))
    ) {
      if (ended) assert.fail(`vllm serve ended: ${(await server).all?.slice(-4000)}`);
      assert.ok(Date.now() < deadline, 'vllm serve was not up after nine minutes');
      await sleep(500);
    }
    const answer = await fetch(`${at}/v1/completions`, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify({ model: packed, prompt: IDS, max_tokens: 4, temperature: 0, prompt_logprobs: 0 }),
    });
    assert.equal(answer.status, 200);
    const { choices } = (await answer.json()) as {
      choices: { text: string; prompt_logprobs: (Record<string, { logprob: number }> | null)[] }[];
    };
    const { rows, largest } = await logprobsOf(packed, IDS);
    const told = choices[0]!.prompt_logprobs.slice(1).map((place, i) => place![String(IDS[i + 1])]!.logprob);
    assert.equal(told.length, IDS.length - 1);
    const off = Math.max(...told.map((value, i) => Math.abs(value - rows[i]![IDS[i + 1]!]!)));
    assert.ok(off <= boundOf('float32', largest), `a logprob is ${off} off`);
    assert.ok(choices[0]!.text.length > 0);
  });
