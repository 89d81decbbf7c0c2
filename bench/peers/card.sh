#!/bin/sh
# The cells of a card, on a host that has PyTorch and no network (docs/comparison.md): sh bench/peers/card.sh CARRIED OUT [SECONDS]
#
# CARRIED holds gptqmodel/, llmcompressor/ and autoround/ as scripts/wheels.mjs makes them. It may hold tiny-qwen3-moe/, a checkpoint, and
# smollm2/, of scripts/wheels too, with c4-sample.txt and wikitext2-test.txt in text/. OUT gets peers.json and the logs. No cell begins after
# SECONDS (250), and one on its way is stopped; a later call goes on where this one ended, while LPQ_CARD_WORK (/tmp/lpq-card) is there. Runs
# from the portable bundle or a checkout. Two GPUs take a lane of cells each. LPQ_CARD_DEVICE=cpu tries it without one, LPQ_CARD_ONLY names the
# cells, LPQ_CARD_PYTHON the Python that has PyTorch.
set -u
[ $# -ge 2 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 1; }
root=$(cd "$(dirname "$0")/../.." && pwd)
carried=$(cd "$1" && pwd) || exit 1
mkdir -p "$2" && out=$(cd "$2" && pwd) || exit 1
end=$(($(date +%s) + ${3:-250}))
work=${LPQ_CARD_WORK:-/tmp/lpq-card}
device=${LPQ_CARD_DEVICE:-cuda}
python=$(command -v "${LPQ_CARD_PYTHON:-python3}") || exit 1
node=$root/runtime/node
[ -x "$node" ] || node=$(command -v node) || exit 1
threads=$(nproc)
mkdir -p "$work/bin" "$work/shared/models" "$work/shared/text"

# A Python of each tool: the host's, with what was carried in front of it.
for tool in gptqmodel llmcompressor autoround smollm2; do
  [ -d "$carried/$tool" ] || continue
  [ -d "$work/site-$tool" ] || "$python" "$carried/$tool/install.py" --target "$work/site-$tool" --unpack &
  printf '#!/bin/sh\nPYTHONPATH=%s exec %s "$@"\n' "$work/site-$tool" "$python" >"$work/bin/$tool"
  chmod +x "$work/bin/$tool"
done
wait
export LPQ_GPTQMODEL_PYTHON="$work/bin/gptqmodel" LPQ_LLMCOMPRESSOR_PYTHON="$work/bin/llmcompressor" LPQ_AUTOROUND_PYTHON="$work/bin/autoround"

ln -sfn "$root/share/calibration/books.txt" "$work/shared/text/books-calibration.txt"
ln -sfn "$root/share/text/books-valid.txt" "$work/shared/text/books-valid.txt"
mixture=''
if [ -d "$carried/tiny-qwen3-moe" ]; then
  ln -sfn "$carried/tiny-qwen3-moe" "$work/shared/models/tiny-qwen3-moe"
  mixture='|tiny-qwen3-moe'
fi
export LPQ_SHARED="$work/shared"
for text in c4-sample.txt wikitext2-test.txt; do
  [ ! -e "$carried/text/$text" ] || ln -sfn "$carried/text/$text" "$work/shared/text/$text"
done
if [ -d "$work/site-smollm2" ]; then
  [ -e "$work/smollm2/tokenizer_config.json" ] || HF_HUB_OFFLINE=1 CUDA_VISIBLE_DEVICES='' "$work/bin/smollm2" "$root/bench/peers/make_smollm2.py" \
    "$work/smollm2" >"$out/smollm2.log" 2>&1 || echo "SmolLM2 could not be made: $out/smollm2.log"
  [ ! -e "$work/smollm2/tokenizer_config.json" ] || export LPQ_SMOLLM2="$work/smollm2"
fi

peers() { "$node" "$root/dist/bench/peers/run.js" --work "$work" --device "$device" --threads "$threads" --until "$end" "$@"; }
# One lane: its GPU, then the cells, most wanted first.
lane() {
  [ -z "$1" ] || export CUDA_VISIBLE_DEVICES="$1"
  shift
  for cells; do peers --only "$cells" --round 0; done
}
# What GPTQModel compiles for a machine when it first runs there is no part of its cells. The whole 8B model is drawn meanwhile.
warm() {
  [ ! -d "$work/warm" ] || return 0
  [ "$device" = cpu ] || peers --only "$whole" --prepare &
  printf '[%s]' "$(seq -s, 1 64)" | sed 's/.*/[&,&,&,&]/' >"$work/warm.json"
  LPQ_PEER_DEVICE=$device OMP_NUM_THREADS=$threads timeout $((end - $(date +%s))) "$work/bin/gptqmodel" "$root/bench/peers/drive_gptqmodel.py" \
    "$root/share/tiny-llama" "$work/warm.json" "$work/warm" 4 64 >"$out/warm.log" 2>&1 || echo "GPTQModel's first run failed: $out/warm.log"
  wait
}

solved='(gptqmodel|llmcompressor)'
whole='^llama-8b-w4-lpq$'
two='^llama-8b-two-blocks-w4'
four='^llama-8b-four-blocks-w4'
small="^(tiny-llama$mixture)"
real='^smollm2-w4-(lpq|lpq-tune200|gptqmodel|llmcompressor|autoround-200)$'
quality="$small-w4-(lpq|lpq-tune200|gptqmodel|llmcompressor|autoround-200)\$"
narrow="$small-w[32]-(lpq|gptqmodel|llmcompressor)\$"
# Those that this process may use.
if [ -n "${CUDA_VISIBLE_DEVICES:-}" ]; then
  gpus=$(printf '%s' "$CUDA_VISIBLE_DEVICES" | tr ',' '\n' | grep -c .)
else
  gpus=$(nvidia-smi --list-gpus 2>/dev/null | wc -l)
fi
if [ -n "${LPQ_CARD_ONLY:-}" ]; then
  warm
  lane '' "$LPQ_CARD_ONLY"
elif [ "$gpus" -ge 2 ]; then
  threads=$((threads / 2))
  # Made before, since both lanes read it.
  peers --only "$two|$four|$quality" --prepare
  (export CUDA_VISIBLE_DEVICES=0 && warm && lane 0 "$two-$solved\$" "$whole" "$four-$solved\$" "$real" "$narrow") &
  lane 1 "$two-lpq(-tune200)?\$" "$two-autoround" "$four-autoround" "$four-lpq-tune200" "$quality" &
  wait
else
  warm
  lane '' "$two-lpq(-tune200)?\$" "$two-$solved\$" "$whole" "$two-autoround" "$quality" \
    "$four-$solved\$" "$four-autoround" "$four-lpq-tune200" "$real" "$narrow"
fi
# Perplexities may be read after the others' time.
end=$(($(date +%s) + 60))
peers --only '^tiny-llama' --evaluate --read-by lpq &
peers --only "^(none$mixture|smollm2)" --evaluate --read-by lpq &
wait
peers --json "$out/peers.json" --only "$two|$four|^llama-8b-w4|$small|^smollm2" --list
tar -C "$work" -czf "$out/logs.tar.gz" logs cells
