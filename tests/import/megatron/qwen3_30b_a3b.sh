#!/bin/bash
# A model like Qwen3 30B-A3B on 2 nodes of 8 GPUs: whole experts on the ranks of tp.
NNODES=2
GPUS_PER_NODE=8
TP=2
EP=8

MODEL_ARGS="
    --num-layers 48
    --hidden-size 2048
    --ffn-hidden-size 6144
    --num-attention-heads 32
    --kv-channels 128
    --group-query-attention
    --num-query-groups 4
    --qk-layernorm
    --seq-length 4096
    --max-position-embeddings 40960
    --position-embedding-type rope
    --rotary-base 1000000
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0
    --hidden-dropout 0
    --vocab-size 151936
"
MOE_ARGS="
    --num-experts 128
    --moe-ffn-hidden-size 768
    --moe-router-topk 8
    --moe-router-dtype fp32
    --moe-router-load-balancing-type aux_loss
    --moe-aux-loss-coeff 1e-3
    --moe-z-loss-coeff 1e-4
    --moe-layer-freq 1
    --moe-token-dispatcher-type flex
    --moe-enable-deepep
    --moe-grouped-gemm
    --moe-permute-fusion
"
PARALLEL_ARGS="
    --tensor-model-parallel-size $TP
    --sequence-parallel
    --expert-model-parallel-size $EP
    --expert-tensor-parallel-size 1
    --use-distributed-optimizer
    --overlap-grad-reduce
    --overlap-param-gather
"
TRAINING_ARGS="
    --micro-batch-size 1
    --global-batch-size 512
    --train-iters 20000
    --lr 3e-4
    --min-lr 3e-5
    --lr-decay-style cosine
    --lr-warmup-iters 1000
    --weight-decay 0.1
    --adam-beta2 0.95
    --clip-grad 1.0
    --bf16
    --recompute-granularity full
    --recompute-method uniform
    --recompute-num-layers 1
    --data-path data/corpus_text_document
    --split 99,1,0
    --eval-interval 500
    --eval-iters 20
"

python -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES pretrain_gpt.py \
    $MODEL_ARGS $MOE_ARGS $PARALLEL_ARGS $TRAINING_ARGS
