import { readFileSync, renameSync, rmSync, truncateSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { type Case, gptq, header, Q, sharded, testMalformed } from './malformed.js';
import { gptqSettings, writeModel } from './mini.js';

const CASES: readonly Case[] = [
  {
    what: 'a cut shard',
    write: async (dir) => {
      await sharded(dir, () => {});
      const file = path.join(dir, 'model-00002-of-00002.safetensors');
      truncateSync(file, readFileSync(file).length - 100);
    },
    code: 'LPQ_SAFETENSORS',
    sentence: /00002.*ends before its last tensor/,
    check: 'files',
    diagnosis: /00002-of-00002\.safetensors ends before its last tensor does/,
  },
  {
    what: 'an index that names a missing file',
    write: async (dir) => {
      await sharded(dir, () => {});
      rmSync(path.join(dir, 'model-00002-of-00002.safetensors'));
    },
    code: 'LPQ_SAFETENSORS_INDEX',
    sentence: /names missing shards/,
    check: 'files',
    diagnosis: /model-00002-of-00002\.safetensors is missing: the index puts \d+ tensors in it/,
  },
  {
    what: 'a path out of the directory in the index',
    write: (dir) =>
      sharded(dir, ({ weight_map: map }) => {
        map[`${Q}.qweight`] = '../../etc/passwd.safetensors';
      }),
    code: 'LPQ_SAFETENSORS_INDEX',
    sentence: /not the name of a \.safetensors file.*\.\.\/\.\.\/etc/,
    check: 'files',
    diagnosis: /puts tensor '.*q_proj\.qweight' in a file that is not a \.safetensors file beside it/,
  },
  {
    what: 'an index that puts a tensor in the wrong shard',
    write: (dir) =>
      sharded(dir, ({ weight_map: map }) => {
        map['model.embed_tokens.weight'] = 'model-00002-of-00002.safetensors';
      }),
    code: 'LPQ_SAFETENSORS_INDEX',
    sentence: /embed_tokens.*does not hold it/,
    check: 'files',
    diagnosis: /puts tensor 'model\.embed_tokens\.weight' in model-00002.*does not hold it/,
  },
  {
    what: 'an index that leaves a tensor out',
    write: (dir) =>
      sharded(dir, ({ weight_map: map }) => {
        delete map[`${Q}.qweight`];
      }),
    code: 'LPQ_SAFETENSORS_INDEX',
    check: 'files',
    diagnosis: /q_proj\.qweight.*is not in the index/,
  },
  {
    what: 'a key that is there twice',
    write: (dir) => header(dir, (text) => text.replace('"model.norm.weight"', '"model.embed_tokens.weight"')),
    code: 'LPQ_SAFETENSORS',
    sentence: /duplicate|twice/,
    check: 'files',
    diagnosis: /duplicate|twice/,
  },
  {
    what: 'absurd sizes',
    write: (dir) =>
      header(dir, (text) =>
        text.replace(/("model\.norm\.weight":\{"dtype":"F32","shape":)\[64\]/, '$1[4294967296,4294967296]'),
      ),
    code: 'LPQ_SAFETENSORS',
    sentence: /model\.norm\.weight.*overflows/,
    check: 'files',
    diagnosis: /model\.norm\.weight.*overflows/,
  },
  {
    what: 'tensors that overlap',
    write: (dir) =>
      header(dir, (text) =>
        text.replace(
          /("model\.norm\.weight":.*?"data_offsets":\[)(\d+),(\d+)\]/,
          (_, head, a, b) => `${head}${a - 256},${b - 256}]`,
        ),
      ),
    code: 'LPQ_SAFETENSORS',
    sentence: /overlaps|hole/,
    check: 'files',
    diagnosis: /overlaps|hole/,
  },
  {
    what: 'a header length that lies',
    write: async (dir) => {
      await writeModel(dir, { tensors: gptq(), settings: gptqSettings(4, 32) });
      const file = path.join(dir, 'model.safetensors');
      const bytes = readFileSync(file);
      bytes.writeBigUInt64LE(99_999_999n, 0);
      writeFileSync(file, bytes);
    },
    code: 'LPQ_SAFETENSORS',
    sentence: /ends inside its header/,
    check: 'files',
    diagnosis: /ends inside its header/,
  },
  {
    what: 'a dtype that lies about its bytes',
    write: (dir) => header(dir, (text) => text.replace(/("model\.norm\.weight":\{"dtype":)"F32"/, '$1"F64"')),
    code: 'LPQ_SAFETENSORS',
    sentence: /model\.norm\.weight.*do not match/,
    check: 'files',
    diagnosis: /model\.norm\.weight.*do not match/,
  },
  {
    what: 'pickles only',
    write: async (dir) => {
      await writeModel(dir, { tensors: gptq(), settings: gptqSettings(4, 32) });
      renameSync(path.join(dir, 'model.safetensors'), path.join(dir, 'pytorch_model.bin'));
    },
    code: 'LPQ_FILE',
    sentence: /never unpickles/,
    check: 'files',
    diagnosis: /holds no safetensors file/,
  },
];

testMalformed(CASES);
