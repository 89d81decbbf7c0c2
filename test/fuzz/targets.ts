import { copyFileSync, mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { Artifact } from '../../formats/artifact/read.js';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { openQuantized, SourceCheckpoint } from '../../formats/canonical/source.js';
import { GgufFile } from '../../formats/gguf/read.js';
import { GgufTensors } from '../../formats/gguf/source/tensors.js';
import { sourceTokenizer } from '../../formats/gguf/source/tokenizer.js';
import { readReport } from '../../formats/report/read.js';
import { Checkpoint } from '../../formats/safetensors/checkpoint.js';
import { SafetensorsFile } from '../../formats/safetensors/read.js';
import { findShards } from '../../formats/shards/schema.js';
import { SavedStatistics } from '../../formats/statistics/read.js';
import { ChatTemplate } from '../../src/calibrate/chat.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { readRecipe } from '../../src/cli/quantize/recipe.js';
import { schemesFrom } from '../../src/cli/quantize/schemes.js';
import { mergeSettings } from '../../src/cli/quantize/settings.js';
import { openModel } from '../../src/model/graph.js';
import { readJournal } from '../../src/quantize/journal.js';
import { CALIB, lpq, model } from '../src/cli/lpq.js';

/** A reader of files that others wrote: one file of it is damaged, and reading must succeed or end in a designed error. */
export interface Target {
  readonly name: string;
  /** The file that is damaged; whole when `run` is called first. */
  readonly file: string;
  /** Damaged as a value too, not only as bytes. */
  readonly json: boolean;
  readonly run: () => void | Promise<void>;
}

/** Sources that the readers are pointed at: made once, by lpq itself, in `dir`. */
export async function makeTargets(dir: string): Promise<Target[]> {
  const place = (name: string) => path.join(dir, name);
  const ran = async (...args: string[]) => {
    const { code, stderr } = await lpq([...args, '--device', 'cpu', '--quiet']);
    if (code !== 0) throw new Error(`lpq ${args.join(' ')}: ${stderr}`);
  };
  await ran('quantize', model, '-o', place('q'), '--bits', '4', '--method', 'rtn', '--asym');
  await ran(
    'quantize',
    model,
    '-o',
    place('sym'),
    '--bits',
    '4',
    '--method',
    'rtn',
    '--group-size',
    '32',
    '--no-report',
  );
  await ran('quantize', model, '-o', place('sh'), '--bits', '4', '--method', 'rtn', '--shard', '0/1');
  await ran('quantize', model, '--save-stats', place('stats'), '--samples', '1', '--seq-len', '16', ...CALIB);
  await ran('pack', place('q'), '--target', 'marlin', '-o', place('packed'));
  await ran('pack', place('q'), '--target', 'gptq', '-o', place('gptq'));
  await ran('pack', place('sym'), '--target', 'gguf', '-o', place('gguf'));
  const source = directoryOf(place('source'), ['config.json', 'tokenizer.json', 'tokenizer_config.json']);
  const indexed = place('indexed');
  const ggufSource = place('source.gguf');
  copyFileSync(path.join(place('gguf'), 'model.gguf'), ggufSource);
  mkdirSync(indexed);
  symlinkSync(path.join(model, 'model.safetensors'), path.join(indexed, 'model-00001-of-00001.safetensors'));
  const names = [...Checkpoint.open(model).names()];
  const map = Object.fromEntries(names.map((name) => [name, 'model-00001-of-00001.safetensors']));
  const index = path.join(indexed, 'model.safetensors.index.json');
  writeFileSync(index, JSON.stringify({ metadata: { total_size: 7348736 }, weight_map: map }));
  const weights = place('w.safetensors');
  writeFileSync(weights, smallOf(readFileSync(path.join(model, 'model.safetensors'))));
  const yaml = place('r.yaml');
  writeFileSync(
    yaml,
    'bits: 4\ngroupSize: 64\ncalib: [a.txt:2]\nrules:\n  - match: q_proj$\n    bits: 8\n  - {match: x, skip: true}\n',
  );
  const recipe = place('r.json');
  writeFileSync(recipe, JSON.stringify({ bits: 4, damp: 0.1, rules: [{ match: 'v_proj', dtype: 'f6e3m2' }] }));
  const journal = place('journal.ndjson');
  const header = { format: 'lpq-journal', version: 1, run: { given: { a: 1 }, derived: {} } };
  const quality = { method: 'rtn', bitsPerWeight: 4, relativeError: null, damp: null };
  const line = { block: 0, modules: [{ name: 'm', scheme: 'i4', quality, tokens: null, seconds: 1, sha256: {} }] };
  writeFileSync(journal, `${JSON.stringify(header)}\n${JSON.stringify(line)}\n`);
  const settings = (file: string) => {
    const found = readRecipe(file);
    schemesFrom(mergeSettings({ bits: 4 }, found.settings), found.rules);
  };
  const closing = (open: () => { close(): void }) => () => open().close();
  const target = (name: string, file: string, run: Target['run'], json = file.endsWith('.json')): Target => ({
    name,
    file,
    json,
    run,
  });
  return [
    target('safetensors', weights, () => {
      const file = SafetensorsFile.open(weights);
      for (const name of file.names()) file.tensor(name).dispose();
      file.close();
    }),
    target(
      'index',
      index,
      closing(() => Checkpoint.open(indexed)),
    ),
    target('config', path.join(source, 'config.json'), () => {
      const checkpoint = SourceCheckpoint.open(source);
      try {
        openModel(checkpoint);
      } finally {
        checkpoint.close();
      }
    }),
    target(
      'tokenizer',
      path.join(source, 'tokenizer.json'),
      async () => void (await (await openTokenizer(source))('The whale, 12 boats.\n')),
    ),
    target('tokenizer config', path.join(source, 'tokenizer_config.json'), async () => {
      await (await openTokenizer(source))('The whale');
      await ChatTemplate.open(source);
    }),
    target('recipe', yaml, () => settings(yaml)),
    target('recipe as JSON', recipe, () => settings(recipe)),
    target(
      'canonical',
      path.join(place('q'), 'lpq.json'),
      closing(() => CanonicalCheckpoint.open(place('q'))),
    ),
    target(
      'artifact',
      path.join(place('packed'), 'lpq.json'),
      closing(() => Artifact.open(place('packed'))),
    ),
    target('foreign config', path.join(place('gptq'), 'config.json'), async () =>
      (await openQuantized(place('gptq'), { blank: true })).close(),
    ),
    target(
      'gguf',
      path.join(place('gguf'), 'model.gguf'),
      closing(() => GgufFile.open(path.join(place('gguf'), 'model.gguf'))),
    ),
    target('gguf source', ggufSource, () => {
      const tensors = GgufTensors.open([ggufSource]);
      try {
        const { facts, config } = tensors.model;
        sourceTokenizer(facts, config);
        for (const name of tensors.names()) tensors.tensor(name).dispose();
      } finally {
        tensors.close();
      }
    }),
    target(
      'statistics',
      path.join(place('stats'), 'lpq.json'),
      closing(() => SavedStatistics.open(place('stats'))),
    ),
    target('shard', path.join(`${place('sh')}.shard-0-of-1`, 'shard.json'), () => void findShards(place('sh'))),
    target('report', place('q.report.json'), () => void readReport(place('q.report.json'))),
    target('journal', journal, () => void readJournal(journal), false),
  ];
}

/** A model whose weights are a link and whose other files are its own. */
function directoryOf(dir: string, own: readonly string[]): string {
  mkdirSync(dir);
  symlinkSync(path.join(model, 'model.safetensors'), path.join(dir, 'model.safetensors'));
  for (const name of own) writeFileSync(path.join(dir, name), readFileSync(path.join(model, name)));
  return dir;
}

/** The tensors of at most 4 KiB of a safetensors file, as one: what is read a million times is short. */
function smallOf(file: Buffer): Buffer {
  const data = 8 + Number(file.readBigUInt64LE(0));
  const header = JSON.parse(file.toString('utf8', 8, data)) as Record<string, { data_offsets: [number, number] }>;
  const parts: Buffer[] = [];
  let at = 0;
  const kept = Object.entries(header).flatMap(([name, entry]) => {
    if (entry.data_offsets === undefined) return [[name, entry]];
    const [from, to] = entry.data_offsets;
    if (to - from > 2 ** 12) return [];
    parts.push(file.subarray(data + from, data + to));
    const start = at;
    at += to - from;
    return [[name, { ...entry, data_offsets: [start, at] }]];
  });
  const json = Buffer.from(JSON.stringify(Object.fromEntries(kept)));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, ...parts]);
}
