// Tries an archive of `npm run bundle` the way its reader will: unpacked elsewhere, in an empty environment whose PATH has
// a shell's few tools and no Node.js, without a network where the system lets us take it away.
import { spawnSync } from 'node:child_process';
import { mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';

const archive = path.resolve(process.argv[2] ?? '');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-bundle-'));
process.on('exit', () => rmSync(work, { recursive: true, force: true }));

function fail(what) {
  console.error(`LPQ_BUNDLE: ${what}`);
  process.exit(1);
}

if (spawnSync('tar', ['-xf', archive, '-C', work], { stdio: 'inherit' }).status !== 0)
  fail(`${archive} does not unpack`);
const home = path.join(work, readdirSync(work)[0] ?? '');
const bin = path.join(work, 'bin');
const away = path.join(work, 'elsewhere');
for (const dir of [bin, away]) mkdirSync(dir);
for (const name of ['readlink', 'uname', 'sh']) {
  const place = ['/usr/bin', '/bin']
    .map((dir) => path.join(dir, name))
    .find((file) => spawnSync('test', ['-x', file]).status === 0);
  if (place) symlinkSync(place, path.join(bin, name));
}
symlinkSync(path.join('..', path.basename(home), 'bin', 'lpq'), path.join(bin, 'lpq'));

const offline = spawnSync('/usr/bin/unshare', ['-rn', '/bin/true']).status === 0 ? ['/usr/bin/unshare', '-rn'] : [];
function run(command, args, expected = 0) {
  const [program, ...rest] = [...offline, command, ...args];
  const started = performance.now();
  const result = spawnSync(program, rest, { cwd: away, env: { PATH: bin, HOME: away }, encoding: 'utf8' });
  const title = `${path.basename(command)} ${args.join(' ')}`.replaceAll(`${work}/`, '');
  if (result.status !== expected)
    fail(`${title}: exit ${result.status ?? result.signal ?? result.error?.message}\n${result.stdout}${result.stderr}`);
  console.log(`ok  ${((performance.now() - started) / 1000).toFixed(1)} s  ${title}`);
  return result.stdout;
}

if (spawnSync('node', ['--version'], { env: { PATH: bin } }).error === undefined)
  fail('the PATH of this check has a node');
const sums = spawnSync('sha256sum', ['--quiet', '-c', 'SHA256SUMS'], { cwd: home, encoding: 'utf8' });
if (sums.status !== 0) fail(`the sums are wrong\n${sums.stdout}${sums.stderr}`);
const { version } = JSON.parse(readFileSync(path.join(home, 'bundle.json'), 'utf8'));
const lpq = path.join(home, 'bin', 'lpq');
const model = path.join(home, 'share', 'tiny-llama');
const [quantized, packed] = [path.join(away, 'w4'), path.join(away, 'packed')];
if (run(path.join(bin, 'lpq'), ['--version']).trim() !== version) fail('the link to bin/lpq starts another version');
run(lpq, ['doctor']);
run(lpq, ['quantize', model, '-o', quantized, '--bits', '4', '--method', 'rtn', '--quiet']);
run(lpq, ['pack', quantized, '--target', 'gptq', '-o', packed, '--quiet']);
run(lpq, ['verify', packed, '--against', quantized, '--quiet']);
const text = path.join(away, 'text.txt');
writeFileSync(text, readFileSync(path.join(home, 'share', 'text', 'books-valid.txt')).subarray(0, 20_000));
run(lpq, ['eval', quantized, '--text', text, '--quiet']);
run(lpq, ['bench', 'quantize', '--shape', 'tiny', '--layers', '1', '--samples', '4', '--seq-len', '128', '--quiet']);
// No GPU where bundles are made: the runner must load its tests and say so.
if (spawnSync('nvidia-smi').error) run(path.join(home, 'bin', 'lpq-test-gpu'), [], 1);
console.log(`the bundle works without Node.js on the PATH${offline.length > 0 ? ' and without a network' : ''}`);
