#!/bin/bash
# GPT-3 of 36 layers and 4096 features on HyperPod (p5.48xlarge: 8 H100), what a PyTorchJob's worker runs. Its log shows
# one worker: 288 microbatches, 941594624 parameters on a rank. Rates and dropout are those of the GPT-3 example.

export INSTANCE_TYPE=ml.p5.48xlarge
export GPU_PER_NODE=8
export EFA_PER_NODE=32
export NUM_NODES=${NUM_NODES:-1}

export TENSOR_PARALLEL=8
export PIPELINE_PARALLEL=1
export NUM_LAYERS=36
export HIDDEN_SIZE=4096
export NUM_ATTENTION_HEADS=32
export SEQ_LENGTH=2048
export MAX_POSITION_EMBEDDINGS=2048
export MICRO_BATCH_SIZE=1
export GLOBAL_BATCH_SIZE=288

torchrun --nproc_per_node=${GPU_PER_NODE} --nnodes=${NUM_NODES} --rdzv_backend=etcd --rdzv_endpoint=etcd:2379 \
        /workspace/Megatron-LM/pretrain_gpt.py \
        --tensor-model-parallel-size ${TENSOR_PARALLEL} \
        --pipeline-model-parallel-size ${PIPELINE_PARALLEL} \
        --num-layers ${NUM_LAYERS} \
        --hidden-size ${HIDDEN_SIZE} \
        --num-attention-heads ${NUM_ATTENTION_HEADS} \
        --seq-length ${SEQ_LENGTH} \
        --max-position-embeddings ${MAX_POSITION_EMBEDDINGS} \
        --micro-batch-size ${MICRO_BATCH_SIZE} \
        --global-batch-size ${GLOBAL_BATCH_SIZE} \
        --train-samples 146484375 \
        --lr-decay-samples 126953125 \
        --lr-warmup-samples 183105 \
        --lr 6.0e-5 \
        --min-lr 6.0e-6 \
        --lr-decay-style cosine \
        --log-interval 1 \
        --eval-iters 40 \
        --eval-interval 1000 \
        --data-path /fsx/gpt2/my-gpt2_text_document \
        --vocab-file /fsx/gpt2/gpt2-vocab.json \
        --merge-file /fsx/gpt2/gpt2-merges.txt \
        --tokenizer-type GPT2BPETokenizer \
        --split 98,2,0 \
        --clip-grad 1.0 \
        --weight-decay 0.1 \
        --adam-beta1 0.9 \
        --adam-beta2 0.95 \
        --init-method-std 0.006 \
        --fp16 \
        --recompute-activations
