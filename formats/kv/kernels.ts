import type { KvForm } from '../../native/kv-ops.js';
import { KV_FORMS, KV_HEAD_DIMS, kvStoredDims } from './forms.js';
import type { KvScheme } from './scheme.js';

/** Heads that share a page, and its tokens. */
export interface KvKernelShape {
  readonly kvHeads: number;
  readonly headDim: number;
  readonly pageTokens: number;
  /** Heads outside tokens. */
  readonly outer?: boolean;
}

/** A scheme as ops.kvPack, kvAppend and kvDecode take it; a sentence why they do not. */
export function kvKernelForm({ form, keys, values, fit }: KvScheme, shape: KvKernelShape): KvForm | string {
  const { headDim } = shape;
  const [least, most] = KV_HEAD_DIMS;
  if (headDim < least || headDim > most || headDim % 8 !== 0)
    return `no kernel reads heads of ${headDim} dims, only of multiples of 8 from ${least} to ${most}`;
  const dims = kvStoredDims(headDim);
  if (values.bits !== keys.bits && !(keys.bits === 8 && values.bits === 4))
    return `no kernel reads keys of ${keys.bits} bits beside values of ${values.bits}`;
  const [key, value] = [keys.group, values.group];
  const groups = KV_FORMS[form].wholeHeads
    ? key === dims && value === dims
    : keys.granularity === 'channel'
      ? [32, 64, 128].includes(key) && value === Math.min(key, dims)
      : [32, 64, 128].includes(key) && value === key;
  if (!groups) return `no kernel reads keys in groups of ${key} beside values in groups of ${value}`;
  return {
    bits: keys.bits,
    ...(values.bits !== keys.bits && { valueBits: values.bits }),
    form,
    granularity: keys.granularity,
    keyGroup: key,
    valueGroup: value,
    ...(fit && { fit }),
    ...shape,
  };
}

/** A page: a multiple of these tokens. */
export function kvPageUnit({ form = 'bitdecoding', bits, valueBits = bits, granularity, keyGroup }: KvForm): number {
  const { tail, leastPage } = KV_FORMS[form];
  return tail ? Math.max(512 / bits, 512 / valueBits, granularity === 'token' ? 0 : keyGroup) : leastPage;
}

/** Bytes of the tensors of a page: of keys, their scales and zeros, values and theirs; or of one block. */
export function kvPageBytes(form: KvForm): number[] {
  const {
    form: name = 'bitdecoding',
    bits,
    valueBits = bits,
    headDim,
    kvHeads,
    keyGroup,
    valueGroup,
    pageTokens,
  } = form;
  const rows = pageTokens * kvHeads;
  const cells = rows * kvStoredDims(headDim);
  if (KV_FORMS[name].oneBlock) return [(cells * (bits + valueBits)) / 8 + 8 * rows];
  return [(cells * bits) / 8, (4 * cells) / keyGroup, (cells * valueBits) / 8, (4 * cells) / valueGroup];
}

/** The tensors of a page's kinds as the operations take them: one block is given four times. */
export function kvPages<T>(tensors: readonly T[]): readonly [T, T, T, T] {
  const [keys, keyNumbers = keys, values = keys, valueNumbers = keys] = tensors;
  return [keys, keyNumbers, values, valueNumbers] as [T, T, T, T];
}
