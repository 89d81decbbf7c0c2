import { type Layout, layout, modesOfDimensions } from './layout.js';

/** A mode while layouts are taken apart: an object with an identity of its own, so that lists can be cut and joined. */
export interface Part {
  readonly size: number;
}

/** A layout in parts. A spatial part that no dimension owns is a set of replicas. */
export interface Parts {
  dims: Part[][];
  spatial: Part[];
  local: Part[];
}

export function takeApart(value: Layout): Parts {
  const parts = value.modeShape.map((size): Part => ({ size }));
  return {
    dims: modesOfDimensions(value.shape, value.modeShape).map((modes) => modes.map((mode) => parts[mode]!)),
    spatial: value.spatialModes.map((mode) => (mode < 0 ? { size: -mode } : parts[mode]!)),
    local: value.localModes.map((mode) => parts[mode]!),
  };
}

export function assemble({ dims, spatial, local }: Parts): Layout {
  const order = dims.flat();
  const name = (part: Part): number => {
    const mode = order.indexOf(part);
    return mode < 0 ? -part.size : mode;
  };
  return layout(
    dims.map((parts) => parts.reduce((all, part) => all * part.size, 1)),
    order.map((part) => part.size),
    spatial.map(name),
    local.map(name),
  );
}

/** Puts `pieces` in the place of `part`, in its dimension and its list. */
export function replacePart(parts: Parts, part: Part, pieces: readonly Part[]): void {
  const swap = (list: Part[]): Part[] => list.flatMap((each) => (each === part ? pieces : [each]));
  parts.dims = parts.dims.map(swap);
  parts.spatial = swap(parts.spatial);
  parts.local = swap(parts.local);
}
