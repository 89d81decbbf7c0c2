import { readFileSync } from 'node:fs';
import path from 'node:path';
import { root } from '../src/cli/lpq.js';
import { FORMATS, type Format } from './cells.js';
import { GPU_CELLS, type GpuCell } from './gpu/cells.js';
import type { Cell } from './run.js';

/** What drive.py recorded on a device, as columns of the page's table. */

/** The file whose columns the page shows. */
export const RECORD = 'bench/results/2026-11-28-h200-engines.json';

/** Of a file of bench/results: what these cells need of it. */
export interface DeviceRecord {
  /** Versions: "vLLM V, transformers V, ...". */
  readonly engines: string;
  readonly records: Readonly<Record<string, OneRecord>>;
}

interface OneRecord {
  readonly machine?: { readonly cards: readonly { readonly name: string }[] };
  readonly cells: readonly RecordedCell[];
}

interface RecordedCell {
  readonly name?: string;
  readonly outcome: string;
  readonly off?: number;
  readonly reason?: string;
}

export interface Column {
  readonly name: string;
  readonly cells: Readonly<Record<string, Cell>>;
}

export const readRecord = (): DeviceRecord => JSON.parse(readFileSync(path.join(root, RECORD), 'utf8')) as DeviceRecord;

const key = ({ target, options, model }: Format) => [target, model ?? 'tiny-llama', ...options].join(' ');
const PLAIN = FORMATS.filter(({ packing, damage, rules, compiled }) => !packing && !damage && !rules && !compiled);

/** The row of the table that a cell stands in: that of the same directory, else the cell's own. */
export function rowOf(cell: GpuCell): string | undefined {
  const row = PLAIN.find((format) => key(format) === key(cell))?.name ?? cell.row;
  if (row === undefined) return undefined;
  const { compiled, ranks = 1 } = cell;
  return `${row}${compiled ? ', by torch.compile' : ''}${ranks > 1 ? `, ${ranks} ranks` : ''}`;
}

function told(cell: GpuCell, { outcome, off, reason }: RecordedCell): Cell {
  if (outcome === 'ran') {
    const dtype = cell.rounds ? 'int8' : cell.dtype!;
    return { outcome, dtype, off: Number(off!.toPrecision(2)) };
  }
  // Behind a bar stand further lines of a log.
  const sentence = reason!.split(' | ')[0]!;
  return { outcome: outcome === 'refused' ? outcome : 'failed', sentence };
}

/** A column a group of cells. Of a cell that was run again, the last result stands; what was skipped is no result. */
export function columnsOf({ engines, records }: DeviceRecord): readonly Column[] {
  const all = Object.values(records);
  const card = all.flatMap(({ machine }) => machine?.cards ?? [])[0]!.name.replace('NVIDIA ', '');
  const [vllm, transformers] = ['vLLM', 'transformers'].map(
    (engine) => new RegExp(`${engine} [\\d.]*\\d`).exec(engines)![0],
  );
  const found = all.flatMap(({ cells }) => cells).filter(({ outcome }) => outcome !== 'skipped');
  const column = (group: GpuCell['group'], name: string): Column => {
    const cells: Record<string, Cell> = {};
    for (const recorded of found) {
      const cell = GPU_CELLS.find((each) => each.group === group && each.name === recorded.name);
      if (cell !== undefined) cells[rowOf(cell)!] = told(cell, recorded);
    }
    return { name: `${name}, ${card}`, cells };
  };
  return [
    column('standard', vllm!),
    column('plugin', `${vllm} with lpq_kernels`),
    column('transformers', `${transformers} with lpq_kernels`),
  ];
}
