import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { addonPlaces } from '../../native/places.js';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..');
const script = (name: string) => import(path.join(root, 'scripts', name));

test('what a binary asks for is read out of it, of every library', async () => {
  const { newestWanted } = await script('release/elf.mjs');
  const [, minor] = newestWanted(process.execPath, 'GLIBC').split('.').map(Number);
  assert.ok(minor >= 17 && minor < 100, String(minor));
  assert.equal(newestWanted(process.execPath, 'NOSUCHLIB'), undefined);
});

test('a clone has no prebuilt addon, so that its own is compiled; one that was compiled here goes first', async () => {
  const { prebuiltMisfit } = await script('prebuilt.mjs');
  assert.match(prebuiltMisfit(), /there is none for|build from source/);
  const places = addonPlaces(path.join(root, 'dist', 'native'));
  const own = places.indexOf(path.join(root, 'native', 'build', 'lpq.node'));
  const shipped = places.indexOf(path.join(root, 'prebuilds', `${process.platform}-${process.arch}`, 'lpq.node'));
  assert.ok(own >= 0 && shipped > own);
});
