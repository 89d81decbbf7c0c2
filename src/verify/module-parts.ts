import type { PackedModule } from '../../formats/artifact/schema.js';
import { type HashedFacts, hashTensor } from '../../formats/safetensors/hash.js';
import type { Tensor } from '../../native/binding.js';
import { canonicalFacts, type Decoded, type DecodedPart } from './decode.js';
import { placeOf } from './native.js';
import type { CheckName, Recorder } from './report.js';

/** The bytes of a stored tensor against the hash of what was packed. */
export async function checkHash(
  recorder: Recorder,
  file: { tensor(name: string): Tensor; spec(name: string): HashedFacts },
  where: { readonly check: CheckName; readonly module?: string; readonly tensor: string },
  expected: string,
): Promise<void> {
  const tensor = file.tensor(where.tensor);
  const got = await hashTensor(file.spec(where.tensor), tensor);
  tensor.dispose();
  const message = `the bytes of '${where.tensor}' have changed since they were packed`;
  recorder.check(got === expected, { ...where, got, expected, message });
}

/** What decoding came upon, under the check padding. */
export function recordProblems(recorder: Recorder, module: string, problems: Decoded['problems']): void {
  recorder.count('padding');
  for (const { tensor, wrong, what } of problems) {
    const { count, row, column, got, expected } = wrong;
    const values = `got ${got}, expected ${expected} (${count} such values)`;
    const message = `'${tensor}': ${what}, first at row ${row}, column ${column}: ${values}`;
    recorder.failures.push({ check: 'padding', module, tensor, ...placeOf(wrong), message });
  }
}

/** Decoded parts against the hashes of what was packed. `named`: a comparison with the quantized checkpoint says where. */
export async function checkCanonical(
  recorder: Recorder,
  name: string,
  module: PackedModule,
  parts: Decoded['parts'],
  named: boolean,
): Promise<void> {
  for (const [part, expected] of Object.entries(module.canonical)) {
    if (expected === undefined) continue;
    const tensor = parts.get(part as DecodedPart);
    const facts = { check: 'canonical', module: name } as const;
    if (tensor) {
      const got = await hashTensor(canonicalFacts(name, part as DecodedPart, tensor), tensor);
      const hint = named ? '' : ' (--against QUANTIZED names the row and column)';
      const message = `module '${name}': the ${part} in its packed bytes differ from the quantized ones${hint}`;
      recorder.check(got === expected, { ...facts, got, expected, message });
    } else if (module.layout !== 'dense') {
      // A dense module has its weight only; every other layout must bring back all that was hashed.
      const message = `module '${name}': layout ${module.layout} does not hold the ${part} that the manifest has a hash of`;
      recorder.check(false, { ...facts, message });
    }
  }
}
