import { spawnSync } from 'node:child_process';
import { cpSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { ROOT, replaced } from './copy.js';
import { type Mutant, mutants } from './mutant.js';

const TILES = ['marlin', 'tilus', 'turbomind', 'comet', 'sparse_marlin'];
const ALL = [...TILES, 'gptq', 'gptq_v2', 'awq', 'compressed-tensors'];

/** Faults in the engine that lays codes out, of which the verifier's decoders share no line. */
export const NATIVE_MUTANTS: readonly Mutant[] = [
  ...mutants('native/cpu/layout/pack.cpp', ALL, [
    ['static_cast<T>((out[c] + bias) & mask)', 'static_cast<T>(out[c] & mask)', 'no bias is added to codes'],
    [
      'std::fill(out + columns, out + tile_columns, pad);',
      'std::fill(out + columns, out + tile_columns, T{1});',
      'columns of padding have code 1',
    ],
    [
      'std::fill(tile + rows * tile_columns, tile + tile_rows * tile_columns, pad);',
      'std::fill(tile + rows * tile_columns, tile + tile_rows * tile_columns, T{1});',
      'rows of padding have code 1',
    ],
    [
      'const int64_t from = order[column0 + c];',
      'const int64_t from = column0 + c;',
      'the order of columns is not heeded',
    ],
    [
      'uint32_t>(tile[element[i]]) << (i * bits)',
      'uint32_t>(tile[element[i]]) << ((slots - 1 - i) * bits)',
      'elements of a word are in reverse order',
    ],
    [
      'words[2 * i] = low[i], words[2 * i + 1] = high[i]',
      'words[2 * i] = high[i], words[2 * i + 1] = low[i]',
      'halves of four words are exchanged',
    ],
    [
      '(static_cast<uint32_t>(bits >> run->drop) & run->mask) << run->bit',
      '(static_cast<uint32_t>(bits >> (run->drop + 1)) & run->mask) << run->bit',
      'runs of bits are one bit off',
    ],
  ]),
  ...mutants('native/cpu/layout/plan.cpp', ALL, [
    ['return p - q + spec.order[static_cast<size_t>(q)];', 'return p;', 'the order of bits in words is not heeded'],
  ]),
  ...mutants(
    'native/cpu/layout/fuse.cpp',
    ['turbomind', 'sm86'],
    [
      [
        'f32_to_f16(-(static_cast<float>(z[i])',
        'f32_to_f16((static_cast<float>(z[i])',
        'the product of scale and zero point has the wrong sign',
      ],
      [
        'static_cast<uint32_t>(s[i]) | static_cast<uint32_t>(t) << 16',
        'static_cast<uint32_t>(t) | static_cast<uint32_t>(s[i]) << 16',
        'scale and product are exchanged',
      ],
    ],
  ),
  ...mutants(
    'native/cpu/layout/sparse.cpp',
    ['sparse_marlin'],
    [
      ['place[0] | place[1] << 2', 'place[1] | place[0] << 2', 'places of the two kept codes are exchanged'],
      [
        'out[2 * q + 1] = line[static_cast<size_t>(4 * q + place[1])];',
        'out[2 * q + 1] = line[static_cast<size_t>(4 * q + place[0])];',
        'the second kept code is the first',
      ],
    ],
  ),
];

/** A copy of the native part that builds beside the project. */
export class NativeCopy {
  private readonly tree: string;
  private readonly build: string;

  /** Builds it unchanged first, which takes minutes where no compiler cache has it. */
  constructor(dir: string) {
    this.tree = path.join(dir, 'tree');
    // Where the project's own is, so that a compiler cache knows its objects.
    this.build = path.join(this.tree, 'native', 'build');
    for (const room of ['native', 'scripts'])
      cpSync(path.join(ROOT, room), path.join(this.tree, room), {
        recursive: true,
        dereference: true,
        filter: (source) => source !== path.join(ROOT, 'native', 'build'),
      });
    cpSync(path.join(ROOT, 'package.json'), path.join(this.tree, 'package.json'));
    symlinkSync(path.join(ROOT, 'node_modules'), path.join(this.tree, 'node_modules'));
    this.make();
  }

  /** Builds with a mutant and runs `body` with the addon. */
  async with<T>({ file, find, replace }: Mutant, body: (addon: string) => Promise<T>): Promise<T> {
    const place = path.join(this.tree, file);
    const original = readFileSync(place, 'utf8');
    try {
      writeFileSync(place, replaced(file, original, find, replace));
      this.make();
      return await body(path.join(this.build, 'lpq.node'));
    } finally {
      writeFileSync(place, original);
    }
  }

  private make(): void {
    const run = spawnSync(process.execPath, [path.join(this.tree, 'scripts', 'install.mjs')], {
      encoding: 'utf8',
      env: { ...process.env, LPQ_BUILD_DIR: this.build, CCACHE_BASEDIR: this.tree },
    });
    if (run.status !== 0) throw new Error(`the native part does not build:\n${run.stdout}${run.stderr}`);
  }
}
