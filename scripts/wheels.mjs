// node scripts/wheels.mjs --list FILE --out DIR [--pieces 48M] [--skip-present FILE] [--cache DIR]: pinned wheels for a host without a network.
// Downloads the wheels of a list (scripts/wheels/*.txt; list.mjs has the form), takes out what the list drops, compresses the rest, and
// leaves in DIR pieces of a size, manifest.json, and install.py, which joins, checks and installs them on the host. --skip-present names a
// file of lines `name==version` (or `name`) that the host has. Wheels stay in --cache (build/wheels). Needs pip (LPQ_PYTHON), tar and xz.
import {
  chmodSync,
  closeSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { downloaded } from './wheels/download.mjs';
import { fail, WheelsError } from './wheels/fail.mjs';
import { absent, readList } from './wheels/list.mjs';
import { bytesOf, cut } from './wheels/pieces.mjs';
import { reduced } from './wheels/reduce.mjs';
import { zipped } from './wheels/zip.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const mebibytes = (bytes) => `${(bytes / 2 ** 20).toFixed(1)} MiB`;

function options() {
  try {
    return parseArgs({
      options: {
        list: { type: 'string' },
        pieces: { type: 'string', default: '48M' },
        out: { type: 'string' },
        'skip-present': { type: 'string' },
        cache: { type: 'string', default: path.join(root, 'build', 'wheels') },
      },
    }).values;
  } catch (error) {
    return fail(error.message, 'node scripts/wheels.mjs --list FILE --out DIR [--pieces 48M] [--skip-present FILE]');
  }
}

/** Writes the reduced wheel into `folder`; its row of the manifest. */
function write(wheel, file, list, folder) {
  const bytes = readFileSync(file);
  const name = path.basename(file);
  const { files, dropped, changed } = reduced(bytes, name, list.rules, wheel.rules);
  const to = openSync(path.join(folder, name), 'wx');
  for (const chunk of zipped(files)) for (let done = 0; done < chunk.length; ) done += writeSync(to, chunk, done);
  closeSync(to);
  return {
    name: wheel.name,
    version: wheel.version,
    file: name,
    sha256: wheel.sha256,
    downloaded: bytes.length,
    dropped,
    changed,
  };
}

async function main() {
  const { list: listFile, out, pieces, cache, 'skip-present': presentFile } = options();
  if (listFile === undefined || out === undefined)
    fail('--list and --out are needed', 'node scripts/wheels.mjs --list scripts/wheels/vllm.txt --out DIR');
  const size = bytesOf(pieces);
  if (existsSync(out)) fail(`${out} exists already`, 'name a folder that does not');
  const list = readList(listFile);
  if (presentFile !== undefined && !existsSync(presentFile))
    fail(`${presentFile} does not exist`, 'pip freeze on the host writes one');
  const wheels = presentFile === undefined ? list.wheels : absent(list.wheels, readFileSync(presentFile, 'utf8'));
  if (wheels.length === 0) fail(`the host has all ${list.wheels.length} wheels of ${listFile}`, 'nothing to carry');
  console.log(`${wheels.length} of ${list.wheels.length} wheels of ${listFile}`);
  const files = downloaded(list, wheels, path.resolve(cache));
  mkdirSync(path.dirname(path.resolve(out)), { recursive: true });
  const [made, work] = ['made', 'work'].map((kind) =>
    mkdtempSync(path.join(path.dirname(path.resolve(out)), `.${kind}-`)),
  );
  try {
    const rows = wheels.map((wheel, i) => write(wheel, files[i], list, work));
    const names = rows.map(({ file }) => file);
    const archive = await cut(work, names, size, made);
    const manifest = { format: 'lpq-wheels-1', python: list.python, ...archive, wheels: rows };
    writeFileSync(path.join(made, 'manifest.json'), `${JSON.stringify(manifest, null, 1)}\n`);
    copyFileSync(path.join(root, 'scripts', 'wheels', 'install.py'), path.join(made, 'install.py'));
    chmodSync(made, 0o755);
    renameSync(made, out);
    report(manifest, out);
  } finally {
    for (const folder of [made, work]) rmSync(folder, { recursive: true, force: true });
  }
}

function report({ wheels, pieces, bytes }, out) {
  for (const { name, version, downloaded: before, dropped, changed } of wheels) {
    const gone = Object.values(dropped).reduce((sum, [, size]) => sum + size, 0);
    if (before > 2 ** 20 || gone > 0 || Object.keys(changed).length > 0)
      console.log(
        `${name} ${version}: ${mebibytes(before)} downloaded, ${mebibytes(gone)} dropped, ${Object.keys(changed).length} libraries reduced`,
      );
  }
  const before = wheels.reduce((sum, { downloaded: size }) => sum + size, 0);
  console.log(
    `${out}: ${wheels.length} wheels, ${mebibytes(before)} downloaded, ${mebibytes(bytes)} in ${pieces.length} pieces`,
  );
}

try {
  await main();
} catch (error) {
  if (!(error instanceof WheelsError)) throw error;
  console.error(`LPQ_WHEELS  ${error.message}\n  hint      ${error.remedy}`);
  process.exit(1);
}
