import path from 'node:path';
import type { PartialMode } from '../../../formats/directory/partial.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import { modelDirectory } from '../options/hub.js';
import { isReadableForeign, requireDirectory, requireKind } from '../options/sources.js';
import type { Run } from '../run.js';
import type { QuantizeFlags, QuantizeOptions } from './options.js';

/**
 * The directory of the model, and where an adapter is merged into it one that stands for both. `makes`: what the command will write,
 * which may lie in none of what it reads. Throws what modelDirectory throws, LPQ_LORA, LPQ_USAGE.
 */
export async function openedSource(
  given: string,
  { lora, requantize, stream, shard }: Pick<QuantizeFlags, 'lora' | 'requantize' | 'stream' | 'shard'>,
  partial: PartialMode,
  makes: readonly (string | undefined)[],
  run: Run,
): Promise<Pick<QuantizeOptions, 'source' | 'lora' | 'requantize'>> {
  const { refuseInside } = await import('../../../formats/directory/place.js');
  const source = stream
    ? await (await import('./stream.js')).streamedDirectory(
        given,
        { output: outputOf(makes), partial, ...(shard && { shard }) },
        run,
      )
    : await modelDirectory(given, run, { events: true });
  if (requantize) await allowAgain(source);
  else await requireKind(source, 'source');
  const adapter = lora === undefined ? undefined : await modelDirectory(lora, run, { events: true });
  for (const made of makes)
    for (const read of [source, adapter]) if (made !== undefined && read !== undefined) refuseInside(made, read);
  const found = adapter === undefined ? { source } : await merged(source, given, adapter, run);
  return { ...found, ...(requantize && { requantize }) };
}

/** The first of what is made: shards lie beside it. */
const outputOf = (makes: readonly (string | undefined)[]) => makes.find((made) => made !== undefined) as string;

/** Throws LPQ_USAGE for a model whose own weights are there, LPQ_CONFIG for what lpq does not read. */
async function allowAgain(source: string): Promise<void> {
  const { isSource } = await import('../../../formats/canonical/source.js');
  const { allowRequantizing } = await import('../../../formats/foreign/decoded.js');
  requireDirectory(source);
  if (isSource(source))
    throw new LpqError('LPQ_USAGE', `--requantize has no effect on ${source}, which is read without it`);
  if (!(await isReadableForeign(source))) return requireKind(source, 'source');
  allowRequantizing(source);
}

async function merged(source: string, given: string, adapter: string, run: Run) {
  const { loraDirectory } = await import('../../../formats/lora/directory.js');
  const { readAdapterConfig } = await import('../../../formats/lora/config.js');
  const { allowRequantizing, allowsRequantizing } = await import('../../../formats/foreign/decoded.js');
  const { Adapter } = await import('../../../formats/lora/adapter.js');
  const { hashFile } = await import('../../../formats/artifact/write.js');
  const { SourceCheckpoint } = await import('../../../formats/canonical/source.js');
  const { directoryOrigin } = await import('../../../formats/directory/origin.js');
  const { openModel } = await import('../../model/graph.js');
  const { setStream, streamOf } = await import('../../../formats/safetensors/stream.js');
  readAdapterConfig(adapter); // what is wrong with it is told before the model is read
  const checkpoint = SourceCheckpoint.open(source);
  try {
    const graph = openModel(checkpoint);
    const merge = {
      adapter: path.resolve(adapter),
      transposed: graph.transposed,
      tied: graph.head.tied ? `${graph.head.name}.weight` : undefined,
    };
    const opened = Adapter.open(merge.adapter, checkpoint, merge);
    const { base_model_name_or_path: base } = opened.config;
    const { name } = directoryOrigin(source);
    opened.close();
    if (typeof base === 'string' && base.split('/').at(-1) !== name.split('/').at(-1))
      run.report.warn(`the adapter was trained on ${base}, and the model is ${name}, but its tensors fit`);
    run.report.event(
      'lora',
      { adapter, tensors: opened.edits.size },
      `merging ${adapter} into ${counted(opened.edits.size, 'tensor')}`,
    );
    const dir = loraDirectory(source, merge);
    if (allowsRequantizing(source)) allowRequantizing(dir);
    const stream = streamOf(source);
    if (stream) setStream(dir, stream);
    run.report.standsFor(dir, given);
    const sha256 = await hashFile(path.join(adapter, 'adapter_model.safetensors'));
    return { source: dir, lora: { name: directoryOrigin(adapter).name, sha256 } };
  } finally {
    checkpoint.close();
  }
}
