import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  appendFileSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { execa } from 'execa';

/** Wheels for a host without a network: small wheels made by Python's zipfile, an index in a folder, and the host's own program. */

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const script = path.join(root, 'scripts', 'wheels.mjs');
const python = process.env.LPQ_PYTHON ?? 'python3';
const [major, minor] = spawnSync(python, ['-c', 'import sys; print(*sys.version_info[:2])'], { encoding: 'utf8' })
  .stdout.trim()
  .split(' ');
const skip = spawnSync(python, ['-m', 'pip', '--version']).status === 0 ? false : 'SKIPPED: no Python with pip';

const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-wheels-test-'));
after(() => rmSync(dir, { recursive: true, force: true }));

const MAKE = `
import base64, csv, hashlib, io, json, sys, zipfile
out, name, version, files = sys.argv[1], sys.argv[2], sys.argv[3], json.loads(sys.argv[4])
info = f'{name}-{version}.dist-info'
files = {path: bytes.fromhex(content) for path, content in files.items()}
files[f'{info}/METADATA'] = f'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n'.encode()
files[f'{info}/WHEEL'] = b'Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n'
record = io.StringIO()
for path, content in files.items():
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b'=').decode()
    csv.writer(record, lineterminator='\\n').writerow([path, f'sha256={digest}', len(content)])
files[f'{info}/RECORD'] = (record.getvalue() + f'{info}/RECORD,,\\n').encode()
with zipfile.ZipFile(out, 'w', zipfile.ZIP_DEFLATED) as archive:
    for path, content in files.items():
        archive.writestr(path, content)
`;
const index = path.join(dir, 'simple');

/** Puts a wheel into the index; its hash. */
function publish(name: string, version: string, files: Record<string, Buffer | string>): string {
  const file = `${name}-${version}-py3-none-any.whl`;
  mkdirSync(path.join(index, name), { recursive: true });
  const hex = Object.entries(files).map(([at, content]) => [at, Buffer.from(content).toString('hex')]);
  const whl = path.join(index, name, file);
  const ran = spawnSync(python, ['-c', MAKE, whl, name, version, JSON.stringify(Object.fromEntries(hex))]);
  assert.equal(ran.status, 0, String(ran.stderr));
  const all = readdirSync(path.join(index, name)).filter((each) => each.endsWith('.whl'));
  writeFileSync(path.join(index, name, 'index.html'), all.map((each) => `<a href="${each}">${each}</a>\n`).join(''));
  return createHash('sha256').update(readFileSync(whl)).digest('hex');
}

const SDIST = `
import io, sys, tarfile
out, name, version = sys.argv[1:]
backend = f'''
import base64, hashlib, zipfile
def build_wheel(folder, config_settings=None, metadata_directory=None):
    info = '{name}-{version}.dist-info'
    files = {{
        '{name}.py': 'VALUE = 7\\\\n',
        info + '/METADATA': 'Metadata-Version: 2.1\\\\nName: {name}\\\\nVersion: {version}\\\\n',
        info + '/WHEEL': 'Wheel-Version: 1.0\\\\nGenerator: test\\\\nRoot-Is-Purelib: true\\\\nTag: py3-none-any\\\\n',
    }}
    def digest(text):
        return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b'=').decode()
    rows = [f'{{path}},sha256={{digest(text)}},' for path, text in files.items()]
    files[info + '/RECORD'] = '\\\\n'.join([*rows, info + '/RECORD,,', ''])
    with zipfile.ZipFile(folder + '/{name}-{version}-py3-none-any.whl', 'w') as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return '{name}-{version}-py3-none-any.whl'
'''
project = '[build-system]\\nrequires = []\\nbuild-backend = "backend"\\nbackend-path = ["."]\\n'
facts = f'Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n'
with tarfile.open(out, 'w:gz') as archive:
    for path, text in {'backend.py': backend, 'pyproject.toml': project, 'PKG-INFO': facts}.items():
        entry = tarfile.TarInfo(f'{name}-{version}/{path}')
        entry.size = len(text.encode())
        archive.addfile(entry, io.BytesIO(text.encode()))
`;

/** Puts a source archive into the index, and no wheel; its hash. */
function publishSource(name: string, version: string): string {
  const file = `${name}-${version}.tar.gz`;
  mkdirSync(path.join(index, name), { recursive: true });
  const at = path.join(index, name, file);
  const ran = spawnSync(python, ['-c', SDIST, at, name, version]);
  assert.equal(ran.status, 0, String(ran.stderr));
  writeFileSync(path.join(index, name, 'index.html'), `<a href="${file}">${file}</a>\n`);
  return createHash('sha256').update(readFileSync(at)).digest('hex');
}

/** Numbers that do not compress. */
const noise = Buffer.concat(Array.from({ length: 640 }, (_, i) => createHash('sha512').update(`${i}`).digest()));
const big = publish('big', '1.0', {
  'big/__init__.py': 'VALUE = 41\n',
  'big/noise.bin': noise,
  'big/tests/test_it.py': 'x'.repeat(5000),
  'big/with, comma.txt': 'a',
  'big-1.0.data/scripts/say': '#!python\nprint("hi")\n',
});
const small = publish('small', '2.0.post1', { 'small.py': 'VALUE = 1\n' });

let made = 0;
async function carry(lines: string, ...more: string[]) {
  const place = path.join(dir, `case-${made++}`);
  mkdirSync(place);
  writeFileSync(path.join(place, 'list.txt'), `target ${major}.${minor} 2.39\n${lines}`);
  const out = path.join(place, 'out');
  const args = ['--list', path.join(place, 'list.txt'), '--out', out, '--cache', path.join(place, 'cache')];
  const ran = await execa(process.execPath, [script, ...args, ...more], {
    reject: false,
    env: {
      PIP_CONFIG_FILE: os.devNull,
      PIP_INDEX_URL: pathToFileURL(index).href,
      PIP_EXTRA_INDEX_URL: '',
      PIP_FIND_LINKS: '',
    },
  });
  return { ...ran, out, place };
}

/** Runs install.py of a folder as the host does, where no index is to be found. */
function host(folder: string, ...args: string[]) {
  const env = { ...process.env, PIP_CONFIG_FILE: os.devNull, PIP_NO_INDEX: '1', PYTHONDONTWRITEBYTECODE: '1' };
  const ran = spawnSync(python, [path.join(folder, 'install.py'), ...args], { encoding: 'utf8', env });
  return { code: ran.status, out: ran.stdout, err: ran.stderr };
}

const LIST = `drop */tests/*\nbig==1.0 sha256:${big}\nsmall==2.0.post1 sha256:${small}\n`;

for (const unpack of [[], ['--unpack']])
  test(`pieces come in any order and install (${unpack[0] ?? 'by pip'})`, { skip }, async () => {
    const { exitCode, stderr, stdout, out, place } = await carry(LIST, '--pieces', '16K');
    assert.equal(exitCode, 0, stderr);
    assert.match(stdout, /2 wheels, .* in 3 pieces/);
    const manifest = JSON.parse(readFileSync(path.join(out, 'manifest.json'), 'utf8'));
    assert.deepEqual(
      manifest.pieces.map(({ bytes }: { bytes: number }) => bytes),
      [16384, 16384, manifest.bytes - 32768],
    );
    assert.deepEqual(manifest.wheels[0].dropped, { '*/tests/*': [1, 5000] });
    // Where the pieces lie may be the store, too.
    assert.match(host(out, '--store', out).out, /3 of 3 pieces are in /);
    const store = path.join(place, 'store');
    for (const name of ['piece-02', 'piece-00', 'piece-01']) {
      const call = path.join(place, name);
      mkdirSync(call);
      for (const file of [name, 'install.py', 'manifest.json'])
        copyFileSync(path.join(out, file), path.join(call, file));
      const { code, out: said } = host(call, '--store', store);
      assert.equal(code, 0);
      if (name === 'piece-00') assert.match(said, /2 of 3 pieces are in .*; missing: piece-01/);
    }
    const site = path.join(place, 'site');
    const done = host(path.join(place, 'piece-01'), '--store', store, '--target', site, ...unpack);
    assert.equal(done.code, 0, done.err);
    const program = 'import big, small, importlib.metadata as m; print(big.VALUE + small.VALUE, m.version("small"))';
    const { stdout: says } = await execa(python, ['-c', program], { env: { PYTHONPATH: site } });
    assert.equal(says, '42 2.0.post1');
    assert.ok(readFileSync(path.join(site, 'big', 'noise.bin')).equals(noise));
    assert.ok(existsSync(path.join(site, 'bin', 'say')));
    assert.ok(!existsSync(path.join(site, 'big', 'tests')));
    const record = readFileSync(path.join(site, 'big-1.0.dist-info', 'RECORD'), 'utf8');
    assert.doesNotMatch(record, /tests/);
    assert.match(record, /"big\/with, comma\.txt",sha256=/);
    assert.match(host(path.join(place, 'piece-01'), '--store', store, '--target', site).err, /site is not empty/);
  });

test('a host refuses what is missing, damaged or surplus', { skip }, async () => {
  const { out, place } = await carry(LIST, '--pieces', '16K');
  const site = path.join(place, 'site');
  const refused = (says: RegExp, ...args: string[]) => {
    const { code, err } = host(out, '--target', site, ...args);
    assert.equal(code, 1);
    assert.match(err, says);
    assert.equal(err.trim().split('\n').length, 1, err);
    assert.ok(!existsSync(site));
  };
  const piece = path.join(out, 'piece-01');
  const whole = readFileSync(piece);
  rmSync(piece);
  refused(/install\.py: .* lacks piece-01 of 3 pieces: copy it there/);
  writeFileSync(piece, whole.subarray(1));
  refused(/piece-01 has 16383 bytes, and the manifest says 16384/);
  const damaged = Buffer.from(whole);
  damaged.writeUInt8(damaged.readUInt8(77) ^ 1, 77);
  writeFileSync(piece, damaged);
  refused(/piece-01 is damaged: its SHA-256 is not the manifest's/);
  refused(/piece-01 is damaged/, '--store', path.join(place, 'store'));
  writeFileSync(piece, whole);
  writeFileSync(path.join(out, 'piece-03'), 'of another list');
  refused(/piece-03 is no piece of this manifest, which has 3/);
  rmSync(path.join(out, 'piece-03'));
  const manifest = path.join(out, 'manifest.json');
  const said = JSON.parse(readFileSync(manifest, 'utf8'));
  const change = (values: object) => writeFileSync(manifest, JSON.stringify({ ...said, ...values }));
  change({ python: '3.1' });
  refused(/these wheels are for Python 3\.1, and this is/);
  change({ sha256: said.sha256.replaceAll(/./g, '0') });
  refused(/the joined pieces are not the manifest's archive/);
  change({ wheels: said.wheels.slice(1) });
  refused(/the archive holds 'big-1\.0-.*', which the manifest does not name/);
  change({ format: 'lpq-wheels-9' });
  refused(/is of format lpq-wheels-9/);
});

// [what, list, options, says]
const BAD: readonly (readonly [string, string, readonly string[], RegExp])[] = [
  [
    'a name that no index has',
    `nosuch==1.0 sha256:${big}\n`,
    [],
    /no index of pip has a wheel of nosuch==1\.0 .*\n {2}hint .*no version of that name/,
  ],
  [
    'a version that no index has',
    `big==3.0 sha256:${big}\n`,
    [],
    /no index of pip has a wheel of big==3\.0 .*\n.*has 1\.0/,
  ],
  [
    'another hash',
    `big==1.0 sha256:${small}\n`,
    [],
    /big==1\.0 is not the wheel of the list: its sha256 is [0-9a-f]{64}/,
  ],
  ['no hash', 'big==1.0\n', [], /line 2 of .* has no sha256/],
  ['a name twice', `${LIST}Big==1.1 sha256:${big}\n`, [], /line 5 of .* names Big again, as 1\.0 and 1\.1/],
  ['no rule', 'keep big/*\n', [], /line 2 of .* is no rule: 'keep big\/\*'/],
  ['source for all', `source\n${LIST}`, [], /line 2 of .* is no rule: 'source'/],
  ['an empty list', '# nothing\n', [], /names no wheel/],
  ['a size that is none', LIST, ['--pieces', '48Q'], /--pieces 48Q is no size of a piece/],
  ['an option that is none', LIST, ['--size', '4'], /Unknown option '--size'/],
  ['no file of what is present', LIST, ['--skip-present', '/nowhere'], /\/nowhere does not exist/],
];
for (const [what, list, more, says] of BAD)
  test(`refused: ${what}`, { skip }, async () => {
    const { exitCode, stderr, out } = await carry(list, ...more);
    assert.equal(exitCode, 1, stderr);
    assert.match(stderr, says);
    assert.match(stderr, /^LPQ_WHEELS {2}.*\n {2}hint {6}\S/);
    assert.ok(!existsSync(out));
  });

test('a wheel that is not its RECORD is refused', { skip }, async () => {
  const place = path.join(index, 'odd');
  publish('odd', '1.0', { 'odd.py': '' });
  const whl = path.join(place, 'odd-1.0-py3-none-any.whl');
  const add = 'import sys, zipfile; zipfile.ZipFile(sys.argv[1], "a").writestr("extra.py", "")';
  assert.equal(spawnSync(python, ['-c', add, whl]).status, 0);
  const hash = createHash('sha256').update(readFileSync(whl)).digest('hex');
  const { stderr } = await carry(`odd==1.0 sha256:${hash}\n`);
  assert.match(stderr, /odd-1\.0-.* holds 'extra\.py', which its RECORD does not name/);
});

test('a wheel is built of a source archive with the hash of the list', { skip }, async () => {
  const hash = publishSource('sourced', '1.0');
  const list = `${LIST}sourced==1.0 sha256:${hash}\n    source\n`;
  const { exitCode, stderr, out, place } = await carry(list);
  assert.equal(exitCode, 0, stderr);
  const site = path.join(place, 'site');
  assert.equal(host(out, '--target', site).code, 0);
  const { stdout } = await execa(python, ['-c', 'import sourced, small; print(sourced.VALUE)'], {
    env: { PYTHONPATH: site },
  });
  assert.equal(stdout, '7');
  const other = await carry(`sourced==1.0 sha256:${small}\n    source\n`);
  assert.match(other.stderr, /sourced==1\.0 is not the wheel of the list: its sha256 is/);
  const unmarked = await carry(`sourced==1.0 sha256:${hash}\n`);
  assert.match(unmarked.stderr, /no index of pip has a wheel of sourced==1\.0/);
  const place9 = path.join(dir, 'other-python.txt');
  writeFileSync(place9, `target 3.7 2.39\nsourced==1.0 sha256:${hash}\n    source\n`);
  const ran = await execa(process.execPath, [script, '--list', place9, '--out', path.join(dir, 'none')], {
    reject: false,
  });
  assert.match(ran.stderr, /sourced is built from source for Python 3\.7, and this is 3\./);
});

test('a wheel may have a long name', { skip }, async () => {
  const name = 'long'.repeat(30);
  const hash = publish(name, '1.0', { 'long.py': '' });
  const { exitCode, stderr, out, place } = await carry(`${name}==1.0 sha256:${hash}\n`);
  assert.equal(exitCode, 0, stderr);
  assert.equal(host(out, '--target', path.join(place, 'site')).code, 0);
});

test('what the host has stays here', { skip }, async () => {
  const present = path.join(dir, 'present.txt');
  writeFileSync(present, '# pip freeze\nBig==1.0\nsmall==1.9\n');
  const { stdout, out } = await carry(LIST, '--skip-present', present);
  assert.match(stdout, /^1 of 2 wheels/);
  assert.equal(JSON.parse(readFileSync(path.join(out, 'manifest.json'), 'utf8')).wheels[0].name, 'small');
  appendFileSync(present, 'small\n');
  const { stderr } = await carry(LIST, '--skip-present', present);
  assert.match(stderr, /the host has all 2 wheels/);
});

/** An image of a container: kind 1 is PTX, 2 machine code; its bytes name it. */
function image(kind: number, arch: number): Buffer {
  const body = Buffer.from(`${kind}:${arch};`.repeat(40));
  const head = Buffer.alloc(64);
  head.writeUInt16LE(kind, 0);
  head.writeUInt32LE(64, 4);
  head.writeBigUInt64LE(BigInt(body.length), 8);
  head.writeUInt32LE(arch, 28);
  return Buffer.concat([head, body]);
}
function container(...images: Buffer[]): Buffer {
  const body = Buffer.concat(images);
  const head = Buffer.alloc(16);
  head.writeUInt32LE(0xba55ed50, 0);
  head.writeUInt16LE(1, 4);
  head.writeUInt16LE(16, 6);
  head.writeBigUInt64LE(BigInt(body.length), 8);
  return Buffer.concat([head, body, Buffer.alloc(-body.length & 7)]);
}

test('libraries keep the machine code of one GPU, and the PTX of what has none', { skip }, async (t) => {
  const rows = [
    container(image(2, 80), image(2, 90), image(1, 80), image(2, 100)),
    container(image(2, 80), image(1, 80), image(1, 90), image(1, 100)),
    container(image(2, 86), image(2, 89)),
  ];
  const bytes = [...Buffer.concat(rows)].join(',');
  const source = path.join(dir, 'code.c');
  const library = path.join(dir, 'code.so');
  writeFileSync(
    source,
    `__attribute__((section(".nv_fatbin"), aligned(8))) const unsigned char code[] = {${bytes}};\n` +
      'static int unseen(int x) { return x * 3; }\nint seen(int x) { return unseen(x) + 1; }\n',
  );
  const compiler = process.env.CC ?? 'cc';
  const built = spawnSync(compiler, ['-shared', '-fPIC', '-O0', '-g', source, '-o', library], { encoding: 'utf8' });
  if (built.status !== 0) return t.skip(`SKIPPED: ${compiler} does not compile`);
  const hash = publish('coded', '1.0', { 'coded/lib.so': readFileSync(library) });
  const list = `coded==1.0 sha256:${hash}\n  code 90 coded/*.so\n  strip *.so\n`;
  const { exitCode, stderr, out, place } = await carry(list);
  assert.equal(exitCode, 0, stderr);
  const [{ changed }] = JSON.parse(readFileSync(path.join(out, 'manifest.json'), 'utf8')).wheels;
  assert.deepEqual(changed, { 'coded/lib.so': ['code of sm_90 only', 'stripped'] });
  const site = path.join(place, 'site');
  assert.equal(host(out, '--target', site).code, 0);
  const lib = path.join(site, 'coded', 'lib.so');
  const kept = readFileSync(lib).toString('latin1');
  const has = (kind: number, arch: number) => kept.includes(`${kind}:${arch};`);
  const wanted = [has(2, 90), has(1, 90), has(2, 86), has(2, 89), has(2, 80), has(1, 80), has(2, 100), has(1, 100)];
  assert.deepEqual(wanted, [true, true, true, true, false, false, false, false]);
  const reading =
    'import ctypes, sys; l = ctypes.CDLL(sys.argv[1]); print(l.seen(5), (ctypes.c_ulonglong * 2).in_dll(l, "code")[1])';
  const { stdout } = await execa(python, ['-c', reading, lib]);
  assert.equal(stdout, `16 ${image(2, 90).length}`);
});
