import type { Architecture } from '../../src/model/architecture.js';

/** The columns of docs/architectures.md that a table decides: what is quantized, and what is carried beside embeddings, norms and head. */
export function tailOf(table: Architecture): [quantized: string, carried: string] {
  const { experts, mla, attention, mlp, names, parts, text } = table;
  const dense =
    !experts ||
    parts !== undefined ||
    [experts.blockTypes, experts.firstDense, experts.sparseBlocks].some((key) => key !== undefined);
  const quantized = [
    mla ? 'latent attention' : 'attention',
    ...(dense ? ['MLP'] : []),
    ...(experts ? ['experts'] : []),
    ...(experts?.shared ? ['shared expert'] : []),
  ];
  const carried = [
    ...(experts ? ['router'] : []),
    ...(attention.names.sinks === undefined ? [] : ['sinks']),
    ...(names.positions === undefined ? [] : ['positions']),
    ...(mlp.kind === 'plain' && mlp.names.xielu !== undefined ? ["xIELU's parameters"] : []),
    ...(text ? ['towers, projectors'] : []),
  ];
  return [quantized.join(', '), carried.join(', ') || 'nothing more'];
}
