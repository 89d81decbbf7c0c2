import type { Tensor } from '../../native/binding.js';

/**
 * Bytes that tensors hold, in the order of the program: from when they are made until the last view is let go of. A queue that is
 * behind holds some of them longer; what is counted here is what the program needs.
 */
export class Ledger {
  /** The most so far. */
  peak = 0;
  private held = 0;
  /** Not let go of yet. */
  private readonly open = new Set<Tensor>();
  private readonly unseen = new WeakMap<Tensor, Tensor['view']>();

  /** The same tensor, whose views and end are followed. */
  adopt(tensor: Tensor): Tensor {
    const bytes = tensor.byteLength;
    let views = 0;
    const follow = (each: Tensor): Tensor => {
      const [view, dispose] = [each.view.bind(each), each.dispose.bind(each)];
      views++;
      this.open.add(each);
      this.unseen.set(each, view);
      const members: Pick<Tensor, 'view' | 'dispose'> = {
        view: (shape, first) => follow(view(shape, first)),
        dispose: () => {
          if (!this.open.delete(each)) return;
          dispose();
          views--;
          if (views === 0) this.held -= bytes;
        },
      };
      for (const [name, value] of Object.entries(members)) Object.defineProperty(each, name, { value });
      return each;
    };
    this.held += bytes;
    this.peak = Math.max(this.peak, this.held);
    return follow(tensor);
  }

  /** A view that is not followed. */
  view(tensor: Tensor): Tensor {
    const view = this.unseen.get(tensor);
    return view ? view(tensor.shape) : tensor.view(tensor.shape);
  }

  /** Lets go of what nobody else did. */
  dispose(): void {
    for (const tensor of [...this.open]) tensor.dispose();
  }
}
