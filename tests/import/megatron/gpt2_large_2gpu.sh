#!/bin/bash
# GPT-2 large on two H200, one way of parallelism at a time:
#   TP_SIZE=2 MICRO_BATCH_SIZE=64 ./gpt2_large_2gpu.sh
# What the logs of these runs show: 36 blocks of 1280 features, fp16 (loss scale 131072), a peak learning rate of 6e-5
# after 430 iterations, 500,000 iterations. The rest is as in Megatron-LM's GPT-3 example.

export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=${GPUS_PER_NODE:-2}
MASTER_ADDR=localhost
MASTER_PORT=6000
NUM_NODES=1
NODE_RANK=0

TP_SIZE=${TP_SIZE:-1}
PP_SIZE=${PP_SIZE:-1}
CP_SIZE=${CP_SIZE:-1}
MICRO_BATCH_SIZE=${MICRO_BATCH_SIZE:-32}
GLOBAL_BATCH_SIZE=${GLOBAL_BATCH_SIZE:-$((32 * GPUS_PER_NODE * NUM_NODES))}

CHECKPOINT_PATH=checkpoints/gpt2-large
TENSORBOARD_LOGS_PATH=tensorboard/gpt2-large
VOCAB_FILE=gpt2/vocab.json
MERGE_FILE=gpt2/merges.txt
DATA_PATH=owt-ds/openwebtext-10k_text_document

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES
    --master_addr $MASTER_ADDR
    --master_port $MASTER_PORT
)

GPT_MODEL_ARGS=(
    --num-layers 36
    --hidden-size 1280
    --num-attention-heads 20
    --seq-length 1024
    --max-position-embeddings 1024
    --attention-backend auto   # can use (flash/fused/unfused/local)
)

TRAINING_ARGS=(
    --micro-batch-size $MICRO_BATCH_SIZE
    --global-batch-size ${GLOBAL_BATCH_SIZE}
    --train-iters 500000
    --weight-decay 0.1
    --adam-beta1 0.9
    --adam-beta2 0.95
    --init-method-std 0.006
    --clip-grad 1.0
    --fp16
    --lr 6.0e-5
    --lr-decay-style cosine
    --min-lr 6.0e-6
    --lr-warmup-fraction .001
    --lr-decay-iters 430000
)

MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP_SIZE
    --pipeline-model-parallel-size $PP_SIZE
    --context-parallel-size $CP_SIZE
)
if [ "${SEQUENCE_PARALLEL:-no}" = "yes" ]; then
    MODEL_PARALLEL_ARGS+=(--sequence-parallel)
fi

DATA_ARGS=(
    --data-path $DATA_PATH
    --tokenizer-type GPT2BPETokenizer
    --vocab-file $VOCAB_FILE
    --merge-file $MERGE_FILE
    --split 949,50,1
)

EVAL_AND_LOGGING_ARGS=(
    --log-interval 1
    --save-interval 10000
    --eval-interval 1000
    --save $CHECKPOINT_PATH
    --load $CHECKPOINT_PATH
    --eval-iters 10
    --tensorboard-dir $TENSORBOARD_LOGS_PATH
    --wandb-project gpt2-large
)

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    ${GPT_MODEL_ARGS[@]} \
    ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} \
    ${DATA_ARGS[@]} \
    ${EVAL_AND_LOGGING_ARGS[@]}
