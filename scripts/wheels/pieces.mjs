// One archive of wheels, compressed, in pieces with a manifest that says what each must be.
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { closeSync, openSync, writeSync } from 'node:fs';
import path from 'node:path';
import { fail } from './fail.mjs';

/** Bytes of `48M`, `1G`, `500K` or `4096`. */
export function bytesOf(text) {
  const [, number, unit] = /^(\d+)([KMG]?)$/.exec(text) ?? [];
  const bytes = Number(number) * { '': 1, K: 2 ** 10, M: 2 ** 20, G: 2 ** 30 }[unit];
  if (!(bytes >= 1024)) fail(`--pieces ${text} is no size of a piece`, '48M, 500K, or a number of 1024 or more');
  return bytes;
}

/** Compresses tar's bytes of a folder and writes piece-00.xz.part ... of `size` bytes into `out`; what they are. */
export async function cut(folder, names, size, out) {
  const tar = spawn(
    'tar',
    ['-c', '--format=gnu', '--mtime=@0', '--owner=0', '--group=0', '--numeric-owner', '-C', folder, ...names],
    { stdio: ['ignore', 'pipe', 'inherit'] },
  );
  const xz = spawn('xz', ['--lzma2=preset=5,dict=64MiB', '-T0', '--block-size=268435456', '-c'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });
  tar.stdout.pipe(xz.stdin);
  xz.stdin.on('error', () => {}); // its exit status says it
  const ended = [tar, xz].map(
    (child) =>
      new Promise((resolve, reject) => {
        child.on('error', reject);
        child.on('close', resolve);
      }),
  );
  const whole = createHash('sha256');
  const pieces = [];
  let [file, hash, bytes, total] = [undefined, undefined, 0, 0];
  const close = () => {
    if (file === undefined) return;
    closeSync(file);
    Object.assign(pieces.at(-1), { bytes, sha256: hash.digest('hex') });
    file = undefined;
  };
  for await (const chunk of xz.stdout) {
    whole.update(chunk);
    total += chunk.length;
    for (let at = 0; at < chunk.length; ) {
      if (file === undefined) {
        const name = `piece-${String(pieces.length).padStart(2, '0')}`;
        pieces.push({ name });
        file = openSync(path.join(out, name), 'wx');
        [hash, bytes] = [createHash('sha256'), 0];
      }
      const part = chunk.subarray(at, at + size - bytes);
      for (let done = 0; done < part.length; ) done += writeSync(file, part, done);
      hash.update(part);
      bytes += part.length;
      at += part.length;
      if (bytes === size) close();
    }
  }
  close();
  const codes = await Promise.all(ended).catch((error) => fail(`${error.message}`, 'tar and xz are needed'));
  if (codes.some((code) => code !== 0)) fail('tar or xz failed', 'above stands why');
  return { bytes: total, sha256: whole.digest('hex'), pieces };
}
