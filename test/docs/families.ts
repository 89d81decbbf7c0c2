import type { Architecture } from '../../src/model/architecture.js';

/** What the linears of recurrent layers are called. */
const RECURRENT = {
  conv: 'gated convolutions',
  delta: 'linear attention',
  mamba2: 'state spaces',
  mamba: 'state spaces',
};

/** The columns of docs/architectures.md that a table decides: what is quantized, and what is carried beside embeddings, norms and head. */
export function tailOf(table: Architecture): [quantized: string, carried: string] {
  const { experts, mla, recurrent, attention, compressed, hyper, mlp, names, parts, text } = table;
  const dense =
    !experts ||
    parts !== undefined ||
    [experts.blockTypes, experts.firstDense, experts.sparseBlocks, experts.enabled, experts.noneUpTo].some(
      (key) => key !== undefined,
    );
  const quantized = [
    mla ? 'latent attention' : compressed ? 'compressed attention' : 'attention',
    ...(recurrent ? [RECURRENT[recurrent.mixer.kind]] : []),
    ...(dense ? ['MLP'] : []),
    ...(experts ? ['experts'] : []),
    ...(experts?.shared ? ['shared expert'] : []),
  ];
  const carried = [
    ...(experts ? ['router'] : []),
    ...(experts?.latent ? ['latent projections'] : []),
    ...Object.keys(recurrent?.carried ?? {}),
    ...Object.keys((mla ?? attention).indexer?.carried ?? {}),
    ...Object.keys({ ...compressed?.carried, ...hyper?.carried }),
    ...((compressed ?? attention).names.sinks === undefined ? [] : ['sinks']),
    ...(table.perLayer ? ['per-layer embeddings and their linears'] : []),
    ...(table.altUp ? ['AltUp, LAuReL'] : []),
    ...(names.positions === undefined ? [] : ['positions']),
    ...(mlp.kind === 'plain' && mlp.names.xielu !== undefined ? ["xIELU's parameters"] : []),
    ...(text ? ['towers, projectors'] : []),
  ];
  return [quantized.join(', '), carried.join(', ') || 'nothing more'];
}
