import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import type { TestContext } from 'node:test';
import { type HubEnvironment, hubEnvironment } from '../../../src/hub/environment.js';
import { hubSnapshot, type Snapshot, type SnapshotOptions } from '../../../src/hub/snapshot.js';
import { type FakeHub, fakeHub, ID, type Served } from './server.js';

/** Bytes that no other seed gives. */
export function noise(length: number, seed: number): Buffer {
  const bytes = Buffer.alloc(length);
  let state = seed * 2654435761 + 1;
  for (let i = 0; i < length; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    bytes[i] = state >>> 24;
  }
  return bytes;
}

export const WEIGHTS = 300_000;

/** A sharded model with everything that a repository has beside it. */
export function sharded(): Record<string, Served> {
  const map = { a: 'model-00001-of-00002.safetensors', b: 'model-00002-of-00002.safetensors' };
  return {
    '.gitattributes': { bytes: Buffer.from('*.safetensors filter=lfs\n') },
    'README.md': { bytes: Buffer.from('# Tiny\n') },
    LICENSE: { bytes: Buffer.from('Apache\n') },
    'config.json': { bytes: Buffer.from('{"model_type":"llama"}') },
    'tokenizer.json': { bytes: noise(20_000, 3), large: true },
    'tokenizer_config.json': { bytes: Buffer.from('{}') },
    'model.safetensors.index.json': { bytes: Buffer.from(JSON.stringify({ metadata: {}, weight_map: map })) },
    'model-00001-of-00002.safetensors': { bytes: noise(WEIGHTS, 1), large: true },
    'model-00002-of-00002.safetensors': { bytes: noise(WEIGHTS, 2), large: true },
    'consolidated.safetensors': { bytes: noise(1000, 4), large: true },
    'pytorch_model.bin': { bytes: noise(1000, 5), large: true },
    'original/consolidated.00.pth': { bytes: noise(1000, 6), large: true },
    'onnx/model.safetensors': { bytes: noise(1000, 7), large: true },
    'additional_chat_templates/tools.jinja': { bytes: Buffer.from('{{ tools }}') },
  };
}

/** What lpq takes of sharded(). */
export const TAKEN = [
  'LICENSE',
  'README.md',
  'additional_chat_templates/tools.jinja',
  'config.json',
  'model-00001-of-00002.safetensors',
  'model-00002-of-00002.safetensors',
  'model.safetensors.index.json',
  'tokenizer.json',
  'tokenizer_config.json',
];

export function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(os.tmpdir(), 'lpq-hub-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

export interface Bench {
  readonly hub: FakeHub;
  readonly home: string;
  readonly repository: string;
  environment(more?: Record<string, string>): HubEnvironment;
  get(revision?: string, options?: Partial<SnapshotOptions>, more?: Record<string, string>): Promise<Snapshot>;
}

export async function bench(t: TestContext, files: Record<string, Served> = sharded()): Promise<Bench> {
  const hub = await fakeHub(t, files);
  const home = scratch(t);
  const environment = (more: Record<string, string> = {}) =>
    hubEnvironment({ HF_HOME: home, HF_ENDPOINT: hub.endpoint, ...more });
  return {
    hub,
    home,
    repository: path.join(home, 'hub', `models--${ID.replace('/', '--')}`),
    environment,
    get: (revision = 'main', options = {}, more = {}) =>
      hubSnapshot({ id: ID, revision }, { environment: environment(more), backoffMs: 1, ...options }),
  };
}

/** Asserts bytes of a snapshot against those that the server has. */
export function differing(hub: FakeHub, dir: string, names: readonly string[]): string[] {
  return names.filter((name) => !readFileSync(path.join(dir, name)).equals((hub.files.get(name) as Served).bytes));
}
