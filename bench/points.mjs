// node bench/points.mjs [COUNT] [SEED]: random points KxN@M for `lpq_gpu_bench_kernels --set points` (LPQ_BENCH_POINTS): linears of
// published models, parts of them under tensor parallelism among them, and 1 to 2048 tokens, each octave as likely as another.
// hidden, intermediate, queries and keys (heads times their size)
const MODELS = {
  'gemma-3-4b': [2560, 10240, 2048, 1024],
  'gemma-3-12b': [3840, 15360, 4096, 2048],
  'gemma-3-27b': [5376, 21504, 4096, 2048],
  'llama-3.1-8b': [4096, 14336, 4096, 1024],
  'llama-3.1-70b': [8192, 28672, 8192, 1024],
  'llama-3.2-3b': [3072, 8192, 3072, 1024],
  'mistral-small-24b': [5120, 32768, 4096, 1024],
  'olmo-3-32b': [5120, 27648, 5120, 1024],
  'phi-4': [5120, 17920, 5120, 1280],
  'qwen2.5-7b': [3584, 18944, 3584, 512],
  'qwen2.5-72b': [8192, 29568, 8192, 1024],
  'qwen3-4b': [2560, 9728, 4096, 1024],
  'qwen3-8b': [4096, 12288, 4096, 1024],
  'qwen3-14b': [5120, 17408, 5120, 1024],
  'qwen3-32b': [5120, 25600, 8192, 1024],
  'seed-oss-36b': [5120, 27648, 10240, 1024],
};
const LEAST_WEIGHTS = 4e6;

/** The linears of a model as one of `ranks` has them: [K, N]. */
function linearsOf([hidden, intermediate, queries, keys], ranks) {
  return [
    [hidden, (queries + 2 * keys) / ranks],
    [queries / ranks, hidden],
    [hidden, (2 * intermediate) / ranks],
    [intermediate / ranks, hidden],
  ].filter(([k, n]) => k % 128 === 0 && n % 32 === 0 && k * n >= LEAST_WEIGHTS);
}

const [count, seed] = [Number(process.argv[2] ?? 120), Number(process.argv[3] ?? 1)];
let state = seed >>> 0;
/** Uniform in [0, 1): mulberry32. */
function random() {
  state = (state + 0x6d2b79f5) >>> 0;
  let t = Math.imul(state ^ (state >>> 15), state | 1);
  t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
  return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
}
const one = (list) => list[Math.floor(random() * list.length)];
const points = Array.from({ length: count }, () => {
  const model = one(Object.values(MODELS));
  const linears = [4, 2, 1, 1]
    .slice(Math.floor(random() * 4))
    .map((ranks) => linearsOf(model, ranks))
    .find((list) => list.length > 0);
  const [k, n] = one(linears);
  return `${k}x${n}@${Math.max(1, Math.round(2 ** (random() * 11)))}`;
});
console.log(points.join(','));
