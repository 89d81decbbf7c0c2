/** A row of the table that the build reads. */
interface Instance {
  readonly calls: readonly string[];
}

const table = new URL('../../../../native/cuda/instances.mjs', import.meta.url);
const { INSTANCES } = (await import(table.href)) as { INSTANCES: readonly Instance[] };

/** Names of the attention kernels: lpq_OP_ and words of a macro that makes one, in any order that they may be put together. */
export function attentionKernels(): string[] {
  const made = INSTANCES.flatMap(({ calls }) =>
    calls.flatMap((call) => [...call.matchAll(/^LPQ_(KV_[A-Z0-9_]+)\(([^)]*)\)$/g)]),
  );
  return made.flatMap(([, op, list]) => {
    const words = (list as string).split(',').map((word) => word.trim());
    // Prompts are packed by one kernel, tails by another.
    const name = (op as string).toLowerCase();
    const stems = name.startsWith('kv_pack')
      ? [`lpq_${name}`, `lpq_${name.replace('pack', 'append')}`]
      : [`lpq_${name}`];
    const pairs = words.flatMap((a) => words.map((b) => `${a}_${b}`));
    const all = [...words, ...pairs, ...pairs.flatMap((pair) => words.map((word) => `${pair}_${word}`))];
    return stems.flatMap((stem) => all.map((ending) => `${stem}_${ending}`));
  });
}
