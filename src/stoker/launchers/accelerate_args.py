"""The arguments of `accelerate launch` as data: names, types and choices of version 1.15.

From its own parser (https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/commands/launch.py). What a
newer version adds is asked of the installed one; `tests/launchers/test_accelerate_args.py` holds the two together.
"""

from __future__ import annotations

from typing import Final, Mapping

from stoker.core.launch_arguments import Argument

SCRIPT: Final = "what is launched is Stoker's worker, which calls the step"
PLACE: Final = "each node learns its place, the head's address and a free port when it starts"
NODES: Final = "Stoker starts the launcher on every node itself, with the devices that the step holds"
LEASED: Final = "the step runs on the devices that it holds; resources.gpu_count says how many"
SECRET: Final = "a command line can be read by everybody on the machine; SageMaker is no launcher of ranks"

FLAG: Final = Argument("flag")
INT: Final = Argument("int")
FLOAT: Final = Argument("float")
TEXT: Final = Argument("text")
TRUTH: Final = Argument("truth")
YESNO: Final = Argument("yesno")
NAMES: Final = Argument("names")

ARGUMENTS: Final[Mapping[str, Argument]] = {
    # positional arguments
    "training_script": Argument("text", owned=SCRIPT),
    "training_script_args": Argument("text", owned=SCRIPT),
    # options
    "config_file": TEXT,
    "quiet": FLAG,
    "module": Argument("flag", owned=SCRIPT),
    "no_python": Argument("flag", owned=SCRIPT),
    "debug": FLAG,
    # Hardware Selection Arguments
    "cpu": FLAG,
    "multi_gpu": FLAG,
    "tpu": FLAG,
    # Resource Selection Arguments
    "mixed_precision": Argument("text", ("no", "fp16", "bf16", "fp8")),
    "num_processes": Argument("int", means="num_processes"),
    "num_machines": Argument("int", means="nodes"),
    "num_cpu_threads_per_process": INT,
    "enable_cpu_affinity": FLAG,
    "dynamo_backend": Argument(
        "text",
        (
            "no",
            "eager",
            "aot_eager",
            "inductor",
            "aot_ts_nvfuser",
            "nvprims_nvfuser",
            "cudagraphs",
            "ofi",
            "fx2trt",
            "onnxrt",
            "tensorrt",
            "aot_torchxla_trace_once",
            "torhchxla_trace_once",
            "tvm",
        ),
    ),
    "dynamo_mode": Argument("text", ("default", "reduce-overhead", "max-autotune")),
    "dynamo_use_fullgraph": FLAG,
    "dynamo_use_dynamic": FLAG,
    "dynamo_use_regional_compilation": FLAG,
    # Training Paradigm Arguments
    "use_deepspeed": FLAG,
    "use_fsdp": FLAG,
    "use_parallelism_config": FLAG,
    "use_megatron_lm": FLAG,
    # Distributed GPUs
    "gpu_ids": Argument("names", owned=LEASED),
    "same_network": FLAG,
    "machine_rank": Argument("int", owned=PLACE),
    "main_process_ip": Argument("text", owned=PLACE),
    "main_process_port": INT,
    "tee": TEXT,
    "log_dir": TEXT,
    "role": TEXT,
    "rdzv_backend": TEXT,
    "rdzv_conf": Argument("pairs"),
    "max_restarts": INT,
    "monitor_interval": FLOAT,
    # TPU
    "tpu_use_cluster": Argument("switch", flag="--tpu_cluster", off="--no_tpu_cluster"),
    "tpu_use_sudo": FLAG,
    "vm": Argument("texts", owned=NODES),
    "env": Argument("texts"),
    "main_training_function": Argument("text", owned=SCRIPT),
    "downcast_bf16": FLAG,
    # DeepSpeed Arguments
    "deepspeed_config_file": TEXT,
    "zero_stage": INT,
    "offload_optimizer_device": TEXT,
    "offload_param_device": TEXT,
    "offload_optimizer_nvme_path": TEXT,
    "offload_param_nvme_path": TEXT,
    "gradient_accumulation_steps": INT,
    "gradient_clipping": FLOAT,
    "zero3_init_flag": YESNO,
    "zero3_save_16bit_model": YESNO,
    "deepspeed_hostfile": Argument("text", owned=NODES),
    "deepspeed_exclusion_filter": Argument("text", owned=NODES),
    "deepspeed_inclusion_filter": Argument("text", owned=NODES),
    "deepspeed_multinode_launcher": Argument("text", owned=NODES),
    "deepspeed_moe_layer_cls_names": NAMES,
    # FSDP Arguments
    "fsdp_version": Argument("text", ("1", "2")),
    "fsdp_offload_params": YESNO,
    "fsdp_min_num_params": INT,
    "fsdp_sharding_strategy": TEXT,
    "fsdp_reshard_after_forward": Argument(
        "yesno", ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
    ),
    "fsdp_auto_wrap_policy": TEXT,
    "fsdp_transformer_layer_cls_to_wrap": NAMES,
    "fsdp_backward_prefetch": TEXT,
    "fsdp_state_dict_type": TEXT,
    "fsdp_forward_prefetch": YESNO,
    "fsdp_use_orig_params": YESNO,
    "fsdp_cpu_ram_efficient_loading": YESNO,
    "fsdp_sync_module_states": YESNO,
    "fsdp_activation_checkpointing": YESNO,
    "fsdp_activation_checkpointing_offload": YESNO,
    # Megatron-LM Arguments
    "megatron_lm_tp_degree": INT,
    "megatron_lm_use_custom_fsdp": TRUTH,
    "megatron_lm_no_load_optim": TRUTH,
    "megatron_lm_eod_mask_loss": TRUTH,
    "megatron_lm_overlap_cpu_optimizer_d2h_h2d": TRUTH,
    "megatron_lm_no_save_optim": TRUTH,
    "megatron_lm_optimizer_cpu_offload": TRUTH,
    "megatron_lm_use_precision_aware_optimizer": TRUTH,
    "megatron_lm_decoder_last_pipeline_num_layers": INT,
    "megatron_lm_pp_degree": INT,
    "megatron_lm_num_micro_batches": INT,
    "megatron_lm_sequence_parallelism": YESNO,
    "megatron_lm_recompute_activations": YESNO,
    "megatron_lm_use_distributed_optimizer": YESNO,
    "megatron_lm_gradient_clipping": FLOAT,
    "megatron_lm_recompute_granularity": TEXT,
    "megatron_lm_recompute_method": TEXT,
    "megatron_lm_recompute_num_layers": INT,
    "megatron_lm_attention_backend": TEXT,
    "megatron_lm_expert_model_parallel_size": INT,
    "megatron_lm_context_parallel_size": INT,
    "megatron_lm_attention_dropout": FLOAT,
    "megatron_lm_hidden_dropout": FLOAT,
    "megatron_lm_attention_softmax_in_fp32": YESNO,
    "megatron_lm_expert_tensor_parallel_size": INT,
    "megatron_lm_calculate_per_token_loss": YESNO,
    "megatron_lm_use_rotary_position_embeddings": YESNO,
    # FP8 Arguments
    "fp8_backend": Argument("text", ("ao", "te", "msamp")),
    "fp8_use_autocast_during_eval": FLAG,
    "fp8_margin": INT,
    "fp8_interval": INT,
    "fp8_format": Argument("text", ("HYBRID", "E4M3", "E5M2")),
    "fp8_amax_history_len": INT,
    "fp8_amax_compute_algo": Argument("text", ("max", "most_recent")),
    "fp8_override_linear_precision": Argument("yesnos"),
    "fp8_opt_level": Argument("text", ("O1", "O2")),
    "fp8_enable_fsdp_float8_all_gather": YESNO,
    "fp8_pad_inner_dim": YESNO,
    # AWS Arguments
    "aws_access_key_id": Argument("text", owned=SECRET),
    "aws_secret_access_key": Argument("text", owned=SECRET),
    # MPI Arguments
    "mpirun_hostfile": Argument("text", owned=NODES),
    # ParallelismConfig Arguments
    "parallelism_config_dp_replicate_size": INT,
    "parallelism_config_dp_shard_size": INT,
    "parallelism_config_tp_size": INT,
    "parallelism_config_cp_size": INT,
    "parallelism_config_cp_backend": Argument("text", ("torch",)),
    "parallelism_config_cp_comm_strategy": TEXT,
    "parallelism_config_sp_size": INT,
    "parallelism_config_sp_backend": Argument("text", ("deepspeed",)),
    "parallelism_config_sp_seq_length": TEXT,
    "parallelism_config_sp_seq_length_is_variable": TRUTH,
    "parallelism_config_sp_attn_implementation": TEXT,
}
"""Every argument by its Python name, in the groups of the command's own help."""
