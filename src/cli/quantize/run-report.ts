import os from 'node:os';
import path from 'node:path';
import type { Evaluation } from '../../../formats/report/schema.js';
import { withBeside } from '../../../native/beside.js';
import type { NativeRuntime } from '../../../native/binding.js';
import type { Span } from '../../quantize/events.js';
import type { QuantizeSummary } from '../../quantize/run.js';
import { buildReport } from '../../report/build.js';
import { StageClock } from '../../report/clock.js';
import { writeReport } from '../../report/write.js';
import type { Run } from '../run.js';

/** Notes where a quantization's time and memory go, and writes its report when it has ended. */
export class RunReport {
  readonly clock: StageClock;
  private readonly waits = { read: 0, write: 0 };

  constructor(private readonly rts: readonly NativeRuntime[]) {
    this.clock = new StageClock(() => {
      const used = withBeside(rts).flatMap((rt) => rt.memory()?.peakUsed ?? []);
      return used.length > 0 ? used.reduce((a, b) => a + b, 0) : null;
    });
  }

  span(span: Span, seconds: number): void {
    if (span !== 'block') this.waits[span] += seconds;
  }

  /** The output is complete: a report that cannot be written is no reason to fail. */
  async write(
    output: string,
    { modules, scaleTraining }: Pick<QuantizeSummary, 'modules' | 'scaleTraining'>,
    { peak, evaluation }: { readonly peak: number; readonly evaluation: Evaluation | undefined },
    run: Run,
    named = output,
  ): Promise<void> {
    this.clock.end();
    const { readManifest } = await import('../../../formats/canonical/read.js');
    const { canonicalSchema } = await import('../../../formats/canonical/schema.js');
    const report = buildReport(output, readManifest(output, canonicalSchema, 'LPQ_CANONICAL'), {
      modules,
      seconds: this.clock.seconds(),
      peakRss: peak,
      stages: this.clock.list(),
      waits: this.waits,
      evaluations: evaluation ? [evaluation] : [],
      scaleTraining,
      machine: {
        cpu: os.cpus()[0]?.model.trim() ?? 'unknown',
        cores: os.availableParallelism(),
        memory: os.totalmem(),
        device: [...new Set(this.rts.map(({ device }) => device))].join(', '),
      },
    });
    try {
      const { json, html } = await writeReport(named, report);
      run.report.event('report', { json, html }, `report in ${path.relative('.', html) || html}`);
    } catch (error) {
      run.report.warn(`the report was not written: ${(error as Error).message}`);
    }
  }
}
