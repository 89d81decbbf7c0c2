import type { Engine, EngineForm } from '../engine.js';
import { integers } from './forms.js';

const BLOCKS: EngineForm = {
  says: 'integers of 4 and 5 bits',
  options: '--bits 4',
  takes: integers([4, 5], true),
  groups: [128, 64, 32, 'channel'],
  target: 'gguf',
  scales: 'f16',
};

/** llama.cpp: one .gguf file, blocks of 32 made of the very codes. */
export const llamaCpp: Engine = {
  name: 'llama.cpp',
  title: 'llama.cpp',
  versions: 'of node-llama-cpp 3.22.1',
  evidence: 'its loader ran',
  forms: [
    BLOCKS,
    { ...BLOCKS, says: '8-bit integers', options: '--bits 8', takes: integers([8], true) },
    {
      ...BLOCKS,
      says: 'integers of 4 and 5 bits with zero points',
      options: '--bits 4 --asym',
      takes: integers([4, 5], false),
    },
  ],
  positiveScales: false,
  note: 'For 2, 3 and 6 bits: lpq pack QUANTIZED --target gguf-q3_k --source MODEL -o OUT.',
  serve: (dir) => `llama-server -m ${dir}/model.gguf`,
};
