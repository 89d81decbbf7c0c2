import { type MappedFile, mapFile } from '../../native/binding.js';
import type { GgufContext } from './gguf-context.js';
import { GGUF_FILE } from './gguf-context.js';
import { aligned, type Entry, type Header, type HeaderTensor, headerOf, tensorBytes } from './gguf-header.js';

type FileContext = Pick<GgufContext, 'recorder' | 'file'>;

/** The metadata and the whole container: every byte that is no tensor's. */
export function checkContainer(
  context: FileContext,
  path: string,
  entries: readonly Entry[],
  tensors: readonly HeaderTensor[],
): void {
  const { recorder } = context;
  const before = recorder.failures.length;
  checkKeys(context, entries);
  checkTensors(context, tensors);
  const header = headerOf(entries, tensors);
  const map = mapFile(path);
  try {
    recorder.count('tensors');
    const wrong = firstDifference(map, header);
    if (wrong === undefined) checkData(context, map, header.bytes.length, tensors);
    else if (recorder.failures.length === before) {
      const { what } = header.statements.find(({ end }) => wrong < end) ?? { what: 'its header' };
      const message = `byte ${wrong} of ${GGUF_FILE} is wrong: it belongs to ${what}`;
      const [got, expected] = [map.read(wrong, 1)[0] ?? 'the end of the file', header.bytes[wrong] as number];
      recorder.check(false, { check: 'tensors', got, expected, message });
    }
  } finally {
    map.close();
  }
}

function checkKeys({ recorder, file }: FileContext, entries: readonly Entry[]): void {
  const told = (value: unknown): string => {
    const text = Array.isArray(value) ? `${value.length} values` : String(value ?? 'nothing');
    return text.length > 80 ? `${text.slice(0, 80)}…` : text;
  };
  for (const [key, expected] of entries) {
    const got = file.metadata.get(key);
    const [at, problem] = differing(got?.value, expected.value);
    const place = (value: unknown) => told(at === undefined || !Array.isArray(value) ? value : value[at]);
    const message =
      got && got.type !== expected.type
        ? `key '${key}' of ${GGUF_FILE} has type ${got.type} and not ${expected.type}`
        : `key '${key}${at === undefined ? '' : `[${at}]`}' of ${GGUF_FILE} does not match the model's files`;
    const values = { got: place(got?.value), expected: place(expected.value) };
    recorder.check(got?.type === expected.type && problem === undefined, { check: 'config', ...values, message });
  }
  const known = new Set(entries.map(([key]) => key));
  for (const [key, { value }] of file.metadata) {
    const message = `key '${key}' of ${GGUF_FILE} is not one that lpq writes for this model`;
    recorder.check(known.has(key), { check: 'config', got: told(value), expected: 'nothing', message });
  }
}

/** Where two values differ, and whether they do. Floats are compared as the file has them, in f32. */
function differing(got: unknown, expected: unknown): [at: number | undefined, problem: true | undefined] {
  const same = (a: unknown, b: unknown): boolean =>
    typeof a === 'number' && typeof b === 'number' ? Math.fround(a) === Math.fround(b) : a === b;
  if (!Array.isArray(got) || !Array.isArray(expected)) return [undefined, same(got, expected) ? undefined : true];
  if (got.length !== expected.length) return [undefined, true];
  const at = expected.findIndex((value, i) => !same(got[i], value));
  return at < 0 ? [undefined, undefined] : [at, true];
}

function checkTensors({ recorder, file }: FileContext, tensors: readonly HeaderTensor[]): void {
  const known = new Set<string>();
  for (const { name, type, dims } of tensors) {
    const [columns = 1, rows = 1, slices] = dims;
    for (let slice = 0; slice < (slices ?? 1); slice++) {
      const own = slices === undefined ? name : `${name}[${slice}]`;
      known.add(own);
      const there = file.has(own) ? file.matrix(own) : undefined;
      const got = there ? `${there.type.name} [${[there.columns, there.rows].slice(0, there.rank)}]` : 'nothing';
      const expected = `${type} [${[columns, rows].slice(0, dims.length)}]`;
      const message = there
        ? `tensor '${own}' of ${GGUF_FILE} does not have the type and dimensions of the model's tensor`
        : `tensor '${own}' is not in ${GGUF_FILE}`;
      recorder.check(got === expected, { check: 'tensors', tensor: own, got, expected, message });
    }
  }
  for (const tensor of file.names()) {
    const message = `tensor '${tensor}' of ${GGUF_FILE} is not a tensor of the model`;
    recorder.check(known.has(tensor), { check: 'tensors', tensor, message });
  }
}

function firstDifference(map: MappedFile, { bytes }: Header): number | undefined {
  const got = map.read(0, Math.min(bytes.length, map.size));
  if (Buffer.compare(got, bytes) === 0) return undefined;
  const at = got.findIndex((byte, i) => byte !== bytes[i]);
  return at < 0 ? got.length : at;
}

/** Zeros between tensors and after the last, and nothing behind them. */
function checkData({ recorder }: FileContext, map: MappedFile, start: number, tensors: readonly HeaderTensor[]): void {
  let at = start;
  for (const tensor of tensors) {
    const end = at + tensorBytes(tensor);
    at = start + aligned(end - start);
    const padding = map.read(Math.min(end, map.size), Math.max(0, Math.min(at, map.size) - end));
    const wrong = padding.findIndex((byte) => byte !== 0);
    const message = `the padding after '${tensor.name}' is not zero`;
    const values = { got: padding[wrong] ?? 0, expected: 0 };
    recorder.check(wrong < 0, { check: 'padding', tensor: tensor.name, ...values, message });
  }
  const message = `${GGUF_FILE} does not end where its last tensor does`;
  recorder.check(map.size === at, { check: 'padding', got: map.size, expected: at, message });
}
