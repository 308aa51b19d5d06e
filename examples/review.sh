#!/bin/sh
# One capacity review, start to end: a model, a request log and this host in, a recommendation out.
# Usage: sh examples/review.sh [FOLDER_ON_THE_DRIVE_TO_MEASURE]
set -eu
drive=${1:-.}
mkdir -p demo

run() {
    echo
    echo "\$ $*"
    "$@"
}

run kvplan estimate --model llama-3.1-8b --engine vllm --gpu l4-24gb --max-model-len 8k --at 4k,8k -o demo/estimate.json
run kvplan workload examples/chat.jsonl.gz --tokenizer examples/tokenizer --tenant-by tenant -o demo/workload.json
run kvplan probe --disk "$drive" --budget 20s --write-budget 4GiB -o demo/host.json
run kvplan plan demo/estimate.json demo/workload.json demo/host.json --gpu l4-24gb -o demo/plan.json
run kvplan report demo/plan.json -o review.html -o review.md
