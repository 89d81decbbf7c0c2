import type { ScaleTraining } from '../../quantize/model-task.js';
import type { StageClock } from '../../report/clock.js';
import type { Run } from '../run.js';

/** Shows the steps on the whole model, before the first of which `begun` is called, and tells what they came to. */
export function modelSteps(
  run: Run,
  clock: StageClock | undefined,
  begun: () => void,
): { step(step: number, of: number): void; tell(training: ScaleTraining | undefined): void } {
  let task: ReturnType<typeof run.report.task> | undefined;
  return {
    step: (step, of) => {
      run.interrupt.check();
      if (!task) {
        begun();
        task = run.report.task('train scales', of);
        clock?.enter('train scales');
      }
      clock?.sample();
      task.update(step, `step ${step} of ${of}`);
    },
    tell: (training) => {
      task?.end();
      if (!training) return;
      const { kept, steps, heldOut, curve } = training;
      const at = (step: number) => (curve.find((look) => look.step === step)?.loss ?? Number.NaN).toPrecision(4);
      run.report.event(
        'scales',
        training,
        `scales trained: KL to the unquantized model ${at(0)} to ${at(kept)} nats on ${heldOut.toLocaleString('en')} held-out tokens, step ${kept} of ${steps}`,
      );
    },
  };
}
