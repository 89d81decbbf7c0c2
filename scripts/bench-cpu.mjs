// node scripts/bench-cpu.mjs [--threads N] [--rounds N] [--only TYPE|NxK] [-o FILE] [LIBRARY...]: products over packed codes on the CPU
// beside the memory's and the units' rates (bench/native/bench_packed.cpp). Two libraries are timed in turn. A processor with AVX2.
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    threads: { type: 'string', default: '1' },
    rounds: { type: 'string', default: '12' },
    only: { type: 'string' },
    output: { type: 'string', short: 'o' },
  },
});
const built = process.env.LPQ_BUILD_DIR ?? path.join(root, 'native', 'build');
const libraries = positionals.length > 0 ? positionals : [path.join(built, 'liblpq_kernels.so.1')];
const dir = mkdtempSync(path.join(tmpdir(), 'lpq-bench-'));
const program = path.join(dir, 'bench_packed');
const run = (command, args, env = {}) => {
  const done = spawnSync(command, args, { encoding: 'utf8', env: { ...process.env, ...env }, maxBuffer: 1 << 28 });
  if (done.status !== 0) throw new Error(`${command}: ${done.error?.message ?? done.stderr}`);
  return done.stdout;
};
try {
  const source = path.join(root, 'bench', 'native', 'bench_packed.cpp');
  const flags = ['-std=c++20', '-O3', '-mavx2', '-mfma', `-I${path.join(root, 'native', 'library')}`];
  run(process.env.CXX ?? 'c++', [...flags, source, '-o', program, '-ldl', '-pthread']);
  const chosen = values.only === undefined ? {} : { BENCH_ONLY: values.only };
  const rows = run(program, [values.threads, values.rounds, ...libraries.map((file) => path.resolve(file))], chosen)
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line));
  for (const { n, k, type, m, bytes, memory, peak, seconds } of rows)
    console.log(
      `${n}x${k} ${type} M ${m}: ${seconds
        .map(
          (each) =>
            `${(each * 1e6).toFixed(0)} us, ${(bytes / each / memory).toFixed(2)} of ${(memory / 1e9).toFixed(1)} GB/s, ` +
            `${((n * k * m) / each / peak).toFixed(2)} of ${(peak / 1e9).toFixed(1)} Gfma/s`,
        )
        .join('; ')}`,
    );
  if (values.output !== undefined) {
    const cpu = readFileSync('/proc/cpuinfo', 'utf8');
    const processor = /^model name\s*:\s*(.*)$/m.exec(cpu)?.[1];
    const isa = process.env.LPQ_ISA ? `LPQ_ISA=${process.env.LPQ_ISA} ` : '';
    const only = values.only === undefined ? '' : ` --only ${values.only}`;
    const commandLine = `${isa}node scripts/bench-cpu.mjs --threads ${values.threads} --rounds ${values.rounds}${only}`;
    const machine = { processor, avx512: /\bavx512f\b/.test(cpu), threads: Number(values.threads) };
    const date = new Date().toISOString().slice(0, 10);
    writeFileSync(values.output, `${JSON.stringify({ date, commandLine, machine, rows }, null, 1)}\n`);
  }
} finally {
  rmSync(dir, { recursive: true, force: true });
}
