import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';

/** The tables of a card's peers, of a result made up here. */

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const script = (name: string) => import(pathToFileURL(path.join(root, 'scripts', name)).href);
const { cardFigures } = (await script('card-figures.mjs')) as { cardFigures(found: unknown): string[] };
const { found } = (await script('peer-cells.mjs')) as { found(file: string, data: unknown): unknown };
const { cardRows } = (await script('readme.mjs')) as { cardRows(found: unknown): string[] };

const cell = (model: string, tool: string, facts: object) => ({
  ...{ name: `${model}-w4-${tool}`, model, tool, bits: 4, args: [], version: `${tool} 1`, rounds: { 0: {} } },
  ...{ seconds: 30, peakBytes: 2e9, deviceBytes: 8e9 },
  ...facts,
});
const RESULT = {
  machine: { processor: 'A CPU', threads: 16, gpu: 'NVIDIA H200' },
  without: 'SmolLM2-135M: its checkpoint was not there',
  also: 'AutoRound ran elsewhere.',
  cells: [
    cell('llama-8b', 'lpq', { seconds: 36, deviceBytes: 20e9 }),
    cell('llama-8b-two-blocks', 'lpq', { blocks: 2, of: 32, extrapolatedSeconds: 99 }),
    cell('llama-8b-four-blocks', 'gptqmodel', {
      ...{ blocks: 4, of: 32, extrapolatedSeconds: 360, extrapolatedFrom: [2, 4] },
    }),
    cell('llama-8b-two-blocks', 'gptqmodel', { blocks: 2, of: 32, extrapolatedSeconds: 400 }),
    cell('llama-8b-four-blocks', 'llmcompressor', { failed: 'why', seconds: undefined }),
    cell('llama-8b-two-blocks', 'lpq-tune200', { blocks: 2, of: 32, extrapolatedSeconds: 720, seconds: 30 }),
    cell('llama-8b-two-blocks', 'autoround-200', { blocks: 2, of: 32, extrapolatedSeconds: 480, seconds: 20 }),
    cell('tiny-llama', 'lpq', { perplexity: { lpq: 26.5 } }),
    cell('tiny-llama', 'llmcompressor', { perplexity: { lpq: 26 } }),
  ],
};

test('a card has seconds, memory and a price of each tool, and says how they were had', () => {
  const lines = cardFigures(found('card.json', RESULT));
  const has = (line: string) => assert.ok(lines.includes(line), `${line}\n${lines.join('\n')}`);
  has('| lpq | 36 | 20.0 | 2.00 | $0.04 | measured |');
  has('| GPT-QModel | 360 | 8.0 | 2.00 | $0.35 | from 2 and 4 of 32 blocks, on a line |');
  has('| LLM Compressor, GPTQ | fails | | | | |');
  has('| lpq `--tune 200` | 30.0 | 8.0 | 2.00 |');
  has('| lpq | 30 | 8.0 | 26.50 |');
  has('AutoRound ran elsewhere.');
  has('Left out: SmolLM2-135M: its checkpoint was not there.');
});

test('where lpq loses is said for each figure, and nothing else is', () => {
  const lines = cardFigures(found('card.json', RESULT)).filter((line) => line.startsWith('- ') && line.includes(':'));
  assert.deepEqual(lines, [
    '- the 8B model, W4: lpq takes 20.0 GB of the card, GPT-QModel 8.0 GB of the card.',
    '- two blocks of it, W4: lpq `--tune 200` takes 30 s, AutoRound, 200 steps 20 s.',
    '- a trained Llama of 4 blocks, W4: lpq has a perplexity of 26.50, LLM Compressor, GPTQ 26.00.',
  ]);
});

test('no result of a card, no section; the README has a row for what solves and one for what trains', () => {
  assert.deepEqual([cardFigures(undefined), cardRows(undefined)], [[], []]);
  const [solved, trained] = cardRows(found('card.json', RESULT)) as [string, string];
  assert.match(
    solved,
    /\| 36 s, 20\.0 GB, \$0\.04 \| GPT-QModel 360 s \(extrapolated\), .*; LLM Compressor, GPTQ fails \|/,
  );
  assert.match(trained, /of two blocks of the shape .* \| 30 s, 8\.0 GB \| AutoRound, 200 steps 20 s, 8\.0 GB \|/);
});
