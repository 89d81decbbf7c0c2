import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { cpSync, existsSync, mkdirSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { lpq, model, scratch } from './lpq.js';

const SMALL = ['--bits', '4', '--method', 'rtn', '--no-report'];

test('paths that cannot be written or read: each sentence blames what is wrong, in words of its own', async (t) => {
  const dir = scratch(t);
  const at = (name: string) => path.join(dir, name);
  const pipe = at('pipe.txt');
  execFileSync('mkfifo', [pipe]);
  mkdirSync(at('folder'));
  /** The bundled model, with a pipe in the place of one of its files. */
  const piped = (file: string) => {
    const place = at(`piped-${file}`);
    cpSync(model, place, { recursive: true });
    rmSync(path.join(place, file));
    execFileSync('mkfifo', [path.join(place, file)]);
    return place;
  };
  const odd = at('odd');
  cpSync(model, odd, { recursive: true });
  const config = path.join(odd, 'config.json');
  writeFileSync(config, JSON.stringify({ ...JSON.parse(readFileSync(config, 'utf8')), head_dim: 63 }));
  const long = 'x'.repeat(250);
  const text = at('t.txt');
  writeFileSync(text, 'Once upon a time. '.repeat(400));
  const weights = piped('model.safetensors');
  const cases: readonly (readonly [string[], number, RegExp])[] = [
    [['quantize', model, '-o', '/dev/null/x', ...SMALL], 3, /^LPQ_OUTPUT_WRITE .*\/dev\/null is not a directory/],
    [['quantize', model, '-o', '/proc/x/y', ...SMALL], 3, /^LPQ_OUTPUT_WRITE {2}\/proc\/x\/y .*accepts no new files/m],
    [['quantize', model, '-o', at(long), ...SMALL], 2, /^LPQ_USAGE {2}the name of the output is too long/],
    [
      ['quantize', model, '-o', at(`${long}${long}/out`), ...SMALL],
      2,
      /^LPQ_USAGE {2}a name in the path of the output is too long/,
    ],
    [['inspect', at(`${long}${long}`)], 4, /^LPQ_FILE {2}.*does not exist/],
    [['inspect', '/proc/x/y'], 4, /^LPQ_FILE {2}\/proc\/x\/y does not exist/],
    [['inspect', weights], 4, /^LPQ_FILE {2}.*model\.safetensors cannot be read: not a regular file/],
    [['quantize', weights, '-o', at('never'), ...SMALL], 4, /^LPQ_FILE {2}.*model\.safetensors cannot be read/],
    [['inspect', piped('config.json')], 4, /^LPQ_CONFIG {2}.*config\.json cannot be read: it is a pipe/],
    [['eval', piped('tokenizer.json'), '--text', text], 4, /^LPQ_CONFIG {2}.*tokenizer\.json.*it is a pipe/],
    [['inspect', odd], 4, /^LPQ_CONFIG {2}.*'head_dim' is odd/],
    [['eval', model, '--text', pipe], 4, /^LPQ_FILE {2}.*pipe\.txt cannot be read: it is a pipe; write it to a file/],
    [['eval', model, '--text', at('nowhere')], 4, /^LPQ_FILE {2}.*nowhere cannot be read: it does not exist$/],
    [['eval', model, '--text', at('folder')], 4, /^LPQ_FILE {2}.*folder cannot be read: it is a directory$/],
    [['quantize', model, '-o', at('never'), '--bits', '4', '--calib', pipe], 4, /^LPQ_FILE {2}.*it is a pipe/],
    [['quantize', model, '-o', at('never'), '--recipe', pipe], 4, /^LPQ_FILE {2}.*it is a pipe/],
    [['generate', model, '--prompts', pipe], 4, /^LPQ_FILE {2}.*it is a pipe/],
    [['report', at('folder')], 4, /^LPQ_/],
    [['verify', at('folder'), '--junit', at('folder')], 2, /^LPQ_OUTPUT_EXISTS {2}.*folder already exists/],
  ];
  for (const [args, code, sentence] of cases) {
    const ran = await lpq(args);
    assert.equal(ran.code, code, `${args.join(' ')}: ${ran.stderr}`);
    assert.match(ran.stderr, sentence, args.join(' '));
  }
  assert.ok(!existsSync(at('never')));
});

test('an output inside what is read is refused before any work, for every command that makes one', async (t) => {
  const dir = scratch(t);
  const source = path.join(dir, 'in');
  cpSync(model, source, { recursive: true });
  const q = path.join(dir, 'q');
  assert.equal((await lpq(['quantize', source, '-o', q, ...SMALL])).code, 0);
  symlinkSync('in', path.join(dir, 'link'));
  const before = readdirSync(source);
  for (const args of [
    ['quantize', source, '-o', path.join(source, 'out'), ...SMALL],
    ['quantize', path.join(dir, 'link'), '-o', path.join(source, 'out'), ...SMALL],
    ['quantize', source, '-o', path.join(dir, 'link', 'a', 'out'), ...SMALL],
    ['quantize', source, '--save-stats', path.join(source, 'stats')],
    ['quantize', source, '--save-stats', path.join(source, 'stats'), '-o', path.join(dir, 'out'), '--bits', '4'],
    ['quantize', source, '-o', path.join(q, 'out'), ...SMALL, '--redo', 'q_proj', '--from', q],
    ['pack', q, '--target', 'marlin', '-o', path.join(q, 'out')],
    ['pack', q, '--target', 'gguf-q4_k', '-o', path.join(source, 'out'), '--source', source],
  ]) {
    const ran = await lpq(args);
    assert.equal(ran.code, 2, `${args.join(' ')}: ${ran.stderr}`);
    assert.match(ran.stderr, /^LPQ_USAGE {2}the output .* lies inside .*, which lpq reads\n/);
  }
  assert.deepEqual(readdirSync(source), before);
  assert.deepEqual(readdirSync(dir).sort(), ['in', 'link', 'q']);
});

test('a cache with more exact tokens than anything keeps is bad input, in a manifest and as an option', async (t) => {
  const q = path.join(scratch(t), 'q');
  const given = ['quantize', model, '-o', q, ...SMALL, '--kv', '4'];
  const option = await lpq([...given, '--kv-residual', String(2 ** 40)]);
  assert.equal(option.code, 2, option.stderr);
  assert.match(option.stderr, /^LPQ_USAGE {2}--kv-residual .*1099511627776/);
  assert.equal((await lpq(given)).code, 0);
  const file = path.join(q, 'lpq.json');
  const manifest = JSON.parse(readFileSync(file, 'utf8'));
  manifest.kv.residual = 2 ** 40;
  writeFileSync(file, JSON.stringify(manifest));
  for (const args of [
    ['inspect', q],
    ['pack', q, '--target', 'marlin', '-o', `${q}-p`],
  ]) {
    const ran = await lpq(args);
    assert.equal(ran.code, 4, ran.stderr);
    assert.match(ran.stderr, /residual/);
  }
});
