import assert from 'node:assert/strict';
import { test } from 'node:test';
import { parseRecipe } from '../../../../src/cli/quantize/recipe.js';
import { schemesFrom } from '../../../../src/cli/quantize/schemes.js';
import { checkFlags, mergeSettings, type Settings } from '../../../../src/cli/quantize/settings.js';
import { LpqError } from '../../../../src/core/error.js';
import { printGranularity } from '../../../../src/core/granularity.js';

function refused(run: () => unknown): LpqError {
  try {
    run();
  } catch (error) {
    assert.ok(error instanceof LpqError, String(error));
    return error;
  }
  assert.fail('nothing was refused');
}

// [recipe, the place that the message must name, what it must say]
const BROKEN: readonly (readonly [unknown, string, RegExp])[] = [
  [[], 'r.json', /expected/i],
  [{ bit: 4 }, '/bit', /is no setting/],
  [{ bits: 9 }, '/bits', /has an invalid value/],
  [{ bits: '4' }, '/bits', /has an invalid value/],
  [{ bits: 4, dtype: 'u4' }, 'r.json', /both bits and dtype/],
  [{ method: 'awq' }, '/method', /has an invalid value/],
  [{ rules: {} }, '/rules', /expected/i],
  [{ rules: [{ skip: true }] }, '/rules/0/match', /expected/i],
  [{ rules: [{ match: 'a' }] }, '/rules/0', /says nothing/],
  [{ rules: [{ match: 'a', skip: true, bits: 8 }] }, '/rules/0', /both skips/],
  [{ rules: [{ match: 'a', skip: false }] }, '/rules/0/skip', /expected/i],
  [{ rules: [{ match: '(', skip: true }] }, '/rules/0/match', /regular expression/],
  [
    {
      rules: [
        { match: 'a', skip: true },
        { match: 'b', damp: 1 },
      ],
    },
    '/rules/1/damp',
    /is no setting/,
  ],
  [{ rules: [{ match: 'a', bits: 4, dtype: 'u4' }] }, '/rules/0', /both bits and dtype/],
];

for (const [recipe, place, says] of BROKEN)
  test(`the recipe ${JSON.stringify(recipe)} is refused at ${place}`, () => {
    const error = refused(() => parseRecipe('r.json', recipe));
    assert.equal(error.code, 'LPQ_RECIPE');
    assert.ok(error.message.includes(place), error.message);
    assert.match(error.message, says);
  });

test('a rule whose scheme contradicts itself is named when the schemes are made', () => {
  const recipe = parseRecipe('r.json', {
    rules: [
      { match: 'x', skip: true },
      { match: 'y', dtype: 'u9' },
    ],
  });
  const error = refused(() => schemesFrom(mergeSettings({ bits: 4 }, recipe.settings), recipe.rules));
  assert.equal(error.code, 'LPQ_RECIPE');
  assert.match(error.message, /^r\.json at \/rules\/1: 'u9'/);
});

test('rules override the run field by field; naming a type in either form replaces it', () => {
  const recipe = parseRecipe('r.json', {
    groupSize: 64,
    rules: [
      { match: 'a', bits: 8 },
      { match: 'b', groupSize: 'channel' },
      { match: 'c', dtype: 'f6e3m2', scaleDtype: 'bf16' },
      { match: 'd', symmetric: false },
      { match: 'e', skip: true },
    ],
  });
  const { scheme, rules } = schemesFrom(mergeSettings({ dtype: 'i3' }, recipe.settings), recipe.rules);
  const print = (s: typeof scheme | 'skip') =>
    s === 'skip' ? s : [s.type.name, printGranularity(s.granularity), s.scaleDtype, s.symmetric].join(' ');
  assert.equal(print(scheme), 'i3 64 f16 true');
  assert.deepEqual(
    rules.map((rule) => print(rule.scheme)),
    ['i8 64 f16 true', 'i3 channel f16 true', 'f6e3m2 64 bf16 true', 'i3 64 f16 false', 'skip'],
  );
});

test('the command line goes before the recipe, the recipe before the defaults', () => {
  const merged = mergeSettings(checkFlags({ bits: 3, seed: 7 }), { dtype: 'f4e2m1', seed: 1, damp: 0.05 });
  assert.equal(merged.bits, 3);
  assert.equal(merged.dtype, undefined);
  assert.equal(merged.seed, 7);
  assert.equal(merged.damp, 0.05);
  assert.equal(merged.samples, 128);
  assert.equal(merged.method, 'gptq');
});

test('2:4 makes up for more of what lower layers changed, unless told otherwise', () => {
  const share = (flags: object, recipe: Settings = {}) =>
    mergeSettings(checkFlags({ bits: 4, ...flags }), recipe).gptaq;
  assert.deepEqual([share({}), share({ sparsity: 'none' }), share({ sparsity: '2:4' })], [0.25, 0.25, 0.5]);
  assert.deepEqual([share({ sparsity: '2:4', gptaq: 0 }), share({}, { sparsity: '2:4', gptaq: 1 })], [0, 1]);
  const { settings, rules } = parseRecipe('r.json', {
    sparsity: '2:4',
    rules: [{ match: 'down', sparsity: 'none', bits: 8 }],
  });
  const schemes = schemesFrom(mergeSettings({ bits: 4 }, settings), rules);
  assert.equal(schemes.scheme.sparsity, '2:4');
  const [rule] = schemes.rules;
  assert.ok(rule && rule.scheme !== 'skip');
  assert.equal(rule.scheme.sparsity, undefined);
  assert.match(refused(() => parseRecipe('r.json', { sparsity: '4:8' })).message, /\/sparsity has an invalid value/);
});

test('an option of calibration is refused with rtn on the command line, and harmless in a recipe', () => {
  for (const given of [
    { order: 'none' },
    { damp: 0.1 },
    { samples: 1 },
    { seqLen: 8 },
    { seed: 3 },
    { gptaq: 0 },
    { calibJoin: true },
  ]) {
    const flags = checkFlags({ bits: 4, method: 'rtn', ...given });
    assert.equal(refused(() => mergeSettings(flags, {})).code, 'LPQ_USAGE');
    assert.equal(mergeSettings(checkFlags({ bits: 4, method: 'rtn' }), checkFlags(given)).method, 'rtn');
  }
});

test('what a recipe says for another method is left out where the command line chose one, else refused', () => {
  const recipe: Settings = { method: 'fmpq', actScale: 0.5, order: 'none', damp: 0.1 };
  const fmpq = mergeSettings(checkFlags({ bits: 4 }), recipe);
  assert.deepEqual([fmpq.method, fmpq.actScale, fmpq.order, fmpq.scaleSign], ['fmpq', 0.5, 'none', 'either']);
  const gptq = mergeSettings(checkFlags({ bits: 4, method: 'gptq' }), recipe);
  assert.deepEqual([gptq.method, gptq.actScale, gptq.order, gptq.damp], ['gptq', undefined, 'none', 0.1]);
  const rtn = mergeSettings(checkFlags({ bits: 4, method: 'rtn' }), recipe);
  assert.deepEqual([rtn.order, rtn.gptaq, rtn.seed], [undefined, undefined, 0]);
  const error = refused(() => mergeSettings(checkFlags({ bits: 4 }), { method: 'gptq', actScale: 0.5 }));
  assert.match(`${error.message} ${error.hint}`, /--act-scale has no effect with --method gptq.*use --method fmpq/);
});
