import type { ReportStage } from '../../formats/report/schema.js';

/** Where a run's time and memory go: one stage at a time, under names that may come again. */
export class StageClock {
  private readonly stages = new Map<string, { seconds: number; rss: number; device: number | null }>();
  private current: { readonly name: string; readonly started: number } | undefined;
  private readonly began = performance.now();

  /** `device`: bytes of device memory that were in use at most, null on the CPU. */
  constructor(private readonly device: () => number | null = () => null) {}

  /** Ends the current stage and begins `name`, or goes on with it. */
  enter(name: string): void {
    this.end();
    this.current = { name, started: performance.now() };
  }

  /** Looks at the memory, at a moment when there may be much of it in use. */
  sample(): void {
    if (this.current) this.add(this.current.name, 0);
  }

  end(): void {
    if (!this.current) return;
    const { name, started } = this.current;
    this.current = undefined;
    this.add(name, (performance.now() - started) / 1000);
  }

  /** Seconds since the clock was made. */
  seconds(): number {
    return (performance.now() - this.began) / 1000;
  }

  list(): ReportStage[] {
    return [...this.stages].map(([name, stage]) => ({ name, ...stage }));
  }

  private add(name: string, seconds: number): void {
    const stage = this.stages.get(name) ?? { seconds: 0, rss: 0, device: null };
    this.stages.set(name, {
      seconds: stage.seconds + seconds,
      rss: Math.max(stage.rss, process.memoryUsage.rss()),
      device: this.device() ?? stage.device,
    });
  }
}
