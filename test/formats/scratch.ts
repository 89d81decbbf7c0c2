import assert from 'node:assert/strict';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after } from 'node:test';
import { LpqError } from '../../src/core/error.js';

/** A directory that is removed when the test file ends. */
export function scratch(): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-formats-'));
  after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** A safetensors file of a header text and data, put together by hand: nothing of the writer is used. */
export function handmade(file: string, header: string | Buffer, data: Uint8Array = new Uint8Array()): string {
  const json = Buffer.from(header as string);
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  writeFileSync(file, Buffer.concat([length, json, data]));
  return file;
}

/** Matches an LpqError by code and a fragment of its sentence (or of what it got). */
export function designed(code: string, fragment: RegExp | string): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof LpqError, `not a designed error: ${String((error as Error)?.stack ?? error)}`);
    assert.equal(error.code, code, error.message);
    const text = `${error.message} | got ${String(error.got)} | expected ${String(error.expected)} | ${error.hint ?? ''}`;
    if (typeof fragment === 'string') assert.ok(text.includes(fragment), `${text} lacks '${fragment}'`);
    else assert.match(text, fragment);
    return true;
  };
}
