/** Files that say nothing to a loader. */
const SPOKEN = /^(README[^/]*|LICENSE[^/]*|\.gitattributes)$/;

export function harmlessFile(name: string): string | undefined {
  return SPOKEN.test(name) ? 'for people, no loader reads it' : undefined;
}

/** Of lpq.json: what docs/verification.md says is the packer's word alone. */
export function harmlessManifest(path: string): string | undefined {
  return /^modules\..*\.notes($|\[)/.test(path) ? 'a note for people' : undefined;
}

/** Layouts of a device's target are those of the targets of one layout: loaders read each module's own. */
export function harmlessTarget(from: string, to: string): string | undefined {
  const plain = ['marlin', 'turbomind', 'tilus'];
  const device = (name: string) => /^sm\d+$/.test(name);
  return (plain.includes(from) && device(to)) || (device(from) && (plain.includes(to) || device(to)))
    ? 'another name for the same layouts'
    : undefined;
}

/** Of quantization_config, with so many config groups. */
export function harmlessQuantization(path: string, what: string, groups: number): string | undefined {
  if (/^quantization_config\.config_groups\.\w+$/.test(path) && what.startsWith('renamed'))
    return 'the name of a group means nothing';
  if (/\.(ignore|targets|modules_to_not_convert)$/.test(path) && what.endsWith('exchanged'))
    return 'the order of names means nothing';
  // Beside the class, and behind `ignore`, a pattern claims no further module.
  if (/\.targets$/.test(path) && what.startsWith('"re:') && groups === 1)
    return 'another of several ways to name the same modules';
  return undefined;
}
