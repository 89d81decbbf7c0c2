/**
 * Heads of a gated delta rule share keys in runs. llama.cpp repeats keys as a whole, so that its head j * keyHeads + g is head g * run + j of
 * the checkpoint. Rows in the order of the file; the first `before` keep their places.
 */
export function stateOrder(rows: number, heads: number, keyHeads: number, before = 0): Int32Array {
  const [size, run] = [(rows - before) / heads, heads / keyHeads];
  return Int32Array.from({ length: rows }, (_, row) => {
    if (row < before) return row;
    const [head, within] = [Math.floor((row - before) / size), (row - before) % size];
    return before + ((head % keyHeads) * run + Math.floor(head / keyHeads)) * size + within;
  });
}

/** Rows of equal chunks of bytes, chunk i of each from chunk order[i]; or the other way round. */
export function moveChunks(bytes: Uint8Array, rows: number, order: Int32Array, back = false): Uint8Array<ArrayBuffer> {
  const moved = new Uint8Array(bytes.length);
  const size = bytes.length / rows / order.length;
  for (let row = 0; row < rows; row++)
    for (const [to, from] of order.entries()) {
      const [source, target] = back ? [to, from] : [from, to];
      const at = (row * order.length + source) * size;
      moved.set(bytes.subarray(at, at + size), (row * order.length + target) * size);
    }
  return moved;
}
