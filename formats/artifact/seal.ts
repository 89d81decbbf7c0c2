import { createHash } from 'node:crypto';
import type { ArtifactManifest } from './schema.js';

const BLANK = '0'.repeat(64);
const SEAL = /("seal"\s*:\s*")([0-9a-f]{64})(")/g;

/** The manifest as the text of lpq.json, sealed: every byte of the file decides the seal. */
export function sealManifest(manifest: ArtifactManifest): { text: string; manifest: ArtifactManifest } {
  const blank = `${JSON.stringify({ ...manifest, seal: BLANK }, null, 2)}\n`;
  const seal = createHash('sha256').update(blank).digest('hex');
  const at = blank.lastIndexOf(BLANK);
  return { text: blank.slice(0, at) + seal + blank.slice(at + BLANK.length), manifest: { ...manifest, seal } };
}

/** What the seal in the text of lpq.json should be; undefined when it holds none. */
export function expectedSeal(text: string): string | undefined {
  const last = [...text.matchAll(SEAL)].at(-1);
  if (!last) return undefined;
  const at = last.index + (last[1] as string).length;
  return createHash('sha256')
    .update(text.slice(0, at) + BLANK + text.slice(at + BLANK.length))
    .digest('hex');
}
