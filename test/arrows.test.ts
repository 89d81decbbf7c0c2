import assert from 'node:assert/strict';
import { existsSync, readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..');

/** Who may import whom: the table of ARCHITECTURE.md. A room may always import itself. */
const ARROWS: Readonly<Record<string, readonly string[]>> = {
  core: [],
  binding: ['core'],
  layout: ['core', 'binding'],
  tilus: ['core', 'layout', 'binding'],
  formats: ['core', 'binding'],
  hub: ['core', 'binding'],
  stream: ['core', 'formats', 'hub'],
  model: ['core', 'formats', 'binding'],
  calibrate: ['core', 'formats', 'binding', 'model'],
  quantize: ['core', 'formats', 'binding', 'model', 'calibrate'],
  rtn: ['quantize', 'tune'],
  tune: ['core', 'binding', 'model', 'calibrate', 'quantize'],
  gptq: ['core', 'binding', 'quantize', 'calibrate', 'tune'],
  fmpq: ['core', 'formats', 'binding', 'model', 'calibrate', 'quantize', 'gptq'],
  pack: ['core', 'binding', 'layout', 'formats', 'model'],
  engines: ['core', 'quantize'],
  kv: ['core', 'binding', 'layout', 'formats'],
  eval: ['core', 'binding', 'model', 'calibrate', 'formats'],
  generate: ['core', 'formats', 'binding', 'model', 'calibrate', 'kv'],
  verify: ['core', 'binding', 'formats', 'model'],
  artifact: ['core', 'binding', 'formats', 'model', 'pack', 'verify'],
  report: ['core', 'formats'],
  bench: [
    ...[
      'core',
      'formats',
      'binding',
      'model',
      'stream',
      'calibrate',
      'quantize',
      'layout',
      'pack',
      'kv',
      'generate',
      'tilus',
    ],
  ],
  cli: [
    'core',
    'binding',
    'layout',
    'tilus',
    'formats',
    'model',
    'calibrate',
    'quantize',
    'rtn',
    'tune',
    'gptq',
    'fmpq',
    'pack',
    'engines',
    'kv',
    'eval',
    'generate',
    'verify',
    'artifact',
    'bench',
    'report',
    'hub',
    'stream',
  ],
};

/** Packages that belong to one room, or to a few. */
const PACKAGES: Readonly<Record<string, string>> = {
  commander: 'cli',
  'cli-progress': 'cli',
  execa: 'cli',
  yaml: 'cli formats',
  '@huggingface/jinja': 'calibrate',
  '@huggingface/tokenizers': 'calibrate',
  '@huggingface/hub': 'hub',
  undici: 'hub',
};

/** What the packer and the quantizers consist of: a verifier that shared any of it would prove nothing. */
const UNSHARED = ['layout', 'tilus', 'pack', 'kv', 'quantize', 'rtn', 'tune', 'gptq', 'fmpq'];

function roomOf(file: string): string {
  const parts = file.split('/');
  if (parts[0] === 'src') return parts[1] as string;
  return parts[0] === 'formats' || parts[0] === 'bench' ? parts[0] : 'binding';
}

function filesBelow(dir: string, ending: RegExp): string[] {
  return readdirSync(path.join(root, dir), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && ending.test(entry.name))
    .map((entry) => path.relative(root, path.join(entry.parentPath, entry.name)))
    .filter((file) => !file.startsWith('native/build/'))
    .sort();
}

/** Import specifiers of a module: static, dynamic and re-exports; comments do not count. */
function specifiers(text: string): string[] {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
  return [...code.matchAll(/(?:\bfrom\s*|\bimport\s*\(?\s*)'([^']+)'/g)].map((match) => match[1] as string);
}

function resolved(from: string, specifier: string): string {
  return path.join(path.dirname(from), specifier).replace(/\.js$/, '.ts');
}

/** Of those, what is loaded with the module itself: neither types nor what a function imports when it runs. */
function loaded(text: string): string[] {
  const code = text.replace(/\/\*[\s\S]*?\*\//g, '').replace(/^\s*\/\/.*$/gm, '');
  const statements = /^(?:import|export)\s(?!type\s)[^;']*?\bfrom\s*'([^']+)'|^import\s*'([^']+)'/gm;
  return [...code.matchAll(statements)].map(([, from, alone]) => (from ?? alone) as string);
}

/** Of bench, what `lpq bench` runs: the rest is programs of the repository's own. */
const PROGRAMS = /^bench\/(generate|native|peers|quality)\//;
const sources = ['src', 'formats', 'native', 'bench']
  .flatMap((dir) => filesBelow(dir, /\.ts$/))
  .filter((file) => !PROGRAMS.test(file));
const imports = new Map(
  sources.map((file) => {
    const text = readFileSync(path.join(root, file), 'utf8');
    const all = specifiers(text);
    return [
      file,
      {
        own: all.filter((s) => s.startsWith('.')).map((s) => resolved(file, s)),
        packages: all.filter((s) => !s.startsWith('.')),
        loaded: loaded(text)
          .filter((s) => s.startsWith('.'))
          .map((s) => resolved(file, s)),
      },
    ];
  }),
);

test('every import follows an arrow of ARCHITECTURE.md', () => {
  const wrong: string[] = [];
  for (const [file, { own }] of imports) {
    const room = roomOf(file);
    for (const target of own) {
      assert.ok(existsSync(path.join(root, target)), `${file} imports ${target}, which does not exist`);
      const other = roomOf(target);
      if (other !== room && !(ARROWS[room] ?? []).includes(other)) wrong.push(`${file} -> ${target}`);
    }
  }
  assert.deepEqual(wrong, []);
  // The reader of imports sees what is there: a pattern that matched nothing would pass everything.
  assert.ok([...imports.values()].reduce((sum, { own }) => sum + own.length, 0) > 300);
});

test('no modules load each other in a circle', () => {
  const done = new Set<string>();
  const circles: string[] = [];
  const visit = (file: string, above: readonly string[]): void => {
    if (above.includes(file)) circles.push([...above.slice(above.indexOf(file)), file].join(' -> '));
    else if (!done.has(file)) {
      for (const next of imports.get(file)?.loaded ?? []) visit(next, [...above, file]);
      done.add(file);
    }
  };
  for (const file of sources) visit(file, []);
  assert.deepEqual(circles, []);
  // Types alone may go round; the reader of statements tells the two apart.
  assert.deepEqual(
    loaded("import type { A } from './a.js';\nimport {\n  type B,\n  b,\n} from './b.js';\nimport './c.js';"),
    ['./b.js', './c.js'],
  );
});

test('every room has a row in ARCHITECTURE.md that names the same arrows', () => {
  const text = readFileSync(path.join(root, 'ARCHITECTURE.md'), 'utf8');
  const rooms = new Set(sources.map(roomOf));
  assert.deepEqual([...rooms].sort(), Object.keys(ARROWS).sort());
  for (const room of rooms) {
    const label = { binding: 'native/binding.ts', formats: 'formats/*', bench: 'bench' }[room] ?? `src/${room}`;
    const row = text.split('\n').find((line) => line.startsWith('|') && line.split('|')[1]?.includes(label));
    assert.ok(row, `ARCHITECTURE.md has no row for ${label}`);
    const allowed = (row.split('|')[3] as string).split(';')[0] as string;
    if (room === 'cli') assert.match(allowed, /everything/);
    else
      for (const other of Object.keys(ARROWS))
        assert.equal(
          (ARROWS[room] as readonly string[]).includes(other),
          new RegExp(`\\b${other}\\b`).test(allowed),
          `the row of ${label} and the test disagree about ${other}`,
        );
  }
});

test('nothing reachable from the verifier packs or quantizes', () => {
  const seen = new Set<string>();
  const visit = (file: string): void => {
    if (seen.has(file)) return;
    seen.add(file);
    for (const next of imports.get(file)?.own ?? []) visit(next);
  };
  for (const file of sources) if (roomOf(file) === 'verify') visit(file);
  assert.deepEqual(
    [...seen].filter((file) => UNSHARED.includes(roomOf(file))),
    [],
  );
});

test('packages stay in their rooms', () => {
  for (const [file, { packages }] of imports)
    for (const name of packages)
      assert.ok(PACKAGES[name]?.split(' ').includes(roomOf(file)) ?? true, `${file} imports ${name}`);
});

/** Includes of our own headers, as paths below native/. */
function includes(file: string): string[] {
  const text = readFileSync(path.join(root, file), 'utf8');
  return [...text.matchAll(/^\s*#\s*include\s*"([^"]+)"/gm)].map((match) => {
    const name = match[1] as string;
    for (const place of [name, `include/${name}`, path.join(path.dirname(file).replace(/^native\//, ''), name)])
      if (existsSync(path.join(root, 'native', place))) return place;
    return name;
  });
}

const nativeFiles = filesBelow('native', /\.(cpp|h|inc|cu|cuh)$/);

test('the native rooms include downwards only, and napi.h stays in the addon', () => {
  assert.ok(nativeFiles.length > 30);
  for (const file of nativeFiles) {
    const text = readFileSync(path.join(root, file), 'utf8');
    const room = file.split('/')[1] as string;
    if (room !== 'addon') assert.doesNotMatch(text, /#\s*include\s*[<"](napi|node_api|node)\.h/, file);
    for (const header of includes(file)) {
      const other = header.split('/')[0] as string;
      const allowed = {
        addon: ['addon', 'cpu', 'cuda', 'include'],
        ops: ['ops', 'include'],
        cpu: ['cpu', 'ops', 'include'],
        cuda: ['cuda', 'ops', 'include'],
        library: ['library', 'cpu', 'cuda', 'ops', 'include'],
        include: ['include'],
      }[room];
      assert.ok(allowed?.includes(other) || header === 'napi.h', `${file} includes ${header}`);
    }
  }
});

test('the native verifier has its own tables', () => {
  const shared = ['arguments', 'exec', 'tensor', 'failure'].map((name) => `include/lpq/${name}.h`);
  const files = nativeFiles.filter((file) => file.startsWith('native/cpu/verify/'));
  assert.ok(files.length > 0);
  for (const file of files) {
    for (const header of includes(file))
      assert.ok(header.startsWith('cpu/verify/') || shared.includes(header), `${file} includes ${header}`);
    assert.doesNotMatch(readFileSync(path.join(root, file), 'utf8'), /QuantType|quant_type/, file);
  }
  // And the other way round: nobody computes with the verifier's code.
  for (const file of nativeFiles.filter((name) => !name.startsWith('native/cpu/verify/')))
    for (const header of includes(file)) assert.ok(!header.startsWith('cpu/verify/'), `${file} includes ${header}`);
});

test('the programs of share/verify are read by the verifier alone, and it reads no others', () => {
  let own = 0;
  for (const file of [...sources, ...nativeFiles]) {
    const text = readFileSync(path.join(root, file), 'utf8');
    const isVerifier = /^(src|native\/cpu)\/verify\//.test(file);
    const reads = /\.lanes['"`]|share\/verify|'share', 'verify'|LaneProgram\b|laneProgram\b/.test(text);
    if (isVerifier) own += Number(reads);
    else assert.ok(!reads, `${file} reads the verifier's programs`);
    if (isVerifier) assert.doesNotMatch(text, /\.tilus['"`]|share\/tilus|'share', 'tilus'/, file);
  }
  assert.ok(own > 3);
});
