import type { Engine } from '../engine.js';
import { AWQ4, INT4 } from './forms.js';

/** LMDeploy's TurboMind has kernels for groups of 128 only. */
export const lmdeploy: Engine = {
  name: 'lmdeploy',
  title: 'LMDeploy',
  versions: '1263d5c',
  evidence: 'its rules were read',
  forms: [
    { ...INT4, groups: [128], target: 'gptq', scales: 'f16' },
    { ...AWQ4, groups: [128] },
  ],
  positiveScales: true,
  serve: (dir) => `lmdeploy serve api_server ${dir}`,
};
