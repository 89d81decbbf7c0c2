// Prints what is shipped as CycloneDX 1.5: the packages that lpq depends on, with versions, licences and the lockfile's hashes.
// (npm sbom --omit dev leaves out packages that a development dependency needs too.)
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { packagesOf } from './bundle/imports.mjs';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));
const json = (file) => JSON.parse(readFileSync(path.join(root, file), 'utf8'));
const { name, version, license, dependencies } = json('package.json');
const locked = json('package-lock.json').packages;
const purl = (of, at) => `pkg:npm/${of.replace('@', '%40')}@${at}`;

const components = packagesOf(root, Object.keys(dependencies)).map(({ name: of, version: at, dir }) => {
  const { license: terms } = json(path.join(dir, 'package.json'));
  const [algorithm, digest] = (locked[dir]?.integrity ?? '').split('-');
  return {
    type: 'library',
    'bom-ref': `${of}@${at}`,
    name: of,
    version: at,
    purl: purl(of, at),
    ...(typeof terms === 'string' && { licenses: [{ expression: terms }] }),
    ...(algorithm === 'sha512' && {
      hashes: [{ alg: 'SHA-512', content: Buffer.from(digest, 'base64').toString('hex') }],
    }),
  };
});
const component = {
  type: 'application',
  'bom-ref': `${name}@${version}`,
  name,
  version,
  purl: purl(name, version),
  licenses: [{ expression: license }],
};
console.log(
  JSON.stringify(
    { bomFormat: 'CycloneDX', specVersion: '1.5', version: 1, metadata: { component }, components },
    null,
    2,
  ),
);
