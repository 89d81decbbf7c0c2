import type { MemoryTensor, Node, Program } from './program.js';
import { refuse } from './scope.js';

/** Bytes of shared memory that a block can have, by architecture (CUDA C++ Programming Guide, "Compute Capabilities"). */
export const SHARED_LIMITS = { 80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448 } as const;

/** Of every tensor: a multiple of what any copy needs. */
const ALIGNMENT = 128;
/** Of swizzled tensors whose rows are what TMA and wgmma swizzle. */
const SWIZZLED = 1024;

/** Elements of a tensor whose sizes are known. */
export function elementsOf(tensor: MemoryTensor): number {
  return tensor.shape.reduce((all, size) => all * (size as { value: number }).value, 1);
}

/** Puts the tensors of shared memory one after another. Refuses the one that goes beyond the device's. */
export function planShared(body: readonly Node[], arch: keyof typeof SHARED_LIMITS): Program['shared'] {
  const places: { tensor: MemoryTensor; byte: number }[] = [];
  let bytes = 0;
  const visit = (nodes: readonly Node[]): void => {
    for (const node of nodes) {
      if (node.op === 'for' || node.op === 'while') visit(node.body);
      if (node.op === 'if') for (const list of [node.body, node.otherwise]) visit(list);
      if (node.op !== 'AllocateShared' && node.op !== 'AllocateBarrier') continue;
      if (node.out.swizzle) bytes = Math.ceil(bytes / SWIZZLED) * SWIZZLED;
      places.push({ tensor: node.out, byte: bytes });
      bytes += Math.ceil((elementsOf(node.out) * node.out.dtype.bits) / 8 / ALIGNMENT) * ALIGNMENT;
      if (bytes > SHARED_LIMITS[arch])
        refuse(node, `shared memory of sm_${arch} is too small for ${node.out.name}`, {
          got: `${bytes} bytes`,
          expected: `at most ${SHARED_LIMITS[arch]}`,
          hint: 'Use fewer stages or a smaller tile.',
        });
    }
  };
  visit(body);
  return { bytes, places };
}
