import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, before, test } from 'node:test';
import type { Command } from 'commander';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { buildProgram, main } from '../../../src/cli/main.js';
import { model, root } from './lpq.js';
import { SlowClock } from './slow-clock.js';

/** Seconds that a terminal may show nothing new. */
const LONGEST = 2;

const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-silence-'));
const at = (name: string) => path.join(dir, name);
const CPU = ['--device', 'cpu', '--threads', '2'];
const RTN = ['--bits', '4', '--method', 'rtn', ...CPU];

/** What each command is made to do, and what it must tell of it. */
const PHASES: readonly (readonly [command: string, args: readonly string[], told: readonly RegExp[]])[] = [
  [
    'quantize',
    [model, '-o', at('gptq'), '--bits', '4', '--samples', '2', '--seq-len', '32', '--calib', at('text.txt'), ...CPU],
    [/opening the tokenizer/, /encoding text\.txt/, /quantize .*%/, /waiting for the disk/],
  ],
  [
    'quantize',
    [model, '-o', at('stopped'), ...RTN, '--no-eval', '--resume'],
    [/checking finished blocks, block, \d of \d/],
  ],
  ['quantize', [model, '-o', at('timed'), ...RTN, '--dry-run', '--timed'], [/quantizing block \d to time it/]],
  ['pack', [at('quantized'), '--target', 'sm90', '-o', at('repacked'), ...CPU], [/pack .*%/, /waiting for the disk/]],
  ['pack', [at('foreign'), '--target', 'gguf', '-o', at('gguf'), ...CPU], [/read .*%/, /hashing .*, \d+ of \d+/]],
  ['merge', [at('parts')], [/merge .*%/, /waiting for the disk/]],
  ['verify', [at('packed'), ...CPU], [/hashing model\.embed_tokens\.weight, \d+ of \d+/, /verify .*%/]],
  [
    'verify',
    [at('packed'), '--against', at('quantized'), '--end-to-end', '--text', at('text.txt'), ...CPU],
    [/encoding text\.txt/, /comparing batch/, /writing token, \d+ of \d+/],
  ],
  ['verify', [at('foreign'), ...CPU], [/zero points of/, /decode .*%/, /check .*%/]],
  [
    'eval',
    [at('quantized'), '--text', at('text.txt'), '--ctx', '32', ...CPU],
    [
      /opening the tokenizer/,
      /encoding text\.txt/,
      /loading model\.embed_tokens\.weight/,
      /eval .*%/,
      /scoring window/,
    ],
  ],
  [
    'compare',
    [model, at('quantized'), '--text', at('text.txt'), '--ctx', '32', ...CPU],
    [/encoding text\.txt/, /measure .*%/],
  ],
  ['push', [at('quantized'), 'someone/model'], []],
  ['eval', [model, '--choices', at('choices.jsonl'), ...CPU], [/encoding choices\.jsonl, \d+ of \d+/, /eval .*%/]],
  [
    'generate',
    [at('packed'), '--prompt', 'The sea', '--prompt', 'A whale', '--max-tokens', '3', ...CPU],
    [/encoding prompts/, /loading/, /load .*%/, /reading prompts/, /writing 2 texts, token, \d of \d/],
  ],
  ['logits', [model, '--ids', at('ids.safetensors'), '-o', at('logits.safetensors'), ...CPU], [/block \d of 4, batch/]],
  ['report', [at('quantized')], []],
  ['inspect', [model, '--check'], [/opening model\.safetensors/, /check .*%/]],
  ['doctor', [at('quantized')], [/hashing .*, \d+ of \d+/]],
  ['doctor', [at('packed')], [/hashing .*, \d+ of \d+/]],
  ['doctor', [at('foreign')], [/scales of .*, \d+ of \d+/]],
  ['doctor', [], []],
  ['explain', ['LPQ_FILE'], []],
  ['completion', ['bash'], []],
  ['tilus show', ['matmul'], []],
  ['tilus compile', ['matmul', '-o', at('matmul.cu')], []],
  [
    'tilus run',
    [
      ...['sum', '--set', 'N=32', '--set', 'SPLIT=1', '--in', `parts_ptr=${at('parts.bin')}`, '--in', 'm=4'],
      ...['--in', `bias_ptr=${at('parts.bin')}`, '--out', `c_ptr=${at('sum.bin')}:256`],
    ],
    [/run .*%/],
  ],
  [
    'bench model',
    ['--blocks', '1', '--weights', 'dense', '--prefill', '8', '--m', '1', '--context', '16', '--passes', '1', ...CPU],
    [/model .*%/, /recording/, /timing/, /timing \S+ alone, \d+ of \d+/],
  ],
  ['bench kernels', ['--shapes', '64x128', '--m', '1', '--passes', '1', ...CPU], [/kernels .*%/]],
  ['bench attention', ['--contexts', '1x256', '--passes', '1', ...CPU], [/attention .*%/]],
  ['bench pack', ['--shape', '128x128', '--layouts', 'marlin', '--passes', '1', ...CPU], [/marlin 4 bits, \d of \d/]],
  [
    'bench pack',
    ['--model', 'tiny', '--blocks', '1', '--rounds', '1', ...CPU],
    [/quantize .*%/, /waiting for the disk/, /reading and writing/],
  ],
  ['bench quantize', ['--shape', 'tiny', '--layers', '1', ...RTN], [/quantize .*%/]],
  ['bench rtn', ['--shape', 'tiny', '--rounds', '1', ...CPU], [/quantize .*%/, /reading and writing/]],
];

const unheard = { isTTY: false, on() {}, write: (_: string, done?: unknown) => typeof done === 'function' && done() };
const quiet = { stdout: unheard, stderr: unheard } as unknown as Parameters<typeof main>[1];

async function make(...args: string[]): Promise<void> {
  assert.equal(await main([...args, ...CPU], quiet), 0, args.join(' '));
}

/** A run that is stopped when its second block has been begun. */
async function stop(): Promise<void> {
  const write = (line: string, done?: unknown) => {
    if (line.includes('layers.2.')) process.emit('SIGINT');
    return unheard.write(line, done);
  };
  const stderr = { ...unheard, write } as unknown as NodeJS.WriteStream;
  assert.equal(
    await main(['quantize', model, '-o', at('stopped'), ...RTN, '--no-eval', '--verbose'], {
      ...quiet,
      stderr,
    } as typeof quiet),
    130,
  );
}

let clock: SlowClock;

before(async () => {
  const book = readFileSync(path.join(root, 'share', 'text', 'books-valid.txt'), 'utf8');
  writeFileSync(at('text.txt'), book.slice(0, 2000));
  writeFileSync(at('parts.bin'), new Uint8Array(4 * 4 * 32));
  writeFileSync(
    at('choices.jsonl'),
    '{"context": "The sea was", "choices": [" calm", " loud"], "answer": 0}\n'.repeat(3),
  );
  const ids = { name: 'input_ids', dtype: 'I32', shape: [2, 8], data: new Int32Array(16).fill(5) } as const;
  await writeSafetensors(at('ids.safetensors'), [ids]);
  await make('quantize', model, '-o', at('quantized'), '--bits', '4', '--method', 'rtn', '--no-eval');
  await make('pack', at('quantized'), '--target', 'sm90', '-o', at('packed'));
  await make('pack', at('quantized'), '--target', 'gptq', '-o', at('foreign'));
  rmSync(path.join(at('foreign'), 'lpq.json'));
  for (const part of ['0/2', '1/2'])
    await make('quantize', model, '-o', at('parts'), '--bits', '4', '--method', 'rtn', '--no-eval', '--shard', part);
  await stop();
  clock = await SlowClock.start();
});

after(() => {
  clock?.stop();
  rmSync(dir, { recursive: true, force: true });
});

for (const [command, args, told] of PHASES)
  test(`nothing is silent: ${command} ${args.map((arg) => path.basename(arg)).join(' ')}`, async () => {
    const shown = await clock.run([...command.split(' '), ...args]);
    assert.ok(shown.code === 0 || command === 'doctor', shown.text);
    const silence = `${shown.silence.toFixed(1)} s of silence after '${shown.before}'`;
    assert.ok(shown.silence <= LONGEST, silence);
    for (const what of told) assert.match(shown.text, what);
  });

test('every command is among them', async () => {
  const paths = (of: Command, above = ''): string[] =>
    of.commands.flatMap((each) =>
      each.commands.length > 0 ? paths(each, `${above}${each.name()} `) : [`${above}${each.name()}`],
    );
  // A dialogue is not, nor are those that need a device.
  assert.deepEqual(
    paths(await buildProgram()).filter((each) => !PHASES.some(([command]) => command === each)),
    ['init', 'bench tilus', 'tilus tune'],
  );
});
