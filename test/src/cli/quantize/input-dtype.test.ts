import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CALIB, lpq, model, scratch } from '../lpq.js';

const FEW = [...CALIB, '--samples', '2', '--seq-len', '32'];

async function ran(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await lpq(args);
  assert.equal(code, 0, stderr);
  return stdout + stderr;
}

const perplexityOf = async (dir: string, text: string) =>
  JSON.parse((await ran('eval', dir, '--text', text, '--ctx', '64', '--json')).trim().split('\n').at(-1)!)
    .ppl as number;

for (const [dtype, ...more] of [['mxfp4'], ['nvfp4', '--input-scales']] as const)
  test(`--input-dtype ${dtype}: recorded, computed by eval and in training, and told of by pack`, async (t) => {
    const dir = scratch(t);
    const [text, q, plain, trained] = ['text', 'q', 'plain', 'trained'].map((name) => path.join(dir, name)) as [
      string,
      string,
      string,
      string,
    ];
    writeFileSync(text, 'The ship went down the river, and the old man said nothing for a long while. '.repeat(12));
    const base = ['quantize', model, '--dtype', dtype, ...more, ...FEW, '--no-report', '--no-eval'];
    await ran(...base, '-o', plain);
    await ran(...base, '-o', q, '--input-dtype', dtype);
    await ran(...base, '-o', trained, '--input-dtype', dtype, '--tune', '2');
    const { modules } = JSON.parse(readFileSync(path.join(q, 'lpq.json'), 'utf8')) as {
      modules: Record<string, { inputType?: string }>;
    };
    for (const { inputType } of Object.values(modules)) assert.equal(inputType, dtype);
    const [rounded, exact] = [await perplexityOf(q, text), await perplexityOf(plain, text)];
    assert.notEqual(rounded, exact);
    assert.ok(Number.isFinite(await perplexityOf(trained, text)));
    const told = await ran('pack', q, '--target', 'compressed-tensors', '-o', path.join(dir, 'packed'));
    assert.match(told, new RegExp(`were solved for inputs rounded to ${dtype}`));
  });

test('--input-dtype is refused where it has no effect, no scale, or another meaning', async (t) => {
  const made = ['quantize', model, '-o', path.join(scratch(t), 'never')];
  for (const [args, says] of [
    [['--bits', '4', '--input-dtype', 'int4'], /--input-dtype does not take 'int4'[\s\S]*mxfp4/],
    [['--dtype', 'nvfp4', '--input-dtype', 'nvfp4'], /needs a scale for each input[\s\S]*--input-scales/],
    [['--bits', '4', '--method', 'fmpq', '--input-dtype', 'mxfp4'], /--input-dtype does not go with --method fmpq/],
    [['--bits', '4', '--mtp', '--input-dtype', 'mxfp4'], /--input-dtype does not go with --mtp/],
    [['--bits', '4', '--stats', 'x', '--input-dtype', 'mxfp4'], /--input-dtype needs a calibration text/],
  ] as const) {
    const { code, stderr } = await lpq([...made, ...args]);
    assert.equal(code, 2, stderr);
    assert.match(stderr, says);
  }
});
