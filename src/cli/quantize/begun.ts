import type { SourceCheckpoint } from '../../../formats/canonical/source.js';
import { BegunModules } from '../../quantize/begun.js';
import { plannedModules } from '../../quantize/plan.js';
import type { QuantizeRequest } from '../../quantize/run.js';
import { SourceView } from '../../quantize/source-view.js';
import type { FullSettings } from './settings.js';

/** The checkpoint that training begins with (--from). Throws LPQ_REDO where it is not one of this run's model and options. */
export function beginning(
  from: string,
  source: SourceCheckpoint,
  { settings, ...request }: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead'> & { readonly settings: FullSettings },
): BegunModules {
  const planned = plannedModules(source, { ...request, ...(settings.mtp && { mtp: settings.mtp }) });
  return BegunModules.open(from, new SourceView(source), planned);
}
