// The addon that comes compiled with the package: whether it fits the machine.
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';
import { fileURLToPath } from 'node:url';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

/** Oldest glibc that prebuilt addons load with (native/addon/old_glibc.cpp). */
export const OLDEST_GLIBC = '2.28';

/** Where the addon for this machine lies in a package. */
export const prebuiltPlace = path.join(root, 'prebuilds', `${process.platform}-${process.arch}`, 'lpq.node');

/** Why the prebuilt addon is not taken; undefined where it loads. */
export function prebuiltMisfit() {
  if (process.env.npm_config_build_from_source === 'true') return 'npm was told to build from source';
  if (!existsSync(prebuiltPlace)) return `there is none for ${process.platform} on ${process.arch}`;
  const glibc = process.report.getReport().header.glibcVersionRuntime;
  if (!glibc) return 'this Linux does not use glibc';
  const number = (version) => version.split('.').reduce((sum, part) => 1000 * sum + Number(part), 0);
  if (number(glibc) < number(OLDEST_GLIBC)) return `glibc is ${glibc}, it needs ${OLDEST_GLIBC}`;
  try {
    createRequire(import.meta.url)(prebuiltPlace);
    return undefined;
  } catch (error) {
    return error.message;
  }
}
