// Machine code of every kernel instance beside what is recorded (native/cuda/machine-code.json): which differ, and how. After
// npm run build:cuda. Options: --write (records today's), --json FILE (rows of both sides), --strict (exit 1 where one differs),
// --cuobjdump FILE (default: LPQ_CUOBJDUMP, the toolkit's, or build/cuobjdump, where `--install` puts pip's).
import { spawnSync } from 'node:child_process';
import { existsSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { kernelsOf } from './machine-code/disassemble.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const objects = path.join(process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build'), 'cuda');
const record = path.join(root, 'native', 'cuda', 'machine-code.json');
const tools = path.join(root, 'build', 'cuobjdump');
const PINNED = ['nvidia-cuda-cuobjdump==13.5.37', 'nvidia-cuda-nvdisasm==13.5.37'];
const { values: options } = parseArgs({
  options: {
    install: { type: 'boolean', default: false },
    write: { type: 'boolean', default: false },
    strict: { type: 'boolean', default: false },
    json: { type: 'string' },
    cuobjdump: { type: 'string' },
  },
});

function fail(what, remedy) {
  console.error(`LPQ_MACHINE_CODE: ${what}\n  remedy: ${remedy}`);
  process.exit(3);
}

if (options.install && !existsSync(tools)) {
  const run = spawnSync('python3', ['-m', 'pip', 'install', '-q', '--no-deps', '--target', tools, ...PINNED], {
    stdio: 'inherit',
  });
  if (run.status !== 0) fail('pip could not install cuobjdump', `python3 -m pip install ${PINNED.join(' ')}`);
}
const cuobjdump = [
  options.cuobjdump,
  process.env.LPQ_CUOBJDUMP,
  path.join(tools, 'nvidia', 'cu13', 'bin', 'cuobjdump'),
  ...[process.env.CUDA_HOME, '/usr/local/cuda'].filter(Boolean).map((home) => path.join(home, 'bin', 'cuobjdump')),
].find((file) => file && existsSync(file));
if (!cuobjdump) fail('cuobjdump was not found', 'run with --install, or name it with --cuobjdump');

const files = existsSync(objects)
  ? readdirSync(objects)
      .filter((file) => file.endsWith('.fatbin'))
      .sort()
  : [];
if (files.length === 0) fail(`${objects} holds no compiled kernels`, 'run npm run build:cuda');
const kernels = [];
const waiting = [...files];
await Promise.all(
  Array.from({ length: availableParallelism() }, async () => {
    for (let file = waiting.shift(); file; file = waiting.shift())
      kernels.push(...(await kernelsOf(cuobjdump, path.join(objects, file))));
  }),
);

const [compiler] = JSON.parse(JSON.parse(readFileSync(path.join(objects, `${files[0]}.made`), 'utf8'))[1]);
const row = ({ hash, registers, stack, shared, instructions, classes }) => [
  hash,
  registers,
  stack,
  shared,
  instructions,
  Object.entries(classes)
    .sort()
    .map(([name, count]) => `${name} ${count}`)
    .join(', '),
];
const today = { compiler, disassembler: PINNED[1], kernels: {} };
for (const kernel of kernels.sort((a, b) => (`${a.arch} ${a.name}` < `${b.arch} ${b.name}` ? -1 : 1))) {
  today.kernels[kernel.arch] ??= {};
  today.kernels[kernel.arch][kernel.name] = row(kernel);
}

const known = existsSync(record) ? JSON.parse(readFileSync(record, 'utf8')) : { compiler, kernels: {} };
const changes = [];
for (const arch of Object.keys(today.kernels)) {
  const [before, after] = [known.kernels[arch] ?? {}, today.kernels[arch]];
  for (const name of new Set([...Object.keys(before), ...Object.keys(after)]))
    if (before[name]?.[0] !== after[name]?.[0]) changes.push({ arch, name, before: before[name], after: after[name] });
}
const count = Object.values(today.kernels).reduce((sum, each) => sum + Object.keys(each).length, 0);
const tell = (side) =>
  side ? `${side[1]} registers, ${side[2]} stack, ${side[3]} shared, ${side[4]} instructions (${side[5]})` : 'none';
for (const { arch, name, before, after } of changes)
  console.log(`${arch} ${name}\n  recorded  ${tell(before)}\n  now       ${tell(after)}`);
if (known.compiler !== compiler)
  console.log(`recorded with ${known.compiler}, compiled with ${compiler}: differences are the compiler's, too`);
const gone = changes.filter(({ after }) => !after).length;
const fresh = changes.filter(({ before }) => !before).length;
console.log(`${count} kernel instances: ${changes.length - gone - fresh} differ, ${fresh} are new, ${gone} are gone`);
if (options.json) writeFileSync(options.json, `${JSON.stringify({ compiler, instances: count, changes }, null, 1)}\n`);
if (options.write) {
  const lines = Object.entries(today.kernels).map(
    ([arch, rows]) =>
      `    ${JSON.stringify(arch)}: {\n${Object.entries(rows)
        .map(([name, values]) => `      ${JSON.stringify(name)}: ${JSON.stringify(values)}`)
        .join(',\n')}\n    }`,
  );
  writeFileSync(
    record,
    `{\n  "compiler": ${JSON.stringify(compiler)},\n  "disassembler": ${JSON.stringify(PINNED[1])},\n  "kernels": {\n${lines.join(',\n')}\n  }\n}\n`,
  );
}
if (options.strict && changes.length > 0) process.exit(1);
