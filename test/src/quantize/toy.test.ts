import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { scratch } from '../../formats/scratch.js';
import { filesOf, runIn, toyTree } from '../../toy-tree.js';
import { METHOD, TABLES } from './toy-files.js';

test('a new method touches at most 6 files; the command line, recipes, records and schemas know it', () => {
  assert.ok(filesOf(METHOD) + TABLES.length <= 6, `a method touches ${filesOf(METHOD) + TABLES.length} files`);
  const dir = scratch();
  const tree = toyTree(dir, METHOD);
  const model = path.join(tree, 'share', 'tiny-llama');
  const recipe = path.join(dir, 'recipe.yaml');
  writeFileSync(recipe, 'method: toy\nbits: 3\ntoyClips: 2\nsamples: 2\nseqLen: 24\n');
  const errors = (name: string, ...options: readonly string[]) => {
    const output = path.join(dir, name);
    runIn(tree, 'bin/lpq.js', 'quantize', model, '-o', output, ...options);
    return JSON.parse(readFileSync(path.join(output, 'lpq.json'), 'utf8'));
  };
  const { provenance, modules } = errors('toy', '--recipe', recipe);
  assert.equal(provenance.method, 'toy');
  assert.deepEqual([provenance.options.toyClips, provenance.options.clips, provenance.options.samples], [2, 2, 2]);
  assert.ok(
    Object.values(modules).every((module) => (module as { quality: { method: string } }).quality.method === 'toy'),
  );
  // With one clip, the whole range, nothing is left but rounding.
  const codes = (made: { modules: Record<string, { sha256: { codes: string } }> }) =>
    Object.values(made.modules).map(({ sha256 }) => sha256.codes);
  const rounded = codes(errors('rtn', '--method', 'rtn', '--bits', '3'));
  assert.deepEqual(codes(errors('one', '--recipe', recipe, '--toy-clips', '1')), rounded);
  assert.notDeepEqual(codes({ modules }), rounded);

  const help = runIn(tree, 'bin/lpq.js', 'quantize', '--help');
  assert.match(help, /--method <name>\s+gptq, rtn,[^\]]*toy/);
  assert.match(help, /--toy-clips <n>/);
  assert.match(runIn(tree, 'bin/lpq.js', 'bench', 'quantize', '--help'), /--toy-clips <n>/);
  assert.match(runIn(tree, 'bin/lpq.js', 'completion', 'bash'), /--method\) vals='gptq rtn fmpq toy'/);
  const idle = spawnSync(
    process.execPath,
    ['bin/lpq.js', 'quantize', model, '-o', 'never', '--bits', '4', '--toy-clips', '2'],
    { cwd: tree, encoding: 'utf8' },
  );
  assert.equal(idle.status, 2);
  assert.match(idle.stderr, /--toy-clips has no effect with --method gptq/);
  assert.match(idle.stderr, /use --method toy/);
  const schemas =
    "import { publishedSchemas } from './dist/src/cli/schemas.js'; console.log(JSON.stringify(publishedSchemas()))";
  const { properties } = JSON.parse(runIn(tree, '--input-type=module', '-e', schemas))['recipe.schema.json'];
  assert.deepEqual(properties.toyClips, {
    type: 'integer',
    minimum: 1,
    maximum: 9,
    description: '--toy-clips: an integer from 1 to 9',
  });
});
