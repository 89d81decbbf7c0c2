// What compiled code loads: files of ours, and packages.
import { existsSync, readFileSync } from 'node:fs';
import { builtinModules } from 'node:module';
import path from 'node:path';

/** Specifiers of a module: static, dynamic, re-exports, createRequire(...)(NAME). Comments may add a few that resolve to nothing. */
function specifiers(text) {
  return [...text.matchAll(/(?:\bfrom\s*|\bimport\s*\(?\s*|\bcreateRequire\([\w.]+\)\()(['"])([^'"\n]+)\1/g)].map(
    (match) => match[2],
  );
}

// Names of directories and files that no code of a package loads.
const IDLE = /(^|\/)(tests?|__tests__|examples?|benchmarks?|\.github|\.bin)\/|\.(test|spec|min)\.[cm]?js$/;
const CODE = /\.([cm]?js|json|node|wasm)$/;
const LICENCE = /(^|\/)(licen[cs]e|copying|notice)[^/]*$/i;

/** Whether a file of a package (its path from the package) goes along: code and licence. */
export function isBundled(file) {
  return LICENCE.test(file) || (CODE.test(file) && !IDLE.test(file));
}

/** Files (from `root`) that `entries` reach through imports, and the packages they name. Absent entries are left out. */
export function closure(root, entries) {
  const files = new Set();
  const packages = new Set();
  const visit = (file) => {
    if (files.has(file) || !existsSync(path.join(root, file))) return;
    files.add(file);
    for (const specifier of specifiers(readFileSync(path.join(root, file), 'utf8')))
      if (specifier.startsWith('.')) visit(path.join(path.dirname(file), specifier));
      else if (!specifier.startsWith('node:') && !builtinModules.includes(specifier)) {
        const name = specifier.split('/', specifier.startsWith('@') ? 2 : 1).join('/');
        // The end of a string that has the word "from" in it looks like a specifier, too.
        if (/^(@[\w.-]+\/)?[\w.-]+$/.test(name)) packages.add(name);
      }
  };
  for (const entry of entries) visit(entry);
  return { files: [...files].sort(), packages: [...packages].sort() };
}

/** The installed packages of these names with all they depend on: directories from `root`, where npm put them. */
export function packagesOf(root, names) {
  const found = new Map();
  const visit = (name, from) => {
    let dir = from;
    for (;;) {
      const place = path.join(dir, 'node_modules', name);
      if (existsSync(path.join(root, place, 'package.json'))) {
        if (found.has(place)) return;
        const { version, dependencies = {} } = JSON.parse(readFileSync(path.join(root, place, 'package.json'), 'utf8'));
        found.set(place, { name, version, dir: place });
        for (const next of Object.keys(dependencies)) visit(next, place);
        return;
      }
      if (dir === '.') break;
      dir = path.dirname(dir);
    }
    throw new Error(`${from} needs the package ${name}, which is not installed: run npm ci`);
  };
  for (const name of names) visit(name, '.');
  return [...found.values()].sort((a, b) => (a.dir < b.dir ? -1 : 1));
}
