/**
 * Tokens a second of prompts and of decoding on the CPU, lpq beside llama.cpp and transformers, in turns and in both orders; medians.
 *
 *   node dist/bench/generate/peers.js --model DIR --packed DIR --llama BIN --gguf bf16=FILE,q4_0=FILE --python PYTHON [--json FILE]
 *
 * BIN: the folder of llama-bench; PYTHON: one with torch and transformers. --threads 2, --rounds 2 (of each order), --prompt 512,
 * --decode 128. Each measurement is a process of its own, which reads a prompt and decodes once before it counts. llama.cpp's q4_0 rounds
 * activations to int8; lpq's and transformers' stay floats.
 */
import { execFileSync } from 'node:child_process';
import { writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { addon } from '../../native/binding.js';
import { processorName } from '../machine.js';

const { values } = parseArgs({
  options: {
    model: { type: 'string' },
    packed: { type: 'string' },
    llama: { type: 'string' },
    gguf: { type: 'string', default: '' },
    python: { type: 'string' },
    threads: { type: 'string', default: '2' },
    rounds: { type: 'string', default: '2' },
    prompt: { type: 'string', default: '512' },
    decode: { type: 'string', default: '128' },
    json: { type: 'string' },
  },
});
const { threads, prompt, decode } = values;
const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '../../..');

interface Rates {
  readonly prompt: number;
  readonly decode: number;
}
interface Contestant {
  readonly name: string;
  run(): Rates;
}

function output(file: string, args: readonly string[]): string {
  return execFileSync(file, args, {
    encoding: 'utf8',
    env: { ...process.env, OMP_NUM_THREADS: threads, LPQ_THREADS: threads },
    stdio: ['ignore', 'pipe', 'ignore'],
  });
}

function lpq(name: string, dir: string, products: string): Contestant {
  const script = path.join(root, 'dist/bench/generate/rates.js');
  return { name, run: () => JSON.parse(output(process.execPath, [script, dir, products, prompt, decode])) as Rates };
}

function llama(bin: string, type: string, file: string): Contestant {
  const args = ['-m', file, '-t', threads, '-p', prompt, '-n', decode, '-r', '1', '-o', 'json'];
  return {
    name: `llama.cpp ${type}`,
    run() {
      const rows = JSON.parse(output(path.join(bin, 'llama-bench'), args)) as { n_prompt: number; avg_ts: number }[];
      const rate = (reads: boolean) => rows.find(({ n_prompt }) => n_prompt > 0 === reads)?.avg_ts as number;
      return { prompt: rate(true), decode: rate(false) };
    },
  };
}

function transformers(python: string, dir: string, dtype: string): Contestant {
  const args = [path.join(root, 'bench/interop/generate.py'), dir, dtype, threads, prompt, decode];
  return { name: `transformers ${dtype}`, run: () => JSON.parse(output(python, args)) as Rates };
}

const contestants: Contestant[] = [
  ...(values.model ? [lpq('lpq 16 bits, products in bf16', values.model, 'bf16')] : []),
  ...(values.model ? [lpq('lpq 16 bits', values.model, 'f32')] : []),
  ...(values.packed ? [lpq('lpq packed', values.packed, 'f32')] : []),
  ...(values.packed ? [lpq('lpq packed, other products in bf16', values.packed, 'bf16')] : []),
  ...(values.llama
    ? values.gguf.split(',').map((each) => llama(values.llama as string, ...(each.split('=') as [string, string])))
    : []),
  ...(values.python && values.model
    ? ['bfloat16', 'float32'].map((dtype) => transformers(values.python as string, values.model as string, dtype))
    : []),
];

const found = new Map<string, Rates[]>(contestants.map(({ name }) => [name, []]));
for (let round = 0; round < Number(values.rounds); round++)
  for (const order of [contestants, contestants.toReversed()])
    for (const { name, run } of order) {
      const rates = run();
      found.get(name)?.push(rates);
      console.error(`${name}: prompt ${rates.prompt.toFixed(0)}, decode ${rates.decode.toFixed(1)} tokens/s`);
    }

const median = (list: readonly number[]): number =>
  list.toSorted((a, b) => a - b)[Math.floor((list.length - 1) / 2)] as number;
const rows = contestants.map(({ name }) => {
  const all = found.get(name) as Rates[];
  return {
    name,
    prompt: median(all.map((each) => each.prompt)),
    decode: median(all.map((each) => each.decode)),
    all,
  };
});
console.log(`| | prompt of ${prompt} | ${decode} tokens one by one |\n|---|---:|---:|`);
for (const row of rows) console.log(`| ${row.name} | ${row.prompt.toFixed(0)} | ${row.decode.toFixed(1)} |`);
if (values.json)
  writeFileSync(
    values.json,
    `${JSON.stringify(
      {
        date: new Date().toISOString().slice(0, 10),
        what: `Tokens a second of a prompt of ${prompt} tokens and of ${decode} tokens decoded one by one from an empty cache, in turns, in both orders, each in a process of its own after one that does not count; medians. llama.cpp's q4_0 rounds activations to int8.`,
        command: `node dist/bench/generate/peers.js ${process.argv.slice(2).join(' ')}`,
        machine: { processor: processorName(), threads: Number(threads), isa: addon().isa() },
        rows,
      },
      undefined,
      1,
    )}\n`,
  );
