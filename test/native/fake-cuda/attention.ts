import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', '..');

/** Names of the attention kernels: lpq_OP_ and words of a macro that makes one, in any order that they may be put together. */
export function attentionKernels(): string[] {
  const dir = path.join(root, 'native', 'cuda', 'attention');
  const made = readdirSync(dir)
    .filter((file) => file.endsWith('.cu'))
    .flatMap((file) => [...readFileSync(path.join(dir, file), 'utf8').matchAll(/^LPQ_(KV_[A-Z]+)\(([^)]*)\)/gm)]);
  return made.flatMap(([, op, list]) => {
    const words = (list as string).split(',').map((word) => word.trim());
    // Prompts are packed by one kernel, tails by another.
    const stems = op === 'KV_PACK' ? ['lpq_kv_pack', 'lpq_kv_append'] : [`lpq_${(op as string).toLowerCase()}`];
    const pairs = words.flatMap((a) => words.map((b) => `${a}_${b}`));
    const all = [...words, ...pairs, ...pairs.flatMap((pair) => words.map((word) => `${pair}_${word}`))];
    return stems.flatMap((stem) => all.map((ending) => `${stem}_${ending}`));
  });
}
