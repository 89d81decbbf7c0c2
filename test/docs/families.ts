import type { Architecture } from '../../src/model/architecture.js';

/** The columns of docs/architectures.md that a table decides: what is quantized, and what is carried beside embeddings, norms and head. */
export function tailOf(table: Architecture): [quantized: string, carried: string] {
  const { experts, mla, attention, mlp, names, text } = table;
  const dense =
    !experts ||
    [experts.blockTypes, experts.firstDense, experts.sparseBlocks, experts.enabled].some((key) => key !== undefined);
  const quantized = [
    mla ? 'latent attention' : 'attention',
    ...(dense ? ['MLP'] : []),
    ...(experts ? ['experts'] : []),
    ...(experts?.shared ? ['shared expert'] : []),
  ];
  const carried = [
    ...(experts ? ['router'] : []),
    ...(attention.names.sinks === undefined ? [] : ['sinks']),
    ...(table.perLayer ? ['per-layer embeddings and their linears'] : []),
    ...(table.altUp ? ['AltUp, LAuReL'] : []),
    ...(names.positions === undefined ? [] : ['positions']),
    ...(mlp.kind === 'plain' && mlp.names.xielu !== undefined ? ["xIELU's parameters"] : []),
    ...(text ? ['towers, projectors'] : []),
  ];
  return [quantized.join(', '), carried.join(', ') || 'nothing more'];
}
