import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import test from 'node:test';
import { GGUF_NAMES } from '../../formats/gguf/architectures/index.js';
import { architectureOf, ARCHITECTURES as TABLES } from '../../src/model/architectures/index.js';
import { refusedSites } from '../../src/model/folded.js';
import { foldSites } from '../../src/model/folds.js';
import { isWritten } from '../../src/model/gguf/model.js';
import { openModel, planSource } from '../../src/model/graph.js';
import { scaleSites } from '../../src/model/scale-sites.js';
import { ARCHITECTURES, GOLDENS, plainSource, ROOT } from '../src/model/fixtures.js';
import { DENSE, MIXTURES } from '../src/quantize/linears.js';
import { tailOf } from './families.js';

/** docs/architectures.md, whose table says what the tests of methods and folds go through. */
const text = readFileSync(path.join(ROOT, 'docs', 'architectures.md'), 'utf8');

function row(name: string): string {
  const source = plainSource(path.join(ARCHITECTURES, name));
  const graph = openModel(source);
  const plan = planSource(source);
  const linears = graph.blocks.flatMap(({ stages }) =>
    stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)),
  );
  assert.equal(linears.length, DENSE[name] ?? MIXTURES[name], name);
  const all = foldSites(plan);
  const refused = refusedSites(source, graph, all);
  const sites = all.filter(({ id }) => !refused.has(id));
  const kinds = ['residual', 'value', 'hidden', 'latent']
    .map((kind) => [kind, sites.filter((site) => site.kind === kind).length] as const)
    .filter(([, count]) => count > 0)
    .map(([kind, count]) => (count > 1 ? `${count} ${kind}` : kind));
  return `| ${[
    name,
    architectureOf(source.config, name).className,
    linears.length,
    kinds.join(', '),
    scaleSites(plan).length,
    isWritten(source.config) ? 'yes' : 'no',
  ].join(' | ')} |`;
}

test('docs/architectures.md lists every architecture with what is true of it', () => {
  assert.deepEqual([...GOLDENS].sort(), [...Object.keys(DENSE), ...Object.keys(MIXTURES)].sort());
  const rows = text
    .split('\n')
    .filter((line) => /^\| [\w-]+ \| \w+(ForCausalLM|LMHeadModel|ForConditionalGeneration) \|/.test(line));
  assert.equal(rows.join('\n'), GOLDENS.map(row).join('\n'));
});

test('docs/architectures.md lists every family with an example, what is quantized and what is carried', () => {
  const rows = text.split('\n').flatMap((line) => {
    const found = /^\| ([^|]+) \| ([^|]+) \| `(\w+)` \| ([^|]+) \| ([^|]+) \|$/.exec(line);
    return found ? [found.slice(1)] : [];
  });
  assert.deepEqual(
    rows.map(([, , type]) => type).sort(),
    [...new Set(TABLES.map(({ modelType }) => modelType))].sort(),
  );
  for (const [family, example, type, quantized, carried] of rows) {
    assert.match(String(example), /^(\S.* )?[\w-]+\/[\w.-]+$|^models saved as `\w+`$/, family);
    for (const table of TABLES.filter(({ modelType }) => modelType === type))
      assert.deepEqual([quantized, carried], tailOf(table), `${type}: as tailOf() says`);
  }
});

test('the tests that docs/architectures.md names are there, and go through its architectures', () => {
  const files = [...text.matchAll(/test\/[\w/-]+\.test\.ts/g)].map(([file]) => file);
  assert.ok(files.length >= 5);
  for (const file of files)
    assert.match(readFileSync(path.join(ROOT, file), 'utf8'), /\bGOLDENS\b|Object\.entries\((DENSE|MIXTURES)\)/, file);
});

test('docs/architectures.md lists what is read from GGUF', () => {
  const flat = text.replaceAll('\n', ' ');
  const listed = /names: (llama.*?)\(docs\/foreign\.md\)/.exec(flat)?.[1]?.replace(' (with experts, too)', '') ?? '';
  assert.deepEqual(listed.trim().split(', ').toSorted(), GGUF_NAMES.toSorted());
});

/** The table of a section, whose columns are `what` and `why`. */
function reasons(section: string): Map<string, string> {
  const part = text.split(`## ${section}`)[1]?.split('\n## ')[0] ?? '';
  const rows = part.split('\n').flatMap((line) => {
    const found = /^\| ([^|]+) \| ([^|]+) \|$/.exec(line);
    return found && found[1] !== 'what' ? [[found[1], found[2]] as [string, string]] : [];
  });
  return new Map(rows);
}

test('docs/architectures.md says what stays in 16 bits of recurrent layers, as the tables do', () => {
  const carried = new Map(TABLES.flatMap(({ recurrent }) => Object.entries(recurrent?.carried ?? {})));
  assert.deepEqual(reasons('What stays in 16 bits of recurrent layers'), carried);
});

test('docs/architectures.md says what stays in 16 bits of sparse attention, as the tables do', () => {
  const carried = new Map(
    TABLES.flatMap(({ mla, attention, compressed, hyper }) =>
      [(mla ?? attention).indexer, compressed, hyper].flatMap((part) => Object.entries(part?.carried ?? {})),
    ),
  );
  assert.deepEqual(reasons('What stays in 16 bits of sparse attention'), carried);
});
