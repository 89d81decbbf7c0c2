import { CT, type Json, type Listed, testListed } from './changed.js';

const listed: readonly Listed[] = [
  [
    'other bits in the config',
    'config',
    /number of bits/,
    {
      config: (_, q) => {
        q.bits = 3;
      },
    },
  ],
  [
    'another group size in the config',
    'config',
    /group size/,
    {
      config: (_, q) => {
        q.group_size = -1;
      },
    },
  ],
  [
    'another symmetry in the config',
    'config',
    /symmetry/,
    {
      config: (_, q) => {
        q.sym = false;
      },
    },
  ],
  [
    'act-order in the config only',
    'config',
    /activation order/,
    {
      config: (_, q) => {
        q.desc_act = true;
      },
    },
  ],
  [
    'another zero convention in the config',
    'config',
    /checkpoint_format/,
    {
      config: (_, q) => {
        q.checkpoint_format = 'gptq_v2';
      },
    },
  ],
  [
    'another method in the config',
    'config',
    /quant_method/,
    {
      config: (_, q) => {
        q.quant_method = 'awq';
      },
    },
  ],
  [
    'a dynamic rule that leaves a packed module out',
    'config',
    /leaves out module 'm'/,
    {
      config: (_, q) => {
        q.dynamic = { '-:m$': {} };
      },
    },
  ],
  [
    'a dynamic rule that says other bits',
    'config',
    /number of bits/,
    {
      config: (_, q) => {
        q.dynamic = { '+:m$': { bits: 8 } };
      },
    },
  ],
  [
    'no quantization_config',
    'config',
    /has no quantization_config/,
    {
      config: (c) => {
        delete c.quantization_config;
      },
    },
  ],
  [
    'an ignored packed module',
    'config',
    /leaves out module 'm'/,
    {
      target: 'compressed-tensors',
      specs: { m: CT },
      config: (_, q) => {
        q.ignore = ['re:.*m'];
      },
    },
  ],
  [
    'other targets',
    'config',
    /leaves out module 'm'/,
    {
      target: 'compressed-tensors',
      specs: { m: CT },
      config: (_, q) => {
        (q.config_groups as { group_0: Json }).group_0.targets = ['other'];
      },
    },
  ],
];

testListed(listed);
