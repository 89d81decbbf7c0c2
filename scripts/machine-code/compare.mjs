// Two records of machine code (native/cuda/machine-code.json of two trees), instance by instance, as JSON on standard output.
//   node scripts/machine-code/compare.mjs BEFORE.json AFTER.json > bench/results/DATE-machine-code.json
// A row is "same", or what each side has: registers, bytes of stack and of shared memory, instructions, instructions by class.
import { readFileSync } from 'node:fs';

const [before, after] = process.argv.slice(2, 4).map((file) => JSON.parse(readFileSync(file, 'utf8')));
if (!before || !after) {
  console.error('usage: compare.mjs BEFORE.json AFTER.json');
  process.exit(2);
}
const counts = { same: 0, differ: 0, new: 0, gone: 0 };
const instances = {};
for (const arch of new Set([...Object.keys(before.kernels), ...Object.keys(after.kernels)])) {
  const [old, now] = [before.kernels[arch] ?? {}, after.kernels[arch] ?? {}];
  const rows = {};
  for (const name of [...new Set([...Object.keys(old), ...Object.keys(now)])].sort()) {
    const [a, b] = [old[name], now[name]];
    const what = !a ? 'new' : !b ? 'gone' : a[0] === b[0] ? 'same' : 'differ';
    counts[what]++;
    rows[name] = what === 'same' ? 'same' : { before: a?.slice(1) ?? null, after: b?.slice(1) ?? null };
  }
  instances[arch] = rows;
}
const lines = Object.entries(instances).map(([arch, rows]) => {
  const each = Object.entries(rows).map(([name, row]) => `   ${JSON.stringify(name)}: ${JSON.stringify(row)}`);
  return `  ${JSON.stringify(arch)}: {\n${each.join(',\n')}\n  }`;
});
const head = {
  command: 'node scripts/machine-code/compare.mjs BEFORE.json AFTER.json',
  before: before.compiler,
  after: after.compiler,
  counts,
};
console.log(`${JSON.stringify(head, null, 1).slice(0, -2)},\n "instances": {\n${lines.join(',\n')}\n }\n}`);
