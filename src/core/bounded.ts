import vm from 'node:vm';

/** V8 ends a script when its time is over, within a regular expression too; what it calls may be of this realm. */
const context = vm.createContext({ work: () => {} });
const script = new vm.Script('work()');

/** What `work` gives, which is ended after so many seconds: then `late` says what is thrown. */
export function bounded<T>(seconds: number, work: () => T, late: (cause: unknown) => Error): T {
  const outer = context.work;
  let result: T | undefined;
  context.work = () => {
    result = work();
  };
  try {
    script.runInContext(context, { timeout: Math.max(1, Math.ceil(1000 * seconds)) });
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).code === 'ERR_SCRIPT_EXECUTION_TIMEOUT') throw late(cause);
    throw cause;
  } finally {
    context.work = outer;
  }
  return result as T;
}
